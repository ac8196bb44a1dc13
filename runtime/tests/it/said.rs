//! What commands say of errors, and how they end when nobody wants what they follow any more.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::PATIENCE;
use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::{Ended, command};
use crate::support::jobs::{AT_ONCE, shell};

fn job(task: &str) -> String {
    format!("job \"j\" {{\n group \"g\" {{\n {AT_ONCE}\n {task}\n }}\n}}\n")
}

#[tokio::test]
async fn ctrl_c_ends_whatever_follows_something_with_the_same_code() {
    let agent = AgentProcess::start().await;
    agent.run(&job(&shell("t", "echo here; exec sleep 1000", ""))).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    for args in [
        &["alloc", "logs", "-f", &alloc][..],
        &["alloc", "fs", "-f", &alloc, "alloc/logs/t.stdout.0"],
        &["events", "-f"],
        &["events", "-f", "--json"],
        &["monitor", "-n", "50"],
    ] {
        let mut follow = command(args);
        follow.env("OSTLER_DATA_DIR", agent.data.path());
        let mut follow = follow.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
        let first = ostler_model::clock::timeout(PATIENCE, lines.next_line()).await;
        assert!(first.is_some_and(|line| line.unwrap().is_some()), "{args:?} shows something");
        let pid = Pid::from_raw(i32::try_from(follow.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let ended = ostler_model::clock::timeout(PATIENCE, follow.wait()).await.unwrap().unwrap();
        assert_eq!(ended.code(), Some(130), "{args:?}");
    }
}

/// The one object that was said.
#[track_caller]
fn object(ended: &Ended, code: i32) -> Value {
    assert_eq!(ended.code, Some(code), "{ended:#?}");
    assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{ended:#?}");
    let object: Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!(object["exit_code"], code, "{object:#}");
    assert!(object["error"].as_str().is_some_and(|error| !error.is_empty()), "{object:#}");
    object
}

#[tokio::test]
async fn an_error_is_one_object_where_a_program_reads_what_is_printed() {
    let agent = AgentProcess::start().await;
    let gone = "00000000-0000-4000-8000-000000000000";
    let none = object(&agent.ask(&["job", "status", "--json", "none"]).await, 2);
    assert_eq!(none["next"][0], "ostler job status");
    let none = object(&agent.ask(&["alloc", "status", "--json", gone]).await, 2);
    assert_eq!((&none["status"], &none["cause"]), (&404.into(), &"alloc not found".into()));
    let usage = object(&agent.ask(&["job", "status", "--json", "--nonsense"]).await, 2);
    assert!(usage["error"].as_str().unwrap().contains("--nonsense"), "{usage:#}");
    let read = object(&agent.ask(&["job", "plan", "--json", "/nowhere/x.hcl"]).await, 2);
    assert!(read["error"].as_str().unwrap().contains("there is no job file"), "{read:#}");
    let wrong = agent.file("wrong.hcl", "job \"j\" {\n group \"g\" {\n cont = 1\n }\n}\n");
    let wrong = object(&agent.ask(&["job", "run", "--json", wrong.to_str().unwrap()]).await, 2);
    let lines = wrong["diagnostics"].as_array().unwrap().iter().map(|one| one["line"].as_u64());
    assert!(lines.eq([Some(2), Some(3)]), "{wrong:#}");
    // Without an agent, and without JSON.
    let nobody = Home::new();
    let nobody = ask(nobody.path(), &["job", "status", "--json"]).await;
    let nobody = object(&nobody, 3);
    assert!(nobody["cause"].as_str().unwrap().contains("No such file"), "{nobody:#}");
    assert!(nobody["next"][0].as_str().unwrap().starts_with("ostler agent --data-dir "));
    agent.ask(&["job", "status", "none"]).await.said(2, &["error: there is no job none"]);
}

#[tokio::test]
async fn a_path_that_is_not_there_is_said_to_be_missing_and_no_more() {
    let agent = AgentProcess::start().await;
    agent.run(&job(&shell("t", "exec sleep 1000", ""))).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    let short = &alloc[..8];
    for (path, above) in
        [("nosuch", ""), ("/t/local/nosuch", " t/local"), ("t/nosuch/x", " t"), ("nosuch/x/y", "")]
    {
        let ended = agent.ask(&["alloc", "fs", &alloc, path]).await;
        let shown = path.trim_start_matches('/');
        let said = format!(
            "error: allocation {short} has no {shown}; `ostler alloc fs {short}{above}` shows what is there\n"
        );
        assert_eq!((ended.code, ended.stderr), (Some(2), said));
    }
    assert_eq!(agent.ask(&["alloc", "fs", short, "t/local"]).await.code, Some(0));
}
