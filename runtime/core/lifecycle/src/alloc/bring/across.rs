//! Moves a file from one file system to another by a copy, because `secrets` may be a file
//! system in memory.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::give;
use ostler_model::ports::FileOwner;

/// The name of a file until it is whole.
const UNFINISHED: &str = ".ostler-unfinished";

/// Copy one file or link into another directory. The copy atomically replaces a file or a link of
/// the new name.
///
/// # Errors
/// When it is neither file nor link, or the file system is full. Nothing new is there then.
pub(super) fn copy(
    from: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    new_name: &OsStr,
    owner: Option<FileOwner>,
) -> Result<(), Errno> {
    // An agent that was killed may have left such a file.
    match rustix::fs::unlinkat(to, UNFINISHED, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let written = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => write(from, name, to, Mode::from_raw_mode(stat.st_mode & 0o777)),
        FileType::Symlink => {
            let goal = rustix::fs::readlinkat(from, name, Vec::new())?;
            rustix::fs::symlinkat(goal, to, UNFINISHED)
        }
        _ => Err(Errno::INVAL),
    };
    let placed = written
        .and_then(|()| give(to, OsStr::new(UNFINISHED), owner))
        .and_then(|()| rustix::fs::renameat(to, UNFINISHED, to, new_name));
    if placed.is_err() {
        let _none = rustix::fs::unlinkat(to, UNFINISHED, AtFlags::empty());
    }
    placed
}

fn write(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(to, UNFINISHED, flags, Mode::from_raw_mode(0o600))?;
    let mut target = File::from(target);
    io::copy(&mut File::from(source), &mut target)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    rustix::fs::fchmod(&target, mode)
}
