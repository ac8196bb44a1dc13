//! An agent that is not ready yet, and one that has the data directory, as commands meet them.

use std::net::TcpListener;
use std::path::PathBuf;

use hyper::StatusCode;
use hyper::body::Bytes;
use ostler_agent::{Agent, LeaveMode};
use ostler_api::server;
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::agent::serving;
use crate::support::DataDir;
use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::{Ended, command};
use crate::support::http::Client;
use crate::support::system::{eventually, pid_in, runs, until};

/// The tasks here write beside their directories.
const RAW: &str = "plugin \"raw_exec\" {\n enabled = true\n}\n";

/// A registry that takes connections and answers nothing: a plugin from it is being loaded for as
/// long as this lives, and some seconds more.
struct Silent(TcpListener);

impl Silent {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// The configuration of an agent with a plugin from it.
    fn config(&self, home: &Home) -> PathBuf {
        let path = home.path().join("slow.hcl");
        let port = self.0.local_addr().unwrap().port();
        let text = format!(
            "{RAW}plugin \"slow\" {{\n source = \"oci://localhost:{port}/team/slow:1\"\n}}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    /// An agent that waits for it. It has its directory, and perhaps no socket yet.
    async fn agent(&self, home: Home) -> AgentProcess {
        let config = self.config(&home);
        let agent = AgentProcess::spawn(home, &["--config", config.to_str().unwrap()], |_| {});
        let serves = || Agent::holder(agent.data.path()).is_some_and(|holder| holder.serves);
        eventually("the agent has its directory", serves).await;
        agent
    }
}

fn service(home: &Home) -> String {
    let pid_file = home.path().join("pid");
    format!(
        "job \"svc\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n \
         command = \"/bin/sh\"\n args = [\"-c\", \"echo $$ > {}; exec sleep 600\"]\n }}\n \
         resources {{\n cpu = 20\n memory = 64\n }}\n }}\n }}\n}}\n",
        pid_file.display()
    )
}

async fn status_of(agent: &AgentProcess, plugin: &str) -> String {
    let plugins = agent.json(&["plugin", "list", "--json"]).await;
    let found = plugins.as_array().unwrap().iter().find(|entry| entry["name"] == plugin);
    found.map(|entry| entry["status"]["state"].as_str().unwrap().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn an_agent_answers_while_a_plugin_is_loaded_and_says_which() {
    let silent = Silent::new();
    let mut agent = silent.agent(Home::new()).await;
    // Asked before it has a socket.
    until("the others wait for the slow one", async || {
        status_of(&agent, "exec").await == "waiting" && status_of(&agent, "slow").await == "loading"
    })
    .await;
    let list = agent.ask(&["plugin", "list"]).await.stdout;
    assert!(list.lines().any(|l| l.starts_with("slow") && l.contains("loading")), "{list}");
    let node = agent.ask(&["node", "status"]).await;
    assert!(node.stdout.contains("plugins still loading: slow"), "{node:#?}");
    let status = agent.ask(&["plugin", "status", "slow"]).await;
    assert!(status.stdout.contains("loading"), "{status:#?}");
    let jobs = agent.ask(&["job", "status"]).await;
    assert_eq!((jobs.code, jobs.stdout.as_str()), (Some(0), "no jobs\n"), "{jobs:#?}");
    assert_eq!(status_of(&agent, "slow").await, "loading", "all of it was answered before");
    drop(silent);
    agent.hears("ready: the agent").await;
    assert_eq!(status_of(&agent, "exec").await, "loaded");
    assert_eq!(status_of(&agent, "slow").await, "refused");
}

#[tokio::test]
async fn a_job_that_comes_while_its_driver_is_loaded_waits_and_then_runs() {
    let silent = Silent::new();
    let agent = silent.agent(Home::new()).await;
    let job = service(&agent.data);
    agent.submit(&job).await.said(0, &["still loading"]);
    let status = agent.json(&["job", "status", "--json", "svc"]).await;
    assert_eq!(status["job"]["Status"], "pending", "{status:#}");
    assert_eq!(status_of(&agent, "slow").await, "loading");
    drop(silent);
    let pid = pid_in(&agent.data.path().join("pid")).await;
    agent.ask(&["job", "stop", "svc"]).await.said(0, &["job svc is stopped"]);
    assert!(!runs(pid));
}

#[tokio::test]
async fn whoever_follows_a_job_whose_driver_is_loaded_is_not_told_that_it_does_not_fit() {
    let silent = Silent::new();
    let agent = silent.agent(Home::new()).await;
    let job = service(&agent.data);
    let comes = async {
        until("the job is registered", async || {
            agent.ask(&["job", "status", "svc"]).await.code == Some(0)
        })
        .await;
        assert_eq!(status_of(&agent, "slow").await, "loading");
        drop(silent);
    };
    let (followed, ()) = tokio::join!(agent.run(&job), comes);
    followed.said(0, &["still loading", "job svc runs"]);
}

/// Needs native tasks that outlive the agent.
#[tokio::test]
async fn tasks_of_the_last_agent_run_on_and_are_taken_over_when_their_driver_comes() {
    let agent = AgentProcess::start().await;
    let job = service(&agent.data);
    agent.run(&job).await.said(0, &["job svc runs"]);
    let pid = pid_in(&agent.data.path().join("pid")).await;
    let alloc = agent.alloc("svc").await;
    agent.signal(Signal::TERM);
    let (_ended, home) = agent.ended().await;
    let silent = Silent::new();
    let mut agent = silent.agent(home).await;
    assert_eq!(agent.alloc("svc").await, alloc);
    let status = agent.json(&["alloc", "status", "--json", &alloc]).await;
    assert_eq!(status["ClientStatus"], "running", "{status:#}");
    assert!(status["TaskStates"]["t"].to_string().contains("still loading: slow"), "{status:#}");
    assert!(runs(pid));
    drop(silent);
    agent.hears("ready: the agent").await;
    agent.ask(&["job", "stop", "svc"]).await.said(0, &["job svc is stopped"]);
    assert!(!runs(pid));
}

#[tokio::test]
async fn an_agent_that_ends_before_it_is_ready_leaves_nothing_that_looks_like_one() {
    let silent = Silent::new();
    let agent = silent.agent(Home::new()).await;
    agent.ask(&["job", "status"]).await.said(0, &[]);
    agent.signal(Signal::KILL);
    let (_killed, home) = agent.ended().await;
    ask(home.path(), &["job", "status"]).await.said(3, &["no agent runs at"]);
    let agent = silent.agent(home).await;
    agent.ask(&["job", "status"]).await.said(0, &[]);
    agent.signal(Signal::TERM);
    let (ended, home) = agent.ended().await;
    ended.said(143, &["interrupted before the agent was ready"]);
    assert!(!home.path().join("ostler.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_jobs_before_they_are_restored_is_told_who_starts_and_to_come_again() {
    let data = DataDir::new();
    let begun = Agent::begin_start(serving(data.path(), "")).await.unwrap();
    let socket = data.path().join(ostler_api::SOCKET_NAME);
    let api = server::serve(
        begun.agent().clone(),
        crate::support::http::faces(begun.agent(), &socket),
        CancellationToken::new(),
    )
    .unwrap();
    let client = Client(socket);
    let health = client.get("/v1/agent/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(health.text().contains("starting"), "{}", health.text());
    for path in ["/v1/agent/self", "/v1/nodes", "/v1/status/leader", "/v1/ostler/plugins"] {
        assert_eq!(client.get(path).await.status, StatusCode::OK, "{path}");
    }
    let stop = Bytes::new();
    let (jobs, metrics, stopped) = tokio::join!(
        client.get("/v1/jobs"),
        client.get("/v1/metrics"),
        client.send("DELETE", "/v1/job/svc", stop)
    );
    for answer in [jobs, metrics, stopped] {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text());
        assert_eq!(answer.headers["retry-after"], "1");
        let who = format!("the agent (pid {}) is starting: ", std::process::id());
        assert!(answer.text().starts_with(&who), "{}", answer.text());
    }
    let agent = begun.into_ready().await.unwrap();
    assert_eq!(client.get("/v1/jobs").await.text(), "[]");
    assert_eq!(client.get("/v1/agent/health").await.status, StatusCode::OK);
    api.stop().await;
    agent.leave(LeaveMode::LeaveTasks).await;
}

#[tokio::test]
async fn commands_that_have_an_agent_of_their_own_work_beside_one_that_runs() {
    let agent = AgentProcess::start().await;
    let file = agent.file(
        "hello.hcl",
        "job \"hello\" {\n type = \"batch\"\n group \"g\" {\n task \"t\" {\n driver = \"exec\"\n \
         config {\n command = \"/bin/echo\"\n args = [\"hello\"]\n }\n resources {\n cpu = 20\n \
         memory = 64\n }\n }\n }\n}\n",
    );
    let file = file.to_str().unwrap();
    let with = async |args: &[&str], more: &[(&str, &str)]| {
        let mut command = command(args);
        command.env("OSTLER_DATA_DIR", agent.data.path()).envs(more.iter().copied());
        let output = command.output().await.unwrap();
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    let pid = format!("in use by another agent (pid {})", agent.pid());
    let run = with(&["run", file], &[]).await;
    run.said(0, &[&pid, "a temporary one"]);
    assert!(run.stdout.contains("hello"), "{run:#?}");
    // Its drivers are what counts.
    let validate = with(&["job", "validate", file], &[]).await;
    assert!(validate.stdout.contains("is valid"), "{validate:#?}");
    let wrong = std::fs::read_to_string(file).unwrap().replace("command =", "comand =");
    let wrong = agent.file("wrong.hcl", &wrong);
    with(&["job", "validate", wrong.to_str().unwrap()], &[]).await.said(2, &["comand"]);
    let validate = &["job", "validate", file][..];
    for args in [validate, &["node", "status"], &["plugin", "list"], &["plugin", "status"]] {
        let asked = with(args, &[]).await;
        assert_eq!((asked.code, asked.stderr.as_str()), (Some(0), ""), "{asked:#?}");
    }
    // Another configuration than that of the agent.
    let config = agent.file("other.hcl", "name = \"other\"\n");
    let other = [("OSTLER_CONFIG", config.to_str().unwrap())];
    let node = with(&["node", "status"], &other).await;
    node.said(0, &[&pid]);
    assert!(node.stdout.contains("other ("), "{node:#?}");
}
