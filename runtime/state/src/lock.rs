//! One agent per data directory.
//!
//! The lock is the operating system's, on `<dir>/agent.lock`: it goes with the process, however
//! that ends, so a file left behind blocks nobody. The file holds the owner's pid for the message,
//! whether the owner serves (one that has the lock and no socket yet is starting), and whether it ends (one that
//! has the lock and no socket any more).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::own_file;
use crate::private::make_private;
use ostler_model::limits::MIB;

/// Name of the lock file in the data directory.
pub const LOCK_FILE: &str = "agent.lock";
/// Second line of the file of an agent that serves.
const SERVES: &str = "serves";
/// Third line of the file of one that ends.
const ENDS: &str = "ends";
/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";
/// Most bytes of it that are read.
const LOCKS_BYTES_MAX: u64 = 16 * MIB;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent runs on it.
    #[error(
        "data directory {dir} is in use by {}; stop it or use another data directory",
        owner(.pid)
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// The other agent's pid, when its file could be read.
        pid: Option<u32>,
    },
    /// It cannot be written.
    #[error(
        "{path} cannot be written; check its owner, mode and mount, or use another data directory"
    )]
    ReadOnly {
        /// The directory or file refused.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// Its disk or quota is full.
    #[error("no space left for {path}; make room on its disk or use another data directory")]
    DiskFull {
        /// The directory or file refused.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// Somebody else decides what is in it.
    #[error(
        "data directory {dir} {reason}, who could put anything into it; give it to the agent's user (chown, chmod \
         0700) if you know what is in it, or use another data directory"
    )]
    NotOwn {
        /// The data directory.
        dir: PathBuf,
        /// Why, with whom.
        reason: String,
    },
    /// Other users of the node may enter it, and not all in it is an agent's.
    #[error(
        "data directory {dir} is open to other users of the node (mode {mode:04o}) and has things in it that \
         are no agent's; use a directory of its own, or close this one with `chmod 700 {dir}`"
    )]
    OpenToOthers {
        /// The data directory.
        dir: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Anything else.
    #[error("cannot {doing} {path}")]
    Io {
        /// What was tried: `create directory` …
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: io::Error,
    },
}

/// Write permission of group and others, and the bit without which it lets them replace what is not theirs.
const SHARED_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Only the agent's user, or root, may decide what is in the directory, which has this owner and this mode.
pub(crate) fn own_dir(dir: &Path, owner: u32, mode: u32) -> Result<(), LockError> {
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

fn owner(pid: &Option<u32>) -> String {
    // Without a pid it may also be somebody who only reads.
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("another agent (pid {pid})"))
}

impl LockError {
    pub(crate) fn of(doing: &'static str, path: &Path, source: io::Error) -> Self {
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

/// This process's claim on a data directory; ends when it is dropped.
#[derive(Debug)]
pub struct DataDirLock {
    dir: PathBuf,
    file: File,
}

impl Drop for DataDirLock {
    /// Closing alone is not enough: a child between fork and exec still has the file open, and the
    /// lock lives as long as any copy of it.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(dir = %self.dir.display(), %error, "data directory not unlocked");
        }
    }
}

impl DataDirLock {
    /// Claim `dir`, made with mode 0700 when missing, and closed when others may enter it ([`make_private`]).
    ///
    /// # Errors
    /// When another agent has it, or it cannot be made, closed or written.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        // Before anything in it is opened: whoever may write there may have put links.
        make_private(dir)?;
        let path = dir.join(LOCK_FILE);
        // Not truncated: until the lock is ours the content is another agent's.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = own_file::open(&mut options, &path)
            .map_err(|source| LockError::of("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::InUse { dir: dir.to_owned(), pid: read_pid(&file) });
            }
            Err(TryLockError::Error(source)) => return Err(LockError::of("lock", &path, source)),
        }
        write_pid(&mut file).map_err(|source| LockError::of("write", &path, source))?;
        Ok(Self { dir: dir.to_owned(), file })
    }

    /// Note in the file that the owner serves: it has a socket, or will have.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn serves(&mut self) -> Result<(), LockError> {
        // Not synced: who reads it asks whether the process lives.
        let written = writeln!(self.file, "{SERVES}");
        written.map_err(|source| LockError::of("write", &self.dir.join(LOCK_FILE), source))
    }

    /// Note in the file of an owner that serves that it ends: whoever finds no socket knows that none comes.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn ends(&self) -> Result<(), LockError> {
        let written = writeln!(&self.file, "{ENDS}");
        written.map_err(|source| LockError::of("write", &self.dir.join(LOCK_FILE), source))
    }

    /// The data directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

/// Claim of somebody who reads a data directory: several at a time, none while an agent runs, and
/// no agent starts meanwhile.
#[derive(Debug)]
pub struct DataDirReading {
    /// Absent where no agent ever ran.
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

/// Who has the lock of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// It is an agent that serves, or will as soon as it has started; else one of a single command.
    pub serves: bool,
    /// It is such an agent, and ends.
    pub ends: bool,
}

/// Who has the lock of `dir`; none when nobody has, or it cannot be told. Takes no lock, not even for
/// a moment: that could keep an agent from starting.
#[must_use]
pub fn holder(dir: &Path) -> Option<Holder> {
    let file = own_file::read(&dir.join(LOCK_FILE)).ok()?;
    let inode = file.metadata().ok()?.ino();
    let holder = read_owner(&file)?;
    let mut locks = String::new();
    File::open(LOCKS).ok()?.take(LOCKS_BYTES_MAX).read_to_string(&mut locks).ok()?;
    locks.lines().any(|line| is_held(line, holder.pid, inode)).then_some(holder)
}

/// `1: FLOCK  ADVISORY  WRITE 4711 08:02:12345 0 EOF`. The device is not compared: some file systems
/// say another one here than of their files.
fn is_held(line: &str, pid: u32, inode: u64) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["FLOCK", _, "WRITE", owner, place, ..] = words.get(1..).unwrap_or_default() else {
        return false;
    };
    let of = place.rsplit(':').next();
    owner.parse() == Ok(pid) && of.is_some_and(|of| of.parse() == Ok(inode))
}

/// The pid in the file, if that process runs: one that died is not who has the lock now.
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
    // Some file systems tell of a full disk only here.
    file.sync_data()
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
