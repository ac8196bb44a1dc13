//! What a short task costs, counted: processor time, switches of threads and system calls of the agent
//! and its helpers, per task, its removal included. Counts hardly differ on a busy machine, where times do. Only the processor
//! time of native tasks is that of the whole machine, because nobody waits for supervisors.
//!
//! Baselines in the same run: a supervisor that is forked, and forks, executes and waits for the same
//! program; the same component in bare wasmtime.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ostler_benches::bare_wasm::BareWasm;
use ostler_benches::forks::fork_supervised;
use ostler_benches::live::own_child;
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::node::{Node, job};
use ostler_benches::percentiles::{number, per};
use ostler_benches::report::{Report, bench};
use ostler_benches::steps::{StepCounts, machine_busy, wait_numbers};
use ostler_guests::fixtures::HELLO;
use ostler_model::clock::{self, Stopwatch};
use ostler_testing::system_calls::calls_in;
use serde_json::{Value, json};

/// The program of the native tasks.
const PROGRAM: &str = "/bin/true";

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("steps", measured)
}

/// What one task cost, in columns.
struct Steps {
    cpu_micros: f64,
    voluntary: f64,
    involuntary: f64,
    calls: Option<f64>,
    per_second: f64,
}

impl Steps {
    fn row(&self) -> Vec<f64> {
        let calls = self.calls.unwrap_or(f64::NAN);
        vec![self.per_second, self.cpu_micros, self.voluntary, self.involuntary, calls]
    }
}

fn measured(report: &mut Report) {
    let runtime = runtime();
    let parts = report.parts(["disk", "memory", "raw_exec", "exec"]);
    let kinds = [
        ("WASM, state on disk", true, "wasm"),
        ("WASM, in memory", false, "wasm"),
        ("raw_exec, state on disk", true, "raw_exec"),
        ("exec, state on disk", true, "exec"),
    ];
    let mut rows: Vec<(&str, Steps)> = Vec::new();
    for (at, (name, durable, driver)) in kinds.into_iter().enumerate() {
        if parts.get(at).copied().unwrap_or(false) {
            let dir = report.dir().join(format!("{driver}-{durable}"));
            rows.push((name, runtime.block_on(steps_of(&dir, durable, driver))));
        }
    }
    let columns = ["tasks/s", "cpu µs", "voluntary switches", "involuntary", "system calls"];
    let shown: Vec<_> = rows.iter().map(|(name, steps)| (*name, steps.row())).collect();
    report.figures("a short task to its end; what each takes", &columns, &shown);
    let forks = scaled(500, 5);
    let fork_micros = fork_supervised(PROGRAM, forks).as_secs_f64() * 1e6 / number(forks);
    let bare = BareWasm::new(HELLO);
    let watch = Stopwatch::start();
    let runs = scaled(500, 5);
    (0..runs).for_each(|_| _ = bare.link_and_run());
    let bare_micros = watch.elapsed().as_secs_f64() * 1e6 / number(runs);
    report.figures(
        "the bare operations",
        &["cpu µs"],
        &[
            ("a supervisor forked, which forks, executes and waits", vec![fork_micros]),
            ("the component in bare wasmtime, linked and run", vec![bare_micros]),
        ],
    );
    promised(report, &rows, fork_micros);
}

fn promised(report: &mut Report, rows: &[(&str, Steps)], fork_micros: f64) {
    let of = |name: &str| rows.iter().find(|row| row.0 == name).map(|row| &row.1);
    let promises = &mut report.promises;
    if let Some(steps) = of("WASM, state on disk") {
        promises.at_most("step_wasm_durable_cpu", steps.cpu_micros, "µs", 700.0);
        promises.at_most("step_wasm_durable_switches", steps.voluntary, "switches", 6.0);
        if let Some(calls) = steps.calls {
            promises.at_most("step_wasm_durable_calls", calls, "calls", 60.0);
        }
    }
    if let Some(steps) = of("WASM, in memory") {
        promises.at_most("step_wasm_memory_cpu", steps.cpu_micros, "µs", 500.0);
        promises.at_most("step_wasm_memory_switches", steps.voluntary, "switches", 5.0);
        if let Some(calls) = steps.calls {
            promises.at_most("step_wasm_memory_calls", calls, "calls", 45.0);
        }
    }
    if let Some(steps) = of("raw_exec, state on disk") {
        let over = steps.cpu_micros / fork_micros;
        promises.at_most("step_raw_exec_over_fork", over, "times", 2.0);
        if let Some(exec) = of("exec, state on disk") {
            let more = (exec.cpu_micros - steps.cpu_micros) / 1_000.0;
            promises.at_most("step_exec_over_raw_exec", more, "ms", 1.2);
        }
    }
}

/// The configuration of an agent that has room for all tasks.
const CONFIG: &str = "plugin \"raw_exec\" {\n enabled = true\n}\nclient {\n cpu_total_compute = 1000000\n \
                      memory_total_mb = 1000000\n}\ngc {\n max_allocs = 100000\n}\n";

async fn steps_of(dir: &std::path::Path, durable: bool, driver: &str) -> Steps {
    let mut node =
        if durable { Node::ostler(dir, CONFIG) } else { Node::ostler_in_memory(dir, CONFIG) };
    node.start().await;
    let config = match driver {
        "wasm" => json!({ "module": HELLO }),
        _ => json!({ "command": PROGRAM }),
    };
    // Threads that were started for the first tasks, code that was compiled and mapped.
    run(&mut node, "warm", driver, &config, scaled(200, 2)).await;
    clock::sleep(Duration::from_millis(scaled(1_500, 10))).await;
    let count = scaled(1_000, 4);
    let (before, busy) = (StepCounts::of(&node.processes()), machine_busy());
    let watch = Stopwatch::start();
    run(&mut node, "counted", driver, &config, count).await;
    let wall = watch.elapsed();
    remove(&mut node, "counted").await;
    let mut taken = StepCounts::of(&node.processes()).since(&before);
    if driver != "wasm" {
        // Supervisors and tasks have ended, and nobody waits for them.
        taken.cpu_seconds = machine_busy() - busy;
    }
    let calls = calls_of(&mut node, driver, &config, scaled(300, 2)).await;
    Steps {
        cpu_micros: taken.cpu_seconds * 1e6 / number(count),
        voluntary: per(taken.voluntary, count),
        involuntary: per(taken.involuntary, count),
        calls,
        per_second: number(count) / wall.as_secs_f64(),
    }
}

/// Run a job of short tasks to its end.
async fn run(node: &mut Node, name: &str, driver: &str, config: &Value, count: u64) {
    node.register(&job(name, "batch", count, driver, config)).await;
    node.until("all tasks have ended", async |node: &mut Node| {
        // Each question takes steps too.
        clock::sleep(Duration::from_millis(100)).await;
        let mut ended = 0;
        for state in ["Complete", "Failed"] {
            ended += node.count(name, state).await;
        }
        ended >= count
    })
    .await;
}

/// Remove a job and all that is left of its allocations.
async fn remove(node: &mut Node, name: &str) {
    node.purge(name).await;
    node.until("the allocations are removed", async |node: &mut Node| {
        clock::sleep(Duration::from_millis(100)).await;
        node.allocs(name).await.is_empty()
    })
    .await;
}

/// System calls per task of the agent and its helpers; `None` where nothing is installed that counts
/// them. Waits are left out: how often a thread sleeps while it is traced says nothing.
async fn calls_of(node: &mut Node, driver: &str, config: &Value, count: u64) -> Option<f64> {
    let counter = CallCounter::find()?;
    let mut counting = counter.attach(&node.processes())?;
    // It says nothing when it is attached; the first task after that is counted or not.
    clock::sleep(Duration::from_millis(scaled(1_000, 300))).await;
    run(node, "traced", driver, config, count).await;
    remove(node, "traced").await;
    let pid = i32::try_from(counting.id()).ok().and_then(rustix::process::Pid::from_raw)?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT).ok()?;
    let mut told = String::new();
    use std::io::Read as _;
    counting.stderr.take()?.read_to_string(&mut told).ok()?;
    counting.wait().ok()?;
    Some(number(counter.calls_in(&told)) / number(count))
}

/// A program that counts system calls. `perf` goes first, because strace holds each call up, and guests
/// that are held up yield more often.
#[derive(Clone, Copy)]
enum CallCounter {
    Perf,
    Strace,
}

impl CallCounter {
    /// The first one that works here.
    fn find() -> Option<Self> {
        [Self::Perf, Self::Strace].into_iter().find(|counter| {
            let mut command = counter.command();
            let tried = command.arg(PROGRAM).stderr(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        })
    }

    fn command(self) -> Command {
        match self {
            Self::Perf => {
                let mut command = Command::new("perf");
                let waits = wait_numbers().into_iter().map(|number| format!("id != {number}"));
                let filter = waits.collect::<Vec<_>>().join(" && ");
                command.args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "--filter", &filter]);
                command
            }
            Self::Strace => {
                let mut command = Command::new("strace");
                command.args(["-c", "-f"]);
                command
            }
        }
    }

    fn attach(self, pids: &[u32]) -> Option<Child> {
        // Both take a list.
        let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = self.command();
        command.args(["-p", &pids]);
        command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().ok()
    }

    fn calls_in(self, told: &str) -> u64 {
        match self {
            Self::Perf => {
                told.lines().filter_map(|line| line.split(',').next()?.parse::<u64>().ok()).sum()
            }
            Self::Strace => calls_in(told),
        }
    }
}
