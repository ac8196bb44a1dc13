//! Looking at a state file without an agent: what `ostler state` shows.
//!
//! ```text
//! Target (data directory, file) ─ no agent runs? ─► state::inspect (read-only) ─► records
//!                                                                                    │ values: bytes
//!            CheckReport, StatsReport, DumpRecord … (plain data) ◄───────────────────┘ to JSON
//! ```
//! It is here and not in `state` because the types of some records are above that module.

mod check;
mod dump;
mod runs;
mod stats;
mod values;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::EndRunError;
use ostler_process::ExitRecordError;
use ostler_state::inspect::{self, Compacted, Inspection};
use ostler_state::lock::LOCK_FILE;
use ostler_state::{DataDirLock, DataDirReading, LockError, StateError};

pub use check::{BadRecord, CheckReport, check};
pub use dump::{Dump, DumpRecord};
pub use ostler_state::{Age, STATE_FILE, Stats as StoreStats};
pub use runs::{FoundRun, end_run, runs};
pub use stats::{BatchClass, Counted, InQuarantine, StatsReport, stats};

/// Which state file is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// That of a data directory.
    DataDir(PathBuf),
    /// One by itself, for example a copy.
    File(PathBuf),
}

impl Target {
    /// The file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        match self {
            Self::DataDir(dir) => dir.join(STATE_FILE),
            Self::File(path) => path.clone(),
        }
    }

    /// The directory whose agent may have the file open. A file beside an agent's lock is that
    /// agent's, however it is named.
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

/// Why a state file cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// There is none.
    #[error(
        "there is no state file {path}; an agent makes one when it first starts: check the path"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// A directory, a pipe, a device.
    #[error("{path} is no regular file; a data directory is given with --data-dir")]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// An agent runs, and what it is writing cannot be read as a whole.
    #[error("state file {path} is in use: {} holds it; stop it first", holder(.pid))]
    Running {
        /// The file.
        path: PathBuf,
        /// The agent's process, when known.
        pid: Option<u32>,
    },
    /// The data directory's lock cannot be looked at.
    #[error("cannot tell whether an agent runs")]
    Lock(#[source] LockError),
    /// What lives cannot be looked at.
    #[error("cannot look for runs that live")]
    Runs(#[source] ExitRecordError),
    /// Neither can what lives in workers.
    #[error("cannot look for WASM tasks that live")]
    Workers(#[source] std::io::Error),
    /// A run was not ended.
    #[error(transparent)]
    EndRun(#[from] EndRunError),
    /// Anything else, damage included.
    #[error(transparent)]
    State(StateError),
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("agent running (pid {pid})"))
}

impl InspectError {
    fn lock(path: &Path, error: LockError) -> Self {
        match error {
            LockError::InUse { pid, .. } => Self::Running { path: path.to_owned(), pid },
            other => Self::Lock(other),
        }
    }

    fn state(error: StateError) -> Self {
        match error {
            StateError::InUse { path } => Self::Running { path, pid: None },
            other => Self::State(other),
        }
    }

    /// The file was read and is not what was written.
    #[must_use]
    pub fn damaged(&self) -> bool {
        matches!(self, Self::State(error) if error.damage().is_some())
    }
}

/// How many records there are of a kind, and their size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// The kind.
    pub kind: &'static str,
    /// Records.
    pub records: u64,
    /// Bytes of their keys and contents.
    pub bytes: u64,
}

/// Counts by kind, in the order in which the kinds were met.
#[derive(Debug, Default)]
struct Kinds(Vec<KindCount>);

impl Kinds {
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

/// A state file that is read, and the claim that keeps agents away meanwhile.
struct Opened {
    inspection: Inspection,
    _claim: Option<DataDirReading>,
}

fn open(target: &Target) -> Result<Opened, InspectError> {
    let path = target.file();
    there(&path)?;
    let claim = target.dir().map(DataDirReading::acquire).transpose();
    let claim = claim.map_err(|error| InspectError::lock(&path, error))?;
    let inspection = Inspection::open(&path).map_err(InspectError::state)?;
    Ok(Opened { inspection, _claim: claim })
}

fn there(path: &Path) -> Result<(), InspectError> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(InspectError::Missing { path: path.to_owned() })
        }
        Ok(found) if !found.is_file() => Err(InspectError::NotAFile { path: path.to_owned() }),
        // Any other refusal is told by whoever opens it.
        _ => Ok(()),
    }
}

/// Give the free room in a state file back to the file system.
///
/// # Errors
/// When there is no such file, an agent runs, or the file is damaged or cannot be written.
pub fn compact(target: &Target) -> Result<Compacted, InspectError> {
    let path = target.file();
    there(&path)?;
    // Where no agent ever ran there is nobody to keep away, and no lock file is left behind.
    let dir = target.dir().filter(|dir| dir.join(LOCK_FILE).exists());
    let claim = dir.map(DataDirLock::acquire).transpose();
    let _claim = claim.map_err(|error| InspectError::lock(&path, error))?;
    inspect::compact(&path).map_err(InspectError::state)
}
