//! How many system calls a short task costs agent and worker, held against committed figures. What
//! starts native tasks is not counted, and neither are they. What waits is left out too: how often a
//! thread sleeps depends on the machine.

use std::process::Stdio;
use std::time::Duration;

use ostler_model::clock;
use ostler_testing::system_calls::calls_in;
use tokio::io::AsyncReadExt as _;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::needs::{Need, skipped};
use crate::support::system::processes_of;

/// The committed figures: a name and the calls of one task in each line.
const FIGURES: &str = include_str!("steps.txt");
/// How far above its figure a count may be, per cent.
const OVER_MAX: u64 = 10;
/// Tasks that are counted. No allocation is collected yet with so many.
const TASKS: u64 = 40;

fn figure(name: &str) -> u64 {
    let mut lines = FIGURES.lines().filter(|line| !line.starts_with('#'));
    let found = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("steps.txt has no figure of {name}"))
}

async fn run_to_end(agent: &AgentProcess, task: &str, name: &str, count: u64) {
    let text = format!(
        "job \"{name}\" {{\n type = \"batch\"\n group \"g\" {{\n count = {count}\n task \"t\" {{\n \
         {task}\n resources {{\n cpu = 1\n memory = 10\n }}\n }}\n }}\n}}\n"
    );
    agent.submit(&crate::support::jobs::with_guests(&text)).await.said(0, &[]);
    loop {
        let allocs = agent.allocs(name).await;
        let done = allocs.iter().filter(|alloc| alloc["ClientStatus"] == "complete").count();
        if u64::try_from(done).unwrap() == count {
            return;
        }
        // Seldom, because each question is counted too.
        clock::sleep(Duration::from_millis(400)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_wasm_task_costs_no_more_system_calls_than_before() {
    let task = "driver = \"wasm\"\n config {\n module = \"guest:hello\"\n }";
    costs_no_more_than("wasm", task, AgentProcess::start().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_native_task_costs_its_agent_no_more_system_calls_than_before() {
    let task = "driver = \"raw_exec\"\n config {\n command = \"/bin/true\"\n }";
    let data = Home::new();
    let config = data.path().join("raw_exec.hcl");
    std::fs::write(&config, "plugin \"raw_exec\" {\n enabled = true\n}\n").unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    costs_no_more_than("raw_exec", task, agent).await;
}

/// Count the calls of processes that name the data directory: agent and worker. What starts native
/// tasks does not name it.
async fn costs_no_more_than(name: &str, task: &str, agent: AgentProcess) {
    run_to_end(&agent, task, "warm", 5).await;
    let mut strace = tokio::process::Command::new("strace");
    strace.args(["-c", "-f"]).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    for pid in processes_of(agent.data.path()) {
        strace.args(["-p", &pid.to_string()]);
    }
    let mut tracing = match strace.spawn() {
        Ok(tracing) => tracing,
        Err(error) => return skipped(Need::Strace, format!("strace: {error}")),
    };
    let mut said = tracing.stderr.take().unwrap();
    let mut first = [0; 1];
    // It says that it is attached, or why it cannot be.
    said.read_exact(&mut first).await.unwrap();
    run_to_end(&agent, task, "counted", TASKS).await;
    let pid = rustix::process::Pid::from_raw(tracing.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut table = String::new();
    said.read_to_string(&mut table).await.unwrap();
    let _ended = tracing.wait().await;
    let calls = calls_in(&table) / TASKS;
    if calls == 0 {
        return skipped(Need::Strace, format!("processes cannot be traced here: {table}"));
    }
    eprintln!("{name}: {calls} system calls a task");
    let known = figure(name);
    assert!(
        calls * 100 <= known * (100 + OVER_MAX),
        "{calls} system calls a task, and {known} are on record in it/steps.txt:\n{table}"
    );
}
