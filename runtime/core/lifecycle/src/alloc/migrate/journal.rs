//! The journal of a move: a small file that is durable before anything moves.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{MigrateError, MovedDir, Step};
use crate::alloc::dir::AllocDir;
use crate::alloc::dir::at::io_error;
use ostler_model::ids::AllocId;
use ostler_model::limits::MIGRATE_JOURNAL_BYTES_MAX;

/// Name of the journal. It has a space, so no task's directory can have this name.
const NAME: &str = "data move.json";
/// Name of the file that the journal is written to before it gets its own name.
const NEW: &str = "data move.json.new";

/// The move to the allocation whose directory the journal lies in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Journal {
    /// The allocation that the data comes from.
    pub(super) from: AllocId,
    /// The directories to move, sorted.
    pub(super) items: Vec<MovedDir>,
    /// All directories were moved.
    pub(super) done: bool,
    /// The data was fetched from another node and lies below this directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) fetched: bool,
}

impl Journal {
    /// Read the journal in the directory of an allocation; `None` where no move was begun. A task
    /// that runs as the agent's user can write the file, so it is not trusted.
    pub(super) fn read(alloc: &AllocDir) -> Result<Option<Self>, MigrateError> {
        let path = alloc.path().join(NAME);
        let wrong = |reason: String| MigrateError::Journal { path: path.clone(), reason };
        // A named pipe must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(alloc.fd(), NAME, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(wrong(io::Error::from(error).to_string())),
        };
        let stat = rustix::fs::fstat(&file).map_err(|e| wrong(io::Error::from(e).to_string()))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(wrong("it is not a file".to_owned()));
        }
        let mut bytes = Vec::new();
        File::from(file)
            .take(MIGRATE_JOURNAL_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| wrong(e.to_string()))?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MIGRATE_JOURNAL_BYTES_MAX {
            return Err(wrong(format!("it is longer than {MIGRATE_JOURNAL_BYTES_MAX} bytes")));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|e| wrong(e.to_string()))
    }

    /// Write the journal atomically: after a crash the old or the new one is there. Once this has
    /// returned it is the new one.
    pub(super) fn write(&self, alloc: &AllocDir, step: Step<'_>) -> Result<(), MigrateError> {
        let path: PathBuf = alloc.path().join(NAME);
        let failed = |e: io::Error| MigrateError::from(io_error("write", &path)(e));
        let text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.into()))?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        step("write the journal")?;
        match rustix::fs::unlinkat(alloc.fd(), NEW, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let file = rustix::fs::openat(alloc.fd(), NEW, flags, Mode::from_raw_mode(0o600))
            .map_err(|e| failed(e.into()))?;
        let mut file = File::from(file);
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        step("name the journal")?;
        rustix::fs::renameat(alloc.fd(), NEW, alloc.fd(), NAME).map_err(|e| failed(e.into()))?;
        step("sync the journal's name")?;
        rustix::fs::fsync(alloc.fd()).map_err(|e| failed(e.into()))
    }
}
