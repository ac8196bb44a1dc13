//! Reads a state file without an agent, for `ostler state`.
//!
//! ```text
//! Target (data directory, file) ─ no agent runs? ─► state::inspect (read-only) ─► records
//!                                                                                    │ values: bytes
//!            CheckReport, StatsReport, DumpRecord … (plain data) ◄───────────────────┘ to JSON
//! ```
//! This is here and not in `state` because the types of some records are above that crate.

mod check;
mod dump;
mod runs;
mod stats;
mod values;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::EndRunError;
use ostler_process::ExitRecordError;
use ostler_state::inspect::{self, CompactResult, Inspection};
use ostler_state::lock::LOCK_FILE;
use ostler_state::{DataDirLock, DataDirReading, LockError, StateError};

pub use check::{BadRecord, CheckReport, check};
pub use dump::{Dump, DumpRecord};
pub use ostler_state::{Age, STATE_FILE, Stats as StoreStats};
pub use runs::{FoundRun, end_run, runs};
pub use stats::{BatchClass, QuarantineCount, StatsReport, StoreCounts, stats};

/// The state file that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The state file of a data directory.
    DataDir(PathBuf),
    /// A state file by itself, for example a copy.
    File(PathBuf),
}

impl Target {
    /// The path of the state file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        match self {
            Self::DataDir(dir) => dir.join(STATE_FILE),
            Self::File(path) => path.clone(),
        }
    }

    /// The directory whose agent may have the file open. A file beside an agent's lock belongs to
    /// that agent, whatever its name is.
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::DataDir(dir) => Some(dir),
            Self::File(path) => match path.parent() {
                Some(dir) if dir.as_os_str().is_empty() => Some(Path::new(".")),
                dir => dir,
            },
        }
    }
}

/// Why a state file cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// There is no state file.
    #[error(
        "there is no state file {path}; an agent creates it when it first starts: check the path"
    )]
    Missing {
        /// The path where the file was expected.
        path: PathBuf,
    },
    /// The path names a directory, a pipe or a device.
    #[error("{path} is not a regular file; a data directory is given with --data-dir")]
    NotAFile {
        /// The path that was given.
        path: PathBuf,
    },
    /// An agent runs, and a file that it writes to cannot be read as a whole.
    #[error("state file {path} is in use: {} holds it; stop it first", holder(.pid))]
    Running {
        /// The path of the state file.
        path: PathBuf,
        /// The pid of the agent, if it is known.
        pid: Option<u32>,
    },
    /// The lock of the data directory cannot be examined.
    #[error("cannot tell whether an agent runs")]
    Lock(#[source] LockError),
    /// The native runs that are alive cannot be found.
    #[error("cannot look for runs that live")]
    Runs(#[source] ExitRecordError),
    /// The runs in workers cannot be found.
    #[error("cannot look for WASM tasks that live")]
    Workers(#[source] std::io::Error),
    /// A run was not ended.
    #[error(transparent)]
    EndRun(#[from] EndRunError),
    /// Any other error of the state file, damage included.
    #[error(transparent)]
    State(StateError),
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("agent running (pid {pid})"))
}

impl InspectError {
    fn from_lock_error(path: &Path, error: LockError) -> Self {
        match error {
            LockError::InUse { pid, .. } => Self::Running { path: path.to_owned(), pid },
            other => Self::Lock(other),
        }
    }

    fn from_state_error(error: StateError) -> Self {
        match error {
            StateError::InUse { path } => Self::Running { path, pid: None },
            other => Self::State(other),
        }
    }

    /// Whether the file could be read but is damaged.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::State(error) if error.damage().is_some())
    }
}

/// The number and the size of the records of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// The name of the kind of records.
    pub kind: &'static str,
    /// The number of records.
    pub records: u64,
    /// Bytes of their keys and contents.
    pub bytes: u64,
}

/// Counts by kind, in the order in which the kinds were met.
#[derive(Debug, Default)]
struct KindCounts(Vec<KindCount>);

impl KindCounts {
    fn count(&mut self, kind: &'static str, bytes: u64) {
        let at = self.0.iter().position(|counted| counted.kind == kind);
        let at = at.unwrap_or_else(|| {
            self.0.push(KindCount { kind, records: 0, bytes: 0 });
            self.0.len() - 1
        });
        if let Some(counted) = self.0.get_mut(at) {
            counted.records = counted.records.saturating_add(1);
            counted.bytes = counted.bytes.saturating_add(bytes);
        }
    }
}

/// An open state file, with the claim that keeps agents away meanwhile.
struct ClaimedInspection {
    inspection: Inspection,
    _claim: Option<DataDirReading>,
}

fn open(target: &Target) -> Result<ClaimedInspection, InspectError> {
    let path = target.file();
    check_exists(&path)?;
    let claim = target.dir().map(DataDirReading::acquire).transpose();
    let claim = claim.map_err(|error| InspectError::from_lock_error(&path, error))?;
    let inspection = Inspection::open(&path).map_err(InspectError::from_state_error)?;
    Ok(ClaimedInspection { inspection, _claim: claim })
}

fn check_exists(path: &Path) -> Result<(), InspectError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(InspectError::Missing { path: path.to_owned() })
        }
        Ok(found) if !found.is_file() => Err(InspectError::NotAFile { path: path.to_owned() }),
        // The code that opens the file reports any other error.
        _ => Ok(()),
    }
}

/// Give the free room in a state file back to the file system.
///
/// # Errors
/// When there is no such file, an agent runs, or the file is damaged or cannot be written.
pub fn compact(target: &Target) -> Result<CompactResult, InspectError> {
    let path = target.file();
    check_exists(&path)?;
    // Where no agent ever ran there is nobody to keep away, and no lock file must be left behind.
    let dir = target.dir().filter(|dir| dir.join(LOCK_FILE).exists());
    let claim = dir.map(DataDirLock::acquire).transpose();
    let _claim = claim.map_err(|error| InspectError::from_lock_error(&path, error))?;
    inspect::compact(&path).map_err(InspectError::from_state_error)
}
