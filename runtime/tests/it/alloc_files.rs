//! `ostler alloc fs`: the directory of an allocation and its files.

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::agent_process::AgentProcess;
use crate::support::binary::command;
use crate::support::http::within;
use crate::support::jobs::{SOON_HEALTHY, shell};
use crate::support::system::until;

/// Writes a file of its own, and appends to it when it is told.
const WRITER: &str = "echo begun; seq 1 3 > local/log; trap 'echo more >> local/log' USR1; while :; do sleep 0.05; done";

async fn writer() -> (AgentProcess, String) {
    let agent = AgentProcess::start().await;
    let task = shell("t", WRITER, "");
    let job = format!("job \"w\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {task}\n }}\n}}\n");
    agent.run(&job).await.said(0, &[]);
    let alloc = agent.alloc("w").await;
    let written =
        async || agent.ask(&["alloc", "fs", &alloc, "t/local/log"]).await.stdout == "1\n2\n3\n";
    until("the file is written", written).await;
    (agent, alloc)
}

#[tokio::test]
async fn directories_are_listed_and_files_are_shown_whole_or_from_their_last_lines() {
    let (agent, alloc) = writer().await;
    let root = agent.ask(&["alloc", "fs", &alloc[..8]]).await;
    root.said(0, &[]);
    let names: Vec<&str> =
        root.stdout.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(names, ["alloc/", "t/"], "{root:#?}");
    let listed = agent.json(&["alloc", "fs", "--json", &alloc, "t/local"]).await;
    assert_eq!(listed[0]["Name"], "log");
    let stat = agent.json(&["alloc", "fs", "--stat", "--json", &alloc, "t/local/log"]).await;
    assert_eq!((&stat["Size"], &stat["IsDir"]), (&6.into(), &false.into()));
    let facts = agent.ask(&["alloc", "fs", "--stat", &alloc, "t/local/log"]).await.stdout;
    assert!(facts.contains("6 bytes"), "{facts}");
    let last = agent.ask(&["alloc", "fs", "-n", "2", &alloc, "t/local/log"]).await;
    assert_eq!((last.code, &*last.stdout), (Some(0), "2\n3\n"));
    agent.ask(&["alloc", "fs", "-f", &alloc, "t"]).await.said(2, &["is a directory"]);
    agent.ask(&["alloc", "fs", "--json", &alloc, "t/local/log"]).await.said(2, &["is a file"]);
    agent.ask(&["alloc", "fs", &alloc, "t/nowhere"]).await.said(2, &["has no t/nowhere"]);
    agent.ask(&["alloc", "fs", &alloc, "t/secrets"]).await.said(3, &["secrets are not shown"]);
    agent.ask(&["alloc", "fs", &alloc, "../.."]).await.said(3, &[]);
}

/// A command that follows, and its lines.
struct Followed {
    child: tokio::process::Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Followed {
    fn start(agent: &AgentProcess, args: &[&str]) -> Self {
        let mut command = command(args);
        command.env("OSTLER_DATA_DIR", agent.data.path());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        within(self.lines.next_line()).await.unwrap().expect("a line")
    }

    /// How it ended, and what it said on standard error.
    async fn ended(self) -> (Option<i32>, String) {
        let ended = within(self.child.wait_with_output()).await.unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    }
}

#[tokio::test]
async fn a_file_is_followed_until_it_is_removed() {
    let (agent, alloc) = writer().await;
    let mut followed =
        Followed::start(&agent, &["alloc", "fs", "-f", "-n", "1", &alloc, "t/local/log"]);
    assert_eq!(followed.line().await, "3");
    agent.ask(&["alloc", "signal", "-s", "SIGUSR1", &alloc]).await.said(0, &[]);
    assert_eq!(followed.line().await, "more");
    let dir = agent.data.path().join("allocs").join(&alloc);
    std::fs::remove_file(dir.join("t/local/log")).unwrap();
    let (code, said) = followed.ended().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("t/local/log was removed"), "{said}");
}

#[tokio::test]
async fn who_follows_a_file_or_output_is_told_that_the_agent_ended() {
    let (agent, alloc) = writer().await;
    let mut file = Followed::start(&agent, &["alloc", "fs", "-f", &alloc, "t/local/log"]);
    assert_eq!(file.line().await, "1");
    let mut output = Followed::start(&agent, &["alloc", "logs", "-f", &alloc]);
    assert_eq!(output.line().await, "begun");
    agent.signal(Signal::TERM);
    let (code, said) = file.ended().await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("the agent ended"), "{said}");
    let (code, said) = output.ended().await;
    assert_eq!(code, Some(3), "{said}");
    agent.ended().await;
}
