//! The clock of the machine is set while an agent runs, and between two agents: no wait changes.

use rustix::process::Signal;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{STAYS_FAILED, shell, with_guests};
use crate::support::system::until;

/// What the tested agent's clock is off by, in seconds.
fn set_clock(home: &Home, seconds: i64) {
    let (file, new) = (home.path().join("clock"), home.path().join("clock.new"));
    std::fs::write(&new, seconds.to_string()).unwrap();
    std::fs::rename(new, file).unwrap();
}

async fn start(home: Home) -> AgentProcess {
    let clock = home.path().join("clock");
    let mut agent = AgentProcess::spawn(home, &[], |command| {
        command.env("OSTLER_TEST_CLOCK", clock);
    });
    agent.hears("ready: the agent").await;
    agent
}

/// A service whose task says that it ran, and fails; `rules`: what comes of that.
fn failing(agent: &AgentProcess, name: &str, rules: &str) -> String {
    let said = format!("echo ran >> {}/{name}; exit 3", agent.data.path().display());
    let task = shell("t", &said, "");
    with_guests(&format!("job \"{name}\" {{\n group \"g\" {{\n {rules}\n {task}\n }}\n}}\n"))
}

fn restarting(attempts: u32, delay: &str) -> String {
    format!(
        "restart {{\n attempts = {attempts}\n interval = \"1h\"\n delay = \"{delay}\"\n mode = \"fail\"\n }}\n \
         {STAYS_FAILED}"
    )
}

const FOLLOWED: &str = "restart {\n attempts = 0\n mode = \"fail\"\n }\n reschedule {\n delay = \"5s\"\n \
                        delay_function = \"constant\"\n unlimited = true\n }";

fn rolling(version: u32) -> String {
    let env = format!("env {{\n VERSION = \"{version}\"\n }}");
    let task = shell("t", "trap 'exit 0' TERM INT; while :; do sleep 0.1; done", &env);
    with_guests(&format!(
        "job \"web\" {{\n update {{\n max_parallel = 1\n min_healthy_time = \"1s\"\n \
         healthy_deadline = \"30s\"\n progress_deadline = \"40s\"\n }}\n group \"g\" {{\n count = 2\n \
         {task}\n }}\n}}\n"
    ))
}

fn ran(agent: &AgentProcess, name: &str) -> usize {
    let said = std::fs::read_to_string(agent.data.path().join(name));
    said.map_or(0, |text| text.lines().count())
}

/// It runs again and again, from now on.
async fn goes_on(agent: &AgentProcess, name: &str) {
    let before = ran(agent, name);
    until(&format!("{name} runs twice again"), async || ran(agent, name) >= before + 2).await;
}

async fn deployed(agent: &AgentProcess, version: u64) {
    until(&format!("version {version} is deployed"), async || {
        let all = agent.json(&["deployment", "list", "--json"]).await;
        let is =
            |one: &serde_json::Value| one["JobVersion"] == version && one["Status"] == "successful";
        all.as_array().unwrap().iter().any(is)
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_wait_longer() {
    let home = Home::new();
    set_clock(&home, 0);
    let agent = start(home).await;
    agent.submit(&failing(&agent, "restarts", &restarting(50, "3s"))).await.said(0, &[]);
    agent.submit(&failing(&agent, "followed", FOLLOWED)).await.said(0, &[]);
    agent.submit(&rolling(1)).await.said(0, &[]);
    deployed(&agent, 0).await;
    until("both ran", async || ran(&agent, "restarts") > 0 && ran(&agent, "followed") > 0).await;

    set_clock(&agent.data, -3_600);
    agent.submit(&rolling(2)).await.said(0, &[]);
    goes_on(&agent, "restarts").await;
    goes_on(&agent, "followed").await;
    deployed(&agent, 1).await;

    // And while no agent runs.
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    set_clock(&home, -7_200);
    let agent = start(home).await;
    goes_on(&agent, "restarts").await;
    goes_on(&agent, "followed").await;
    agent.submit(&rolling(3)).await.said(0, &[]);
    deployed(&agent, 2).await;
}

#[tokio::test]
async fn a_clock_that_is_set_forward_ends_no_wait() {
    let home = Home::new();
    set_clock(&home, 0);
    let agent = start(home).await;
    agent.submit(&failing(&agent, "waits", &restarting(1, "30m"))).await.said(0, &[]);
    until("it failed", async || ran(&agent, "waits") == 1).await;
    set_clock(&agent.data, 3_600);
    // One that waits as long as its delay says, twice.
    agent.submit(&failing(&agent, "restarts", &restarting(50, "1s"))).await.said(0, &[]);
    goes_on(&agent, "restarts").await;
    assert_eq!(ran(&agent, "waits"), 1);
    // What is shown is the time of day.
    let status = agent.json(&["job", "status", "--json", "restarts"]).await;
    let shown = status["job"]["SubmitTime"].as_u64().unwrap();
    let real = ostler_model::clock::Clock::system().now().nanos();
    assert!(shown.abs_diff(real) > 3_000_000_000_000, "{shown} {real}");
}
