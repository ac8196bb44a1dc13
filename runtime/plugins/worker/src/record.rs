//! The record that a worker writes beside its socket, for a later agent. The format
//! is frozen: `worker.json`.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use ostler_process::identity;

/// Name of the record in the directory of the worker.
const FILE: &str = "worker.json";
/// Longest record read, bytes.
const BYTES_MAX: u64 = 4 * 1024;

/// Which process a worker is, and which tasks it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerRecord {
    /// Process id of the worker.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Which tasks the worker takes, such as those of one job.
    pub key: String,
}

impl WorkerRecord {
    /// The record of this process.
    pub fn own(key: String) -> io::Result<Self> {
        let own = identity::read(std::process::id())?;
        Ok(Self { pid: own.pid, start_ticks: own.start_ticks, boot_id: own.boot_id, key })
    }

    /// Write the record into the directory of the worker, whole or not at all.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let part = dir.join("worker.part");
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(part, dir.join(FILE))
    }

    /// Read the record of a directory; `None` where there is none yet.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        // A symbolic link in its place is not followed.
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        let mut options = std::fs::OpenOptions::new();
        let file = match options.read(true).custom_flags(flags).open(dir.join(FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Some(serde_json::from_slice(&bytes)?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_every_build_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(WorkerRecord::read(dir.path()).unwrap(), None);
        let bytes = r#"{"pid":7,"start_ticks":9,"boot_id":"b","key":"node","later":[1]}"#;
        std::fs::write(dir.path().join(FILE), bytes).unwrap();
        let found = WorkerRecord::read(dir.path()).unwrap().unwrap();
        assert_eq!((found.pid, found.start_ticks, found.boot_id.as_str()), (7, 9, "b"));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        WorkerRecord::read(dir.path()).unwrap_err();
    }

    #[test]
    fn a_record_is_written_once_and_names_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let own = WorkerRecord::own("node".to_owned()).unwrap();
        own.write(dir.path()).unwrap();
        assert_eq!(WorkerRecord::read(dir.path()).unwrap(), Some(own.clone()));
        assert_eq!(own.pid, std::process::id());
    }
}
