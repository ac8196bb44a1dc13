//! What the files of the jobs directory ask for, given what runs. Pure.
//!
//! ```text
//!  file ── job ─────── given by this file alone ────────────► Register
//!    │      └───────── given by several: the one that runs it, else the first by name; others: Problem
//!    └── no job ──────────────────────────────► Problem; what runs by it runs on
//!  job of a file ─ the file is gone, or has another job now ─ no other file gives it ─► Stop
//! ```
//! It looks at what is, not at what changed, so that files changed while no agent ran need nothing
//! of their own. Registering what is registered already changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::shown::shown_path;

/// What a file says: its job, or why it has none.
pub type Content = Result<Arc<Job>, String>;

/// What was found in the directory.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Every job file, by path.
    pub files: BTreeMap<PathBuf, Content>,
    /// Not every file was looked at: one that is not in `files` may be there.
    pub incomplete: bool,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The job runs by this file and no file gives it any more.
    Stop {
        /// The job.
        job: JobId,
        /// The file it came from.
        path: PathBuf,
    },
    /// Make the job run as this file says.
    Register {
        /// The file.
        path: PathBuf,
        /// Its job.
        job: Arc<Job>,
    },
    /// The file is not used.
    Problem {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        text: String,
    },
}

/// See the module. `running`: jobs that came from files, with the file of each. Stops come first.
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
            Ok(job) => match used(running, &givers, scan, &job.id) {
                Some(other) if other != path => Action::Problem {
                    path: path.clone(),
                    text: format!(
                        "job {} is that of {} already; give it another id or remove one file",
                        job.id,
                        shown_path(other)
                    ),
                },
                _ => Action::Register { path: path.clone(), job: Arc::clone(job) },
            },
        });
    }
    actions
}

/// The file whose job this is.
fn used<'a>(
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
