//! The directory of an allocation.
//!
//! ```text
//! <root>/                       0700  of the agent: no other user of the node gets any further
//!   <alloc id>/                 0755  its group: the user id that is the allocation's own (`alloc/users.rs`)
//!     alloc/                    0755  shared by the tasks of the allocation
//!       data/ logs/ tmp/        0755  the group of data: who was at it last (`alloc/owner.rs`)
//!     <task>/                   0755
//!       local/ tmp/             0755
//!       secrets/                0700
//! ```
//! Nomad makes the shared and local directories 0777 so that tasks under other users can write.
//! Here that is done before such a task starts: its own directories become its user's, and
//! `data` and `tmp` 0777 (`alloc/owner.rs`). The root above is the agent's alone, which keeps other users of
//! the node from planting files, and from running what a task that is root let others run as root.
//!
//! Tasks write in these directories, so everything below the root is hostile: each level is opened
//! by one name relative to its parent without following links, and a link in the place of a
//! directory is refused. Whoever changes a directory holds it meanwhile, so that building, moving
//! ([`crate::alloc::migrate`]) and removing never mix; looking at it needs no lock. Everything here
//! blocks on the disk; call it from a blocking thread.
//!
//! | may happen to a directory | what keeps it harmless |
//! |---|---|
//! | links out, links swapped in between two steps | open relative to the parent, never follow |
//! | devices, named pipes, sockets | only directories are ever opened; the others are unlinked |
//! | 100,000 levels | removal flattens, measuring goes up by `..` and checks where it is |
//! | rights taken from the owner | put right while removing |
//! | files that cannot be removed | the rest is removed; they are named ([`AllocDirError::Left`]) |
//! | mount points | secrets in memory are detached, others never entered; named as left |

pub(super) mod at;
mod error;
pub(super) mod lock;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use cap_std::fs::Dir;
use rustix::fs::Mode;

use self::at::{ensure, ensure_closed, ensure_shared, io_error, open_child, open_root};
pub use self::error::AllocDirError;
pub(super) use self::error::hint;
use self::lock::AllocDirLock;
use super::remove::remove_tree;
pub use super::remove::{UndeletedEntry, UndeletedParts, UndeletedReason};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::ports::LogDir;

/// Name of the shared directory; no task can have it.
pub(super) const SHARED: &str = "alloc";
/// The parts of the shared directory that all tasks write, whichever user they run as.
const LENT: [&str; 2] = ["data", "tmp"];
pub(super) const PUBLIC: Mode = Mode::from_raw_mode(0o755);
pub(super) const PRIVATE: Mode = Mode::from_raw_mode(0o700);

/// The directory of one allocation, made or found.
#[derive(Debug)]
pub struct AllocDir {
    alloc: AllocId,
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
    /// The task's temporary files.
    pub tmp: PathBuf,
}

impl TaskDir {
    /// The paths of a task's directories in the directory of an allocation.
    #[must_use]
    pub fn below(alloc_dir: &Path, task: &TaskName) -> Self {
        let path = alloc_dir.join(task.as_str());
        Self {
            local: path.join("local"),
            secrets: path.join("secrets"),
            tmp: path.join("tmp"),
            path,
        }
    }
}

impl AllocDir {
    /// Make the directory with its shared part, `root` included. What is there already stays;
    /// modes are put right.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] for a link or file in the place of a directory;
    /// [`AllocDirError::Io`] when the operating system refuses.
    pub fn create(root: &Path, alloc: AllocId) -> Result<Self, AllocDirError> {
        let _held = AllocDirLock::take(&[alloc])?;
        let root = absolute_root(root)?;
        let root_fd = match open_root(&root) {
            Err(error) if is_missing(&error) => {
                std::fs::create_dir_all(&root).map_err(io_error("create", &root))?;
                open_root(&root)?
            }
            opened => opened?,
        };
        close_to_others(&root_fd).map_err(io_error("set the mode of", &root))?;
        let name = alloc.to_string();
        let path = root.join(&name);
        let dir = ensure(root_fd.as_fd(), &name, PUBLIC, &path)?;
        let shared_path = path.join(SHARED);
        let shared = ensure(dir.as_fd(), SHARED, PUBLIC, &shared_path)?;
        ensure_closed(shared.as_fd(), "logs", PUBLIC, &shared_path.join("logs"))?;
        for name in LENT {
            ensure_shared(shared.as_fd(), name, PUBLIC, &shared_path.join(name))?;
        }
        Ok(Self { alloc, path, dir })
    }

    /// Make the directory of a new allocation with that of its logs, and nothing else.
    ///
    /// # Errors
    /// As [`AllocDir::create`].
    pub fn create_bare(root: &Path, alloc: AllocId) -> Result<(), AllocDirError> {
        /// Whether new directories have the mode that is asked for, which the first ones show.
        static MODES_HOLD: AtomicBool = AtomicBool::new(false);
        let held = AllocDirLock::take(&[alloc])?;
        let path = absolute_root(root)?.join(alloc.to_string());
        let logs = path.join(SHARED).join("logs");
        // No task of this allocation has run: nobody else changes these directories.
        let made = MODES_HOLD.load(Ordering::Relaxed)
            && [&path, &path.join(SHARED), &logs]
                .into_iter()
                .all(|dir| rustix::fs::mkdir(dir, PUBLIC).is_ok());
        drop(held);
        if made {
            return Ok(());
        }
        drop(Self::create(root, alloc)?);
        let modes = [&path, &logs].map(|dir| {
            let found = rustix::fs::stat(dir);
            found.is_ok_and(|found| Mode::from_raw_mode(found.st_mode) == PUBLIC)
        });
        MODES_HOLD.store(modes == [true; 2], Ordering::Relaxed);
        Ok(())
    }

    /// Open the directory of an allocation that was there before.
    ///
    /// # Errors
    /// [`AllocDirError::Missing`] when it is gone; else as [`AllocDir::create`].
    pub fn open(root: &Path, alloc: AllocId) -> Result<Self, AllocDirError> {
        let root = absolute_root(root)?;
        let name = alloc.to_string();
        let path = root.join(&name);
        let missing = |error| match error {
            error if is_missing(&error) => AllocDirError::Missing { path: path.clone() },
            other => other,
        };
        let root_fd = open_root(&root).map_err(missing)?;
        let dir = open_child(root_fd.as_fd(), &name, &path).map_err(missing)?;
        Ok(Self { alloc, path, dir })
    }

    /// Allocations that have a directory below `root`, sorted; none when there is no `root`. What
    /// is not named like an allocation is left out.
    ///
    /// # Errors
    /// [`AllocDirError::Io`] when `root` cannot be read.
    pub fn list(root: &Path) -> Result<Vec<AllocId>, AllocDirError> {
        let root = absolute_root(root)?;
        let dir = match open_root(&root) {
            Ok(dir) => dir,
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let failed = |error: rustix::io::Errno| io_error("read", &root)(error.into());
        let mut allocs = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let id = name.to_str().ok().and_then(|name| name.parse::<AllocId>().ok());
            // A directory whose name writes the id in another way is not the agent's.
            let ours = id.filter(|id| id.to_string().as_bytes() == name.to_bytes());
            allocs.extend(ours);
        }
        allocs.sort_unstable();
        Ok(allocs)
    }

    /// Remove the directory of an allocation with everything in it. Links are removed, not
    /// followed; other file systems mounted in it are not entered. Success when there is none.
    ///
    /// # Errors
    /// [`AllocDirError::Left`] when something could not be removed: what could be is gone, and
    /// calling again goes on. [`AllocDirError::Io`] when not even the root can be opened.
    pub fn destroy(root: &Path, alloc: AllocId) -> Result<(), AllocDirError> {
        let _held = AllocDirLock::take(&[alloc])?;
        let root = absolute_root(root)?;
        let root_fd = match open_root(&root) {
            Ok(root_fd) => root_fd,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let name = alloc.to_string();
        super::secrets::detach_all(root_fd.as_fd(), &name);
        remove_tree(root_fd.as_fd(), &name)
            .map_err(|left| AllocDirError::Left { path: root.join(&name), left })
    }

    /// Remove a directory that [`AllocDir::create_bare`] made and to which nothing but the first log
    /// files of these tasks came. `false`: there is more, and [`AllocDir::destroy`] removes it.
    pub fn destroy_bare(root: &Path, alloc: AllocId, tasks: &[TaskName]) -> bool {
        let (Ok(_held), Ok(root)) = (AllocDirLock::take(&[alloc]), absolute_root(root)) else {
            return false;
        };
        // No task saw these directories, so no link can be among them.
        let path = root.join(alloc.to_string());
        let shared = path.join(SHARED);
        let logs = shared.join("logs");
        for task in tasks {
            for stream in ["stdout", "stderr"] {
                let _absent = rustix::fs::unlink(logs.join(format!("{task}.{stream}.0")));
            }
        }
        [&logs, &shared, &path].into_iter().all(|dir| rustix::fs::rmdir(dir).is_ok())
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

    /// A task's own directory, `local`, in the same way.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] when the task put a link in its place.
    pub fn local_dir(&self, task: &TaskName) -> Result<Dir, AllocDirError> {
        let paths = self.task(task);
        let dir = open_child(self.dir.as_fd(), task.as_str(), &paths.path)?;
        let local = open_child(dir.as_fd(), "local", &paths.local)?;
        Ok(Dir::from_std_file(local.into()))
    }

    /// All of a task's directories, in the same way.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] when something else stands in its place.
    pub fn task_dir(&self, task: &TaskName) -> Result<Dir, AllocDirError> {
        let dir = open_child(self.dir.as_fd(), task.as_str(), &self.task(task).path)?;
        Ok(Dir::from_std_file(dir.into()))
    }

    /// The shared directory, in the same way.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] when something else stands in its place.
    pub fn shared_dir(&self) -> Result<Dir, AllocDirError> {
        let shared = open_child(self.dir.as_fd(), SHARED, &self.shared())?;
        Ok(Dir::from_std_file(shared.into()))
    }

    /// The parts of the shared directory that tasks write, with their names, in the same way.
    ///
    /// # Errors
    /// [`AllocDirError::NotDirectory`] when something else stands in the place of one.
    pub fn lent_dirs(&self) -> Result<Vec<(&'static str, Dir)>, AllocDirError> {
        let path = self.shared();
        let shared = open_child(self.dir.as_fd(), SHARED, &path)?;
        let open = |name: &'static str| {
            let lent = open_child(shared.as_fd(), name, &path.join(name))?;
            Ok((name, Dir::from_std_file(lent.into())))
        };
        LENT.into_iter().map(open).collect()
    }

    /// Make the directories of a task. What is there already stays; modes are put right.
    ///
    /// # Errors
    /// [`AllocDirError::ReservedTaskName`] for a task named `alloc`; else as [`AllocDir::create`].
    pub fn create_task(&self, task: &TaskName) -> Result<TaskDir, AllocDirError> {
        self.create_task_with(task, || Ok(()))
    }

    /// As [`AllocDir::create_task`]; `before_last` is done before the last directory, `tmp`, is made.
    /// So whoever sees that one sees the others as they stay.
    pub(super) fn create_task_with(
        &self,
        task: &TaskName,
        before_last: impl FnOnce() -> Result<(), AllocDirError>,
    ) -> Result<TaskDir, AllocDirError> {
        if task.as_str() == SHARED {
            return Err(AllocDirError::ReservedTaskName { name: task.clone() });
        }
        let _held = AllocDirLock::take(&[self.alloc])?;
        let paths = self.task(task);
        let dir = ensure(self.dir.as_fd(), task.as_str(), PUBLIC, &paths.path)?;
        ensure_closed(dir.as_fd(), "local", PUBLIC, &paths.local)?;
        ensure_closed(dir.as_fd(), "secrets", PRIVATE, &paths.secrets)?;
        before_last()?;
        ensure_closed(dir.as_fd(), "tmp", PUBLIC, &paths.tmp)?;
        Ok(paths)
    }

    /// A directory below this one that has the same layout; `None` where it is missing.
    pub(super) fn open_below(&self, name: &str) -> Result<Option<Self>, AllocDirError> {
        let path = self.path.join(name);
        match open_child(self.dir.as_fd(), name, &path) {
            Ok(dir) => Ok(Some(Self { alloc: self.alloc, path, dir })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The open directory.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The paths of a task's directories, whether they exist or not.
    #[must_use]
    pub fn task(&self, task: &TaskName) -> TaskDir {
        TaskDir::below(&self.path, task)
    }
}

/// Where the output of the tasks of an allocation lies, for their streams.
#[must_use]
pub fn logs_of(root: &Path, alloc: AllocId) -> LogDir {
    let path = Path::new(&alloc.to_string()).join(SHARED).join("logs");
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    LogDir::Below { root: root.into(), path: path.into() }
}

/// Take all rights of other users from a directory that the agent owns.
fn close_to_others(dir: &OwnedFd) -> io::Result<()> {
    let found = rustix::fs::fstat(dir)?;
    let ours = found.st_uid == rustix::process::geteuid().as_raw();
    if ours && found.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(dir, PRIVATE)?;
    }
    Ok(())
}

fn is_missing(error: &AllocDirError) -> bool {
    matches!(error, AllocDirError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

fn absolute_root(root: &Path) -> Result<PathBuf, AllocDirError> {
    std::path::absolute(root).map_err(io_error("resolve", root))
}

#[cfg(test)]
mod tests;
