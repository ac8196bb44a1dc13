//! Helpers that hang, files beside the state that are lost, and a clock that is set.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use super::super::actions::{Action, Beside, Helper};
use super::super::oracle::Mark;
use super::faults::parent;
use super::{Trouble, World, signal};
use tokio::process::Child;

/// Set forward by more, the clock would give tasks fresh attempts, which are by the hour.
const FORWARD_MAX: i64 = 3_000;

impl World {
    pub(super) fn step_clock(&mut self, seconds: i64) {
        let forward = self.clock.1 + seconds.max(0);
        if forward > FORWARD_MAX {
            return;
        }
        self.clock = (self.clock.0 + seconds, forward);
        let (file, new) = (self.site.beside().join("clock"), self.site.beside().join("clock.new"));
        std::fs::write(&new, self.clock.0.to_string()).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// It is stopped as a process is that waits for itself for ever.
    pub(super) async fn hang(
        &mut self,
        helper: Helper,
        meanwhile: Option<Box<Action>>,
    ) -> Result<(), Trouble> {
        self.up().await?;
        for pid in self.helpers(helper) {
            signal(pid, Signal::STOP);
        }
        if let Some(meanwhile) = meanwhile {
            self.request(*meanwhile).await;
        }
        Ok(())
    }

    /// Processes that are this helper now.
    fn helpers(&mut self, helper: Helper) -> Vec<u32> {
        let Helper::Supervisor { job, index } = helper else {
            let agent = self.agent.as_ref().and_then(Child::id);
            // Supervisors are forks of the zygote, and children of nobody.
            let is = |pid: &u32| match helper {
                Helper::Worker => runs_as(*pid, "__worker"),
                _ => runs_as(*pid, "__supervise") && parent(*pid) == agent,
            };
            return self.site.processes().into_iter().filter(is).collect();
        };
        let Some(run) = self.process(job, index) else { return Vec::new() };
        let supervisor = parent(run.pid).filter(|pid| *pid > 1);
        let supervisor =
            supervisor.filter(|pid| Some(*pid) != self.agent.as_ref().and_then(Child::id));
        if supervisor.is_some() {
            // It may be ended with its task.
            self.done(Mark::Kill { alloc: run.alloc });
        }
        supervisor.into_iter().collect()
    }

    pub(super) async fn lose(&mut self, file: Beside) -> Result<(), Trouble> {
        self.up().await?;
        self.kill().await;
        let data = self.site.data();
        let lost = match file {
            Beside::Worker => below(&data.join("workers"), "worker.json"),
            Beside::Notes => notes(&data.join("exits")),
            Beside::Commits => vec![data.join("state.redb.commits")],
            Beside::NodeId => vec![data.join("node-id")],
            Beside::CodeKey => vec![data.join("code.key")],
            Beside::Socket => vec![self.socket()],
        };
        for path in lost {
            let removed = std::fs::remove_file(&path);
            self.tell(&format!("      {}: {removed:?}", path.display()));
        }
        self.up().await?;
        match file {
            Beside::Notes => self.end_what_is_held_back().await,
            _ => Ok(()),
        }
    }

    /// A run whose start was not on record yet, and whose note is lost, is held back until somebody ends it.
    async fn end_what_is_held_back(&mut self) -> Result<(), Trouble> {
        let listed = self.ask(&["state", "runs", "--json"]).await;
        let listed: Value = serde_json::from_str(&listed.stdout)
            .map_err(|error| format!("no list of runs: {error}: {}", listed.stderr))?;
        for run in listed["runs"].as_array().into_iter().flatten() {
            let (Some(name), Some(alloc)) = (run["name"].as_str(), run["alloc"].as_str()) else {
                return Err(format!("held back, and nothing says of what: {run}"));
            };
            self.tell(&format!("      held back: {name} of {alloc}"));
            let mark = Mark::EndRun { alloc: alloc.to_owned() };
            if !self.marked(mark, &["state", "end-run", name]).await {
                return Err(format!("{name} of {alloc} is held back and could not be ended"));
            }
        }
        Ok(())
    }
}

/// The file of this name in each directory below this one.
fn below(dir: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join(name)).collect()
}

/// Notes of runs, beside the records of exits.
fn notes(exits: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(exits).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.to_string_lossy().ends_with(".run")).collect()
}

fn runs_as(pid: u32, word: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
}
