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
//! that cannot be read stops nothing.

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
use crate::clock;
use crate::model::ids::JobId;
use crate::model::job::Job;
use crate::model::saved::JobOrigin;

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

/// Follow a directory until the agent ends.
pub(super) fn spawn(agent: &AgentHandle, dir: PathBuf) {
    let weak = Arc::downgrade(&agent.0);
    let (ended, rescan) = (agent.0.ended.clone(), Arc::clone(&agent.0.rescan));
    tokio::spawn(async move {
        let mut watch = None;
        let mut known = Known::new();
        loop {
            // Before the scan, so that nothing that happens after it is missed.
            if watch.is_none() {
                watch = Watch::new(&dir).ok();
            }
            let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
            let refused = agent.follow_dir(&dir, &mut known).await;
            drop(agent);
            let again = if refused || watch.is_none() { RETRY } else { RESCAN };
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
            // A directory that was replaced is another one for the kernel.
            if refused {
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
    /// Make jobs run as the files say. `true`: something did not work that may work later.
    async fn follow_dir(&self, dir: &Path, known: &mut Known) -> bool {
        let (at, mut taken) = (dir.to_owned(), std::mem::take(known));
        let scanned = tokio::task::spawn_blocking(move || {
            let scanned = scan::scan(&at, &mut taken);
            (scanned, taken)
        });
        let scan = match scanned.await {
            Ok((scanned, taken)) => {
                *known = taken;
                scanned
            }
            Err(_) => return true,
        };
        let scan = match scan {
            Ok(scan) => scan,
            Err(error) => {
                let problem = format!("cannot read {}: {error}", dir.display());
                self.report_dir(|report| report.problem = Some(problem));
                return true;
            }
        };
        let (problems, refused) = self.apply(step(&self.jobs_of_files(), &scan)).await;
        self.report_files(&scan, &problems);
        refused
    }

    /// Jobs that run by files, with their files.
    fn jobs_of_files(&self) -> BTreeMap<JobId, PathBuf> {
        let registry = self.registry();
        let jobs = registry.jobs.iter().filter(|(_, entry)| !entry.record.stopped);
        jobs.filter_map(|(id, entry)| match &entry.record.origin {
            JobOrigin::File(path) => Some((id.clone(), path.clone())),
            JobOrigin::Api => None,
        })
        .collect()
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
                    if let Err(error) = self.deregister_as(&job, options, &origin).await {
                        refused = true;
                        tracing::warn!(%job, %error, "a job without its file was not stopped");
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

#[cfg(test)]
mod tests;
