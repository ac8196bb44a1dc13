//! `ostler agent` as a process of its own, and the commands against it.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr};

use super::binary::{Ended, ostler, unconfigured};
use super::system::{kill, processes_of};
use super::{DataDir, KEEPS, OSTLER, PATIENCE};

/// A data directory of agents. Native tasks live on without their agent: what is left ends with
/// this.
pub struct Home(DataDir);

impl Home {
    pub fn new() -> Self {
        Self(DataDir::new())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        processes_of(self.path()).into_iter().for_each(kill);
    }
}

/// An agent that is ready. It ends with this, and what is left in its directory.
pub struct AgentProcess {
    pub data: Home,
    child: Child,
    stderr: Lines<BufReader<ChildStderr>>,
    said: String,
}

impl AgentProcess {
    /// With a data directory of its own.
    pub async fn start() -> Self {
        Self::start_in(Home::new(), &[]).await
    }

    /// With these arguments beside the data directory.
    pub async fn start_in(data: Home, more: &[&str]) -> Self {
        let mut agent = Self::spawn(data, more, |_| {});
        agent.hears("ready: the agent").await;
        agent
    }

    /// Not ready yet.
    pub fn spawn(
        data: Home,
        more: &[&str],
        with: impl FnOnce(&mut tokio::process::Command),
    ) -> Self {
        Self::spawn_program(OSTLER, data, more, with)
    }

    /// The same of another build.
    pub fn spawn_program(
        program: &str,
        data: Home,
        more: &[&str],
        with: impl FnOnce(&mut tokio::process::Command),
    ) -> Self {
        let dir = data.path().to_str().unwrap();
        let mut command = unconfigured(program);
        command.args(["agent", "--data-dir", dir].iter().chain(more));
        if !more.contains(&"--config") {
            let config = data.path().join("keeps.hcl");
            std::fs::write(&config, KEEPS).unwrap();
            command.env("OSTLER_CONFIG", config);
        }
        with(&mut command);
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { data, child, stderr, said: String::new() }
    }

    /// Wait until it says a line with `text`, or ends; whether it said it.
    pub async fn hears_or_ends(&mut self, text: &str) -> bool {
        let lines = async {
            while let Ok(Some(line)) = self.stderr.next_line().await {
                self.said.push_str(&line);
                self.said.push('\n');
                if line.contains(text) {
                    return true;
                }
            }
            false
        };
        ostler_model::clock::timeout(PATIENCE, lines).await.expect("it says so or ends")
    }

    /// Wait until it says a line with `text`.
    pub async fn hears(&mut self, text: &str) -> String {
        let lines = async {
            while let Some(line) = self.stderr.next_line().await.unwrap() {
                self.said.push_str(&line);
                self.said.push('\n');
                if line.contains(text) {
                    return Some(line);
                }
            }
            None
        };
        let heard = ostler_model::clock::timeout(PATIENCE, lines).await;
        heard.flatten().unwrap_or_else(|| panic!("{text:?} was not said:\n{}", self.said))
    }

    /// What it has said since somebody listened.
    fn unread(&mut self) -> String {
        use std::io::Read as _;
        let stderr = self.stderr.get_ref();
        let mut bytes = stderr.buffer().to_vec();
        if let Ok(own) = std::os::fd::AsFd::as_fd(stderr.get_ref()).try_clone_to_owned() {
            // It was killed: there is an end, or nothing more for now.
            let _none_yet = std::fs::File::from(own).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Wait for its end: the exit code, what it said, and its directory.
    pub async fn ended(mut self) -> (Ended, Home) {
        let rest = async {
            while let Some(line) = self.stderr.next_line().await.unwrap() {
                self.said.push_str(&line);
                self.said.push('\n');
            }
            self.child.wait().await.unwrap()
        };
        let status = ostler_model::clock::timeout(PATIENCE, rest).await.expect("the agent ends");
        let said = std::mem::take(&mut self.said);
        let data = std::mem::replace(&mut self.data, Home::new());
        (Ended { code: status.code(), stdout: String::new(), stderr: said }, data)
    }

    /// Run a command against it.
    pub async fn ask(&self, args: &[&str]) -> Ended {
        ask(self.data.path(), args).await
    }

    /// The same for a command that must succeed and print JSON.
    pub async fn json(&self, args: &[&str]) -> Value {
        let ended = self.ask(args).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {ended:#?}");
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))
    }

    /// A job file in its directory.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.data.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Run a job until it runs; what nobody judges need not run on for a while.
    pub async fn run(&self, text: &str) -> Ended {
        let file = self.file("job.hcl", text);
        self.ask(&["job", "run", "--settle", "0s", file.to_str().unwrap()]).await
    }

    /// Hand in a job and follow it no further.
    pub async fn submit(&self, text: &str) -> Ended {
        let file = self.file("job.hcl", text);
        self.ask(&["job", "run", "--detach", file.to_str().unwrap()]).await
    }

    /// The allocations of a job, newest first not guaranteed.
    pub async fn allocs(&self, job: &str) -> Vec<Value> {
        let status = self.json(&["job", "status", "--json", job]).await;
        status["allocations"].as_array().unwrap().clone()
    }

    /// The id of the only allocation of a job that shall run.
    pub async fn alloc(&self, job: &str) -> String {
        let allocs = self.allocs(job).await;
        let mut live = allocs.iter().filter(|alloc| alloc["DesiredStatus"] == "run");
        let id = live.next().unwrap()["ID"].as_str().unwrap().to_owned();
        assert!(live.next().is_none(), "{allocs:#?}");
        id
    }
}

/// Run a command against the agent of a data directory.
pub async fn ask(data: &Path, args: &[&str]) -> Ended {
    ostler(args.iter().copied().chain(["--data-dir", data.to_str().unwrap()])).await
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // Before its tasks, which it would start again.
        let _ended_already = self.child.start_kill();
        if std::thread::panicking() {
            let unread = self.unread();
            eprintln!("the agent said:\n{}{unread}", self.said);
        }
    }
}
