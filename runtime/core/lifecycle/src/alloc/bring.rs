//! Moves a fetched artifact into the directory of an allocation. Blocks on the disk.
//!
//! The task of the artifact does not run. Other tasks of the allocation may run, and files of an
//! earlier run may be there, so each directory is opened in the one above and never through a link.
//! A file atomically replaces another file or a link. The entries of a directory come beside the
//! entries that are there. All of it, and each directory that is made on the way, belongs to the
//! owner of the task's files. It is copied where the destination is on another file system.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno;

use super::dir::at::{DIRECTORY_FLAGS, open_child};
use super::dir::lock::AllocDirLock;
use super::dir::{AllocDir, AllocDirError};
use super::owner::agent_owner;
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
    let _held = AllocDirLock::take(&[alloc])?;
    let mut names = destination.names.clone();
    let file = match outcome {
        // The first name is a directory of the allocation itself.
        ArtifactOutcome::Named if names.len() < 2 => {
            let path = dir.path().join(names.join("/"));
            return Err(AllocDirError::NotDirectory { path, found: "to be a file" });
        }
        ArtifactOutcome::Named => names.pop(),
        ArtifactOutcome::Below(name) => Some(name.clone()),
        ArtifactOutcome::Tree => None,
    };
    // An agent that is not root cannot give files away; its tasks run as the agent's user.
    let owner = rustix::process::geteuid().is_root().then(|| owner.unwrap_or_else(agent_owner));
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
            move_entry(entry, (target.as_fd(), OsStr::new(&name)), owner).map_err(move_error(to))
        }
        None => {
            let from = rustix::fs::openat(CWD, staged, DIRECTORY_FLAGS, Mode::empty());
            let from = from.map_err(failed("open", staged))?;
            merge(from.as_fd(), target.as_fd(), owner, 0).map_err(move_error(path))
        }
    }
}

fn move_error(path: PathBuf) -> impl FnOnce(MoveFailure) -> AllocDirError {
    move |failed| {
        let source = match failed {
            MoveFailure::Refused(errno) => errno.into(),
            // The fault of the job, not of the node: a later try has no more room either.
            MoveFailure::NoRoom => io::Error::other(
                "it is larger than the room for secrets; set it by resources { secrets = MIB } of the task",
            ),
        };
        AllocDirError::Io { action: "move what was fetched to", path, source }
    }
}

/// Why a file or link was not moved.
enum MoveFailure {
    Refused(Errno),
    /// A copy is needed, and the file system has no room for it.
    NoRoom,
}

impl From<Errno> for MoveFailure {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

/// A name in a directory.
type Entry<'a> = (BorrowedFd<'a>, &'a OsStr);

/// Move a file or a link to a name where another one may be.
fn move_entry(
    (from, name): Entry<'_>,
    (to, new_name): Entry<'_>,
    owner: Option<FileOwner>,
) -> Result<(), MoveFailure> {
    match rustix::fs::renameat(from, name, to, new_name) {
        Err(Errno::XDEV) => {
            across::copy(from, name, to, new_name, owner).map_err(|errno| match errno {
                Errno::NOSPC | Errno::DQUOT => MoveFailure::NoRoom,
                other => MoveFailure::Refused(other),
            })
        }
        moved => Ok(moved?),
    }
}

/// Open the directory of these names; directories that are missing are made.
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
            let given = super::owner::give_file(&next, owner).map_err(io::Error::from);
            given.map_err(failed("set the owner of", &path))?;
        }
        at = next;
    }
    Ok((at, path))
}

/// Set the owner of a file, or of a link itself and not of its target.
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
) -> Result<(), MoveFailure> {
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
                // The new directory is empty and only the agent has it: the whole source
                // takes its place.
                own_tree(inner.as_fd(), owner, depth.saturating_add(1))?;
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

/// Set the owner of everything below a directory.
fn own_tree(dir: BorrowedFd<'_>, owner: Option<FileOwner>, depth: usize) -> Result<(), Errno> {
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
            own_tree(inner.as_fd(), owner, depth.saturating_add(1))?;
        }
    }
    Ok(())
}

/// The names in a directory, each with whether it is a directory itself.
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
