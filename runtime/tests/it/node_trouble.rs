//! Trouble of the node ends nothing that runs, and nothing is said to be over before it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::shell;
use crate::support::system::{eventually, pid_in, runs, until};

const SERVICES: usize = 20;

/// A service whose tasks write their pids; killed a second after they were asked to end.
fn service(count: usize, more: &str) -> String {
    let task = shell(
        "t",
        "echo $$ > local/pid; exec sleep 600",
        &format!("kill_timeout = \"1s\"\n{more}"),
    );
    format!("job \"web\" {{\n group \"g\" {{\n count = {count}\n {task}\n }}\n}}\n")
}

fn limited(descriptors: u64) -> impl FnOnce(&mut tokio::process::Command) {
    move |command| {
        let few = Rlimit { current: Some(descriptors), maximum: Some(descriptors) };
        let limit = move || Ok(setrlimit(Resource::Nofile, few)?);
        // SAFETY: between fork and exec only one system call is made; nothing is allocated.
        unsafe { command.pre_exec(limit) };
    }
}

async fn pids(home: &Path) -> BTreeSet<u32> {
    let mut pids = BTreeSet::new();
    let dirs = || std::fs::read_dir(home.join("allocs")).map_or(0, Iterator::count);
    eventually("a directory for each", || dirs() == SERVICES).await;
    for dir in std::fs::read_dir(home.join("allocs")).unwrap() {
        pids.insert(pid_in(&dir.unwrap().path().join("t/local/pid")).await);
    }
    pids
}

async fn killed(agent: AgentProcess) -> Home {
    agent.signal(Signal::KILL);
    agent.ended().await.1
}

#[tokio::test]
async fn few_descriptors_at_a_start_end_nothing_and_a_later_start_owns_everything() {
    let mut agent = AgentProcess::start().await;
    agent.submit(&service(SERVICES, "")).await.said(0, &[]);
    let before = pids(agent.data.path()).await;
    assert_eq!(before.len(), SERVICES);
    for descriptors in [40, 52, 64, 80] {
        let home = killed(agent).await;
        agent = AgentProcess::spawn(home, &[], limited(descriptors));
        // Ready, or gone for want of descriptors; by then every owner has looked at its task.
        agent.hears_or_ends("ready: the agent").await;
        assert!(before.iter().all(|pid| runs(*pid)), "a task ended with {descriptors}");
    }
    let home = killed(agent).await;
    let agent = AgentProcess::start_in(home, &[]).await;
    until("all run", async || {
        let allocs = agent.allocs("web").await;
        allocs.iter().filter(|alloc| alloc["ClientStatus"] == "running").count() == SERVICES
    })
    .await;
    let allocs = agent.allocs("web").await;
    assert_eq!(allocs.len(), SERVICES, "none failed, none placed anew: {allocs:#?}");
    assert_eq!(pids(agent.data.path()).await, before);
    assert!(before.iter().all(|pid| runs(*pid)), "the same processes");
    agent.ask(&["job", "stop", "web"]).await.said(0, &["job web is stopped"]);
    assert!(!before.iter().any(|pid| runs(*pid)), "stopped is stopped");
}

#[tokio::test]
async fn an_agent_that_may_have_too_few_files_open_says_so_and_does_not_start() {
    for descriptors in [40, 90] {
        let agent = AgentProcess::spawn(Home::new(), &[], limited(descriptors));
        let (ended, _home) = agent.ended().await;
        assert!(!ended.stderr.contains("ready: the agent"), "{ended:#?}");
        assert_ne!(ended.code, Some(0), "{ended:#?}");
        let said = format!("may open only {descriptors} files");
        assert!(ended.stderr.contains(&said) && ended.stderr.contains("ulimit -n"), "{ended:#?}");
    }
}

/// Holds a process so that it does not end when it is killed, as uninterruptible sleep does: in the
/// freezer of version 1. `None` where there is none.
struct Frozen(PathBuf);

impl Frozen {
    fn new(pid: u32) -> Option<Self> {
        let freezer = Path::new("/sys/fs/cgroup/freezer");
        if !rustix::process::geteuid().is_root() || !freezer.join("release_agent").exists() {
            eprintln!("no version 1 freezer here: nothing can be made not to end");
            return None;
        }
        let path = freezer.join(format!("ostler-it-{}-{pid}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(path.join("freezer.state"), "FROZEN").unwrap();
        Some(Self(path))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
        // Its members leave when they end.
        for _ in 0..100_000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn a_task_that_does_not_end_is_not_said_to_have_ended_and_nothing_starts_beside_it() {
    let agent = AgentProcess::start().await;
    agent.submit(&service(1, "")).await.said(0, &[]);
    let old = agent.alloc("web").await;
    let pid = pid_in(&agent.data.path().join(format!("allocs/{old}/t/local/pid"))).await;
    let Some(frozen) = Frozen::new(pid) else { return };
    // Another version: it takes the place of the old one.
    agent.submit(&service(1, "env {\n A = \"b\"\n }")).await.said(0, &[]);
    let said = || async {
        let shown = agent.ask(&["alloc", "status", &old]).await.stdout;
        shown.contains(&format!("process {pid}"))
            && shown.contains("did not end when it was killed")
    };
    until("it is said that it does not end", async || said().await).await;
    let agent = AgentProcess::start_in(killed(agent).await, &[]).await;
    let stop = agent.ask(&["job", "stop", "--detach", "web"]).await;
    assert_eq!(stop.code, Some(0), "{stop:#?}");
    let allocs = agent.allocs("web").await;
    let of_old = allocs.iter().find(|alloc| alloc["ID"] == old.as_str()).unwrap();
    assert_eq!(of_old["ClientStatus"], "running", "{of_old:#}");
    let others = allocs.iter().filter(|alloc| alloc["ID"] != old.as_str());
    for other in others {
        let dir = agent.data.path().join(format!("allocs/{}/t", other["ID"].as_str().unwrap()));
        assert!(!dir.join("local/pid").exists(), "it started beside the old one");
    }
    assert!(runs(pid));
    drop(frozen);
    until("it is over", async || {
        let allocs = agent.allocs("web").await;
        allocs.iter().all(|alloc| alloc["ClientStatus"] == "complete")
    })
    .await;
    assert!(!runs(pid));
}
