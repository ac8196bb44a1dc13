//! `ostler agent` as a service manager, an operator and a second agent meet it.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::DataDir;
use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::{command, ostler};
use crate::support::jobs::SOON_HEALTHY;
use crate::support::system::{eventually, pid_in, runs, until};

/// A service whose task writes its pid into a file.
fn service(data: &Path, more: &str) -> String {
    let pid_file = data.join("pid");
    format!(
        r#"job "svc" {{
  group "g" {{
    {SOON_HEALTHY}
    task "t" {{
      driver = "raw_exec"
      {more}
      config {{
        command = "/bin/sh"
        args = ["-c", "echo $$ > {}; exec sleep 600"]
      }}
      resources {{
        cpu = 20
        memory = 64
      }}
    }}
  }}
}}
"#,
        pid_file.display()
    )
}

async fn with_service(more: &str, args: &[&str]) -> (AgentProcess, u32) {
    let agent = AgentProcess::start_in(Home::new(), args).await;
    agent.run(&service(agent.data.path(), more)).await.said(0, &["job svc runs"]);
    let pid = pid_in(&agent.data.path().join("pid")).await;
    (agent, pid)
}

#[tokio::test]
async fn it_says_when_it_is_ready_and_its_socket_is_its_users_alone() {
    let mut agent = AgentProcess::spawn(Home::new(), &[], |_| {});
    let line = agent.hears("ready: the agent").await;
    let socket = agent.data.path().join("ostler.sock");
    assert!(line.contains(socket.to_str().unwrap()), "{line}");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_service_manager_is_told_when_it_is_ready_and_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_nonblocking(true).unwrap();
    let mut agent = AgentProcess::spawn(Home::new(), &[], |command| {
        command.env("NOTIFY_SOCKET", &path);
    });
    agent.hears("ready: the agent").await;
    let received = || {
        let mut text = [0; 128];
        let length = manager.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    };
    let ready = received().expect("told before the line is said");
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    agent.signal(Signal::TERM);
    let (ended, _data) = agent.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let stopping = received().expect("told at the end");
    assert!(stopping.lines().any(|line| line == "STOPPING=1"), "{stopping}");
}

#[tokio::test]
async fn a_second_agent_on_the_same_directory_is_refused_with_the_pid_of_the_first() {
    let agent = AgentProcess::start().await;
    let pid = format!("(pid {})", agent.pid());
    agent.ask(&["agent"]).await.said(3, &["is in use by another agent", &pid]);
    assert_eq!(agent.ask(&["job", "status"]).await.stdout, "no jobs\n", "the first still answers");
}

#[tokio::test]
async fn a_configuration_that_is_wrong_is_told_apart_from_an_agent_that_cannot_start() {
    let data = DataDir::new();
    let config = data.path().join("agent.hcl");
    std::fs::write(&config, "no_such_key = 1\n").unwrap();
    let ended = ask(data.path(), &["agent", "--config", config.to_str().unwrap()]).await;
    ended.said(2, &["no_such_key"]);
    ostler(["agent", "--data-dir", "/proc/nowhere"]).await.said(3, &["/proc/nowhere"]);
    let long = data.path().join("d".repeat(120));
    ask(&long, &["agent"]).await.said(3, &["ostler.sock", "--data-dir"]);
}

#[tokio::test]
async fn without_an_agent_every_command_names_the_socket_and_how_to_start_one() {
    let data = DataDir::new();
    let socket = data.path().join("ostler.sock");
    let start = format!("`ostler agent --data-dir {}`", data.path().display());
    let file = data.path().join("job.hcl");
    std::fs::write(&file, service(data.path(), "")).unwrap();
    let file = file.to_str().unwrap();
    let commands: [&[&str]; 11] = [
        &["job", "run", file],
        &["job", "plan", file],
        &["job", "status"],
        &["job", "stop", "svc"],
        &["alloc", "status"],
        &["alloc", "status", "0f01"],
        &["alloc", "logs", "0f01"],
        &["alloc", "stop", "0f01"],
        &["alloc", "restart", "0f01"],
        &["alloc", "signal", "-s", "HUP", "0f01"],
        &["gc"],
    ];
    for args in commands {
        ask(data.path(), args).await.said(3, &[socket.to_str().unwrap(), &start]);
    }
    let mut by_address = command(["job", "status"]);
    by_address.env("OSTLER_ADDR", format!("unix://{}", socket.display()));
    let output = by_address.output().await.unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains(socket.to_str().unwrap()));
    ostler(["job", "status", "--address", "ftp://localhost:4646"]).await.said(2, &["unix://"]);
    let url = "http://127.0.0.1:1";
    ostler(["job", "status", "--address", url]).await.said(3, &[url, "cannot be reached"]);
}

#[tokio::test]
async fn a_running_agent_is_asked_what_it_wrote() {
    let agent = AgentProcess::start().await;
    let stats = agent.json(&["state", "stats", "--json"]).await;
    assert_eq!(stats["running"], true, "{stats}");
    assert!(stats["since_start"]["commits"].as_u64() > Some(0), "{stats}");
    assert!(stats["file_bytes"].as_u64() > Some(0), "{stats}");
    let text = agent.ask(&["state", "stats"]).await;
    assert_eq!(text.code, Some(0), "{text:#?}");
    assert!(text.stdout.contains("its agent runs") && text.stdout.contains("commits"), "{text:#?}");
    // What only the file can tell needs it: the agent has to be stopped.
    agent.ask(&["state", "check"]).await.said(3, &["stop it first"]);
}

#[tokio::test]
async fn the_node_and_the_plugins_of_a_running_agent_are_shown() {
    let agent = AgentProcess::start().await;
    let node = agent.json(&["node", "status", "--json"]).await;
    assert_eq!(node["drivers"]["raw_exec"]["health"]["state"], "healthy", "{node:#}");
    let text = agent.ask(&["node", "status"]).await;
    text.said(0, &[]);
    assert_eq!(text.stderr, "", "no agent is started for it");
    assert!(text.stdout.contains(node["id"].as_str().unwrap()), "{text:#?}");
    let plugins = agent.json(&["plugin", "list", "--json"]).await;
    assert!(plugins.as_array().unwrap().iter().any(|plugin| plugin["name"] == "exec"));
    let table = agent.ask(&["plugin", "list"]).await.stdout;
    assert!(
        table.lines().any(|line| line.starts_with("exec") && line.contains("loaded")),
        "{table}"
    );
    let address = format!("unix://{}/ostler.sock", agent.data.path().display());
    let ended = ostler(["node", "status", "--address", &address, "--json"]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
}

/// Needs native tasks that outlive the agent.
#[tokio::test]
async fn sigterm_leaves_native_tasks_to_the_next_agent() {
    let (agent, pid) = with_service("", &[]).await;
    let alloc = agent.alloc("svc").await;
    agent.signal(Signal::TERM);
    let (ended, data) = agent.ended().await;
    ended.said(0, &["tasks go on", "the agent has ended"]);
    assert!(runs(pid), "{ended:#?}");
    let agent = AgentProcess::start_in(data, &[]).await;
    assert_eq!(agent.alloc("svc").await, alloc);
    let status = agent.json(&["alloc", "status", "--json", &alloc]).await;
    assert_eq!(status["ClientStatus"], "running", "{status:#}");
    assert_eq!(status["TaskStates"]["t"]["Restarts"], 0);
    assert!(runs(pid), "taken over, not started again");
    agent.ask(&["job", "stop", "svc"]).await.said(0, &["job svc is stopped"]);
    assert!(!runs(pid));
}

#[tokio::test]
async fn with_drain_sigterm_ends_the_tasks_and_the_next_agent_runs_the_job_again() {
    let (agent, pid) = with_service("", &["--drain"]).await;
    agent.signal(Signal::TERM);
    let (ended, data) = agent.ended().await;
    ended.said(0, &["stopping all tasks", "the agent has ended"]);
    assert!(!runs(pid), "{ended:#?}");
    let agent = AgentProcess::start_in(data, &[]).await;
    let file = agent.data.path().join("pid");
    eventually("the job runs again", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.trim() != pid.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    // The task ignores its stop, and its patience is long.
    let job = r#"kill_timeout = "30s""#;
    let agent = AgentProcess::start_in(Home::new(), &["--drain"]).await;
    let pid_file = agent.data.path().join("pid");
    let text = service(agent.data.path(), job)
        .replace("exec sleep 600", "trap '' TERM INT; while :; do sleep 1; done");
    agent.run(&text).await.said(0, &["job svc runs"]);
    pid_in(&pid_file).await;
    let mut agent = agent;
    agent.signal(Signal::TERM);
    agent.hears("a second signal ends it at once").await;
    agent.signal(Signal::INT);
    let begun = ostler_model::clock::Stopwatch::start();
    let (ended, _data) = agent.ended().await;
    assert_eq!(ended.code, Some(130), "{ended:#?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "it did not wait for the task");
}

#[tokio::test]
async fn jobs_of_the_jobs_directory_run_change_and_stop_with_their_files() {
    let jobs = tempfile::tempdir().unwrap();
    let args = ["--jobs-dir", jobs.path().to_str().unwrap()];
    let data = Home::new();
    let text = service(data.path(), "");
    let file = jobs.path().join("svc.hcl");
    std::fs::write(&file, &text).unwrap();
    let agent = AgentProcess::start_in(data, &args).await;
    let pid = pid_in(&agent.data.path().join("pid")).await;
    let status = agent.ask(&["job", "status", "svc"]).await.stdout;
    assert!(status.contains(&format!("given by     the file {}", file.display())), "{status}");
    agent.ask(&["job", "stop", "svc"]).await.said(3, &["svc.hcl"]);
    assert!(runs(pid), "a file's job is its file's");
    std::fs::remove_file(&file).unwrap();
    agent.signal(Signal::HUP);
    eventually("the job is stopped", || !runs(pid)).await;
}

#[tokio::test]
async fn a_jobs_directory_that_is_gone_is_said_where_jobs_are_listed() {
    let jobs = tempfile::tempdir().unwrap();
    let home = Home::new();
    std::fs::write(jobs.path().join("svc.hcl"), service(home.path(), "")).unwrap();
    let pid_file = home.path().join("pid");
    let args = ["--jobs-dir", jobs.path().to_str().unwrap()];
    let agent = AgentProcess::start_in(home, &args).await;
    let pid = pid_in(&pid_file).await;
    std::fs::remove_dir_all(jobs.path()).unwrap();
    agent.signal(Signal::HUP);
    until("it is said", async || {
        let status = agent.ask(&["job", "status"]).await;
        status.stdout.contains("svc") && status.stderr.contains("jobs directory")
    })
    .await;
    agent.ask(&["job", "status", "svc"]).await.said(0, &["cannot be read", "run on"]);
    assert!(runs(pid));
}
