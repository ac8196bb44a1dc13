//! The records of the world, and a disk that does what it is told to.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::plan::Disk;
use crate::world::World;
use ostler_state::BackendError;
use ostler_state::backend::{Backend, Op, Visit};
use ostler_state::mem_store::MemBackend;

/// See the module.
pub(super) struct SimDisk {
    world: World,
    records: MemBackend,
    mode: Mutex<Disk>,
    commits: Mutex<u64>,
}

impl SimDisk {
    pub(super) fn new(world: World) -> Self {
        Self {
            world,
            records: MemBackend::default(),
            mode: Mutex::new(Disk::Works),
            commits: Mutex::new(0),
        }
    }

    pub(super) fn set(&self, mode: Disk) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    fn mode(&self) -> Disk {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it do as it should?
    pub(super) fn works(&self) -> bool {
        self.mode() == Disk::Works
    }

    /// Does it refuse commits?
    pub(super) fn refuses(&self) -> bool {
        matches!(self.mode(), Disk::Full | Disk::Forgets)
    }

    /// Commits so far.
    pub(super) fn commits(&self) -> u64 {
        *self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a commit takes.
    pub(super) fn pace(&self) -> Duration {
        match self.mode() {
            Disk::Slow => Duration::from_secs(35),
            Disk::Works | Disk::Full | Disk::Forgets => Duration::from_millis(2),
        }
    }
}

/// The disk as one agent sees it.
pub(super) struct Attached(pub(super) Arc<SimDisk>);

impl Backend for Attached {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let disk = &self.0;
        let refused = || BackendError::Io { source: io::Error::other("simulated") };
        let dead = disk.world.lock().dead;
        if dead {
            return Err(refused());
        }
        *disk.commits.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        if !disk.world.door(&format!("commit of {}", batch.len())) {
            // Killed in the middle of it: all of it is there, or nothing.
            let there = disk.world.lock().rng.below(2) == 0;
            if there {
                disk.records.commit(batch)?;
            }
            return Err(refused());
        }
        match disk.mode() {
            Disk::Works | Disk::Slow => disk.records.commit(batch),
            Disk::Full => Err(refused()),
            Disk::Forgets => {
                disk.records.commit(batch)?;
                Err(refused())
            }
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.0.records.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.0.records.scan(prefix, visit)
    }

    fn quarantined(&self) -> Result<u64, BackendError> {
        self.0.records.quarantined()
    }
}
