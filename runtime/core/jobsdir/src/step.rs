//! What the files of the jobs directory ask for, given what runs. Pure.
//!
//! ```text
//!  file ── job ─────── given by this file alone ────────────► Register
//!    │      └───────── given by several: the one that runs it, else the first by name; others: Problem
//!    └── no job ──────────────────────────────► Problem; what runs by it runs on
//!  job of a file ─ the file is gone, or has another job now ─ no other file gives it ─► Stop
//! ```
//! The decision depends on the present state, not on changes, so that files that changed while no agent ran
//! are no special case. Registering a job again as it is registered already changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::printable::printable_path;

/// The content of a file: its job, or why it has none.
pub type Content = Result<Arc<Job>, String>;

/// What one scan found in the directory.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The contents of the job files that were read, by path.
    pub files: BTreeMap<PathBuf, Content>,
    /// Not every file was read: a file that is not in `files` may exist.
    pub incomplete: bool,
}

/// One action that brings the jobs closer to what the files ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Stop a job that runs by this file, because no file gives it any more.
    Stop {
        /// The id of the job to stop.
        job: JobId,
        /// The file it came from.
        path: PathBuf,
    },
    /// Register the job as this file says.
    Register {
        /// The path of the job file.
        path: PathBuf,
        /// The job that the file gives.
        job: Arc<Job>,
    },
    /// Report a file that is not used.
    Problem {
        /// The path of the file that is not used.
        path: PathBuf,
        /// Why the file is not used, and what to do about it.
        text: String,
    },
}

/// Decide what to do, as the module describes. `running` has the jobs that came from files, with the path
/// of each one's file. Stops come first.
#[must_use]
pub fn step(running: &BTreeMap<JobId, PathBuf>, scan: &Scan) -> Vec<Action> {
    let mut givers: BTreeMap<&JobId, BTreeSet<&PathBuf>> = BTreeMap::new();
    for (path, content) in &scan.files {
        if let Ok(job) = content {
            givers.entry(&job.id).or_default().insert(path);
        }
    }
    let stops = running.iter().filter(|(job, path)| {
        let unread = match scan.files.get(*path) {
            Some(content) => content.is_err(),
            None => scan.incomplete,
        };
        !unread && !givers.contains_key(job)
    });
    let mut actions: Vec<Action> =
        stops.map(|(job, path)| Action::Stop { job: job.clone(), path: path.clone() }).collect();
    for (path, content) in &scan.files {
        actions.push(match content {
            Err(text) => Action::Problem { path: path.clone(), text: text.clone() },
            Ok(job) => match owning_file(running, &givers, scan, &job.id) {
                Some(other) if other != path => Action::Problem {
                    path: path.clone(),
                    text: format!(
                        "job {} is already that of {}; give it another id or remove one file",
                        job.id,
                        printable_path(other)
                    ),
                },
                _ => Action::Register { path: path.clone(), job: Arc::clone(job) },
            },
        });
    }
    actions
}

/// The file that the job belongs to, of all files that give it.
fn owning_file<'a>(
    running: &'a BTreeMap<JobId, PathBuf>,
    givers: &BTreeMap<&JobId, BTreeSet<&'a PathBuf>>,
    scan: &Scan,
    job: &JobId,
) -> Option<&'a PathBuf> {
    let givers = givers.get(job)?;
    let now = running.get(job);
    // A file that cannot be read now keeps its job.
    let keeps = |path: &&PathBuf| {
        givers.contains(*path)
            || scan.files.get(*path).is_some_and(Result::is_err)
            || (scan.incomplete && !scan.files.contains_key(*path))
    };
    now.filter(keeps).or_else(|| givers.first().copied())
}
