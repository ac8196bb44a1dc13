//! Sets the owner of the files that are made for a task. They are given to the task's user when
//! they are made, so that the first start finds them as every later start does. Blocks on the disk.
//!
//! ```text
//! directories of the task    local, secrets, tmp before anything comes into them; of one that sees the
//!                            node's own paths also the directory around them
//! templates, artifacts,      with each directory that is made on the way ([`open_or_create`], `bring`)
//!   payloads
//! data of an earlier task    what its user had, with all below; of `alloc/data` what allocations before had
//!                            whose user id was their own, once: then its group is the id of this one
//! ```
//! Links that a task put there are not followed. Without an owner everything belongs to
//! the agent's user.

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

/// The parts of its directory that a task writes.
const WRITTEN: [&str; 3] = ["local", "secrets", "tmp"];
/// The parts of the shared directory that all tasks write, whichever user they run as.
const LENT: [&str; 2] = [DATA, "tmp"];
const DATA: &str = "data";
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o755);
const WRITABLE_BY_ALL: Mode = Mode::from_raw_mode(0o777);

/// How the directories of a task are handed to its user.
#[derive(Clone, Debug)]
pub struct HandOver {
    /// The new owner of the directories.
    pub owner: FileOwner,
    /// The task sees the directory around its own too, so that one is handed over as well.
    pub whole: bool,
    /// The range of user ids that allocations get for themselves; `None` where they get none.
    pub ids: Option<RangeInclusive<u32>>,
    /// Which files of `alloc/data` go to the owner.
    pub data: DataHandOver,
}

/// Which files of earlier allocations in `alloc/data` go to the new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataHandOver {
    /// No files.
    Nobody,
    /// Files of user ids that allocations get for themselves.
    OwnIds,
    /// These files, and those of the user that allocations without an id share, where no id had
    /// the data yet.
    OwnIdsAnd(FileOwner),
}

/// Hand the directories of a task to its user.
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
            let giving =
                OwnerChange { before: Some(before), ids: to.ids.as_ref(), owner: to.owner };
            giving.give_all(inner.as_fd(), 0).map_err(given)?;
            give_file(&inner, to.owner).map_err(given)?;
        }
    }
    if to.whole {
        give_file(&of_task, to.owner)
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

/// Give the owner the data that earlier allocations wrote. The group of the data directory records
/// the last owner, and so whether this is done already.
fn take_data(data: &OwnedFd, to: &HandOver) -> Result<(), Errno> {
    let Some(ids) = to.ids.as_ref().filter(|_| to.data != DataHandOver::Nobody) else {
        return Ok(());
    };
    let last = rustix::fs::fstat(data)?.st_gid;
    // For an owner without an id the group becomes the agent's, as for data that no allocation had.
    let now = if ids.contains(&to.owner.uid) { to.owner.uid } else { agent_owner().gid };
    if last == now {
        return Ok(());
    }
    let before = match to.data {
        DataHandOver::OwnIdsAnd(shared) if !ids.contains(&last) => Some(shared),
        _ => None,
    };
    OwnerChange { before, ids: Some(ids), owner: to.owner }.give_all(data.as_fd(), 0)?;
    rustix::fs::fchown(data, None, Some(Gid::from_raw(now)))
}

/// Set the owner of an open file or directory, which may be open only as a path.
pub(crate) fn give_file(file: impl AsFd, owner: FileOwner) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    rustix::fs::chownat(file, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
}

/// The user and group of the agent.
pub(crate) fn agent_owner() -> FileOwner {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    FileOwner { uid: uid.as_raw(), gid: gid.as_raw() }
}

/// Open a directory below `dir`; missing directories on the path are made and given to the owner.
/// Directories that exist keep their owner. A link on the path that was there before is followed as
/// long as it stays below `dir`.
pub(crate) fn open_or_create(dir: &Dir, path: &Path, owner: Option<FileOwner>) -> io::Result<Dir> {
    let mut at = dir.try_clone()?;
    let mut so_far = PathBuf::new();
    for name in plain_names(path)? {
        so_far.push(name);
        at = match rustix::fs::mkdirat(&at, name, NEW_DIRECTORY) {
            Ok(()) => own_new_directory(&at, name, owner)?,
            Err(Errno::EXIST) => match open_real(&at, name) {
                // A link, which may lead anywhere: opening by `dir` keeps it inside of `dir`.
                Err(Errno::NOTDIR | Errno::LOOP) => dir.open_dir(&so_far)?,
                found => found?,
            },
            Err(error) => return Err(error.into()),
        };
    }
    Ok(at)
}

/// The names of a path, with `.` and `..` resolved.
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

/// Open a directory, but no link in its place.
fn open_real(parent: &Dir, name: &OsStr) -> Result<Dir, Errno> {
    let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
    let opened = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    Ok(Dir::from_std_file(opened.into()))
}

/// Open a directory that was just made, and give it to its owner. A task may have put a link or the
/// directory of another user in its place meanwhile: neither is given away.
fn own_new_directory(parent: &Dir, name: &OsStr, owner: Option<FileOwner>) -> io::Result<Dir> {
    let made = match open_real(parent, name) {
        Ok(made) => made,
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(replaced_error(name)),
        Err(error) => return Err(error.into()),
    };
    if let Some(owner) = owner {
        if owner_of(&made)?.uid != agent_owner().uid {
            return Err(replaced_error(name));
        }
        give_file(&made, owner)?;
    }
    Ok(made)
}

fn replaced_error(name: &OsStr) -> io::Error {
    io::Error::other(format!(
        "directory {name:?} was made and something else was put in its place at once: see what else writes there"
    ))
}

fn owner_of(file: impl AsFd) -> Result<FileOwner, Errno> {
    let found = rustix::fs::fstat(file)?;
    Ok(FileOwner { uid: found.st_uid, gid: found.st_gid })
}

/// A change of the owner of files.
struct OwnerChange<'a> {
    /// Files of this owner change hands; `None`: only files of `ids` do.
    before: Option<FileOwner>,
    /// Files of these user ids change hands, whichever allocation had the id.
    ids: Option<&'a RangeInclusive<u32>>,
    owner: FileOwner,
}

impl OwnerChange<'_> {
    /// Change the owner of everything below a directory.
    fn give_all(&self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        if depth > OWNED_DEPTH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        for name in names(dir)? {
            // The open path is looked at and given, whatever comes to its name meanwhile.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = match rustix::fs::openat(dir, &name, flags, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error),
            };
            let stat = rustix::fs::fstat(&found)?;
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if self.is_given(&stat, is_directory) {
                give_file(&found, self.owner)?;
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
        // A task with such an id cannot make second names outside of what is mounted for it.
        let of_allocs = self.ids.is_some_and(|ids| ids.contains(&stat.st_uid));
        // A file with further names elsewhere may belong to anybody.
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
