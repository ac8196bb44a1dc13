//! The agent is killed while tasks hold devices: the next one on the directory knows who holds what.
//!
//! ```text
//!  placed ─► entry on disk ─► plugin is asked ─► it answers ─► task runs ─► task over ─► plugin told
//!                                  ▲                              ▲                        ▲
//!                                  └── killed in the middle       └── killed               └── killed
//! ```
//! The plugin is the mock, which writes down every call; tasks are processes that outlive agents.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{shell, with_guests};
use crate::support::system::{eventually, pid_in, runs, until};

/// The mock plugin's two devices, the agent that assigns them, and the directory for what is told.
struct World {
    dir: TempDir,
    agent: AgentProcess,
}

impl World {
    /// `more` is added to the plugin's script.
    async fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new();
        let at = dir.path().display();
        let config = format!(
            "{KEEPS}plugin \"mock_device\" {{\n config {{\n dir = \"{at}\"\n }}\n grants {{\n \
             files \"{at}\" {{ write = true }}\n }}\n }}\n"
        );
        std::fs::write(dir.path().join("ostler.hcl"), config).unwrap();
        script(&dir, more);
        let agent = start(&dir, home).await;
        Self { dir, agent }
    }

    /// Kill the agent where it stands; another one on its directory, with this script.
    async fn crash(self, more: &str) -> Self {
        let Self { dir, agent } = self;
        agent.signal(Signal::KILL);
        let (ended, home) = agent.ended().await;
        assert_eq!(ended.code, None, "killed: {ended:#?}");
        script(&dir, more);
        let agent = start(&dir, home).await;
        Self { dir, agent }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A service that wants `count` devices and writes its process's id.
    fn wants(&self, name: &str, count: u32) -> String {
        let more = format!(
            "resources {{\n cpu = 20\n memory = 32\n device \"mock/device\" {{\n count = {count}\n }}\n }}"
        );
        let (pid, starts) = (self.file(name), self.file("starts"));
        let (pid, starts) = (pid.display(), starts.display());
        let script = format!(
            "echo {name} $MOCK_DEVICES >> {starts}; echo $$ > {pid}.new; mv {pid}.new {pid}; \
             exec sleep 1000"
        );
        let task = shell("t", &script, &more);
        with_guests(&format!("job \"{name}\" {{\n group \"g\" {{\n {task}\n }}\n}}"))
    }

    /// What the tasks wrote when they started.
    fn starts(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file("starts")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Calls of the plugin with these words.
    fn count(&self, call: &str) -> usize {
        let journal = std::fs::read_to_string(self.file("journal")).unwrap_or_default();
        journal.lines().filter(|line| line.starts_with(call)).count()
    }

    /// Who holds the devices of the mock, by id: allocations.
    async fn holders(&self) -> Vec<Value> {
        let groups = self.agent.json(&["device", "list", "--json"]).await;
        let groups = groups.as_array().unwrap().iter();
        let mocks = groups.filter(|group| group["group"]["vendor"] == "mock");
        let instances = mocks.flat_map(|group| group["instances"].as_array().unwrap().clone());
        instances.map(|one| one["holder"]["alloc"].clone()).collect()
    }

    async fn until_holders(&self, expected: [Value; 2]) {
        until(&format!("held by {expected:?}"), async || self.holders().await == expected).await;
    }

    async fn until_running(&self, alloc: &str) {
        until("it runs", async || {
            let view = self.agent.json(&["alloc", "status", "--json", alloc]).await;
            view["ClientStatus"] == "running"
        })
        .await;
    }

    /// Nobody else is given any of them.
    async fn refuses_others(&self) {
        for count in [1, 2] {
            let refused = self.agent.submit(&self.wants("other", count)).await;
            refused.said(0, &["waits until there is room", "is held by task t of allocation"]);
            self.agent.ask(&["job", "stop", "--purge", "other"]).await.said(0, &[]);
        }
    }
}

async fn start(dir: &TempDir, home: Home) -> AgentProcess {
    let config = dir.path().join("ostler.hcl");
    AgentProcess::start_in(home, &["--config", config.to_str().unwrap()]).await
}

/// What the plugin does from the next call on.
fn script(dir: &TempDir, more: &str) {
    let text = format!(
        r#"{{ "journal": true, "check_after_ms": 1000, "groups": [{{ "count": 2 }}] {more} }}"#
    );
    std::fs::write(dir.path().join("new"), text).unwrap();
    std::fs::rename(dir.path().join("new"), dir.path().join("script.json")).unwrap();
}

#[tokio::test]
async fn a_task_that_runs_keeps_its_devices_over_killed_agents_and_they_are_released_once() {
    let mut world = World::new("").await;
    world.agent.submit(&world.wants("holds", 2)).await.said(0, &[]);
    let (alloc, process) = (world.agent.alloc("holds").await, pid_in(&world.file("holds")).await);
    for _kill in 0..2 {
        world = world.crash("").await;
        world.until_running(&alloc).await;
        world.until_holders([json!(alloc), json!(alloc)]).await;
        world.refuses_others().await;
        assert!(runs(process), "the same process");
        assert_eq!(world.starts(), ["holds 0,1"], "and it was started once");
    }
    assert_eq!(world.count("release"), 0);

    world.agent.ask(&["job", "stop", "holds"]).await.said(0, &[]);
    world.until_holders([Value::Null, Value::Null]).await;
    assert!(!runs(process));
    assert_eq!(world.count("release mock/device/mock 0,1"), 1);
    world.agent.submit(&world.wants("next", 2)).await.said(0, &[]);
    eventually("the next has them", || world.starts().len() == 2).await;
    assert_eq!(world.starts()[1], "next 0,1");
    assert_eq!(world.count("release"), 1, "exactly once");
}

#[tokio::test]
async fn an_agent_killed_while_a_plugin_is_asked_is_followed_by_one_that_asks_again() {
    let world = World::new(r#", "reserve": [{ "do": "sleep" }]"#).await;
    world.agent.submit(&world.wants("holds", 2)).await.said(0, &[]);
    eventually("the plugin is asked", || world.count("reserve") > 0).await;
    let alloc = world.agent.alloc("holds").await;
    assert_eq!(world.starts(), [""; 0], "nothing runs without its devices");

    let world = world.crash("").await;
    world.until_running(&alloc).await;
    let process = pid_in(&world.file("holds")).await;
    world.until_holders([json!(alloc), json!(alloc)]).await;
    world.refuses_others().await;
    assert_eq!(world.starts(), ["holds 0,1"]);
    assert_eq!((world.count("reserve"), world.count("release")), (2, 0));

    world.agent.ask(&["job", "stop", "holds"]).await.said(0, &[]);
    world.until_holders([Value::Null, Value::Null]).await;
    assert!(!runs(process));
    assert_eq!(world.count("release"), 1);
}

#[tokio::test]
async fn an_agent_killed_before_a_plugin_was_told_of_the_end_leaves_that_to_the_next() {
    let busy = r#", "release": [{ "do": "error", "message": "busy" }]"#;
    let world = World::new(busy).await;
    world.agent.submit(&world.wants("holds", 2)).await.said(0, &[]);
    let alloc = world.agent.alloc("holds").await;
    let _process = pid_in(&world.file("holds")).await;
    world.until_running(&alloc).await;
    world.agent.ask(&["job", "stop", "holds"]).await.said(0, &[]);
    eventually("the plugin is told", || world.count("release") > 0).await;
    until("the allocation is over", async || {
        let view = world.agent.json(&["alloc", "status", "--json", &alloc]).await;
        view["ClientStatus"] == "complete"
    })
    .await;
    world.refuses_others().await;

    let world = world.crash(busy).await;
    world.until_holders([json!(alloc), json!(alloc)]).await;
    world.refuses_others().await;
    script(&world.dir, "");
    world.until_holders([Value::Null, Value::Null]).await;
    let told = world.count("release");
    world.agent.submit(&world.wants("next", 2)).await.said(0, &[]);
    eventually("the next has them", || world.starts().len() == 2).await;
    assert_eq!(world.count("release"), told, "and then no more");
}
