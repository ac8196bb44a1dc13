//! How many idle WASM tasks live at once, and what each costs: memory of the agent and its workers,
//! mappings, processor time at rest, time until all run. With `-- dense`, in the dense profile.
//!
//! A task is a program of the Rust toolchain that waits. Baseline: the same agent without a task. Tasks
//! that do not come to run are told with the agent's reason.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::process::ExitCode;
use std::time::Duration;

use ostler_benches::live::own_child;
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::node::{Node, job};
use ostler_benches::percentiles::number;
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::TOOLBOX;
use ostler_model::clock::{self, Stopwatch};
use serde_json::{Value, json};

/// Tasks of one job.
const JOB: u64 = 1_000;
/// Nothing more came to run for so long: this is the wall.
const STUCK: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("density", |report| {
        let [usual, dense] = report.parts(["usual", "dense"]);
        let steps = [100, 300, 1_000, 3_000, 10_000].map(|tasks| scaled(tasks, tasks / 100));
        if usual {
            let live = runtime().block_on(grow(report, false, &steps));
            report.promises.at_least("wasm_tasks", live, "tasks", 10_000.0);
        }
        if dense {
            let steps = [1_000, 10_000, 30_000, 50_000].map(|tasks| scaled(tasks, tasks / 1_000));
            let live = runtime().block_on(grow(report, true, &steps));
            report.promises.at_least("dense_wasm_tasks", live, "tasks", 50_000.0);
        }
    })
}

/// What so many tasks cost.
struct Step {
    live: u64,
    /// Since the first was asked for, seconds.
    took: f64,
    memory: u64,
    mappings: u64,
    idle: f64,
}

/// Start tasks, step by step; how many live at the end.
async fn grow(report: &mut Report, dense: bool, steps: &[u64]) -> f64 {
    let name = if dense { "dense" } else { "usual" };
    let config = format!(
        "client {{\n cpu_total_compute = 1000000\n memory_total_mb = 1000000\n}}\nwasm {{\n dense = \
         {dense}\n}}\n"
    );
    let mut node = Node::ostler(&report.dir().join(name), &config);
    node.start().await;
    // The driver is loaded, and the program compiled.
    node.register(&waiting("warm", 1)).await;
    let so = async |node: &mut Node| node.count("warm", "Running").await == 1;
    node.until("a first task runs", so).await;
    node.purge("warm").await;
    clock::sleep(Duration::from_secs(scaled(10, 0))).await;
    let empty = node.memory();
    let (mut jobs, mut taken, mut measured) = (Vec::new(), Duration::ZERO, Vec::<Step>::new());
    for wanted in steps {
        let watch = Stopwatch::start();
        let before = measured.last().map_or(0, |step| step.live);
        for first in (before..*wanted).step_by(usize::try_from(JOB).unwrap_or(1)) {
            let id = format!("idle-{first}");
            node.register(&waiting(&id, JOB.min(wanted - first))).await;
            jobs.push(id);
        }
        let live = settled(&mut node, &jobs, *wanted).await;
        taken += watch.elapsed();
        // So many new directories are much for a file system, and each is measured once for it.
        let rest = if steps.last() == Some(wanted) { scaled(100, 0) } else { scaled(5, 0) };
        clock::sleep(Duration::from_secs(rest)).await;
        let idle = node.idle(Duration::from_secs(scaled(20, 1))).await;
        let (memory, mappings) = (node.memory(), node.mappings());
        measured.push(Step { live, took: taken.as_secs_f64(), memory, mappings, idle });
        if live < *wanted {
            println!("the wall: {live} of {wanted}: {}", reason(&mut node, &jobs).await);
            break;
        }
    }
    let kib = |bytes: u64| number(bytes) / 1024.0;
    let rows = measured.iter().map(|step| {
        let live = number(step.live);
        let (all, over) = (kib(step.memory), kib(step.memory.saturating_sub(empty)));
        let row = vec![step.took, all / live, over / live, number(step.mappings), step.idle];
        (format!("{} tasks", step.live), row)
    });
    let rows: Vec<(String, Vec<f64>)> = rows.collect();
    let columns =
        ["s until they run", "KiB each", "KiB over empty", "most mappings", "idle % core"];
    let rows: Vec<_> = rows.iter().map(|(name, row)| (&**name, row.clone())).collect();
    report.figures(&format!("idle WASM tasks, {name} profile"), &columns, &rows);
    println!("empty agent: {:.0} KiB", kib(empty));
    curves(report, name, &measured, empty, dense);
    drop(node);
    measured.last().map_or(0.0, |step| number(step.live))
}

fn curves(report: &mut Report, name: &str, measured: &[Step], empty: u64, dense: bool) {
    let points = |of: &dyn Fn(&Step) -> f64| -> Vec<(f64, f64)> {
        measured.iter().map(|step| (number(step.live), of(step))).collect()
    };
    let time = points(&|step| step.took);
    let memory = points(&|step| number(step.memory.saturating_sub(empty)) / 1024.0 / 1024.0);
    let series = [("until all run, s", &*time), ("memory over an empty agent, MiB", &*memory)];
    let title = format!("idle WASM tasks and their cost, {name} profile");
    let exponents = report.curve(&title, "tasks", series);
    let Some(last) = measured.last().filter(|_| !dense) else { return };
    let each = number(last.memory) / 1024.0 / number(last.live);
    let bars = [
        ("Ostler, an idle WASM task, agent and workers together", each),
        ("Nomad v1.0.18, stock: helpers of a native task (recorded)", 5_600.0),
        ("containerd's wasmtime shim, a task (published)", 22_700.0),
    ];
    report.bars("memory of an idle task", "KiB", &bars);
    let exponent = exponents.into_iter().fold(0.0, f64::max);
    let promises = &mut report.promises;
    promises.at_most("cost_exponent_tasks", exponent, "power", 1.05);
    promises.at_most("idle_wasm_memory", each, "KiB", 96.0);
    promises.at_most("idle_wasm_cpu", last.idle, "% of a core", 0.5);
}

fn waiting(id: &str, count: u64) -> Value {
    let config = json!({ "module": TOOLBOX, "args": ["sleep", "86400000"] });
    job(id, "service", count, "wasm", &config)
}

/// Wait until so many run, or no more come; how many run.
async fn settled(node: &mut Node, jobs: &[String], wanted: u64) -> u64 {
    let (mut live, mut watch) = (0, Stopwatch::start());
    while live < wanted && watch.elapsed() < STUCK {
        let mut now = 0;
        for job in jobs {
            now += node.count(job, "Running").await;
        }
        if now > live {
            (live, watch) = (now, Stopwatch::start());
        }
        clock::sleep(Duration::from_millis(20)).await;
    }
    live
}

/// Why those that do not run do not.
async fn reason(node: &mut Node, jobs: &[String]) -> String {
    let last = jobs.last().map_or("", String::as_str);
    let allocs = node.allocs(last).await;
    let not_running = allocs.iter().find(|alloc| alloc["ClientStatus"] != "running");
    let told = |alloc: &Value| {
        let event =
            alloc.pointer("/TaskStates/t/Events").and_then(|events| events.as_array()?.last());
        format!(
            "{} {}",
            alloc["ClientDescription"],
            event.unwrap_or(&Value::Null)["DisplayMessage"]
        )
    };
    let queued = node.ask("GET", &format!("/v1/job/{last}/evaluations"), None).await;
    not_running.map_or_else(|| queued.to_string(), told)
}
