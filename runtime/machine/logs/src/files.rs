//! The files of one stream: `<task>.stdout.N` in the allocation's log directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use cap_std::fs::Dir;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

use ostler_model::ids::TaskName;
use ostler_model::ports::LogDir;

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
    dir: LogDir,
    prefix: String,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The directory, opened now if it is not open.
///
/// # Errors
/// When it cannot be opened, or a link stands on the way to it.
pub fn open_log_dir(dir: &LogDir) -> io::Result<Arc<OwnedFd>> {
    match dir {
        LogDir::Open(dir) => Ok(Arc::clone(dir)),
        LogDir::Below { root, path } => Ok(Arc::new(open_below(root, path)?)),
    }
}

/// Open something below `root`, and follow no link on the way from there. `NOSYS` or `PERM`: the
/// kernel has no such call, or a sandbox does not know it.
fn open_within(root: &Path, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::open(root, DIRECTORY | OFlags::PATH, Mode::empty())?;
    openat2(&root, path, flags, mode, ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH)
}

/// Open a directory below `root`, and follow no link on the way from there.
fn open_below(root: &Path, path: &Path) -> Result<OwnedFd, Errno> {
    match open_within(root, path, DIRECTORY, Mode::empty()) {
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return opened,
    }
    let mut at = rustix::fs::open(root, DIRECTORY | OFlags::PATH, Mode::empty())?;
    for name in path {
        at = openat(&at, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(at)
}

impl LogFiles {
    pub(super) fn new(dir: &Dir, task: &TaskName, kind: StreamKind) -> Result<Self, LogError> {
        let dir = dir.try_clone().map_err(LogError::Directory)?;
        Ok(Self::in_dir(LogDir::Open(Arc::new(dir.into_std_file().into())), task, kind))
    }

    /// The files of a stream in this directory.
    pub(super) fn in_dir(dir: LogDir, task: &TaskName, kind: StreamKind) -> Self {
        Self { dir, prefix: format!("{task}.{}.", kind.name()) }
    }

    /// The files `<prefix>N` of a directory, of which another process told.
    pub(super) const fn from_handed_dir(dir: LogDir, prefix: String) -> Self {
        Self { dir, prefix }
    }

    /// The directory and the prefix of the files, for another process.
    pub(super) fn hand_over(&self) -> (LogDir, String) {
        (self.dir.clone(), self.prefix.clone())
    }

    /// The log directory of the files, which may have to be opened.
    pub(super) fn dir(&self) -> io::Result<Arc<OwnedFd>> {
        open_log_dir(&self.dir)
    }

    /// The size of the plain file of this index; `None` if there is none.
    pub(super) fn size(&self, index: u64) -> Option<u64> {
        let dir = self.dir().ok()?;
        let stat = statat(dir.as_fd(), self.name(index), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        plain.then(|| u64::try_from(stat.st_size).unwrap_or(0))
    }

    pub(super) fn name(&self, index: u64) -> String {
        format!("{}{index}", self.prefix)
    }

    /// The indices of the names that are there, lowest first, whatever is behind the names.
    pub(super) fn indices(&self) -> Result<Vec<u64>, LogError> {
        let failed = |errno: Errno| LogError::Directory(errno.into());
        let dir = self.dir().map_err(LogError::Directory)?;
        let mut indices = Vec::new();
        // The directory may be open as a place for names alone, which cannot be read.
        let readable = openat(dir.as_fd(), c".", DIRECTORY, Mode::empty()).map_err(failed)?;
        for entry in rustix::fs::Dir::new(readable).map_err(failed)?.take(ENTRIES_MAX) {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_str().ok();
            let index = name.and_then(|name| name.strip_prefix(&self.prefix));
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
        let dir = self.dir().map_err(LogError::Directory)?;
        let opened = openat(dir.as_fd(), self.name(index), flags, Mode::empty());
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
        let mode = Mode::from_raw_mode(0o644);
        let at_once = match &self.dir {
            // Most tasks print once: their directory is not opened by itself.
            LogDir::Below { root, path } => {
                open_within(root, &path.join(self.name(index)), flags, mode)
            }
            LogDir::Open(_) => Err(Errno::NOSYS),
        };
        let made = match at_once {
            Err(Errno::NOSYS | Errno::PERM) => {
                let dir = self.dir().map_err(LogError::Directory)?;
                openat(dir.as_fd(), self.name(index), flags, mode)
            }
            made => made,
        };
        match made {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::EXIST) => Ok(None),
            Err(errno) => Err(self.open_error(index, errno)),
        }
    }

    /// Remove the name. A link is removed, but not what it points to. What cannot be removed stays.
    pub(super) fn remove(&self, index: u64) {
        let Ok(dir) = self.dir() else { return };
        let removed = unlinkat(dir.as_fd(), self.name(index), AtFlags::empty());
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
