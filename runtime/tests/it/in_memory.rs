//! `ostler agent` without a data directory: jobs in memory, which end with the agent.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::support::jobs::SOON_HEALTHY;
use crate::support::needs::{Need, not_asked, skipped};
use crate::support::system::{eventually, pid_in, runs};
use crate::support::{KEEPS, OSTLER, PATIENCE};

const SETPRIV: &str = "/usr/bin/setpriv";
const NOBODY: u32 = 65_534;

/// Somebody without privileges, whose default directory is below this one: root's is the machine's.
struct Somebody {
    home: tempfile::TempDir,
}

impl Somebody {
    /// Nobody where this cannot be tried.
    async fn new() -> Option<Self> {
        let this = Self { home: tempfile::tempdir().unwrap() };
        if rustix::process::geteuid().is_root() {
            if !Path::new(SETPRIV).exists() {
                skipped(
                    Need::Root,
                    "root's default directory is the machine's, and setpriv is missing",
                );
                return None;
            }
            std::os::unix::fs::chown(this.home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        if !this.command(&["--version"]).output().await.unwrap().status.success() {
            not_asked("nobody reaches this checkout");
            return None;
        }
        Some(this)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new(SETPRIV);
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", OSTLER]);
            command
        } else {
            Command::new(OSTLER)
        };
        command.args(args).env_clear().current_dir("/").env("PATH", "/usr/bin:/bin");
        command.env("HOME", self.home.path()).env("TMPDIR", self.home.path());
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn dir(&self) -> PathBuf {
        self.home.path().join(".local/state/ostler")
    }

    /// An agent that is ready.
    async fn agent(&self) -> Agent {
        self.agent_with(&[], "jobs are kept in memory and end with the agent").await
    }

    /// The same with these arguments, of which it says this.
    async fn agent_with(&self, more: &[&str], says: &str) -> Agent {
        let config = self.home.path().join("keeps.hcl");
        crate::support::system::write_for_all(&config, KEEPS);
        let args = [&["agent", "--config", config.to_str().unwrap()], more].concat();
        let mut child = self.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut agent = Agent { child, stderr };
        agent.hears(says).await;
        agent
    }

    /// The output of a command that succeeds.
    async fn ask(&self, args: &[&str]) -> String {
        let output = ostler_model::clock::timeout(PATIENCE, self.command(args).output()).await;
        let output = output.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &said
    }

    /// A native service that runs, whose task says at its end that it was asked to; its pid.
    async fn service(&self) -> u32 {
        let (pid, ended) = (self.home.path().join("pid"), self.home.path().join("ended"));
        let job = format!(
            r#"job "svc" {{
  group "g" {{
    {SOON_HEALTHY}
    task "t" {{
      driver = "raw_exec"
      config {{
        command = "/bin/sh"
        args = ["-c", "trap 'echo asked > {}; exit 0' TERM INT; echo $$ > {}; while :; do sleep 0.05; done"]
      }}
    }}
  }}
}}
"#,
            ended.display(),
            pid.display()
        );
        let file = self.home.path().join("svc.hcl");
        crate::support::system::write_for_all(&file, &job);
        self.ask(&["job", "run", file.to_str().unwrap()]).await;
        pid_in(&pid).await
    }
}

struct Agent {
    child: Child,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Agent {
    async fn hears(&mut self, text: &str) {
        let heard = async {
            let mut said = String::new();
            while let Some(line) = self.stderr.next_line().await.unwrap() {
                if line.contains(text) {
                    return;
                }
                said.push_str(&line);
                said.push('\n');
            }
            panic!("{text:?} was not said:\n{said}");
        };
        ostler_model::clock::timeout(PATIENCE, heard).await.expect("it says so or ends");
    }

    async fn ends(mut self, signal: Signal) -> Option<i32> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).unwrap();
        kill_process(pid, signal).unwrap();
        let ended = ostler_model::clock::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("it ends").unwrap().code()
    }
}

#[tokio::test]
async fn jobs_run_and_end_in_order_with_the_agent_and_nothing_is_left() {
    let Some(somebody) = Somebody::new().await else { return };
    let agent = somebody.agent().await;
    let pid = somebody.service().await;
    assert!(somebody.ask(&["job", "status"]).await.contains("svc"));
    assert!(somebody.dir().join("in-memory/allocs").exists());
    assert!(!somebody.dir().join("in-memory/state.redb").exists(), "state is in memory");
    assert_eq!(agent.ends(Signal::TERM).await, Some(0));
    assert!(!runs(pid), "its task ended with it");
    assert!(somebody.home.path().join("ended").exists(), "the task was asked to end");
    assert!(!somebody.dir().join("in-memory").exists(), "nothing is left");
    assert!(!somebody.dir().join("state.redb").exists());
}

#[tokio::test]
async fn a_killed_agent_takes_its_tasks_along_and_the_next_one_begins_with_nothing() {
    let Some(somebody) = Somebody::new().await else { return };
    let agent = somebody.agent().await;
    let pid = somebody.service().await;
    assert_eq!(agent.ends(Signal::KILL).await, None);
    eventually("its task is gone", || !runs(pid)).await;
    let agent = somebody.agent().await;
    assert!(!somebody.ask(&["job", "status"]).await.contains("svc"));
    let allocs = somebody.dir().join("in-memory/allocs");
    assert!(!allocs.exists() || std::fs::read_dir(allocs).unwrap().next().is_none());
    assert_eq!(agent.ends(Signal::TERM).await, Some(0));
}

#[tokio::test]
async fn a_second_agent_without_a_directory_is_told_of_the_first() {
    let Some(somebody) = Somebody::new().await else { return };
    let agent = somebody.agent().await;
    let second = somebody.command(&["agent"]).output().await.unwrap();
    assert_eq!(second.status.code(), Some(3));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("is in use by another agent"), "{said}");
    // One for development has no data directory to choose: it is told what there is to choose.
    let config = somebody.home.path().join("keeps.hcl");
    let dev = ["agent", "--dev", "--config", config.to_str().unwrap()];
    let second = somebody.command(&dev).output().await.unwrap();
    assert_eq!(second.status.code(), Some(3));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    let pid = agent.child.id().unwrap();
    assert!(said.contains(&format!("is in use by another agent (pid {pid})")), "{said}");
    assert!(said.contains("--socket-dir DIR") && !said.contains("use another data"), "{said}");
    assert!(somebody.ask(&["node", "status"]).await.contains("raw_exec"), "the first one answers");

    let place = somebody.home.path().join("beside");
    let place = place.to_str().unwrap();
    let beside = somebody
        .agent_with(&["--dev", "--socket-dir", place], "nothing is kept when it ends")
        .await;
    somebody.ask(&["node", "status", "--data-dir", place]).await;
    assert_eq!(beside.ends(Signal::TERM).await, Some(0));
    assert!(
        somebody.ask(&["node", "status"]).await.contains("raw_exec"),
        "the first one still does"
    );
    assert_eq!(agent.ends(Signal::TERM).await, Some(0));
}
