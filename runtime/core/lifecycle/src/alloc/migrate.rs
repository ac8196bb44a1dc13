//! Moves the data that an allocation leaves behind to the allocation that takes its place
//! on this node.
//!
//! ```text
//! <from>/alloc/data      ─rename─►  <to>/alloc/data         one rename each, over an empty
//! <from>/<task>/local    ─rename─►  <to>/<task>/local       directory: the kernel refuses all else
//! <from>/alloc/logs, secrets, tmp   stay: the previous allocation's logs can be read on
//!
//! plan ─► journal {from, items} ─► rename, sync ─► … ─► journal {done}
//!   │           └── a crash from here on: the next call finds the journal and goes on
//!   └── a target with content: refused, nothing was touched
//! ```
//! Each item is at exactly one place at any moment. The journal lies in the directory of the new
//! allocation, under a name that no task can have. Once it says done, later calls change nothing,
//! whatever the tasks wrote since. Both directories are locked during the move, so that the old one
//! is not collected half-way. Blocks on the disk.
//!
//! An allocation that never started leaves the data that it was to take over to its own successor
//! ([`inherit`]), wherever the data lies.
//!
//! Data from another node (`fetch`) is first unpacked below the new directory, in a place that no
//! task sees. Once it is whole and durable, it is moved from there in the same way.
//!
//! Entries of the ledger (reference §1.14, §2.10):
//! - B35 (#18108), the previous logs destroyed: `the_previous_allocation_keeps_its_logs_and_secrets`.
//! - previous allocation collected between wait and move: `a_previous_allocation_that_is_gone_…`.
//! - reused allocation ids: `an_unfinished_move_from_another_allocation_is_not_mixed_up`.
//! - a local move that is not atomic as a whole: `a_stop_at_any_step_…`.
//! - what was moved by a move that then failed, thrown away: `take_over`.
//! - hostile tar streams: [`crate::alloc::snapshot`].

mod fetch;
mod inherit;
mod journal;
mod take_over;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use self::fetch::{FetchedDir, move_fetched};
pub use self::inherit::{InheritedData, inherit};
use self::journal::Journal;
pub use self::take_over::{TakeOverError, take_over};
use super::dir::at::{ensure, io_error, is_empty, open_child, open_root, what_is};
use super::dir::lock::AllocDirLock;
use super::dir::{AllocDir, AllocDirError, PUBLIC, SHARED};
use ostler_model::ids::{AllocId, TaskName};

/// A directory that moves as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MovedDir {
    /// `alloc/data`, shared by the tasks.
    Data,
    /// `<task>/local`.
    Local(TaskName),
}

impl MovedDir {
    /// The directory that this one lies in, and its name there.
    pub(super) fn place(&self) -> (&str, &'static str) {
        match self {
            Self::Data => (SHARED, "data"),
            Self::Local(task) => (task.as_str(), "local"),
        }
    }

    fn path(&self, alloc: &AllocDir) -> PathBuf {
        let (parent, name) = self.place();
        alloc.path().join(parent).join(name)
    }
}

impl fmt::Display for MovedDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parent, name) = self.place();
        write!(f, "{parent}/{name}")
    }
}

/// The data that the new allocation got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigratedData {
    /// All directories that came from the previous allocation, now or in an earlier call; sorted.
    pub items: Vec<MovedDir>,
}

impl MigratedData {
    /// The result where there was nothing to move.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Was there nothing to move?
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.items.is_empty()
    }
}

/// Why data was not moved. Nothing is lost by any of these: each item is at its old or at its new
/// place, and a later call goes on.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// An allocation cannot take its own place.
    #[error("allocation {alloc} is named as its own predecessor; nothing was moved")]
    Same {
        /// The allocation that is named as its own predecessor.
        alloc: AllocId,
    },
    /// There are files already where the data should go.
    #[error(
        "cannot move {} to {}: it already has files; nothing was moved: \
         empty one of the two and try again",
        .from.display(), .to.display()
    )]
    Occupied {
        /// Path of the directory that should have been moved.
        from: PathBuf,
        /// Path that it should have been moved to.
        to: PathBuf,
    },
    /// A move from another allocation was begun and not finished.
    #[error(
        "the move of data from allocation {begun} to {to} is not finished, so a move from {from} cannot begin; \
         move the rest by hand and remove the journal in the directory of {to}"
    )]
    OtherUnfinished {
        /// The allocation that the data of the unfinished move comes from.
        begun: AllocId,
        /// The allocation that data should come from now.
        from: AllocId,
        /// The allocation that the data should go to.
        to: AllocId,
    },
    /// The journal cannot be understood.
    #[error("cannot read the journal {}: {reason}; see what was moved, then remove it", .path.display())]
    Journal {
        /// Path of the journal.
        path: PathBuf,
        /// What is wrong with the journal.
        reason: String,
    },
    /// A directory is not what it should be, or the operating system refused.
    #[error(transparent)]
    Dir(#[from] AllocDirError),
}

/// Move `alloc/data` and the `local` directory of each of `tasks` from the directory of `from` to
/// that of `to`, which exists. Nothing runs in either. What `from` does not have, or has empty, is
/// left out; a `from` without directory has nothing. Idempotent, and goes on after a crash.
///
/// # Errors
/// See [`MigrateError`]. `from` may be collected only when this returned `Ok`, if its data matters.
pub fn move_data(
    root: &Path,
    from: AllocId,
    to: AllocId,
    tasks: &[TaskName],
) -> Result<MigratedData, MigrateError> {
    move_in_steps(root, from, to, tasks, &mut |_| Ok(()))
}

/// Where the data of another allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataOrigin {
    /// In its directory, on this node.
    Here,
    /// Fetched, below the directory of the one that gets it.
    Fetched,
}

/// Called before each step that changes the disk. Tests stop there, as a crash would.
type Step<'a> = &'a mut dyn FnMut(&'static str) -> Result<(), MigrateError>;

fn move_in_steps(
    root: &Path,
    from: AllocId,
    to: AllocId,
    tasks: &[TaskName],
    step: Step<'_>,
) -> Result<MigratedData, MigrateError> {
    move_from(DataOrigin::Here, root, from, to, tasks, step)
}

fn move_from(
    origin: DataOrigin,
    root: &Path,
    from: AllocId,
    to: AllocId,
    tasks: &[TaskName],
    step: Step<'_>,
) -> Result<MigratedData, MigrateError> {
    if from == to {
        return Err(MigrateError::Same { alloc: to });
    }
    let _held = AllocDirLock::take(&[from, to])?;
    let target = AllocDir::open(root, to)?;
    let begun = match Journal::read(&target)? {
        Some(journal) if journal.from == from && journal.done => {
            if journal.fetched {
                fetch::clear_away(&target);
            }
            return Ok(MigratedData { items: journal.items });
        }
        Some(journal) if journal.from == from => Some(journal),
        Some(journal) if !journal.done => {
            return Err(MigrateError::OtherUnfinished { begun: journal.from, from, to });
        }
        _ => None,
    };
    // A move that was begun goes on from the same origin.
    let fetched = begun.as_ref().map_or(origin == DataOrigin::Fetched, |begun| begun.fetched);
    let source = if fetched {
        fetch::open_fetched(&target)?
    } else {
        open_if_present(AllocDir::open(root, from))?
    };
    let mut items: BTreeSet<MovedDir> = tasks.iter().cloned().map(MovedDir::Local).collect();
    items.insert(MovedDir::Data);
    let planned = begun.iter().flat_map(|journal| &journal.items).cloned().collect();
    items.extend(BTreeSet::clone(&planned));
    let to_move = match &source {
        Some(source) => plan(source, &target, items)?,
        None => Vec::new(),
    };
    if to_move.is_empty() && begun.is_none() {
        return Ok(MigratedData::empty());
    }
    let all: BTreeSet<MovedDir> = planned.into_iter().chain(to_move.iter().cloned()).collect();
    let mut journal = Journal { from, items: all.into_iter().collect(), done: false, fetched };
    if begun.as_ref() != Some(&journal) {
        step("sync the root")?;
        sync(&open_root(root)?, root)?;
        journal.write(&target, step)?;
    }
    for item in source.iter().flat_map(|source| to_move.iter().map(move |item| (source, item))) {
        move_item(item.0, &target, item.1, step)?;
    }
    if source.is_none() {
        journal.items.retain(|item| has_content(&target, item).unwrap_or(false));
    }
    journal.done = true;
    journal.write(&target, &mut *step)?;
    if fetched {
        step("remove the place of the fetch")?;
        fetch::clear_away(&target);
    }
    Ok(MigratedData { items: journal.items })
}

/// The opened directory, or `None` where it is missing.
fn open_if_present(
    opened: Result<AllocDir, AllocDirError>,
) -> Result<Option<AllocDir>, AllocDirError> {
    match opened {
        Ok(dir) => Ok(Some(dir)),
        Err(AllocDirError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Which of `items` have something to move. The whole move is refused when one of them has
/// nowhere to go.
fn plan(
    source: &AllocDir,
    target: &AllocDir,
    items: BTreeSet<MovedDir>,
) -> Result<Vec<MovedDir>, MigrateError> {
    let mut to_move = Vec::new();
    for item in items {
        if let MovedDir::Local(task) = &item
            && task.as_str() == SHARED
        {
            return Err(AllocDirError::ReservedTaskName { name: task.clone() }.into());
        }
        if has_content(source, &item)? {
            if has_content(target, &item)? {
                return Err(occupied_error(source, target, &item));
            }
            to_move.push(item);
        }
    }
    Ok(to_move)
}

fn occupied_error(source: &AllocDir, target: &AllocDir, item: &MovedDir) -> MigrateError {
    MigrateError::Occupied { from: item.path(source), to: item.path(target) }
}

/// Does an allocation have files in the place of `item`?
fn has_content(alloc: &AllocDir, item: &MovedDir) -> Result<bool, AllocDirError> {
    let (parent, name) = item.place();
    let Some(parent) = open_there(alloc.fd(), parent, &alloc.path().join(parent))? else {
        return Ok(false);
    };
    let path = item.path(alloc);
    match open_there(parent.as_fd(), name, &path)? {
        Some(dir) => Ok(!is_empty(&dir).map_err(io_error("read", &path))?),
        None => Ok(false),
    }
}

/// Open a directory that may be missing.
fn open_there(
    parent: BorrowedFd<'_>,
    name: &str,
    path: &Path,
) -> Result<Option<OwnedFd>, AllocDirError> {
    match open_child(parent, name, path) {
        Ok(dir) => Ok(Some(dir)),
        Err(AllocDirError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Move one directory by one rename over an empty directory. If a task puts something else at
/// either end in between, the rename fails; it cannot lead elsewhere.
fn move_item(
    source: &AllocDir,
    target: &AllocDir,
    item: &MovedDir,
    step: Step<'_>,
) -> Result<(), MigrateError> {
    let (parent, name) = item.place();
    let (from_path, to_path) = (item.path(source), item.path(target));
    let from = open_child(source.fd(), parent, &source.path().join(parent))?;
    step("make the target's parent")?;
    let to = ensure(target.fd(), parent, PUBLIC, &target.path().join(parent))?;
    step("make the target")?;
    drop(ensure(to.as_fd(), name, PUBLIC, &to_path)?);
    step("rename")?;
    let mut renamed = rustix::fs::renameat(&from, name, &to, name);
    if renamed == Err(Errno::ACCESS) {
        // A move changes `..` in the directory, and the task has taken the right to write from it.
        let dir = open_child(from.as_fd(), name, &from_path)?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o700))
            .map_err(|e| io_error("set the mode of", &from_path)(e.into()))?;
        renamed = rustix::fs::renameat(&from, name, &to, name);
    }
    match renamed {
        Ok(()) => {}
        Err(Errno::NOTEMPTY | Errno::EXIST) => return Err(occupied_error(source, target, item)),
        Err(Errno::ISDIR) => {
            let found = what_is(from.as_fd(), name);
            return Err(AllocDirError::NotDirectory { path: from_path, found }.into());
        }
        Err(Errno::NOTDIR) => {
            let found = what_is(to.as_fd(), name);
            return Err(AllocDirError::NotDirectory { path: to_path, found }.into());
        }
        Err(error) => return Err(io_error("move", &from_path)(error.into()).into()),
    }
    // The new place is synced first: after a power failure both names may exist, but never neither.
    step("sync the new place")?;
    sync(&to, &to_path)?;
    step("sync the old place")?;
    sync(&from, &from_path)?;
    Ok(())
}

fn sync(dir: &OwnedFd, path: &Path) -> Result<(), AllocDirError> {
    rustix::fs::fsync(dir).map_err(|error| io_error("sync", path)(error.into()))
}

#[cfg(test)]
mod tests;
