//! Files beside the state that somebody removes, moves or copies.

use std::path::Path;

use ostler_testing::files::open_to_all;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::unconfigured;
use crate::support::jobs::{shell, wasm};
use crate::support::needs::{Need, skipped};
use crate::support::system::{eventually, pid_in, runs, until};

fn service(id: &str, task: &str) -> String {
    format!("job \"{id}\" {{\n group \"g\" {{\n {task}\n }}\n}}\n")
}

fn sleeper(id: &str) -> String {
    service(id, &shell("t", "echo $$ > local/pid; exec sleep 600", ""))
}

async fn killed(agent: AgentProcess) -> Home {
    agent.signal(Signal::KILL);
    agent.ended().await.1
}

async fn pid_of(agent: &AgentProcess, job: &str) -> u32 {
    let alloc = agent.alloc(job).await;
    pid_in(&agent.data.path().join(format!("allocs/{alloc}/t/local/pid"))).await
}

#[tokio::test]
async fn a_socket_that_was_removed_is_made_again_and_the_command_line_says_what_is_so() {
    let mut agent = AgentProcess::start().await;
    let sockets = std::fs::read_dir(agent.data.path()).unwrap().map(|entry| entry.unwrap().path());
    let socket = sockets.into_iter().find(|path| path.extension().is_some_and(|e| e == "sock"));
    let socket = socket.unwrap();
    std::fs::remove_file(&socket).unwrap();
    let status = agent.ask(&["node", "status"]).await;
    status.said(0, &[]);
    assert!(
        status.stderr.is_empty() || status.stderr.contains("the socket was removed"),
        "{status:#?}"
    );
    agent.hears("the socket of the API was removed and has been made again").await;
    assert!(socket.exists());
}

#[tokio::test]
async fn a_job_of_a_jobs_directory_that_the_agent_no_longer_has_can_be_stopped() {
    let agent = AgentProcess::start().await;
    let jobs = agent.data.path().join("jobs.d");
    std::fs::create_dir(&jobs).unwrap();
    let file = jobs.join("k.hcl");
    std::fs::write(&file, sleeper("k")).unwrap();
    let dir = jobs.to_str().unwrap().to_owned();
    let agent = AgentProcess::start_in(killed(agent).await, &["--jobs-dir", &dir]).await;
    until("its job runs", async || {
        let stub = agent.ask(&["job", "status", "k"]).await;
        stub.code == Some(0) && stub.stdout.contains("running")
    })
    .await;
    let pid = pid_of(&agent, "k").await;
    // As long as the file gives it, the file is what is to be changed.
    agent.ask(&["job", "stop", "k"]).await.said(3, &["change or remove"]);
    let agent = AgentProcess::start_in(killed(agent).await, &[]).await;
    assert!(runs(pid));
    agent.ask(&["job", "stop", "k"]).await.said(0, &["job k is stopped"]);
    assert!(!runs(pid));
}

/// All of a directory, as it is: owners, modes and links.
async fn copy(from: &Path, to: &Path) {
    // What a new home begins with is linked from where the other's is: `cp` takes them for the same files.
    drop(std::fs::remove_dir_all(to.join("code")));
    drop(std::fs::remove_file(to.join("code.key")));
    let mut copy = unconfigured("cp");
    copy.arg("-a").arg(from.join(".")).arg(to);
    let done = copy.output().await.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test]
async fn an_agent_on_a_copied_data_directory_leaves_the_tasks_of_the_first_alone() {
    let agent = AgentProcess::start().await;
    agent.run(&sleeper("native")).await.said(0, &["job native runs"]);
    let toolbox = ostler_guests::fixtures::TOOLBOX_P1;
    let idle = service("idle", &wasm("t", toolbox, &["sleep", "1000000"], ""));
    agent.run(&idle).await.said(0, &["job idle runs"]);
    let pid = pid_of(&agent, "native").await;
    let first = killed(agent).await;
    let second = Home::new();
    copy(first.path(), second.path()).await;

    let of_first = first.path().canonicalize().unwrap().display().to_string();
    let agent = AgentProcess::start_in(first, &[]).await;
    let other = AgentProcess::start_in(second, &[]).await;
    let listed = other.json(&["state", "runs", "--json"]).await;
    let listed = listed["runs"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 2, "{listed:#?}");
    let owner = format!("a task of the agent of data directory {of_first},");
    for run in &listed {
        let (reason, job) = (run["reason"].as_str().unwrap(), run["job"].as_str().unwrap());
        assert!(reason.contains(&owner), "{run:#}");
        assert_eq!(run["end_with"], format!("ostler job stop {job} --data-dir {of_first}"));
        let told = other.ask(&["explain", job]).await.stdout;
        assert!(told.contains(&owner) && told.contains("a data directory of its own"), "{told}");
        assert!(!told.contains("end-run"), "what another agent runs is not ended here: {told}");
    }
    for job in ["native", "idle"] {
        other.ask(&["job", "stop", "--detach", "--purge", job]).await;
    }
    drop(other);
    assert!(runs(pid), "the first agent's task runs on");
    for job in ["native", "idle"] {
        let alloc = agent.alloc(job).await;
        let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
        assert_eq!(shown["TaskStates"]["t"]["State"], "running", "{shown:#}");
        assert_eq!(shown["TaskStates"]["t"]["Restarts"], 0, "{shown:#}");
    }
    agent.ask(&["job", "stop", "native"]).await.said(0, &["job native is stopped"]);
    assert!(!runs(pid), "its own agent ends it");
}

/// A program of another user that has a directory of the agent open. Root opens it here, in place of a mount namespace
/// in which that user makes a directory of the same path.
fn of_another_user(program: &str, opened: &Path) -> tokio::process::Command {
    let mut command = unconfigured(program);
    command.stdin(std::fs::File::open(opened).unwrap()).uid(65_534).kill_on_drop(true);
    command
}

/// Called as a supervisor, with a child that seems to be a task of this job.
fn false_supervisor(job: &str, exits: &Path) -> tokio::process::Child {
    let script = "echo ostler-shim > /proc/$$/comm; sleep 600 & wait";
    let mut shell = of_another_user("/bin/sh", exits);
    shell.args(["-c", script]).env("NOMAD_ALLOC_ID", "00000000-0000-4000-8000-000000000001");
    shell.env("NOMAD_JOB_ID", job).env("NOMAD_GROUP_NAME", "g").env("NOMAD_TASK_NAME", "t");
    shell.env("NOMAD_ALLOC_INDEX", "0").process_group(0).spawn().unwrap()
}

/// Whatever the tests' umask is.
/// Called as a worker: it waits for somebody who writes to what its argument names.
fn false_worker(beside: &Path, own_dir: &Path) -> tokio::process::Child {
    let pipe = beside.join("__worker");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::empty());
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    open_to_all(&pipe).unwrap();
    of_another_user("cat", own_dir).arg("__worker").current_dir(beside).spawn().unwrap()
}

#[tokio::test]
async fn a_process_of_another_user_passes_for_no_supervisor_and_for_no_worker() {
    if !rustix::process::geteuid().is_root() {
        return skipped(Need::Root, "only root starts processes of another user");
    }
    let agent = AgentProcess::start().await;
    let toolbox = ostler_guests::fixtures::TOOLBOX_P1;
    let idle = service("idle", &wasm("t", toolbox, &["sleep", "1000000"], ""));
    agent.run(&idle).await.said(0, &["job idle runs"]);
    let home = killed(agent).await;
    let worker = std::fs::read_dir(home.path().join("workers")).unwrap().flatten().next().unwrap();
    let beside = tempfile::tempdir_in("/tmp").unwrap();
    open_to_all(beside.path()).unwrap();
    let mut supervisor = false_supervisor("bank", &home.path().join("exits"));
    let mut other = false_worker(beside.path(), &worker.path());
    let of = |child: &tokio::process::Child, file: &str| {
        let text = std::fs::read(format!("/proc/{}/{file}", child.id().unwrap_or(0)));
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    };
    eventually("it has its name", || of(&supervisor, "comm").trim() == "ostler-shim").await;
    eventually("it has its argument", || of(&other, "cmdline").contains("\0__worker\0")).await;

    let agent = AgentProcess::start_in(home, &[]).await;
    let listed = agent.json(&["state", "runs", "--json"]).await;
    assert_eq!(listed["runs"], serde_json::json!([]), "nothing is held back");
    agent.run(&sleeper("bank")).await.said(0, &["job bank runs"]);
    let alloc = agent.alloc("idle").await;
    let shown = agent.json(&["alloc", "status", "--json", &alloc]).await;
    assert_eq!(shown["TaskStates"]["t"]["State"], "running", "{shown:#}");
    assert_eq!(shown["TaskStates"]["t"]["Restarts"], 0, "{shown:#}");
    for forged in [&mut supervisor, &mut other] {
        assert!(forged.try_wait().unwrap().is_none(), "nor is it touched");
    }
    let group = supervisor.id().and_then(|pid| Pid::from_raw(pid.try_into().unwrap())).unwrap();
    kill_process_group(group, Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_data_directory_that_was_moved_is_the_same_one() {
    let agent = AgentProcess::start().await;
    agent.run(&sleeper("native")).await.said(0, &["job native runs"]);
    let pid = pid_of(&agent, "native").await;
    let first = killed(agent).await;
    let second = Home::new();
    for entry in std::fs::read_dir(first.path()).unwrap() {
        let entry = entry.unwrap();
        let to = second.path().join(entry.file_name());
        // What a new data directory of these tests has already.
        let _absent = std::fs::remove_dir_all(&to);
        std::fs::rename(entry.path(), to).unwrap();
    }
    let agent = AgentProcess::start_in(second, &[]).await;
    agent.ask(&["job", "stop", "native"]).await.said(0, &["job native is stopped"]);
    eventually("it is ended", || !runs(pid)).await;
}

#[tokio::test]
async fn what_was_held_when_its_agent_was_killed_leaves_no_exit_record() {
    let mut home = Home::new();
    for round in 0..6_u64 {
        let agent = AgentProcess::start_in(home, &[]).await;
        let text = service("many", &shell("t", "exec sleep 600", ""));
        let text = text.replace("group \"g\" {", "group \"g\" {\n count = 10");
        agent.submit(&text).await.said(0, &[]);
        ostler_model::clock::sleep(std::time::Duration::from_millis(15 * round)).await;
        home = killed(agent).await;
        let agent = AgentProcess::start_in(home, &[]).await;
        agent.ask(&["job", "stop", "--purge", "many"]).await.said(0, &[]);
        let exits = agent.data.path().join("exits");
        let names = || std::fs::read_dir(&exits).map_or(0, Iterator::count);
        eventually("no record is left", || names() == 0).await;
        agent.signal(Signal::TERM);
        home = agent.ended().await.1;
    }
    ask(home.path(), &["state", "check"]).await.said(0, &[]);
}
