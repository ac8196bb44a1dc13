//! Where a path in a template leads ([`ostler_model::task_path`]), and the directories that it leads into,
//! opened.

use std::path::{Path, PathBuf};

use cap_std::fs::Dir;

use super::disk;
use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::task::env::TaskDirs;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::ports::FsIsolation;
use ostler_model::task_path::{TaskPath, TaskPathError, TaskView, destination, source};

/// Why a path leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlaceError {
    #[error(transparent)]
    Path(#[from] TaskPathError),
    #[error("{0:?} is a directory of the task, not a file in one")]
    NoFile(String),
    #[error(
        "the task would not see {0:?}; begin with local/, secrets/ or ${{NOMAD_ALLOC_DIR}}/data/"
    )]
    Unseen(String),
}

/// The directories of a task, opened: no name in them leads out.
#[derive(Debug)]
pub(super) struct Sandbox {
    /// Around them all: the agent's own.
    alloc_dir: Dir,
    task_dir: Dir,
    shared: Dir,
    /// What of it tasks may write: a link in one of them leads no further than that.
    lent: Vec<(&'static str, Dir)>,
    dirs: TaskDirs,
    task: TaskName,
    sees: FsIsolation,
}

impl Sandbox {
    pub(super) fn open(
        root: &Path,
        alloc: AllocId,
        task: &TaskName,
        dirs: &TaskDirs,
        sees: FsIsolation,
    ) -> Result<Self, AllocDirError> {
        let alloc = AllocDir::open(root, alloc)?;
        let path = alloc.path();
        let opened = std::fs::File::open(path).map_err(|source| AllocDirError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            alloc_dir: Dir::from_std_file(opened),
            task_dir: alloc.task_dir(task)?,
            shared: alloc.shared_dir()?,
            lent: alloc.lent_dirs()?,
            dirs: dirs.clone(),
            task: task.clone(),
            sees,
        })
    }

    /// The directory around that of the task, in which no task writes, and whose place it is.
    pub(super) fn of_agent(&self) -> (&Dir, &TaskName) {
        (&self.alloc_dir, &self.task)
    }

    fn view(&self) -> TaskView<'_> {
        self.dirs.view(&self.task, self.sees)
    }

    fn opened(&self, path: &TaskPath, text: &str) -> Result<(&Dir, PathBuf), PlaceError> {
        if path.is_directory {
            return Err(PlaceError::NoFile(text.to_owned()));
        }
        let (shared, below) = path.split();
        Ok((if shared { &self.shared } else { &self.task_dir }, below))
    }

    /// Where a file is put.
    pub(super) fn destination(&self, path: &str) -> Result<(&Dir, PathBuf), PlaceError> {
        let place = destination(path, self.view())?;
        let opened = self.opened(&place, path)?;
        if !place.is_seen(self.sees) {
            return Err(PlaceError::Unseen(path.to_owned()));
        }
        let (shared, below) = place.split();
        if !shared {
            return Ok(opened);
        }
        let mut lent = self.lent.iter();
        let found = lent.find_map(|(name, dir)| Some((dir, below.strip_prefix(name).ok()?)));
        let (dir, below) = found.ok_or_else(|| TaskPathError::ReadOnly(path.to_owned()))?;
        Ok((dir, below.to_owned()))
    }

    fn source(&self, path: &str) -> Result<(&Dir, PathBuf), PlaceError> {
        self.opened(&source(path, self.view())?, path)
    }

    /// A file, up to this size.
    pub(super) fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, String> {
        let (dir, relative) = self.source(path).map_err(|error| error.to_string())?;
        disk::read(dir, &relative, max).map_err(|error| format!("{path}: {error}"))
    }

    /// How a file is now; absent where there is none.
    pub(super) fn stamp(&self, path: &str) -> Option<disk::Stamp> {
        let (dir, relative) = self.source(path).ok()?;
        disk::stamp(dir, &relative)
    }
}
