//! The record of a run. It is kept in Nomad's state, as part of the handle, and in a file
//! of this plugin.
//!
//! The file is written before the run is released. So a plugin that is killed before Nomad has the
//! handle finds the run when Nomad starts the same task again. The file says more than the handle
//! where the run spawned processes later.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use ostler_model::digest::Digest;
use ostler_model::ids::RunId;
use ostler_model::limits::NOMAD_RECORD_BYTES_MAX;
use ostler_model::ports::{IdentityRecorder, ProcessIdentity};
use ostler_model::task::{DriverHandle, Workload};
use ostler_model::time::Timestamp;

/// Version of [`NomadRunRecord`] in handles.
pub(crate) const VERSION: i32 = 1;

/// All that is needed to own a run again after a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NomadRunRecord {
    /// Id of the run: which start of which task this is.
    pub run: RunId,
    /// The processes that the run spawned.
    pub identities: Vec<ProcessIdentity>,
    /// The driver's handle of the task.
    pub handle: DriverHandle,
    /// What runs the task: a process, a WASM task, or the driver itself.
    pub workload: Workload,
    /// When the task was started.
    pub started_at: Timestamp,
}

impl NomadRunRecord {
    /// Encode the record for Nomad's state.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // The record is made of names, numbers and bytes, so this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decode the bytes that Nomad gives back.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The directory of the records, with one file for each run that is not destroyed.
#[derive(Clone, Debug)]
pub(crate) struct RunRecordDir(PathBuf);

impl RunRecordDir {
    /// Open the directory of the records, and make it where it does not exist.
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    /// The text that the names of the files of all runs of a task begin with.
    fn file_prefix(run: &RunId) -> String {
        let digest = Digest::compute(run.of_task().as_bytes()).to_string();
        digest.rsplit(':').next().unwrap_or_default().to_owned()
    }

    fn path(&self, run: &RunId) -> PathBuf {
        let number = run.as_str().rsplit('/').next().unwrap_or_default();
        self.0.join(format!("{}-{number}.json", Self::file_prefix(run)))
    }

    /// Write the record of a run. Blocks.
    pub(crate) fn keep(&self, kept: &NomadRunRecord) -> io::Result<()> {
        let path = self.path(&kept.run);
        let beside = path.with_extension("new");
        let mut file = fs::File::create(&beside)?;
        file.write_all(&kept.encode())?;
        // The file is not synced: a crash of the machine ends the run too.
        drop(file);
        fs::rename(&beside, &path)
    }

    /// Read the record of a run. Blocks.
    pub(crate) fn load(&self, run: &RunId) -> Option<NomadRunRecord> {
        Self::read(&self.path(run)).filter(|kept| kept.run == *run)
    }

    /// Read the records of all other runs of the same task. Blocks.
    pub(crate) fn load_others(&self, run: &RunId) -> io::Result<Vec<NomadRunRecord>> {
        let begin = Self::file_prefix(run);
        let mut others = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            let of_task = name.to_str().is_some_and(|name| name.starts_with(&begin));
            let kept = of_task.then(|| Self::read(&entry.path())).flatten();
            others.extend(
                kept.filter(|kept| kept.run != *run && kept.run.of_task() == run.of_task()),
            );
        }
        Ok(others)
    }

    fn read(path: &Path) -> Option<NomadRunRecord> {
        let mut bytes = Vec::new();
        let file = fs::File::open(path).ok()?;
        file.take(NOMAD_RECORD_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        NomadRunRecord::decode(&bytes)
    }

    /// Remove the record of a run. Blocks.
    pub(crate) fn forget(&self, run: &RunId) {
        match fs::remove_file(self.path(run)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%run, %error, "the record of a run that is over stays");
            }
            _ => {}
        }
    }
}

/// The processes that a run spawned so far.
#[derive(Debug, Default)]
pub(crate) struct RunIdentities {
    known: Mutex<IdentityState>,
}

#[derive(Debug, Default)]
struct IdentityState {
    identities: Vec<ProcessIdentity>,
    /// The record, once it was written. Each further process is added to it.
    kept: Option<(RunRecordDir, NomadRunRecord)>,
    /// The start was given up: nothing may be spawned any more.
    over: bool,
}

impl RunIdentities {
    /// The function that records each process before it runs.
    pub(crate) fn recorder(self: &Arc<Self>) -> IdentityRecorder {
        let this = Arc::clone(self);
        Arc::new(move |identity| {
            let this = Arc::clone(&this);
            let written = tokio::task::spawn_blocking(move || this.add(identity));
            Box::pin(async move {
                written.await.unwrap_or_else(|_| Err("the plugin is shutting down".to_owned()))
            })
        })
    }

    fn add(&self, identity: ProcessIdentity) -> Result<(), String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.over {
            return Err("the start was given up".to_owned());
        }
        known.identities.push(identity);
        let identities = known.identities.clone();
        match &mut known.kept {
            Some((records, kept)) => {
                kept.identities = identities;
                records.keep(kept).map_err(|error| error.to_string())
            }
            None => Ok(()),
        }
    }

    /// Give the start up: nothing may be spawned any more.
    pub(crate) fn give_up(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).over = true;
    }

    /// Write the record with the processes known so far. From here on each further process is added
    /// to it. Blocks.
    pub(crate) fn keep(
        &self,
        records: &RunRecordDir,
        kept: NomadRunRecord,
    ) -> io::Result<NomadRunRecord> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for identity in kept.identities {
            if !known.identities.contains(&identity) {
                known.identities.push(identity);
            }
        }
        let kept = NomadRunRecord { identities: known.identities.clone(), ..kept };
        records.keep(&kept)?;
        known.kept = Some((records.clone(), kept.clone()));
        Ok(kept)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::ids::{AllocId, TaskName};

    #[test]
    fn what_is_kept_of_a_run_is_found_again_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let records = RunRecordDir::open(dir.path().join("tasks")).unwrap();
        let run = RunId::new(AllocId::default(), &TaskName::new("web").unwrap(), 7);
        let kept = NomadRunRecord {
            run: run.clone(),
            identities: Vec::new(),
            handle: DriverHandle { plugin: "wasm".to_owned(), version: 1, data: vec![0, 255] },
            workload: Workload::WasmTask("1".to_owned()),
            started_at: Timestamp::from_nanos(5),
        };
        assert_eq!(records.load(&run), None);
        let spawned = RunIdentities::default();
        let written = spawned.keep(&records, kept.clone()).unwrap();
        assert_eq!((records.load(&run).as_ref(), &written), (Some(&kept), &kept));
        let identity = ProcessIdentity {
            pid: 1,
            start_ticks: 2,
            boot_id: "b".to_owned(),
            cgroup: None,
            supervisor: None,
        };
        spawned.add(identity.clone()).unwrap();
        let known = records.load(&run).unwrap().identities;
        assert_eq!(known, std::slice::from_ref(&identity));
        assert_eq!(NomadRunRecord::decode(&kept.encode()), Some(kept));
        spawned.give_up();
        assert!(spawned.add(identity).is_err());
        let later = RunId::new(AllocId::default(), &TaskName::new("web").unwrap(), 8);
        let other = RunId::new(AllocId::default(), &TaskName::new("web2").unwrap(), 8);
        let others = records.load_others(&later).unwrap();
        assert_eq!(others.first().map(|kept| &kept.run), Some(&run));
        assert!(records.load_others(&run).unwrap().is_empty());
        assert!(records.load_others(&other).unwrap().is_empty());
        records.forget(&run);
        assert_eq!(records.load(&run), None);
        assert_eq!(NomadRunRecord::decode(b"{}"), None);
    }
}
