//! Opens and makes directories one name at a time, without following links that a task put there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::AllocDirError;

/// Flags to open a directory; below the root always together with `NOFOLLOW`.
pub(in super::super) const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The root is the operator's choice, so links on the way to it are followed.
pub(in super::super) fn open_root(root: &Path) -> Result<OwnedFd, AllocDirError> {
    rustix::fs::openat(CWD, root, DIRECTORY_FLAGS, Mode::empty())
        .map_err(|error| io_error("open", root)(error.into()))
}

/// Open the directory `name` in `parent`; `path` is for messages.
pub(in super::super) fn open_child(
    parent: BorrowedFd<'_>,
    name: &str,
    path: &Path,
) -> Result<OwnedFd, AllocDirError> {
    let flags = DIRECTORY_FLAGS | OFlags::NOFOLLOW;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|error| match error {
        // Linux answers NOTDIR for a link opened as a directory, others LOOP.
        Errno::NOTDIR | Errno::LOOP => {
            AllocDirError::NotDirectory { path: path.to_owned(), found: what_is(parent, name) }
        }
        other => io_error("open", path)(other.into()),
    })
}

/// Open the directory `name` in `parent` unless another file system is mounted there.
///
/// `EXDEV` for a mount point, also one that shows the same device again; else as `openat`.
pub(in super::super) fn open_same_mount<P: rustix::path::Arg + Copy>(
    parent: BorrowedFd<'_>,
    name: P,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match rustix::fs::openat2(parent, name, flags, Mode::empty(), within) {
        // Old kernels, and sandboxes that refuse the call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        other => return other,
    }
    open_same_device(parent, name, flags)
}

/// As [`open_same_mount`], for kernels without `openat2`. It finds mount points of
/// other devices only.
fn open_same_device<P: rustix::path::Arg>(
    parent: BorrowedFd<'_>,
    name: P,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW;
    let child = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let same = rustix::fs::fstat(&child)?.st_dev == rustix::fs::fstat(parent)?.st_dev;
    if same { Ok(child) } else { Err(Errno::XDEV) }
}

/// A word for what is at a name where a directory should be.
pub(in super::super) fn what_is(parent: BorrowedFd<'_>, name: &str) -> &'static str {
    let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return "something else";
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => "a symbolic link",
        FileType::RegularFile => "a file",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "something else",
    }
}

/// Make a directory unless it is there, open it and set its mode (the umask may have cut the mode).
pub(in super::super) fn ensure(
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
    if !rustix::fs::fstat(&dir).is_ok_and(|found| has_mode(&found, mode)) {
        rustix::fs::fchmod(&dir, mode).map_err(|e| io_error("set the mode of", path)(e.into()))?;
    }
    Ok(dir)
}

/// As [`ensure`] for a directory that is not used now: a new one is not opened.
pub(in super::super) fn ensure_closed(
    parent: BorrowedFd<'_>,
    name: &str,
    mode: Mode,
    path: &Path,
) -> Result<(), AllocDirError> {
    let new = rustix::fs::mkdirat(parent, name, mode).is_ok();
    let made = || rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    let as_asked = |found: &Stat| {
        FileType::from_raw_mode(found.st_mode) == FileType::Directory && has_mode(found, mode)
    };
    if new && made().is_ok_and(|found| as_asked(&found)) {
        return Ok(());
    }
    ensure(parent, name, mode, path).map(drop)
}

fn has_mode(found: &Stat, mode: Mode) -> bool {
    Mode::from_raw_mode(found.st_mode) == mode
}

/// As [`ensure_closed`] for a directory that may have become writable for everybody since:
/// that mode stays.
pub(in super::super) fn ensure_shared(
    parent: BorrowedFd<'_>,
    name: &str,
    mode: Mode,
    path: &Path,
) -> Result<(), AllocDirError> {
    const EVERYBODY: u32 = 0o777;
    let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_open = found.is_ok_and(|found| {
        FileType::from_raw_mode(found.st_mode) == FileType::Directory
            && found.st_mode & EVERYBODY == EVERYBODY
    });
    if is_open {
        open_child(parent, name, path).map(drop)
    } else {
        ensure_closed(parent, name, mode, path)
    }
}

/// Is there nothing in an open directory?
pub(in super::super) fn is_empty(dir: impl AsFd) -> io::Result<bool> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        if !is_dots(entry?.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `.` and `..`, which every directory lists.
pub(in super::super) fn is_dots(name: &std::ffi::CStr) -> bool {
    name == c"." || name == c".."
}

/// Makes an [`AllocDirError`] of an action, a path and the error of the system.
pub(in super::super) fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> AllocDirError + 'a {
    move |source| AllocDirError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn neither_way_to_open_a_directory_follows_links_or_enters_other_devices() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("dir")).unwrap();
        std::os::unix::fs::symlink("dir", root.path().join("link")).unwrap();
        let here = open_root(root.path()).unwrap();
        let top = open_root(Path::new("/")).unwrap();
        for open in [open_same_mount::<&str>, open_same_device::<&str>] {
            assert!(open(here.as_fd(), "dir", DIRECTORY_FLAGS).is_ok());
            let link = open(here.as_fd(), "link", DIRECTORY_FLAGS).map(drop);
            assert!(matches!(link, Err(Errno::LOOP | Errno::NOTDIR)), "{link:?}");
            let missing = open(here.as_fd(), "nothing", DIRECTORY_FLAGS).map(drop);
            assert_eq!(missing, Err(Errno::NOENT));
            let proc = open(top.as_fd(), "proc", DIRECTORY_FLAGS).map(drop);
            assert_eq!(proc, Err(Errno::XDEV));
        }
    }
}
