//! The stock command line against an agent without servers, where `NOMAD_BIN` names the program: draining,
//! eligibility, namespaces, and what failed placed again.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;
use tokio::net::{TcpListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::agent_process::AgentProcess;
use crate::support::binary::{Ended, with_input};
use crate::support::jobs::{shell, with_guests};
use crate::support::nomad;
use crate::support::system::until;

/// The agent's socket over TCP, as `socat` would do it: its address.
async fn over_tcp(socket: &Path) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let socket = socket.to_owned();
    let carry = async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut agent = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(async move {
                // It ends when one of them hangs up.
                let _hung_up = tokio::io::copy_bidirectional(&mut client, &mut agent).await;
            });
        }
    };
    (address, AbortOnDropHandle::new(tokio::spawn(carry)))
}

struct Stock {
    program: std::path::PathBuf,
    address: String,
    _carried: AbortOnDropHandle<()>,
}

impl Stock {
    async fn of(agent: &AgentProcess) -> Option<Self> {
        let program = nomad::program()?;
        let (address, carried) = over_tcp(&agent.data.path().join("ostler.sock")).await;
        Some(Self { program, address, _carried: carried })
    }

    async fn ask(&self, args: &[&str]) -> Ended {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(args).env("NOMAD_ADDR", &self.address).env_remove("NOMAD_TOKEN");
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        with_input(command, b"").await
    }

    /// It ends well and says all of this.
    async fn says(&self, args: &[&str], texts: &[&str]) {
        let ended = self.ask(args).await;
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code, Some(0), "{args:?}: {said}");
        for text in texts {
            assert!(said.contains(text), "{args:?} says no {text:?}: {said}");
        }
    }
}

fn job(id: &str, script: &str, of_group: &str) -> String {
    let tasks = shell("t", script, "");
    with_guests(&format!("job \"{id}\" {{\n group \"g\" {{\n {of_group}\n {tasks}\n }}\n}}\n"))
}

#[tokio::test]
async fn the_stock_command_line_drains_a_node_and_makes_it_eligible_again() {
    let agent = AgentProcess::start().await;
    let Some(stock) = Stock::of(&agent).await else { return };
    agent.run(&job("web", "exec sleep 600", "")).await.said(0, &[]);
    let nodes = agent.json(&["node", "status", "--json"]).await;
    let node = nodes["id"].as_str().unwrap().to_owned();
    stock.says(&["node", "eligibility", "-disable", &node], &["ineligible"]).await;
    stock.says(&["node", "status"], &["ineligible"]).await;
    stock.says(&["node", "eligibility", "-enable", &node], &["eligible"]).await;
    let drain = ["node", "drain", "-enable", "-yes", "-deadline", "30s", &node];
    let said = ["drain strategy set", "running -> complete", "Drain complete", "have stopped"];
    stock.says(&drain, &said).await;
    stock.says(&["node", "status", &node], &["ineligible", "Node drain complete"]).await;
    stock.says(&["job", "status", "web"], &["Placement Failure"]).await;

    // Another agent of the directory is as ineligible.
    agent.signal(Signal::TERM);
    let agent = AgentProcess::start_in(agent.ended().await.1, &[]).await;
    let Some(stock) = Stock::of(&agent).await else { return };
    stock.says(&["node", "status"], &["ineligible"]).await;
    stock.says(&["node", "drain", "-disable", "-yes", &node], &[]).await;
    let runs = |alloc: &Value| alloc["ClientStatus"] == "running";
    until("it runs again", async || agent.allocs("web").await.iter().any(runs)).await;
    stock.says(&["node", "status"], &["ready"]).await;
}

#[tokio::test]
async fn the_stock_command_line_makes_namespaces_and_has_failures_placed_again() {
    let agent = AgentProcess::start().await;
    let Some(stock) = Stock::of(&agent).await else { return };
    stock.says(&["namespace", "apply", "-description", "for trials", "dev"], &["dev"]).await;
    stock.says(&["namespace", "status", "dev"], &["for trials"]).await;
    stock.says(&["namespace", "delete", "dev"], &["dev"]).await;
    let refused = stock.ask(&["namespace", "delete", "default"]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("always there"), "{}", refused.stderr);

    let never = "reschedule {\n attempts = 0\n unlimited = false\n }\n restart {\n attempts = 0\n mode = \"fail\"\n }";
    let file = agent.file("fails.hcl", &job("fails", "exit 1", never));
    stock.says(&["job", "run", "-detach", file.to_str().unwrap()], &["Evaluation ID"]).await;
    let failed = |alloc: &Value| alloc["ClientStatus"] == "failed";
    until("it has failed", async || agent.allocs("fails").await.iter().any(failed)).await;
    stock.says(&["job", "eval", "-force-reschedule", "fails"], &["complete"]).await;
    until("it was placed again", async || agent.allocs("fails").await.len() > 1).await;
}
