//! Every job file of a directory runs: a changed file is an update, a removed one a stop.
//!
//! ```text
//!  changed ─► quiet for DEBOUNCE ─┐
//!  rescan, retry ─────────────────┴─► scan (blocking) ─► step (pure) ─► register, deregister
//!                                       ▲ unchanged files are not read again   │
//!                                       └── JobsDirReport ◄── problems, told once ◄┘
//! ```
//! A bad file leaves the job's last good version running. A job of a file changes with that file alone: the
//! API cannot take it over, and a file cannot take over a job of the API. A directory that cannot be read
//! stops nothing; one that is empty at once does not count as emptied at once, see `hold.rs`.
//!
//! Start with [`JobsDir::follow`]; then `step.rs`, which decides.

mod hold;
mod scan;
mod step;
mod watch;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use ostler_control::{ControlHandle, RegisterOptions, StopOptions, SubmitError};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::limits::JOBS_DIR_HOLD;
use ostler_model::printable::printable_path;
use ostler_model::saved::JobOrigin;
use ostler_trace::Registration;

pub use hold::DirId;
use hold::{EmptyDirHold, MissingFiles};
use scan::FileCache;
pub use scan::{FileStamp, FilesOnDisk, JobFiles};
pub use step::Content;
use step::{Action, Scan, step};
pub use watch::DirWatch;

/// A change is acted on when nothing else has changed for this long.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// A change is acted on at the latest this long after the first one.
const DEBOUNCE_MAX: Duration = Duration::from_secs(2);
/// The directory is read at least this often.
const RESCAN: Duration = Duration::from_secs(60);
/// The directory is read this often while a job of it is refused, or while the kernel reports no changes.
const RETRY: Duration = Duration::from_secs(5);

/// One file of the jobs directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsDirEntry {
    /// The path of the job file, in the jobs directory.
    pub path: PathBuf,
    /// The job that runs by this file, perhaps with an older content of the file.
    pub job: Option<JobId>,
    /// Why the present content of the file is not used; absent when it is.
    pub problem: Option<String>,
}

/// What the last scan found in the jobs directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsDirReport {
    /// The path of the jobs directory.
    pub dir: PathBuf,
    /// Why the directory as a whole could not be used at the last scan; absent when it could.
    pub problem: Option<String>,
    /// The job files of the directory, in the order of their paths.
    pub files: Vec<JobsDirEntry>,
}

/// A jobs directory, and what was found in it last. Clones share it.
#[derive(Clone)]
pub struct JobsDir(Arc<JobsDirInner>);

struct JobsDirInner {
    report: Mutex<JobsDirReport>,
    rescan: Notify,
}

/// A check of whether a job may be registered, as far as that can be decided without placing it.
type Check = dyn Fn(&Job) -> Result<(), SubmitError> + Send + Sync;

/// What is remembered of the directory between two scans.
struct DirFollower {
    dir: JobsDir,
    files: Arc<dyn JobFiles>,
    control: ControlHandle,
    /// Checks that the namespace of a job exists.
    is_somewhere: Arc<Check>,
    check: Arc<Check>,
    known: FileCache,
    hold: EmptyDirHold,
    began: Stopwatch,
    /// The directory that the last scan read.
    id: Option<DirId>,
}

/// When to scan the directory again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextScan {
    /// Scan after this time at the latest; a change leads to an earlier scan.
    within: Duration,
    /// The directory may be another one than the one that is watched: watch it anew.
    watch_anew: bool,
}

impl JobsDir {
    /// A directory that has not been scanned yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        let report = Mutex::new(JobsDirReport { dir, ..JobsDirReport::default() });
        Self(Arc::new(JobsDirInner { report, rescan: Notify::new() }))
    }

    /// What the last scan found in the directory.
    #[must_use]
    pub fn report(&self) -> JobsDirReport {
        self.0.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Scan the directory now instead of at its next change.
    pub fn rescan(&self) {
        self.0.rescan.notify_one();
    }

    /// Make jobs run as the files of the directory say, until `ended`. `is_somewhere` checks that the
    /// namespace of a job exists; `check` checks that the job may be registered.
    pub async fn follow(
        self,
        files: impl JobFiles,
        control: ControlHandle,
        is_somewhere: impl Fn(&Job) -> Result<(), SubmitError> + Send + Sync + 'static,
        check: impl Fn(&Job) -> Result<(), SubmitError> + Send + Sync + 'static,
        ended: CancellationToken,
    ) {
        let mut followed = DirFollower {
            dir: self.clone(),
            files: Arc::new(files),
            control,
            is_somewhere: Arc::new(is_somewhere),
            check: Arc::new(check),
            known: FileCache::new(),
            hold: EmptyDirHold::default(),
            began: Stopwatch::start(),
            id: None,
        };
        let mut watch = None;
        loop {
            // Before the scan, so that nothing that happens after it is missed.
            if watch.is_none() {
                watch = followed.files.watch().ok();
            }
            let NextScan { within, watch_anew } = followed.sync_jobs().await;
            let again = if watch.is_none() { within.min(RETRY) } else { within };
            let next = async {
                match &watch {
                    Some(watch) => {
                        match clock::timeout(again, wait_settled(watch.as_ref())).await {
                            Some(told) => told.is_ok(),
                            None => true,
                        }
                    }
                    None => {
                        clock::sleep(again).await;
                        true
                    }
                }
            };
            tokio::select! {
                // A random choice among the branches would differ between two runs of a simulation.
                biased;
                () = ended.cancelled() => return,
                () = self.0.rescan.notified() => {}
                told = next => if !told { watch = None },
            }
            if watch_anew {
                watch = None;
            }
        }
    }

    /// Report a problem of the directory as a whole; the files of the last scan stay in the report.
    fn report_problem(&self, problem: String) {
        self.change_report(|report| report.problem = Some(problem));
    }

    fn change_report(&self, change: impl FnOnce(&mut JobsDirReport)) {
        let mut report = self.0.report.lock().unwrap_or_else(PoisonError::into_inner);
        let before = report.clone();
        change(&mut report);
        if *report == before {
            return;
        }
        if let Some(problem) = report.problem.as_ref().filter(|_| report.problem != before.problem)
        {
            tracing::error!("{problem}");
        }
        // A problem is logged once, until it changes.
        for entry in report.files.iter().filter(|entry| !before.files.contains(entry)) {
            if let Some(problem) = &entry.problem {
                tracing::error!(path = %printable_path(&entry.path), "job file is not used: {problem}");
            }
        }
    }
}

/// Wait until something has changed, and then nothing for [`DEBOUNCE`].
async fn wait_settled(watch: &dyn DirWatch) -> io::Result<()> {
    watch.wait_changed().await?;
    let quiet = async {
        while let Some(told) = clock::timeout(DEBOUNCE, watch.wait_changed()).await {
            told?;
        }
        Ok(())
    };
    clock::timeout(DEBOUNCE_MAX, quiet).await.unwrap_or(Ok(()))
}

impl DirFollower {
    /// Make jobs run as the files say.
    async fn sync_jobs(&mut self) -> NextScan {
        let soon = NextScan { within: RETRY, watch_anew: true };
        let (files, mut taken) = (Arc::clone(&self.files), std::mem::take(&mut self.known));
        let scanned = clock::run_blocking(move || {
            let scanned = scan::scan(files.as_ref(), &mut taken);
            (scanned, taken)
        });
        let Ok((mut scan, taken)) = scanned.await else { return soon };
        if let Ok((_, scan)) = &mut scan {
            self.leave_out_unknown_namespaces(scan);
        }
        self.known = taken;
        let dir = self.dir.report().dir;
        let jobs = self.jobs_of_files();
        let (id, scan) = match scan {
            Ok(found) => found,
            Err(error) => {
                self.hold.mark_unreadable();
                self.dir.report_problem(unreadable_message(&dir, &error, jobs.len()));
                return soon;
            }
        };
        // The kernel still watches the directory that was there before.
        let replaced = self.id.replace(id).is_some_and(|before| before != id);
        let files = !scan.files.is_empty() || scan.incomplete;
        if let MissingFiles::Held { left } =
            self.hold.step(self.began.elapsed(), id, files, jobs.len())
        {
            self.dir.report_problem(emptied_message(&dir, jobs.len()));
            return NextScan { within: left.min(RETRY), watch_anew: true };
        }
        if !files && !jobs.is_empty() {
            let (dir, jobs) = (printable_path(&dir), jobs.len());
            tracing::warn!(%dir, jobs, "the jobs directory is empty: its jobs are stopped");
        }
        let (problems, refused) = self.apply(step(&jobs, &scan)).await;
        self.report_files(&scan, &problems);
        if refused { soon } else { NextScan { within: RESCAN, watch_anew: replaced } }
    }

    /// Treat a file whose job is in an unknown namespace like one that cannot be read: the job that runs by
    /// the file runs on.
    fn leave_out_unknown_namespaces(&self, scan: &mut Scan) {
        for content in scan.files.values_mut() {
            let Ok(job) = content else { continue };
            if let Err(error) = (self.is_somewhere)(job) {
                *content = Err(error.to_string());
            }
        }
    }

    /// The jobs that run by files, with the path of each one's file.
    fn jobs_of_files(&self) -> BTreeMap<JobId, PathBuf> {
        let file_of = |(id, entry): (&JobId, &ostler_control::JobEntry)| match &entry.record.origin
        {
            JobOrigin::File(path) if !entry.record.stopped => Some((id.clone(), path.clone())),
            JobOrigin::File(_) | JobOrigin::Api | JobOrigin::Run => None,
        };
        self.control.read_tables(|tables| tables.jobs().filter_map(file_of).collect())
    }

    /// Apply the actions: first the stops, then the registrations concurrently. Returns the problems by
    /// file, and whether any action was refused and is worth another try.
    async fn apply(&self, actions: Vec<Action>) -> (BTreeMap<PathBuf, String>, bool) {
        let (mut problems, mut refused) = (BTreeMap::new(), false);
        let mut registrations = JoinSet::new();
        for action in actions {
            match action {
                Action::Problem { path, text } => drop(problems.insert(path, text)),
                Action::Stop { job, path } => {
                    let reason = format!("{} no longer contains the job", printable_path(&path));
                    let options = StopOptions { reason, ..StopOptions::default() };
                    let origin = JobOrigin::File(path);
                    match self.control.deregister(&job, options, origin).await {
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
                    let (control, check) = (self.control.clone(), Arc::clone(&self.check));
                    registrations.spawn(async move {
                        let registered = match check(&job) {
                            Ok(()) => register(&control, &path, job).await,
                            Err(error) => Err(error),
                        };
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
            .then(|| format!("there are more than {most} job files; the others are ignored"));
        self.dir.change_report(|report| {
            report.files = files;
            report.problem = problem;
        });
    }
}

async fn register(control: &ControlHandle, path: &Path, job: Arc<Job>) -> Result<(), SubmitError> {
    let origin = JobOrigin::File(path.to_owned());
    let id = job.id.clone();
    let registration = Registration::start_span(None, id.as_str(), id.namespace(), "file");
    let trace = registration.context;
    let options = RegisterOptions { origin, trace, ..RegisterOptions::default() };
    let done = registration.run(control.register(job, options)).await?;
    registration.record_result(done.version, done.answer_index(), None);
    let changed = done.placed.len() + done.updated.len() + done.stopped.len();
    if changed > 0 {
        let (path, version) = (printable_path(path), done.version);
        tracing::info!(%path, job = %id, version, "job of a file taken");
    }
    Ok(())
}

fn unreadable_message(dir: &Path, error: &io::Error, jobs: usize) -> String {
    let dir = printable_path(dir);
    let run_on = if jobs == 0 { "" } else { "; the jobs of its files run on as they are" };
    format!("the jobs directory {dir} cannot be read: {error}{run_on}")
}

fn emptied_message(dir: &Path, jobs: usize) -> String {
    let (dir, minutes) = (printable_path(dir), JOBS_DIR_HOLD.as_secs() / 60);
    let (jobs, run) =
        if jobs == 1 { ("job", "runs on and is") } else { ("jobs", "run on and are") };
    format!(
        "the jobs directory {dir} no longer has any job file: its {jobs} {run} stopped when it stays \
         empty for {minutes} minutes; put the files back, or mount it, if that is not intended"
    )
}

#[cfg(test)]
mod tests;
