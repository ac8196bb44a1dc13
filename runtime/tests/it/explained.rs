//! What a person asks of a running agent when something is not as it should be: why, what happened, and an archive
//! for who helps.

use std::io::Read as _;

use serde_json::Value;

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::{Ended, command};
use crate::support::system::until;

/// A task that fails each time, and again soon.
fn failing(name: &str, script: &str, more: &str) -> String {
    format!(
        "job \"{name}\" {{\n group \"g\" {{\n restart {{\n attempts = 100\n delay = \"1s\"\n interval = \"1h\"\n \
         mode = \"delay\"\n }}\n {more}\n task \"web\" {{\n driver = \"raw_exec\"\n env {{\n KEY = \"HIDDEN\"\n }}\n \
         config {{\n command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]\n }}\n }}\n }}\n}}\n"
    )
}

async fn agent() -> AgentProcess {
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    std::fs::write(&config, KEEPS).unwrap();
    AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await
}

/// It went well, and printed these texts.
fn printed(ended: &Ended, texts: &[&str]) {
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    for text in texts {
        assert!(ended.stdout.contains(text), "nothing of {text:?} in:\n{}", ended.stdout);
    }
}

async fn restarts(agent: &AgentProcess, job: &str) -> u64 {
    let allocs = agent.allocs(job).await;
    allocs.iter().map(|alloc| alloc["TaskStates"]["web"]["Restarts"].as_u64().unwrap_or(0)).sum()
}

#[tokio::test]
async fn a_task_that_fails_again_and_again_is_explained_and_counted_in_one_line() {
    let agent = agent().await;
    agent.submit(&failing("loop", "exit 3", "")).await.said(0, &[]);
    until("it was restarted twice", async || restarts(&agent, "loop").await >= 2).await;

    let alloc = agent.allocs("loop").await[0]["ID"].as_str().unwrap().to_owned();
    let told = agent.ask(&["explain", &alloc[..8]]).await;
    printed(&told, &["task web exited with code 3", "(x", "ostler alloc logs --stderr"]);
    let of_job = agent.ask(&["explain", "loop"]).await;
    printed(&of_job, &["job loop", "exited with code 3"]);
    let json = agent.json(&["explain", "--json", "loop"]).await;
    assert_eq!(json["kind"], "job");

    let status = agent.ask(&["alloc", "status", &alloc]).await;
    let ends = status.stdout.lines().filter(|line| line.contains("Terminated")).count();
    assert_eq!(ends, 1, "{}", status.stdout);
    printed(&status, &["Exit Code: 3 (x"]);
    until("the node has counted it", async || {
        let events = agent.ask(&["events", "--job", "loop", "--json"]).await;
        let mut all =
            events.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.any(|event| event["kind"] == "Terminated" && event["times"].as_u64() >= Some(2))
    })
    .await;
    agent.ask(&["explain", "nothing-of-this-name"]).await.said(2, &["nothing is called"]);
}

#[tokio::test]
async fn a_job_says_of_what_failed_what_its_allocation_says_and_when_it_was_stopped() {
    let agent = agent().await;
    let once = "job \"once\" {\n group \"g\" {\n restart {\n attempts = 0\n mode = \"fail\"\n }\n reschedule {\n \
                delay = \"1h\"\n delay_function = \"constant\"\n unlimited = true\n }\n task \"web\" {\n \
                driver = \"raw_exec\"\n config {\n command = \"/bin/sh\"\n args = [\"-c\", \"exit 7\"]\n }\n }\n }\n}\n";
    agent.submit(once).await.said(0, &[]);
    until("it failed", async || {
        agent.allocs("once").await.first().is_some_and(|alloc| alloc["ClientStatus"] == "failed")
    })
    .await;
    let alloc = agent.allocs("once").await[0]["ID"].as_str().unwrap().to_owned();
    for what in ["once", &alloc[..8]] {
        let told = agent.ask(&["explain", what]).await;
        printed(&told, &["task web exited with code 7", "nother allocation takes its place in "]);
    }
    agent.ask(&["job", "stop", "once"]).await.said(0, &[]);
    until("the node has noted the stop", async || {
        let told = agent.ask(&["explain", "once"]).await;
        told.stdout.contains("  the job was told to stop\n")
    })
    .await;
}

#[tokio::test]
async fn a_place_that_waits_is_explained_with_who_holds_what_it_asks_for() {
    let agent = agent().await;
    let port = "network {\n port \"http\" {\n static = 18089\n }\n }";
    agent.run(&failing("first", "exec sleep 1000", port)).await.said(0, &[]);
    agent.submit(&failing("second", "exec sleep 1000", port)).await.said(0, &[]);
    let told = agent.ask(&["explain", "second"]).await;
    printed(&told, &["cannot be filled", "`ostler job stop first`", "leave static out"]);
}

#[tokio::test]
async fn what_happened_is_known_after_a_restart_and_followed() {
    let agent = agent().await;
    agent.submit(&failing("kept", "exit 4", "")).await.said(0, &[]);
    until("it ended once", async || {
        agent.ask(&["events", "--job", "kept"]).await.stdout.contains("Exit Code: 4")
    })
    .await;
    agent.signal(rustix::process::Signal::TERM);
    let (_, home) = agent.ended().await;
    let config = home.path().join("ostler.hcl");
    let agent = AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await;
    until("both agents are in it", async || {
        let events = agent.ask(&["events", "-n", "1000"]).await.stdout;
        events.contains("the agent is shutting down") && events.contains("Exit Code: 4")
    })
    .await;

    let mut follow = command(["events", "-f", "-n", "0", "--job", "later"]);
    follow.env("OSTLER_DATA_DIR", agent.data.path()).stdout(std::process::Stdio::piped());
    let mut follow = follow.kill_on_drop(true).spawn().unwrap();
    let mut lines = tokio::io::BufReader::new(follow.stdout.take().unwrap());
    agent.submit(&failing("later", "exit 5", "")).await.said(0, &[]);
    let mut heard = String::new();
    until("it is heard of", async || {
        use tokio::io::AsyncBufReadExt as _;
        let _read = lines.read_line(&mut heard).await;
        heard.contains("Exit Code: 5")
    })
    .await;
    assert!(!heard.contains("kept"), "only what was asked for: {heard}");
}

#[tokio::test]
async fn a_bundle_has_every_part_and_no_secret() {
    let agent = agent().await;
    agent.submit(&failing("loop", "exit 3", "")).await.said(0, &[]);
    let put = agent.ask(&["var", "put", "nomad/jobs/loop", "password=HIDDEN"]).await;
    put.said(0, &[]);
    let file = agent.data.path().join("bundle.tar.gz");
    let path = file.to_str().unwrap();
    printed(&agent.ask(&["debug", "bundle", "--out", path]).await, &["wrote"]);
    let packed = std::fs::File::open(&file).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed));
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert!(!text.contains("HIDDEN"), "{name} has a secret: {text}");
        names.push(name);
    }
    for part in [
        "versions.json",
        "agent.json",
        "node.json",
        "devices.json",
        "plugins-status.json",
        "jobs.json",
        "allocations.json",
        "events.json",
        "metrics.json",
        "log.txt",
        "state.json",
        "readiness.json",
        "jobs/default.loop.json",
        "why/default.loop.txt",
        "parts.json",
    ] {
        assert!(
            names.iter().any(|name| name.ends_with(&format!("/{part}"))),
            "{part} in {names:?}"
        );
    }
    let again = agent.ask(&["debug", "bundle", "--out", path]).await;
    again.said(3, &["bundle.tar.gz"]);
}

#[tokio::test]
async fn names_of_live_things_are_completed_and_nothing_where_no_agent_runs() {
    let agent = agent().await;
    agent.submit(&failing("completed", "exec sleep 1000", "")).await.said(0, &[]);
    let complete = async |data: &std::path::Path, words: &[&str]| {
        let mut shell = command(["--", "ostler"].iter().chain(words));
        shell.env("COMPLETE", "fish").env("OSTLER_DATA_DIR", data);
        let output = shell.output().await.unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (names, said) = complete(agent.data.path(), &["job", "status", "comp"]).await;
    assert!(names.contains("completed") && said.is_empty(), "{names} {said}");
    let (names, _) = complete(agent.data.path(), &["plugin", "status", "ra"]).await;
    assert!(names.contains("raw_exec"), "{names}");
    let nowhere = Home::new();
    let (names, said) = complete(nowhere.path(), &["job", "status", "comp"]).await;
    assert!(!names.contains("completed") && said.is_empty(), "{names} {said}");
}

#[tokio::test]
async fn the_log_of_an_agent_is_followed_from_its_last_lines_on() {
    let agent = agent().await;
    let mut monitor = command(["monitor", "-n", "50", "--json"]);
    monitor.env("OSTLER_DATA_DIR", agent.data.path()).stdout(std::process::Stdio::piped());
    let mut monitor = monitor.kill_on_drop(true).spawn().unwrap();
    let mut lines = tokio::io::BufReader::new(monitor.stdout.take().unwrap());
    let mut heard = String::new();
    until("a line of the start is heard", async || {
        use tokio::io::AsyncBufReadExt as _;
        let _read = lines.read_line(&mut heard).await;
        heard.contains("@message")
    })
    .await;
    assert_eq!(ask(agent.data.path(), &["monitor", "--log-level", "loud"]).await.code, Some(2));
}
