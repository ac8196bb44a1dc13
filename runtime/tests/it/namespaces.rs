//! Jobs of one id in two namespaces, by the configuration, the API and the command line.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::http::Client;
use crate::support::jobs::{shell, with_guests};
use crate::support::system::until;

const IDLE: &str = "while :; do sleep 1; done";
const CONFIG: &str = "namespace \"prod\" {\n description = \"what customers see\"\n}\n";

/// A service `web` in a namespace; its task says what namespace it is told.
fn web(namespace: &str, script: &str) -> String {
    let task = shell("t", &format!("echo in $NOMAD_NAMESPACE; {script}"), "");
    with_guests(&format!("job \"web\" {{\n {namespace}\n group \"g\" {{\n {task}\n }}\n}}\n"))
}

async fn start() -> AgentProcess {
    let home = Home::new();
    let config = home.path().join("ostler.hcl");
    std::fs::write(&config, format!("{KEEPS}{CONFIG}")).unwrap();
    AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await
}

async fn running(agent: &AgentProcess, namespace: &str) -> Vec<Value> {
    let found = agent.json(&["job", "status", "--json", "--namespace", namespace, "web"]).await;
    let allocs = found["allocations"].as_array().unwrap().iter();
    allocs.filter(|alloc| alloc["ClientStatus"] == "running").cloned().collect()
}

async fn until_runs(agent: &AgentProcess, namespace: &str) -> String {
    until(&format!("web runs in {namespace}"), async || running(agent, namespace).await.len() == 1)
        .await;
    running(agent, namespace).await[0]["ID"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn jobs_of_one_id_in_two_namespaces_live_beside_each_other() {
    let agent = start().await;
    agent.submit(&web("", IDLE)).await.said(0, &[]);
    agent.submit(&web("namespace = \"prod\"", IDLE)).await.said(0, &[]);
    let (here, there) = (until_runs(&agent, "default").await, until_runs(&agent, "prod").await);
    assert_ne!(here, there);
    for (alloc, namespace) in [(&here, "default"), (&there, "prod")] {
        let told = format!("in {namespace}");
        until(&format!("the task tells {told}"), async || {
            agent.ask(&["alloc", "logs", alloc]).await.stdout.contains(&told)
        })
        .await;
    }

    let all = agent.json(&["job", "status", "--json"]).await;
    let mut all: Vec<_> =
        all.as_array().unwrap().iter().map(|job| (&job["Namespace"], &job["ID"])).collect();
    all.sort_by_key(|(namespace, _)| namespace.to_string());
    assert_eq!(all, [(&json!("default"), &json!("web")), (&json!("prod"), &json!("web"))]);
    let which = agent.ask(&["job", "stop", "web"]).await;
    which.said(
        2,
        &["2 jobs are called web; give its namespace:", "--namespace default", "--namespace prod"],
    );

    agent.ask(&["job", "stop", "--namespace", "prod", "web"]).await.said(0, &[]);
    assert!(running(&agent, "prod").await.is_empty());
    assert_eq!(until_runs(&agent, "default").await, here, "the other runs on");
}

#[tokio::test]
async fn a_namespace_is_found_again_after_the_agent_was_killed() {
    let agent = start().await;
    agent.submit(&web("namespace = \"prod\"", IDLE)).await.said(0, &[]);
    let alloc = until_runs(&agent, "prod").await;
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let config = home.path().join("ostler.hcl");
    let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
    assert_eq!(until_runs(&agent, "prod").await, alloc);
    let nothing = agent.json(&["job", "status", "--json", "--namespace", "default"]).await;
    assert_eq!(nothing, json!([]));
}

#[tokio::test]
async fn a_job_in_a_namespace_that_is_not_there_is_refused_with_what_to_do() {
    let agent = start().await;
    let refused = agent.submit(&web("namespace = \"staging\"", IDLE)).await;
    refused.said(2, &["there is no namespace \"staging\"", "add namespace \"staging\""]);
    // A flag is stronger than the file.
    let file = agent.file("web.hcl", &web("namespace = \"staging\"", IDLE));
    let file = file.to_str().unwrap();
    agent.ask(&["job", "run", "--detach", "--namespace", "prod", file]).await.said(0, &[]);
    until_runs(&agent, "prod").await;
}

#[tokio::test]
async fn a_wrong_namespace_in_a_file_of_the_jobs_directory_leaves_its_job_running() {
    let home = Home::new();
    let (config, dir) = (home.path().join("ostler.hcl"), home.path().join("jobs"));
    std::fs::write(&config, format!("{KEEPS}{CONFIG}")).unwrap();
    std::fs::create_dir(&dir).unwrap();
    let file = dir.join("web.hcl");
    std::fs::write(&file, web("", IDLE)).unwrap();
    let args = ["--config", config.to_str().unwrap(), "--jobs-dir", dir.to_str().unwrap()];
    let agent = AgentProcess::start_in(home, &args).await;
    let alloc = until_runs(&agent, "default").await;
    std::fs::write(&file, web("namespace = \"prdo\"", IDLE)).unwrap();
    let client = Client(agent.data.path().join("ostler.sock"));
    until("the file is not used", async || {
        let report = client.get("/v1/ostler/jobs-dir").await.json();
        report["files"][0]["problem"].to_string().contains("there is no namespace")
    })
    .await;
    assert_eq!(running(&agent, "default").await[0]["ID"], json!(alloc));
}

#[tokio::test]
async fn a_job_in_a_namespace_that_was_taken_out_runs_on_and_can_be_stopped() {
    let agent = start().await;
    agent.submit(&web("namespace = \"prod\"", IDLE)).await.said(0, &[]);
    let alloc = until_runs(&agent, "prod").await;
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let config = home.path().join("ostler.hcl");
    std::fs::write(&config, KEEPS).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
    assert_eq!(until_runs(&agent, "prod").await, alloc);
    let refused = agent.submit(&web("namespace = \"prod\"", "exit 0")).await;
    refused.said(2, &["there is no namespace \"prod\""]);
    agent.ask(&["job", "stop", "--namespace", "prod", "web"]).await.said(0, &[]);
    assert!(running(&agent, "prod").await.is_empty());
}
