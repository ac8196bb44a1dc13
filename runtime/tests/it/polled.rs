//! Tasks that the host does not own, with the real mock driver: how they are stopped and restarted.

use serde_json::Value;

use crate::support::agent_process::AgentProcess;
use crate::support::jobs::{SOON_HEALTHY, STAYS_FAILED};

const GIVEN_UP: &str = "the workload did not end after it was killed";
const TIMEOUT: &str = "kill_timeout = \"200ms\"";

fn service(config: &str) -> String {
    format!(
        "job \"p\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {STAYS_FAILED}\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n \
         task \"t\" {{\n driver = \"mock_driver\"\n config {{\n {config}\n }}\n {TIMEOUT}\n }}\n \
         }}\n}}\n"
    )
}

/// An agent with a running service of this configuration.
async fn running(config: &str) -> (AgentProcess, String) {
    let agent = AgentProcess::start().await;
    agent.run(&service(config)).await.said(0, &["job p runs"]);
    let alloc = agent.alloc("p").await;
    (agent, alloc)
}

async fn task(agent: &AgentProcess, alloc: &str) -> Value {
    agent.json(&["alloc", "status", "--json", alloc]).await["TaskStates"]["t"].clone()
}

fn kinds(task: &Value) -> Vec<&str> {
    task["Events"].as_array().unwrap().iter().map(|e| e["Type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_task_that_its_driver_ends_at_stop_is_restarted_and_stopped_at_once() {
    // The first answers `not-found` to `stop`, the second ends with `kill`.
    for config in ["", "kill_after = \"1h\""] {
        let (agent, alloc) = running(config).await;
        agent.ask(&["alloc", "restart", &alloc]).await.said(0, &["restarted"]);
        let restarted = task(&agent, &alloc).await;
        assert_eq!(restarted["State"], "running", "{restarted:#}");
        assert_eq!((&restarted["Restarts"], &restarted["Failed"]), (&1.into(), &false.into()));

        agent.ask(&["job", "stop", "p"]).await.said(0, &["is stopped"]);
        let stopped = task(&agent, &alloc).await;
        assert_eq!((&stopped["State"], &stopped["Failed"]), (&"dead".into(), &false.into()));
        assert_eq!(kinds(&stopped).last(), Some(&"Killed"), "{stopped:#}");
        // As of a driver that ends nothing.
        assert!(!stopped["Events"].to_string().contains(GIVEN_UP), "{stopped:#}");
        assert_ne!(stopped["LastExit"]["ExitCode"], 0, "it did not end well: {stopped:#}");
    }
}

#[tokio::test]
async fn a_task_that_its_driver_cannot_end_is_given_up_in_bounded_time_and_that_is_said() {
    let (agent, alloc) = running("kill_after = \"1h\"\n kill_error = \"no\"").await;
    agent.ask(&["job", "stop", "p"]).await.said(0, &["is stopped"]);
    let stopped = task(&agent, &alloc).await;
    let last = &stopped["Events"].as_array().unwrap().last().unwrap()["DisplayMessage"];
    assert_eq!(last, GIVEN_UP, "{stopped:#}");
}
