//! Which tasks live in workers while no agent runs. For a command that has claimed
//! the data directory.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::connect;
use super::discovery::{self, FoundWorker};
use super::link;
use super::order;
use super::protocol::{FromWorker, ListedTask, ToWorker, VERSION};
use super::runs::{FoundTasks, LivingTask};
use ostler_model::clock::Stopwatch;
use ostler_model::ids::RunId;
use ostler_model::limits::WORKER_ANSWER_WALL_MAX;

/// Every task that lives in a worker of this data directory. Blocks.
///
/// # Errors
/// When `/proc` or the directory of the workers cannot be read.
pub fn find_tasks(data_dir: &Path) -> io::Result<FoundTasks> {
    let survey = discovery::survey(&workers_of(data_dir))?;
    let (elsewhere, notes) = (survey.elsewhere, survey.notes);
    let mut all = FoundTasks { elsewhere, notes, ..FoundTasks::default() };
    for worker in &survey.living {
        match WorkerQuery::connect(worker).and_then(|asking| asking.list()) {
            Ok(tasks) => {
                all.tasks.extend(tasks.iter().filter_map(|task| living_task(worker.pid, task)))
            }
            Err(error) => {
                tracing::warn!(pid = worker.pid, %error, "a worker does not say what lives in it");
                all.unasked.push((worker.pid, worker.start_ticks));
            }
        }
    }
    Ok(all)
}

/// End a run in whichever worker has it, and wait for the end; `false` where no worker
/// has it. Blocks.
///
/// # Errors
/// When a worker cannot be asked, or the run does not end within `bound`.
pub fn end_run(data_dir: &Path, run: &RunId, bound: Duration) -> io::Result<bool> {
    let of_run = |tasks: &[ListedTask], worker| {
        tasks.iter().filter_map(|task| living_task(worker, task)).any(|task| task.run == *run)
    };
    for worker in &discovery::survey(&workers_of(data_dir))?.living {
        let asking = WorkerQuery::connect(worker)?;
        if !of_run(&asking.list()?, worker.pid) {
            continue;
        }
        asking.say(&ToWorker::KillRun { run: run.to_string() })?;
        // An exit that the worker tells before it answers is in the list.
        if of_run(&asking.list()?, worker.pid) {
            asking.wait_exit(run, bound)?;
        }
        asking.say(&ToWorker::ForgetRun { run: run.to_string() })?;
        return Ok(true);
    }
    Ok(false)
}

fn workers_of(data_dir: &Path) -> PathBuf {
    data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned()).join(discovery::WORKERS)
}

/// A listed task with the pid of its worker, if the task lives. A task that was not released
/// ends by itself.
pub(crate) fn living_task(worker: u32, task: &ListedTask) -> Option<LivingTask> {
    if !task.released || task.exit.is_some() || !order::is_id(&task.id) {
        return None;
    }
    let run = order::parse_run(&task.run).ok()?;
    Some(LivingTask { worker, run, id: task.id.clone(), place: order::parse_place(task) })
}

/// A separate connection to a worker, on which this process waits for each answer.
struct WorkerQuery(OwnedFd);

impl WorkerQuery {
    fn connect(worker: &FoundWorker) -> io::Result<Self> {
        let reach = |path: &PathBuf| connect::connect_to_path(path);
        let socket =
            worker.socket.as_ref().map_or_else(|| connect::connect_to_dir(&worker.dir), reach)?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        for way in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, way, Some(WORKER_ANSWER_WALL_MAX))?;
        }
        let asking = Self(socket);
        asking.say(&ToWorker::Hello { version: VERSION })?;
        Ok(asking)
    }

    fn say(&self, message: &ToWorker) -> io::Result<()> {
        link::send_blocking(&self.0, message)
    }

    /// Wait until the worker tells that the run ended.
    fn wait_exit(&self, run: &RunId, bound: Duration) -> io::Result<()> {
        let watch = Stopwatch::start();
        while watch.elapsed() < bound {
            match link::receive_blocking::<FromWorker>(&self.0)? {
                Some(FromWorker::Exited { run: ended, .. }) if ended == run.as_str() => {
                    return Ok(());
                }
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {bound:?}")))
    }

    fn list(&self) -> io::Result<Vec<ListedTask>> {
        self.say(&ToWorker::List { n: 0 })?;
        loop {
            // The other messages are for an agent.
            match link::receive_blocking::<FromWorker>(&self.0)? {
                Some(FromWorker::Listed { tasks, .. }) => return Ok(tasks),
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}
