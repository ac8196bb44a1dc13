//! One allocation and its task states written again and again, unchanged, through the store's
//! public API; against the same with deduplication off, the bare storage engine with a transaction
//! per write, and one raw overwrite + fdatasync.
//!
//! Criterion gives nanoseconds per operation. What an operation costs besides is counted in rounds
//! in which all four take turns, because a disk's speed drifts over seconds.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::process::ExitCode;
use std::time::Duration;

use criterion::Criterion;
use ostler_benches::bare_redb::BareRedb;
use ostler_benches::cost::{Cost, Meter};
use ostler_benches::counting::Counting;
use ostler_benches::fixture::{Records, encode};
use ostler_benches::machine::{BenchDir, at_rest, print_facts, runtime, scaled};
use ostler_benches::percentiles::{median, micros, number, per};
use ostler_benches::promise::Promises;
use ostler_benches::raw_disk::RawDisk;
use ostler_model::clock::Stopwatch;
use ostler_state::{StateStore, Stats, StoreOptions};
use tokio::runtime::Runtime;

/// Writes in a round: the allocation and its task states.
const ROUND: u64 = 4;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Which records one operation writes.
#[derive(Clone, Copy)]
enum What {
    /// The allocation: the largest record, about 2 KiB.
    Alloc,
    /// The state of one task.
    Task,
}

struct Subjects {
    runtime: Runtime,
    records: Records,
    on: StateStore,
    off: StateStore,
    bare: BareRedb,
    raw: RawDisk,
    encoded: [(Vec<u8>, Vec<u8>); 2],
    _dir: BenchDir,
}

/// What `operations` cost, and what the store counted meanwhile.
#[derive(Clone, Copy, Default)]
struct Sum {
    operations: u64,
    /// Of the block in the middle.
    nanos: f64,
    cost: Cost,
    commits: u64,
}

fn main() -> ExitCode {
    let dir = BenchDir::new();
    print_facts("state_dedup", dir.path());
    let mut subjects = Subjects::new(dir);
    let [(_, alloc), (_, task)] = &subjects.encoded;
    println!("records: allocation {} bytes, task state {} bytes", alloc.len(), task.len());
    with_criterion(&mut subjects);
    in_turns(&mut subjects).end()
}

impl Subjects {
    fn new(dir: BenchDir) -> Self {
        let runtime = runtime();
        let records = Records::new(1);
        let open = |name: &str, deduplicate| {
            let path = dir.path().join(name);
            StateStore::open_with(&path, StoreOptions { deduplicate, ..StoreOptions::default() })
                .expect("a store")
        };
        let (on, off) = (open("on", true), open("off", false));
        let bare = BareRedb::create(&dir.path().join("bare"));
        for store in [&on, &off] {
            runtime.block_on(records.put(store)).expect("the records are written");
            at_rest(&runtime, store);
        }
        let all = records.encoded();
        bare.put_all(all.iter().map(|(key, record)| (&**key, &**record)));
        let (task_key, task) = records.tasks.first().expect("a task");
        let encoded = [encode(&records.alloc.0, &records.alloc.1), encode(task_key, task)];
        let raw = RawDisk::overwrite(dir.path());
        Self { runtime, records, on, off, bare, raw, encoded, _dir: dir }
    }

    /// Writes through a store.
    fn store(&self, store: &StateStore, what: What, blocks: &mut Blocks) {
        let (key, alloc) = &self.records.alloc;
        let (task_key, task) = self.records.tasks.first().expect("a task");
        self.runtime.block_on(async {
            while blocks.more() {
                let watch = Stopwatch::start();
                for _ in 0..blocks.block {
                    let put = match what {
                        What::Alloc => store.put(key, alloc).await,
                        What::Task => store.put(task_key, task).await,
                    };
                    std::hint::black_box(put.expect("the write"));
                }
                blocks.took(watch);
            }
        });
    }

    /// Writes with deduplication: the allocation, then its three task states, and again.
    fn round(&self, blocks: &mut Blocks) {
        let (key, alloc) = &self.records.alloc;
        self.runtime.block_on(async {
            while blocks.more() {
                let watch = Stopwatch::start();
                for _ in 0..blocks.block / ROUND {
                    std::hint::black_box(self.on.put(key, alloc).await.expect("the write"));
                    for (key, task) in &self.records.tasks {
                        std::hint::black_box(self.on.put(key, task).await.expect("the write"));
                    }
                }
                blocks.took(watch);
            }
        });
    }

    fn bare(&self, blocks: &mut Blocks) {
        let [(key, record), _] = &self.encoded;
        blocks.each(|| self.bare.put(key, record));
    }
}

/// Times of blocks of operations. Their median passes over the blocks in which another program had
/// the processor.
struct Blocks {
    /// Operations in one.
    block: u64,
    wanted: usize,
    times: Vec<Duration>,
}

impl Blocks {
    /// `times` operations in blocks. With all room there will be need of, so that nothing is
    /// allocated here while allocations are counted.
    fn of(times: u64, block: u64) -> Self {
        let wanted = usize::try_from(times / block).unwrap_or(0);
        Self { block, wanted, times: Vec::with_capacity(wanted) }
    }

    fn more(&self) -> bool {
        self.times.len() < self.wanted
    }

    fn took(&mut self, watch: Stopwatch) {
        self.times.push(watch.elapsed());
    }

    fn each(&mut self, mut one: impl FnMut()) {
        while self.more() {
            let watch = Stopwatch::start();
            (0..self.block).for_each(|_| one());
            self.took(watch);
        }
    }

    /// Nanoseconds per operation of the block in the middle.
    fn nanos(&self) -> f64 {
        median(&micros(&self.times)) * 1e3 / number(self.block)
    }
}

/// All of `times` in one block, for criterion.
fn at_once(times: u64, work: impl FnOnce(&mut Blocks)) -> Duration {
    let mut blocks = Blocks::of(times, times);
    work(&mut blocks);
    blocks.times.iter().sum()
}

fn with_criterion(subjects: &mut Subjects) {
    let mut criterion = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let mut group = criterion.benchmark_group("state_dedup");
    let on = &subjects.on;
    for (name, what) in [("on/allocation", What::Alloc), ("on/task_state", What::Task)] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| at_once(times, |all| subjects.store(on, what, all)))
        });
    }
    group.bench_function("on/allocation_and_3_task_states", |b| {
        b.iter_custom(|times| at_once(times * ROUND, |all| subjects.round(all)));
    });
    let off = &subjects.off;
    group.bench_function("off/allocation", |b| {
        b.iter_custom(|times| at_once(times, |all| subjects.store(off, What::Alloc, all)));
    });
    group.bench_function("bare_redb/allocation", |b| {
        b.iter_custom(|times| at_once(times, |all| subjects.bare(all)));
    });
    let raw = &mut subjects.raw;
    group.bench_function("raw_overwrite_fdatasync", |b| {
        b.iter_custom(|times| at_once(times, |all| all.each(|| raw.write_synced())));
    });
    group.finish();
    criterion.final_summary();
}

/// Count what `operations` cost a store.
fn counted(
    store: Option<&StateStore>,
    (operations, block): (u64, u64),
    work: impl FnOnce(&mut Blocks),
) -> Sum {
    let mut blocks = Blocks::of(operations, block);
    let before = store.map_or_else(Stats::default, StateStore::stats);
    let meter = Meter::start();
    work(&mut blocks);
    let cost = meter.stop();
    let after = store.map_or_else(Stats::default, StateStore::stats);
    Sum { operations, nanos: blocks.nanos(), cost, commits: after.commits - before.commits }
}

impl Sum {
    fn and(self, other: Self) -> Self {
        Self {
            operations: self.operations + other.operations,
            nanos: 0.0,
            cost: self.cost.and(other.cost),
            commits: self.commits + other.commits,
        }
    }

    fn print(&self, name: &str, nanos: f64, commits: Option<u64>) {
        let n = self.operations;
        let commits =
            commits.map_or_else(|| "-".to_owned(), |count| format!("{:.2}", per(count, n)));
        println!(
            "{name:<28} {nanos:>10.0} {:>10.0} {:>9.1} {:>8.2} {commits:>8} {:>8.2} {:>9.0} {:>8.2}",
            self.cost.cpu.as_secs_f64() * 1e9 / number(n),
            per(self.cost.allocated, n),
            per(self.cost.allocations, n),
            per(self.cost.syncs, n),
            per(self.cost.disk_bytes, n),
            per(self.cost.write_calls, n),
        );
    }
}

/// All four in turns: medians of the rounds for time, sums for counts.
fn in_turns(subjects: &mut Subjects) -> Promises {
    let rounds = scaled(15, 2);
    let (fast, slow) = ((scaled(50_000, 200), 100), (scaled(300, 10), 1));
    let mut sums = [Sum::default(); 6];
    let mut nanos: [Vec<f64>; 6] = Default::default();
    for _ in 0..rounds {
        let (on, off) = (&subjects.on, &subjects.off);
        at_rest(&subjects.runtime, off);
        let all = [
            counted(Some(on), fast, |blocks| subjects.store(on, What::Alloc, blocks)),
            counted(Some(on), fast, |blocks| subjects.store(on, What::Task, blocks)),
            counted(Some(on), fast, |blocks| subjects.round(blocks)),
            counted(Some(off), slow, |blocks| subjects.store(off, What::Alloc, blocks)),
            counted(None, slow, |blocks| subjects.bare(blocks)),
            counted(None, slow, |blocks| blocks.each(|| subjects.raw.write_synced())),
        ];
        for ((sum, times), one) in sums.iter_mut().zip(&mut nanos).zip(all) {
            *sum = sum.and(one);
            times.push(one.nanos);
        }
    }
    println!(
        "\nper write, medians of {rounds} rounds in turns (ns: of blocks of 100 writes, of single ones below):"
    );
    println!(
        "{:<28} {:>10} {:>10} {:>9} {:>8} {:>8} {:>8} {:>9} {:>8}",
        "", "ns", "cpu ns", "B alloc", "allocs", "commits", "syncs", "B disk", "writes"
    );
    let [alloc, task, round, off, bare, raw] = &sums;
    let [alloc_ns, task_ns, round_ns, off_ns, bare_ns, raw_ns] = nanos.map(|times| median(&times));
    alloc.print("on, allocation", alloc_ns, Some(alloc.commits));
    task.print("on, task state", task_ns, Some(task.commits));
    round.print("on, allocation + 3 states", round_ns, Some(round.commits));
    off.print("off, allocation", off_ns, Some(off.commits));
    bare.print("bare redb, allocation", bare_ns, Some(bare.operations));
    raw.print("raw overwrite + fdatasync", raw_ns, None);
    println!();

    let on = alloc.and(*task).and(*round);
    let mut promises = Promises::default();
    promises.at_most("duplicate_write_time", alloc_ns, "ns", 2_000.0);
    promises.at_most("duplicate_write_disk", number(on.cost.disk_bytes), "bytes", 0.0);
    promises.at_most("duplicate_write_commits", number(on.commits), "commits", 0.0);
    promises.at_most(
        "duplicate_write_allocations",
        number(on.cost.allocations),
        "allocations",
        0.0,
    );
    promises.at_least("duplicate_write_vs_raw_overwrite", raw_ns / alloc_ns, "times", 50.0);
    promises
}
