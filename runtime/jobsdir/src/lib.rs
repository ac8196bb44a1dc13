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

use serde::Serialize;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use ostler_control::{ControlHandle, RegisterOptions, StopOptions, SubmitError};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::limits::JOBS_DIR_HOLD;
use ostler_model::saved::JobOrigin;
use ostler_model::shown::shown_path;
use ostler_trace::Registration;

pub use hold::DirId;
use hold::{Hold, MissingFiles};
use scan::Known;
pub use scan::{FilesOnDisk, JobFiles, Stamp};
pub use step::Content;
use step::{Action, Scan, step};
pub use watch::DirWatch;

/// A change is acted on when the directory was quiet for this long.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// But not later than this after the first change.
const DEBOUNCE_MAX: Duration = Duration::from_secs(2);
/// The directory is read at least this often.
const RESCAN: Duration = Duration::from_secs(60);
/// And this often while a job of it was refused, or the kernel does not tell of changes.
const RETRY: Duration = Duration::from_secs(5);

/// One file of the jobs directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobsDirEntry {
    /// The file.
    pub path: PathBuf,
    /// The job that runs by this file, perhaps of an older content.
    pub job: Option<JobId>,
    /// Why the present content is not used.
    pub problem: Option<String>,
}

/// What the jobs directory has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobsDirReport {
    /// The directory.
    pub dir: PathBuf,
    /// Why the directory as a whole could not be read, the last time.
    pub problem: Option<String>,
    /// Its job files, by path.
    pub files: Vec<JobsDirEntry>,
}

/// A jobs directory, and what was found in it last. Clones share it.
#[derive(Clone)]
pub struct JobsDir(Arc<Shared>);

struct Shared {
    report: Mutex<JobsDirReport>,
    rescan: Notify,
}

/// Whether a job may be registered at all, as far as that can be told without placing it.
type Check = dyn Fn(&Job) -> Result<(), SubmitError> + Send + Sync;

/// What is remembered of the directory between two looks.
struct Followed {
    dir: JobsDir,
    files: Arc<dyn JobFiles>,
    control: ControlHandle,
    /// Is its namespace there?
    is_somewhere: Arc<Check>,
    check: Arc<Check>,
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

impl JobsDir {
    /// A directory that nobody has looked at yet.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        let report = Mutex::new(JobsDirReport { dir, ..JobsDirReport::default() });
        Self(Arc::new(Shared { report, rescan: Notify::new() }))
    }

    /// What it has.
    #[must_use]
    pub fn report(&self) -> JobsDirReport {
        self.0.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Look at it now instead of at its next change.
    pub fn rescan(&self) {
        self.0.rescan.notify_one();
    }

    /// Make jobs run as its files say, until `ended`. `is_somewhere`: is the job in a namespace that is
    /// there? `check`: may it be registered?
    pub async fn follow(
        self,
        files: impl JobFiles,
        control: ControlHandle,
        is_somewhere: impl Fn(&Job) -> Result<(), SubmitError> + Send + Sync + 'static,
        check: impl Fn(&Job) -> Result<(), SubmitError> + Send + Sync + 'static,
        ended: CancellationToken,
    ) {
        let mut followed = Followed {
            dir: self.clone(),
            files: Arc::new(files),
            control,
            is_somewhere: Arc::new(is_somewhere),
            check: Arc::new(check),
            known: Known::new(),
            hold: Hold::default(),
            began: Stopwatch::start(),
            id: None,
        };
        let mut watch = None;
        loop {
            // Before the scan, so that nothing that happens after it is missed.
            if watch.is_none() {
                watch = followed.files.watch().ok();
            }
            let Next { within, watch_anew } = followed.look().await;
            let again = if watch.is_none() { within.min(RETRY) } else { within };
            let next = async {
                match &watch {
                    Some(watch) => match clock::timeout(again, settled(watch.as_ref())).await {
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
                // What is drawn among them would differ from play to play of a simulation.
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

    /// The directory as a whole is not as it should be; its files are those of the last time.
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
        // Each problem is told once, until it is another one.
        for entry in report.files.iter().filter(|entry| !before.files.contains(entry)) {
            if let Some(problem) = &entry.problem {
                tracing::error!(path = %shown_path(&entry.path), "job file is not used: {problem}");
            }
        }
    }
}

/// Something changed, and then nothing for a while.
async fn settled(watch: &dyn DirWatch) -> io::Result<()> {
    watch.changed().await?;
    let quiet = async {
        while let Some(told) = clock::timeout(DEBOUNCE, watch.changed()).await {
            told?;
        }
        Ok(())
    };
    clock::timeout(DEBOUNCE_MAX, quiet).await.unwrap_or(Ok(()))
}

impl Followed {
    /// Make jobs run as the files say.
    async fn look(&mut self) -> Next {
        let soon = Next { within: RETRY, watch_anew: true };
        let (files, mut taken) = (Arc::clone(&self.files), std::mem::take(&mut self.known));
        let scanned = clock::blocking(move || {
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
                self.hold.unread();
                self.dir.report_problem(unread(&dir, &error, jobs.len()));
                return soon;
            }
        };
        // A directory that was replaced is another one for the kernel.
        let replaced = self.id.replace(id).is_some_and(|before| before != id);
        let files = !scan.files.is_empty() || scan.incomplete;
        if let MissingFiles::Held { left } =
            self.hold.step(self.began.elapsed(), id, files, jobs.len())
        {
            self.dir.report_problem(emptied(&dir, jobs.len()));
            return Next { within: left.min(RETRY), watch_anew: true };
        }
        if !files && !jobs.is_empty() {
            let (dir, jobs) = (shown_path(&dir), jobs.len());
            tracing::warn!(%dir, jobs, "the jobs directory is empty: its jobs are stopped");
        }
        let (problems, refused) = self.apply(step(&jobs, &scan)).await;
        self.report_files(&scan, &problems);
        if refused { soon } else { Next { within: RESCAN, watch_anew: replaced } }
    }

    /// A file whose job is nowhere is as one that cannot be read: what runs by it runs on.
    fn leave_out_unknown_namespaces(&self, scan: &mut Scan) {
        for content in scan.files.values_mut() {
            let Ok(job) = content else { continue };
            if let Err(error) = (self.is_somewhere)(job) {
                *content = Err(error.to_string());
            }
        }
    }

    /// Jobs that run by files, with their files.
    fn jobs_of_files(&self) -> BTreeMap<JobId, PathBuf> {
        let file_of = |(id, entry): (&JobId, &ostler_control::JobEntry)| match &entry.record.origin
        {
            JobOrigin::File(path) if !entry.record.stopped => Some((id.clone(), path.clone())),
            JobOrigin::File(_) | JobOrigin::Api | JobOrigin::Run => None,
        };
        self.control.look(|tables| tables.jobs().filter_map(file_of).collect())
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
                    let reason = format!("{} does not give the job any more", shown_path(&path));
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
            .then(|| format!("there are more than {most} job files; the others are not looked at"));
        self.dir.change_report(|report| {
            report.files = files;
            report.problem = problem;
        });
    }
}

async fn register(control: &ControlHandle, path: &Path, job: Arc<Job>) -> Result<(), SubmitError> {
    let origin = JobOrigin::File(path.to_owned());
    let id = job.id.clone();
    let registration = Registration::begin(None, id.as_str(), id.namespace(), "file");
    let trace = registration.context;
    let options = RegisterOptions { origin, trace, ..RegisterOptions::default() };
    let done = registration.run(control.register(job, options)).await?;
    registration.done(done.version, done.answer_index(), None);
    let changed = done.placed.len() + done.updated.len() + done.stopped.len();
    if changed > 0 {
        let (path, version) = (shown_path(path), done.version);
        tracing::info!(%path, job = %id, version, "job of a file taken");
    }
    Ok(())
}

fn unread(dir: &Path, error: &io::Error, jobs: usize) -> String {
    let dir = shown_path(dir);
    let run_on = if jobs == 0 { "" } else { "; the jobs of its files run on as they are" };
    format!("the jobs directory {dir} cannot be read: {error}{run_on}")
}

fn emptied(dir: &Path, jobs: usize) -> String {
    let (dir, minutes) = (shown_path(dir), JOBS_DIR_HOLD.as_secs() / 60);
    let (jobs, run) =
        if jobs == 1 { ("job", "runs on and is") } else { ("jobs", "run on and are") };
    format!(
        "the jobs directory {dir} has no job file any more: its {jobs} {run} stopped when it stays \
         empty for {minutes} minutes; put the files back, or mount it, if that is not meant"
    )
}

#[cfg(test)]
mod tests;
