//! Whose the files are that are made for a task: they are given to whom it runs as when they are made, so that
//! its first start finds them as every later one. Blocks on the disk.
//!
//! ```text
//! directories of the task    local, secrets, tmp before anything comes into them; of one that sees the
//!                            node's own paths also the directory around them
//! templates, artifacts,      with each directory that is made on the way ([`open_made`], `bring`)
//!   payloads
//! data of an earlier task    what its user had, with all below; of `alloc/data` what allocations before had
//!                            whose user id was their own, once: then its group is the id of this one
//! ```
//! Nothing that a task put there is followed. Without an owner everything is the agent's own.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::dir::at::{DIRECTORY_FLAGS, io_error, is_dots, open_child};
use super::dir::{AllocDir, AllocDirError, SHARED};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::OWNED_DEPTH_MAX;
use ostler_model::ports::FileOwner;

/// What of its directory a task writes.
const WRITTEN: [&str; 3] = ["local", "secrets", "tmp"];
/// What of the shared directory all tasks of an allocation write, whoever they run as.
const LENT: [&str; 2] = [DATA, "tmp"];
const DATA: &str = "data";
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o755);
const WRITABLE_BY_ALL: Mode = Mode::from_raw_mode(0o777);

/// What a task is given.
#[derive(Clone, Debug)]
pub struct HandOver {
    /// Whose it becomes.
    pub owner: FileOwner,
    /// It sees the directory around its own too.
    pub whole: bool,
    /// The user ids that allocations have of their own; none where they have none.
    pub ids: Option<RangeInclusive<u32>>,
    /// What of `alloc/data` becomes the owner's.
    pub data: DataOf,
}

/// Whose files of `alloc/data` become the owner's, where they are those of an allocation before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOf {
    /// Nobody's.
    Nobody,
    /// Those of user ids that allocations have of their own.
    OwnIds,
    /// Those as well of the user that all share who have no id, where no id was at the data yet.
    OwnIdsAnd(FileOwner),
}

/// Give a task its directories.
///
/// # Errors
/// [`AllocDirError::NotDirectory`] when a task put something else in the place of one.
pub fn hand_over(
    root: &Path,
    alloc: AllocId,
    task: &TaskName,
    to: &HandOver,
) -> Result<(), AllocDirError> {
    let dir = AllocDir::open(root, alloc)?;
    let path = dir.task(task).path;
    let of_task = open_child(dir.fd(), task.as_str(), &path)?;
    for name in WRITTEN {
        let path = path.join(name);
        let inner = open_child(of_task.as_fd(), name, &path)?;
        let given = |error: Errno| io_error("set the owner of", &path)(error.into());
        let before = owner_of(&inner).map_err(given)?;
        if before != to.owner {
            let giving = Giving { before: Some(before), ids: to.ids.as_ref(), owner: to.owner };
            giving.give_all(inner.as_fd(), 0).map_err(given)?;
            give(&inner, to.owner).map_err(given)?;
        }
    }
    if to.whole {
        give(&of_task, to.owner)
            .map_err(|error| io_error("set the owner of", &path)(error.into()))?;
    }
    let shared = open_child(dir.fd(), SHARED, &dir.shared())?;
    for name in LENT {
        let path = dir.shared().join(name);
        let inner = open_child(shared.as_fd(), name, &path)?;
        rustix::fs::fchmod(&inner, WRITABLE_BY_ALL)
            .map_err(|error| io_error("set the mode of", &path)(error.into()))?;
        if name == DATA {
            take_data(&inner, to)
                .map_err(|error| io_error("set the owner of", &path)(error.into()))?;
        }
    }
    Ok(())
}

/// Give the owner what allocations before wrote into the data. Its group says who was at it last, and so whether
/// that is done.
fn take_data(data: &OwnedFd, to: &HandOver) -> Result<(), Errno> {
    let Some(ids) = to.ids.as_ref().filter(|_| to.data != DataOf::Nobody) else { return Ok(()) };
    let last = rustix::fs::fstat(data)?.st_gid;
    // Of one without an id the data is as that of one that no allocation had.
    let now = if ids.contains(&to.owner.uid) { to.owner.uid } else { agent().gid };
    if last == now {
        return Ok(());
    }
    let before = match to.data {
        DataOf::OwnIdsAnd(shared) if !ids.contains(&last) => Some(shared),
        _ => None,
    };
    Giving { before, ids: Some(ids), owner: to.owner }.give_all(data.as_fd(), 0)?;
    rustix::fs::fchown(data, None, Some(Gid::from_raw(now)))
}

/// Give what is open, if only as a path, to its owner.
pub(crate) fn give(file: impl AsFd, owner: FileOwner) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    rustix::fs::chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

/// Whose that is which nobody owns but the agent.
pub(crate) fn agent() -> FileOwner {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    FileOwner { uid: uid.as_raw(), gid: gid.as_raw() }
}

/// Open a directory, made with those above it where they are not there; each that is new is the owner's. A link on
/// the way that was there before is followed as far as it stays below `dir`, and nothing that is there is given.
pub(crate) fn open_made(dir: &Dir, path: &Path, owner: Option<FileOwner>) -> io::Result<Dir> {
    let mut at = dir.try_clone()?;
    let mut so_far = PathBuf::new();
    for name in plain_names(path)? {
        so_far.push(name);
        at = match rustix::fs::mkdirat(&at, name, NEW_DIRECTORY) {
            Ok(()) => take_made(&at, name, owner)?,
            Err(Errno::EXIST) => match open_real(&at, name) {
                // A link, and what stands there now may lead anywhere: `dir` says how far.
                Err(Errno::NOTDIR | Errno::LOOP) => dir.open_dir(&so_far)?,
                found => found?,
            },
            Err(error) => return Err(error.into()),
        };
    }
    Ok(at)
}

/// Names one below the other, without `.` and `..`.
fn plain_names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let out = || io::Error::other(format!("{} leads out of its directory", path.display()));
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                names.pop().ok_or_else(out)?;
            }
            Component::RootDir | Component::Prefix(_) => return Err(out()),
        }
    }
    Ok(names)
}

/// Open a directory, no link in its place.
fn open_real(parent: &Dir, name: &OsStr) -> Result<Dir, Errno> {
    let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
    let opened = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    Ok(Dir::from_std_file(opened.into()))
}

/// Open a directory that was just made and give it to its owner. A task that writes beside it may have put a link
/// or somebody else's directory in its place: neither is given away.
fn take_made(parent: &Dir, name: &OsStr, owner: Option<FileOwner>) -> io::Result<Dir> {
    let made = match open_real(parent, name) {
        Ok(made) => made,
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(replaced(name)),
        Err(error) => return Err(error.into()),
    };
    if let Some(owner) = owner {
        if owner_of(&made)?.uid != agent().uid {
            return Err(replaced(name));
        }
        give(&made, owner)?;
    }
    Ok(made)
}

fn replaced(name: &OsStr) -> io::Error {
    io::Error::other(format!(
        "directory {name:?} was made and something else was put in its place at once: see what else writes there"
    ))
}

fn owner_of(file: impl AsFd) -> Result<FileOwner, Errno> {
    let found = rustix::fs::fstat(file)?;
    Ok(FileOwner { uid: found.st_uid, gid: found.st_gid })
}

/// Whose files are given to whom.
struct Giving<'a> {
    /// Whose they were; none: nobody's but those of `ids`.
    before: Option<FileOwner>,
    /// Those of user ids that allocations have of their own, whoever had one of them.
    ids: Option<&'a RangeInclusive<u32>>,
    owner: FileOwner,
}

impl Giving<'_> {
    /// Give what is below a directory.
    fn give_all(&self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        if depth > OWNED_DEPTH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        for name in names(dir)? {
            // What is looked at is what is given, whatever is put in its place meanwhile.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match rustix::fs::openat(dir, &name, flags, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            let stat = rustix::fs::fstat(&found)?;
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if self.is_given(&stat, is_directory) {
                give(&found, self.owner)?;
            }
            if is_directory {
                let inner = rustix::fs::openat(&found, c".", DIRECTORY_FLAGS, Mode::empty())?;
                self.give_all(inner.as_fd(), depth.saturating_add(1))?;
            }
        }
        Ok(())
    }

    fn is_given(&self, stat: &Stat, is_directory: bool) -> bool {
        let owner = FileOwner { uid: stat.st_uid, gid: stat.st_gid };
        if owner == self.owner {
            return false;
        }
        // Who has such an id makes no second names outside of what is mounted for it.
        let of_allocs = self.ids.is_some_and(|ids| ids.contains(&stat.st_uid));
        // What has other names elsewhere may be anybody's.
        let one_name = is_directory || stat.st_nlink == 1;
        of_allocs || (one_name && self.before == Some(owner))
    }
}

fn names(dir: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let again: OwnedFd = rustix::fs::openat(dir, c".", DIRECTORY_FLAGS, Mode::empty())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(again)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if !is_dots(name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
