//! The directory of an allocation.
//!
//! ```text
//! <root>/<alloc id>/            0755
//!   alloc/                      0755  shared by the tasks of the allocation
//!     data/ logs/ tmp/          0755
//!   <task>/                     0755
//!     local/ tmp/               0755
//!     secrets/                  0700
//! ```
//! Nomad makes the shared and local directories 0777 so that tasks under other users can write.
//! Here tasks run as the agent's user unless a driver hands a directory over, so 0755 is enough and
//! keeps other users of the node from planting files.
//!
//! Tasks write in these directories, so everything below the root is hostile: each level is opened
//! by one name relative to its parent without following links, and a link in the place of a
//! directory is refused. Everything here blocks on the disk; call it from a blocking thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::remove::remove_tree;
use crate::model::ids::{AllocId, TaskName};

/// Name of the shared directory; no task can have it.
const SHARED: &str = "alloc";
const PUBLIC: Mode = Mode::from_raw_mode(0o755);
const PRIVATE: Mode = Mode::from_raw_mode(0o700);

/// Why an allocation directory could not be made, opened or removed.
#[derive(Debug, thiserror::Error)]
pub enum AllocDirError {
    /// The operating system refused.
    #[error("cannot {action} {}: {}", .path.display(), hint(.source))]
    Io {
        /// What was tried: `create`, `open` …
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Something else is where a directory should be.
    #[error(
        "{} is {found}, not a directory; nothing was changed: remove it and try again",
        .path.display()
    )]
    NotDirectory {
        /// Where.
        path: PathBuf,
        /// What is there: `a symbolic link`, `a file`.
        found: &'static str,
    },
    /// The allocation has no directory.
    #[error("allocation directory {} does not exist", .path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// The task has the name of the shared directory.
    #[error("no task can be named {name:?}: the allocation's shared directory has this name")]
    ReservedTaskName {
        /// The name.
        name: TaskName,
    },
}

/// The cause with the next step, for causes that have one.
fn hint(source: &io::Error) -> String {
    let step = match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only; choose another data directory"
        }
        io::ErrorKind::StorageFull => "the disk is full; free some space and try again",
        io::ErrorKind::QuotaExceeded => "the disk quota is used up; free some space and try again",
        io::ErrorKind::PermissionDenied => {
            "permission denied; run the agent as the owner of the data directory"
        }
        _ => return source.to_string(),
    };
    step.to_owned()
}

/// The directory of one allocation, made or found.
#[derive(Debug)]
pub struct AllocDir {
    path: PathBuf,
    dir: OwnedFd,
}

/// Host paths of one task's directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDir {
    /// `<alloc dir>/<task>`
    pub path: PathBuf,
    /// The task's own files; its `NOMAD_TASK_DIR`.
    pub local: PathBuf,
    /// Readable by the owner alone.
    pub secrets: PathBuf,
    /// Temporary files.
    pub tmp: PathBuf,
}

impl AllocDir {
    /// Make the directory with its shared part, `root` included. What is there already stays;
    /// modes are put right.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] for a link or file in the place of a directory;
    /// [`AllocDirError::Io`] when the operating system refuses.
    pub fn create(root: &Path, alloc: AllocId) -> Result<Self, AllocDirError> {
        std::fs::create_dir_all(root).map_err(io_error("create", root))?;
        let root = absolute(root)?;
        let root_fd = open_root(&root)?;
        let name = alloc.to_string();
        let path = root.join(&name);
        let dir = ensure(root_fd.as_fd(), &name, PUBLIC, &path)?;
        let shared_path = path.join(SHARED);
        let shared = ensure(dir.as_fd(), SHARED, PUBLIC, &shared_path)?;
        for name in ["data", "logs", "tmp"] {
            ensure(shared.as_fd(), name, PUBLIC, &shared_path.join(name))?;
        }
        Ok(Self { path, dir })
    }

    /// Open the directory of an allocation that was there before.
    ///
    /// # Errors
    /// [`AllocDirError::Missing`] when it is gone; else as [`AllocDir::create`].
    pub fn open(root: &Path, alloc: AllocId) -> Result<Self, AllocDirError> {
        let root = absolute(root)?;
        let name = alloc.to_string();
        let path = root.join(&name);
        let missing = |error| match error {
            AllocDirError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                AllocDirError::Missing { path: path.clone() }
            }
            other => other,
        };
        let root_fd = open_root(&root).map_err(missing)?;
        let dir = open_child(root_fd.as_fd(), &name, &path).map_err(missing)?;
        Ok(Self { path, dir })
    }

    /// Remove the directory of an allocation with everything in it. Links are removed, not
    /// followed. Success when there is none.
    ///
    /// # Errors
    /// [`AllocDirError::Io`] when something could not be removed; what could be removed is gone,
    /// so calling again goes on.
    pub fn destroy(root: &Path, alloc: AllocId) -> Result<(), AllocDirError> {
        let root = absolute(root)?;
        let path = root.join(alloc.to_string());
        let removed = match rustix::fs::open(&root, DIRECTORY_FLAGS, Mode::empty()) {
            Ok(root_fd) => remove_tree(root_fd.as_fd(), alloc.to_string().as_ref()),
            Err(error) => Err(error.into()),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// `<root>/<alloc id>`, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory the tasks share: `NOMAD_ALLOC_DIR`.
    #[must_use]
    pub fn shared(&self) -> PathBuf {
        self.path.join(SHARED)
    }

    /// Shared data that outlives the allocation when it moves.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.shared().join("data")
    }

    /// Output of the tasks.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.shared().join("logs")
    }

    /// Shared temporary files.
    #[must_use]
    pub fn tmp(&self) -> PathBuf {
        self.shared().join("tmp")
    }

    /// The log directory as a capability: names opened in it cannot lead out of it, whatever links
    /// a task puts there.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] when a task put a link in its place.
    pub fn logs_dir(&self) -> Result<Dir, AllocDirError> {
        let shared = open_child(self.dir.as_fd(), SHARED, &self.shared())?;
        let logs = open_child(shared.as_fd(), "logs", &self.logs())?;
        Ok(Dir::from_std_file(logs.into()))
    }

    /// Make the directories of a task. What is there already stays; modes are put right.
    ///
    /// # Errors
    /// [`AllocDirError::ReservedTaskName`] for a task named `alloc`; else as [`AllocDir::create`].
    pub fn create_task(&self, task: &TaskName) -> Result<TaskDir, AllocDirError> {
        if task.as_str() == SHARED {
            return Err(AllocDirError::ReservedTaskName { name: task.clone() });
        }
        let paths = self.task(task);
        let dir = ensure(self.dir.as_fd(), task.as_str(), PUBLIC, &paths.path)?;
        ensure(dir.as_fd(), "local", PUBLIC, &paths.local)?;
        ensure(dir.as_fd(), "secrets", PRIVATE, &paths.secrets)?;
        ensure(dir.as_fd(), "tmp", PUBLIC, &paths.tmp)?;
        Ok(paths)
    }

    /// Where a task's directories are, made or not.
    #[must_use]
    pub fn task(&self, task: &TaskName) -> TaskDir {
        let path = self.path.join(task.as_str());
        TaskDir {
            local: path.join("local"),
            secrets: path.join("secrets"),
            tmp: path.join("tmp"),
            path,
        }
    }
}

/// Flags to open a directory; below the root always together with `NOFOLLOW`.
pub(super) const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn absolute(root: &Path) -> Result<PathBuf, AllocDirError> {
    std::path::absolute(root).map_err(io_error("resolve", root))
}

/// The root is the operator's choice, so links on the way to it are followed.
fn open_root(root: &Path) -> Result<OwnedFd, AllocDirError> {
    rustix::fs::open(root, DIRECTORY_FLAGS, Mode::empty())
        .map_err(|error| io_error("open", root)(error.into()))
}

fn open_child(parent: BorrowedFd<'_>, name: &str, path: &Path) -> Result<OwnedFd, AllocDirError> {
    let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|error| match error {
        // Linux answers NOTDIR for a link opened as a directory, others LOOP.
        Errno::NOTDIR | Errno::LOOP => {
            AllocDirError::NotDirectory { path: path.to_owned(), found: what_is(parent, name) }
        }
        other => io_error("open", path)(other.into()),
    })
}

fn what_is(parent: BorrowedFd<'_>, name: &str) -> &'static str {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() => {
            "a symbolic link"
        }
        Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => "a file",
        _ => "something else",
    }
}

/// Make a directory unless it is there, open it, and set its mode (the umask may have cut it).
fn ensure(
    parent: BorrowedFd<'_>,
    name: &str,
    mode: Mode,
    path: &Path,
) -> Result<OwnedFd, AllocDirError> {
    match rustix::fs::mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(io_error("create", path)(error.into())),
    }
    let dir = open_child(parent, name, path)?;
    rustix::fs::fchmod(&dir, mode).map_err(|e| io_error("set the mode of", path)(e.into()))?;
    Ok(dir)
}

fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> AllocDirError + 'a {
    move |source| AllocDirError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
