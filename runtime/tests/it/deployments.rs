//! New versions take over step by step, with real tasks, and over the end of an agent.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::agent_process::AgentProcess;
use crate::support::jobs::{shell, with_guests};
use crate::support::system::until;

const IDLE: &str = "while :; do sleep 1; done";

/// A service of so many whose tasks have `VERSION` in their environment and run `script`.
fn service(count: u32, version: &str, update: &str, script: &str) -> String {
    let script = format!(": {version}; {script}");
    with_guests(&format!(
        "job \"web\" {{\n group \"g\" {{\n count = {count}\n restart {{\n attempts = 0\n mode = \
         \"fail\"\n }}\n reschedule {{\n attempts = 0\n unlimited = false\n }}\n update {{\n \
         min_healthy_time = \"100ms\"\n healthy_deadline = \"20s\"\n progress_deadline = \"30s\"\n \
         {update}\n }}\n {}\n }}\n}}\n",
        shell("t", &script, "")
    ))
}

async fn newest(agent: &AgentProcess) -> Value {
    let all = agent.json(&["deployment", "list", "--json"]).await;
    all[0].clone()
}

async fn until_is(agent: &AgentProcess, version: u64, status: &str) -> Value {
    until(&format!("the deployment of version {version} is {status}"), async || {
        let all = agent.json(&["deployment", "list", "--json"]).await;
        let mut all = all.as_array().unwrap().iter();
        all.any(|one| one["JobVersion"] == version && one["Status"] == status)
    })
    .await;
    let all = agent.json(&["deployment", "list", "--json"]).await;
    let mut all = all.as_array().unwrap().iter();
    all.find(|one| one["JobVersion"] == version).unwrap().clone()
}

/// Running allocations of the job by version.
async fn running(agent: &AgentProcess, version: u64) -> usize {
    let allocs = agent.allocs("web").await;
    let is = |alloc: &&Value| {
        alloc["JobVersion"] == version
            && alloc["ClientStatus"] == "running"
            && alloc["DesiredStatus"] == "run"
    };
    allocs.iter().filter(is).count()
}

/// Most of a place's allocations that were there at a time, and least places that had one that ran.
async fn never_two_in_a_place(agent: &AgentProcess) {
    let allocs = agent.allocs("web").await;
    let live = allocs.iter().filter(|alloc| alloc["ClientStatus"] == "running");
    let mut names: Vec<&str> = live.map(|alloc| alloc["Name"].as_str().unwrap()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "{allocs:#?}");
}

#[tokio::test]
async fn a_new_version_replaces_one_after_the_other_over_the_end_of_an_agent() {
    let agent = AgentProcess::start().await;
    agent.run(&service(3, "one", "", IDLE)).await.said(0, &[]);
    let first = until_is(&agent, 0, "successful").await;
    assert_eq!(first["TaskGroups"]["g"]["HealthyAllocs"], 3, "{first:#}");
    agent.submit(&service(3, "two", "", IDLE)).await.said(0, &[]);
    until("the first is replaced", async || running(&agent, 1).await >= 1).await;
    never_two_in_a_place(&agent).await;
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let agent = AgentProcess::start_in(home, &[]).await;
    let done = until_is(&agent, 1, "successful").await;
    let group = &done["TaskGroups"]["g"];
    assert_eq!(
        (&group["DesiredTotal"], &group["HealthyAllocs"]),
        (&json!(3), &json!(3)),
        "{done:#}"
    );
    assert_eq!((running(&agent, 0).await, running(&agent, 1).await), (0, 3));
    never_two_in_a_place(&agent).await;
    let allocs = agent.allocs("web").await;
    let placed = allocs.iter().filter(|alloc| alloc["JobVersion"] == 1).count();
    assert_eq!(placed, 3, "none twice: {allocs:#?}");
    let versions = agent.json(&["job", "history", "--json", "web"]).await;
    let stable = versions["Versions"].as_array().unwrap().iter();
    let stable: Vec<_> = stable.map(|version| version["Stable"].clone()).collect();
    assert_eq!(stable, [json!(true), json!(true)]);
}

#[tokio::test]
async fn a_version_that_fails_gives_way_to_the_one_before() {
    let agent = AgentProcess::start().await;
    let update = "auto_revert = true\nprogress_deadline = \"0s\"";
    let with = |version, script| {
        service(2, version, update, script).replace("progress_deadline = \"30s\"\n ", "")
    };
    agent.run(&with("good", IDLE)).await.said(0, &[]);
    until_is(&agent, 0, "successful").await;
    // On a busy machine a task may take longer than a moment to fail.
    let bad = with("bad", "exit 4").replace("\"100ms\"", "\"10s\"");
    agent.submit(&bad).await.said(0, &[]);
    let failed = until_is(&agent, 1, "failed").await;
    let said = failed["StatusDescription"].as_str().unwrap();
    assert_eq!(said, "Failed due to unhealthy allocations - rolling back to job version 0");
    until_is(&agent, 2, "successful").await;
    assert_eq!((running(&agent, 1).await, running(&agent, 2).await), (0, 2));
    let job = agent.json(&["job", "status", "--json", "web"]).await;
    let shown = job["job"].to_string();
    assert!(shown.contains("good") && !shown.contains("bad"), "{shown}");
}

#[tokio::test]
async fn canaries_run_beside_the_old_ones_until_somebody_promotes_them() {
    let agent = AgentProcess::start().await;
    agent.run(&service(2, "one", "canary = 1", IDLE)).await.said(0, &[]);
    until_is(&agent, 0, "successful").await;
    let ran = agent.run(&service(2, "two", "canary = 1", IDLE)).await;
    ran.said(
        0,
        &["the canaries of job web are healthy and the deployment waits: `ostler job promote web`"],
    );
    assert_eq!((running(&agent, 0).await, running(&agent, 1).await), (2, 1));
    let one = newest(&agent).await;
    assert_eq!(one["StatusDescription"], "Deployment is running but requires manual promotion");
    let id = one["ID"].as_str().unwrap();
    let canary = one["TaskGroups"]["g"]["PlacedCanaries"][0].as_str().unwrap();
    let shown = agent.json(&["alloc", "status", "--json", canary]).await;
    assert_eq!(shown["DeploymentID"], id, "{shown:#}");
    assert_eq!(shown["DeploymentStatus"]["Canary"], true, "{shown:#}");
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let agent = AgentProcess::start_in(home, &[]).await;
    assert_eq!((running(&agent, 0).await, running(&agent, 1).await), (2, 1));
    agent.ask(&["job", "promote", "web"]).await.said(0, &["is promoted"]);
    let done = until_is(&agent, 1, "successful").await;
    assert_eq!(done["TaskGroups"]["g"]["Promoted"], true, "{done:#}");
    assert_eq!((running(&agent, 0).await, running(&agent, 1).await), (0, 2));
    let again = agent.ask(&["deployment", "promote", id]).await;
    again.said(2, &["the deployment is over (successful)"]);
}

#[tokio::test]
async fn canaries_have_their_own_tags_and_what_a_lower_count_gives_up_runs_until_they_are_accepted()
{
    let agent = AgentProcess::start().await;
    let listed = "service {\n name = \"shop\"\n provider = \"nomad\"\n tags = [\"live\"]\n \
                  canary_tags = [\"try\"]\n }";
    let version = |count, value| {
        let text = service(count, value, "canary = 1", IDLE);
        text.replace("restart {", &format!("{listed}\n restart {{"))
    };
    agent.run(&version(3, "one")).await.said(0, &[]);
    until_is(&agent, 0, "successful").await;
    let ran = agent.run(&version(2, "two")).await;
    ran.said(0, &["the canaries of job web are healthy"]);
    assert_eq!((running(&agent, 0).await, running(&agent, 1).await), (3, 1));
    let tags = async || {
        let all = agent.json(&["service", "info", "--json", "shop"]).await;
        let all = all.as_array().unwrap().iter();
        let mut tags: Vec<String> = all.map(|one| one["Tags"].to_string()).collect();
        tags.sort_unstable();
        tags
    };
    until("the canary is listed", async || tags().await.len() == 4).await;
    assert_eq!(tags().await, [r#"["live"]"#, r#"["live"]"#, r#"["live"]"#, r#"["try"]"#]);
    agent.ask(&["job", "promote", "web"]).await.said(0, &["is promoted"]);
    until_is(&agent, 1, "successful").await;
    assert_eq!((running(&agent, 0).await, running(&agent, 1).await), (0, 2));
    until("all are listed alike", async || {
        let tags = tags().await;
        tags.len() == 2 && tags.iter().all(|tags| tags == r#"["live"]"#)
    })
    .await;
}

#[tokio::test]
async fn a_deployment_is_paused_resumed_and_given_up_and_a_version_comes_back() {
    let agent = AgentProcess::start().await;
    agent.run(&service(3, "one", "", IDLE)).await.said(0, &[]);
    until_is(&agent, 0, "successful").await;
    // It is not over before it is paused.
    let slow = |version| service(3, version, "", IDLE).replace("\"100ms\"", "\"2s\"");
    agent.submit(&slow("two")).await.said(0, &[]);
    let id = newest(&agent).await["ID"].as_str().unwrap().to_owned();
    agent.ask(&["deployment", "pause", &id]).await.said(0, &["is paused"]);
    until("what was begun runs", async || running(&agent, 1).await >= 1).await;
    let old = running(&agent, 0).await;
    assert!(old >= 1, "the rest stays");
    agent.ask(&["deployment", "resume", &id]).await.said(0, &["goes on"]);
    until_is(&agent, 1, "successful").await;
    agent.submit(&slow("three")).await.said(0, &[]);
    let id = newest(&agent).await["ID"].as_str().unwrap().to_owned();
    agent.ask(&["deployment", "fail", &id]).await.said(0, &["was given up"]);
    let failed = until_is(&agent, 2, "failed").await;
    assert_eq!(failed["StatusDescription"], "Deployment marked as failed");
    agent.ask(&["job", "revert", "web", "0"]).await.said(0, &["is at version 3"]);
    until_is(&agent, 3, "successful").await;
    assert_eq!(running(&agent, 3).await, 3);
    let text = agent.ask(&["deployment", "status", &id]).await;
    assert!(text.stdout.contains("Deployment marked as failed"), "{text:#?}");
}
