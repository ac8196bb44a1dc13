//! 2,000 allocations at rest whose records are put again in full every so often, as an agent that
//! persists periodically does. Ticks are simulated: they follow each other at once.
//!
//! Baseline: the same with deduplication off, for a tenth of the allocations.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::process::ExitCode;
use std::sync::Arc;

use ostler_benches::cost::{Cost, Meter};
use ostler_benches::counting::Counting;
use ostler_benches::fixture::{RECORDS, Records};
use ostler_benches::machine::{at_rest, runtime, scaled};
use ostler_benches::percentiles::{median, number, per};
use ostler_benches::report::bench;
use ostler_state::{StateStore, StoreOptions};
use tokio::runtime::Runtime;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Owners that persist at the same time.
const AT_ONCE: usize = 64;

/// What some ticks cost.
struct Idle {
    puts: u64,
    cost: Cost,
    commits: u64,
    /// Processor time of each tick, milliseconds.
    cpu: Vec<f64>,
}

fn main() -> ExitCode {
    bench("state_idle", |report| {
        let runtime = runtime();
        let (allocations, few) = (scaled(2_000, 20), scaled(200, 5));
        let open = |name: &str, deduplicate| {
            let path = report.dir().join(name);
            let options = StoreOptions { deduplicate, ..StoreOptions::default() };
            StateStore::open_with(&path, options).expect("a store")
        };
        let on = idle(&runtime, &open("on", true), allocations, scaled(100, 3));
        let off = idle(&runtime, &open("off", false), few, scaled(10, 2));
        let columns = ["puts", "commits", "syncs", "allocs", "B disk", "cpu ms", "wall ms"];
        let rows = [
            (&*format!("deduplication on, {allocations} allocations"), on.per_tick()),
            (&*format!("deduplication off, {few} allocations"), off.per_tick()),
        ];
        let title = format!("per tick, {RECORDS} records per allocation put again");
        report.figures(&title, &columns, &rows);
        let promises = &mut report.promises;
        promises.at_most("idle_2000_disk", number(on.cost.disk_bytes), "bytes", 0.0);
        promises.at_most("idle_2000_commits", number(on.commits), "commits", 0.0);
        promises.at_most("idle_2000_allocations", number(on.cost.allocations), "allocations", 0.0);
    })
}

/// Write `allocations` and put them again `ticks` times.
fn idle(runtime: &Runtime, store: &StateStore, allocations: u64, ticks: u32) -> Idle {
    let all: Arc<[Records]> = (0..allocations).map(Records::new).collect();
    tick(runtime, store, &all);
    // Once more, so that every thread has its buffer.
    tick(runtime, store, &all);
    at_rest(runtime, store);
    let before = store.stats();
    let mut idle = Idle { puts: 0, cost: Cost::default(), commits: 0, cpu: Vec::new() };
    for _ in 0..ticks {
        let cost = tick(runtime, store, &all);
        idle.cost = idle.cost.and(cost);
        idle.cpu.push(cost.cpu.as_secs_f64() * 1e3);
    }
    let after = store.stats();
    idle.puts = after.puts - before.puts;
    idle.commits = after.commits - before.commits;
    idle
}

/// Every record is put again; counted after the owners were started and before they are gone.
fn tick(runtime: &Runtime, store: &StateStore, all: &Arc<[Records]>) -> Cost {
    runtime.block_on(async {
        let go = Arc::new(tokio::sync::Barrier::new(AT_ONCE + 1));
        let done = Arc::new(tokio::sync::Barrier::new(AT_ONCE + 1));
        let owners: Vec<_> = (0..AT_ONCE)
            .map(|owner| {
                let (store, all) = (store.clone(), Arc::clone(all));
                let (go, done) = (Arc::clone(&go), Arc::clone(&done));
                tokio::spawn(async move {
                    go.wait().await;
                    for records in all.iter().skip(owner).step_by(AT_ONCE) {
                        records.put(&store).await.expect("the write");
                    }
                    done.wait().await;
                })
            })
            .collect();
        let meter = Meter::start();
        go.wait().await;
        done.wait().await;
        let cost = meter.stop();
        for owner in owners {
            owner.await.expect("the owner ends");
        }
        cost
    })
}

impl Idle {
    fn per_tick(&self) -> Vec<f64> {
        let ticks = u64::try_from(self.cpu.len()).unwrap_or(1);
        let wall = self.cost.wall.as_secs_f64() * 1e3 / number(ticks);
        let counts = [self.puts, self.commits, self.cost.syncs, self.cost.allocations];
        let counts = counts.into_iter().chain([self.cost.disk_bytes]);
        counts.map(|count| per(count, ticks)).chain([median(&self.cpu), wall]).collect()
    }
}
