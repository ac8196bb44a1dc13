//! A run that is alive, with the process that keeps it: its own supervisor, or a shared worker.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ostler_model::clock;
use ostler_model::ids::RunId;
use ostler_model::ports::ProcessIdentity;
use ostler_process::identity;
use ostler_process::live::{LiveRun, RunPlace};
use ostler_wasm_task::WasmTasks;
use ostler_worker::LivingTask;

/// A run that is alive.
#[derive(Clone, Debug, PartialEq)]
pub enum AliveRun {
    /// A native task below its supervisor.
    Native(LiveRun),
    /// A run of WASM tasks in a worker.
    Wasm(WasmRun),
}

/// A run of WASM tasks that is alive.
#[derive(Clone, Debug, PartialEq)]
pub struct WasmRun {
    /// The process of the worker.
    pub worker: ProcessIdentity,
    /// The id of the run; `None` if the worker lives but does not say what lives in it.
    pub run: Option<RunId>,
    /// The task's name in the worker, if this agent has the worker.
    pub task: Option<String>,
    /// The allocation and the task that the run belongs to, if they are known.
    pub place: Option<RunPlace>,
    /// What an agent had on record of the run, from its note.
    pub record: Option<serde_json::Value>,
    /// Whether the worker works for another data directory, of which this one is a copy.
    pub elsewhere: bool,
}

/// The identity of a worker's process.
pub(super) fn worker(pid: u32, start_ticks: u64, boot: &str) -> ProcessIdentity {
    ProcessIdentity { pid, start_ticks, boot_id: boot.to_owned(), cgroup: None, supervisor: None }
}

impl AliveRun {
    /// A run in a worker of this data directory.
    pub(super) fn wasm(task: LivingTask, record: Option<(RunPlace, serde_json::Value)>) -> Self {
        let (noted, record) = record.unzip();
        Self::Wasm(WasmRun {
            worker: worker(task.worker, 0, ""),
            run: Some(task.run),
            task: Some(task.id),
            place: noted.or(task.place),
            record: record.filter(|record| !record.is_null()),
            elsewhere: false,
        })
    }

    /// The unknown runs in a worker that does not say what lives in it.
    pub(super) fn from_silent_worker(worker: ProcessIdentity) -> Self {
        Self::Wasm(WasmRun {
            worker,
            run: None,
            task: None,
            place: None,
            record: None,
            elsewhere: false,
        })
    }

    /// The allocation and the task that the run belongs to; `None` if nothing says so.
    #[must_use]
    pub const fn place(&self) -> Option<&RunPlace> {
        match self {
            Self::Native(run) => run.place.as_ref(),
            Self::Wasm(run) => run.place.as_ref(),
        }
    }

    /// What an agent had on record of the run.
    pub(super) const fn record(&self) -> Option<&serde_json::Value> {
        match self {
            Self::Native(run) => run.record.as_ref(),
            Self::Wasm(run) => run.record.as_ref(),
        }
    }

    /// The id of the run, if it is known.
    pub(super) fn run(&self) -> Option<String> {
        match self {
            Self::Native(run) => run.run.clone(),
            Self::Wasm(run) => run.run.as_ref().map(ToString::to_string),
        }
    }

    /// The name of the run in commands: the pid of its supervisor, or the id of a run that shares
    /// its worker with others.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Native(run) => run.supervisor.pid.to_string(),
            Self::Wasm(run) => self.run().unwrap_or_else(|| run.worker.pid.to_string()),
        }
    }

    /// Whether the run works for another data directory.
    pub(crate) const fn is_elsewhere(&self) -> bool {
        match self {
            Self::Native(run) => run.elsewhere.is_some(),
            Self::Wasm(run) => run.elsewhere,
        }
    }

    /// The other data directory that the run works for, if it is known. For a worker, this reads
    /// `/proc` and blocks.
    pub(crate) fn other_data_dir(&self) -> Option<PathBuf> {
        match self {
            Self::Native(run) => run.elsewhere.clone(),
            Self::Wasm(run) if run.elsewhere => ostler_worker::data_dir_of(run.worker.pid),
            Self::Wasm(_) => None,
        }
    }

    /// Whether the run has ended. `tasks` are the tasks of this agent.
    pub(super) fn has_ended(&self, tasks: &dyn WasmTasks) -> bool {
        match self {
            Self::Native(run) => run.has_ended(),
            Self::Wasm(WasmRun { run: Some(run), task: Some(task), .. }) => {
                !tasks.is_running(run, task).unwrap_or(false)
            }
            Self::Wasm(run) => !identity::is_alive(&run.worker),
        }
    }

    /// End the run and wait for its end. `tasks` are the tasks of this agent.
    pub(super) async fn end(&self, tasks: &dyn WasmTasks, bound: Duration) -> io::Result<()> {
        let run = match self {
            Self::Native(run) => return run.end(bound).await,
            Self::Wasm(run) => run,
        };
        let (WasmRun { run: Some(id), task: Some(task), .. }, false) = (run, run.elsewhere) else {
            return run.end_worker(bound).await;
        };
        tasks.kill_run(id);
        let ended = clock::timeout(bound, tasks.wait(id, task)).await;
        ended.map(drop).ok_or_else(|| {
            io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {bound:?}"))
        })
    }
}

impl WasmRun {
    /// End the worker with everything that lives in it, because it does not say what that is.
    pub(crate) async fn end_worker(&self, bound: Duration) -> io::Result<()> {
        if self.elsewhere {
            let text = format!(
                "its worker (pid {}) works for another data directory; stop it with the agent of \
                 that directory",
                self.worker.pid
            );
            return Err(io::Error::other(text));
        }
        identity::end_unnamed(self.worker.clone(), bound).await
    }
}
