//! Beside stock Nomad, whose program `NOMAD_BIN` names; without that nothing is measured. The same
//! requests over HTTP to both, in turns, server and client in one agent with its state on disk:
//!
//! - a job registered → its native task's own code runs: a shell that writes to a pipe;
//! - tasks started per second in one job of 100 and of 400;
//! - memory and processor time of agent and helpers with so many tasks at rest;
//! - the agent killed and started with 100 native tasks → all owned, and statistics of all served.
//!
//! The baseline of the first is fork and exec of the same shell.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ostler_benches::live::own_child;
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::node::{Node, job};
use ostler_benches::percentiles::{median, number};
use ostler_benches::report::{Report, bench};
use ostler_benches::sign::Sign;
use ostler_model::clock::{self, Stopwatch};
use serde_json::{Value, json};

const CONFIG: &str = "plugin \"raw_exec\" {\n enabled = true\n}\n";
const NAMES: [&str; 2] = ["Ostler", "Nomad v1.0.18, stock"];

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    if std::env::var_os("NOMAD_BIN").is_none() {
        println!("beside_nomad: skipped, NOMAD_BIN does not name a program");
        return ExitCode::SUCCESS;
    }
    bench("beside_nomad", |report| runtime().block_on(measured(report)))
}

async fn measured(report: &mut Report) {
    let dir = report.dir().to_owned();
    let nomad = Node::nomad(&dir.join("nomad")).expect("NOMAD_BIN");
    let mut nodes = [Node::ostler(&dir.join("ostler"), CONFIG), nomad];
    for node in &mut nodes {
        node.start().await;
    }
    let sign = Sign::new(&dir.join("sign"));
    let [latency, many, restart] = report.parts(["latency", "many", "restart"]);
    if latency {
        starts(report, &mut nodes, &sign).await;
    }
    if many {
        jobs(report, &mut nodes, &sign).await;
    }
    if restart {
        restarts(report, &mut nodes).await;
    }
}

fn shell(script: &str) -> Value {
    json!({ "command": "/bin/sh", "args": ["-c", script] })
}

/// One task at a time, from its registration to its own code.
async fn starts(report: &mut Report, nodes: &mut [Node; 2], sign: &Sign) {
    let script = format!("echo > {}", sign.path().display());
    let mut times: [Vec<Duration>; 3] = Default::default();
    for turn in 0..scaled(33, 2) {
        let mut took = [Duration::ZERO; 3];
        for (node, took) in nodes.iter_mut().zip(&mut took) {
            let id = format!("start-{turn}");
            let job = job(&id, "batch", 1, "raw_exec", &shell(&script));
            let waiting = sign.wait();
            node.register(&job).await;
            *took = tokio::task::block_in_place(|| waiting.took());
            node.purge(&id).await;
        }
        let waiting = sign.wait();
        let mut command = Command::new("/bin/sh");
        let command = command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        took[2] = waiting.took();
        child.wait().expect("the program ends");
        // The first turns fill caches.
        if turn >= scaled(3, 0) {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
    let [ostler, nomad, alone] = &times;
    let rows = [(NAMES[0], &**ostler), (NAMES[1], &**nomad), ("fork and exec", &**alone)];
    let [ostler, nomad, _] = report.times("registered over HTTP to a task's own code", rows);
    report.promises.at_least("nomad_start_latency", nomad / ostler, "times", 20.0);
}

/// What one job of so many tasks took.
#[derive(Default)]
struct Many {
    per_second: f64,
    memory: f64,
    idle: f64,
}

/// Jobs of many tasks: how fast they start, and what they cost at rest.
async fn jobs(report: &mut Report, nodes: &mut [Node; 2], sign: &Sign) {
    let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
    let mut last = [Many::default(), Many::default()];
    for count in [100, 400].map(|count| scaled(count, count / 50)) {
        for ((node, name), last) in nodes.iter_mut().zip(NAMES).zip(&mut last) {
            let rounds = one_job(node, sign, count).await;
            let row = vec![rounds.per_second, rounds.memory, rounds.idle];
            rows.push((format!("{name}, {count} tasks"), row));
            *last = rounds;
        }
    }
    let columns = ["started/s", "MiB in all", "idle % core"];
    let rows: Vec<_> = rows.iter().map(|(name, row)| (&**name, row.clone())).collect();
    report.figures("one job of native tasks: agent and helpers", &columns, &rows);
    let [ostler, nomad] = last;
    let pair = |of: fn(&Many) -> f64| [(NAMES[0], of(&ostler)), (NAMES[1], of(&nomad))];
    report.bars("tasks of one job started", "tasks/s", &pair(|one| one.per_second));
    report.bars("memory of agent and helpers", "MiB", &pair(|one| one.memory));
    report.bars("processor time at rest", "% of a core", &pair(|one| one.idle));
    let promises = &mut report.promises;
    let rate = ostler.per_second / nomad.per_second;
    promises.at_least("nomad_starts_per_second", rate, "times", 60.0);
    // Less than a tick of the kernel in the whole time counts as one.
    let idle = nomad.idle / ostler.idle.max(0.01);
    promises.at_least("nomad_idle_cpu_400", idle, "times", 200.0);
}

async fn one_job(node: &mut Node, sign: &Sign, count: u64) -> Many {
    let script = format!("echo > {}; exec sleep 86400", sign.path().display());
    let mut rates = Vec::new();
    let mut many = Many::default();
    let rounds = scaled(3, 1);
    for round in 0..rounds {
        let id = format!("many-{count}-{round}");
        let watch = Stopwatch::start();
        let waiting = sign.wait_for(count);
        node.register(&job(&id, "service", count, "raw_exec", &shell(&script))).await;
        tokio::task::block_in_place(|| waiting.took());
        rates.push(number(count) / watch.elapsed().as_secs_f64());
        if round + 1 == rounds {
            // Health is judged ten seconds after a task runs.
            clock::sleep(Duration::from_secs(scaled(20, 1))).await;
            many.idle = node.idle(Duration::from_secs(scaled(20, 1))).await;
            many.memory = number(node.memory()) / 1024.0 / 1024.0;
        }
        node.purge(&id).await;
    }
    Many { per_second: median(&rates), ..many }
}

/// The agent is killed and started; until statistics of every task are served.
async fn restarts(report: &mut Report, nodes: &mut [Node; 2]) {
    let count = scaled(100, 3);
    let sleep = json!({ "command": "/bin/sleep", "args": ["86400"] });
    let mut times: [Vec<Duration>; 2] = Default::default();
    for node in nodes.iter_mut() {
        node.register(&job("kept", "service", count, "raw_exec", &sleep)).await;
        let so = async |node: &mut Node| node.count("kept", "Running").await == count;
        node.until("all tasks run", so).await;
    }
    clock::sleep(Duration::from_secs(scaled(15, 1))).await;
    for _ in 0..scaled(5, 1) {
        for (node, times) in nodes.iter_mut().zip(&mut times) {
            let allocs = node.allocs("kept").await;
            node.kill();
            let watch = Stopwatch::start();
            node.spawn();
            for alloc in &allocs {
                let id = alloc["ID"].as_str().expect("an id");
                let path = format!("/v1/client/allocation/{id}/stats");
                let measured = async |node: &mut Node| {
                    let answer = node.try_ask("GET", &path, None).await;
                    answer.is_some_and(|(status, answer)| {
                        let task = answer.pointer("/Tasks/t");
                        status.is_success() && task.is_some_and(|task| !task.is_null())
                    })
                };
                node.until("statistics of a task", measured).await;
            }
            times.push(watch.elapsed());
            clock::sleep(Duration::from_secs(scaled(5, 1))).await;
        }
    }
    for node in nodes.iter_mut() {
        node.purge("kept").await;
    }
    let [ostler, nomad] = &times;
    let title = format!("killed and started with {count} native tasks until all are measured");
    let [ostler, nomad] = report.times(&title, [(NAMES[0], &**ostler), (NAMES[1], &**nomad)]);
    report.promises.at_least("nomad_restart_100", nomad / ostler, "times", 15.0);
}
