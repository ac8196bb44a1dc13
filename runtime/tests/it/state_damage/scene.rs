//! Live tasks, an agent that was killed, and copies of its state file from before several events.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::histories::model::{Life, Shape, Spec};
use crate::histories::oracle::{Evidence, Line, Run};
use crate::histories::place::Site;
use crate::support::agent_process::ask;
use crate::support::binary::{Ended, command};
use crate::support::system::{eventually, runs, until};

use super::kinds::journal;

/// Copies of the state file.
pub struct Copies {
    pub empty: PathBuf,
    pub before_late: PathBuf,
    pub while_batch: PathBuf,
    pub before_update: PathBuf,
    pub before_restart: PathBuf,
    pub other_node: PathBuf,
    pub newest: PathBuf,
}

/// See the module.
pub struct Scene {
    pub site: Site,
    pub copies: Copies,
    agents: u32,
    agent: Option<tokio::process::Child>,
    /// What lives when the agent was killed.
    pub live: Vec<Run>,
}

/// A state file and its journal.
pub fn copy_both(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
    std::fs::copy(journal(from), journal(to)).unwrap();
}

/// How an agent that was started did.
#[derive(Debug, PartialEq, Eq)]
pub enum Start {
    Ready,
    GaveUp,
}

fn shape(id: &str, life: Life) -> Shape {
    let batch = !matches!(life, Life::Runs { .. });
    Shape { id: id.to_owned(), batch, wasm: false, sticky: false, attempts: 0, life }
}

fn keeps() -> Shape {
    shape("keeps", Life::Runs { stop: Duration::ZERO })
}

impl Scene {
    pub async fn new() -> Self {
        let site = Site::new(false);
        std::fs::write(site.beside().join("agent.hcl"), crate::support::KEEPS).unwrap();
        let copy = |name: &str| site.beside().join(name);
        let copies = Copies {
            empty: copy("empty.redb"),
            before_late: copy("before_late.redb"),
            while_batch: copy("while_batch.redb"),
            before_update: copy("before_update.redb"),
            before_restart: copy("before_restart.redb"),
            other_node: copy("other_node.redb"),
            newest: copy("newest.redb"),
        };
        let mut scene = Self { site, copies, agents: 0, agent: None, live: Vec::new() };
        scene.build().await;
        scene
    }

    async fn build(&mut self) {
        self.foreign().await;
        assert_eq!(self.start().await, Start::Ready, "{}", self.said());
        self.copy(&self.copies.empty);
        self.register(&keeps(), 2, 1).await;
        self.alive_at("keeps", 1, 2).await;
        self.copy(&self.copies.before_late);
        self.register(&shape("ends", Life::Ends { after: Duration::from_millis(300) }), 1, 1).await;
        eventually("the batch task starts", || self.started("ends", 1) == 1).await;
        self.copy(&self.copies.while_batch);
        self.register(&shape("late", Life::Runs { stop: Duration::ZERO }), 2, 1).await;
        self.alive_at("late", 1, 2).await;
        until("the batch task is over", async || self.statuses("ends").await == ["complete"]).await;
        self.copy(&self.copies.before_update);
        self.register(&keeps(), 2, 2).await;
        self.alive_at("keeps", 2, 2).await;
        self.copy(&self.copies.before_restart);
        let late = self.living("late", 1).remove(0);
        let restarted = self.ask(&["alloc", "restart", &late.alloc]).await;
        assert_eq!(restarted.code, Some(0), "{restarted:#?}");
        eventually("it is another process", || {
            !runs(late.pid) && self.living("late", 1).len() == 2
        })
        .await;
        until("all is quiet", async || {
            let mut all = self.statuses("keeps").await;
            all.extend(self.statuses("late").await);
            all.iter().filter(|status| *status == "running").count() == 4
        })
        .await;
        self.kill().await;
        self.copy(&self.copies.newest);
        self.live = self.living("keeps", 2);
        self.live.extend(self.living("late", 1));
        assert_eq!(self.live.len(), 4, "{:#?}", self.live);
    }

    /// The state file of another agent.
    async fn foreign(&mut self) {
        let other = Site::new(false);
        let config = other.beside().join("agent.hcl");
        std::fs::write(&config, crate::support::KEEPS).unwrap();
        let job = other.beside().join("job.hcl");
        let spec = Spec { count: 1, generation: 1, number: 1 };
        let text =
            shape("foreign", Life::Ends { after: Duration::ZERO }).text(spec, other.beside());
        std::fs::write(&job, text).unwrap();
        let data = other.data().to_str().unwrap();
        let ran = command(["run", "--raw-exec", "--data-dir", data, job.to_str().unwrap()])
            .env("OSTLER_CONFIG", config)
            .output()
            .await
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        copy_both(&other.data().join("state.redb"), &self.copies.other_node);
    }

    pub fn file(&self) -> PathBuf {
        self.site.data().join("state.redb")
    }

    fn copy(&self, to: &Path) {
        copy_both(&self.file(), to);
    }

    fn log(&self) -> PathBuf {
        self.site.beside().join(format!("agent.{}.log", self.agents))
    }

    /// What the agent said on standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Start an agent and wait until it is ready or ends.
    pub async fn start(&mut self) -> Start {
        self.agents += 1;
        let log = std::fs::File::create(self.log()).unwrap();
        let data = self.site.data().to_str().unwrap();
        let mut agent = command(["agent", "--data-dir", data]);
        agent.env("OSTLER_CONFIG", self.site.beside().join("agent.hcl")).stderr(log);
        agent.stdout(std::process::Stdio::null());
        let mut agent = agent.spawn().unwrap();
        let mut gave_up = false;
        eventually("the agent is ready or ends", || {
            gave_up = agent.try_wait().unwrap().is_some();
            gave_up || self.said().contains("ready: the agent")
        })
        .await;
        assert!(!self.said().contains("panicked"), "{}", self.said());
        if gave_up {
            return Start::GaveUp;
        }
        self.agent = Some(agent);
        Start::Ready
    }

    pub async fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ended_already = agent.start_kill();
            agent.wait().await.unwrap();
        }
    }

    pub async fn ask(&self, args: &[&str]) -> Ended {
        ask(self.site.data(), args).await
    }

    pub async fn register(&self, shape: &Shape, count: u32, generation: u32) {
        let spec = Spec { count, generation, number: u64::from(generation) };
        let file = self.site.beside().join(format!("{}.{generation}.hcl", shape.id));
        std::fs::write(&file, shape.text(spec, self.site.beside())).unwrap();
        let ran = self.ask(&["job", "run", "--detach", file.to_str().unwrap()]).await;
        assert_eq!(ran.code, Some(0), "{ran:#?}");
    }

    async fn statuses(&self, job: &str) -> Vec<String> {
        let ended = self.ask(&["job", "status", "--json", job]).await;
        let json: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        let allocs = json["allocations"].as_array().cloned().unwrap_or_default();
        allocs.iter().filter_map(|alloc| Some(alloc["ClientStatus"].as_str()?.to_owned())).collect()
    }

    pub fn evidence(&self) -> Evidence {
        let text = std::fs::read_to_string(self.site.evidence()).unwrap();
        Evidence::read(&text[..text.rfind('\n').unwrap_or(0)], &[]).unwrap()
    }

    fn started(&self, job: &str, generation: u32) -> usize {
        let runs = self.evidence().runs();
        runs.iter().filter(|run| run.job == job && run.generation == generation).count()
    }

    /// Runs whose process lives.
    pub fn alive(&self) -> Vec<Run> {
        let mut all = self.evidence().runs();
        all.retain(|run| {
            let environ = std::fs::read(format!("/proc/{}/environ", run.pid)).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(&run.alloc) && runs(run.pid)
        });
        all
    }

    fn living(&self, job: &str, generation: u32) -> Vec<Run> {
        let mut all = self.alive();
        all.retain(|run| run.job == job && run.generation == generation);
        all
    }

    async fn alive_at(&self, job: &str, generation: u32, count: usize) {
        eventually(&format!("{count} of {job} live"), || {
            self.alive().iter().filter(|run| run.job == job).count() == count
                && self.living(job, generation).len() == count
        })
        .await;
    }

    /// What may not be, as sentences: second copies, deleted directories, swept records, ended tasks.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for line in self.evidence().lines {
            if let Line::Double(run) = line {
                wrong.push(format!("a second copy: {run:?}"));
            }
        }
        let exits =
            std::fs::read_dir(self.site.data().join("exits")).into_iter().flatten().flatten();
        let exits: Vec<String> =
            exits.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let alive = self.alive();
        for run in &self.live {
            if !alive.contains(run) {
                wrong.push(format!("a healthy task was ended: {run:?}"));
            }
            let dir = self.site.data().join("allocs").join(&run.alloc);
            if !dir.join("t").is_dir() {
                wrong.push(format!("the directory of a live task is gone: {run:?}"));
            }
            if !exits.iter().any(|name| name.contains(&format!(".{}-", run.pid))) {
                wrong.push(format!("the exit record of a live task is gone: {run:?} of {exits:?}"));
            }
        }
        let places: BTreeSet<(&str, u32)> =
            alive.iter().map(|run| (run.job.as_str(), run.index)).collect();
        if places.len() != alive.len() {
            wrong.push(format!("two live in one place: {alive:#?}"));
        }
        wrong
    }

    /// The agent owns all that lives and nothing else is to be said: the next kind of damage can be
    /// done to the same tasks.
    pub async fn begin_again(&mut self) -> bool {
        let mut shown = self.running().await;
        let mut live: Vec<String> = self.live.iter().map(|run| run.alloc.clone()).collect();
        shown.sort_unstable();
        live.sort_unstable();
        if shown != live {
            return false;
        }
        self.kill().await;
        let file = self.file();
        if file.is_symlink() {
            let bytes = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            std::fs::write(&file, bytes).unwrap();
        }
        self.copy(&self.copies.newest);
        true
    }

    /// Allocations that the agent says run.
    async fn running(&self) -> Vec<String> {
        let ended = self.ask(&["alloc", "status", "--json"]).await;
        let json: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        let running = json.as_array().into_iter().flatten();
        let running = running.filter(|alloc| alloc["ClientStatus"] == "running");
        running.filter_map(|alloc| Some(alloc["ID"].as_str()?.to_owned())).collect()
    }

    /// The records of a state file, but for counts; none where they cannot be read.
    pub async fn records(&self, file: &Path) -> Option<Vec<Value>> {
        let args = ["state".as_ref(), "dump".as_ref(), "--json".as_ref(), "--file".as_ref()];
        let ended =
            crate::support::binary::ostler(args.into_iter().chain([file.as_os_str()])).await;
        let json: Value = serde_json::from_str(&ended.stdout).ok()?;
        let mut records = json["records"].as_array()?.clone();
        records.retain(|record| record["kind"] != "counters");
        Some(records)
    }

    /// Told to end, the agent ends.
    pub async fn leave(&mut self) {
        let Some(mut agent) = self.agent.take() else { return };
        let pid = i32::try_from(agent.id().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = ostler_model::clock::timeout(Duration::from_secs(60), agent.wait()).await;
        assert_eq!(ended.expect("it ends").unwrap().code(), Some(0));
    }
}
