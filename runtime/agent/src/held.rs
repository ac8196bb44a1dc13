//! Runs that are alive and that the state file does not know as they are: recognised before anything
//! is removed or started.
//!
//! ```text
//! start: live::find ─► decide (pure) ─┬─ owned: on record                          ─► restore
//!                                     ├─ adopt: entered as the run of its task     ─► restore
//!                                     └─ held back:
//!          its directory and its exit record stay, its allocation gets no owner, its place
//!          in its job is not filled ─ it ends, by itself or by `ostler state end-run` ─► lifted:
//!          the allocation gets its owner, the place is filled
//! ```
//! A state file is behind when an older copy was put back, when its newest commit cannot be read, or
//! when it is gone. Nothing here is ended by the agent itself: what runs may be what is wanted, and
//! only a person can tell.

pub mod decide;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use self::decide::{RunDecision, Why};
use super::AgentHandle;
use ostler_control::admission::Problem;
use ostler_control::held::{Held, HeldPlace};
use ostler_control::recorded::Recorded;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{HELD_RUN_POLL, KILL_GRACE};
use ostler_model::time::Timestamp;
use ostler_process::live::{self, LiveRun};
use ostler_state::Age;

/// A run that is held back, as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRun {
    /// Its supervisor's process, by which it is named in commands.
    pub supervisor: u32,
    /// Its own process, where it is known.
    pub pid: Option<u32>,
    /// Its id, where it is known.
    pub run: Option<String>,
    /// Its allocation, where something says which.
    pub alloc: Option<String>,
    /// Likewise its job.
    pub job: Option<String>,
    /// Likewise its group.
    pub group: Option<String>,
    /// Likewise its index in the group.
    pub index: Option<u32>,
    /// Likewise its task.
    pub task: Option<String>,
    /// Why no agent owns it.
    pub reason: String,
    /// The command that ends it.
    pub end_with: String,
}

impl HeldRun {
    /// Of a run that was found.
    #[must_use]
    pub fn of(run: &LiveRun, reason: String, data_dir: &Path) -> Self {
        let (supervisor, place) = (run.supervisor.pid, run.place.as_ref());
        Self {
            supervisor,
            pid: Some(run.identity.pid).filter(|pid| *pid != supervisor),
            run: run.run.clone(),
            alloc: place.map(|place| place.alloc.to_string()),
            job: place.map(|place| place.job.to_string()),
            group: place.map(|place| place.group.to_string()),
            index: place.map(|place| place.index),
            task: place.map(|place| place.task.to_string()),
            reason,
            end_with: format!(
                "ostler state end-run {supervisor} --data-dir {}",
                data_dir.display()
            ),
        }
    }
}

impl std::fmt::Display for HeldRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "supervisor {}", self.supervisor)?;
        if let Some(pid) = self.pid {
            write!(f, ", process {pid}")?;
        }
        if let (Some(job), Some(group), Some(index)) = (&self.job, &self.group, self.index) {
            write!(f, ", of {job}.{group}[{index}]")?;
        }
        if let (Some(task), Some(alloc)) = (&self.task, &self.alloc) {
            write!(f, ", task {task} of allocation {alloc}")?;
        }
        Ok(())
    }
}

/// What is held back, and how the state file compares with what its directory knew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// Of the file as it was opened.
    pub state: Age,
    /// Sorted by supervisor.
    pub runs: Vec<HeldRun>,
}

impl HeldReport {
    /// What the state file lacks, as a sentence.
    #[must_use]
    pub fn lacks(&self) -> Option<String> {
        match self.state {
            Age::Newest => None,
            Age::Older { commits } => Some(format!(
                "the state file was older than what was acknowledged when the agent started: it \
                 lacks {commits} change(s)"
            )),
            Age::Gone { commits } => Some(format!(
                "the state file was gone when the agent started, and with it {commits} change(s)"
            )),
        }
    }
}

/// Why a run could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum EndRunError {
    /// There is none by this number.
    #[error(
        "no run that is held back has the supervisor {supervisor}; `ostler state runs` lists them"
    )]
    Unknown {
        /// What was asked for.
        supervisor: u32,
    },
    /// It was asked to end, and did not.
    #[error("the run of supervisor {supervisor} did not end; look at its processes")]
    Refused {
        /// Which.
        supervisor: u32,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Runs found alive at the start of an agent.
#[derive(Debug, Default)]
pub(super) struct LiveRuns {
    /// Those that nobody owns.
    held: Vec<(LiveRun, Why)>,
    /// All of them.
    processes: Vec<(u32, u64)>,
    /// How many were adopted by their notes.
    adopted: usize,
    /// Allocations of runs that are owned again.
    owned: BTreeSet<AllocId>,
}

impl LiveRuns {
    /// Look for them, and enter in `found` those that can be owned. Blocks.
    pub(super) fn find(
        data_dir: &Path,
        found: &mut Recorded,
        lacks: bool,
        now: Timestamp,
    ) -> Result<Self, String> {
        let exits = data_dir.join("exits");
        let failed = |error| ostler_model::causes::chain(&error);
        let noted = live::noted(&exits).map_err(failed)?;
        found.complete_runs(|run| noted.get(run.as_str()).cloned());
        let runs = live::find(&exits).map_err(failed)?;
        let mut this = Self::default();
        let known = found.known(lacks);
        let verdicts = decide::decide(&runs, &known);
        this.owned = decide::owned(&runs, &known);
        for (run, verdict) in runs.into_iter().zip(verdicts) {
            this.processes.push((run.identity.pid, run.identity.start_ticks));
            match verdict {
                RunDecision::Owned => {}
                RunDecision::Adopt(record) => {
                    if let Some(place) = &run.place {
                        found.adopt_run(place.alloc, &place.task, record, now);
                        this.owned.insert(place.alloc);
                        this.adopted = this.adopted.saturating_add(1);
                    }
                }
                RunDecision::Hold(why) => this.held.push((run, why)),
            }
        }
        Ok(this)
    }

    /// What the operator should hear.
    pub(super) fn notices(&self, data_dir: &Path) -> Vec<String> {
        let mut said = Vec::new();
        if self.adopted > 0 {
            said.push(format!(
                "{} run(s) that the state file did not know are alive and owned again",
                self.adopted
            ));
        }
        for (run, why) in &self.held {
            let held = HeldRun::of(run, why.to_string(), data_dir);
            said.push(format!(
                "a run is alive and held back ({held}): {why}; nothing is started in its place \
                 until it ends: end it with `{}`",
                held.end_with
            ));
        }
        said
    }

    /// Allocations whose directories are in use.
    pub(super) fn allocs(&self) -> BTreeSet<AllocId> {
        self.held.iter().filter_map(|(run, _)| Some(run.place.as_ref()?.alloc)).collect()
    }

    /// A run is alive of which nothing says where it belongs: any directory may be its.
    pub(super) fn nameless(&self) -> bool {
        self.held.iter().any(|(run, _)| run.place.is_none())
    }

    /// Pids and start times of all processes found.
    pub(super) fn processes(&self) -> &[(u32, u64)] {
        &self.processes
    }
}

/// What an agent holds back.
pub(super) struct Holds {
    state: Age,
    runs: Vec<(LiveRun, Why)>,
}

impl Holds {
    pub(super) fn new(state: Age, live: LiveRuns) -> Self {
        Self { state, runs: live.held }
    }
}

impl LiveRuns {
    /// What keeps places from being filled.
    pub(super) fn holds(&self, data_dir: &Path) -> ostler_control::held::Holds {
        let held = self.held.iter().map(|(run, why)| {
            let shown = HeldRun::of(run, why.to_string(), data_dir);
            Held {
                supervisor: run.supervisor.pid,
                place: run.place.clone().map(|at| HeldPlace {
                    alloc: at.alloc,
                    job: at.job,
                    group: at.group,
                    index: at.index,
                }),
                problem: Problem::HeldBack {
                    run: shown.to_string(),
                    reason: shown.reason,
                    end_with: shown.end_with,
                },
            }
        });
        ostler_control::held::Holds::new(held.collect(), self.owned.clone())
    }
}

impl AgentHandle {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs that are alive and that this agent does not own, and how its state file compared with
    /// what its directory knew.
    #[must_use]
    pub fn held(&self) -> HeldReport {
        let live: BTreeSet<u32> =
            self.0.control.look(|tables| tables.holds().supervisors().collect());
        let holds = self.holds();
        let held = holds.runs.iter().filter(|(run, _)| live.contains(&run.supervisor.pid));
        let mut runs: Vec<_> = held.map(|(run, why)| self.shown(run, *why)).collect();
        runs.sort_by_key(|held| held.supervisor);
        HeldReport { state: holds.state, runs }
    }

    /// End a run that is held back, and wait until its place is free.
    ///
    /// # Errors
    /// When there is none with this supervisor, or it does not end.
    pub async fn end_run(&self, supervisor: u32) -> Result<HeldRun, EndRunError> {
        let found = {
            let holds = self.holds();
            holds.runs.iter().find(|(run, _)| run.supervisor.pid == supervisor).cloned()
        };
        let (run, why) = found.ok_or(EndRunError::Unknown { supervisor })?;
        run.end(KILL_GRACE).await.map_err(|source| EndRunError::Refused { supervisor, source })?;
        self.lift(&run).await;
        Ok(self.shown(&run, why))
    }

    fn shown(&self, run: &LiveRun, why: Why) -> HeldRun {
        HeldRun::of(run, why.to_string(), &self.0.data_dir)
    }

    /// Wait for the ends of all runs that are held back.
    pub(super) fn watch_held(&self) {
        let runs: Vec<LiveRun> = self.holds().runs.iter().map(|(run, _)| run.clone()).collect();
        for run in runs {
            let (weak, ended) = (Arc::downgrade(&self.0), self.0.ended.clone());
            self.beside(async move {
                while !run.ended() {
                    tokio::select! {
                        () = ended.cancelled() => return,
                        () = clock::sleep(HELD_RUN_POLL) => {}
                    }
                }
                if let Some(agent) = weak.upgrade().map(AgentHandle) {
                    agent.lift(&run).await;
                }
            });
        }
    }

    /// A run that was held back has ended. Idempotent.
    async fn lift(&self, run: &LiveRun) {
        {
            let mut holds = self.holds();
            let before = holds.runs.len();
            holds.runs.retain(|(held, _)| held.supervisor != run.supervisor);
            if holds.runs.len() == before {
                return;
            }
        }
        let (pid, ticks) = (run.identity.pid, run.identity.start_ticks);
        self.0.services.processes.forget_process(pid, ticks);
        tracing::info!(supervisor = run.supervisor.pid, pid, "a run that was held back has ended");
        self.0.control.run_ended(run.supervisor.pid).await;
    }
}
