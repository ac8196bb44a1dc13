//! The record of a network. It is written before anything is made, so that after a crash it is
//! known what must be removed.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conflist::{CniNetwork, CniPortMapping};
use ostler_model::ids::AllocId;
use ostler_model::limits::CNI_TEXT_BYTES_MAX;
use ostler_model::saved::NetworkStatus;
use ostler_state::durable;

/// The longest record that is read, in bytes: a configuration, an answer and the ports.
const RECORD_BYTES_MAX: u64 = 4 * CNI_TEXT_BYTES_MAX as u64;
const ENDING: &str = ".json";

/// What is known of the network of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// The allocation that the network belongs to.
    pub alloc: AllocId,
    /// The plugins that fill its namespace; `None` if there are none.
    pub network: Option<CniNetwork>,
    /// The ports of the node that lead to the allocation.
    pub ports: Vec<CniPortMapping>,
    /// The last result of the plugins; `None` if they are not done.
    pub result: Option<Value>,
    /// The network that the allocation has; `None` while it is being made.
    pub status: Option<NetworkStatus>,
}

/// The directory of records and of the files that hold namespaces.
#[derive(Clone, Debug)]
pub struct NetworkRecords {
    dir: PathBuf,
}

impl NetworkRecords {
    /// The records in this directory, which need not exist.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The file that holds the namespace of an allocation.
    #[must_use]
    pub fn namespace(&self, alloc: AllocId) -> PathBuf {
        self.dir.join(alloc.to_string())
    }

    fn record(&self, alloc: AllocId) -> PathBuf {
        self.dir.join(format!("{alloc}{ENDING}"))
    }

    /// Read a record; `None` if there is none, or if it is broken, which is logged.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, alloc: AllocId) -> io::Result<Option<NetworkRecord>> {
        let path = self.record(alloc);
        let mut text = Vec::new();
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(file) => file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?,
        };
        let read: Result<NetworkRecord, _> = serde_json::from_slice(&text);
        if let Err(error) = &read {
            tracing::error!(path = %path.display(), %error, "record of a network is broken");
        }
        Ok(read.ok().filter(|record| record.alloc == alloc))
    }

    /// Write a record durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, record: &NetworkRecord) -> io::Result<()> {
        durable::make_dirs(&self.dir, 0o700)?;
        let (path, new) =
            (self.record(record.alloc), self.dir.join(format!("{}.new", record.alloc)));
        let text = serde_json::to_vec(record)?;
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        durable::sync_parent(&path)
    }

    /// Remove a record, which may be gone already.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, alloc: AllocId) -> io::Result<()> {
        for path in [self.record(alloc), self.dir.join(format!("{alloc}.new"))] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Every allocation that has a record or a namespace file.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list_allocs(&self) -> io::Result<Vec<AllocId>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            all.extend(alloc_in_name(&entry?.path()));
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

fn alloc_in_name(path: &Path) -> Option<AllocId> {
    let name = path.file_name()?.to_str()?;
    name.split('.').next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use ostler_model::rng::Rng;

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_found_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = NetworkRecords::new(dir.path().join("netns"));
        let alloc = AllocId::new(Rng::from_seed(1).uuid());
        assert_eq!(kept.list_allocs().unwrap(), []);
        let record = NetworkRecord {
            alloc,
            network: Some(crate::conflist::bridge("b", "10.0.0.0/24")),
            ports: Vec::new(),
            result: None,
            status: None,
        };
        kept.write(&record).unwrap();
        assert_eq!(kept.read(alloc).unwrap(), Some(record));
        fs::write(kept.namespace(alloc), "").unwrap();
        assert_eq!(kept.list_allocs().unwrap(), [alloc]);
        kept.remove(alloc).unwrap();
        kept.remove(alloc).unwrap();
        assert_eq!(kept.read(alloc).unwrap(), None);
        assert_eq!(kept.list_allocs().unwrap(), [alloc], "its namespace is there");
    }

    #[test]
    fn a_broken_record_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let kept = NetworkRecords::new(dir.path().to_owned());
        let alloc = AllocId::new(Rng::from_seed(1).uuid());
        fs::write(kept.record(alloc), "{").unwrap();
        assert_eq!(kept.read(alloc).unwrap(), None);
        assert_eq!(kept.list_allocs().unwrap(), [alloc]);
    }
}
