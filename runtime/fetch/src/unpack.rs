//! An archive of a stranger becomes a tree below a directory that is empty. Blocks on the disk.
//!
//! Nothing of it leads out: names lead down, each directory is opened in the one above and never through a
//! link, links stay inside, devices and pipes are refused, rights are who may read, write and execute. What
//! it becomes is bounded in bytes, entries and depth. Of two entries of one name the later one counts.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use ostler_lifecycle::alloc::snapshot::{ArchiveEntryKind, ArchiveError, ArchiveReader};
use ostler_model::artifact::{ArchiveKind, Packing};
use ostler_model::limits::MIB;
use ostler_model::links::stays_inside;
use ostler_model::shown::shown;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::decompress::unpacked;
use crate::inside::{BadName, names, of_part};
use crate::order::ONE;

/// Read at once.
const PIECE: usize = 64 * 1_024;
/// What stays of a mode.
const RIGHTS: u32 = 0o777;
/// Longest target of a link, bytes; the kernel's.
const TARGET_BYTES_MAX: u64 = 4_096;
/// Bytes of a tar archive beside its files, for each entry.
const TAR_HEADERS: u64 = 16 * 1_024;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What is taken at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: u64,
    /// So many because its allocation may hold no more.
    pub(crate) of_alloc: bool,
    pub(crate) entries: u64,
}

/// What is to become of it.
#[derive(Clone, Debug)]
pub(crate) struct What {
    pub(crate) kind: ArchiveKind,
    /// Only this part.
    pub(crate) part: Option<Vec<String>>,
    /// The one file in it.
    pub(crate) one_file: bool,
}

/// Why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    #[error("it is no {kind} archive that can be read: {reason}")]
    Archive { kind: ArchiveKind, reason: String },
    #[error("its entry {name:?} {why}")]
    Name { name: String, why: BadName },
    #[error("its entry {name:?} is {what}, which is not unpacked")]
    Kind { name: String, what: &'static str },
    #[error("its link {name:?} leads out of it")]
    Link { name: String },
    #[error(
        "it becomes more than {bytes} bytes; client {{ artifact {{ decompression_size_limit }} }} of the agent's configuration allows more"
    )]
    TooLarge { bytes: u64 },
    #[error(
        "it becomes more than the {bytes} bytes that the allocation's ephemeral_disk.size leaves; a larger size allows more"
    )]
    NoRoom { bytes: u64 },
    #[error(
        "it has more than {entries} entries; client {{ artifact {{ decompression_file_count_limit }} }} of the agent's configuration allows more"
    )]
    TooMany { entries: u64 },
    #[error("it has nothing called {part:?}")]
    NoPart { part: String },
    #[error("mode = \"file\" needs an archive with one file; it has {0}")]
    NotOne(&'static str),
    #[error("it is empty")]
    Empty,
    #[error("cannot {action} {name:?}: {source}")]
    Io { action: &'static str, name: String, source: io::Error },
}

impl UnpackError {
    /// Of the node, not of the archive.
    pub(crate) const fn passing(&self) -> bool {
        matches!(self, Self::Io { .. })
    }
}

fn text(name: &[u8]) -> String {
    shown(String::from_utf8_lossy(name), 256)
}

/// Unpack `from` below `top`; how many bytes it became. `told` hears of them as they come.
pub(crate) fn unpack(
    top: OwnedFd,
    from: impl Read + Seek,
    what: &What,
    bounds: Bounds,
    told: &mut dyn FnMut(u64),
) -> Result<u64, UnpackError> {
    let mut tree = Tree { top, what, bounds, told, bytes: 0, entries: 0, files: 0, found: false };
    match what.kind {
        ArchiveKind::Tar(packing) => tree.tar(from, packing)?,
        ArchiveKind::Zip => tree.zip(from)?,
        ArchiveKind::File(packing) => tree.packed(from, packing)?,
    }
    match &what.part {
        Some(part) if !tree.found => Err(UnpackError::NoPart { part: part.join("/") }),
        None if !tree.found => Err(UnpackError::Empty),
        _ if what.one_file && tree.files == 0 => Err(UnpackError::NotOne("none")),
        _ => Ok(tree.bytes),
    }
}

/// An entry, of whatever archive.
struct Entry<'a> {
    path: &'a [u8],
    kind: ArchiveEntryKind,
    mode: u32,
    changed: Option<u64>,
}

struct Tree<'a> {
    top: OwnedFd,
    what: &'a What,
    bounds: Bounds,
    told: &'a mut dyn FnMut(u64),
    bytes: u64,
    entries: u64,
    files: u64,
    /// Something of what is meant was there.
    found: bool,
}

/// Reads no more than so many bytes: what is packed is not read to its end when it is too much.
struct Bounded<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
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

impl Tree<'_> {
    fn wrong(&self, error: impl ToString) -> UnpackError {
        let reason = shown(error.to_string(), 512);
        UnpackError::Archive { kind: self.what.kind, reason }
    }

    const fn too_large(&self) -> UnpackError {
        let bytes = self.bounds.bytes;
        match self.bounds.of_alloc {
            true => UnpackError::NoRoom { bytes },
            false => UnpackError::TooLarge { bytes },
        }
    }

    /// What went wrong while bytes of the archive were read.
    fn unread(&self, error: &io::Error) -> UnpackError {
        match error.kind() {
            io::ErrorKind::FileTooLarge => self.too_large(),
            _ => self.wrong(error),
        }
    }

    fn tar(&mut self, from: impl Read, packing: Packing) -> Result<(), UnpackError> {
        let from = unpacked(from, packing).map_err(|error| self.unread(&error))?;
        // Its headers count too: an archive of nothing but them would never end.
        let headers = self.bounds.entries.saturating_mul(TAR_HEADERS).saturating_add(MIB);
        let left = self.bounds.bytes.saturating_add(headers);
        let mut archive = ArchiveReader::new(Bounded { from, left });
        loop {
            let next = archive.next_entry().map_err(|error| self.of_tar(error))?;
            let Some(entry) = next else { return Ok(()) };
            let one = Entry {
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
            self.entry(&one, &mut read)?;
        }
    }

    fn of_tar(&self, error: ArchiveError) -> UnpackError {
        match error {
            ArchiveError::Read(error) => self.unread(&error),
            other => self.wrong(other),
        }
    }

    fn zip(&mut self, from: impl Read + Seek) -> Result<(), UnpackError> {
        let mut archive = zip::ZipArchive::new(from).map_err(|error| self.wrong(error))?;
        if archive.len() as u64 > self.bounds.entries {
            return Err(UnpackError::TooMany { entries: self.bounds.entries });
        }
        for index in 0..archive.len() {
            let mut file = archive.by_index(index).map_err(|error| self.wrong(error))?;
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
                    all.read_to_end(&mut target).map_err(|error| self.wrong(error))?;
                    kind = ArchiveEntryKind::Symlink(target);
                }
                Some(_) => kind = ArchiveEntryKind::Other("a device or a pipe"),
            }
            // One that does not say rights is perhaps a program.
            let mode = mode.filter(|mode| mode & RIGHTS != 0).unwrap_or(0o755);
            let one = Entry { path: &path, kind, mode, changed: None };
            self.entry(&one, &mut |into| file.read(into))?;
        }
        Ok(())
    }

    /// One packed file.
    fn packed(&mut self, from: impl Read, packing: Packing) -> Result<(), UnpackError> {
        let mut from = unpacked(from, packing).map_err(|error| self.unread(&error))?;
        let entry = Entry {
            path: ONE.as_bytes(),
            kind: ArchiveEntryKind::File,
            mode: 0o755,
            changed: None,
        };
        self.entry(&entry, &mut |into| from.read(into))
    }

    fn entry(
        &mut self,
        entry: &Entry<'_>,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), UnpackError> {
        self.entries = self.entries.saturating_add(1);
        if self.entries > self.bounds.entries {
            return Err(UnpackError::TooMany { entries: self.bounds.entries });
        }
        let bad = |why| UnpackError::Name { name: text(entry.path), why };
        let full = names(entry.path).map_err(bad)?;
        let part = self.what.part.as_deref().unwrap_or_default();
        let Some(mut names) = of_part(full.clone(), part) else { return Ok(()) };
        self.found |= !full.is_empty();
        if names.is_empty() {
            match (&entry.kind, part.last()) {
                (ArchiveEntryKind::Directory, _) => return Ok(()),
                // The part is a file.
                (_, Some(name)) => names = vec![name.as_bytes().to_vec()],
                (_, None) => return Err(bad(BadName::NoPath)),
            }
        }
        if self.what.one_file {
            match entry.kind {
                ArchiveEntryKind::Directory => return Ok(()),
                ArchiveEntryKind::File if self.files == 0 => names = vec![ONE.as_bytes().to_vec()],
                ArchiveEntryKind::File => return Err(UnpackError::NotOne("several")),
                _ => return Err(UnpackError::NotOne("something else")),
            }
        }
        self.make(entry, &names, read)
    }

    fn make(
        &mut self,
        entry: &Entry<'_>,
        names: &[Vec<u8>],
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), UnpackError> {
        let failed = |action| {
            move |error: Errno| UnpackError::Io {
                action,
                name: text(entry.path),
                source: error.into(),
            }
        };
        let Some((name, above)) = names.split_last() else { return Ok(()) };
        let parent = self.enter(above).map_err(failed("make the directory of"))?;
        let name = OsStr::from_bytes(name);
        match &entry.kind {
            ArchiveEntryKind::Directory => {
                let dir = directory(parent.as_fd(), name).map_err(failed("make"))?;
                let mode = Mode::from_raw_mode(entry.mode & RIGHTS | 0o700);
                rustix::fs::fchmod(dir, mode).map_err(failed("set the mode of"))
            }
            ArchiveEntryKind::Symlink(target) => {
                if !stays_inside(names.len(), target) {
                    return Err(UnpackError::Link { name: text(entry.path) });
                }
                cleared(parent.as_fd(), name).map_err(failed("replace"))?;
                rustix::fs::symlinkat(target.as_slice(), parent, name).map_err(failed("make"))
            }
            ArchiveEntryKind::HardLink(target) => {
                let bad = |why| UnpackError::Name { name: text(target), why };
                let at = crate::inside::names(target).map_err(bad)?;
                let out = || UnpackError::Link { name: text(entry.path) };
                let wanted = self.what.part.as_deref().unwrap_or_default();
                let at = of_part(at, wanted).ok_or_else(out)?;
                let (last, above) = at.split_last().ok_or_else(out)?;
                let from = self.opened(above).map_err(failed("find what is linked by"))?;
                cleared(parent.as_fd(), name).map_err(failed("replace"))?;
                let last = OsStr::from_bytes(last);
                let flags = AtFlags::empty();
                rustix::fs::linkat(from, last, parent, name, flags).map_err(failed("make"))
            }
            ArchiveEntryKind::File => self.file(entry, parent.as_fd(), name, read),
            ArchiveEntryKind::Other(what) => {
                Err(UnpackError::Kind { name: text(entry.path), what })
            }
        }
    }

    fn file(
        &mut self,
        entry: &Entry<'_>,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), UnpackError> {
        let io = |action| {
            move |source: io::Error| UnpackError::Io { action, name: text(entry.path), source }
        };
        cleared(parent, name).map_err(io::Error::from).map_err(io("replace"))?;
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
                Err(error) => return Err(self.unread(&error)),
            };
            self.bytes = self.bytes.saturating_add(count as u64);
            if self.bytes > self.bounds.bytes {
                return Err(self.too_large());
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

    /// Open the directory of these names, made where it is not there.
    fn enter(&self, names: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let top = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)?;
        names.iter().try_fold(top, |dir, name| directory(dir.as_fd(), OsStr::from_bytes(name)))
    }

    fn opened(&self, names: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let top = rustix::io::fcntl_dupfd_cloexec(&self.top, 0)?;
        names.iter().try_fold(top, |dir, name| {
            rustix::fs::openat(dir, OsStr::from_bytes(name), DIRECTORY, Mode::empty())
        })
    }
}

/// Made, or there already.
fn directory(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    rustix::fs::openat(at, name, DIRECTORY, Mode::empty())
}

/// Nothing but a directory is in the place any more.
fn cleared(at: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
