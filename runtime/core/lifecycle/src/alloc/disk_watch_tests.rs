#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::super::dir::AllocDirError;
use super::*;
use ostler_model::rng::Rng;

const LAST: DiskMeasurement = DiskMeasurement { bytes: 100, filled: 10_000, spared: 0 };
const LIMIT: u64 = 300;

#[test]
fn a_directory_is_not_walked_while_the_file_system_took_in_little() {
    let spared = WalkDecision::Spare(DiskMeasurement { spared: 1, ..LAST });
    assert_eq!(LAST.decide_walk(10_099, LIMIT), spared, "less than half of what is left");
    assert_eq!(LAST.decide_walk(10_100, LIMIT), WalkDecision::Walk, "half of it");
    assert_eq!(LAST.decide_walk(10_000, 50), WalkDecision::Walk, "above its limit already");
}

#[test]
fn what_is_written_after_others_removed_much_is_seen() {
    let WalkDecision::Spare(after) = LAST.decide_walk(4_000, LIMIT) else {
        panic!("the file system shrank")
    };
    assert_eq!(after.filled, 4_000);
    assert_eq!(after.decide_walk(4_100, LIMIT), WalkDecision::Walk);
}

#[test]
fn it_is_walked_at_times_without_a_reason() {
    let mut known = LAST;
    let mut spared = 0;
    while let WalkDecision::Spare(next) = known.decide_walk(10_000, LIMIT) {
        (known, spared) = (next, spared + 1);
    }
    assert_eq!(spared, DISK_WALKS_SPARED_MAX);
    assert_eq!(
        known.decide_walk(9_000, LIMIT),
        WalkDecision::AtLeisure(DiskMeasurement { filled: 9_000, ..known })
    );
    assert_eq!(known.decide_walk(10_100, LIMIT), WalkDecision::Walk, "there is a reason");
}

/// A disk on which each walk takes as long as it is told.
#[derive(Default)]
struct Disk {
    looks: AtomicUsize,
    walks: Mutex<Vec<AllocId>>,
    filled: AtomicU64,
    bytes: AtomicU64,
}

impl DiskMeter for Disk {
    fn measure_alloc(
        &self,
        _: &Path,
        alloc: AllocId,
        _: &CancellationToken,
    ) -> Result<AllocDiskUse, AllocDirError> {
        self.walks.lock().unwrap().push(alloc);
        let bytes = self.bytes.load(Ordering::SeqCst);
        Ok(AllocDiskUse { bytes, complete: true, ..AllocDiskUse::default() })
    }

    fn filled_bytes(&self, _: &Path) -> Option<u64> {
        self.looks.fetch_add(1, Ordering::SeqCst);
        Some(self.filled.load(Ordering::SeqCst))
    }
}

struct Bench {
    disk: Arc<Disk>,
    watch: DiskWatch,
    rng: Rng,
    /// Those to be added have nothing yet.
    new: bool,
    /// What they may have, MiB, is stated by their jobs.
    stated: bool,
    owners: Vec<(AllocId, queue::QueueReceiver<Box<HookNews>>)>,
}

impl Bench {
    fn new(allocations: usize) -> Self {
        // A walk takes no time here, on a thread of its own either.
        clock::simulate();
        let disk = Arc::new(Disk::default());
        let meter = Arc::clone(&disk) as Arc<dyn DiskMeter>;
        let watch = DiskWatch::new(PathBuf::new(), meter, Clock::default());
        let mut bench = Self {
            disk,
            watch,
            rng: Rng::from_seed(1),
            new: false,
            stated: true,
            owners: Vec::new(),
        };
        (0..allocations).for_each(|_| bench.add());
        bench
    }

    fn add(&mut self) {
        let id = AllocId::new(self.rng.uuid());
        let (owner, news) = queue::channel(1);
        let size =
            EphemeralDisk { size_mb: 1, size_stated: self.stated, ..EphemeralDisk::default() };
        self.watch.watch(id, size, self.new, owner);
        self.owners.push((id, news));
    }

    /// Let time pass; who was walked meanwhile, and how often was it asked how full the disk is.
    async fn pass(&self, time: Duration) -> (Vec<AllocId>, usize) {
        clock::sleep(time + Duration::from_millis(1)).await;
        let walks = std::mem::take(&mut *self.disk.walks.lock().unwrap());
        (walks, self.disk.looks.swap(0, Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn one_question_serves_all_and_each_is_walked_once_while_nothing_is_written() {
    let bench = Bench::new(300);
    assert_eq!(bench.pass(DISK_MEASURE_INTERVAL - DISK_LOOK_INTERVAL).await, (vec![], 5));
    let (walks, looks) = bench.pass(DISK_LOOK_INTERVAL).await;
    assert_eq!((walks.len(), looks), (300, 1));
    assert_eq!(bench.pass(10 * DISK_MEASURE_INTERVAL).await, (vec![], 60));
    bench.disk.filled.store(MIB / 2, Ordering::SeqCst);
    let (walks, looks) = bench.pass(DISK_MEASURE_INTERVAL).await;
    assert_eq!((walks.len(), looks), (300, 6), "as much as would bring each half way");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_too_large_is_told_once_and_not_measured_any_more() {
    let mut bench = Bench::new(1);
    bench.disk.bytes.store(2 * MIB, Ordering::SeqCst);
    assert_eq!(bench.pass(DISK_MEASURE_INTERVAL).await.0.len(), 1);
    let news = bench.owners[0].1.try_recv().map(|news| *news);
    assert!(matches!(news, Some(HookNews::Force { status: ClientStatus::Failed, .. })), "{news:?}");
    bench.disk.filled.store(9 * MIB, Ordering::SeqCst);
    assert_eq!(bench.pass(10 * DISK_MEASURE_INTERVAL).await, (vec![], 0));
    bench.add();
    let (walks, _) = bench.pass(DISK_MEASURE_INTERVAL).await;
    assert_eq!(walks, [bench.owners[1].0], "somebody looks again");
}

#[tokio::test(start_paused = true)]
async fn of_a_size_that_nobody_stated_people_are_told_once_and_nothing_ends() {
    let mut bench = Bench::new(0);
    bench.stated = false;
    bench.add();
    bench.disk.bytes.store(2 * MIB, Ordering::SeqCst);
    assert_eq!(bench.pass(DISK_MEASURE_INTERVAL).await.0.len(), 1);
    let news = bench.owners[0].1.try_recv().map(|news| *news);
    let Some(HookNews::Say(event)) = news else { panic!("{news:?}") };
    assert!(event.kind == EventKind::DiskExceeded && !event.fails_task, "{event:?}");
    bench.disk.filled.store(9 * MIB, Ordering::SeqCst);
    assert_eq!(bench.pass(10 * DISK_MEASURE_INTERVAL).await, (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn who_is_forgotten_or_has_no_owner_is_not_measured() {
    let mut bench = Bench::new(3);
    let (id, _news) = bench.owners.remove(0);
    bench.watch.forget(id);
    bench.owners.pop();
    let (walks, _) = bench.pass(DISK_MEASURE_INTERVAL).await;
    assert_eq!(walks, [bench.owners[0].0]);
}

#[tokio::test(start_paused = true)]
async fn a_new_one_is_not_walked_before_something_was_written() {
    let mut bench = Bench::new(1);
    bench.pass(DISK_LOOK_INTERVAL).await;
    (bench.new, bench.owners) = (true, Vec::new());
    bench.add();
    assert_eq!(bench.pass(10 * DISK_MEASURE_INTERVAL).await.0, []);
    bench.disk.filled.store(MIB / 2, Ordering::SeqCst);
    assert_eq!(bench.pass(DISK_MEASURE_INTERVAL).await.0, [bench.owners[0].0]);
}

#[test]
fn those_without_a_reason_take_turns() {
    let mut table = DiskWatchTable { now: 100, ..DiskWatchTable::default() };
    let rng = Rng::from_seed(1);
    for _ in 0..4 {
        let (owner, _) = queue::channel(1);
        let last = Some(DiskMeasurement { spared: DISK_WALKS_SPARED_MAX, ..LAST });
        let watched = WatchedDisk {
            disk: EphemeralDisk { size_mb: 1, ..EphemeralDisk::default() },
            owner,
            due: 0,
            last,
        };
        table.watched.insert(AllocId::new(rng.uuid()), watched);
    }
    let ids: Vec<_> = table.watched.keys().copied().collect();
    table.last = ids[1];
    let (walk, leisure) = table.choose(Some(LAST.filled));
    assert_eq!((walk, leisure), (vec![], vec![ids[2], ids[3], ids[0], ids[1]]));
    assert_eq!(table.choose(Some(LAST.filled)), (vec![], vec![]), "each is due in a minute");
}
