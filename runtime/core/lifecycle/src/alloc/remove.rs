//! Removes a directory tree that a task wrote, without trusting it.
//!
//! A recursive removal needs a stack frame and an open directory per level, and a task can nest
//! a hundred thousand levels. So the tree is flattened while it is removed: a directory that is
//! not empty has its non-empty children moved up to the top of the tree, and goes. Two
//! directories are open at a time. Links are removed, never followed; each name is looked up
//! relative to an open directory.
//!
//! ```text
//! top/a/b/c/file    a: c is not known yet, b moves up      top/.removing-0/c/file
//!                   a is empty and goes; the next pass      top/.removing-1/file
//!                   does the same with .removing-0          top/
//! ```
//! Entries that cannot be removed stay where they are, and everything else goes: a directory
//! is read again until a pass over it changes nothing. A directory that cannot be moved up
//! either (it is immutable, or in an immutable one) is emptied in its place. Mount points stay
//! and are never entered.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::dir::at::{DIRECTORY_FLAGS, is_dots, open_same_mount};
use ostler_model::limits::{REMOVE_ENTRIES_MAX, REMOVE_NAMES_MAX, REMOVE_PINNED_DEPTH_MAX};

/// A mode by which the owner may do everything. A task may have taken the right to write from
/// its own directories.
const OWNER: Mode = Mode::from_raw_mode(0o700);

/// The entries of a tree that could not be removed.
#[derive(Debug, Default)]
pub struct UndeletedParts {
    /// The first few entries, at most [`REMOVE_NAMES_MAX`].
    pub entries: Vec<UndeletedEntry>,
    /// How many entries there are in all. What is below a directory that could not be read
    /// is not counted.
    pub count: u64,
}

/// One entry that could not be removed.
#[derive(Debug)]
pub struct UndeletedEntry {
    /// The present path, beginning with the name of the tree. Directories on the path may have been
    /// moved up and renamed.
    pub path: PathBuf,
    /// Why the entry could not be removed.
    pub why: UndeletedReason,
}

/// Why an entry could not be removed.
#[derive(Debug)]
pub enum UndeletedReason {
    /// The operating system refused.
    System(io::Error),
    /// Something is mounted on the entry, or it is in use otherwise.
    MountPoint,
    /// The entry lies in too many directories that can be neither removed nor moved.
    TooDeep,
    /// [`REMOVE_ENTRIES_MAX`] is reached, because somebody goes on writing.
    StillWritten,
}

impl fmt::Display for UndeletedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(f, "{error}; if it is immutable, make it mutable (chattr -i)")
            }
            Self::System(error) => write!(f, "{}", super::dir::hint(error)),
            Self::MountPoint => f.write_str("something is mounted there; unmount it"),
            Self::TooDeep => write!(
                f,
                "it is in more than {REMOVE_PINNED_DEPTH_MAX} directories that cannot be changed"
            ),
            Self::StillWritten => write!(
                f,
                "not empty after {REMOVE_ENTRIES_MAX} removals; end the process that writes there"
            ),
        }
    }
}

impl fmt::Display for UndeletedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, UndeletedEntry { path, why }) in self.entries.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({why})", path.display())?;
        }
        let named = u64::try_from(self.entries.len()).unwrap_or(u64::MAX);
        match self.count.saturating_sub(named) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Remove `name` in `parent` and everything below it. A file or link of this name is removed too.
pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &str) -> Result<(), UndeletedParts> {
    let mut removal = TreeRemoval::new(REMOVE_ENTRIES_MAX);
    let at = Path::new(name);
    let gone = match unlink(parent, name, FileType::Directory) {
        UnlinkOutcome::Gone => true,
        UnlinkOutcome::Directory => removal.clear(parent, name, at, 0),
        UnlinkOutcome::Refused(error) => removal.refuse(at, error),
    };
    if gone { Ok(()) } else { Err(removal.left) }
}

struct TreeRemoval {
    left: UndeletedParts,
    /// Number of directories that were moved up so far; the next one is named by it.
    moved: u64,
    budget: u64,
}

/// Handles one entry. True: the entry is gone, or changed so that another pass may help.
type Deal<'a> = &'a mut dyn FnMut(&mut TreeRemoval, &DirEntry) -> bool;

impl TreeRemoval {
    const fn new(budget: u64) -> Self {
        Self { left: UndeletedParts { entries: Vec::new(), count: 0 }, moved: 0, budget }
    }

    /// Empty a directory in its place, and remove it.
    fn clear<P>(&mut self, parent: BorrowedFd<'_>, name: P, at: &Path, pinned: usize) -> bool
    where
        P: rustix::path::Arg + Copy,
    {
        if pinned > REMOVE_PINNED_DEPTH_MAX {
            return self.leave(at, UndeletedReason::TooDeep);
        }
        let top = match open_writable(parent, name) {
            Ok(top) => top,
            Err(error) => return self.refuse_open(at, error),
        };
        self.drain(parent, name, &top, at, &mut |removal, entry| {
            removal.flatten(&top, entry, at, pinned)
        })
    }

    /// Remove an entry of the top directory; subdirectories of it that are not empty move up.
    fn flatten(&mut self, top: &OwnedFd, entry: &DirEntry, at: &Path, pinned: usize) -> bool {
        let (name, at) = (entry.file_name(), join(at, entry.file_name()));
        match unlink(top.as_fd(), name, entry.file_type()) {
            UnlinkOutcome::Gone => return true,
            UnlinkOutcome::Refused(error) => return self.refuse(&at, error),
            UnlinkOutcome::Directory => {}
        }
        let child = match open_writable(top.as_fd(), name) {
            Ok(child) => child,
            Err(error) => return self.refuse_open(&at, error),
        };
        let moved = self.moved;
        let gone = self.drain(top.as_fd(), name, &child, &at, &mut |removal, entry| {
            let name = entry.file_name();
            match unlink(child.as_fd(), name, entry.file_type()) {
                UnlinkOutcome::Gone => true,
                UnlinkOutcome::Refused(error) => removal.refuse(&join(&at, name), error),
                UnlinkOutcome::Directory => {
                    removal.move_up(child.as_fd(), name, top.as_fd())
                        || removal.clear(child.as_fd(), name, &join(&at, name), pinned + 1)
                }
            }
        });
        gone || self.moved != moved
    }

    /// Handle every entry of the directory `name` in `parent`, which is open, and remove it. Where
    /// something is left, there is pass after pass until one changes nothing. True when the directory
    /// is gone; otherwise each entry that is left is noted once.
    fn drain<P>(
        &mut self,
        parent: BorrowedFd<'_>,
        name: P,
        dir: &OwnedFd,
        at: &Path,
        deal: Deal<'_>,
    ) -> bool
    where
        P: rustix::path::Arg + Copy,
    {
        let (names, count) = (self.left.entries.len(), self.left.count);
        let mut entries = match Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(error) => return self.refuse(at, error),
        };
        loop {
            self.left.entries.truncate(names);
            self.left.count = count;
            let (mut changed, mut stuck) = (false, false);
            for entry in &mut entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) => return self.refuse(at, error),
                };
                if is_dots(entry.file_name()) {
                    continue;
                }
                if self.budget == 0 {
                    return self.leave(at, UndeletedReason::StillWritten);
                }
                self.budget -= 1;
                let dealt = deal(self, &entry);
                changed |= dealt;
                stuck |= !dealt;
            }
            if !stuck {
                match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => return true,
                    // Somebody still writes, or children have moved up. An immutable parent hides that.
                    Err(_) if changed => {}
                    Err(error) => return self.refuse(at, error),
                }
            } else if !changed {
                return false;
            }
            entries.rewind();
        }
    }

    fn move_up(&mut self, from: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>) -> bool {
        while self.budget > 0 {
            self.budget -= 1;
            let to = format!(".removing-{}", self.moved);
            let mut renamed = rustix::fs::renameat(from, name, top, &to);
            if renamed == Err(Errno::ACCESS) {
                // A move changes `..` in the directory, so the directory itself must be writable.
                drop(open_writable(from, name));
                renamed = rustix::fs::renameat(from, name, top, &to);
            }
            match renamed {
                // The rename may replace an empty directory, which was to go as well.
                Ok(()) | Err(Errno::NOENT) => {
                    self.moved += 1;
                    return true;
                }
                // A task, or a removal that was cut short, left such a name: take the next.
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {
                    self.moved += 1;
                }
                Err(_) => break,
            }
        }
        // The directory was not moved. The caller empties it in its place and reports what changed.
        false
    }

    /// Note a directory that could not be opened. True when it is gone, so that another
    /// pass may help.
    fn refuse_open(&mut self, at: &Path, error: Errno) -> bool {
        match error {
            Errno::NOENT => true,
            Errno::XDEV => self.leave(at, UndeletedReason::MountPoint),
            other => self.refuse(at, other),
        }
    }

    fn refuse(&mut self, at: &Path, error: Errno) -> bool {
        let why = match error {
            Errno::BUSY => UndeletedReason::MountPoint,
            other => UndeletedReason::System(other.into()),
        };
        self.leave(at, why)
    }

    /// Note an entry that is left. Always returns false, so that callers can return the result.
    fn leave(&mut self, at: &Path, why: UndeletedReason) -> bool {
        self.left.count = self.left.count.saturating_add(1);
        if self.left.entries.len() < REMOVE_NAMES_MAX {
            self.left.entries.push(UndeletedEntry { path: at.to_owned(), why });
        }
        false
    }
}

enum UnlinkOutcome {
    /// The entry is gone.
    Gone,
    /// The entry is a directory that could not be removed at once; mostly it is not empty.
    Directory,
    Refused(Errno),
}

/// Unlink a file or an empty directory. `kind` is what it was when the directory was read; where that
/// is not so any more, the other way is tried too.
fn unlink<P>(dir: BorrowedFd<'_>, name: P, kind: FileType) -> UnlinkOutcome
where
    P: rustix::path::Arg + Copy,
{
    if kind == FileType::Directory {
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return UnlinkOutcome::Gone,
            Err(Errno::NOTEMPTY | Errno::EXIST) => return UnlinkOutcome::Directory,
            // A mount point, found before anything in it is looked at.
            Err(Errno::BUSY) => return UnlinkOutcome::Refused(Errno::BUSY),
            Err(_) => {}
        }
    }
    let file_error = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return UnlinkOutcome::Gone,
        // A directory: Linux says ISDIR, POSIX PERM. PERM is also an immutable file.
        Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
        Err(error) => return UnlinkOutcome::Refused(error),
    };
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => UnlinkOutcome::Gone,
        Err(Errno::NOTDIR) => UnlinkOutcome::Refused(file_error),
        Err(Errno::BUSY) => UnlinkOutcome::Refused(Errno::BUSY),
        Err(_) if is_directory(dir, name) => UnlinkOutcome::Directory,
        Err(error) => UnlinkOutcome::Refused(error),
    }
}

/// Is the entry a directory? The system refuses an immutable file with the same error
/// as a directory.
fn is_directory<P: rustix::path::Arg>(dir: BorrowedFd<'_>, name: P) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

/// Open a directory and make it writable for its owner.
fn open_writable<P: rustix::path::Arg + Copy>(
    dir: BorrowedFd<'_>,
    name: P,
) -> Result<OwnedFd, Errno> {
    let child = match open_same_mount(dir, name, DIRECTORY_FLAGS) {
        // The directory is not even readable. By /proc the mode of the open directory changes, not
        // that of a name.
        Err(Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let place = open_same_mount(dir, name, flags)?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), OWNER)?;
            open_same_mount(dir, name, DIRECTORY_FLAGS)?
        }
        other => other?,
    };
    let writable = |mode: u32| mode & OWNER.bits() == OWNER.bits();
    // The mode changes only where it must: a change for each of many levels would take most
    // of the time.
    if !rustix::fs::fstat(&child).is_ok_and(|stat| writable(stat.st_mode)) {
        // An error is ignored here, because the removal itself then says what is wrong.
        let _ = rustix::fs::fchmod(&child, OWNER);
    }
    Ok(child)
}

fn join(at: &Path, name: &CStr) -> PathBuf {
    at.join(OsStr::from_bytes(name.to_bytes()))
}

#[cfg(test)]
#[path = "remove_tests.rs"]
mod tests;
