//! Helpers of the agent that hang (they are stopped, which the kernel tells nobody) are found out and replaced as
//! dead ones are, and their tasks pay nothing for it.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::agent_process::AgentProcess;
use crate::support::binary::ostler;
use crate::support::jobs::{shell, wasm};
use crate::support::system::{eventually, pid_in, processes_of, runs, until};

fn stop(pid: u32) {
    kill_process(i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap(), Signal::STOP).unwrap();
}

/// Processes that became what they are by this first argument.
fn called(candidates: impl IntoIterator<Item = u32>, argument: &str) -> Vec<u32> {
    let is = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(argument.as_bytes())
    };
    candidates.into_iter().filter(is).collect()
}

fn children_of(pid: u32) -> Vec<u32> {
    let dirs = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = dirs.filter_map(|dir| std::fs::read_to_string(dir.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

fn worker(data: &Path) -> u32 {
    let found = called(processes_of(data), "__worker");
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// A service whose task would be out of restarts after one.
fn service(id: &str, task: &str) -> String {
    let restart = "restart {\n attempts = 0\n mode = \"fail\"\n }";
    format!("job \"{id}\" {{\n group \"g\" {{\n {restart}\n {task}\n }}\n}}\n")
}

fn idle_wasm(id: &str) -> String {
    let toolbox = ostler_guests::fixtures::TOOLBOX_P1;
    service(id, &wasm("t", toolbox, &["sleep", "1000000"], ""))
}

async fn restarts(agent: &AgentProcess, job: &str) -> u64 {
    let alloc = agent.alloc(job).await;
    let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
    shown["TaskStates"]["t"]["Restarts"].as_u64().unwrap()
}

#[tokio::test]
async fn a_worker_that_hangs_is_replaced_and_a_start_that_met_it_costs_no_restart() {
    let mut agent = AgentProcess::start().await;
    agent.run(&idle_wasm("first")).await.said(0, &["job first runs"]);
    let hung = worker(agent.data.path());
    let alloc = agent.alloc("first").await;
    stop(hung);
    agent.run(&idle_wasm("second")).await.said(0, &["job second runs"]);
    assert_eq!(restarts(&agent, "second").await, 0);
    assert!(!runs(hung), "it was killed");
    assert_ne!(worker(agent.data.path()), hung);
    let shown = agent.ask(&["alloc", "status", &alloc]).await.stdout;
    assert!(shown.contains("did not answer for"), "the end of its task says why: {shown}");
    agent.hears("a worker of WASM tasks does not answer and is killed").await;
}

#[tokio::test]
async fn a_task_of_a_worker_that_hangs_can_be_stopped() {
    let agent = AgentProcess::start().await;
    agent.run(&idle_wasm("first")).await.said(0, &["job first runs"]);
    let hung = worker(agent.data.path());
    stop(hung);
    agent.ask(&["job", "stop", "first"]).await.said(0, &["job first is stopped"]);
    assert!(!runs(hung), "nothing of it is left");
}

#[tokio::test]
async fn an_agent_that_ends_leaves_no_worker_that_hangs_and_has_no_task() {
    let agent = AgentProcess::start().await;
    agent.run(&idle_wasm("first")).await.said(0, &["job first runs"]);
    let hung = worker(agent.data.path());
    agent.ask(&["job", "stop", "--purge", "first"]).await.said(0, &["job first is stopped"]);
    stop(hung);
    agent.signal(Signal::TERM);
    let (ended, data) = agent.ended().await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!runs(hung), "nobody would end it");
    let left = std::fs::read_dir(data.path().join("workers")).unwrap().count();
    assert_eq!(left, 0, "its directory is removed");
}

#[tokio::test]
async fn a_zygote_that_hangs_is_replaced_and_a_start_that_met_it_costs_no_restart() {
    let mut agent = AgentProcess::start().await;
    let sleeps = |id: &str| service(id, &shell("t", "echo $$ > local/pid; exec sleep 600", ""));
    agent.run(&sleeps("first")).await.said(0, &["job first runs"]);
    let first = agent.alloc("first").await;
    let pid = pid_in(&agent.data.path().join(format!("allocs/{first}/t/local/pid"))).await;
    let zygotes = called(children_of(agent.pid()), "__supervise");
    assert_eq!(zygotes.len(), 1, "{zygotes:?}");
    stop(zygotes[0]);
    agent.run(&sleeps("second")).await.said(0, &["job second runs"]);
    assert_eq!(restarts(&agent, "second").await, 0);
    assert!(runs(pid), "what it started before goes on");
    let now = called(children_of(agent.pid()), "__supervise");
    assert!(now.len() == 1 && now != zygotes, "{now:?} after {zygotes:?}");
    // Also where a command inside a task meets it.
    stop(now[0]);
    let second = agent.alloc("second").await;
    let dir = agent.data.path().to_str().unwrap();
    let inside = ostler(["alloc", "exec", "--data-dir", dir, &second, "echo", "inside"]).await;
    inside.said(0, &[]);
    assert_eq!(inside.stdout, "inside\n");
    agent.hears("the process that starts native tasks does not answer and is replaced").await;
}

#[tokio::test]
async fn the_end_of_a_task_is_seen_when_its_supervisor_hangs() {
    let agent = AgentProcess::start().await;
    let task = shell("t", "echo $$ > local/pid; exec sleep 600", "");
    agent.run(&service("svc", &task)).await.said(0, &["job svc runs"]);
    let alloc = agent.alloc("svc").await;
    let pid = pid_in(&agent.data.path().join(format!("allocs/{alloc}/t/local/pid"))).await;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap();
    let supervisor: u32 = parent.parse().unwrap();
    stop(supervisor);
    crate::support::system::kill(pid);
    eventually("the supervisor is killed", || !runs(supervisor)).await;
    until("the end is seen", async || {
        let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
        shown["TaskStates"]["t"]["State"] == "dead"
    })
    .await;
}
