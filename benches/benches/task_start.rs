//! What an allocation costs an agent that serves: commits on the way to running, time until the
//! task's own code runs, memory and writes at rest, and owning everything again after a crash.
//!
//! Baselines in the same run: fork and exec of the same program until the same sign; the same
//! component in bare wasmtime, linked and instantiated, and instantiated only. They take turns with
//! what they are compared to.
//!
//! This program is also its agents' supervisor and compile child, and, with `bench-agent` and
//! `bench-reown`, the agent that is killed and the one that comes after it.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ostler_benches::bare_wasm::BareWasm;
use ostler_benches::cost::Meter;
use ostler_benches::counting::{Allocations, Counting};
use ostler_benches::live::{LiveAgent, first_output, job, judged, own_child, running};
use ostler_benches::machine::{runtime, scaled, show};
use ostler_benches::memory::{proportional, resident, supervisors};
use ostler_benches::percentiles::{median, number, per, size};
use ostler_benches::raw_disk::RawDisk;
use ostler_benches::report::{Report, bench};
use ostler_benches::sign::Sign;
use ostler_guests::fixtures::HELLO;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::job::Job;
use ostler_model::limits::STATE_SETTLE_IDLE;
use tokio::runtime::Runtime;

#[global_allocator]
static COUNTING: Counting = Counting;

/// First arguments of this program as an agent in a process of its own.
const AGENT: &str = "bench-agent";
const REOWN: &str = "bench-reown";
/// A native task that stays.
const SLEEP: &str = "command = \"/bin/sleep\"\n args = [\"3600\"]";
/// A store that had nothing to do for so long is at rest: twice what a write may lag.
const QUIET: Duration = Duration::from_millis(400);

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let [role, data, code, ..] = &*args
        && (role.as_os_str() == AGENT || role.as_os_str() == REOWN)
    {
        let reown = role.as_os_str() == REOWN;
        return runtime().block_on(if_agent(reown, data, code));
    }
    bench("task_start", measured)
}

fn measured(report: &mut Report) {
    let (runtime, dir) = (runtime(), report.dir().to_owned());
    let code = dir.join("code");
    let started = |name: &str| runtime.block_on(LiveAgent::start(&dir.join(name), &code));
    let [starts, at_rest, killed] = report.parts(["starts", "idle", "reown"]);
    if starts {
        let agent = started("starts");
        commits(&runtime, &agent, report);
        native(&runtime, &agent, &dir, report);
        wasm(&runtime, &agent, &dir, report);
        runtime.block_on(agent.handle.shutdown());
    }
    if at_rest {
        let agent = started("idle");
        idle(&runtime, &agent, report);
        runtime.block_on(agent.handle.shutdown());
    }
    if killed {
        reown(&dir, &code, report);
    }
}

/// Durable commits from the call until the task is seen running and the job is durable.
fn commits(runtime: &Runtime, agent: &LiveAgent, report: &mut Report) {
    let one = |name: &str, count: u64| {
        runtime.block_on(async {
            agent.settle(QUIET).await;
            let before = agent.handle.state_stats();
            let job = job(name, "service", count, "raw_exec", 16, SLEEP);
            let id = job.id.clone();
            let watch = Stopwatch::start();
            agent.run(job, usize::try_from(count).unwrap_or(0)).await;
            let took = watch.elapsed();
            let commits = agent.handle.state_stats().commits - before.commits;
            agent.settle(QUIET).await;
            let rest = agent.handle.state_stats().commits - before.commits - commits;
            agent.purge(&id).await;
            (number(commits), number(rest), took)
        })
    };
    let alone: Vec<_> = (0..scaled(20, 2)).map(|_| one("alone", 1)).collect();
    let count = scaled(100, 5);
    let many: Vec<_> = (0..scaled(3, 1)).map(|_| one("many", count)).collect();
    let middle = |of: &[(f64, f64, Duration)], which: fn(&(f64, f64, Duration)) -> f64| {
        median(&of.iter().map(which).collect::<Vec<_>>())
    };
    let row = |of: &[(f64, f64, Duration)]| {
        let took = middle(of, |one| one.2.as_secs_f64() * 1e3);
        vec![middle(of, |one| one.0), middle(of, |one| one.1), took]
    };
    let rows = [("one alone", row(&alone)), ("a job of many", row(&many))];
    let columns = ["commits", "afterwards", "all run, ms"];
    report.figures("commits from accepted to running", &columns, &rows);
    let promises = &mut report.promises;
    let alone = middle(&alone, |one| one.0);
    promises.at_most("start_commits_alone", alone, "commits", 2.0);
    let many = middle(&many, |one| one.0) / number(count);
    promises.at_most("start_commits_100", many, "commits per task", 0.2);
}

/// From the call until the task's own code runs: a shell that writes to a pipe. In turns by itself,
/// by `raw_exec`, and isolated by `exec`, which sees the pipe's directory under another path.
fn native(runtime: &Runtime, agent: &LiveAgent, dir: &Path, report: &mut Report) {
    let signs = dir.join("signs");
    std::fs::create_dir(&signs).expect("a directory");
    std::fs::set_permissions(&signs, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("its rights");
    let sign = Sign::new(&signs.join("sign"));
    let script = format!("echo > {}", sign.path().display());
    let shell = |script: &str| format!("command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]");
    let mount = format!("mounts = [{{ source = \"{}\", target = \"/signs\" }}]", signs.display());
    let raw = job("native", "batch", 1, "raw_exec", 16, &shell(&script));
    let config = format!("{}\n {mount}", shell("echo > /signs/sign"));
    let isolated = job("isolated", "batch", 1, "exec", 16, &config);
    let one = |job: &Job| {
        runtime.block_on(agent.settle(Duration::from_millis(20)));
        let waiting = sign.wait();
        let handles = runtime.block_on(agent.run(job.clone(), 1));
        let took = waiting.took();
        runtime.block_on(async {
            for handle in handles {
                handle.wait_done().await;
            }
            agent.purge(&job.id).await;
        });
        took
    };
    let (mut through, mut apart, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..scaled(220, 3) {
        let took = (one(&raw), one(&isolated));
        let waiting = sign.wait();
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let alone = waiting.took();
        child.wait().expect("the program ends");
        // The first turns fill caches.
        if turn >= scaled(20, 0) {
            through.push(took.0);
            apart.push(took.1);
            bare.push(alone);
        }
    }
    let rows = [
        ("through the agent", &*through),
        ("the same, isolated", &*apart),
        ("fork and exec", &*bare),
    ];
    let [agents, isolated, alone] = report.times("accepted to a native task's own code", rows);
    let promises = &mut report.promises;
    promises.at_most("native_start_vs_fork_exec", agents / alone, "times", 2.5);
    promises.at_most("native_accepted_to_code_p50", agents / 1e3, "ms", 5.0);
    promises.at_most("exec_over_raw_exec_p50", (isolated - agents) / 1e3, "ms", 1.5);
}

/// From the call until the first byte the guest prints is seen.
fn wasm(runtime: &Runtime, agent: &LiveAgent, dir: &Path, report: &mut Report) {
    let job = job("wasm", "batch", 1, "wasm", 16, &format!("module = \"{HELLO}\""));
    let bare = BareWasm::new(HELLO);
    let mut raw = RawDisk::overwrite(dir);
    let mut times: [Vec<Duration>; 4] = Default::default();
    for turn in 0..scaled(220, 3) {
        let took = runtime.block_on(async {
            agent.settle(Duration::from_millis(20)).await;
            one_wasm(agent, &job).await
        });
        let watch = Stopwatch::start();
        raw.write_synced();
        let took = [took, watch.elapsed(), bare.run(), bare.link_and_run()];
        if turn >= scaled(20, 0) {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
    let [through, synced, instantiated, linked] = &times;
    let rows = [
        ("through the agent", &**through),
        ("raw overwrite + fdatasync", &**synced),
        ("wasmtime: run", &**instantiated),
        ("wasmtime: link and run", &**linked),
    ];
    let title = "accepted to a WASM task's first byte";
    let [agents, synced, _, linked] = report.times(title, rows);
    let floor = agents / (synced + linked);
    let promises = &mut report.promises;
    promises.at_most("wasm_start_vs_floor", floor, "times", 4.0);
    promises.at_most("wasm_accepted_to_code_p50", agents / 1e3, "ms", 2.0);
}

async fn one_wasm(agent: &LiveAgent, job: &Job) -> Duration {
    let watch = Stopwatch::start();
    let (registering, asked) = (agent.clone(), job.clone());
    let registered = tokio::spawn(async move { registering.register(asked).await });
    let handles = agent.owned(&job.id, 1).await;
    let handle = handles.first().expect("one allocation");
    let printed = first_output(handle).await;
    let took = watch.elapsed();
    assert!(printed.starts_with(b"Hello"), "{printed:?}");
    registered.await.expect("the job is registered");
    handle.wait_done().await;
    agent.purge(&job.id).await;
    took
}

/// Allocations at rest: what they keep in memory, and what is written meanwhile.
fn idle(runtime: &Runtime, agent: &LiveAgent, report: &mut Report) {
    let (jobs, count) = (2, scaled(1_000, 25));
    let allocations = jobs * count;
    let rest = Duration::from_secs(scaled(60, 2));
    println!("\n{allocations} allocations of mock_driver at rest for {}", show(rest));
    runtime.block_on(agent.settle(QUIET));
    let before = (Allocations::now().live(), resident());
    let watch = Stopwatch::start();
    let mut handles = Vec::new();
    runtime.block_on(async {
        for number in 0..jobs {
            let name = format!("idle-{number}");
            let job = job(&name, "service", count, "mock_driver", 1, "run_for = \"0s\"");
            handles.extend(agent.run(job, usize::try_from(count).unwrap_or(0)).await);
        }
    });
    println!("all running after {}", show(watch.elapsed()));
    // Each is judged once, some seconds after it runs, and the verdict is durable.
    runtime.block_on(async {
        for handle in &handles {
            judged(handle).await;
        }
    });
    println!("all judged after {}", show(watch.elapsed()));
    drop(handles);
    let settled = runtime.block_on(agent.settle(3 * STATE_SETTLE_IDLE));
    let after = (Allocations::now().live(), resident());
    let commits = agent.handle.state_stats().commits;
    // Each directory is walked once, a minute after its allocation began: that is no rest yet.
    runtime.block_on(clock::sleep(rest));
    let meter = Meter::start();
    runtime.block_on(clock::sleep(rest));
    let cost = meter.stop();
    let commits = agent.handle.state_stats().commits - commits;
    let later = (Allocations::now().live(), resident());
    let share = cost.cpu.as_secs_f64() / cost.wall.as_secs_f64() * 100.0;
    println!(
        "commits {commits}, disk {} bytes, syncs {}, processor time {} ({share:.2} % of one core){}",
        cost.disk_bytes,
        cost.syncs,
        show(cost.cpu),
        if settled { "" } else { "; the store did not come to rest before" }
    );
    let each = |now: u64, before: u64| per(now.saturating_sub(before), allocations) / 1024.0;
    let (heap, rss) = (each(after.0, before.0), each(after.1, before.1));
    let (heap_later, rss_later) = (each(later.0, before.0), each(later.1, before.1));
    let rows = [
        ("before the rest", vec![heap, rss]),
        ("at the end of the rest", vec![heap_later, rss_later]),
    ];
    report.figures("memory per allocation, KiB", &["heap in use", "resident"], &rows);
    let promises = &mut report.promises;
    promises.at_most("idle_2000_cpu", share, "% of a core", 0.5);
    promises.at_most("idle_2000_commits_live", number(commits), "commits", 0.0);
    promises.at_most("idle_2000_disk_live", number(cost.disk_bytes), "bytes", 0.0);
    let largest = [heap, rss, heap_later, rss_later].into_iter().fold(0.0, f64::max);
    promises.at_most("memory_per_allocation", largest, "KiB", 24.0);
}

/// Milliseconds of one crash.
struct Crash {
    /// From the start of the agent until all is owned and its statistics are served.
    reown: f64,
    /// Of that, until the agent answered.
    start: f64,
    /// The same from before the process was made.
    process: f64,
    /// KiB of memory per supervisor.
    pss: f64,
}

fn reown(dir: &Path, code: &Path, report: &mut Report) {
    let count = scaled(100, 5);
    let rounds: Vec<Crash> = (0..scaled(5, 1)).map(|round| crash(dir, code, round)).collect();
    let middle = |of: fn(&Crash) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
    let title =
        format!("an agent with {count} native tasks is killed, a new process takes over, ms");
    let rows = [
        ("start to all owned again", vec![middle(|one| one.reown)]),
        ("of that, Agent::start", vec![middle(|one| one.start)]),
        ("with the process' start", vec![middle(|one| one.process)]),
        ("PSS per supervisor, KiB", vec![middle(|one| one.pss)]),
    ];
    report.figures(&title, &["median"], &rows);
    let promises = &mut report.promises;
    promises.at_most("reown_100", middle(|one| one.reown), "ms", 100.0);
    promises.at_most("supervisor_pss", middle(|one| one.pss), "KiB", 1024.0);
}

fn crash(dir: &Path, code: &Path, round: u32) -> Crash {
    let data = dir.join(format!("crash-{round}"));
    let mut first = agent_process(AGENT, &data, code);
    let said = said(&mut first);
    assert!(said.starts_with("running"), "{said}");
    first.kill().expect("the agent is killed");
    first.wait().expect("the agent has ended");
    let (pss, supervisors) = supervisors_size();

    let watch = Stopwatch::start();
    let mut second = agent_process(REOWN, &data, code);
    let said = self::said(&mut second);
    let process = watch.elapsed().as_secs_f64() * 1e3;
    let mut numbers = said.split_whitespace().map(str::parse::<f64>);
    let mut next = || numbers.next().and_then(Result::ok).expect("a number");
    let (reown, start) = (next(), next());
    // The second one ends its tasks when its input ends.
    drop(second.stdin.take());
    assert!(second.wait().expect("the agent ends").success(), "the agent ends well");
    Crash { reown, start, process, pss: pss / size(supervisors.max(1)) / 1024.0 }
}

/// Bytes of all supervisors that live now, and their number.
fn supervisors_size() -> (f64, usize) {
    let sizes: Vec<u64> = supervisors().into_iter().filter_map(proportional).collect();
    (number(sizes.iter().sum()), sizes.len())
}

fn agent_process(role: &str, data: &Path, code: &Path) -> Child {
    let this = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(this);
    command.arg(role).arg(data).arg(code);
    // Tells it how much is to be measured.
    command.args(if scaled(true, false) { Some("--bench") } else { None });
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the agent starts")
}

fn said(child: &mut Child) -> String {
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// The agent that is killed, or the one that comes after it.
async fn if_agent(reown: bool, data: &Path, code: &Path) -> ExitCode {
    let count = scaled(100, 5);
    let all = usize::try_from(count).unwrap_or(0);
    let job = job("crash", "service", count, "raw_exec", 16, SLEEP);
    let id = job.id.clone();
    if !reown {
        let agent = LiveAgent::start(data, code).await;
        agent.run(job, all).await;
        agent.settle(QUIET).await;
        println!("running");
        return std::future::pending().await;
    }
    let watch = Stopwatch::start();
    let agent = LiveAgent::start(data, code).await;
    let start = watch.elapsed();
    let allocs = agent.owned(&id, all).await;
    for alloc in &allocs {
        running(alloc).await;
        while alloc.usage().await.is_empty() {
            clock::sleep(Duration::from_millis(1)).await;
        }
    }
    let owned = watch.elapsed();
    println!("{} {}", owned.as_secs_f64() * 1e3, start.as_secs_f64() * 1e3);
    assert_eq!(allocs.len(), all, "nothing was started beside what ran");
    let input = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    input.await.expect("the input ends");
    agent.purge(&id).await;
    agent.handle.shutdown().await;
    ExitCode::SUCCESS
}
