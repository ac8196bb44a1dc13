//! Unpacks the archive of a stranger into a tree below an empty directory. Blocks on the disk.
//!
//! Nothing leads out of the tree: names lead down, each directory is opened in the one above and
//! never through a link, links stay inside, devices and pipes are refused, and only the permission
//! bits of a mode are kept. The size of the tree is bounded in bytes, entries and depth. Of two
//! entries with one name, the later one counts.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use ostler_lifecycle::alloc::snapshot::{ArchiveEntryKind, ArchiveError, ArchiveReader};
use ostler_model::artifact::{ArchiveCompression, ArchiveKind};
use ostler_model::limits::MIB;
use ostler_model::links::stays_inside;
use ostler_model::printable::printable_line;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::decompress::decompress;
use crate::inside::{EntryNameError, split_path, strip_part};
use crate::order::ONE;

/// The number of bytes read at once.
const PIECE: usize = 64 * 1_024;
/// The bits of a mode that are kept.
const RIGHTS: u32 = 0o777;
/// The longest target of a link in bytes, which is the kernel's limit.
const TARGET_BYTES_MAX: u64 = 4_096;
/// The number of bytes of a tar archive beside its files, for each entry.
const TAR_HEADERS: u64 = 16 * 1_024;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The limits of unpacking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnpackLimits {
    pub(crate) bytes: u64,
    /// Whether `bytes` is the rest of what the allocation may hold.
    pub(crate) of_alloc: bool,
    pub(crate) entries: u64,
}

/// The way in which an archive is unpacked.
#[derive(Clone, Debug)]
pub(crate) struct UnpackOptions {
    pub(crate) kind: ArchiveKind,
    /// The only part that is wanted; `None` means all of it.
    pub(crate) part: Option<Vec<String>>,
    /// Whether the one file in the archive is wanted.
    pub(crate) one_file: bool,
}

/// Why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveUnpackError {
    #[error("it is not a readable {kind} archive: {reason}")]
    Archive { kind: ArchiveKind, reason: String },
    #[error("its entry {name:?} {why}")]
    Name { name: String, why: EntryNameError },
    #[error("its entry {name:?} is {what}, which is not unpacked")]
    Kind { name: String, what: &'static str },
    #[error("its link {name:?} leads out of it")]
    Link { name: String },
    #[error(
        "it unpacks to more than {bytes} bytes; client {{ artifact {{ decompression_size_limit }} }} of the \
         agent's configuration allows more"
    )]
    TooLarge { bytes: u64 },
    #[error(
        "it unpacks to more than the {bytes} bytes that the allocation's ephemeral_disk.size leaves; a larger \
         size allows more"
    )]
    NoRoom { bytes: u64 },
    #[error(
        "it has more than {entries} entries; client {{ artifact {{ decompression_file_count_limit }} }} of the agent's configuration allows more"
    )]
    TooMany { entries: u64 },
    #[error("it has no entry named {part:?}")]
    NoPart { part: String },
    #[error("mode = \"file\" needs an archive with one file; it has {0}")]
    NotOne(&'static str),
    #[error("it is empty")]
    Empty,
    #[error("cannot {action} {name:?}: {source}")]
    Io { action: &'static str, name: String, source: io::Error },
}

impl ArchiveUnpackError {
    /// Whether the error is the node's and not the archive's.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Io { .. })
    }
}

fn name_text(name: &[u8]) -> String {
    printable_line(String::from_utf8_lossy(name), 256)
}

/// Unpack `from` below `top`. Returns the number of bytes of the tree. `told` is called with the
/// number so far.
pub(crate) fn unpack(
    top: OwnedFd,
    from: impl Read + Seek,
    what: &UnpackOptions,
    bounds: UnpackLimits,
    told: &mut dyn FnMut(u64),
) -> Result<u64, ArchiveUnpackError> {
    let mut tree =
        UnpackTree { top, what, bounds, told, bytes: 0, entries: 0, files: 0, found: false };
    match what.kind {
        ArchiveKind::Tar(packing) => tree.unpack_tar(from, packing)?,
        ArchiveKind::Zip => tree.unpack_zip(from)?,
        ArchiveKind::File(packing) => tree.unpack_single(from, packing)?,
    }
    match &what.part {
        Some(part) if !tree.found => Err(ArchiveUnpackError::NoPart { part: part.join("/") }),
        None if !tree.found => Err(ArchiveUnpackError::Empty),
        _ if what.one_file && tree.files == 0 => Err(ArchiveUnpackError::NotOne("none")),
        _ => Ok(tree.bytes),
    }
}

/// An entry of an archive of any format.
struct UnpackEntry<'a> {
    path: &'a [u8],
    kind: ArchiveEntryKind,
    mode: u32,
    changed: Option<u64>,
}

struct UnpackTree<'a> {
    top: OwnedFd,
    what: &'a UnpackOptions,
    bounds: UnpackLimits,
    told: &'a mut dyn FnMut(u64),
    bytes: u64,
    entries: u64,
    files: u64,
    /// Whether something of the wanted part was there.
    found: bool,
}

/// A reader of a limited number of bytes, so that an archive that is too large is not read to
/// its end.
struct BoundedReader<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        if most == 0 && !into.is_empty() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = self.from.read(into.get_mut(..most).unwrap_or_default())?;
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

impl UnpackTree<'_> {
    fn archive_error(&self, error: impl ToString) -> ArchiveUnpackError {
        let reason = printable_line(error.to_string(), 512);
        ArchiveUnpackError::Archive { kind: self.what.kind, reason }
    }

    const fn too_large_error(&self) -> ArchiveUnpackError {
        let bytes = self.bounds.bytes;
        if self.bounds.of_alloc {
            ArchiveUnpackError::NoRoom { bytes }
        } else {
            ArchiveUnpackError::TooLarge { bytes }
        }
    }

    /// The error of reading bytes of the archive.
    fn read_error(&self, error: &io::Error) -> ArchiveUnpackError {
        match error.kind() {
            io::ErrorKind::FileTooLarge => self.too_large_error(),
            _ => self.archive_error(error),
        }
    }

    fn unpack_tar(
        &mut self,
        from: impl Read,
        packing: ArchiveCompression,
    ) -> Result<(), ArchiveUnpackError> {
        let from = decompress(from, packing).map_err(|error| self.read_error(&error))?;
        // The headers count too, because an archive of nothing but headers would never end.
        let headers = self.bounds.entries.saturating_mul(TAR_HEADERS).saturating_add(MIB);
        let left = self.bounds.bytes.saturating_add(headers);
        let mut archive = ArchiveReader::new(BoundedReader { from, left });
        loop {
            let next = archive.next_entry().map_err(|error| self.tar_error(error))?;
            let Some(entry) = next else { return Ok(()) };
            let one = UnpackEntry {
                path: &entry.path,
                kind: entry.kind,
                mode: entry.mode,
                changed: Some(entry.changed),
            };
            let mut read = |into: &mut [u8]| match archive.read(into) {
                Ok(count) => Ok(count),
                Err(ArchiveError::Read(error)) => Err(error),
                Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            };
            self.unpack_entry(&one, &mut read)?;
        }
    }

    fn tar_error(&self, error: ArchiveError) -> ArchiveUnpackError {
        match error {
            ArchiveError::Read(error) => self.read_error(&error),
            other => self.archive_error(other),
        }
    }

    fn unpack_zip(&mut self, from: impl Read + Seek) -> Result<(), ArchiveUnpackError> {
        let mut archive = zip::ZipArchive::new(from).map_err(|error| self.archive_error(error))?;
        if archive.len() as u64 > self.bounds.entries {
            return Err(ArchiveUnpackError::TooMany { entries: self.bounds.entries });
        }
        for index in 0..archive.len() {
            let mut file = archive.by_index(index).map_err(|error| self.archive_error(error))?;
            let path = file.name_raw().to_vec();
            let mut kind = if file.is_dir() || path.ends_with(b"/") {
                ArchiveEntryKind::Directory
            } else {
                ArchiveEntryKind::File
            };
            let mode = file.unix_mode();
            match mode.map(|mode| mode & 0o170_000) {
                None | Some(0 | 0o100_000 | 0o040_000) => {}
                Some(0o120_000) => {
                    let mut target = Vec::new();
                    let mut all = (&mut file).take(TARGET_BYTES_MAX);
                    all.read_to_end(&mut target).map_err(|error| self.archive_error(error))?;
                    kind = ArchiveEntryKind::Symlink(target);
                }
                Some(_) => kind = ArchiveEntryKind::Other("a device or a pipe"),
            }
            // An entry without permission bits may be a program.
            let mode = mode.filter(|mode| mode & RIGHTS != 0).unwrap_or(0o755);
            let one = UnpackEntry { path: &path, kind, mode, changed: None };
            self.unpack_entry(&one, &mut |into| file.read(into))?;
        }
        Ok(())
    }

    /// Unpack a single compressed file.
    fn unpack_single(
        &mut self,
        from: impl Read,
        packing: ArchiveCompression,
    ) -> Result<(), ArchiveUnpackError> {
        let mut from = decompress(from, packing).map_err(|error| self.read_error(&error))?;
        let entry = UnpackEntry {
            path: ONE.as_bytes(),
            kind: ArchiveEntryKind::File,
            mode: 0o755,
            changed: None,
        };
        self.unpack_entry(&entry, &mut |into| from.read(into))
    }

    fn unpack_entry(
        &mut self,
        entry: &UnpackEntry<'_>,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), ArchiveUnpackError> {
        self.entries = self.entries.saturating_add(1);
        if self.entries > self.bounds.entries {
            return Err(ArchiveUnpackError::TooMany { entries: self.bounds.entries });
        }
        let bad = |why| ArchiveUnpackError::Name { name: name_text(entry.path), why };
        let full = split_path(entry.path).map_err(bad)?;
        let part = self.what.part.as_deref().unwrap_or_default();
        let Some(mut names) = strip_part(full.clone(), part) else { return Ok(()) };
        self.found |= !full.is_empty();
        if names.is_empty() {
            match (&entry.kind, part.last()) {
                (ArchiveEntryKind::Directory, _) => return Ok(()),
                // The wanted part is this file.
                (_, Some(name)) => names = vec![name.as_bytes().to_vec()],
                (_, None) => return Err(bad(EntryNameError::NoPath)),
            }
        }
        if self.what.one_file {
            match entry.kind {
                ArchiveEntryKind::Directory => return Ok(()),
                ArchiveEntryKind::File if self.files == 0 => names = vec![ONE.as_bytes().to_vec()],
                ArchiveEntryKind::File => return Err(ArchiveUnpackError::NotOne("several")),
                _ => return Err(ArchiveUnpackError::NotOne("something else")),
            }
        }
        self.make_entry(entry, &names, read)
    }

    fn make_entry(
        &mut self,
        entry: &UnpackEntry<'_>,
        names: &[Vec<u8>],
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), ArchiveUnpackError> {
        let failed = |action| {
            move |error: Errno| ArchiveUnpackError::Io {
                action,
                name: name_text(entry.path),
                source: error.into(),
            }
        };
        let Some((name, above)) = names.split_last() else { return Ok(()) };
        let parent = self.make_dirs(above).map_err(failed("make the directory of"))?;
        let name = OsStr::from_bytes(name);
        match &entry.kind {
            ArchiveEntryKind::Directory => {
                let dir = make_dir(parent.as_fd(), name).map_err(failed("make"))?;
                let mode = Mode::from_raw_mode(entry.mode & RIGHTS | 0o700);
                rustix::fs::fchmod(dir, mode).map_err(failed("set the mode of"))
            }
            ArchiveEntryKind::Symlink(target) => {
                if !stays_inside(names.len(), target) {
                    return Err(ArchiveUnpackError::Link { name: name_text(entry.path) });
                }
                clear_name(parent.as_fd(), name).map_err(failed("replace"))?;
                rustix::fs::symlinkat(target.as_slice(), parent, name).map_err(failed("make"))
            }
            ArchiveEntryKind::HardLink(target) => {
                let bad = |why| ArchiveUnpackError::Name { name: name_text(target), why };
                let at = crate::inside::split_path(target).map_err(bad)?;
                let out = || ArchiveUnpackError::Link { name: name_text(entry.path) };
                let wanted = self.what.part.as_deref().unwrap_or_default();
                let at = strip_part(at, wanted).ok_or_else(out)?;
                let (last, above) = at.split_last().ok_or_else(out)?;
                let from = self.open_dirs(above).map_err(failed("find what is linked by"))?;
                clear_name(parent.as_fd(), name).map_err(failed("replace"))?;
                let last = OsStr::from_bytes(last);
                let flags = AtFlags::empty();
                rustix::fs::linkat(from, last, parent, name, flags).map_err(failed("make"))
            }
            ArchiveEntryKind::File => self.make_file(entry, parent.as_fd(), name, read),
            ArchiveEntryKind::Other(what) => {
                Err(ArchiveUnpackError::Kind { name: name_text(entry.path), what })
            }
        }
    }

    fn make_file(
        &mut self,
        entry: &UnpackEntry<'_>,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), ArchiveUnpackError> {
        let io = |action| {
            move |source: io::Error| ArchiveUnpackError::Io {
                action,
                name: name_text(entry.path),
                source,
            }
        };
        clear_name(parent, name).map_err(io::Error::from).map_err(io("replace"))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file =
            rustix::fs::openat(parent, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
        let mut file = File::from(file.map_err(io::Error::from).map_err(io("make"))?);
        let mut piece = vec![0; PIECE];
        loop {
            let count = match read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.read_error(&error)),
            };
            self.bytes = self.bytes.saturating_add(count as u64);
            if self.bytes > self.bounds.bytes {
                return Err(self.too_large_error());
            }
            file.write_all(piece.get(..count).unwrap_or_default()).map_err(io("write"))?;
            (self.told)(self.bytes);
        }
        self.files = self.files.saturating_add(1);
        let mode = Mode::from_raw_mode(entry.mode & RIGHTS | 0o600);
        rustix::fs::fchmod(&file, mode).map_err(io::Error::from).map_err(io("set the mode of"))?;
        let Some(changed) = entry.changed else { return Ok(()) };
        let time = Timespec { tv_sec: i64::try_from(changed).unwrap_or_default(), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        // Some file systems have no such times.
        let _ = rustix::fs::futimens(&file, &times);
        Ok(())
    }

    /// Open the directory of these names, and create what is missing.
    fn make_dirs(&self, names: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let top = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)?;
        names.iter().try_fold(top, |dir, name| make_dir(dir.as_fd(), OsStr::from_bytes(name)))
    }

    fn open_dirs(&self, names: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let top = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)?;
        names.iter().try_fold(top, |dir, name| {
            rustix::fs::openat(dir, OsStr::from_bytes(name), DIRECTORY, Mode::empty())
        })
    }
}

/// Open a directory, and create it if it is missing.
fn make_dir(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    rustix::fs::openat(at, name, DIRECTORY, Mode::empty())
}

/// Remove whatever has the name, unless it is a directory.
fn clear_name(at: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
