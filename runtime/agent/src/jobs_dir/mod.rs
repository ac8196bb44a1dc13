//! Every job file of a directory runs: a changed file is an update, a removed one a stop.
//!
//! ```text
//!  inotify ─► quiet for DEBOUNCE ─┐
//!  rescan, retry ─────────────────┴─► scan (blocking) ─► step (pure) ─► register, deregister
//!                                       ▲ unchanged files are not read again   │
//!                                       └── JobsDirReport ◄── problems, told once ◄┘
//! ```
//! A bad file leaves the job's last good version running. A job of a file changes with that file
//! alone: the API cannot take it over, and a file cannot take over a job of the API. A directory
//! that cannot be read stops nothing; one that is empty at once does not count as emptied at once, see
//! [`hold`].

mod hold;
mod scan;
mod step;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

use super::views::{JobsDirEntry, JobsDirReport};
use super::{AgentHandle, RegisterOptions, StopOptions, SubmitError};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::limits::JOBS_DIR_HOLD;
use ostler_model::saved::JobOrigin;

use hold::{DirId, Hold, MissingFiles};
use scan::Known;
use step::{Action, Scan, step};
use watch::Watch;

/// A change is acted on when the directory was quiet for this long.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// But not later than this after the first change.
const DEBOUNCE_MAX: Duration = Duration::from_secs(2);
/// The directory is read at least this often.
const RESCAN: Duration = Duration::from_secs(60);
/// And this often while a job of it was refused, or the kernel does not tell of changes.
const RETRY: Duration = Duration::from_secs(5);

/// What is remembered of the directory between two looks.
struct Followed {
    dir: PathBuf,
    known: Known,
    hold: Hold,
    began: Stopwatch,
    /// As it was read last.
    id: Option<DirId>,
}

/// When to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    /// At the latest; a change comes first.
    within: Duration,
    /// It may be another directory than the one that is watched.
    watch_anew: bool,
}

/// Follow a directory until the agent ends.
pub(super) fn spawn(agent: &AgentHandle, dir: PathBuf) {
    let weak = Arc::downgrade(&agent.0);
    let (ended, rescan) = (agent.0.ended.clone(), Arc::clone(&agent.0.rescan));
    agent.beside(async move {
        let mut watch = None;
        let (known, hold) = (Known::new(), Hold::default());
        let mut followed = Followed { dir, known, hold, began: Stopwatch::start(), id: None };
        loop {
            // Before the scan, so that nothing that happens after it is missed.
            if watch.is_none() {
                watch = Watch::new(&followed.dir).ok();
            }
            let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
            let Next { within, watch_anew } = agent.follow_dir(&mut followed).await;
            drop(agent);
            let again = if watch.is_none() { within.min(RETRY) } else { within };
            let next = async {
                match &watch {
                    Some(watch) => match clock::timeout(again, settled(watch)).await {
                        Some(told) => told.is_ok(),
                        None => true,
                    },
                    None => {
                        clock::sleep(again).await;
                        true
                    }
                }
            };
            tokio::select! {
                () = ended.cancelled() => return,
                () = rescan.notified() => {}
                told = next => if !told { watch = None },
            }
            if watch_anew {
                watch = None;
            }
        }
    });
}

/// Something changed, and then nothing for a while.
async fn settled(watch: &Watch) -> std::io::Result<()> {
    watch.changed().await?;
    let quiet = async {
        while let Some(told) = clock::timeout(DEBOUNCE, watch.changed()).await {
            told?;
        }
        Ok(())
    };
    clock::timeout(DEBOUNCE_MAX, quiet).await.unwrap_or(Ok(()))
}

impl AgentHandle {
    /// Make jobs run as the files say.
    async fn follow_dir(&self, followed: &mut Followed) -> Next {
        let soon = Next { within: RETRY, watch_anew: true };
        let (at, mut taken) = (followed.dir.clone(), std::mem::take(&mut followed.known));
        let scanned = tokio::task::spawn_blocking(move || {
            let scanned = scan::scan(&at, &mut taken);
            (scanned, taken)
        });
        let scan = match scanned.await {
            Ok((scanned, taken)) => {
                followed.known = taken;
                scanned
            }
            Err(_) => return soon,
        };
        let jobs = self.jobs_of_files();
        let (id, scan) = match scan {
            Ok(found) => found,
            Err(error) => {
                followed.hold.unread();
                self.report_problem(unread(&followed.dir, &error, jobs.len()));
                return soon;
            }
        };
        // A directory that was replaced is another one for the kernel.
        let replaced = followed.id.replace(id).is_some_and(|before| before != id);
        let files = !scan.files.is_empty() || scan.incomplete;
        if let MissingFiles::Held { left } =
            followed.hold.step(followed.began.elapsed(), id, files, jobs.len())
        {
            self.report_problem(emptied(&followed.dir, jobs.len()));
            return Next { within: left.min(RETRY), watch_anew: true };
        }
        if !files && !jobs.is_empty() {
            let dir = followed.dir.display();
            tracing::warn!(%dir, jobs = jobs.len(), "the jobs directory is empty: its jobs are stopped");
        }
        let (problems, refused) = self.apply(step(&jobs, &scan)).await;
        self.report_files(&scan, &problems);
        if refused { soon } else { Next { within: RESCAN, watch_anew: replaced } }
    }

    /// Jobs that run by files, with their files.
    fn jobs_of_files(&self) -> BTreeMap<JobId, PathBuf> {
        let file_of = |(id, entry): (&JobId, &ostler_control::JobEntry)| match &entry.record.origin
        {
            JobOrigin::File(path) if !entry.record.stopped => Some((id.clone(), path.clone())),
            JobOrigin::File(_) | JobOrigin::Api | JobOrigin::Run => None,
        };
        self.0.control.look(|tables| tables.jobs().filter_map(file_of).collect())
    }

    /// Stops first, then registrations side by side. Problems by file, and whether one of them may
    /// pass by itself.
    async fn apply(&self, actions: Vec<Action>) -> (BTreeMap<PathBuf, String>, bool) {
        let (mut problems, mut refused) = (BTreeMap::new(), false);
        let mut registrations = JoinSet::new();
        for action in actions {
            match action {
                Action::Problem { path, text } => drop(problems.insert(path, text)),
                Action::Stop { job, path } => {
                    let reason = format!("{} does not give the job any more", path.display());
                    let options = StopOptions { reason, ..StopOptions::default() };
                    let origin = JobOrigin::File(path);
                    match self.0.control.deregister(&job, options, origin).await {
                        Ok(stopped) => {
                            if let Some(why) = stopped.unwritten {
                                tracing::warn!(%job, "{why}");
                            }
                        }
                        Err(error) => {
                            refused = true;
                            tracing::warn!(%job, %error, "a job without its file was not stopped");
                        }
                    }
                }
                Action::Register { path, job } => {
                    let agent = self.clone();
                    registrations.spawn(async move {
                        let registered = agent.register_file(&path, &job).await;
                        (path, registered)
                    });
                }
            }
        }
        while let Some(ended) = registrations.join_next().await {
            if let Ok((path, Err(error))) = ended {
                refused = true;
                problems.insert(path, error.to_string());
            }
        }
        (problems, refused)
    }

    async fn register_file(&self, path: &Path, job: &Job) -> Result<(), SubmitError> {
        let origin = JobOrigin::File(path.to_owned());
        let options = RegisterOptions { origin, ..RegisterOptions::default() };
        let done = self.register(job.clone(), options).await?;
        let changed = done.placed.len() + done.updated.len() + done.stopped.len();
        if changed > 0 {
            tracing::info!(
                path = %path.display(), job = %job.id, version = done.version, "job of a file taken"
            );
        }
        Ok(())
    }

    /// The directory as a whole is not as it should be; its files are those of the last time.
    fn report_problem(&self, problem: String) {
        self.report_dir(|report| report.problem = Some(problem));
    }

    fn report_dir(&self, change: impl FnOnce(&mut JobsDirReport)) {
        let mut report = self.0.jobs_dir.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(report) = report.as_mut() else { return };
        let before = report.clone();
        change(report);
        if *report == before {
            return;
        }
        if let Some(problem) = report.problem.as_ref().filter(|_| report.problem != before.problem)
        {
            tracing::error!("{problem}");
        }
        // Each problem is told once, until it is another one.
        for entry in report.files.iter().filter(|entry| !before.files.contains(entry)) {
            if let Some(problem) = &entry.problem {
                tracing::error!(path = %entry.path.display(), "job file is not used: {problem}");
            }
        }
    }

    fn report_files(&self, scan: &Scan, problems: &BTreeMap<PathBuf, String>) {
        let jobs: BTreeMap<PathBuf, JobId> =
            self.jobs_of_files().into_iter().map(|(job, path)| (path, job)).collect();
        let entry = |path: &PathBuf| JobsDirEntry {
            path: path.clone(),
            job: jobs.get(path).cloned(),
            problem: problems.get(path).cloned(),
        };
        let files = scan.files.keys().map(entry).collect();
        let most = scan::FILES_MAX;
        let problem = scan
            .incomplete
            .then(|| format!("there are more than {most} job files; the others are not looked at"));
        self.report_dir(|report| {
            report.files = files;
            report.problem = problem;
        });
    }
}

fn unread(dir: &Path, error: &std::io::Error, jobs: usize) -> String {
    let dir = dir.display();
    let run_on = if jobs == 0 { "" } else { "; the jobs of its files run on as they are" };
    format!("the jobs directory {dir} cannot be read: {error}{run_on}")
}

fn emptied(dir: &Path, jobs: usize) -> String {
    let (dir, minutes) = (dir.display(), JOBS_DIR_HOLD.as_secs() / 60);
    let (jobs, run) =
        if jobs == 1 { ("job", "runs on and is") } else { ("jobs", "run on and are") };
    format!(
        "the jobs directory {dir} has no job file any more: its {jobs} {run} stopped when it stays \
         empty for {minutes} minutes; put the files back, or mount it, if that is not meant"
    )
}

#[cfg(test)]
mod tests;
