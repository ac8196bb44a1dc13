//! Removing a tree a task wrote, without trusting it.
//!
//! A recursive removal needs a stack frame and an open directory per level, and a task can nest a
//! hundred thousand levels. So the tree is flattened while it is removed: a directory that is not
//! empty has its non-empty children moved up to the top of the tree, and goes. Two directories are
//! open at a time. Links are removed, never followed; each name is looked up relative to an open
//! directory.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::dir::DIRECTORY_FLAGS;

/// Names read from a directory at once: bounds memory for directories with millions of files.
const BATCH: usize = 1_024;
/// Owner may do everything: a task may have taken the right to write from its own directories.
const OWNER: Mode = Mode::from_raw_mode(0o700);

/// Remove `name` in `parent` and everything below it. A file or link of this name is removed too.
pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    match unlink(parent, name) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => return Err(error.into()),
    }
    let top = open(parent, name)?;
    let mut moved = 0_u64;
    loop {
        let names = list(&top)?;
        if names.is_empty() {
            break;
        }
        for entry in &names {
            remove_entry(top.as_fd(), entry, &mut moved)?;
        }
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Remove one entry of the top directory; subdirectories of it that are not empty move up.
fn remove_entry(top: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> io::Result<()> {
    if unlink(top, name)? {
        return Ok(());
    }
    let child = open(top, name)?;
    loop {
        let names = list(&child)?;
        if names.is_empty() {
            break;
        }
        for entry in &names {
            if !unlink(child.as_fd(), entry)? {
                move_up(child.as_fd(), entry, top, moved)?;
            }
        }
    }
    Ok(rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR)?)
}

/// Unlink a file or an empty directory; true also when it is gone already, false for a directory
/// that is not empty.
fn unlink<P: rustix::path::Arg + Copy>(dir: BorrowedFd<'_>, name: P) -> Result<bool, Errno> {
    let file_error = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        // A directory: Linux says ISDIR, POSIX PERM. PERM is also an immutable file.
        Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
        Err(error) => return Err(error),
    };
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(Errno::NOTDIR) => Err(file_error),
        Err(error) => Err(error),
    }
}

fn move_up(
    from: BorrowedFd<'_>,
    name: &CStr,
    top: BorrowedFd<'_>,
    moved: &mut u64,
) -> io::Result<()> {
    loop {
        let to = format!(".removing-{moved}");
        *moved += 1;
        match rustix::fs::renameat_with(from, name, top, &to, rustix::fs::RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            // A task, or a removal that was cut short, left such a name: take the next.
            Err(Errno::EXIST) => {}
            // Moving a directory changes its `..`: it must be writable itself.
            Err(Errno::ACCESS) => {
                drop(open(from, name)?);
                return Ok(rustix::fs::renameat(from, name, top, &to)?);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Open a directory and make it writable for its owner.
fn open<P: rustix::path::Arg>(dir: BorrowedFd<'_>, name: P) -> io::Result<OwnedFd> {
    let child = rustix::fs::openat(dir, name, DIRECTORY_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
    // Best effort: where it fails, the removal itself says what is wrong.
    let _ = rustix::fs::fchmod(&child, OWNER);
    Ok(child)
}

fn list(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
        if names.len() >= BATCH {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
