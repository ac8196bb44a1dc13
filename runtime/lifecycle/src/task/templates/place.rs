//! Where a path in a template leads: below the task's directory, or in the shared one. Pure, but for
//! [`Sandbox`], which opens both.

use std::path::{Component, Path, PathBuf};

use cap_std::fs::Dir;

use super::disk;
use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::task::env::TaskDirs;
use ostler_model::ids::{AllocId, TaskName};

/// The shared directory, beside those of the tasks.
const SHARED: &str = "alloc";
/// What an isolated task sees of its directory.
const SEEN: [&str; 3] = ["local", "secrets", "tmp"];

/// A place, relative to one of the two directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Task(PathBuf),
    Shared(PathBuf),
}

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlaceError {
    #[error(
        "{0:?} is outside of the task's directories; begin with local/, secrets/ or \
         ${{NOMAD_ALLOC_DIR}}/"
    )]
    Outside(String),
    #[error("{0:?} is a directory of the task, not a file in one")]
    NoFile(String),
    #[error("the task would not see {0:?}; begin with local/, secrets/ or ${{NOMAD_ALLOC_DIR}}/")]
    Unseen(String),
}

/// Where a path leads that a task knows as it sees its directories.
pub(super) fn place(
    path: &str,
    dirs: &TaskDirs,
    task: &str,
    isolated: bool,
) -> Result<Place, PlaceError> {
    let outside = || PlaceError::Outside(path.to_owned());
    let known: [(&str, &[&str]); 4] = [
        (&dirs.alloc, &[SHARED]),
        (&dirs.task, &[task, "local"]),
        (&dirs.secrets, &[task, "secrets"]),
        (if isolated { "/tmp" } else { "" }, &[task, "tmp"]),
    ];
    let full = Path::new(path);
    let begins =
        known.iter().filter(|(prefix, _)| !prefix.is_empty()).find_map(|(prefix, base)| {
            full.strip_prefix(prefix).ok().filter(|_| full.is_absolute()).map(|rest| (*base, rest))
        });
    let own = [task];
    let (base, rest) = match begins {
        Some(found) => found,
        None if full.is_absolute() => return Err(outside()),
        None => (own.as_slice(), full),
    };
    let mut parts: Vec<&std::ffi::OsStr> = base.iter().map(AsRef::as_ref).collect();
    for part in rest.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::ParentDir if parts.pop().is_some() => {}
            _ => return Err(outside()),
        }
    }
    let Some((first, below)) = parts.split_first() else { return Err(outside()) };
    let mut below = below;
    let mut shared = *first == SHARED;
    if !shared && *first != task {
        return Err(outside());
    }
    // An isolated task sees the shared directory beside its own.
    if let Some((next, rest)) = below.split_first()
        && isolated
        && !shared
        && *next == SHARED
    {
        (shared, below) = (true, rest);
    }
    let Some(top) = below.first() else { return Err(PlaceError::NoFile(path.to_owned())) };
    let relative: PathBuf = below.iter().collect();
    if shared {
        return Ok(Place::Shared(relative));
    }
    let seen = SEEN.iter().any(|name| top == name);
    if seen && below.len() == 1 {
        return Err(PlaceError::NoFile(path.to_owned()));
    }
    if isolated && !seen {
        return Err(PlaceError::Unseen(path.to_owned()));
    }
    Ok(Place::Task(relative))
}

/// The directories of a task, opened: no name in them leads out.
#[derive(Debug)]
pub(super) struct Sandbox {
    task_dir: Dir,
    shared: Dir,
    dirs: TaskDirs,
    task: String,
    isolated: bool,
}

impl Sandbox {
    pub(super) fn open(
        root: &Path,
        alloc: AllocId,
        task: &TaskName,
        dirs: &TaskDirs,
        isolated: bool,
    ) -> Result<Self, AllocDirError> {
        let alloc = AllocDir::open(root, alloc)?;
        Ok(Self {
            task_dir: alloc.task_dir(task)?,
            shared: alloc.shared_dir()?,
            dirs: dirs.clone(),
            task: task.to_string(),
            isolated,
        })
    }

    /// Where a path leads.
    pub(super) fn place(&self, path: &str) -> Result<(&Dir, PathBuf), PlaceError> {
        Ok(match place(path, &self.dirs, &self.task, self.isolated)? {
            Place::Task(path) => (&self.task_dir, path),
            Place::Shared(path) => (&self.shared, path),
        })
    }

    /// A file, up to this size.
    pub(super) fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, String> {
        let (dir, relative) = self.place(path).map_err(|error| error.to_string())?;
        disk::read(dir, &relative, max).map_err(|error| format!("{path}: {error}"))
    }

    /// How a file is now; absent where there is none.
    pub(super) fn stamp(&self, path: &str) -> Option<disk::Stamp> {
        let (dir, relative) = self.place(path).ok()?;
        disk::stamp(dir, &relative)
    }
}
