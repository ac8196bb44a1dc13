//! The agent is killed while WASM tasks run, and another one takes over: how long until all are owned,
//! and how many were interrupted.
//!
//! A task that was interrupted is started again by the new agent, so its start is newer than the kill.
//! Baseline: the same with as many native tasks, in turns.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::collections::BTreeMap;
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

const CONFIG: &str = "client {\n cpu_total_compute = 1000000\n memory_total_mb = 1000000\n}\nplugin \
                      \"raw_exec\" {\n enabled = true\n}\n";

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("worker_handover", |report| runtime().block_on(measured(report)))
}

async fn measured(report: &mut Report) {
    let wasm = json!({ "module": TOOLBOX, "args": ["sleep", "86400000"] });
    let native = json!({ "command": "/bin/sleep", "args": ["86400"] });
    let mut node = Node::ostler(&report.dir().join("agent"), CONFIG);
    node.start().await;
    let mut points: [Vec<(f64, f64)>; 2] = Default::default();
    let (mut interrupted, mut slowest, mut rows) = (0, 0.0, Vec::new());
    for tasks in [100, 300, 1_000, 3_000, 10_000].map(|tasks| scaled(tasks, tasks / 100)) {
        let one = handover(&mut node, "wasm", &wasm, tasks).await;
        points[0].push((number(tasks), one.seconds));
        (interrupted, slowest) = (one.interrupted, one.seconds);
        rows.push((format!("{tasks} WASM tasks"), one.row()));
        // Each is a process and its supervisor: more would measure the machine.
        if tasks <= scaled(300, 3) {
            let one = handover(&mut node, "raw_exec", &native, tasks).await;
            points[1].push((number(tasks), one.seconds));
            rows.push((format!("{tasks} native tasks"), one.row()));
        }
    }
    let rows: Vec<_> = rows.iter().map(|(name, row)| (&**name, row.clone())).collect();
    let columns = ["s to all owned", "s to answer", "interrupted", "ended"];
    report.figures("agent killed and started again", &columns, &rows);
    if interrupted > 0 {
        println!("{interrupted} WASM tasks were interrupted: they did not outlive their agent");
    }
    let series = [("WASM tasks, s", &*points[0]), ("native tasks, s", &*points[1])];
    report.curve("agent killed and started until all are owned", "tasks", series);
    let promises = &mut report.promises;
    promises.at_most("handover_seconds", slowest, "s", 2.0);
    promises.at_most("handover_interrupted", number(interrupted), "tasks", 0.0);
}

struct Handover {
    seconds: f64,
    answers: f64,
    interrupted: u64,
    /// Tasks that do not run any more.
    ended: u64,
}

impl Handover {
    fn row(&self) -> Vec<f64> {
        vec![self.seconds, self.answers, number(self.interrupted), number(self.ended)]
    }
}

async fn handover(node: &mut Node, driver: &str, config: &Value, tasks: u64) -> Handover {
    let jobs: Vec<(String, u64)> = (0..tasks)
        .step_by(1_000)
        .map(|first| (format!("{driver}-{tasks}-{first}"), (tasks - first).min(1_000)))
        .collect();
    for (id, count) in &jobs {
        node.register(&job(id, "service", *count, driver, config)).await;
    }
    all_run(node, &jobs).await;
    // What may lag is on the disk, and health is judged.
    clock::sleep(Duration::from_secs(scaled(15, 1))).await;
    let before = started(node, &jobs).await;
    node.kill();
    let watch = Stopwatch::start();
    node.start().await;
    let answers = watch.elapsed().as_secs_f64();
    all_run(node, &jobs).await;
    let seconds = watch.elapsed().as_secs_f64();
    // A task that is lost is seen as such, and started again, in this time.
    clock::sleep(Duration::from_secs(scaled(5, 1))).await;
    let after = started(node, &jobs).await;
    let same = before.iter().filter(|(id, start)| after.get(*id) == Some(*start)).count();
    let same = u64::try_from(same).unwrap_or(0);
    let live = u64::try_from(after.len()).unwrap_or(0);
    for (id, _) in &jobs {
        node.purge(id).await;
    }
    Handover {
        seconds,
        answers,
        interrupted: tasks - same.min(tasks),
        ended: tasks - live.min(tasks),
    }
}

async fn all_run(node: &mut Node, jobs: &[(String, u64)]) {
    for (id, count) in jobs {
        let so = async |node: &mut Node| node.count(id, "Running").await == *count;
        node.until("all tasks run", so).await;
    }
}

/// When the present run of each task that runs began: its allocation, start and restarts.
async fn started(node: &mut Node, jobs: &[(String, u64)]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (id, _) in jobs {
        for alloc in node.allocs(id).await {
            let text = |at: &str| alloc.pointer(at).map(Value::to_string).unwrap_or_default();
            if text("/TaskStates/t/State") == "\"running\"" {
                let run = ["/TaskStates/t/StartedAt", "/TaskStates/t/Restarts"].map(text);
                all.insert(text("/ID"), run.join(" "));
            }
        }
    }
    all
}
