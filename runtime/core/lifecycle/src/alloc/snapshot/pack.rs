//! Makes the archive of an allocation that has ended. Blocks on the disk and on the receiver
//! of the bytes.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::error_entry;
use crate::alloc::dir::at::{DIRECTORY_FLAGS, is_dots, open_same_mount};
use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::alloc::migrate::MovedDir;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{MOVED_DEPTH_MAX, MOVED_ENTRIES_MAX, MOVED_PATH_BYTES_MAX};

/// Why an archive was not made as a whole.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The allocation's directory cannot be opened.
    #[error(transparent)]
    Dir(#[from] AllocDirError),
    /// Something in the directory cannot be read. The receiver of the archive is told.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Path of the file or directory, below the allocation's directory.
        path: PathBuf,
        /// The error of the system, or what else is wrong.
        source: io::Error,
    },
    /// The receiver takes no more bytes.
    #[error("its receiver is gone: {0}")]
    Untaken(#[source] io::Error),
}

/// Counts of what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedDisk {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// Send `alloc/data` and the `local` directory of each of these tasks. What is no file, directory or
/// symbolic link is left out.
///
/// # Errors
/// See [`PackError`]. The receiver can see by the archive that it is not whole.
pub fn pack(
    root: &Path,
    alloc: AllocId,
    tasks: &[TaskName],
    out: impl Write,
) -> Result<PackedDisk, PackError> {
    let dir = AllocDir::open(root, alloc)?;
    let mut packing = ArchivePacker { out: Builder::new(out), packed: PackedDisk::default() };
    // Headers are made in this module, so that `tar` opens nothing by name.
    let items = std::iter::once(MovedDir::Data).chain(tasks.iter().cloned().map(MovedDir::Local));
    for item in items {
        match packing.item(&dir, &item) {
            Ok(()) => {}
            Err(error @ PackError::Untaken(_)) => return Err(error),
            Err(error) => {
                packing.tell(alloc, &error).map_err(PackError::Untaken)?;
                return Err(error);
            }
        }
    }
    packing.out.finish().map_err(PackError::Untaken)?;
    packing.out.get_mut().flush().map_err(PackError::Untaken)?;
    Ok(packing.packed)
}

struct ArchivePacker<W: Write> {
    out: Builder<W>,
    packed: PackedDisk,
}

/// A directory that is being sent.
struct PackLevel {
    dir: OwnedFd,
    entries: Dir,
    path: PathBuf,
}

impl<W: Write> ArchivePacker<W> {
    /// Send the entry that says why the rest is missing.
    fn tell(&mut self, alloc: AllocId, error: &PackError) -> io::Result<()> {
        let text = error.to_string();
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
        self.out.append_data(&mut header, error_entry(alloc), text.as_bytes())?;
        self.out.finish()?;
        self.out.get_mut().flush()
    }

    fn item(&mut self, alloc: &AllocDir, item: &MovedDir) -> Result<(), PackError> {
        let (above, own) = item.place();
        let path = Path::new(above).join(own);
        let above = match open_same_mount(alloc.fd(), above, DIRECTORY_FLAGS) {
            // The task never came to be prepared.
            Err(Errno::NOENT) => return Ok(()),
            opened => opened.map_err(unreadable_error(&path))?,
        };
        let own: OsString = own.into();
        match open_same_mount(above.as_fd(), own.as_os_str(), DIRECTORY_FLAGS) {
            Err(Errno::NOENT) => Ok(()),
            opened => self.tree(opened.map_err(unreadable_error(&path))?, path),
        }
    }

    /// Send a directory with everything below it.
    fn tree(&mut self, dir: OwnedFd, path: PathBuf) -> Result<(), PackError> {
        let mut levels = vec![self.enter(dir, path)?];
        while let Some(level) = levels.last_mut() {
            let Some(found) = level.entries.next() else {
                levels.pop();
                continue;
            };
            let found = found.map_err(unreadable_error(&level.path))?;
            let name = found.file_name();
            if is_dots(name) {
                continue;
            }
            let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
            if path.as_os_str().len() > MOVED_PATH_BYTES_MAX || levels.len() >= MOVED_DEPTH_MAX - 2
            {
                return Err(too_much(path, "it lies too deep"));
            }
            let Some(level) = levels.last() else { break };
            if let Some(below) = self.entry(level, name, &path)? {
                let below = self.enter(below, path)?;
                levels.push(below);
            }
        }
        Ok(())
    }

    fn enter(&mut self, dir: OwnedFd, path: PathBuf) -> Result<PackLevel, PackError> {
        let stat = rustix::fs::fstat(&dir).map_err(unreadable_error(&path))?;
        let mut header = header(&stat, EntryType::Directory, 0);
        self.append(&mut header, &path, io::empty())?;
        let entries = Dir::read_from(&dir).map_err(unreadable_error(&path))?;
        Ok(PackLevel { dir, entries, path })
    }

    /// Send one entry of a directory. A directory is not sent but returned, open.
    fn entry(
        &mut self,
        level: &PackLevel,
        name: &CStr,
        path: &Path,
    ) -> Result<Option<OwnedFd>, PackError> {
        let stat = rustix::fs::statat(&level.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(unreadable_error(path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let below = open_same_mount(level.dir.as_fd(), name, DIRECTORY_FLAGS);
                below.map(Some).map_err(unreadable_error(path))
            }
            FileType::RegularFile => {
                // A pipe in its place would block the open. The open file is looked at again.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(&level.dir, name, flags, Mode::empty())
                    .map_err(unreadable_error(path))?;
                self.file(file.into(), path).map(|()| None)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&level.dir, name, Vec::new())
                    .map_err(unreadable_error(path))?;
                let mut header = header(&stat, EntryType::Symlink, 0);
                self.count(path)?;
                let target = OsStr::from_bytes(target.to_bytes());
                self.out.append_link(&mut header, path, target).map_err(PackError::Untaken)?;
                Ok(None)
            }
            what => {
                tracing::debug!(path = %path.display(), ?what, "not sent to another node");
                Ok(None)
            }
        }
    }

    fn file(&mut self, file: File, path: &Path) -> Result<(), PackError> {
        let stat = rustix::fs::fstat(&file).map_err(unreadable_error(path))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(too_much(path.to_owned(), "it is no longer a file"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let mut header = header(&stat, EntryType::Regular, size);
        let mut whole = ExactReader { file, left: size, trouble: None };
        self.append(&mut header, path, &mut whole)?;
        self.packed.bytes = self.packed.bytes.saturating_add(size);
        match whole.trouble {
            None => Ok(()),
            Some(source) => Err(PackError::Unreadable { path: path.to_owned(), source }),
        }
    }

    fn append(
        &mut self,
        header: &mut Header,
        path: &Path,
        data: impl Read,
    ) -> Result<(), PackError> {
        self.count(path)?;
        self.out.append_data(header, path, data).map_err(PackError::Untaken)
    }

    fn count(&mut self, path: &Path) -> Result<(), PackError> {
        if self.packed.entries >= MOVED_ENTRIES_MAX {
            return Err(too_much(path.to_owned(), "there are too many files"));
        }
        self.packed.entries = self.packed.entries.saturating_add(1);
        Ok(())
    }
}

fn too_much(path: PathBuf, why: &'static str) -> PackError {
    PackError::Unreadable { path, source: io::Error::other(why) }
}

fn unreadable_error(path: &Path) -> impl FnOnce(Errno) -> PackError {
    let path = path.to_owned();
    move |error| PackError::Unreadable { path, source: error.into() }
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_size(size);
    header
}

/// Reads exactly as many bytes of a file as its header says. Bytes that cannot be read become
/// zeros, so that the entry can follow which says that the archive is not whole.
struct ExactReader {
    file: File,
    left: u64,
    trouble: Option<io::Error>,
}

impl Read for ExactReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let into = into.get_mut(..most).unwrap_or_default();
        if into.is_empty() {
            return Ok(0);
        }
        let read = match &self.trouble {
            None => self.file.read(into),
            Some(_) => Ok(0),
        };
        let count = match read {
            Ok(0) => {
                into.fill(0);
                self.trouble
                    .get_or_insert_with(|| io::Error::other("it became shorter while it was sent"));
                into.len()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                into.fill(0);
                self.trouble = Some(error);
                into.len()
            }
            Ok(count) => count,
        };
        self.left = self.left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }
}

#[cfg(test)]
#[path = "pack_tests.rs"]
mod tests;
