//! Resolves the paths in templates ([`ostler_model::task_path`]) to files in open directories.

use std::path::{Path, PathBuf};

use cap_std::fs::Dir;

use super::disk;
use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::task::env::TaskDirs;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::ports::FsIsolation;
use ostler_model::task_path::{TaskPath, TaskPathError, TaskView, destination, source};

/// Why a path of a template is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TemplatePathError {
    #[error(transparent)]
    Path(#[from] TaskPathError),
    #[error("{0:?} is a directory of the task, not a file in one")]
    NoFile(String),
    #[error(
        "the task would not see {0:?}; begin with local/, secrets/ or ${{NOMAD_ALLOC_DIR}}/data/"
    )]
    Unseen(String),
}

/// The open directories of a task. No name in them leads out.
#[derive(Debug)]
pub(super) struct TemplateDirs {
    /// The directory around all others, which only the agent writes.
    alloc_dir: Dir,
    task_dir: Dir,
    shared: Dir,
    /// The parts of the shared directory that tasks may write. A link in one of them cannot lead
    /// out of that part.
    lent: Vec<(&'static str, Dir)>,
    dirs: TaskDirs,
    task: TaskName,
    sees: FsIsolation,
}

impl TemplateDirs {
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

    /// The directory around that of the task, in which no task writes, and the name of the task.
    pub(super) fn agent_dir(&self) -> (&Dir, &TaskName) {
        (&self.alloc_dir, &self.task)
    }

    fn view(&self) -> TaskView<'_> {
        self.dirs.view(&self.task, self.sees)
    }

    fn opened_dir(
        &self,
        path: &TaskPath,
        text: &str,
    ) -> Result<(&Dir, PathBuf), TemplatePathError> {
        if path.is_directory {
            return Err(TemplatePathError::NoFile(text.to_owned()));
        }
        let (shared, below) = path.split();
        Ok((if shared { &self.shared } else { &self.task_dir }, below))
    }

    /// The open directory and the path in it that a file is written to.
    pub(super) fn destination(&self, path: &str) -> Result<(&Dir, PathBuf), TemplatePathError> {
        let place = destination(path, self.view())?;
        let opened = self.opened_dir(&place, path)?;
        if !place.is_seen(self.sees) {
            return Err(TemplatePathError::Unseen(path.to_owned()));
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

    fn source(&self, path: &str) -> Result<(&Dir, PathBuf), TemplatePathError> {
        self.opened_dir(&source(path, self.view())?, path)
    }

    /// Read a file of at most `max` bytes.
    pub(super) fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, String> {
        let (dir, relative) = self.source(path).map_err(|error| error.to_string())?;
        disk::read(dir, &relative, max).map_err(|error| format!("{path}: {error}"))
    }

    /// The present stamp of a file; `None` where there is no file.
    pub(super) fn stamp(&self, path: &str) -> Option<disk::ReadFileStamp> {
        let (dir, relative) = self.source(path).ok()?;
        disk::stamp(dir, &relative)
    }
}
