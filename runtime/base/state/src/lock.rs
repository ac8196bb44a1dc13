//! Allows one agent per data directory.
//!
//! The lock is the operating system's, on `<dir>/agent.lock`. It goes with the process, however
//! that ends, so a file left behind blocks nobody. The file holds the owner's pid for the message,
//! whether the owner serves (if it has the lock and no socket yet, it is starting), and whether it
//! ends (if it has the lock and no socket any more).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::own_file;
use crate::private::make_private;
use ostler_model::limits::MIB;

/// Name of the lock file in the data directory.
pub const LOCK_FILE: &str = "agent.lock";
/// The second line in the lock file of an agent that serves.
const SERVES: &str = "serves";
/// The third line in the lock file of an agent that ends.
const ENDS: &str = "ends";
/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";
/// The largest number of bytes that are read of that list.
const LOCKS_BYTES_MAX: u64 = 16 * MIB;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent runs on the data directory.
    #[error(
        "data directory {dir} is in use by {}; stop it or use another data directory",
        owner_text(.pid)
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// The other agent's pid, if the lock file could be read.
        pid: Option<u32>,
    },
    /// A directory or file cannot be written.
    #[error(
        "{path} cannot be written; check its owner, mode and mount, or use another data directory"
    )]
    ReadOnly {
        /// The path that was refused.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The disk or the quota is full.
    #[error("no space left for {path}; make room on its disk or use another data directory")]
    DiskFull {
        /// The path that was refused.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Somebody else decides what is in the directory.
    #[error(
        "data directory {dir} {reason}, who could put anything into it; make the agent's user its owner \
         (chown, chmod 0700) if you know what is in it, or use another data directory"
    )]
    NotOwn {
        /// The data directory.
        dir: PathBuf,
        /// The reason as a part of a sentence, with the user or the mode.
        reason: String,
    },
    /// Other users of the node may enter the directory, and not everything in it belongs to
    /// an agent.
    #[error(
        "data directory {dir} is open to other users of the node (mode {mode:04o}) and contains things that do \
         not belong to an agent; use a directory of its own, or close this one with `chmod 700 {dir}`"
    )]
    OpenToOthers {
        /// The data directory.
        dir: PathBuf,
        /// The mode of the directory, as permission bits.
        mode: u32,
    },
    /// Any other error.
    #[error("cannot {doing} {path}")]
    Io {
        /// The action that failed, such as `create directory`.
        doing: &'static str,
        /// The path that the action was for.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// The write permission of group and others, and the sticky bit, without which they may replace
/// what is not theirs.
const SHARED_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Check that only the agent's user, or root, decides what is in a directory with this owner and
/// this mode.
pub(crate) fn check_owner(dir: &Path, owner: u32, mode: u32) -> Result<(), LockError> {
    let own = rustix::process::geteuid().as_raw();
    let reason = if ![own, 0].contains(&owner) {
        format!("belongs to user {owner}")
    } else if mode & SHARED_WRITE != 0 && mode & STICKY == 0 {
        format!("may be written by other users (mode {mode:o})")
    } else {
        return Ok(());
    };
    Err(LockError::NotOwn { dir: dir.to_owned(), reason })
}

fn owner_text(pid: &Option<u32>) -> String {
    // Without a pid it may also be a process that only reads.
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("another agent (pid {pid})"))
}

impl LockError {
    pub(crate) fn from_io_error(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::ReadOnly { path, source }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path, source }
            }
            _ => Self::Io { doing, path, source },
        }
    }
}

/// This process's claim on a data directory, which ends when it is dropped.
#[derive(Debug)]
pub struct DataDirLock {
    dir: PathBuf,
    file: File,
}

impl Drop for DataDirLock {
    /// Closing the file alone is not enough: a child between fork and exec still has it open, and
    /// the lock lives as long as any copy of it.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(dir = %self.dir.display(), %error, "data directory not unlocked");
        }
    }
}

impl DataDirLock {
    /// Claim `dir`. It is created with mode 0700 if it is missing, and closed if others may enter
    /// it ([`make_private`]).
    ///
    /// # Errors
    /// When another agent has it, or it cannot be made, closed or written.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        // This comes before anything in the directory is opened, because whoever may write there
        // may have put links.
        make_private(dir)?;
        let path = dir.join(LOCK_FILE);
        // The file is not truncated: until the lock is ours, its content is another agent's.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = own_file::open(&mut options, &path)
            .map_err(|source| LockError::from_io_error("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::InUse { dir: dir.to_owned(), pid: read_pid(&file) });
            }
            Err(TryLockError::Error(source)) => {
                return Err(LockError::from_io_error("lock", &path, source));
            }
        }
        write_pid(&mut file).map_err(|source| LockError::from_io_error("write", &path, source))?;
        Ok(Self { dir: dir.to_owned(), file })
    }

    /// Note in the lock file that the owner serves: it has a socket, or will have one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_serving(&mut self) -> Result<(), LockError> {
        // This is not synced, because a reader also checks whether the process is alive.
        let written = writeln!(self.file, "{SERVES}");
        written
            .map_err(|source| LockError::from_io_error("write", &self.dir.join(LOCK_FILE), source))
    }

    /// Note in the lock file that an owner which serves now ends, so that whoever finds no socket
    /// knows that none will come.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn note_ending(&self) -> Result<(), LockError> {
        let written = writeln!(&self.file, "{ENDS}");
        written
            .map_err(|source| LockError::from_io_error("write", &self.dir.join(LOCK_FILE), source))
    }

    /// The data directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

/// The claim of a process that reads a data directory. There may be several at a time, but none
/// while an agent runs, and no agent starts meanwhile.
#[derive(Debug)]
pub struct DataDirReading {
    /// The locked file; `None` if no agent ever ran there.
    _file: Option<File>,
}

impl DataDirReading {
    /// Claim `dir`, without changing anything in it.
    ///
    /// # Errors
    /// When an agent runs on it, or its lock file cannot be read.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        let file = match own_file::read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { _file: None });
            }
            Err(source) => return Err(LockError::Io { doing: "open", path, source }),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Self { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => {
                Err(LockError::InUse { dir: dir.to_owned(), pid: read_pid(&file) })
            }
            Err(TryLockError::Error(source)) => Err(LockError::Io { doing: "lock", path, source }),
        }
    }
}

/// The process that has the lock of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The id of the process.
    pub pid: u32,
    /// Whether it is an agent that serves, or will serve once it has started. If not, it is an
    /// agent of a single command.
    pub serves: bool,
    /// Whether it is an agent that serves and now ends.
    pub ends: bool,
}

/// The process that has the lock of `dir`; `None` if there is none, or it is unknown. This takes no
/// lock, not even for a moment, because that could keep an agent from starting.
#[must_use]
pub fn holder(dir: &Path) -> Option<Holder> {
    let file = own_file::read(&dir.join(LOCK_FILE)).ok()?;
    let inode = file.metadata().ok()?.ino();
    let holder = read_owner(&file)?;
    let mut locks = String::new();
    File::open(LOCKS).ok()?.take(LOCKS_BYTES_MAX).read_to_string(&mut locks).ok()?;
    locks.lines().any(|line| is_held(line, holder.pid, inode)).then_some(holder)
}

/// Whether a line such as `1: FLOCK  ADVISORY  WRITE 4711 08:02:12345 0 EOF` is about this
/// lock. The device is not compared, because some file systems show another one here than for
/// their files.
fn is_held(line: &str, pid: u32, inode: u64) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["FLOCK", _, "WRITE", owner, place, ..] = words.get(1..).unwrap_or_default() else {
        return false;
    };
    let of = place.rsplit(':').next();
    owner.parse() == Ok(pid) && of.is_some_and(|of| of.parse() == Ok(inode))
}

/// The pid in the file, if that process runs. A process that died does not have the lock now.
fn read_pid(file: &File) -> Option<u32> {
    read_owner(file).map(|holder| holder.pid)
}

fn read_owner(file: &File) -> Option<Holder> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let serves = lines.next() == Some(SERVES);
    let ends = serves && lines.next() == Some(ENDS);
    let lives = Path::new("/proc").join(format!("{pid}")).exists();
    lives.then_some(Holder { pid, serves, ends })
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    // Some file systems report a full disk only here.
    file.sync_data()
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
