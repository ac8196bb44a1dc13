//! One agent per data directory.
//!
//! The lock is the operating system's, on `<dir>/agent.lock`: it goes with the process, however
//! that ends, so a file left behind blocks nobody. The file holds the owner's pid for the message.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Name of the lock file in the data directory.
pub const LOCK_FILE: &str = "agent.lock";

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

fn owner(pid: &Option<u32>) -> String {
    // Without a pid it may also be somebody who only reads.
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("another agent (pid {pid})"))
}

impl LockError {
    fn of(doing: &'static str, path: &Path, source: io::Error) -> Self {
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
    /// Claim `dir`, made with mode 0700 when missing.
    ///
    /// # Errors
    /// When another agent has it, or it cannot be made or written.
    pub fn acquire(dir: &Path) -> Result<Self, LockError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|source| LockError::of("create directory", dir, source))?;
        let path = dir.join(LOCK_FILE);
        // Not truncated: until the lock is ours the content is another agent's.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
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
        let file = match File::open(&path) {
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

/// The pid in the file, if that process runs: one that died is not who has the lock now.
fn read_pid(file: &File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    let pid = text.trim().parse().ok()?;
    Path::new("/proc").join(format!("{pid}")).exists().then_some(pid)
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
