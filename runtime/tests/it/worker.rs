//! WASM tasks live in a worker process: agents come and go, and what breaks there ends there.

mod ends;
mod lost;
mod scopes;

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{shell, wasm};
use crate::support::system::{eventually, runs, until};

fn job(id: &str, tasks: &str) -> String {
    format!("job \"{id}\" {{\n group \"g\" {{\n {tasks}\n }}\n}}\n")
}

/// A job of `count` idle WASM tasks.
fn idle(id: &str, count: usize) -> String {
    let task = wasm("t", &toolbox(), &["sleep", "1000000"], "");
    format!("job \"{id}\" {{\n group \"g\" {{\n count = {count}\n {task}\n }}\n}}\n")
}

fn toolbox() -> String {
    ostler_guests::fixtures::TOOLBOX_P1.to_owned()
}

/// The workers of a data directory that run, by what they are for.
fn keyed(data: &Path) -> Vec<(String, u32)> {
    let dirs = std::fs::read_dir(data.join("workers")).into_iter().flatten().flatten();
    let found = dirs.filter_map(|dir| {
        let text = std::fs::read(dir.path().join("worker.json")).ok()?;
        let record: Value = serde_json::from_slice(&text).ok()?;
        let pid = u32::try_from(record["pid"].as_u64()?).ok()?;
        Some((record["key"].as_str()?.to_owned(), pid))
    });
    found.filter(|(_, pid)| runs(*pid)).collect()
}

/// Their pids.
fn workers(data: &Path) -> Vec<u32> {
    keyed(data).into_iter().map(|(_, pid)| pid).collect()
}

fn only_worker(data: &Path) -> u32 {
    let workers = workers(data);
    assert_eq!(workers.len(), 1, "{workers:?}");
    workers[0]
}

fn kill(pid: u32) {
    kill_process(i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap(), Signal::KILL).unwrap();
}

/// Kill the agent without a word; its data directory.
async fn killed(agent: AgentProcess) -> Home {
    agent.signal(Signal::KILL);
    agent.ended().await.1
}

/// Starts of the task `t` of the only allocation of a job.
async fn starts(agent: &AgentProcess, job: &str) -> usize {
    let alloc = agent.alloc(job).await;
    let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
    let events = shown["TaskStates"]["t"]["Events"].as_array().unwrap().clone();
    events.iter().filter(|event| event["Type"] == "Started").count()
}

async fn state(agent: &AgentProcess, job: &str) -> String {
    let alloc = agent.alloc(job).await;
    let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
    shown["TaskStates"]["t"]["State"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn wasm_tasks_run_on_when_the_agent_is_killed_and_the_next_one_owns_them() {
    let agent = AgentProcess::start().await;
    agent.run(&idle("idle", 3)).await.said(0, &["job idle runs"]);
    let worker = only_worker(agent.data.path());
    let data = killed(agent).await;
    assert!(runs(worker));

    let agent = AgentProcess::start_in(data, &[]).await;
    assert_eq!(only_worker(agent.data.path()), worker);
    for alloc in agent.allocs("idle").await {
        let id = alloc["ID"].as_str().unwrap();
        let shown = agent.json(&["alloc", "status", "--json", id]).await;
        assert_eq!(shown["TaskStates"]["t"]["State"], "running", "{shown:#}");
        assert_eq!(shown["TaskStates"]["t"]["Restarts"], 0, "{shown:#}");
    }
    let alloc = agent.allocs("idle").await[0]["ID"].as_str().unwrap().to_owned();
    let stats = agent.ask(&["alloc", "status", "--stats", &alloc]).await;
    assert!(stats.stdout.contains("in use"), "{stats:#?}");
    agent.ask(&["job", "stop", "idle"]).await.said(0, &[]);
    agent.signal(Signal::TERM);
    let (_, data) = agent.ended().await;
    eventually("a worker without tasks ends with its agent", || !runs(worker)).await;
    drop(data);
}

#[tokio::test]
async fn output_flows_and_the_exit_is_kept_while_no_agent_runs() {
    let agent = AgentProcess::start().await;
    let gate = agent.data.path().join("gate");
    std::fs::create_dir_all(&gate).unwrap();
    let lines = wasm("t", &toolbox(), &["say-times", "40", "50"], "");
    let text = format!("job \"talk\" {{\n type = \"batch\"\n group \"g\" {{\n {lines}\n }}\n}}\n");
    agent.submit(&text).await.said(0, &[]);
    until("it prints", async || {
        let Some(alloc) = agent.allocs("talk").await.first().cloned() else { return false };
        let id = alloc["ID"].as_str().unwrap().to_owned();
        !agent.ask(&["alloc", "logs", &id]).await.stdout.is_empty()
    })
    .await;
    let alloc = agent.alloc("talk").await;
    let data = killed(agent).await;
    let worker = only_worker(data.path());
    let log = data.path().join("allocs").join(&alloc).join("alloc/logs/t.stdout.0");
    eventually("its last line is in its log", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 40)
    })
    .await;
    assert!(runs(worker), "it keeps the exit");

    let agent = AgentProcess::start_in(data, &[]).await;
    until("its end is known", async || state(&agent, "talk").await == "dead").await;
    let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
    assert_eq!(shown["ClientStatus"], "complete", "{shown:#}");
    assert_eq!(shown["TaskStates"]["t"]["Restarts"], 0, "{shown:#}");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 40, "it ran once");
}

#[tokio::test]
async fn a_worker_that_is_killed_takes_its_tasks_along_and_nothing_else() {
    let agent = AgentProcess::start().await;
    agent.run(&idle("idle", 1)).await.said(0, &["job idle runs"]);
    let native = job("native", &shell("t", "exec sleep 600", ""));
    agent.run(&native).await.said(0, &["job native runs"]);
    let worker = only_worker(agent.data.path());
    kill(worker);
    until("the task runs again in another worker", async || {
        starts(&agent, "idle").await == 2 && state(&agent, "idle").await == "running"
    })
    .await;
    assert_ne!(only_worker(agent.data.path()), worker);
    let alloc = agent.alloc("idle").await;
    let shown = agent.ask(&["alloc", "status", &alloc]).await.stdout;
    assert!(
        shown.contains("the worker process of WASM tasks is gone: killed by signal 9"),
        "{shown}"
    );
    assert_eq!(starts(&agent, "native").await, 1);
}

#[tokio::test]
async fn a_task_of_a_worker_can_be_stopped_by_the_next_agent() {
    let agent = AgentProcess::start().await;
    let spin = job("spin", &wasm("t", &toolbox(), &["spin"], ""));
    agent.run(&spin).await.said(0, &["job spin runs"]);
    let data = killed(agent).await;
    let agent = AgentProcess::start_in(data, &[]).await;
    let alloc = agent.alloc("spin").await;
    agent.ask(&["job", "stop", "spin"]).await.said(0, &[]);
    until("it is dead", async || {
        let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
        shown["TaskStates"]["t"]["State"] == "dead"
    })
    .await;
    let shown = agent.ask(&["alloc", "status", &alloc]).await.stdout;
    assert!(shown.contains("killed by signal 9") || shown.contains("Killed"), "{shown}");
}

/// A copy of the program: another file, and so another build.
fn another_build(dir: &Path) -> PathBuf {
    let to = dir.join("ostler");
    ostler_testing::programs::copy_program(Path::new(crate::support::OSTLER), &to).unwrap();
    to
}

#[tokio::test]
async fn a_worker_of_another_build_serves_its_tasks_to_their_end_and_gets_no_new_ones() {
    let agent = AgentProcess::start().await;
    agent.run(&idle("old", 1)).await.said(0, &["job old runs"]);
    let old = only_worker(agent.data.path());
    let data = killed(agent).await;

    let build = tempfile::tempdir().unwrap();
    let program = another_build(build.path());
    let mut agent = AgentProcess::spawn_program(program.to_str().unwrap(), data, &[], |_| {});
    agent.hears("ready: the agent").await;
    assert_eq!(state(&agent, "old").await, "running");
    assert_eq!(starts(&agent, "old").await, 1);
    agent.run(&idle("new", 1)).await.said(0, &["job new runs"]);
    let both = workers(agent.data.path());
    assert!(both.len() == 2 && both.contains(&old), "{both:?}");
    agent.ask(&["job", "stop", "--purge", "old"]).await.said(0, &[]);
    eventually("the worker of the other build ends with its last task", || !runs(old)).await;
    assert_eq!(state(&agent, "new").await, "running");
}

#[tokio::test]
async fn what_an_agent_was_starting_when_it_was_killed_has_not_run_twice() {
    for completed in [0, 1, 7, 15] {
        let agent = AgentProcess::start().await;
        let args = ["say-times", "1", "0"];
        let task = wasm("t", &toolbox(), &args, "");
        let text = format!(
            "job \"once\" {{\n type = \"batch\"\n group \"g\" {{\n count = 20\n {task}\n }}\n}}\n"
        );
        let file = agent.file("once.hcl", &text);
        let file = file.to_str().unwrap().to_owned();
        let submitted = agent.ask(&["job", "run", "--detach", &file]).await;
        submitted.said(0, &[]);
        let complete = async |agent: &AgentProcess, least: usize| {
            let allocs = agent.allocs("once").await;
            allocs.iter().filter(|alloc| alloc["ClientStatus"] == "complete").count() >= least
        };
        until("some are complete", async || complete(&agent, completed).await).await;
        let data = killed(agent).await;
        let agent = AgentProcess::start_in(data, &[]).await;
        until("all are complete", async || complete(&agent, 20).await).await;
        for alloc in agent.allocs("once").await {
            let id = alloc["ID"].as_str().unwrap();
            let shown = agent.ask(&["alloc", "logs", id]).await.stdout;
            assert!(shown.lines().count() <= 1, "{id} ran twice: {shown}");
        }
    }
}

/// Descriptors that a process holds.
fn open_in(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[tokio::test]
async fn a_task_that_waits_costs_neither_its_worker_nor_its_agent_a_descriptor() {
    let agent = AgentProcess::start().await;
    let component = ostler_guests::fixtures::TOOLBOX;
    let many = |id: &str, count: usize| {
        let task = wasm("t", component, &["sleep", "1000000"], "");
        format!("job \"{id}\" {{\n group \"g\" {{\n count = {count}\n {task}\n }}\n}}\n")
    };
    agent.run(&many("first", 1)).await.said(0, &["job first runs"]);
    let worker = only_worker(agent.data.path());
    let (before, of_agent) = (open_in(worker), open_in(agent.pid()));
    agent.run(&many("idle", 30)).await.said(0, &["job idle runs"]);
    let more = open_in(worker).saturating_sub(before);
    assert!(more < 10, "{more} descriptors of the worker for 30 tasks");
    let more = open_in(agent.pid()).saturating_sub(of_agent);
    assert!(more < 15, "{more} descriptors of the agent for 30 tasks");
    agent.ask(&["job", "stop", "idle"]).await;
}
