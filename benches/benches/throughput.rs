//! Short tasks to their end, per second: a WASM program that prints three lines, with the state on disk
//! and in memory, and a native program that does nothing; and what bounds them: commits, syncs, switches
//! of threads, processor time, per task.
//!
//! Baselines in the same run, in turns: the same component in bare wasmtime, linked and run; fork, exec
//! and wait of the same program; one raw overwrite + fdatasync.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ostler_agent::AgentMode;
use ostler_benches::bare_wasm::BareWasm;
use ostler_benches::cost::Meter;
use ostler_benches::live::{LiveAgent, job, own_child};
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::memory::{processes_of, processor_time};
use ostler_benches::percentiles::{median, number, per};
use ostler_benches::raw_disk::RawDisk;
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::HELLO;
use ostler_model::clock::Stopwatch;
use ostler_model::job::Job;
use tokio::runtime::Runtime;

/// A file system in memory.
const IN_MEMORY: &str = "/dev/shm";

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("throughput", measured)
}

/// One way to run short tasks, and its rounds.
struct Subject {
    name: &'static str,
    agent: LiveAgent,
    job: Job,
    rounds: Vec<Round>,
}

/// What one round cost, per task.
struct Round {
    per_second: f64,
    row: Vec<f64>,
}

fn measured(report: &mut Report) {
    let (runtime, dir) = (runtime(), report.dir().to_owned());
    let code = dir.join("code");
    let memory = tempfile::Builder::new().prefix("ostler-bench-").tempdir_in(IN_MEMORY);
    let count = scaled(1_000, 5);
    let wasm = format!("module = \"{HELLO}\"");
    let start = |name, mode, data: &Path, driver, config: &str| Subject {
        name,
        agent: runtime.block_on(LiveAgent::start_as(mode, data, &code)),
        job: job("short", "batch", count, driver, 10, config),
        rounds: Vec::new(),
    };
    let [on_disk, native, in_memory] = report.parts(["disk", "native", "memory"]);
    let mut subjects = Vec::new();
    if on_disk {
        subjects.push(start(
            "WASM, state on disk",
            AgentMode::Durable,
            &dir.join("wasm"),
            "wasm",
            &wasm,
        ));
    }
    if native {
        let command = "command = \"/bin/true\"";
        let (name, mode) = ("native, state on disk", AgentMode::Durable);
        subjects.push(start(name, mode, &dir.join("native"), "raw_exec", command));
    }
    match &memory {
        Ok(memory) if in_memory => {
            subjects.push(start(
                "WASM, in memory",
                AgentMode::InMemory,
                memory.path(),
                "wasm",
                &wasm,
            ));
        }
        Ok(_) => {}
        Err(error) => println!("{IN_MEMORY}: {error}: nothing is measured in memory"),
    }
    let (bare, mut raw) = (BareWasm::new(HELLO), RawDisk::overwrite(&dir));
    let mut baselines: [Vec<f64>; 3] = Default::default();
    for round in 0..scaled(8, 1) {
        for subject in &mut subjects {
            let taken = subject.round(&runtime, count);
            // The first fills caches.
            if round > 0 || scaled(false, true) {
                subject.rounds.push(taken);
            }
        }
        let rates =
            [rate(|| _ = bare.link_and_run()), rate(fork_and_exec), rate(|| raw.write_synced())];
        baselines.iter_mut().zip(rates).for_each(|(all, rate)| all.push(rate));
    }
    told(report, &subjects, &baselines);
    for subject in subjects {
        runtime.block_on(subject.agent.handle.shutdown());
    }
}

fn told(report: &mut Report, subjects: &[Subject], baselines: &[Vec<f64>; 3]) {
    let [link_and_run, fork, synced] = baselines.each_ref().map(|rates| median(rates));
    let rates: Vec<(&str, f64)> = subjects.iter().map(|one| (one.name, one.per_second())).collect();
    let rows: Vec<_> = subjects.iter().map(|one| (one.name, one.row())).collect();
    let columns = ["tasks/s", "commits", "syncs", "switches", "cpu µs", "disk KiB"];
    report.figures("short tasks to their end; what each takes", &columns, &rows);
    let mut bars = rates.clone();
    bars.extend([
        ("bare wasmtime, linked and run, one thread", link_and_run),
        ("fork, exec and wait, one thread", fork),
        ("raw overwrite + fdatasync, one after the other", synced),
        ("containerd with runwasi (published)", 330.0),
        ("containerd with runc (published)", 85.0),
        ("Nomad v1.0.18, stock: raw_exec tasks started (recorded)", 59.0),
    ]);
    report.bars("short tasks to their end", "tasks/s", &bars);
    let promised = [
        ("short_wasm_durable", "WASM, state on disk", 3_000.0),
        ("short_wasm_memory", "WASM, in memory", 10_000.0),
    ];
    for (promise, subject, bar) in promised {
        if let Some((_, rate)) = rates.iter().find(|one| one.0 == subject) {
            report.promises.at_least(promise, *rate, "tasks/s", bar);
        }
    }
}

impl Subject {
    fn round(&self, runtime: &Runtime, count: u64) -> Round {
        runtime.block_on(async {
            self.agent.settle(Duration::from_millis(400)).await;
            let (before, commits) = (counts(), self.agent.handle.state_stats().commits);
            let meter = Meter::start();
            let (id, agent, asked) = (self.job.id.clone(), self.agent.clone(), self.job.clone());
            let registered = tokio::spawn(async move { agent.register(asked).await });
            let allocs = self.agent.owned(&id, usize::try_from(count).unwrap_or(0)).await;
            for alloc in &allocs {
                alloc.wait_done().await;
            }
            let cost = meter.stop();
            let (taken, commits) =
                (since(&before), self.agent.handle.state_stats().commits - commits);
            registered.await.expect("the job is registered");
            self.agent.purge(&id).await;
            let per_second = number(count) / cost.wall.as_secs_f64();
            let each = |amount: u64| per(amount, count);
            let cpu = taken.1 * 1e6 / number(count);
            let switches = each(taken.0);
            let disk = each(cost.disk_bytes) / 1024.0;
            let row = vec![per_second, each(commits), each(cost.syncs), switches, cpu, disk];
            Round { per_second, row }
        })
    }

    fn per_second(&self) -> f64 {
        median(&self.rounds.iter().map(|round| round.per_second).collect::<Vec<_>>())
    }

    /// Medians over the rounds.
    fn row(&self) -> Vec<f64> {
        let columns = 0..self.rounds.first().map_or(0, |round| round.row.len());
        let column = |at: usize| self.rounds.iter().filter_map(move |round| round.row.get(at));
        columns.map(|at| median(&column(at).copied().collect::<Vec<_>>())).collect()
    }
}

/// Switches of threads and seconds of processor time of each process of this program: agents, their
/// workers, this bench.
fn counts() -> BTreeMap<u32, (u64, f64)> {
    let this = std::env::current_exe().expect("the path of this program");
    let of = |pid: u32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let switches = threads.map(|thread| {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let counts = status.lines().filter(|line| line.contains("_ctxt_switches:"));
            counts
                .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
                .sum::<u64>()
        });
        Some((pid, (switches.sum(), processor_time(pid)?)))
    };
    processes_of(&this).into_iter().filter_map(of).collect()
}

/// What those that live now took since. What ended in between (a thread, a supervisor) is not known
/// any more.
fn since(before: &BTreeMap<u32, (u64, f64)>) -> (u64, f64) {
    let zero = (0, 0.0);
    counts().into_iter().fold(zero, |sum, (pid, now)| {
        let then = before.get(&pid).unwrap_or(&zero);
        (sum.0 + now.0.saturating_sub(then.0), sum.1 + (now.1 - then.1))
    })
}

/// How often a second.
fn rate(mut work: impl FnMut()) -> f64 {
    let (watch, mut times) = (Stopwatch::start(), 0);
    while watch.elapsed() < Duration::from_millis(scaled(200, 5)) {
        work();
        times += 1;
    }
    number(times) / watch.elapsed().as_secs_f64()
}

fn fork_and_exec() {
    let mut command = Command::new("/bin/true");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().expect("the program runs");
}
