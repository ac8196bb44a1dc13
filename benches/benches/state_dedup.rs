//! One allocation and its task states written again and again, unchanged, through the store's
//! public API; against the same with deduplication off, the bare storage engine with a transaction
//! per write, and one raw overwrite + fdatasync.
//!
//! Counted in rounds in which all four take turns, because a disk's speed drifts over seconds. Times
//! are of blocks of 100 writes where they are short, and of single ones elsewhere.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ostler_benches::bare_redb::BareRedb;
use ostler_benches::cost::{Cost, Meter};
use ostler_benches::counting::Counting;
use ostler_benches::fixture::{Records, encode};
use ostler_benches::machine::{at_rest, runtime, scaled};
use ostler_benches::percentiles::{median, micros, number, per};
use ostler_benches::raw_disk::RawDisk;
use ostler_benches::report::{Report, bench};
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
    bench("state_dedup", |report| {
        let mut subjects = Subjects::new(report.dir());
        let [(_, alloc), (_, task)] = &subjects.encoded;
        println!("records: allocation {} bytes, task state {} bytes", alloc.len(), task.len());
        in_turns(&mut subjects, report);
    })
}

impl Subjects {
    fn new(dir: &Path) -> Self {
        let runtime = runtime();
        let records = Records::new(1);
        let open = |name: &str, deduplicate| {
            let path = dir.join(name);
            StateStore::open_with(&path, StoreOptions { deduplicate, ..StoreOptions::default() })
                .expect("a store")
        };
        let (on, off) = (open("on", true), open("off", false));
        let bare = BareRedb::create(&dir.join("bare"));
        for store in [&on, &off] {
            runtime.block_on(records.put(store)).expect("the records are written");
            at_rest(&runtime, store);
        }
        let all = records.encoded();
        bare.put_all(all.iter().map(|(key, record)| (&**key, &**record)));
        let (task_key, task) = records.tasks.first().expect("a task");
        let encoded = [encode(&records.alloc.0.0, &records.alloc.1), encode(&task_key.0, task)];
        let raw = RawDisk::overwrite(dir);
        Self { runtime, records, on, off, bare, raw, encoded }
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

    /// One row: time in the middle, then what an operation cost in the mean.
    fn row(&self, nanos: f64) -> Vec<f64> {
        let cost = &self.cost;
        let counts =
            [cost.allocated, cost.allocations, cost.syncs, cost.disk_bytes, cost.write_calls];
        let counts = counts.into_iter().chain([self.commits]);
        let cpu = cost.cpu.as_secs_f64() * 1e9 / number(self.operations);
        [nanos, cpu].into_iter().chain(counts.map(|count| per(count, self.operations))).collect()
    }
}

/// All four in turns: medians of the rounds for time, sums for counts.
fn in_turns(subjects: &mut Subjects, report: &mut Report) {
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
    let [alloc, task, round, off, bare, raw] = &sums;
    let nanos = nanos.map(|times| median(&times));
    let [alloc_ns, .., raw_ns] = nanos;
    let names = [
        "on, allocation",
        "on, task state",
        "on, allocation + 3 states",
        "off, allocation",
        "bare redb, allocation",
        "raw overwrite + fdatasync",
    ];
    let rows = names.into_iter().zip([alloc, task, round, off, bare, raw].into_iter().zip(nanos));
    let rows: Vec<_> = rows.map(|(name, (sum, nanos))| (name, sum.row(nanos))).collect();
    let columns =
        ["ns", "cpu ns", "B alloc", "allocs", "syncs", "B disk", "write calls", "commits"];
    report.figures("per write, medians of rounds in turns", &columns, &rows);

    let on = alloc.and(*task).and(*round);
    let promises = &mut report.promises;
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
}
