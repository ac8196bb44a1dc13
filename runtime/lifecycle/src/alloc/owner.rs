//! Whose the files are that are made for a task: they are given to whom it runs as when they are made, so that
//! its first start finds them as every later one. Blocks on the disk.
//!
//! ```text
//! directories of the task    local, secrets, tmp before anything comes into them; of one that sees the
//!                            node's own paths also the directory around them
//! templates, artifacts,      with each directory that is made on the way ([`make_directories`], `bring`)
//!   payloads
//! data of an earlier task    what its user had, with all below
//! ```
//! Nothing that a task put there is followed. Without an owner everything is the agent's own.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::dir::at::{DIRECTORY_FLAGS, io_error, is_dots, open_child};
use super::dir::{AllocDir, AllocDirError, SHARED};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::OWNED_DEPTH_MAX;
use ostler_model::ports::FileOwner;

/// What of its directory a task writes.
const WRITTEN: [&str; 3] = ["local", "secrets", "tmp"];
/// What of the shared directory all tasks of an allocation write, whoever they run as.
const LENT: [&str; 2] = ["data", "tmp"];
const WRITABLE_BY_ALL: Mode = Mode::from_raw_mode(0o777);

/// Give a task its directories. `whole`: it sees the directory around them too.
///
/// # Errors
/// [`AllocDirError::NotDirectory`] when a task put something else in the place of one.
pub fn hand_over(
    root: &Path,
    alloc: AllocId,
    task: &TaskName,
    owner: FileOwner,
    whole: bool,
) -> Result<(), AllocDirError> {
    let dir = AllocDir::open(root, alloc)?;
    let path = dir.task(task).path;
    let of_task = open_child(dir.fd(), task.as_str(), &path)?;
    for name in WRITTEN {
        let path = path.join(name);
        let inner = open_child(of_task.as_fd(), name, &path)?;
        let given = |error: Errno| io_error("set the owner of", &path)(error.into());
        let before = owner_of(&inner).map_err(given)?;
        if before != owner {
            give_all(inner.as_fd(), before, owner, 0).map_err(given)?;
            give(&inner, owner).map_err(given)?;
        }
    }
    if whole {
        give(&of_task, owner).map_err(|error| io_error("set the owner of", &path)(error.into()))?;
    }
    let shared = open_child(dir.fd(), SHARED, &dir.shared())?;
    for name in LENT {
        let path = dir.shared().join(name);
        let inner = open_child(shared.as_fd(), name, &path)?;
        rustix::fs::fchmod(&inner, WRITABLE_BY_ALL)
            .map_err(|error| io_error("set the mode of", &path)(error.into()))?;
    }
    Ok(())
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

/// Make a directory with those above it; each that is new is the owner's.
pub(crate) fn make_directories(dir: &Dir, path: &Path, owner: Option<FileOwner>) -> io::Result<()> {
    let mut at = PathBuf::new();
    for part in path.components() {
        at.push(part);
        match dir.create_dir(&at) {
            Ok(()) => {
                if let Some(owner) = owner {
                    give(&dir.open_dir(&at)?, owner)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn owner_of(file: impl AsFd) -> Result<FileOwner, Errno> {
    let found = rustix::fs::fstat(file)?;
    Ok(FileOwner { uid: found.st_uid, gid: found.st_gid })
}

/// Give what `before` owns below a directory. What has other names elsewhere stays: it may be anybody's.
fn give_all(
    dir: BorrowedFd<'_>,
    before: FileOwner,
    owner: FileOwner,
    depth: usize,
) -> Result<(), Errno> {
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
        if (is_directory || stat.st_nlink == 1)
            && (stat.st_uid, stat.st_gid) == (before.uid, before.gid)
        {
            give(&found, owner)?;
        }
        if is_directory {
            let inner = rustix::fs::openat(&found, c".", DIRECTORY_FLAGS, Mode::empty())?;
            give_all(inner.as_fd(), before, owner, depth.saturating_add(1))?;
        }
    }
    Ok(())
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
