//! The user id that an allocation has of its own: through agents that end and begin again, and from one allocation
//! to the next.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::{Ended, unconfigured};
use crate::support::jobs::{AT_ONCE, SOON_HEALTHY, isolated_shell};
use crate::support::needs::{Need, skipped};
use crate::support::system::{isolated_processes_of, until};
use crate::support::{KEEPS, PATIENCE};

const SETPRIV: &str = "/usr/bin/setpriv";
const NOBODY: u32 = 65_534;

/// An agent that isolates tasks and runs them as others; none where it cannot. `client`: what is in that block.
async fn agent(client: &str) -> Option<AgentProcess> {
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    std::fs::write(&config, format!("{KEEPS}client {{\n {client}\n}}\n")).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    let node = agent.json(&["node", "status", "--json"]).await;
    let can = |part: &str| node["Attributes"][format!("driver.exec.isolation.{part}")] == "true";
    if !can("mounts") || !can("user") {
        skipped(Need::Isolation, "this node cannot isolate tasks by mounts and user");
        return None;
    }
    Some(agent)
}

fn job(name: &str, more: &str, task: &str) -> String {
    format!("job \"{name}\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {more}\n {task}\n }}\n}}\n")
}

/// A task that tells its user and goes on.
fn sleeper(more: &str) -> String {
    isolated_shell("t", "id -u > /local/uid; exec sleep 600", more)
}

struct Running {
    alloc: String,
    dir: PathBuf,
}

impl Running {
    async fn of(agent: &AgentProcess, text: &str, name: &str) -> Self {
        agent.run(text).await.said(0, &[]);
        let alloc = agent.alloc(name).await;
        let dir = agent.data.path().join("allocs").join(&alloc);
        Self { alloc, dir }
    }

    /// Whom its process runs as.
    async fn pid(&self) -> (u32, u32) {
        let mut found = None;
        until("its program runs", async || {
            let mut pids = isolated_processes_of(&self.dir.join("t")).into_iter();
            found = pids.find_map(|pid| Some((pid, uid_of_program(pid, "sleep")?)));
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    async fn uid(&self) -> u32 {
        self.pid().await.1
    }
}

/// The user of a process, if it runs this program.
fn uid_of_program(pid: u32, program: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let is_it = line("Name:")?.trim() == program;
    is_it.then(|| line("Uid:")?.split_whitespace().next()?.parse().ok())?
}

/// Run a program outside of all tasks, as this user.
async fn outside_as(uid: u32, program: &[&str]) -> Ended {
    let who = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()];
    let mut command = unconfigured(SETPRIV);
    command.args(who).arg("--").args(program).current_dir("/");
    let output = ostler_model::clock::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[tokio::test]
async fn allocations_have_users_of_their_own_that_reach_nothing_of_each_other() {
    let Some(agent) = agent("").await else { return };
    let env = "env {\n TOKEN = \"of-the-task\"\n }";
    let one = Running::of(&agent, &job("one", "", &sleeper(env)), "one").await;
    let two = Running::of(&agent, &job("two", "", &sleeper("")), "two").await;
    let ((pid, of_one), of_two) = (one.pid().await, two.uid().await);
    assert_ne!(of_one, of_two);
    for uid in [of_one, of_two] {
        assert!((80_000..=89_999).contains(&uid), "{uid}");
    }
    assert_eq!(one.dir.metadata().unwrap().gid(), of_one);
    if Path::new(SETPRIV).exists() {
        let environ = format!("/proc/{pid}/environ");
        let reads = async |uid| outside_as(uid, &["cat", &environ]).await;
        let signals = async |uid| outside_as(uid, &["kill", "-0", &pid.to_string()]).await;
        // Its own may: what is refused is refused for whom it is.
        assert_eq!(signals(of_one).await.code, Some(0));
        assert_ne!(signals(of_two).await.code, Some(0));
        let read = reads(of_two).await;
        assert!(read.code != Some(0) && !read.stdout.contains("of-the-task"), "{read:#?}");
    }
    // Commands inside run as it does, and say so.
    let script = "id -u; id -G; id -un; id -gn; echo $USER $LOGNAME $HOME";
    let said = agent.ask(&["alloc", "exec", "-i=false", &one.alloc, "/bin/sh", "-c", script]).await;
    let name = format!("alloc-{of_one}");
    let wanted = format!("{of_one}\n{of_one}\n{name}\n{name}\n{name} {name} /local\n");
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), wanted.as_str()), "{said:#?}");
}

#[tokio::test]
async fn an_allocation_keeps_its_user_over_agents_and_restarts() {
    let Some(agent) = agent("").await else { return };
    let brought = "template {\n destination = \"local/k\"\n data = \"key\"\n perms = \"0600\"\n }";
    let task = isolated_shell("t", "cat /local/k >> /alloc/data/log && exec sleep 600", brought);
    let one = Running::of(&agent, &job("one", "", &task), "one").await;
    let other = Running::of(&agent, &job("other", "", &sleeper("")), "other").await;
    let (uid, of_other) = (one.uid().await, other.uid().await);
    let (config, home) = (agent.data.path().join("ostler.hcl"), agent);
    home.signal(Signal::KILL);
    let (_, data) = home.ended().await;
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    let first = one.pid().await;
    assert_eq!(first.1, uid, "it goes on");
    let third = Running::of(&agent, &job("third", "", &sleeper("")), "third").await;
    assert!(![uid, of_other].contains(&third.uid().await), "one that somebody has");
    agent.ask(&["alloc", "restart", &one.alloc]).await.said(0, &[]);
    until("it runs anew", async || one.pid().await.0 != first.0).await;
    assert_eq!(one.uid().await, uid);
    let log = one.dir.join("alloc/data/log");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "keykey");
    assert_eq!(log.metadata().unwrap().uid(), uid);
}

#[tokio::test]
async fn the_next_of_a_place_has_what_the_one_before_wrote() {
    let Some(agent) = agent("").await else { return };
    let script = "umask 077; for d in /alloc/data /local; do if [ -e $d/own ]; then cat $d/own/x && echo more >> $d/own/x; \
                  else mkdir $d/own && echo first > $d/own/x; fi || exit 1; done; echo $V; exec sleep 600";
    let disk = format!("{AT_ONCE}\n ephemeral_disk {{\n sticky = true\n }}");
    let version = |v: u32| {
        let task = isolated_shell("t", script, &format!("env {{\n V = \"version {v}\"\n }}"));
        format!("job \"j\" {{\n group \"g\" {{\n {disk}\n {task}\n }}\n}}\n")
    };
    let one = Running::of(&agent, &version(1), "j").await;
    let first = one.uid().await;
    let two = Running::of(&agent, &version(2), "j").await;
    assert_ne!(one.alloc, two.alloc);
    let second = two.uid().await;
    assert_ne!(first, second);
    let printed = std::fs::read_to_string(two.dir.join("alloc/logs/t.stdout.0")).unwrap();
    assert_eq!(printed, "first\nfirst\nversion 2\n");
    for path in ["alloc/data/own/x", "t/local/own/x", "alloc/data/own"] {
        assert_eq!(two.dir.join(path).metadata().unwrap().uid(), second, "{path}");
    }
}

#[tokio::test]
async fn who_names_a_user_or_writes_to_a_volume_is_that_user_or_nobody() {
    let volume = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(volume.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let path = volume.path().display();
    let client = format!("host_volume \"data\" {{\n path = \"{path}\"\n }}");
    let Some(agent) = agent(&client).await else { return };
    let named = job("named", "", &sleeper("user = \"nobody\""));
    assert_eq!(Running::of(&agent, &named, "named").await.uid().await, NOBODY);
    let asked = "volume \"v\" {\n type = \"host\"\n source = \"data\"\n }";
    let mount = "volume_mount {\n volume = \"v\"\n destination = \"/srv\"\n }";
    let task = isolated_shell("t", "echo x > /srv/x && exec sleep 600", mount);
    let writes = Running::of(&agent, &job("writes", asked, &task), "writes").await;
    assert_eq!(writes.uid().await, NOBODY);
    let reads = mount.replace("}", "read_only = true\n }");
    let reads = job("reads", asked, &sleeper(&reads));
    assert_ne!(Running::of(&agent, &reads, "reads").await.uid().await, NOBODY);
}

#[tokio::test]
async fn where_no_id_is_left_an_allocation_waits_and_says_so_until_one_is() {
    let range = "users {\n dynamic_user_min = 81000\n dynamic_user_max = 81000\n }";
    let Some(agent) = agent(range).await else { return };
    let one = Running::of(&agent, &job("one", "", &sleeper("")), "one").await;
    assert_eq!(one.uid().await, 81_000);
    agent.submit(&job("two", "", &sleeper(""))).await.said(0, &[]);
    let two = agent.alloc("two").await;
    until("it says why it waits", async || {
        let told = agent.ask(&["alloc", "status", &two]).await.stdout;
        told.split_whitespace().collect::<Vec<_>>().join(" ").contains("81000 to 81000")
    })
    .await;
    agent.ask(&["job", "stop", "--purge", "one"]).await.said(0, &[]);
    agent.ask(&["gc"]).await.said(0, &[]);
    let dir = agent.data.path().join("allocs").join(&two);
    assert_eq!(Running { alloc: two, dir }.uid().await, 81_000);
}

#[tokio::test]
async fn ids_of_the_configuration_that_are_somebodys_are_refused() {
    if !rustix::process::geteuid().is_root() {
        skipped(Need::Root, "only root gives allocations users");
        return;
    }
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    let text = "client {\n users {\n dynamic_user_min = 65000\n dynamic_user_max = 66000\n }\n}\n";
    std::fs::write(&config, text).unwrap();
    let agent = AgentProcess::spawn(data, &["--config", config.to_str().unwrap()], |_| {});
    let (ended, _data) = agent.ended().await;
    ended.said(3, &["65000 to 66000", "65534 is \"nobody\"", "dynamic_user_min"]);
}
