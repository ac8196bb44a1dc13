//! What failed for good gets a successor, also where the agent is killed meanwhile.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::agent_process::AgentProcess;
use crate::support::jobs::{shell, with_guests};
use crate::support::system::until;

/// A service whose task says that it ran, and fails.
fn failing(agent: &AgentProcess, name: &str, kind: &str, reschedule: &str) -> String {
    let said = format!("echo ran >> {}/{name}; exit 3", agent.data.path().display());
    with_guests(&format!(
        "job \"{name}\" {{\n type = \"{kind}\"\n group \"g\" {{\n restart {{\n attempts = 0\n \
         mode = \"fail\"\n }}\n reschedule {{\n {reschedule}\n }}\n {}\n }}\n}}\n",
        shell("t", &said, "")
    ))
}

fn ran(agent: &AgentProcess, name: &str) -> usize {
    let said = std::fs::read_to_string(agent.data.path().join(name));
    said.map_or(0, |text| text.lines().count())
}

async fn allocs(agent: &AgentProcess, job: &str) -> Vec<Value> {
    let mut allocs = agent.allocs(job).await;
    allocs.sort_by_key(|alloc| alloc["CreateIndex"].as_u64());
    allocs
}

#[tokio::test]
async fn a_failed_allocation_gets_its_successor_over_the_end_of_an_agent_and_not_twice() {
    let agent = AgentProcess::start().await;
    let twice = "attempts = 1\ninterval = \"10m\"\ndelay = \"5s\"\ndelay_function = \"constant\"\n\
                 unlimited = false";
    agent.submit(&failing(&agent, "again", "service", twice)).await.said(0, &[]);
    until("it failed, and waits for its successor", async || {
        let allocs = allocs(&agent, "again").await;
        allocs.len() == 1
            && allocs[0]["ClientStatus"] == "failed"
            && allocs[0]["FollowupEvalID"] != json!("")
    })
    .await;
    let status = agent.json(&["job", "status", "--json", "again"]).await;
    assert_eq!(status["job"]["Status"], "pending", "{status:#}");
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let agent = AgentProcess::start_in(home, &[]).await;
    until("its successor ran and failed", async || {
        let allocs = allocs(&agent, "again").await;
        allocs.len() == 2 && allocs[1]["ClientStatus"] == "failed"
    })
    .await;
    let found = allocs(&agent, "again").await;
    let (first, second) = (&found[0], &found[1]);
    assert_eq!(first["DesiredStatus"], "stop", "{first:#}");
    assert_eq!(first["DesiredDescription"], "alloc was rescheduled because it failed");
    let event = &second["RescheduleTracker"]["Events"][0];
    assert_eq!((&event["PrevAllocID"], &event["Delay"]), (&first["ID"], &json!(5_000_000_000_u64)));
    let placed = event["RescheduleTime"].as_u64().unwrap();
    let failed = first["TaskStates"]["t"]["FinishedAt"].as_str().unwrap();
    let failed = humantime::parse_rfc3339(failed).unwrap();
    let waited = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(placed);
    assert!(waited.duration_since(failed).unwrap() >= std::time::Duration::from_secs(5));
    assert_eq!(second["FollowupEvalID"], "", "there is one attempt: {second:#}");
    assert_eq!(ran(&agent, "again"), 2);
    // Over for good, also after another end of an agent.
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let agent = AgentProcess::start_in(home, &[]).await;
    let status = agent.json(&["job", "status", "--json", "again"]).await;
    assert_eq!(status["job"]["Status"], "dead", "{status:#}");
    assert_eq!(ran(&agent, "again"), 2);
}

#[tokio::test]
async fn what_somebody_stops_is_no_failure_and_a_stopped_job_gets_no_successors() {
    let agent = AgentProcess::start().await;
    let endless = "delay = \"5s\"\ndelay_function = \"constant\"";
    agent.submit(&failing(&agent, "stopped", "service", endless)).await.said(0, &[]);
    until("it failed", async || allocs(&agent, "stopped").await[0]["ClientStatus"] == "failed")
        .await;
    agent.ask(&["job", "stop", "stopped"]).await.said(0, &[]);
    // Another one fails later and has had its successor by then.
    agent.submit(&failing(&agent, "other", "batch", "attempts = 1")).await.said(0, &[]);
    until("the other one has run twice", async || ran(&agent, "other") == 2).await;
    assert_eq!(ran(&agent, "stopped"), 1);
    let found = allocs(&agent, "stopped").await;
    assert_eq!((found.len(), &found[0]["FollowupEvalID"]), (1, &json!("")), "{found:#?}");
}
