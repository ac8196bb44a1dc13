//! The files of one stream: `<task>.stdout.N` in the allocation's log directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use ostler_model::ids::TaskName;

/// The highest index that a file may have. A name beyond it is not ours, so planted names cannot
/// cause an overflow.
pub(super) const INDEX_MAX: u64 = 999_999_999;
/// The largest number of entries of a log directory that are examined.
const ENTRIES_MAX: usize = 100_000;

/// One of the two streams of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl StreamKind {
    /// The name of the stream in file names: `stdout` or `stderr`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Why log files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directory cannot be read.
    #[error("the log directory cannot be read")]
    Directory(#[source] io::Error),
    /// A file cannot be opened or created.
    #[error("log file {name} cannot be opened")]
    Open {
        /// The name of the file in the log directory.
        name: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Every index up to the largest is taken.
    #[error("log files of {prefix} have reached the highest index; remove old ones")]
    IndexExhausted {
        /// The file name without the index.
        prefix: String,
    },
}

/// The files of one stream, by index. Clones are cheap.
#[derive(Clone, Debug)]
pub(super) struct LogFiles {
    dir: Arc<Dir>,
    prefix: String,
}

impl LogFiles {
    pub(super) fn new(dir: &Dir, task: &TaskName, kind: StreamKind) -> Result<Self, LogError> {
        let dir = dir.try_clone().map_err(LogError::Directory)?;
        Ok(Self::in_dir(Arc::new(dir), task, kind))
    }

    /// The files of a stream in a directory that is open already. Streams of one task share it.
    pub(super) fn in_dir(dir: Arc<Dir>, task: &TaskName, kind: StreamKind) -> Self {
        Self { dir, prefix: format!("{task}.{}.", kind.name()) }
    }

    /// The files `<prefix>N` of a directory handed over by another process.
    pub(super) fn from_handed_dir(dir: OwnedFd, prefix: String) -> Self {
        Self { dir: Arc::new(Dir::from_std_file(File::from(dir))), prefix }
    }

    /// The directory and the prefix of the files, for another process.
    pub(super) fn hand_over(&self) -> io::Result<(OwnedFd, String)> {
        Ok((OwnedFd::from(self.dir.try_clone()?.into_std_file()), self.prefix.clone()))
    }

    /// The log directory of the files.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The size of the plain file of this index; `None` if there is none.
    pub(super) fn size(&self, index: u64) -> Option<u64> {
        let stat = statat(self.dir.as_fd(), self.name(index), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        plain.then(|| u64::try_from(stat.st_size).unwrap_or(0))
    }

    pub(super) fn name(&self, index: u64) -> String {
        format!("{}{index}", self.prefix)
    }

    /// The indices of the names that are there, lowest first, whatever is behind the names.
    pub(super) fn indices(&self) -> Result<Vec<u64>, LogError> {
        let mut indices = Vec::new();
        for entry in self.dir.entries().map_err(LogError::Directory)?.take(ENTRIES_MAX) {
            let name = entry.map_err(LogError::Directory)?.file_name();
            let index = name.to_str().and_then(|name| name.strip_prefix(&self.prefix));
            indices.extend(index.and_then(parse_index));
        }
        indices.sort_unstable();
        Ok(indices)
    }

    /// Open the file of this index for reading; `None` if there is no such plain file.
    pub(super) fn read(&self, index: u64) -> Result<Option<File>, LogError> {
        self.open_plain(index, OFlags::RDONLY)
    }

    /// Open the file of this index to go on writing; `None` if it is no plain file, or has another
    /// name somewhere.
    pub(super) fn append(&self, index: u64) -> Result<Option<File>, LogError> {
        let file = self.open_plain(index, OFlags::RDWR | OFlags::APPEND)?;
        Ok(file.filter(|file| {
            // A hard link that the task made could lead anywhere.
            fstat(file.as_fd()).is_ok_and(|stat| {
                stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw()
            })
        }))
    }

    fn open_plain(&self, index: u64, flags: OFlags) -> Result<Option<File>, LogError> {
        // The open is non-blocking, because the name may be a planted FIFO.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = openat(self.dir.as_fd(), self.name(index), flags, Mode::empty());
        match opened {
            Ok(fd) => Ok(is_plain(&fd).then(|| File::from(fd))),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => Ok(None),
            Err(errno) => Err(self.open_error(index, errno)),
        }
    }

    /// Create the file of this index, and remove any link or file that was planted under its name.
    /// Returns `None` if something under the name cannot be removed.
    pub(super) fn create(&self, index: u64) -> Result<Option<File>, LogError> {
        for _ in 0..2 {
            match self.create_new(index)? {
                Some(file) => return Ok(Some(file)),
                None => self.remove(index),
            }
        }
        Ok(None)
    }

    /// Create the file of this index; `None` if the name is taken.
    pub(super) fn create_new(&self, index: u64) -> Result<Option<File>, LogError> {
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        match openat(self.dir.as_fd(), self.name(index), flags, Mode::from_raw_mode(0o644)) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::EXIST) => Ok(None),
            Err(errno) => Err(self.open_error(index, errno)),
        }
    }

    /// Remove the name. A link is removed, but not what it points to. What cannot be removed stays.
    pub(super) fn remove(&self, index: u64) {
        let removed = unlinkat(self.dir.as_fd(), self.name(index), AtFlags::empty());
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::debug!(name = self.name(index), %errno, "a log file cannot be removed");
        }
    }

    pub(super) fn exhausted_error(&self) -> LogError {
        LogError::IndexExhausted { prefix: self.prefix.clone() }
    }

    fn open_error(&self, index: u64, errno: Errno) -> LogError {
        LogError::Open { name: self.name(index), source: errno.into() }
    }
}

fn is_plain(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Parse a plain decimal number without leading zeros, so that each index has one name.
fn parse_index(text: &str) -> Option<u64> {
    let canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    canonical.then(|| text.parse().ok()).flatten().filter(|index| *index <= INDEX_MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_numbers_within_bounds_are_indices() {
        assert_eq!(parse_index("0"), Some(0));
        assert_eq!(parse_index("12"), Some(12));
        for bad in ["", "01", "+1", "-1", "1.gz", "1000000000", "18446744073709551616"] {
            assert_eq!(parse_index(bad), None, "{bad}");
        }
    }
}
