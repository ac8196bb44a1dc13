//! As a node of a stock Nomad server, beside a stock Nomad client of the same server, both on this machine;
//! `NOMAD_BIN` names the program, and without it nothing is measured. In turns:
//!
//! - `latency`: a job registered at the server → its native task's own code runs, on either node;
//! - `plugin`: the same with the driver `raw_exec` of a stock client: Nomad's own, and Ostler's as an external
//!   plugin (`ostler nomad-plugin`); and of that the call `StartTask` by the events of the task.
//!
//! - `idle`: what both nodes send to the server and get from it while nothing happens: payload of their
//!   connections as the kernel counts it (`ss`, of Debian's `iproute2`).
//!
//! What the server itself takes (its evaluation, its plan, two commits) is in all starts.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::process::ExitCode;
use std::time::Duration;

use ostler_benches::live::own_child;
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::node::{NOMAD_RPC_PORT, Node, job};
use ostler_benches::report::{Report, bench};
use ostler_benches::sign::Sign;
use ostler_model::clock;
use serde_json::{Value, json};

const RAW_EXEC: &str = "plugin \"raw_exec\" {\n enabled = true\n}\n";
const NAMES: [&str; 3] = ["ostler", "nomad", "plugin"];
const TITLES: [&str; 3] =
    ["Ostler node", "Nomad v1.0.18 client, stock", "the same with Ostler's raw_exec as a plugin"];

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    if std::env::var_os("NOMAD_BIN").is_none() {
        println!("in_cluster: skipped, NOMAD_BIN does not name a program");
        return ExitCode::SUCCESS;
    }
    bench("in_cluster", |report| runtime().block_on(measured(report)))
}

async fn measured(report: &mut Report) {
    let dir = report.dir().to_owned();
    let [latency, plugin, idle] = report.parts(["latency", "plugin", "idle"]);
    let mut server = Node::nomad_server(&dir.join("server")).expect("NOMAD_BIN");
    server.start().await;
    let mut nodes = vec![
        Node::ostler_client(&dir.join(NAMES[0]), NAMES[0], RAW_EXEC),
        Node::nomad_client(&dir.join(NAMES[1]), 1, NAMES[1], None).expect("NOMAD_BIN"),
    ];
    if plugin {
        let driver = ostler_driver(&dir);
        let client = Node::nomad_client(&dir.join(NAMES[2]), 2, NAMES[2], Some(&driver));
        nodes.push(client.expect("NOMAD_BIN"));
    }
    for (node, name) in nodes.iter_mut().zip(NAMES) {
        node.spawn();
        let ready = async |server: &mut Node| {
            let nodes = server.ask("GET", "/v1/nodes", None).await;
            let own = |node: &&Value| node["Name"] == name && node["Status"] == "ready";
            let own = nodes.as_array().and_then(|nodes| nodes.iter().find(own));
            let healthy = own.and_then(|node| node.pointer("/Drivers/raw_exec/Healthy"));
            healthy.and_then(Value::as_bool) == Some(true)
        };
        server.until("a ready node", ready).await;
    }
    if idle {
        idle_traffic(report, &nodes).await;
    }
    let sign = Sign::new(&dir.join("sign"));
    let mut taken: [Taken; 3] = Default::default();
    let turns = if latency || plugin { scaled(43, 2) } else { 0 };
    for turn in 0..turns {
        for (name, taken) in NAMES.iter().zip(&mut taken).take(nodes.len()) {
            let one = start(&mut server, &sign, name, &format!("{name}-{turn}")).await;
            // The first turns fill caches.
            if turn >= scaled(3, 0) {
                taken.whole.push(one.0);
                taken.call.push(one.1);
            }
        }
    }
    let [ostler, nomad, by_plugin] = &taken;
    let [of_ostler, of_nomad, of_plugin] = TITLES;
    if latency {
        let title = "registered at the server to a task's own code";
        let rows = [(of_ostler, &*ostler.whole), (of_nomad, &*nomad.whole)];
        let [ostler, nomad] = report.times(title, rows);
        report.promises.at_most("cluster_start_latency", ostler / nomad, "times", 0.8);
    }
    if plugin {
        let title = "registered at the server to own code, by the driver of a stock client";
        report.times(title, [(of_plugin, &*by_plugin.whole), (of_nomad, &*nomad.whole)]);
        let title = "StartTask of a stock client, by the events of its task";
        let rows = [(of_plugin, &*by_plugin.call), (of_nomad, &*nomad.call)];
        let [plugin, nomad] = report.times(title, rows);
        report.promises.at_most("nomad_plugin_start", plugin / nomad, "times", 1.0);
    }
}

/// Bytes that the connections of a node to the server have carried, both ways.
fn carried(node: &Node) -> f64 {
    let server = format!("127.0.0.1:{NOMAD_RPC_PORT}");
    let args = ["--tcp", "--info", "--numeric", "--processes", "--no-header", "--oneline"];
    #[expect(clippy::disallowed_methods, reason = "a process of the bench, not of an agent")]
    let mut ss = std::process::Command::new("ss");
    let listed = ss.args(args).args(["dst", &server]).output().expect("ss, of iproute2");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let own: Vec<_> = node.processes().iter().map(|pid| format!("pid={pid},")).collect();
    let of_it = listed.lines().filter(|line| own.iter().any(|pid| line.contains(pid)));
    let counted = of_it.flat_map(|line| line.split_whitespace()).filter_map(|word| {
        let (name, count) = word.split_once(':')?;
        ["bytes_acked", "bytes_received"].contains(&name).then(|| count.parse::<f64>().ok())?
    });
    counted.sum()
}

/// Heartbeats, questions for news and signs of life.
async fn idle_traffic(report: &mut Report, nodes: &[Node]) {
    let span = Duration::from_secs(scaled(300, 2) as u64);
    // What follows a registration is not part of it.
    clock::sleep(Duration::from_secs(scaled(60, 1) as u64)).await;
    let before: Vec<f64> = nodes.iter().map(carried).collect();
    clock::sleep(span).await;
    let minutes = span.as_secs_f64() / 60.0;
    let rates: Vec<f64> =
        nodes.iter().zip(before).map(|(node, before)| (carried(node) - before) / minutes).collect();
    let [ostler, nomad, ..] = rates.as_slice() else { return };
    let title = "bytes between an idle node and its server, per minute";
    report.bars(title, "bytes", &[(TITLES[0], *ostler), (TITLES[1], *nomad)]);
    report.promises.at_most("idle_node_traffic", ostler / nomad, "times", 1.0);
}

/// What starts took on one node.
#[derive(Default)]
struct Taken {
    /// From the request to the task's own code.
    whole: Vec<Duration>,
    /// From the task's directory to its start.
    call: Vec<Duration>,
}

/// Ostler's `raw_exec` as the plugin of a client.
fn ostler_driver(dir: &std::path::Path) -> String {
    let this = || std::env::current_exe().expect("the path of this program");
    let program = std::env::var_os("OSTLER_BIN").map_or_else(this, Into::into);
    let plugins = dir.join("plugins");
    std::fs::create_dir_all(&plugins).expect("a directory of plugins");
    std::os::unix::fs::symlink(program, plugins.join("ostler-raw_exec")).expect("a plugin");
    format!(
        "plugin_dir = \"{}\"\nplugin \"ostler-raw_exec\" {{\n args = [\"nomad-plugin\", \"--driver\", \
         \"raw_exec\", \"--data-dir\", \"{}\"]\n}}\n",
        plugins.display(),
        dir.join("plugin-data").display()
    )
}

/// One job with one task on this node, to its end.
async fn start(server: &mut Node, sign: &Sign, node: &str, id: &str) -> (Duration, Duration) {
    let script = format!("echo > {}", sign.path().display());
    let config = json!({ "command": "/bin/sh", "args": ["-c", script] });
    let mut job = job(id, "batch", 1, "raw_exec", &config);
    let here = json!([{ "LTarget": "${node.unique.name}", "Operand": "=", "RTarget": node }]);
    let of_job = job.get_mut("Job").and_then(Value::as_object_mut).expect("a job");
    of_job.insert("Constraints".to_owned(), here);
    let waiting = sign.wait();
    server.register(&job).await;
    let whole = tokio::task::block_in_place(|| waiting.took());
    let ended = async |server: &mut Node| server.count(id, "Complete").await == 1;
    server.until("the task ends", ended).await;
    let allocs = server.allocs(id).await;
    let events = allocs.first().and_then(|alloc| alloc.pointer("/TaskStates/t/Events")).cloned();
    let at = |kind: &str| {
        let events = events.as_ref().and_then(Value::as_array).expect("events of the task");
        let event = events.iter().find(|event| event["Type"] == kind).expect("an event");
        event["Time"].as_u64().expect("its time")
    };
    let call = Duration::from_nanos(at("Started").saturating_sub(at("Task Setup")));
    server.purge(id).await;
    (whole, call)
}
