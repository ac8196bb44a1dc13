//! Moves what was fetched into the directory of an allocation. Blocks on the disk.
//!
//! The task that it is for does not run; others of the allocation may, and what an earlier run left is
//! there: each directory is opened in the one above and never through a link. A file takes the place of
//! another one or of a link at once; what a directory has comes beside what is there. Everything, and each
//! directory that is made on the way, is whose the task is. Into another file system it is copied.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno;

use super::dir::at::{DIRECTORY_FLAGS, open_child};
use super::dir::lock::Held;
use super::dir::{AllocDir, AllocDirError};
use super::owner::agent;
use ostler_model::artifact::ArtifactOutcome;
use ostler_model::ids::AllocId;
use ostler_model::limits::ARTIFACT_DEPTH_MAX;
use ostler_model::ports::FileOwner;
use ostler_model::task_path::TaskPath;

mod across;

/// Move what is at `staged` to its destination.
///
/// # Errors
/// See [`AllocDirError`]; what was moved before the error stays.
pub fn bring(
    root: &Path,
    alloc: AllocId,
    destination: &TaskPath,
    staged: &Path,
    outcome: &ArtifactOutcome,
    owner: Option<FileOwner>,
) -> Result<(), AllocDirError> {
    let dir = AllocDir::open(root, alloc)?;
    let _held = Held::take(&[alloc])?;
    let mut names = destination.names.clone();
    let file = match outcome {
        // The first one is a directory of the allocation itself.
        ArtifactOutcome::Named if names.len() < 2 => {
            let path = dir.path().join(names.join("/"));
            return Err(AllocDirError::NotDirectory { path, found: "to be a file" });
        }
        ArtifactOutcome::Named => names.pop(),
        ArtifactOutcome::Below(name) => Some(name.clone()),
        ArtifactOutcome::Tree => None,
    };
    // Without the right to give it away, it is the agent's, as are all of its tasks.
    let owner = rustix::process::geteuid().is_root().then(|| owner.unwrap_or_else(agent));
    let (target, path) = enter(&dir, &names, owner)?;
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source: Errno| AllocDirError::Io { action, path, source: source.into() }
    };
    match file {
        Some(name) => {
            let to = path.join(&name);
            give(CWD, staged.as_os_str(), owner).map_err(failed("set the owner of", &to))?;
            let entry = (CWD, staged.as_os_str());
            move_entry(entry, (target.as_fd(), OsStr::new(&name)), owner).map_err(moving(to))
        }
        None => {
            let from = rustix::fs::openat(CWD, staged, DIRECTORY_FLAGS, Mode::empty());
            let from = from.map_err(failed("open", staged))?;
            merge(from.as_fd(), target.as_fd(), owner, 0).map_err(moving(path))
        }
    }
}

fn moving(path: PathBuf) -> impl FnOnce(Failed) -> AllocDirError {
    move |failed| {
        let source = match failed {
            Failed::Refused(errno) => errno.into(),
            // Of the job, not of the node: a later try has no more room.
            Failed::NoRoom => io::Error::other(
                "it is larger than what secrets have room for; resources { secrets = MIB } of the task says how much",
            ),
        };
        AllocDirError::Io { action: "move what was fetched to", path, source }
    }
}

/// Why something was not moved.
enum Failed {
    Refused(Errno),
    /// It would have to be copied, and there is no room for that.
    NoRoom,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// A name in a directory.
type Entry<'a> = (BorrowedFd<'a>, &'a OsStr);

/// Put a file or a link where another one may be.
fn move_entry(
    (from, name): Entry<'_>,
    (to, new_name): Entry<'_>,
    owner: Option<FileOwner>,
) -> Result<(), Failed> {
    match rustix::fs::renameat(from, name, to, new_name) {
        Err(Errno::XDEV) => {
            across::copy(from, name, to, new_name, owner).map_err(|errno| match errno {
                Errno::NOSPC | Errno::DQUOT => Failed::NoRoom,
                other => Failed::Refused(other),
            })
        }
        moved => Ok(moved?),
    }
}

/// Open the directory of these names, made where it is not there.
fn enter(
    dir: &AllocDir,
    names: &[String],
    owner: Option<FileOwner>,
) -> Result<(OwnedFd, PathBuf), AllocDirError> {
    let mut path = dir.path().to_owned();
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| AllocDirError::Io { action, path, source }
    };
    let copied = dir.fd().try_clone_to_owned();
    let mut at = copied.map_err(failed("open", &path))?;
    for name in names {
        path.push(name);
        let made = rustix::fs::mkdirat(&at, name.as_str(), Mode::from_raw_mode(0o755));
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("create", &path)(error.into())),
        }
        let next = open_child(at.as_fd(), name, &path)?;
        if let (Ok(()), Some(owner)) = (made, owner) {
            let given = super::owner::give(&next, owner).map_err(io::Error::from);
            given.map_err(failed("set the owner of", &path))?;
        }
        at = next;
    }
    Ok((at, path))
}

/// Not of what a link leads to.
fn give(at: BorrowedFd<'_>, name: &OsStr, owner: Option<FileOwner>) -> Result<(), Errno> {
    let Some(FileOwner { uid, gid }) = owner else { return Ok(()) };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::fs::chownat(at, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
}

/// Move the entries of a directory beside those of another.
fn merge(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    owner: Option<FileOwner>,
    depth: usize,
) -> Result<(), Failed> {
    if depth > ARTIFACT_DEPTH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    for (name, is_directory) in entries(from)? {
        let name = OsStr::from_bytes(name.to_bytes());
        give(from, name, owner)?;
        if !is_directory {
            move_entry((from, name), (to, name), owner)?;
            continue;
        }
        let flags = DIRECTORY_FLAGS | rustix::fs::OFlags::NOFOLLOW;
        let inner = rustix::fs::openat(from, name, flags, Mode::empty())?;
        match rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                // Empty and ours alone: the whole takes its place.
                owned(inner.as_fd(), owner, depth.saturating_add(1))?;
                match rustix::fs::renameat_with(from, name, to, name, RenameFlags::empty()) {
                    Err(Errno::XDEV) => {
                        give(to, name, owner)?;
                        let outer = rustix::fs::openat(to, name, flags, Mode::empty())?;
                        merge(inner.as_fd(), outer.as_fd(), owner, depth.saturating_add(1))?;
                    }
                    moved => moved?,
                }
            }
            Err(Errno::EXIST) => {
                let outer = rustix::fs::openat(to, name, flags, Mode::empty())?;
                merge(inner.as_fd(), outer.as_fd(), owner, depth.saturating_add(1))?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Everything below a directory gets its owner.
fn owned(dir: BorrowedFd<'_>, owner: Option<FileOwner>, depth: usize) -> Result<(), Errno> {
    if owner.is_none() {
        return Ok(());
    }
    if depth > ARTIFACT_DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    for (name, is_directory) in entries(dir)? {
        let name = OsStr::from_bytes(name.to_bytes());
        give(dir, name, owner)?;
        if is_directory {
            let flags = DIRECTORY_FLAGS | rustix::fs::OFlags::NOFOLLOW;
            let inner = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            owned(inner.as_fd(), owner, depth.saturating_add(1))?;
        }
    }
    Ok(())
}

/// Names in a directory, and whether each is one.
fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(std::ffi::CString, bool)>, Errno> {
    let is_dots = |name: &CStr| matches!(name.to_bytes(), b"." | b"..");
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if !is_dots(entry.file_name()) {
            let stat = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            found.push((entry.file_name().to_owned(), kind == rustix::fs::FileType::Directory));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
