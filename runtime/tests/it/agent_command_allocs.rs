//! `ostler alloc status|logs|stop|restart|signal` and `ostler gc` against a running agent.

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::PATIENCE;
use crate::support::agent_process::AgentProcess;
use crate::support::binary::command;
use crate::support::jobs::{SOON_HEALTHY, lifecycle, shell};
use crate::support::needs::{Need, skipped};
use crate::support::system::{eventually, pid_in, runs, until};

fn job(id: &str, tasks: &str) -> String {
    format!("job \"{id}\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {tasks}\n }}\n}}\n")
}

/// A task that counts what it is told: its starts and its signals.
const TALKER: &str = "echo begun; echo oops >&2; trap 'echo told' USR1; \
                      while :; do sleep 0.05; done";

async fn talker() -> (AgentProcess, String) {
    let agent = AgentProcess::start().await;
    agent.run(&job("talk", &shell("t", TALKER, ""))).await.said(0, &["job talk runs"]);
    let alloc = agent.alloc("talk").await;
    (agent, alloc)
}

/// Wait until the task printed this, whole.
async fn printed(agent: &AgentProcess, alloc: &str, text: &str) {
    let shown = async || agent.ask(&["alloc", "logs", alloc]).await.stdout == text;
    until(&format!("printed {text:?}"), shown).await;
}

#[tokio::test]
async fn an_allocation_is_shown_with_its_tasks_and_events_newest_last() {
    let agent = AgentProcess::start().await;
    let tasks = [
        shell("init", "exit 0", &lifecycle("prestart", false)),
        shell("main", "exec sleep 600", ""),
    ];
    agent.run(&job("web", &tasks.concat())).await.said(0, &[]);
    let id = agent.alloc("web").await;
    let shown = agent.ask(&["alloc", "status", &id[..8]]).await;
    shown.said(0, &[]);
    let text = &shown.stdout;
    assert!(text.starts_with(&format!("allocation  {id}\n")), "{text}");
    let words = |begin: &str| -> Vec<&str> {
        let line = text.lines().find(|line| line.starts_with(begin));
        line.unwrap_or_else(|| panic!("{begin} in {text}")).split_whitespace().take(4).collect()
    };
    assert_eq!(words("init"), ["init", "prestart", "dead", "0"]);
    assert_eq!(words("main"), ["main", "main", "running", "0"]);
    let events = text.split("events of init").nth(1).unwrap();
    let place = |kind: &str| events.find(kind).unwrap_or_else(|| panic!("{kind} in {events}"));
    assert!(place("Received") < place("Started") && place("Started") < place("Terminated"));

    let list = agent.ask(&["alloc", "status"]).await.stdout;
    assert!(list.lines().nth(1).unwrap().starts_with(&id[..8]), "{list}");
    let whole = agent.ask(&["alloc", "status", "--verbose"]).await.stdout;
    assert!(whole.lines().nth(1).unwrap().starts_with(&id), "{whole}");
    let json = agent.json(&["alloc", "status", "--json", &id]).await;
    assert_eq!(json["TaskStates"]["main"]["State"], "running", "{json:#}");
    let all = agent.json(&["alloc", "status", "--json"]).await;
    assert_eq!(all[0]["ID"], id.as_str());
    let stats = agent.ask(&["alloc", "status", "--stats", &id]).await;
    stats.said(0, &[]);
    assert!(stats.stdout.contains("\nin use\n"), "{stats:#?}");
}

#[tokio::test]
async fn ids_are_found_by_their_beginning_when_it_means_one() {
    let agent = AgentProcess::start().await;
    let two =
        job("web", &shell("t", "exec sleep 600", "")).replace("group", "priority = 50\n group");
    let two = two.replace(SOON_HEALTHY, &format!("{SOON_HEALTHY}\n count = 40"));
    agent.run(&two).await.said(0, &["40 placed"]);
    let allocs = agent.allocs("web").await;
    let ids: Vec<&str> = allocs.iter().map(|alloc| alloc["ID"].as_str().unwrap()).collect();
    // Of 40 ids two have the same first digit.
    let first = ids
        .iter()
        .map(|id| &id[..1])
        .find(|digit| ids.iter().filter(|id| id.starts_with(digit)).count() > 1);
    let first = first.unwrap();
    let ended = agent.ask(&["alloc", "status", first]).await;
    ended.said(2, &["allocations' ids begin with", "web.g["]);
    assert_eq!(agent.ask(&["alloc", "status", ids[0]]).await.code, Some(0));
    agent.ask(&["alloc", "status", "zz"]).await.said(2, &["not the id of an allocation"]);
    agent.ask(&["alloc", "status", ""]).await.said(2, &["not the id of an allocation"]);
    let gone = "00000000-0000-4000-8000-000000000000";
    for args in [&["alloc", "status", gone][..], &["alloc", "stop", gone], &["gc", gone]] {
        agent.ask(args).await.said(2, &["404"]);
    }
}

#[tokio::test]
async fn logs_are_shown_by_stream_and_by_last_lines() {
    let (agent, alloc) = talker().await;
    printed(&agent, &alloc, "begun\n").await;
    let logs = async |more: &[&str]| {
        let ended = agent.ask(&[&["alloc", "logs", &alloc], more].concat()).await;
        assert_eq!(ended.code, Some(0), "{ended:#?}");
        ended.stdout
    };
    assert_eq!(logs(&["--stderr"]).await, "oops\n");
    assert_eq!(logs(&["t"]).await, "begun\n");
    agent.ask(&["alloc", "signal", "-s", "USR1", &alloc]).await.said(0, &["USR1 sent"]);
    printed(&agent, &alloc, "begun\ntold\n").await;
    assert_eq!(logs(&["-n", "1"]).await, "told\n");
    assert_eq!(logs(&["-n", "9", "--task", "t"]).await, "begun\ntold\n");
    assert_eq!(logs(&["-n", "0"]).await, "");
    agent
        .ask(&["alloc", "logs", &alloc, "nope"])
        .await
        .said(2, &["has no task nope", "its tasks: t"]);
}

#[tokio::test]
async fn followed_logs_go_on_over_a_restart_and_ctrl_c_leaves_the_task() {
    let (agent, alloc) = talker().await;
    printed(&agent, &alloc, "begun\n").await;
    let dir = agent.data.path().to_str().unwrap();
    let follow = ["alloc", "logs", "-f", "-n", "1", &alloc, "--data-dir", dir];
    let mut child = command(follow).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        ostler_model::clock::timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap()
    };
    assert_eq!(next().await.as_deref(), Some("begun"));
    agent.ask(&["alloc", "signal", "-s", "SIGUSR1", &alloc, "t"]).await.said(0, &["task t"]);
    assert_eq!(next().await.as_deref(), Some("told"));
    agent.ask(&["alloc", "restart", &alloc]).await.said(0, &["restarted"]);
    assert_eq!(next().await.as_deref(), Some("begun"));
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(next().await, None);
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the task goes on"), "{said}");
    let status = agent.json(&["alloc", "status", "--json", &alloc]).await;
    assert_eq!(status["TaskStates"]["t"]["State"], "running", "{status:#}");
}

#[tokio::test]
async fn followed_logs_end_with_the_allocation() {
    let (agent, alloc) = talker().await;
    let dir = agent.data.path().to_str().unwrap();
    let child = command(["alloc", "logs", "-f", &alloc, "--data-dir", dir]).spawn().unwrap();
    agent.ask(&["job", "stop", "talk"]).await.said(0, &["is stopped"]);
    let ended = ostler_model::clock::timeout(PATIENCE, child.wait_with_output()).await;
    let output = ended.expect("it ends").unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stdout.starts_with(b"begun\n"), "{output:?}");
}

#[tokio::test]
async fn a_restart_is_of_all_running_tasks_one_of_them_or_all() {
    let agent = AgentProcess::start().await;
    let file = |name: &str| agent.data.path().join(name);
    // By rename: a file that is there is whole.
    let write_pid = |name: &str| {
        let file = file(name).display().to_string();
        format!("echo $$ > {file}.new; mv {file}.new {file}; exec sleep 600")
    };
    let count = agent.data.path().join("inits");
    let init = format!("echo x >> {}", count.display());
    let tasks = [
        shell("init", &init, &lifecycle("prestart", false)),
        shell("a", &write_pid("a"), ""),
        shell("b", &write_pid("b"), ""),
    ];
    agent.run(&job("web", &tasks.concat())).await.said(0, &[]);
    let alloc = agent.alloc("web").await;
    let pid = |name: &str| -> u32 {
        std::fs::read_to_string(file(name)).unwrap().trim().parse().unwrap()
    };
    let inits = || std::fs::read_to_string(&count).unwrap().lines().count();
    let (a, b) = (pid_in(&file("a")).await, pid_in(&file("b")).await);

    agent.ask(&["alloc", "restart", &alloc, "a"]).await.said(0, &["task a", "restarted"]);
    assert!(!runs(a) && runs(b), "it is over when that is said");
    eventually("a is started again", || pid("a") != a).await;
    let a = pid("a");
    agent.ask(&["alloc", "restart", &alloc]).await.said(0, &["the running tasks"]);
    eventually("both are started again", || pid("a") != a && pid("b") != b).await;
    assert!(!runs(a) && !runs(b));
    assert_eq!(inits(), 1, "what has ended stays");
    let a = pid("a");
    agent.ask(&["alloc", "restart", "--all", &alloc]).await.said(0, &["every task"]);
    eventually("all are started again", || pid("a") != a && inits() == 2).await;
    let a = pid("a");
    let detached = agent.ask(&["alloc", "restart", "--detach", &alloc, "a"]).await;
    detached.said(0, &["task a", "is under way"]);
    eventually("a is started again", || pid("a") != a).await;
    agent.ask(&["alloc", "restart", &alloc, "nope"]).await.said(2, &["its tasks: a, b, init"]);
}

#[tokio::test]
async fn a_signal_must_be_one_and_the_task_must_run() {
    let (agent, alloc) = talker().await;
    let ended = agent.ask(&["alloc", "signal", "-s", "SIGNOPE", &alloc]).await;
    assert_eq!(ended.code, Some(2), "{ended:#?}");
    let said = "error: SIGNOPE is not a signal; try SIGTERM, SIGHUP or SIGUSR1\n";
    assert_eq!(ended.stderr, said);
    agent.ask(&["alloc", "signal", "-s", "HUP", &alloc, "nope"]).await.said(2, &["no task nope"]);
    agent.ask(&["job", "stop", "talk"]).await.said(0, &[]);
    agent.ask(&["alloc", "signal", "-s", "USR1", &alloc]).await.said(3, &["has ended"]);
    agent.ask(&["alloc", "restart", &alloc]).await.said(3, &["has ended"]);
}

/// A directory in which nothing can be removed, as long as this lives.
struct Immutable(std::fs::File);

impl Immutable {
    /// None where only another user may, or on a file system that has no such thing.
    fn make(dir: &std::path::Path) -> Option<Self> {
        let file = std::fs::File::open(dir).unwrap();
        let flags = rustix::fs::ioctl_getflags(&file).ok()?;
        let immutable = flags | rustix::fs::IFlags::IMMUTABLE;
        rustix::fs::ioctl_setflags(&file, immutable).ok().map(|()| Self(file))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        if let Ok(flags) = rustix::fs::ioctl_getflags(&self.0) {
            let flags = flags - rustix::fs::IFlags::IMMUTABLE;
            let _left = rustix::fs::ioctl_setflags(&self.0, flags);
        }
    }
}

#[tokio::test]
async fn what_cannot_be_removed_is_not_said_to_be_gone() {
    let (agent, first) = talker().await;
    let dir = |alloc: &str| agent.data.path().join("allocs").join(alloc);
    agent.ask(&["alloc", "stop", &first]).await.said(0, &["is complete"]);
    until("it is replaced", async || agent.allocs("talk").await.len() == 2).await;
    let second = agent.alloc("talk").await;
    agent.ask(&["job", "stop", "talk"]).await.said(0, &["is stopped"]);
    let held = [&first, &second].map(|alloc| Immutable::make(&dir(alloc).join("alloc/logs")));
    if held.iter().any(Option::is_none) {
        skipped(Need::Immutable, "no file here can be made immutable");
        return;
    }
    let one = agent.ask(&["gc", &first]).await;
    one.said(3, &["could not be removed: its directory stays", "next start of the agent"]);
    assert_eq!(one.stdout, "");
    let all = agent.ask(&["gc"]).await;
    all.said(3, &["removed 0 allocations; 1 could not be removed:", &second[..8]]);
    assert_eq!(all.stdout, "");
    assert!(dir(&first).exists() && dir(&second).exists());
    drop(held);
}

#[tokio::test]
async fn a_stopped_allocation_is_replaced_and_then_collected() {
    let (agent, alloc) = talker().await;
    agent.ask(&["gc", &alloc]).await.said(3, &["not over"]);
    let stopped = agent.ask(&["alloc", "stop", &alloc[..8]]).await;
    stopped.said(0, &["is stopping", "is complete"]);
    until("it is replaced", async || {
        agent.allocs("talk").await.iter().any(|alloc| alloc["DesiredStatus"] == "run")
    })
    .await;
    let replacement = agent.alloc("talk").await;
    assert_ne!(replacement, alloc);
    let gone = agent.ask(&["gc", &alloc]).await;
    assert_eq!((gone.code, gone.stdout), (Some(0), format!("removed allocation {alloc}\n")));
    agent.ask(&["alloc", "status", &alloc]).await.said(2, &["alloc not found"]);
    assert_eq!(agent.ask(&["gc"]).await.stdout, "removed 0 allocations\n");
    assert!(!agent.data.path().join("allocs").join(&alloc).exists());
    agent.ask(&["job", "stop", "talk"]).await.said(0, &[]);
    assert_eq!(agent.ask(&["gc"]).await.stdout, "removed 1 allocation\n");
}
