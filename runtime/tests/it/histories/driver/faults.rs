//! Kills, and trouble of the machine.

use std::time::Duration;

use ostler_model::clock;
use rustix::process::Signal;
use tokio::process::Child;

use super::super::actions::Action;
use super::super::model::Life;
use super::super::oracle::{Mark, Run};
use super::agents::Start;
use super::{Trouble, World, signal};

impl World {
    pub(super) async fn kill_agent(
        &mut self,
        during: Option<Box<Action>>,
        after: Duration,
    ) -> Result<(), Trouble> {
        self.up().await?;
        let pid = self.agent.as_ref().and_then(Child::id).unwrap_or_default();
        let killer = tokio::spawn(async move {
            clock::sleep(after).await;
            signal(pid, Signal::KILL);
        });
        if let Some(during) = during {
            self.request(*during).await;
        }
        let _done = killer.await;
        self.kill().await;
        self.up().await
    }

    pub(super) async fn kill_start(&mut self, after: Vec<Duration>) -> Result<(), Trouble> {
        self.kill().await;
        for after in after {
            self.spawn(None);
            clock::sleep(after).await;
            self.kill().await;
        }
        self.up().await
    }

    pub(super) async fn kill_supervisor(
        &mut self,
        job: usize,
        index: u32,
        agent_down: bool,
    ) -> Result<(), Trouble> {
        if agent_down {
            self.kill().await;
        }
        if let Some(run) = self.process(job, index)
            && let Some(supervisor) = parent(run.pid)
            && Some(supervisor) != self.agent.as_ref().and_then(Child::id)
            && supervisor > 1
        {
            self.done(Mark::Kill { alloc: run.alloc });
            signal(supervisor, Signal::KILL);
        }
        self.up().await
    }

    pub(super) async fn few_files(
        &mut self,
        limit: u32,
        meanwhile: Option<Box<Action>>,
    ) -> Result<(), Trouble> {
        self.up().await?;
        self.settle().await?;
        let before = self.alive(&self.evidence()?);
        self.kill().await;
        self.fault_begins();
        self.spawn(Some(limit));
        if self.ready().await? == Start::Ready
            && let Some(meanwhile) = meanwhile
        {
            self.request(*meanwhile).await;
            self.wait_a_little().await;
        }
        self.kill().await;
        self.faulty = false;
        self.done(Mark::Fault);
        self.up().await?;
        self.unharmed(&before)
    }

    pub(super) async fn full_disk(&mut self, meanwhile: Action, kill: bool) -> Result<(), Trouble> {
        self.up().await?;
        self.settle().await?;
        let before = self.alive(&self.evidence()?);
        self.fault_begins();
        self.site.fill();
        self.request(meanwhile).await;
        if kill {
            self.kill().await;
            self.spawn(None);
            if self.ready().await? == Start::Ready {
                self.wait_a_little().await;
            }
        }
        self.site.free();
        self.faulty = false;
        self.done(Mark::Fault);
        // An agent whose disk was full may have given up.
        if let Some(agent) = &mut self.agent
            && agent.try_wait().unwrap().is_some()
        {
            self.agent = None;
        }
        self.up().await?;
        self.unharmed(&before)
    }

    /// A WASM task ends with its agent; started again during a fault it may use up its attempts.
    pub(super) fn fault_begins(&mut self) {
        self.done(Mark::Fault);
        self.faulty = true;
        for job in self.jobs.iter_mut().filter(|job| job.shape.wasm) {
            let count = job.wanted().map_or(0, |spec| spec.count);
            job.excused.extend(0..count);
        }
    }

    /// What ran before a fault and was not touched by a request runs.
    pub(super) fn unharmed(&self, before: &[Run]) -> Result<(), Trouble> {
        let evidence = self.evidence()?;
        let alive = self.alive(&evidence);
        let harmed = before.iter().filter(|run| !alive.contains(run)).filter(|run| {
            // A request since may be why.
            let known = self.jobs.iter().find(|job| job.shape.id == run.job);
            known.is_some_and(|job| {
                let since = self.marks.iter().rev().skip_while(|mark| **mark == Mark::Fault);
                let since: Vec<&Mark> = since.take_while(|mark| **mark != Mark::Fault).collect();
                let touched = since.iter().any(|mark| match mark {
                    Mark::Register { job, .. }
                    | Mark::Stop { job, .. }
                    | Mark::StopAlloc { job, .. } => *job == run.job,
                    Mark::RestartAlloc { alloc } | Mark::Kill { alloc } => *alloc == run.alloc,
                    _ => false,
                });
                // One told to stop before, and not on record, may still be on its way out.
                !touched
                    && !evidence.restarted(run)
                    && !evidence.doubtful(&run.job)
                    && matches!(job.shape.life, Life::Runs { .. })
            })
        });
        let harmed: Vec<&Run> = harmed.collect();
        if harmed.is_empty() {
            Ok(())
        } else {
            Err(format!("a fault of the machine ended healthy tasks: {harmed:#?}"))
        }
    }

    /// Time for the agent to meet the fault. How much is no condition of anything.
    pub(super) async fn wait_a_little(&self) {
        clock::sleep(Duration::from_millis(700)).await;
    }
}

pub(super) fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}
