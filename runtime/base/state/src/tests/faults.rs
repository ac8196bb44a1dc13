//! Runs one workload over a [`FaultyDisk`] with one fault, for each of its operations and each kind
//! of fault.
//!
//! ```text
//! script ─► StateStore ─► DiskBackend ─► both files on a FaultyDisk, fault at operation N
//!   │ acknowledged or not, batch by batch
//!   ▼
//! [`Model`]: every content the file may have ◄─ must be one of them ─ power cycle ─► opened again
//! ```
//!
//! Normally some workloads meet a fault only at every n-th operation, starting at another one each
//! time. With `OSTLER_SOAK=1` all do at every operation, with several seeds. A failure prints the
//! arguments with which [`run`] shows it again.

use std::sync::LazyLock;

use super::model::*;
use super::*;
use crate::backend::{Backend as _, Op};
use crate::disk_store::DiskBackend;
use crate::journal::BLOCK;
use crate::testing::disk::{DiskFault, DiskOperation, FaultyDisk};
use crate::{PutOutcome, StateError, StoreOptions};
use ostler_model::limits::STATE_CACHE_BYTES;
use ostler_model::rng::Rng;

#[derive(Clone, Debug)]
enum Step {
    One(Change),
    /// All at once: the first change is a commit of its own, the rest share the next one.
    Together(Vec<Change>),
    /// A write that may lag; it goes with the next commit.
    Later(usize, u16),
    Flush,
    Read(usize),
    /// Close the store and open it again, with the power on.
    Restart,
}

struct Workload {
    name: &'static str,
    script: fn() -> Vec<Step>,
    /// The size of the engine's cache in bytes.
    cache: usize,
    /// The size of the journal in bytes.
    journal: usize,
    /// Normally a fault happens only at one of this many operations.
    stride: usize,
}

static WORKLOADS: [Workload; 5] = [
    // The journal is filled and moved into the tree again and again; some batches do not fit.
    Workload {
        name: "short journal",
        script: usual,
        cache: STATE_CACHE_BYTES,
        journal: 5 * BLOCK,
        stride: 1,
    },
    Workload {
        name: "usual",
        script: usual,
        cache: STATE_CACHE_BYTES,
        journal: 64 * BLOCK,
        stride: 4,
    },
    Workload { name: "no journal", script: usual, cache: STATE_CACHE_BYTES, journal: 0, stride: 5 },
    // Pages are written before the commit and read back from the disk.
    Workload { name: "without cache", script: usual, cache: 0, journal: 5 * BLOCK, stride: 11 },
    Workload {
        name: "growing",
        script: growing,
        cache: STATE_CACHE_BYTES,
        journal: 5 * BLOCK,
        stride: 5,
    },
];

/// A script in which the file grows and shrinks. It is a script of its own, because such values
/// make each run several times slower.
fn growing() -> Vec<Step> {
    use Change::{Delete, Put};
    let steps = [Put(0, 1), Put(LARGE, 1), Put(1, 1), Delete(LARGE), Put(2, 1), Put(1, 2)];
    steps.map(Step::One).into()
}

fn usual() -> Vec<Step> {
    use Change::{Delete, Destroy, Put, Quarantine};
    use Step::{Flush, Later, One, Read, Restart, Together};
    vec![
        One(Put(11, 1)),
        One(Put(0, 1)),
        One(Put(2, 1)),
        Together(vec![Put(1, 1), Put(3, 1), Put(4, 1), Put(5, 1), Put(6, 1), Put(7, 1)]),
        Later(10, 3),
        Later(2, 3),
        One(Put(1, 2)),
        One(Put(1, 2)),
        Read(10),
        One(Put(10, 1)),
        One(Put(9, 3)),
        One(Put(2, 2)),
        One(Delete(10)),
        One(Put(10, 1)),
        Later(1, 4),
        One(Destroy(1)),
        One(Put(1, 3)),
        One(Put(8, 1)),
        Read(8),
        Later(9, 4),
        Restart,
        One(Quarantine(11)),
        Later(11, 2),
        Later(11, 1),
        Later(8, 3),
        Flush,
        Together(vec![Put(10, 2), Put(9, 1), Delete(8), Put(6, 2), Destroy(2), Put(11, 2)]),
        One(Delete(9)),
        One(Put(8, 2)),
        One(Put(9, 2)),
        One(Put(8, 2)),
    ]
}

/// The outcome of a change; `None` if it failed.
type Ended = Option<PutOutcome>;

/// One run: a disk, a store over it, and what is known of it.
struct Run {
    disk: FaultyDisk,
    path: std::path::PathBuf,
    model: Model,
    workload: &'static Workload,
    fault: DiskFault,
    rng: Rng,
    /// The number of calls that failed.
    failures: u32,
    /// The number of steps in which a call failed.
    failed: u32,
}

impl Run {
    fn open(&self) -> Result<(StateStore, Arc<FaultyBackend>), StateError> {
        let path = &self.path;
        let openers = self.disk.openers(self.workload.cache, self.workload.journal);
        let backend = DiskBackend::open_with(path, openers)
            .map_err(|error| StateError::from_open_error(path.clone(), error))?;
        // A store that lacks acknowledged changes says so. That is right only where a sync was lost.
        if backend.age().is_behind() && self.fault != DiskFault::LostSyncThenCut {
            let detail = format!("acknowledged changes are told missing: {:?}", backend.age());
            return Err(StateError::Damaged { path: path.clone(), detail });
        }
        let gate = FaultyBackend::new(Arc::new(backend));
        // The store does only what the script asks for, however slow the machine is.
        let options = StoreOptions { settle_idle: Duration::MAX, ..StoreOptions::default() };
        Ok((StateStore::with_backend_and(path, gate.clone(), options)?, gate))
    }

    /// Check that an error names the path and the right cause.
    fn judge(&mut self, error: &StateError) -> Check {
        self.failures += 1;
        let told = error.to_string();
        ensure(told.contains(self.path.to_str().unwrap()), || format!("no path in: {told}"))?;
        ensure(!matches!(error, StateError::Damaged { .. }), || {
            format!("an input or output error is told as damage: {told}")
        })?;
        if self.disk.is_full() {
            ensure(error.disk_full(), || format!("not told that the disk is full: {error:?}"))?;
        }
        Ok(())
    }

    fn ended(&mut self, result: Result<PutOutcome, StateError>) -> Result<Ended, String> {
        ensure(result.is_ok() || self.disk.has_fault_happened(), || {
            format!("failed without a fault: {result:?}")
        })?;
        match result {
            Ok(put) => Ok(Some(put)),
            Err(error) => self.judge(&error).map(|()| None),
        }
    }

    async fn step(&mut self, store: &StateStore, gate: &Arc<FaultyBackend>, step: &Step) -> Check {
        let before = self.failures;
        self.take(store, gate, step).await?;
        self.failed += u32::from(self.failures > before);
        Ok(())
    }

    async fn take(&mut self, store: &StateStore, gate: &Arc<FaultyBackend>, step: &Step) -> Check {
        match step {
            Step::One(change) => {
                self.model.announce(*change);
                let ended = self.ended(perform(store, *change).await)?;
                self.model.one(*change, ended)
            }
            Step::Later(n, version) => {
                let result = store.put_later(&key(*n), &value(*n, *version)).await;
                match result.map_err(|error| format!("refused to queue: {error:?}"))? {
                    PutOutcome::Queued => self.model.queued(*n, *version),
                    put => self.model.one(Change::Put(*n, *version), Some(put))?,
                }
                Ok(())
            }
            Step::Flush => {
                let flushed = self.ended(store.flush().await.map(|()| PutOutcome::Written))?;
                self.model.batch(&[], flushed.is_some());
                Ok(())
            }
            Step::Restart => Err("done elsewhere".to_owned()),
            Step::Together(changes) => self.together(store, gate, changes).await,
            Step::Read(n) => match store.get::<String>(&key(*n)) {
                Ok(found) => self.model.saw(*n, version_of(*n, found.as_deref())?),
                Err(error) => self.judge(&error),
            },
        }
    }

    async fn together(
        &mut self,
        store: &StateStore,
        gate: &Arc<FaultyBackend>,
        changes: &[Change],
    ) -> Check {
        changes.iter().for_each(|change| self.model.announce(*change));
        let mut ended = Vec::new();
        for (share, result) in together(store, gate, changes).await {
            ended.push((share, self.ended(result)?));
        }
        self.model.together(changes, &ended)
    }

    /// Open the store, if need be a second time; `None` if the power is gone.
    fn start(&mut self) -> Result<Option<(StateStore, Arc<FaultyBackend>)>, String> {
        let error = match self.open() {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => error,
        };
        self.judge(&error)?;
        self.failed += 1;
        self.disk.make_room();
        if self.disk.is_off() {
            return Ok(None);
        }
        self.open().map(Some).map_err(|error| format!("not opened after one error: {error:?}"))
    }

    /// Run the script until its end or until the power goes.
    async fn work(&mut self) -> Check {
        let mut started = self.start()?;
        for step in (self.workload.script)() {
            let Some((store, gate)) = started.clone() else { return Ok(()) };
            match step {
                // Nobody learns of a sync that fails while the store is closed.
                Step::Restart if self.fault == DiskFault::ErrorForgets => {}
                Step::Restart => {
                    drop((store, gate, started.take()));
                    self.model.batch(&[], !self.disk.has_fault_happened());
                    self.model.later.clear();
                    self.model.destroyed.clear();
                    started = self.start()?;
                }
                step => self.step(&store, &gate, &step).await?,
            }
            if self.disk.is_off() {
                break;
            }
            if self.failures >= 3 {
                self.disk.make_room();
            }
        }
        let excused = match self.fault {
            DiskFault::LostSync => 0,
            DiskFault::Error | DiskFault::ErrorForgets => 1,
            _ => u32::MAX,
        };
        ensure(self.failed <= excused, || format!("one fault failed {} steps", self.failed))?;
        // A later sync makes a lost one good, such as those of a close. In other cases the store is
        // closed or not.
        if self.fault != DiskFault::LostSync && self.rng.number_below(2) == 0 {
            self.disk.cut_power();
        }
        drop(started);
        Ok(())
    }

    /// Cut the power again while the first opening repairs.
    fn interrupt_a_repair(&self) {
        if self.rng.number_below(2) == 0 {
            return;
        }
        let number =
            self.disk.journal().len() + 1 + usize::try_from(self.rng.number_below(80)).unwrap();
        self.disk.plan(number, DiskFault::PowerCut);
        drop(self.open());
        self.disk.power_cycle();
    }

    async fn verify(&mut self) -> Check {
        self.disk.power_cycle();
        let may_be_damaged = self.fault == DiskFault::LostSyncThenCut;
        if may_be_damaged {
            self.model.possible.append(&mut self.model.ever);
        } else {
            self.interrupt_a_repair();
        }
        let (store, gate) = match self.open() {
            Ok(opened) => opened,
            Err(StateError::Damaged { path, .. }) if may_be_damaged && path == self.path => {
                return Ok(());
            }
            Err(error) => return Err(format!("does not open: {error:?}")),
        };
        // The content is known now, and the store works on.
        self.model.later.clear();
        self.model.destroyed.clear();
        let found = self.look(&store)?;
        let commits = gate.commits();
        if let Some(n) = (0..KEYS).find(|n| found[*n] != 0) {
            self.step(&store, &gate, &Step::One(Change::Put(n, found[n]))).await?;
            ensure(gate.commits() == commits, || "a value that is there was written".to_owned())?;
        }
        for step in [Change::Put(0, 6), Change::Put(4, 5), Change::Destroy(2), Change::Delete(10)] {
            let failures = self.failures;
            self.step(&store, &gate, &Step::One(step)).await?;
            ensure(self.failures == failures, || format!("{step:?} failed afterwards"))?;
        }
        drop((store, gate));
        let (store, _) = self.open().map_err(|error| format!("does not open again: {error:?}"))?;
        self.look(&store).map(drop)
    }

    /// The content of the store that was just opened, which must be one that is allowed.
    fn look(&mut self, store: &StateStore) -> Result<[u16; KEYS], String> {
        let report = store.open_report();
        ensure(report.quarantined.is_empty(), || format!("damaged: {:?}", report.quarantined))?;
        let found = records(store)?;
        self.model.found(found, report.in_quarantine)?;
        Ok(found)
    }
}

static EMPTY: LazyLock<Vec<u8>> = LazyLock::new(empty_state_file);

/// Run the workload with one fault, or with none at 0. Returns the operations of the disk.
fn run(
    workload: &'static Workload,
    fault: DiskFault,
    number: usize,
    seed: u64,
) -> Result<Vec<DiskOperation>, String> {
    let (dir, path) = named();
    let disk = FaultyDisk::new(&EMPTY, seed);
    disk.plan(number, fault);
    let (model, rng) = (Model::new(), Rng::from_seed(!seed));
    let mut run = Run { disk, path, model, workload, fault, rng, failures: 0, failed: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = runtime.block_on(async {
        run.work().await?;
        let journal = run.disk.journal();
        run.verify().await?;
        Ok(journal)
    });
    drop(dir);
    journal
}

/// A name for what is on the disk, in a directory of its own.
fn named() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    std::fs::write(&path, "").unwrap();
    (dir, path)
}

/// The runs of one kind of fault: at each operation it can happen to, or at each n-th.
fn at_every_operation(fault: DiskFault, can: fn(DiskOperation) -> bool) {
    for workload in &WORKLOADS {
        let journal = run(workload, fault, 0, 0).unwrap();
        let numbers = journal.iter().enumerate().filter(|(_, op)| can(**op)).map(|(n, _)| n + 1);
        let numbers: Vec<usize> = numbers.collect();
        assert!(numbers.len() > 8, "{} operations", numbers.len());
        let (stride, seeds) = match (soak(), numbers.len()) {
            (true, _) => (1, 4),
            // There are few syncs, and each decides over much.
            (false, ..50) => (workload.stride, 4),
            (false, _) => (workload.stride, 1),
        };
        let offset = usize::try_from(Rng::system().number_below(stride as u64)).unwrap();
        let chosen = numbers.iter().skip(offset).step_by(stride);
        let seeded = chosen.flat_map(|n| (0..seeds).map(|seed| (*n, *n as u64 + (seed << 32))));
        let rounds: Vec<(usize, u64)> = seeded.collect();
        let failed = rounds.iter().filter_map(|(number, seed)| {
            let what = run(workload, fault, *number, *seed).err()?;
            Some(format!("{}, {fault:?} at {number}, seed {seed}: {what}", workload.name))
        });
        let failed: Vec<String> = failed.collect();
        let (name, runs, of) = (workload.name, rounds.len(), journal.len());
        println!("{name}, {fault:?}: {runs} runs over {of} operations");
        assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    }
}

fn changes(operation: DiskOperation) -> bool {
    operation != DiskOperation::Read
}

#[test]
fn an_error_at_any_operation_loses_nothing_that_was_acknowledged() {
    at_every_operation(DiskFault::Error, |_| true);
}

#[test]
fn a_sync_that_fails_and_forgets_loses_nothing_that_was_acknowledged() {
    at_every_operation(DiskFault::ErrorForgets, |op| op == DiskOperation::Sync);
}

#[test]
fn a_disk_full_from_any_operation_on_loses_nothing_that_was_acknowledged() {
    at_every_operation(DiskFault::Full, changes);
}

#[test]
fn a_lost_sync_is_made_good_by_a_later_one() {
    at_every_operation(DiskFault::LostSync, |op| op == DiskOperation::Sync);
}

#[test]
fn a_power_cut_after_a_lost_sync_goes_back_to_some_commit_or_is_told_as_damage() {
    at_every_operation(DiskFault::LostSyncThenCut, |op| op == DiskOperation::Sync);
}

#[test]
fn a_power_cut_at_any_operation_loses_nothing_that_was_acknowledged() {
    at_every_operation(DiskFault::PowerCut, changes);
}

#[test]
fn a_torn_write_at_any_operation_loses_nothing_that_was_acknowledged() {
    at_every_operation(DiskFault::TornWrite, |op| op == DiskOperation::Write);
}

#[test]
fn the_same_run_does_the_same_operations() {
    for workload in &WORKLOADS {
        let clean = || run(workload, DiskFault::Error, 0, 1).unwrap();
        assert_eq!(clean(), clean(), "{}", workload.name);
    }
}

#[test]
fn a_sync_that_fails_and_forgets_is_made_good_before_another_process_opens_the_file() {
    forgotten_by(0);
}

#[test]
fn what_the_journal_forgets_is_made_good_before_another_process_opens_the_file() {
    forgotten_by(64 * BLOCK);
}

/// Let a sync fail and forget; it is in the tree if the journal has no room.
fn forgotten_by(journal_bytes: usize) {
    let (_dir, path) = named();
    let open = |disk: &FaultyDisk| {
        DiskBackend::open_with(&path, disk.openers(STATE_CACHE_BYTES, journal_bytes)).unwrap()
    };
    let key = |n: u8| [n; 3];
    let put = |n| Op::Put { key: key(n).into(), value: vec![n; 3_000].into() };
    let before = |disk: &FaultyDisk| {
        let backend = open(disk);
        (0..10).for_each(|n| backend.commit(&[put(n)]).unwrap());
        backend
    };
    let disk = FaultyDisk::new(&EMPTY, 0);
    let backend = before(&disk);
    let begin = disk.journal().len();
    backend.commit(&[put(10)]).unwrap();
    let sync = disk.journal()[begin..].iter().position(|op| *op == DiskOperation::Sync).unwrap();
    for seed in 0..60 {
        let disk = FaultyDisk::new(&EMPTY, seed);
        let backend = before(&disk);
        disk.plan(begin + sync + 1, DiskFault::ErrorForgets);
        // Without the journal the tree takes the batch.
        assert_eq!(backend.commit(&[put(10)]).is_ok(), journal_bytes > 0);
        // The process is killed here, so nothing more is done through the backend.
        std::mem::forget(backend);
        let other = open(&disk);
        (20..25).for_each(|n| other.commit(&[put(n)]).unwrap());
        std::mem::forget(other);
        disk.power_cycle();
        let found = open(&disk);
        let acknowledged = if journal_bytes > 0 { 0..11 } else { 0..10 };
        for n in acknowledged.chain(20..25) {
            let value = found.get(&key(n)).unwrap();
            assert_eq!(value, Some(vec![n; 3_000]), "seed {seed}, record {n}");
        }
    }
}
