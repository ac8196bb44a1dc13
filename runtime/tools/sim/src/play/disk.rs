//! The records of the world, and a disk that does what it is told to.
//!
//! ```text
//! store ─► Attached: doors, faults of whole commits ─► records in memory
//!                                                  └─► state file, journal ─► FaultyDisk: faults of single
//!                                                                             operations
//!   agent killed: what was written is there      power cut: what was synced is there
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::Disk;
use crate::world::World;
use ostler_model::limits::STATE_CACHE_BYTES;
use ostler_state::backend::{Backend, Op, Visit};
use ostler_state::disk_store::DiskBackend;
use ostler_state::inspect::Inspection;
use ostler_state::mem_store::MemBackend;
use ostler_state::testing::disk::{DiskFault, FaultyDisk};
use ostler_state::{BackendError, StateError, StateStore};

/// A commit that is to fail does so at one of so many operations.
const OPERATIONS: u64 = 8;
/// So short that it is filled and moved again and again.
const JOURNAL_BYTES: usize = 1 << 16;

/// See the module.
pub(crate) struct SimDisk {
    world: World,
    records: Arc<MemBackend>,
    /// Where the records are instead; the path is only for what the store keeps beside the file.
    file: Option<(FaultyDisk, PathBuf)>,
    commits: AtomicU64,
}

impl SimDisk {
    /// `file`: the records are in a state file, below `dir`.
    pub(crate) fn new(world: World, seed: u64, dir: &Path, file: bool) -> Result<Self, StateError> {
        let path = dir.join("state.redb");
        let file = if file {
            let made = DiskBackend::open(&path).map(drop);
            let image = made.and_then(|()| Ok(std::fs::read(&path)?));
            let image = image.map_err(|error| StateError::from_open_error(path.clone(), error))?;
            Some((FaultyDisk::new(&image, seed), path))
        } else {
            None
        };
        Ok(Self { world, records: Arc::default(), file, commits: AtomicU64::new(0) })
    }

    pub(crate) fn set(&self, mode: Disk) {
        let mut inner = self.world.lock();
        inner.disk = mode;
        inner.look_for_faults();
        let Some((disk, _)) = &self.file else { return };
        match mode {
            Disk::Full => disk.plan(disk.operations().saturating_add(1), DiskFault::Full),
            _ => disk.clear_faults(),
        }
    }

    fn mode(&self) -> Disk {
        self.world.lock().disk
    }

    /// Does it do as it should?
    pub(crate) fn works(&self) -> bool {
        self.mode() == Disk::Works
    }

    /// Does it refuse commits?
    pub(crate) fn refuses(&self) -> bool {
        !matches!(self.mode(), Disk::Works | Disk::Slow)
    }

    /// Commits so far.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// How long a commit takes.
    fn pace(&self) -> Duration {
        match self.mode() {
            Disk::Slow => Duration::from_secs(35),
            _ => Duration::from_millis(2),
        }
    }

    /// The store, as an agent opens it that starts now: what is not in order is refused.
    pub(crate) fn open(self: &Arc<Self>) -> Result<StateStore, StateError> {
        let pace = Arc::clone(self);
        // For messages: what happens is to be the same wherever it is played.
        let named = PathBuf::from("(simulated)");
        let records: Arc<dyn Backend> = match &self.file {
            None => self.records.clone(),
            Some((disk, path)) => {
                let failed = |error| StateError::from_open_error(named.clone(), error);
                let journal = path.with_extension("redb.journal");
                let written = std::fs::write(path, disk.image());
                let written = written.and_then(|()| std::fs::write(journal, disk.journal_image()));
                written.map_err(|error| failed(error.into()))?;
                let openers = disk.openers(STATE_CACHE_BYTES, JOURNAL_BYTES);
                let looked = Inspection::open(path)?;
                let repaired =
                    looked.was_repaired() || looked.has_fallen_back() && !looked.was_compared();
                drop(looked);
                let backend = DiskBackend::open_with(path, openers);
                let backend = backend.map_err(failed)?;
                if repaired || backend.age().is_behind() {
                    let text = format!("the state file lacks something: {:?}", backend.age());
                    self.world.lock().break_with(text);
                }
                Arc::new(backend)
            }
        };
        let attached = Arc::new(Attached { disk: Arc::clone(self), records });
        let store = StateStore::open_simulated(&named, attached, Box::new(move || pace.pace()))?;
        if store.open_report().in_quarantine > 0 {
            self.world.lock().break_with("a state record was put aside".to_owned());
        }
        Ok(store)
    }

    /// The agent does nothing more, not even in order.
    pub(crate) fn cut(&self) {
        if let Some((disk, _)) = &self.file {
            disk.cut_power();
        }
    }

    /// The next agent comes. `power`: there was none meanwhile.
    pub(crate) fn resume(&self, power: bool) {
        match &self.file {
            Some((disk, _)) if power => disk.power_cycle(),
            Some((disk, _)) => disk.kill_process(),
            None => {}
        }
        // A fault of the disk goes on.
        self.set(self.mode());
    }
}

/// The disk as one agent sees it.
struct Attached {
    disk: Arc<SimDisk>,
    records: Arc<dyn Backend>,
}

impl Attached {
    /// Killed in the middle of it: all of it is there, or nothing.
    fn commit_in_part(&self, batch: &[Op]) {
        let (random, power) = {
            let inner = self.disk.world.lock();
            (inner.rng.number_below(2 * OPERATIONS), inner.power)
        };
        match &self.disk.file {
            None if random % 2 == 0 => drop(self.records.commit(batch)),
            None => {}
            Some((disk, _)) => {
                let fault = if power && random % 2 == 0 {
                    DiskFault::TornWrite
                } else {
                    DiskFault::PowerCut
                };
                fail_at(disk, random / 2, fault);
                drop(self.records.commit(batch));
                disk.cut_power();
            }
        }
    }
}

fn fail_at(disk: &FaultyDisk, later: u64, fault: DiskFault) {
    let later = usize::try_from(later).unwrap_or(0);
    disk.plan(disk.operations().saturating_add(1).saturating_add(later), fault);
}

impl Backend for Attached {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let disk = &self.disk;
        let refused = || BackendError::Io { source: io::Error::other("simulated") };
        let dead = disk.world.lock().dead;
        if dead {
            return Err(refused());
        }
        disk.commits.fetch_add(1, Ordering::Relaxed);
        if !disk.world.door(&format!("commit of {}", batch.len())) {
            self.commit_in_part(batch);
            return Err(refused());
        }
        match (disk.mode(), &disk.file) {
            (Disk::Full | Disk::Fails | Disk::Unsure, None) => return Err(refused()),
            (Disk::Fails, Some((file, _))) => {
                let later = disk.world.lock().rng.number_below(OPERATIONS);
                fail_at(file, later, DiskFault::Error);
            }
            (Disk::Unsure, Some((file, _))) => file.plan_sync(DiskFault::ErrorForgets),
            _ => {}
        }
        self.records.commit(batch)?;
        match disk.mode() {
            Disk::Forgets => Err(refused()),
            _ => Ok(()),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.records.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.records.scan(prefix, visit)
    }

    fn has_unsettled(&self) -> bool {
        self.records.has_unsettled()
    }

    fn settle(&self) -> Result<(), BackendError> {
        let disk = &self.disk;
        let dead = disk.world.lock().dead;
        if dead || !self.records.has_unsettled() {
            return Ok(());
        }
        if !disk.world.door("journal moved") {
            if let Some((file, _)) = &disk.file {
                let later = disk.world.lock().rng.number_below(OPERATIONS);
                fail_at(file, later, DiskFault::PowerCut);
                drop(self.records.settle());
                file.cut_power();
            }
            return Ok(());
        }
        if let (Disk::Fails, Some((file, _))) = (disk.mode(), &disk.file) {
            let later = disk.world.lock().rng.number_below(OPERATIONS);
            fail_at(file, later, DiskFault::Error);
        }
        self.records.settle()
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.records.count_quarantined()
    }
}
