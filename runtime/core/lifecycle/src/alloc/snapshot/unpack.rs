//! Unpacks an archive into a directory that nobody else uses. Blocks on the disk.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::archive::{ArchiveEntry, ArchiveEntryKind, ArchiveError, ArchiveReader};
use super::place::{BadEntryName, EntryPlacement, place_entry};
use crate::alloc::dir::at::DIRECTORY_FLAGS;
use crate::alloc::migrate::MovedDir;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{MOVED_ENTRIES_MAX, MOVED_LEFT_NAMED_MAX, MOVED_REASON_BYTES_MAX};
use ostler_model::printable::printable_line;

/// Size of the unit that is written or left out as a hole, bytes: the page of most file systems.
const PAGE: usize = 4_096;
/// Bytes that are read at once.
const PIECE: usize = 16 * PAGE;
/// The part of a mode that is kept: who may read, write and execute.
const RIGHTS: u32 = 0o777;
/// The owner may do everything with a new directory, because its entries come later.
const OWN_DIRECTORY: u32 = 0o700;

/// The bounds of an archive.
#[derive(Clone, Copy, Debug)]
pub struct UnpackBounds {
    /// Most bytes that the files may have on the disk.
    pub bytes: u64,
    /// Most files, directories and links together.
    pub entries: u64,
}

impl UnpackBounds {
    /// The bounds for a disk that may have this many bytes.
    #[must_use]
    pub const fn of_disk(bytes: u64) -> Self {
        Self { bytes, entries: MOVED_ENTRIES_MAX }
    }
}

/// Why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub enum DiskUnpackError {
    /// The archive cannot be read.
    #[error("what came cannot be unpacked: {0}")]
    Archive(#[from] ArchiveError),
    /// The sending node says that it could not send the rest.
    #[error("the other node could not send all of it: {0}")]
    Sender(String),
    /// An entry has a name that is refused.
    #[error("what came was refused: {name:?} {why}")]
    Name {
        /// The path of the entry as people are shown it.
        name: String,
        /// Why the name is refused, as the end of a sentence.
        why: String,
    },
    /// The archive has more bytes than the disk may have.
    #[error("it has more than the {} MiB that ephemeral_disk allows", bytes / 1_048_576)]
    TooLarge {
        /// Most bytes that the disk may have.
        bytes: u64,
    },
    /// The archive has more entries than are allowed.
    #[error("it has more than {entries} files")]
    TooMany {
        /// Most entries that are allowed.
        entries: u64,
    },
    /// The operating system refused.
    #[error("cannot {action} {name:?}: {}", crate::alloc::dir::hint(source))]
    Io {
        /// What was tried: `open`, `make` …
        action: &'static str,
        /// The path of the entry as people are shown it.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The entries that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOutEntries {
    /// The first few entries, each with its kind.
    pub named: Vec<String>,
    /// How many entries were left out in all.
    pub count: u64,
}

/// Counts of what was unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnpackReport {
    /// Number of files, without directories and links.
    pub files: u64,
    /// Bytes of the files together.
    pub bytes: u64,
    /// The entries that were left out.
    pub left_out: LeftOutEntries,
}

/// Unpack the data of the allocation `from` below `top`, for an allocation with these tasks. `top`
/// is empty; the data comes to `alloc/data` and `<task>/local` in it.
///
/// # Errors
/// See [`DiskUnpackError`]. Nothing below `top` may be used then.
pub fn unpack_into(
    top: BorrowedFd<'_>,
    archive: impl Read,
    from: AllocId,
    tasks: &BTreeSet<TaskName>,
    bounds: UnpackBounds,
) -> Result<UnpackReport, DiskUnpackError> {
    let mut archive = ArchiveReader::new(archive);
    let mut unpacking = ArchiveUnpacker {
        top,
        parent: None,
        root: rustix::process::geteuid().is_root(),
        bounds,
        done: UnpackReport::default(),
        piece: vec![0; PIECE],
        written: 0,
    };
    let mut entries = 0_u64;
    while let Some(entry) = archive.next_entry()? {
        entries = entries.saturating_add(1);
        if entries > bounds.entries {
            return Err(DiskUnpackError::TooMany { entries: bounds.entries });
        }
        match place_entry(&entry, from, tasks).map_err(|why| bad_name(&entry, why))? {
            EntryPlacement::At(item, below) => {
                unpacking.make(&mut archive, &entry, &item, &below)?
            }
            EntryPlacement::SenderFailed => return Err(sender_error(&mut archive)),
            EntryPlacement::NotMoved => {}
            EntryPlacement::LeftOut(what) => unpacking.leave_out(&entry, what),
        }
    }
    Ok(unpacking.done)
}

fn name_of(entry: &ArchiveEntry) -> String {
    printable_line(String::from_utf8_lossy(&entry.path), MOVED_REASON_BYTES_MAX)
}

fn bad_name(entry: &ArchiveEntry, why: BadEntryName) -> DiskUnpackError {
    DiskUnpackError::Name { name: name_of(entry), why: why.to_string() }
}

/// The content of the entry is the reason.
fn sender_error(archive: &mut ArchiveReader<impl Read>) -> DiskUnpackError {
    let (mut reason, mut piece) = (Vec::new(), [0; MOVED_REASON_BYTES_MAX]);
    while reason.len() < MOVED_REASON_BYTES_MAX {
        match archive.read(&mut piece) {
            Ok(count @ 1..) => reason.extend_from_slice(piece.get(..count).unwrap_or_default()),
            // The part of the reason that came says enough.
            Ok(0) | Err(_) => break,
        }
    }
    DiskUnpackError::Sender(printable_line(
        String::from_utf8_lossy(&reason),
        MOVED_REASON_BYTES_MAX,
    ))
}

struct ArchiveUnpacker<'a> {
    top: BorrowedFd<'a>,
    /// The directory of the last entry. The next entry mostly lies in the same one.
    parent: Option<(Vec<OsString>, OwnedFd)>,
    /// The agent is root and can set owners.
    root: bool,
    bounds: UnpackBounds,
    done: UnpackReport,
    piece: Vec<u8>,
    /// Bytes that were written to the disk so far.
    written: u64,
}

impl ArchiveUnpacker<'_> {
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
    ) -> Result<(), DiskUnpackError> {
        let (above, own) = item.place();
        let mut names = vec![OsString::from(above), OsString::from(own)];
        names.extend(below.iter().cloned());
        let Some(name) = names.pop() else { return Ok(()) };
        self.enter(names).map_err(io_failure("open the directory of", entry))?;
        let Some((_, parent)) = &self.parent else { return Ok(()) };
        let owner = entry.owner.filter(|_| self.root);
        match &entry.kind {
            ArchiveEntryKind::Directory => {
                let dir =
                    make_directory(parent.as_fd(), &name).map_err(io_failure("make", entry))?;
                let mode = entry.mode & RIGHTS | OWN_DIRECTORY;
                give(&dir, owner, mode).map_err(io_failure("set owner and mode of", entry))
            }
            ArchiveEntryKind::Symlink(target) => {
                let target = target.as_slice();
                rustix::fs::symlinkat(target, parent, &name).map_err(io_failure("make", entry))?;
                let Some((uid, gid)) = owner else { return Ok(()) };
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(parent, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(io_failure("set the owner of", entry))
            }
            ArchiveEntryKind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let (flags, mode) = (flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600));
                let file = rustix::fs::openat(parent, &name, flags, mode);
                let file = File::from(file.map_err(io_failure("make", entry))?);
                self.fill(archive, entry, &file)?;
                give(&file, owner, entry.mode & RIGHTS)
                    .and_then(|()| set_time(&file, entry.changed))
                    .map_err(io_failure("set owner, mode and time of", entry))
            }
            // Such entries are left out before.
            ArchiveEntryKind::HardLink(_) | ArchiveEntryKind::Other(_) => Ok(()),
        }
    }

    /// Open the directory of these names, each in the one before, never through a link. The
    /// first two directories are made where they are missing, because not all archives have
    /// entries for them.
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

    /// Write the content of a file. Pages of zeros are not written, because files of databases
    /// are mostly holes.
    fn fill(
        &mut self,
        archive: &mut ArchiveReader<impl Read>,
        entry: &ArchiveEntry,
        mut file: &File,
    ) -> Result<(), DiskUnpackError> {
        let unwritten =
            |source| DiskUnpackError::Io { action: "write", name: name_of(entry), source };
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
                    return Err(DiskUnpackError::TooLarge { bytes: bounds.bytes });
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
        // This sets the length of a file that ends with zeros.
        file.set_len(entry.size).map_err(unwritten)
    }
}

/// Fill a piece from the present entry. Only the last piece of an entry is not full.
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

/// Make a directory unless it is there, and open it.
fn make_directory(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(OWN_DIRECTORY)) {
        Ok(()) | Err(Errno::EXIST) => open_directory(at, name),
        Err(error) => Err(error),
    }
}

/// Set owner and mode. The owner comes first, because a change of the owner may change the mode.
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

fn io_failure(action: &'static str, entry: &ArchiveEntry) -> impl FnOnce(Errno) -> DiskUnpackError {
    let name = name_of(entry);
    move |error| DiskUnpackError::Io { action, name, source: error.into() }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
