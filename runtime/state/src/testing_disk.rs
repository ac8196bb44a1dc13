//! A disk in memory under the state file and its journal: it forgets, tears and fails at the operation
//! it is told to.
//!
//! ```text
//!              write, set_len                      sync
//!   file ───────────────────► as read (page cache) ─────► durable
//!                                    │
//!                                    └─ power cut: of each sector of 512 bytes written since the
//!                                       last sync, any one version or the durable one is kept
//! ```
//!
//! Everything is decided by a seed, so that a failure can be run again. Operations are the reads,
//! writes, changes of length and syncs of both files, counted from 1 and through all openings. A sync
//! is of one file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk_store::{JournalFile, Openers};
use crate::rewrite::{self, Shown};
use ostler_model::rng::Rng;
use redb::StorageBackend;

/// What a disk writes whole or not at all, bytes.
const SECTOR: usize = 512;

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// Of bytes.
    Read,
    /// Likewise.
    Write,
    /// Of the length of the file.
    SetLen,
    /// Of all before.
    Sync,
}

/// What goes wrong at an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// It fails, the disk works on. A write may have happened in part; after a failed sync what was
    /// not durable is still on its way.
    Error,
    /// As `Error`, but after a failed sync the system takes what it could not write for written: it
    /// is read back until the power goes, and no later sync makes it durable.
    ErrorForgets,
    /// No room for any write or growth until [`FaultyDisk::lift`].
    Full,
    /// A sync says it is done and did nothing; a later one works.
    LostSync,
    /// As `LostSync`, and the power goes up to thirty operations later.
    LostSyncThenCut,
    /// The power goes before it.
    PowerCut,
    /// A write happens in part, and the power goes.
    TornWrite,
}

/// When a planned fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultAt {
    Number(usize),
    NextSync,
}

/// A disk; clones are the same one.
#[derive(Clone, Debug)]
pub struct FaultyDisk(Arc<Mutex<Inner>>);

/// One of the files on it.
#[derive(Clone, Debug)]
struct OnDisk {
    disk: FaultyDisk,
    which: Which,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Tree,
    Journal,
}

/// The content of a file.
#[derive(Default)]
struct Image {
    /// What is read.
    seen: Vec<u8>,
    /// What is certain to be there after a power cut.
    durable: Vec<u8>,
    /// Versions of each sector since the last sync, oldest first.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// Lengths since the last sync.
    lengths: Vec<usize>,
}

struct Inner {
    tree: Image,
    journal_file: Image,
    journal: Vec<DiskOperation>,
    fault: Option<(FaultAt, DiskFault)>,
    happened: bool,
    powered: bool,
    full: bool,
    rng: Rng,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("len", &self.tree.seen.len()).finish_non_exhaustive()
    }
}

impl FaultyDisk {
    /// A disk that holds `image`, in whole sectors.
    #[must_use]
    pub fn new(image: &[u8], seed: u64) -> Self {
        let mut image = image.to_vec();
        image.resize(image.len().next_multiple_of(SECTOR), 0);
        Self(Arc::new(Mutex::new(Inner {
            tree: Image { seen: image.clone(), durable: image, ..Image::default() },
            journal_file: Image::default(),
            journal: Vec::new(),
            fault: None,
            happened: false,
            powered: true,
            full: false,
            rng: Rng::seeded(seed),
        })))
    }

    /// How the store opens what is on it, with so many bytes of cache and of journal. The path is only
    /// for messages, but must be that of some file.
    #[must_use]
    pub fn openers(&self, cache: usize, journal_bytes: usize) -> Openers {
        let tree = OnDisk { disk: self.clone(), which: Which::Tree };
        let journal = OnDisk { which: Which::Journal, ..tree.clone() };
        Openers {
            tree: Box::new(move |_: &Path, shown| {
                if shown == Shown::Doubted {
                    rewrite::storage(&tree)?;
                }
                redb::Builder::new().set_cache_size(cache).create_with_backend(tree.clone())
            }),
            journal: Box::new(move |_| Ok(Some(Box::new(journal.clone()) as JournalFile))),
            journal_bytes,
        }
    }

    /// What goes wrong at the operation of this number, once.
    pub fn plan(&self, number: usize, fault: DiskFault) {
        let mut inner = self.inner();
        inner.fault = Some((FaultAt::Number(number), fault));
        inner.happened = false;
    }

    /// What goes wrong at the next sync, once.
    pub fn plan_sync(&self, fault: DiskFault) {
        let mut inner = self.inner();
        inner.fault = Some((FaultAt::NextSync, fault));
        inner.happened = false;
    }

    /// The planned fault took place.
    #[must_use]
    pub fn happened(&self) -> bool {
        self.inner().happened
    }

    /// There is no power.
    #[must_use]
    pub fn off(&self) -> bool {
        !self.inner().powered
    }

    /// Whether there is no room.
    #[must_use]
    pub fn full(&self) -> bool {
        self.inner().full
    }

    /// There is room again.
    pub fn lift(&self) {
        self.inner().full = false;
    }

    /// What was done so far, one entry for each operation.
    #[must_use]
    pub fn journal(&self) -> Vec<DiskOperation> {
        self.inner().journal.clone()
    }

    /// So many operations were done.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.inner().journal.len()
    }

    /// Nothing more goes wrong, and there is room.
    pub fn mend(&self) {
        let mut inner = self.inner();
        (inner.fault, inner.full) = (None, false);
    }

    /// Lose power.
    pub fn cut(&self) {
        self.inner().powered = false;
    }

    /// The process on it was killed: what it wrote is there.
    pub fn resume(&self) {
        let mut inner = self.inner();
        (inner.fault, inner.powered) = (None, true);
    }

    /// What is read of the state file.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        self.inner().tree.seen.clone()
    }

    /// What is read of its journal.
    #[must_use]
    pub fn journal_image(&self) -> Vec<u8> {
        self.inner().journal_file.seen.clone()
    }

    /// Lose power, if there is any, and come back with what is durable and some of what is not.
    pub fn power_cycle(&self) {
        self.inner().power_cycle();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fails(kind: io::ErrorKind) -> io::Error {
    io::Error::new(kind, "injected")
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(io::Error::other)
}

impl Inner {
    /// Count an operation; the fault that is to happen with it.
    fn begin(&mut self, operation: DiskOperation) -> Result<Option<DiskFault>, io::Error> {
        if !self.powered {
            return Err(fails(io::ErrorKind::BrokenPipe));
        }
        self.journal.push(operation);
        let planned = self.fault.take_if(|(at, _)| match at {
            FaultAt::Number(number) => *number == self.journal.len(),
            FaultAt::NextSync => operation == DiskOperation::Sync,
        });
        let Some((_, fault)) = planned else { return Ok(None) };
        self.happened = true;
        match fault {
            DiskFault::PowerCut => {
                self.powered = false;
                Err(fails(io::ErrorKind::BrokenPipe))
            }
            DiskFault::Full => {
                self.full = true;
                Ok(Some(fault))
            }
            _ => Ok(Some(fault)),
        }
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).unwrap_or(0)
    }

    fn file(&mut self, which: Which) -> &mut Image {
        match which {
            Which::Tree => &mut self.tree,
            Which::Journal => &mut self.journal_file,
        }
    }

    /// Some of `data`, from its start, as a write that fails midway leaves it.
    fn write_in_part(&mut self, which: Which, offset: usize, data: &[u8]) {
        let sectors = data.len().div_ceil(SECTOR);
        let kept = self.below(sectors) * SECTOR;
        self.file(which).write(offset, data.get(..kept).unwrap_or(data));
    }

    /// Bring part of what is not durable onto the disk and forget the rest.
    fn settle_in_part(&mut self, which: Which) {
        let lengths = std::mem::take(&mut self.file(which).lengths);
        if let Some(len) = lengths.get(self.below(lengths.len() + 1)) {
            self.file(which).durable.resize(*len, 0);
        }
        // All, nothing, and several shares between.
        let share = [0, 8, 8, 32, 32, 56, 56].get(self.below(8)).copied().unwrap_or(64);
        for (sector, versions) in std::mem::take(&mut self.file(which).unsynced) {
            if self.rng.below(64) < share {
                let newest = self.rng.below(2) == 0;
                let older = if newest { None } else { versions.get(self.below(versions.len())) };
                if let Some(version) = older.or(versions.last()) {
                    keep(&mut self.file(which).durable, sector, version);
                }
            }
        }
    }

    fn power_cycle(&mut self) {
        for which in [Which::Tree, Which::Journal] {
            self.settle_in_part(which);
            let file = self.file(which);
            file.seen = file.durable.clone();
        }
        self.fault = None;
        self.powered = true;
        self.full = false;
    }
}

impl Image {
    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if end > self.seen.len() {
            self.resize(end.next_multiple_of(SECTOR));
        }
        if let Some(place) = self.seen.get_mut(offset..end) {
            place.copy_from_slice(data);
        }
        let first = offset / SECTOR;
        let sectors = self.seen.chunks_exact(SECTOR).enumerate().skip(first);
        for (sector, version) in sectors.take(end.div_ceil(SECTOR) - first) {
            let mut copy = [0; SECTOR];
            copy.copy_from_slice(version);
            self.unsynced.entry(sector).or_default().push(copy);
        }
    }

    fn resize(&mut self, len: usize) {
        let len = len.next_multiple_of(SECTOR);
        for sector in len / SECTOR..self.seen.len() / SECTOR {
            self.unsynced.entry(sector).or_default().push([0; SECTOR]);
        }
        self.seen.resize(len, 0);
        self.lengths.push(len);
    }

    fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for (sector, versions) in std::mem::take(&mut self.unsynced) {
            if let Some(version) = versions.last() {
                keep(&mut self.durable, sector, version);
            }
        }
        self.lengths.clear();
    }
}

/// A sector beyond the end is nowhere.
fn keep(image: &mut [u8], sector: usize, version: &[u8; SECTOR]) {
    let start = sector * SECTOR;
    if let Some(target) = image.get_mut(start..start + SECTOR) {
        target.copy_from_slice(version);
    }
}

impl StorageBackend for OnDisk {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.disk.inner().file(self.which).seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        if let Some(DiskFault::Error | DiskFault::ErrorForgets) =
            inner.begin(DiskOperation::Read)?
        {
            return Err(fails(io::ErrorKind::Other));
        }
        let start = size(offset)?;
        let found = inner.file(self.which).seen.get(start..start.saturating_add(out.len()));
        out.copy_from_slice(found.ok_or_else(|| fails(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        let (fault, len) = (inner.begin(DiskOperation::SetLen)?, size(len)?);
        if let Some(DiskFault::Error | DiskFault::ErrorForgets) = fault {
            return Err(fails(io::ErrorKind::Other));
        }
        if inner.full && len > inner.file(self.which).seen.len() {
            return Err(fails(io::ErrorKind::StorageFull));
        }
        inner.file(self.which).resize(len);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        match inner.begin(DiskOperation::Sync)? {
            Some(DiskFault::Error) => Err(fails(io::ErrorKind::Other)),
            Some(DiskFault::ErrorForgets) => {
                // The length is the file system's own; it does not get lost alone.
                let file = inner.file(self.which);
                file.durable.resize(file.seen.len(), 0);
                file.lengths.clear();
                inner.settle_in_part(self.which);
                Err(fails(io::ErrorKind::Other))
            }
            Some(DiskFault::LostSync) => Ok(()),
            Some(DiskFault::LostSyncThenCut) => {
                let later = inner.below(30);
                let at = FaultAt::Number(inner.journal.len() + 1 + later);
                inner.fault = Some((at, DiskFault::PowerCut));
                Ok(())
            }
            _ => {
                inner.file(self.which).sync();
                Ok(())
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        let (fault, offset) = (inner.begin(DiskOperation::Write)?, size(offset)?);
        match fault {
            Some(DiskFault::Error | DiskFault::ErrorForgets) => {
                inner.write_in_part(self.which, offset, data);
                Err(fails(io::ErrorKind::Other))
            }
            Some(DiskFault::TornWrite) => {
                inner.write_in_part(self.which, offset, data);
                inner.powered = false;
                Err(fails(io::ErrorKind::BrokenPipe))
            }
            _ if inner.full => {
                inner.write_in_part(self.which, offset, data);
                Err(fails(io::ErrorKind::StorageFull))
            }
            _ => {
                inner.file(self.which).write(offset, data);
                Ok(())
            }
        }
    }
}
