//! The files of one stream: `<task>.stdout.N` in the allocation's log directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use ostler_model::ids::TaskName;

/// Highest index a file may have: a name beyond it is not ours, and planted names cannot overflow.
pub(super) const INDEX_MAX: u64 = 999_999_999;
/// Most entries of a log directory looked at.
const ENTRIES_MAX: usize = 100_000;

/// Which stream of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl StreamKind {
    /// `stdout` or `stderr`.
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
    /// A file cannot be opened or made.
    #[error("log file {name} cannot be opened")]
    Open {
        /// Its name in the log directory.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Every index up to the largest is taken.
    #[error("log files of {prefix} have reached the highest index; remove old ones")]
    IndexExhausted {
        /// Name without the index.
        prefix: String,
    },
}

/// The files of one stream, by index. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct LogFiles {
    dir: Arc<Dir>,
    prefix: String,
}

impl LogFiles {
    pub(super) fn new(dir: &Dir, task: &TaskName, kind: StreamKind) -> Result<Self, LogError> {
        let dir = dir.try_clone().map_err(LogError::Directory)?;
        Ok(Self::within(Arc::new(dir), task, kind))
    }

    /// The same in a directory that is open already: streams of one task share it.
    pub(super) fn within(dir: Arc<Dir>, task: &TaskName, kind: StreamKind) -> Self {
        Self { dir, prefix: format!("{task}.{}.", kind.name()) }
    }

    /// The files `<prefix>N` of a directory handed over by another process.
    pub(super) fn handed_over(dir: OwnedFd, prefix: String) -> Self {
        Self { dir: Arc::new(Dir::from_std_file(File::from(dir))), prefix }
    }

    /// The directory, for another process; and the prefix.
    pub(super) fn hand_over(&self) -> io::Result<(OwnedFd, String)> {
        Ok((OwnedFd::from(self.dir.try_clone()?.into_std_file()), self.prefix.clone()))
    }

    /// The directory.
    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Bytes of the plain file of this index; `None` when there is none.
    pub(super) fn size(&self, index: u64) -> Option<u64> {
        let stat = statat(self.dir.as_fd(), self.name(index), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        plain.then(|| u64::try_from(stat.st_size).unwrap_or(0))
    }

    pub(super) fn name(&self, index: u64) -> String {
        format!("{}{index}", self.prefix)
    }

    /// Indices of the names that are there, lowest first, whatever is behind the names.
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

    /// Open for reading; `None` when there is no plain file of this index.
    pub(super) fn read(&self, index: u64) -> Result<Option<File>, LogError> {
        self.plain(index, OFlags::RDONLY)
    }

    /// Open to go on writing; `None` when it is not a plain file, or has another name somewhere.
    pub(super) fn append(&self, index: u64) -> Result<Option<File>, LogError> {
        let file = self.plain(index, OFlags::RDWR | OFlags::APPEND)?;
        Ok(file.filter(|file| {
            // A hard link of the task's making could lead anywhere.
            fstat(file.as_fd()).is_ok_and(|stat| {
                stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw()
            })
        }))
    }

    fn plain(&self, index: u64, flags: OFlags) -> Result<Option<File>, LogError> {
        // Non-blocking, because the name may be a planted FIFO.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = openat(self.dir.as_fd(), self.name(index), flags, Mode::empty());
        match opened {
            Ok(fd) => Ok(is_plain(&fd).then(|| File::from(fd))),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => Ok(None),
            Err(errno) => Err(self.refused(index, errno)),
        }
    }

    /// Make the file of this index, removing whatever link or file was planted under its name.
    /// `None` when the name is taken by what cannot be removed.
    pub(super) fn create(&self, index: u64) -> Result<Option<File>, LogError> {
        for _ in 0..2 {
            match self.create_new(index)? {
                Some(file) => return Ok(Some(file)),
                None => self.remove(index),
            }
        }
        Ok(None)
    }

    /// Make the file of this index; `None` when the name is taken.
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
            Err(errno) => Err(self.refused(index, errno)),
        }
    }

    /// Remove the name; a link goes, not what it points to. What cannot be removed stays.
    pub(super) fn remove(&self, index: u64) {
        let removed = unlinkat(self.dir.as_fd(), self.name(index), AtFlags::empty());
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::debug!(name = self.name(index), %errno, "a log file cannot be removed");
        }
    }

    pub(super) fn exhausted(&self) -> LogError {
        LogError::IndexExhausted { prefix: self.prefix.clone() }
    }

    fn refused(&self, index: u64, errno: Errno) -> LogError {
        LogError::Open { name: self.name(index), source: errno.into() }
    }
}

fn is_plain(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Plain decimal without leading zeros: each index has one name.
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
