//! Puts an archive below a directory that nobody else uses. Blocks on the disk.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::archive::{ArchiveEntry, ArchiveEntryKind, ArchiveError, ArchiveReader};
use super::place::{BadName, Placed, placed};
use crate::alloc::dir::at::DIRECTORY_FLAGS;
use crate::alloc::migrate::MovedDir;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{MOVED_ENTRIES_MAX, MOVED_LEFT_NAMED_MAX, MOVED_REASON_BYTES_MAX};
use ostler_model::shown::shown;

/// Written or left out as one: what file systems keep.
const PAGE: usize = 4_096;
/// Read at once.
const PIECE: usize = 16 * PAGE;
/// What stays of a mode: who may read, write and execute.
const RIGHTS: u32 = 0o777;
/// Its owner may do everything with a directory: what goes in it comes later.
const OWN_DIRECTORY: u32 = 0o700;

/// What is taken at most.
#[derive(Clone, Copy, Debug)]
pub struct UnpackBounds {
    /// Bytes that files have on the disk.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl UnpackBounds {
    /// As many bytes as the allocation's disk may have.
    #[must_use]
    pub const fn of_disk(bytes: u64) -> Self {
        Self { bytes, entries: MOVED_ENTRIES_MAX }
    }
}

/// Why an archive was not taken.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It cannot be read.
    #[error("what came cannot be unpacked: {0}")]
    Archive(#[from] ArchiveError),
    /// The node that sends it says so.
    #[error("the other node could not send all of it: {0}")]
    Sender(String),
    /// A name that none of what moves has.
    #[error("what came was refused: {name:?} {why}")]
    Name {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
    /// More than the disk may have.
    #[error("it has more than the {} MiB that ephemeral_disk allows", bytes / 1_048_576)]
    TooLarge {
        /// How much it may have.
        bytes: u64,
    },
    /// More than is taken.
    #[error("it has more than {entries} files")]
    TooMany {
        /// How many it may have.
        entries: u64,
    },
    /// The operating system refused.
    #[error("cannot {action} {name:?}: {}", crate::alloc::dir::hint(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        name: String,
        /// Why not.
        source: io::Error,
    },
}

/// What stayed behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The first few, each with what it is.
    pub named: Vec<String>,
    /// How many in all.
    pub count: u64,
}

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, without directories and links.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What did not.
    pub left_out: LeftOut,
}

/// Unpack what moves from the allocation `from` to one with these tasks, below `top`, which is empty: as
/// `alloc/data` and `<task>/local`.
///
/// # Errors
/// See [`UnpackError`]. What is below `top` then is nothing to be used.
pub fn unpack_into(
    top: BorrowedFd<'_>,
    archive: impl Read,
    from: AllocId,
    tasks: &BTreeSet<TaskName>,
    bounds: UnpackBounds,
) -> Result<Unpacked, UnpackError> {
    let mut archive = ArchiveReader::new(archive);
    let mut unpacking = Unpacking {
        top,
        parent: None,
        root: rustix::process::geteuid().is_root(),
        bounds,
        done: Unpacked::default(),
        piece: vec![0; PIECE],
        written: 0,
    };
    let mut entries = 0_u64;
    while let Some(entry) = archive.next_entry()? {
        entries = entries.saturating_add(1);
        if entries > bounds.entries {
            return Err(UnpackError::TooMany { entries: bounds.entries });
        }
        match placed(&entry, from, tasks).map_err(|why| bad_name(&entry, why))? {
            Placed::At(item, below) => unpacking.make(&mut archive, &entry, &item, &below)?,
            Placed::SenderFailed => return Err(sender_failed(&mut archive)),
            Placed::NotMoved => {}
            Placed::LeftOut(what) => unpacking.leave_out(&entry, what),
        }
    }
    Ok(unpacking.done)
}

fn name_of(entry: &ArchiveEntry) -> String {
    shown(String::from_utf8_lossy(&entry.path), MOVED_REASON_BYTES_MAX)
}

fn bad_name(entry: &ArchiveEntry, why: BadName) -> UnpackError {
    UnpackError::Name { name: name_of(entry), why: why.to_string() }
}

/// The content of the entry is the reason.
fn sender_failed(archive: &mut ArchiveReader<impl Read>) -> UnpackError {
    let (mut reason, mut piece) = (Vec::new(), [0; MOVED_REASON_BYTES_MAX]);
    while reason.len() < MOVED_REASON_BYTES_MAX {
        match archive.read(&mut piece) {
            Ok(count @ 1..) => reason.extend_from_slice(piece.get(..count).unwrap_or_default()),
            // What is there says enough.
            Ok(0) | Err(_) => break,
        }
    }
    UnpackError::Sender(shown(String::from_utf8_lossy(&reason), MOVED_REASON_BYTES_MAX))
}

struct Unpacking<'a> {
    top: BorrowedFd<'a>,
    /// The directory that the last entry lies in: the next one does as well, mostly.
    parent: Option<(Vec<OsString>, OwnedFd)>,
    /// Owners can be given.
    root: bool,
    bounds: UnpackBounds,
    done: Unpacked,
    piece: Vec<u8>,
    /// Bytes on the disk.
    written: u64,
}

impl Unpacking<'_> {
    fn leave_out(&mut self, entry: &ArchiveEntry, what: &str) {
        let left_out = &mut self.done.left_out;
        left_out.count = left_out.count.saturating_add(1);
        if left_out.named.len() < MOVED_LEFT_NAMED_MAX {
            left_out.named.push(format!("{} ({what})", name_of(entry)));
        }
    }

    fn make(
        &mut self,
        archive: &mut ArchiveReader<impl Read>,
        entry: &ArchiveEntry,
        item: &MovedDir,
        below: &[OsString],
    ) -> Result<(), UnpackError> {
        let (above, own) = item.place();
        let mut names = vec![OsString::from(above), OsString::from(own)];
        names.extend(below.iter().cloned());
        let Some(name) = names.pop() else { return Ok(()) };
        self.enter(names).map_err(failed("open the directory of", entry))?;
        let Some((_, parent)) = &self.parent else { return Ok(()) };
        let owner = entry.owner.filter(|_| self.root);
        match &entry.kind {
            ArchiveEntryKind::Directory => {
                let dir = make_directory(parent.as_fd(), &name).map_err(failed("make", entry))?;
                let mode = entry.mode & RIGHTS | OWN_DIRECTORY;
                give(&dir, owner, mode).map_err(failed("set owner and mode of", entry))
            }
            ArchiveEntryKind::Symlink(target) => {
                let target = target.as_slice();
                rustix::fs::symlinkat(target, parent, &name).map_err(failed("make", entry))?;
                let Some((uid, gid)) = owner else { return Ok(()) };
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(parent, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(failed("set the owner of", entry))
            }
            ArchiveEntryKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let (flags, mode) = (flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600));
                let file = rustix::fs::openat(parent, &name, flags, mode);
                let file = File::from(file.map_err(failed("make", entry))?);
                self.fill(archive, entry, &file)?;
                give(&file, owner, entry.mode & RIGHTS)
                    .and_then(|()| set_time(&file, entry.changed))
                    .map_err(failed("set owner, mode and time of", entry))
            }
            // They have no place.
            ArchiveEntryKind::HardLink(_) | ArchiveEntryKind::Other(_) => Ok(()),
        }
    }

    /// Open the directory of these names, each in the one before, never through a link. The first two are
    /// made where they are not there: archives do not have them all.
    fn enter(&mut self, names: Vec<OsString>) -> Result<(), Errno> {
        if self.parent.as_ref().is_some_and(|(known, _)| *known == names) {
            return Ok(());
        }
        let mut dir: Option<OwnedFd> = None;
        for (depth, name) in names.iter().enumerate() {
            let at = dir.as_ref().map_or(self.top, AsFd::as_fd);
            let next = match open_directory(at, name) {
                Err(Errno::NOENT) if depth < 2 => make_directory(at, name)?,
                opened => opened?,
            };
            dir = Some(next);
        }
        self.parent = dir.map(|dir| (names, dir));
        Ok(())
    }

    /// What is all zero is not written: files of databases are mostly holes.
    fn fill(
        &mut self,
        archive: &mut ArchiveReader<impl Read>,
        entry: &ArchiveEntry,
        mut file: &File,
    ) -> Result<(), UnpackError> {
        let unwritten = |source| UnpackError::Io { action: "write", name: name_of(entry), source };
        let (bounds, mut piece) = (self.bounds, std::mem::take(&mut self.piece));
        loop {
            let filled = fill_piece(archive, &mut piece)?;
            let bytes = piece.get(..filled).unwrap_or_default();
            for page in bytes.chunks(PAGE) {
                if page.iter().all(|byte| *byte == 0) {
                    let ahead = i64::try_from(page.len()).unwrap_or(i64::MAX);
                    file.seek(SeekFrom::Current(ahead)).map_err(unwritten)?;
                    continue;
                }
                let length = u64::try_from(page.len()).unwrap_or(u64::MAX);
                self.written = self.written.saturating_add(length);
                if self.written > bounds.bytes {
                    return Err(UnpackError::TooLarge { bytes: bounds.bytes });
                }
                file.write_all(page).map_err(unwritten)?;
            }
            if filled < piece.len() {
                break;
            }
        }
        self.piece = piece;
        self.done.files = self.done.files.saturating_add(1);
        self.done.bytes = self.done.bytes.saturating_add(entry.size);
        // What ends with zeros has its length by this.
        file.set_len(entry.size).map_err(unwritten)
    }
}

/// As much as there is of the present entry; less than the piece only at its end.
fn fill_piece(
    archive: &mut ArchiveReader<impl Read>,
    piece: &mut [u8],
) -> Result<usize, ArchiveError> {
    let mut filled = 0;
    while let Some(rest) = piece.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match archive.read(rest)? {
            0 => break,
            count => filled = filled.saturating_add(count),
        }
    }
    Ok(filled)
}

fn open_directory(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, DIRECTORY_FLAGS | OFlags::NOFOLLOW, Mode::empty())
}

/// Made, or there already.
fn make_directory(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(OWN_DIRECTORY)) {
        Ok(()) | Err(Errno::EXIST) => open_directory(at, name),
        Err(error) => Err(error),
    }
}

/// Owner first: a change of it may change the mode.
fn give(of: impl AsFd, owner: Option<(u32, u32)>, mode: u32) -> Result<(), Errno> {
    if let Some((uid, gid)) = owner {
        rustix::fs::fchown(&of, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    rustix::fs::fchmod(&of, Mode::from_raw_mode(mode))
}

fn set_time(of: &File, seconds: u64) -> Result<(), Errno> {
    let tv_sec = i64::try_from(seconds).unwrap_or_default();
    let time = Timespec { tv_sec, tv_nsec: 0 };
    rustix::fs::futimens(of, &Timestamps { last_access: time, last_modification: time })
}

fn failed(action: &'static str, entry: &ArchiveEntry) -> impl FnOnce(Errno) -> UnpackError {
    let name = name_of(entry);
    move |error| UnpackError::Io { action, name, source: error.into() }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
