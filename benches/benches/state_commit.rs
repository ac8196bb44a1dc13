//! Distinct writes by 1, 8, 64 and 512 writers at once, each waiting until its write is durable;
//! against one raw 4 KiB overwrite + fdatasync, one raw append + fdatasync, as many threads on
//! the bare storage engine with a transaction per write, and as many writers of the same bytes to a raw
//! log with group commit.
//!
//! A disk's speed drifts over seconds, so all take turns in slices of some milliseconds. Ratios are
//! of two slices of one round: medians over those rounds in which no slice was kept waiting by other
//! programs, each judged by its own best rounds. Latencies are those of all rounds. Subject and bare
//! engine hold the records of 1,000 allocations; one writer is measured with one allocation too,
//! because a larger file has more pages to write per commit.
//!
//! At the end the file's growth: 100,000 overwrites of 1,000 keys, then `compact`.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ostler_benches::bare_redb::BareRedb;
use ostler_benches::cost::{Cost, Meter};
use ostler_benches::counting::Counting;
use ostler_benches::fixture::{Records, encode, fill};
use ostler_benches::machine::{BenchDir, runtime, scaled, show};
use ostler_benches::percentiles::{median, micros, number, per, quantile, size};
use ostler_benches::promise::Promises;
use ostler_benches::raw_disk::RawDisk;
use ostler_benches::raw_log::RawLog;
use ostler_benches::report::{Report, bench};
use ostler_model::clock::Stopwatch;
use ostler_model::task::TaskState;
use ostler_state::testing::AnyKey;
use ostler_state::{KeyPrefix, PutOutcome, StateStore, inspect};
use tokio::runtime::Runtime;

#[global_allocator]
static COUNTING: Counting = Counting;

/// What one writer writes.
type Own = (AnyKey, TaskState);

struct Subjects {
    runtime: Runtime,
    dir: BenchDir,
    store: StateStore,
    bare: Arc<BareRedb>,
    log: Arc<RawLog>,
    overwrite: RawDisk,
    append: RawDisk,
    /// One task state of each allocation.
    tasks: Vec<Own>,
    /// In the values: none is written twice.
    serial: u64,
}

/// One slice of one way to write.
#[derive(Clone, Copy, Default)]
struct Slice {
    p50: f64,
    per_second: f64,
    writes: u64,
    commits: u64,
    cost: Cost,
}

impl Slice {
    /// With the latencies in microseconds.
    fn of(times: &[Duration], commits: u64, cost: Cost) -> (Self, Vec<f64>) {
        let mut micros = micros(times);
        let writes = u64::try_from(times.len()).unwrap_or(0);
        let slice = Self {
            p50: quantile(&mut micros, 0.5),
            per_second: number(writes) / cost.wall.as_secs_f64(),
            writes,
            commits,
            cost,
        };
        (slice, micros)
    }
}

/// The slices of one way to write, one per round, and the latencies of all of them.
#[derive(Default)]
struct Rounds {
    slices: Vec<Slice>,
    micros: Vec<f64>,
}

impl Rounds {
    fn push(&mut self, (slice, micros): (Slice, Vec<f64>)) {
        self.slices.push(slice);
        self.micros.extend(micros);
    }

    fn median(&self, of: impl Fn(&Slice) -> f64) -> f64 {
        median(&self.slices.iter().map(of).collect::<Vec<_>>())
    }

    /// In which rounds nothing else kept this waiting: the latency in the middle was near the best
    /// of all rounds.
    fn quiet(&self) -> Vec<bool> {
        let bound = quantile(&mut self.micros.clone(), 0.01) * 1.5;
        self.slices.iter().map(|slice| slice.p50 <= bound).collect()
    }

    /// Median over the quiet rounds of the ratio of two slices of one round.
    fn ratio(&self, other: &Self, quiet: &[bool], of: impl Fn(&Slice) -> f64) -> f64 {
        let pairs = self.slices.iter().zip(&other.slices).zip(quiet);
        let quiet = pairs.filter_map(|(pair, quiet)| quiet.then_some(pair));
        median(&quiet.map(|(one, two)| of(one) / of(two)).collect::<Vec<_>>())
    }

    fn print(&mut self, name: &str) {
        println!(
            "{name:<26} {:>9.1} {:>9.1} {:>9.0} {:>8.2} {:>8.2} {:>8.2} {:>8.0} {:>7.1}",
            quantile(&mut self.micros, 0.5),
            quantile(&mut self.micros, 0.99),
            self.median(|one| one.per_second),
            self.median(|one| per(one.writes, one.commits)),
            self.median(|one| per(one.writes, one.cost.syncs)),
            self.median(|one| per(one.cost.write_calls, one.writes)),
            self.median(|one| per(one.cost.disk_bytes, one.writes)),
            self.median(|one| one.cost.cpu.as_secs_f64() * 1e6 / number(one.writes)),
        );
    }
}

/// The rounds in which all of them were quiet.
fn all_quiet(all: [&Rounds; 3]) -> Vec<bool> {
    let [one, two, three] = all.map(Rounds::quiet);
    let pairs = one.into_iter().zip(two).zip(three);
    pairs.map(|((one, two), three)| one && two && three).collect()
}

/// Latency of one writer in the quiet rounds as a ratio. On a machine so busy that there are next to
/// none: the ratio of the best latencies, which other programs do not change.
fn one_writer(store: &mut Rounds, overwrite: &mut Rounds, quiet: &[bool]) -> f64 {
    const FEWEST: usize = 5;
    if quiet.iter().filter(|quiet| **quiet).count() >= FEWEST {
        return store.ratio(overwrite, quiet, |one| one.p50);
    }
    println!("warning: the machine is busy; the ratio is that of the 1st percentiles");
    quantile(&mut store.micros, 0.01) / quantile(&mut overwrite.micros, 0.01)
}

fn main() -> ExitCode {
    bench("state_commit", commits)
}

fn commits(report: &mut Report) {
    println!(
        "\nlatencies of all rounds, else medians over the rounds; latencies in µs, cpu in µs per write"
    );
    println!(
        "{:<26} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>7}",
        "", "p50", "p99", "writes/s", "w/commit", "w/sync", "calls/w", "B disk/w", "cpu"
    );
    println!("1 allocation in the file");
    let mut subjects = Subjects::new(BenchDir::new(), 1);
    let [ratio, ..] = subjects.compare(1, report);
    let promises = &mut report.promises;
    promises.at_most("distinct_write_1_vs_raw_overwrite_small_file", ratio, "times", 1.5);
    let filled = scaled(1_000, 10);
    println!("{filled} allocations in the file");
    subjects = Subjects::new(BenchDir::new(), filled);
    let [ratio, ..] = subjects.compare(1, report);
    report.promises.at_most("distinct_write_1_vs_raw_overwrite", ratio, "times", 1.5);
    subjects.compare(8, report);
    let [_, per_sync, ratio, of_log] = subjects.compare(64, report);
    let promises = &mut report.promises;
    promises.at_least("distinct_write_64_per_fsync", per_sync, "writes", 20.0);
    promises.at_least("distinct_write_64_vs_bare_redb", ratio, "times", 8.0);
    promises.at_least("distinct_write_64_vs_raw_log", of_log, "times", 0.7);
    subjects.compare(512, report);
    growth(&subjects, &mut report.promises);
}

impl Subjects {
    fn new(dir: BenchDir, filled: u64) -> Self {
        let runtime = runtime();
        let store = StateStore::open(&dir.path().join("store")).expect("a store");
        runtime.block_on(fill(&store, 0..filled));
        let bare = BareRedb::create(&dir.path().join("bare"));
        for number in 0..filled {
            let records = Records::new(number).encoded();
            bare.put_all(records.iter().map(|(key, record)| (&**key, &**record)));
        }
        Self {
            runtime,
            store,
            bare: Arc::new(bare),
            log: Arc::new(RawLog::create(dir.path())),
            overwrite: RawDisk::overwrite(dir.path()),
            append: RawDisk::append(dir.path()),
            dir,
            tasks: (0..filled)
                .map(|number| Records::new(number).tasks.into_iter().next().expect("a task"))
                .collect(),
            serial: 0,
        }
    }

    /// The ratio of latencies to the raw overwrite, writes per sync, and the ratios of throughputs to
    /// the bare engine and to the raw log.
    fn compare(&mut self, writers: u64, report: &mut Report) -> [f64; 4] {
        let (mut overwrite, mut append) = (Rounds::default(), Rounds::default());
        let (mut store, mut bare) = (Rounds::default(), Rounds::default());
        let mut log = Rounds::default();
        // Short against the disk's drift, long against starting so many writers.
        let millis = if writers > 100 { 300 } else { 4 + writers };
        let slice = Duration::from_millis(scaled(millis, 5));
        for _ in 0..scaled(10_000 / millis / 4, 2) {
            overwrite.push(raw(&mut self.overwrite, slice));
            store.push(self.through_store(writers, slice));
            log.push(self.through_log(writers, slice));
            append.push(raw(&mut self.append, slice));
            bare.push(self.through_bare(writers, slice));
        }
        overwrite.print("raw overwrite + fdatasync");
        append.print("raw append + fdatasync");
        store.print(&format!("store, {writers} writers"));
        bare.print(&format!("bare redb, {writers} threads"));
        log.print(&format!("raw log, {writers} writers"));
        let file = self.tasks.len();
        let title = format!("durable writes, {writers} writers, {file} allocations in the file");
        let rows = [
            ("the store", &*store.micros),
            ("bare redb", &*bare.micros),
            ("raw log", &*log.micros),
            ("raw append + fdatasync", &*append.micros),
            ("raw overwrite + fdatasync", &*overwrite.micros),
        ];
        report.samples(&title, "µs", rows);
        // Many writers wait for each other: their latencies do not tell a quiet round.
        let quiet = match writers {
            1 => all_quiet([&overwrite, &store, &bare]),
            _ => vec![true; overwrite.slices.len()],
        };
        let (p50, rate) = (|one: &Slice| one.p50, |one: &Slice| one.per_second);
        println!(
            "{:<26} p50 {:.2} x overwrite, {:.2} x append; throughput {:.2} x bare redb, {:.2} x raw \
             log; bare redb p50 {:.2} x overwrite; {} of {} rounds were quiet",
            "",
            store.ratio(&overwrite, &quiet, p50),
            store.ratio(&append, &quiet, p50),
            store.ratio(&bare, &quiet, rate),
            store.ratio(&log, &quiet, rate),
            bare.ratio(&overwrite, &quiet, p50),
            quiet.iter().filter(|quiet| **quiet).count(),
            quiet.len()
        );
        [
            one_writer(&mut store, &mut overwrite, &quiet),
            store.median(|one| per(one.writes, one.cost.syncs)),
            store.ratio(&bare, &quiet, rate),
            store.ratio(&log, &quiet, rate),
        ]
    }

    /// What each writer changes all the time: a task state of its own, with a number in it that was
    /// never written before.
    fn own(&mut self, writers: u64) -> Vec<Own> {
        let range = self.tasks.iter().cycle().take(usize::try_from(writers).unwrap_or(1));
        let mut serial = self.serial;
        let all = range.map(|own| {
            serial += 1 << 32;
            (own.0.clone(), TaskState { restarts: serial, ..own.1.clone() })
        });
        let all = all.collect();
        self.serial = serial;
        all
    }

    fn through_store(&mut self, writers: u64, slice: Duration) -> (Slice, Vec<f64>) {
        let own = self.own(writers);
        let commits = self.store.stats().commits;
        let meter = Meter::start();
        let times = self.runtime.block_on(async {
            let start = |own| tokio::spawn(write_for(self.store.clone(), own, slice));
            let tasks: Vec<_> = own.into_iter().map(start).collect();
            let mut times = Vec::new();
            for task in tasks {
                times.extend(task.await.expect("the writer ends"));
            }
            times
        });
        let cost = meter.stop();
        Slice::of(&times, self.store.stats().commits - commits, cost)
    }

    /// As many bytes a write as the store's records have.
    fn through_log(&mut self, writers: u64, slice: Duration) -> (Slice, Vec<f64>) {
        let own = self.own(writers);
        let meter = Meter::start();
        let times = self.runtime.block_on(async {
            let start = |own| tokio::spawn(log_for(Arc::clone(&self.log), own, slice));
            let tasks: Vec<_> = own.into_iter().map(start).collect();
            let mut times = Vec::new();
            for task in tasks {
                times.extend(task.await.expect("the writer ends"));
            }
            times
        });
        let cost = meter.stop();
        Slice::of(&times, cost.syncs, cost)
    }

    fn through_bare(&mut self, writers: u64, slice: Duration) -> (Slice, Vec<f64>) {
        let own = self.own(writers);
        let meter = Meter::start();
        let start = |own| {
            let bare = Arc::clone(&self.bare);
            std::thread::spawn(move || bare_for(&bare, own, slice))
        };
        let threads: Vec<_> = own.into_iter().map(start).collect();
        let mut times = Vec::new();
        for thread in threads {
            times.extend(thread.join().expect("the thread ends"));
        }
        let cost = meter.stop();
        let commits = u64::try_from(times.len()).unwrap_or(0);
        Slice::of(&times, commits, cost)
    }
}

async fn write_for(store: StateStore, (key, mut task): Own, slice: Duration) -> Vec<Duration> {
    let whole = Stopwatch::start();
    let mut times = Vec::new();
    while whole.elapsed() < slice {
        task.restarts += 1;
        let one = Stopwatch::start();
        let put = store.put(&key, &task).await.expect("the write");
        times.push(one.elapsed());
        assert_eq!(put, PutOutcome::Written, "every value is new");
    }
    times
}

async fn log_for(log: Arc<RawLog>, (key, task): Own, slice: Duration) -> Vec<Duration> {
    let (key, record) = encode(&key.0, &task);
    let bytes = [key, record].concat();
    let whole = Stopwatch::start();
    let mut times = Vec::new();
    while whole.elapsed() < slice {
        let one = Stopwatch::start();
        log.write(&bytes).await;
        times.push(one.elapsed());
    }
    times
}

fn bare_for(bare: &BareRedb, (key, mut task): Own, slice: Duration) -> Vec<Duration> {
    let whole = Stopwatch::start();
    let mut times = Vec::new();
    while whole.elapsed() < slice {
        task.restarts += 1;
        let one = Stopwatch::start();
        let (key, record) = encode(&key.0, &task);
        bare.put(&key, &record);
        times.push(one.elapsed());
    }
    times
}

fn raw(disk: &mut RawDisk, slice: Duration) -> (Slice, Vec<f64>) {
    let meter = Meter::start();
    let times = disk.run_for(slice);
    let cost = meter.stop();
    Slice::of(&times, cost.syncs, cost)
}

/// 100,000 overwrites of 1,000 keys by many writers, then the file against what lives in it.
fn growth(subjects: &Subjects, promises: &mut Promises) {
    const WRITERS: u64 = 250;
    let keys = scaled(1_000, 100);
    let overwrites = scaled(100_000, 1_000);
    let path = subjects.dir.path().join("growth");
    let store = StateStore::open(&path).expect("a store");
    let per_key = overwrites / keys + 1;
    let watch = Stopwatch::start();
    subjects.runtime.block_on(async {
        let writers = WRITERS.min(keys);
        let tasks: Vec<_> = (0..writers)
            .map(|writer| {
                tokio::spawn(overwrite(
                    store.clone(),
                    (writer..keys).step_by(usize::try_from(writers).unwrap_or(1)).collect(),
                    per_key,
                ))
            })
            .collect();
        for task in tasks {
            task.await.expect("the writer ends");
        }
    });
    let took = watch.elapsed();
    let live = live_bytes(&store);
    let open = file_size(&path);
    subjects.runtime.block_on(store.close());
    drop(store);
    let closed = file_size(&path);
    println!(
        "\ngrowth: {overwrites} overwrites of {keys} keys in {}; live {live} bytes; file {open} \
         bytes ({:.2} x live), {closed} when closed",
        show(took),
        size(open) / size(live)
    );
    let watch = Stopwatch::start();
    let compacted = inspect::compact(&path).expect("the file is compacted");
    let took = watch.elapsed();
    let compact = file_size(&path);
    println!(
        "compact: {} bytes -> {} bytes in {} ({:.2} x live)",
        compacted.before,
        compacted.after,
        show(took),
        size(compact) / size(live)
    );
    let store = StateStore::open(&path).expect("the compacted file");
    assert_eq!(live_bytes(&store), live, "every record is still there");
    promises.at_most("file_growth", size(open) / size(live), "times live data", 4.0);
    promises.at_most("file_compacted", size(compact) / size(live), "times live data", 1.5);
}

/// Write the allocations of these numbers `times` each, changed every time.
async fn overwrite(store: StateStore, numbers: Vec<u64>, times: u64) {
    let mut all: Vec<_> = numbers.into_iter().map(|number| Records::new(number).alloc).collect();
    for time in 0..times {
        for (key, alloc) in &mut all {
            alloc.modify_index = time;
            let put = store.put(key, alloc).await.expect("the write");
            assert_eq!(put, PutOutcome::Written, "every value is new");
        }
    }
}

/// Bytes of all keys and records; the file's own left out, which change when it is closed.
fn live_bytes(store: &StateStore) -> usize {
    let records = store.scan(&KeyPrefix::Allocs).expect("a scan");
    records.iter().map(|record| record.key.encode().len() + record.len()).sum()
}

fn file_size(path: &Path) -> usize {
    let len = std::fs::metadata(path).expect("the file").len();
    usize::try_from(len).unwrap_or(usize::MAX)
}
