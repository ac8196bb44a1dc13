//! A disk in memory under the state file and its journal. It forgets, tears and fails at the
//! operation it is told to.
//!
//! ```text
//!              write, set_len                      sync
//!   file ───────────────────► as read (page cache) ─────► durable
//!                                    │
//!                                    └─ power cut: of each sector of 512 bytes written since the
//!                                       last sync, any one version or the durable one is kept
//! ```
//!
//! A seed decides everything, so that a failure can be run again. Operations are the reads, writes,
//! changes of length and syncs of both files. They are counted from 1 and through all openings. A
//! sync is of one file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk_store::{JournalFile, Openers};
use crate::rewrite::{self, FileTrust};
use ostler_model::rng::Rng;
use redb::StorageBackend;

/// The number of bytes that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOperation {
    /// A read of bytes.
    Read,
    /// A write of bytes.
    Write,
    /// A change of the length of the file.
    SetLen,
    /// A sync of everything before.
    Sync,
}

/// The fault of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The operation fails, and the disk works on. A write may have happened in part. After a
    /// failed sync, what was not durable is still on its way.
    Error,
    /// The same as `Error`, but after a failed sync the system treats unwritten data as written: it
    /// is read back until the power goes, and no later sync makes it durable.
    ErrorForgets,
    /// There is no room for any write or growth until [`FaultyDisk::lift`].
    Full,
    /// A sync reports success and does nothing. A later sync works.
    LostSync,
    /// The same as `LostSync`, and the power goes up to thirty operations later.
    LostSyncThenCut,
    /// The power goes before the operation.
    PowerCut,
    /// A write happens in part, and the power goes.
    TornWrite,
}

/// The operation at which a planned fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultAt {
    Number(usize),
    NextSync,
}

/// A disk with faults. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct FaultyDisk(Arc<Mutex<FaultyDiskInner>>);

/// One of the files on the disk, as the store opens it.
#[derive(Clone, Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    which: DiskFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskFile {
    Tree,
    Journal,
}

/// The content of a file.
#[derive(Default)]
struct Image {
    /// The content that a read returns.
    seen: Vec<u8>,
    /// The content that is certain to be there after a power cut.
    durable: Vec<u8>,
    /// The versions of each sector since the last sync, oldest first.
    unsynced: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// The lengths since the last sync.
    lengths: Vec<usize>,
}

struct FaultyDiskInner {
    tree: Image,
    journal_file: Image,
    journal: Vec<DiskOperation>,
    fault: Option<(FaultAt, DiskFault)>,
    happened: bool,
    powered: bool,
    full: bool,
    rng: Rng,
}

impl std::fmt::Debug for FaultyDiskInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("len", &self.tree.seen.len()).finish_non_exhaustive()
    }
}

impl FaultyDisk {
    /// A disk that holds `image`, which consists of whole sectors.
    #[must_use]
    pub fn new(image: &[u8], seed: u64) -> Self {
        let mut image = image.to_vec();
        image.resize(image.len().next_multiple_of(SECTOR), 0);
        Self(Arc::new(Mutex::new(FaultyDiskInner {
            tree: Image { seen: image.clone(), durable: image, ..Image::default() },
            journal_file: Image::default(),
            journal: Vec::new(),
            fault: None,
            happened: false,
            powered: true,
            full: false,
            rng: Rng::from_seed(seed),
        })))
    }

    /// The functions with which the store opens the files, with this many bytes of cache and of
    /// journal. The path is only for messages, but must be that of some file.
    #[must_use]
    pub fn openers(&self, cache: usize, journal_bytes: usize) -> Openers {
        let tree = FaultyFile { disk: self.clone(), which: DiskFile::Tree };
        let journal = FaultyFile { which: DiskFile::Journal, ..tree.clone() };
        Openers {
            tree: Box::new(move |_: &Path, shown| {
                if shown == FileTrust::Doubted {
                    rewrite::storage(&tree)?;
                }
                redb::Builder::new().set_cache_size(cache).create_with_backend(tree.clone())
            }),
            journal: Box::new(move |_| Ok(Some(Box::new(journal.clone()) as JournalFile))),
            journal_bytes,
        }
    }

    /// Plan a fault for the operation of this number, once.
    pub fn plan(&self, number: usize, fault: DiskFault) {
        let mut inner = self.inner();
        inner.fault = Some((FaultAt::Number(number), fault));
        inner.happened = false;
    }

    /// Plan a fault for the next sync, once.
    pub fn plan_sync(&self, fault: DiskFault) {
        let mut inner = self.inner();
        inner.fault = Some((FaultAt::NextSync, fault));
        inner.happened = false;
    }

    /// Whether the planned fault took place.
    #[must_use]
    pub fn has_fault_happened(&self) -> bool {
        self.inner().happened
    }

    /// Whether the power is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        !self.inner().powered
    }

    /// Whether the disk has no room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.inner().full
    }

    /// Give the disk room again.
    pub fn make_room(&self) {
        self.inner().full = false;
    }

    /// The operations so far, one entry for each.
    #[must_use]
    pub fn journal(&self) -> Vec<DiskOperation> {
        self.inner().journal.clone()
    }

    /// The number of operations so far.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.inner().journal.len()
    }

    /// Take back all faults, and give the disk room.
    pub fn clear_faults(&self) {
        let mut inner = self.inner();
        (inner.fault, inner.full) = (None, false);
    }

    /// Cut the power.
    pub fn cut_power(&self) {
        self.inner().powered = false;
    }

    /// Go on as after the process was killed: what it wrote is there.
    pub fn kill_process(&self) {
        let mut inner = self.inner();
        (inner.fault, inner.powered) = (None, true);
    }

    /// The content of the state file, as a read returns it.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        self.inner().tree.seen.clone()
    }

    /// The content of the journal, as a read returns it.
    #[must_use]
    pub fn journal_image(&self) -> Vec<u8> {
        self.inner().journal_file.seen.clone()
    }

    /// Cut the power, if there is any, and come back with what is durable and some of what is not.
    pub fn power_cycle(&self) {
        self.inner().power_cycle();
    }

    fn inner(&self) -> MutexGuard<'_, FaultyDiskInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn io_error(kind: io::ErrorKind) -> io::Error {
    io::Error::new(kind, "injected")
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(io::Error::other)
}

impl FaultyDiskInner {
    /// Count an operation. Returns the fault that happens with it.
    fn begin_operation(
        &mut self,
        operation: DiskOperation,
    ) -> Result<Option<DiskFault>, io::Error> {
        if !self.powered {
            return Err(io_error(io::ErrorKind::BrokenPipe));
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
                Err(io_error(io::ErrorKind::BrokenPipe))
            }
            DiskFault::Full => {
                self.full = true;
                Ok(Some(fault))
            }
            _ => Ok(Some(fault)),
        }
    }

    fn random_below(&self, bound: usize) -> usize {
        usize::try_from(self.rng.number_below(bound as u64)).unwrap_or(0)
    }

    fn file(&mut self, which: DiskFile) -> &mut Image {
        match which {
            DiskFile::Tree => &mut self.tree,
            DiskFile::Journal => &mut self.journal_file,
        }
    }

    /// Write some of `data`, from its start, as a write that fails midway leaves it.
    fn write_in_part(&mut self, which: DiskFile, offset: usize, data: &[u8]) {
        let sectors = data.len().div_ceil(SECTOR);
        let kept = self.random_below(sectors) * SECTOR;
        self.file(which).write(offset, data.get(..kept).unwrap_or(data));
    }

    /// Bring part of what is not durable onto the disk, and forget the rest.
    fn settle_in_part(&mut self, which: DiskFile) {
        let lengths = std::mem::take(&mut self.file(which).lengths);
        if let Some(len) = lengths.get(self.random_below(lengths.len() + 1)) {
            self.file(which).durable.resize(*len, 0);
        }
        // The shares are all, nothing, and several between.
        let share = [0, 8, 8, 32, 32, 56, 56].get(self.random_below(8)).copied().unwrap_or(64);
        for (sector, versions) in std::mem::take(&mut self.file(which).unsynced) {
            if self.rng.number_below(64) < share {
                let newest = self.rng.number_below(2) == 0;
                let older =
                    if newest { None } else { versions.get(self.random_below(versions.len())) };
                if let Some(version) = older.or(versions.last()) {
                    write_sector(&mut self.file(which).durable, sector, version);
                }
            }
        }
    }

    fn power_cycle(&mut self) {
        for which in [DiskFile::Tree, DiskFile::Journal] {
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
                write_sector(&mut self.durable, sector, version);
            }
        }
        self.lengths.clear();
    }
}

/// Write a version of a sector. A sector beyond the end is dropped.
fn write_sector(image: &mut [u8], sector: usize, version: &[u8; SECTOR]) {
    let start = sector * SECTOR;
    if let Some(target) = image.get_mut(start..start + SECTOR) {
        target.copy_from_slice(version);
    }
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> Result<u64, io::Error> {
        Ok(self.disk.inner().file(self.which).seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        if let Some(DiskFault::Error | DiskFault::ErrorForgets) =
            inner.begin_operation(DiskOperation::Read)?
        {
            return Err(io_error(io::ErrorKind::Other));
        }
        let start = size(offset)?;
        let found = inner.file(self.which).seen.get(start..start.saturating_add(out.len()));
        out.copy_from_slice(found.ok_or_else(|| io_error(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        let (fault, len) = (inner.begin_operation(DiskOperation::SetLen)?, size(len)?);
        if let Some(DiskFault::Error | DiskFault::ErrorForgets) = fault {
            return Err(io_error(io::ErrorKind::Other));
        }
        if inner.full && len > inner.file(self.which).seen.len() {
            return Err(io_error(io::ErrorKind::StorageFull));
        }
        inner.file(self.which).resize(len);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        let mut inner = self.disk.inner();
        match inner.begin_operation(DiskOperation::Sync)? {
            Some(DiskFault::Error) => Err(io_error(io::ErrorKind::Other)),
            Some(DiskFault::ErrorForgets) => {
                // The length belongs to the file system and is not lost by itself.
                let file = inner.file(self.which);
                file.durable.resize(file.seen.len(), 0);
                file.lengths.clear();
                inner.settle_in_part(self.which);
                Err(io_error(io::ErrorKind::Other))
            }
            Some(DiskFault::LostSync) => Ok(()),
            Some(DiskFault::LostSyncThenCut) => {
                let later = inner.random_below(30);
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
        let (fault, offset) = (inner.begin_operation(DiskOperation::Write)?, size(offset)?);
        match fault {
            Some(DiskFault::Error | DiskFault::ErrorForgets) => {
                inner.write_in_part(self.which, offset, data);
                Err(io_error(io::ErrorKind::Other))
            }
            Some(DiskFault::TornWrite) => {
                inner.write_in_part(self.which, offset, data);
                inner.powered = false;
                Err(io_error(io::ErrorKind::BrokenPipe))
            }
            _ if inner.full => {
                inner.write_in_part(self.which, offset, data);
                Err(io_error(io::ErrorKind::StorageFull))
            }
            _ => {
                inner.file(self.which).write(offset, data);
                Ok(())
            }
        }
    }
}
