//! Runs that are alive but that the state file does not know as they are. They are recognised
//! before anything is removed or started.
//!
//! ```text
//! start: supervisors (live::find), ─► decide (pure) ─┬─ owned: on record                      ─► restore
//!        tasks of workers                            ├─ adopt: entered as the run of its task ─► restore
//!                                                    └─ held back:
//!          its directory and its exit record stay, its allocation gets no owner, its place
//!          in its job is not filled ─ it ends, by itself or by `ostler state end-run` ─► lifted:
//!          the allocation gets its owner, the place is filled
//! ```
//! A state file is behind when an older copy was put back, when its newest commit cannot be read,
//! or when it is gone. The agent itself ends none of these runs: a run may be wanted, and only a
//! person can tell.

pub mod alive;
pub mod decide;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use self::alive::{AliveRun, WasmRun};
use self::decide::{HoldReason, RunDecision};
use super::AgentHandle;
use ostler_control::admission::Problem;
use ostler_control::node_records::{KnownAlloc, NodeRecords};
use ostler_control::unowned_runs::{HeldPlace, UnownedRun};
use ostler_lifecycle::task::handle::RunRecord;
use ostler_model::clock;
use ostler_model::ids::{AllocId, JobId, RunId};
use ostler_model::limits::{HELD_RUN_POLL, KILL_GRACE};
use ostler_model::ports::RunNote;
use ostler_model::time::Timestamp;
use ostler_model::words::shell_word;
use ostler_process::identity;
use ostler_process::live::{self, LiveRun, RunPlace};
use ostler_state::Age;
use ostler_worker::FoundTasks;

/// A run that is held back, as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRun {
    /// The name of the run in commands: a number or the id of the run.
    pub name: String,
    /// The pid of the supervisor, for a native task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<u32>,
    /// The pid of the worker, for a WASM task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// The pid of the task's own process, if it is known.
    pub pid: Option<u32>,
    /// The id of the run, if it is known.
    pub run: Option<String>,
    /// The id of the allocation, if a record or a note says it.
    pub alloc: Option<String>,
    /// The id of the job, if it is known.
    pub job: Option<String>,
    /// The name of the task group, if it is known.
    pub group: Option<String>,
    /// The index of the allocation in its group, if it is known.
    pub index: Option<u32>,
    /// The name of the task, if it is known.
    pub task: Option<String>,
    /// Why no agent owns the run.
    pub reason: String,
    /// The command that ends the run.
    pub end_with: String,
}

impl HeldRun {
    /// Describe a run that was found, with the reason why nobody owns it.
    #[must_use]
    pub fn from_run(run: &AliveRun, reason: String, data_dir: &Path) -> Self {
        let (name, place) = (run.name(), run.place());
        let (supervisor, worker, pid) = match run {
            AliveRun::Native(run) => (Some(run.supervisor.pid), None, Some(run.identity.pid)),
            AliveRun::Wasm(run) => (None, Some(run.worker.pid), None),
        };
        let own = format!("ostler state end-run {name} --data-dir {}", data_dir.display());
        let (reason, end_with) = if run.is_elsewhere() {
            explain_elsewhere(place.map(|place| &place.job), run.other_data_dir(), reason, own)
        } else {
            (reason, own)
        };
        Self {
            end_with,
            name,
            supervisor,
            worker,
            pid: pid.filter(|pid| Some(*pid) != supervisor),
            run: run.run(),
            alloc: place.map(|place| place.alloc.to_string()),
            job: place.map(|place| place.job.to_string()),
            group: place.map(|place| place.group.to_string()),
            index: place.map(|place| place.index),
            task: place.map(|place| place.task.to_string()),
            reason,
        }
    }
}

/// Explain why a run of another data directory is left alone, and give the command that ends it.
/// The job's own agent must end it, which is not to lose a task because its directory was copied. A
/// directory that is gone has no agent.
fn explain_elsewhere(
    job: Option<&JobId>,
    dir: Option<PathBuf>,
    reason: String,
    own: String,
) -> (String, String) {
    if let Some(gone) = dir.as_ref().filter(|dir| !dir.is_dir()) {
        return (format!("{reason} ({}, which is gone)", gone.display()), own);
    }
    let known = dir.map(|dir| shell_word(&dir.display().to_string()));
    let (which, at) = match &known {
        Some(dir) => (format!("data directory {dir}"), dir.as_str()),
        None => ("another data directory".to_owned(), "DIR"),
    };
    let (job, namespace) = match job {
        Some(job) => {
            let namespace = job.namespace();
            let named = format!(" --namespace {}", shell_word(namespace));
            let default = namespace == ostler_model::ids::NAMESPACE;
            (shell_word(job.as_str()), if default { String::new() } else { named })
        }
        None => ("JOB".to_owned(), String::new()),
    };
    let reason = format!(
        "it is a task of the agent of {which}, of whose data directory this one is a copy: this agent leaves \
         it alone, and needs a \
         data directory of its own"
    );
    (reason, format!("ostler job stop {job}{namespace} --data-dir {at}"))
}

impl std::fmt::Display for HeldRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.supervisor, self.worker) {
            (Some(supervisor), _) => write!(f, "supervisor {supervisor}")?,
            (None, Some(worker)) => write!(f, "worker {worker}")?,
            (None, None) => f.write_str(&self.name)?,
        }
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

/// The runs that are held back, and how the state file compares with what its directory knew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// The comparison at the time when the file was opened.
    pub state: Age,
    /// The runs, sorted by name.
    pub runs: Vec<HeldRun>,
}

impl HeldReport {
    /// A sentence about what the state file lacks; `None` if it lacks nothing.
    #[must_use]
    pub fn lack_notice(&self) -> Option<String> {
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
    /// No run of this name is held back.
    #[error("no run that is held back is called {name}; `ostler state runs` lists them")]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
    /// The run was asked to end but did not.
    #[error("run {name} could not be ended; check its processes")]
    Refused {
        /// The name of the run in commands.
        name: String,
        /// The error of the attempt to end it.
        #[source]
        source: std::io::Error,
    },
}

/// The runs that were found alive at the start of an agent.
#[derive(Debug, Default)]
pub(super) struct LiveRuns {
    /// The runs that nobody owns.
    held: Vec<(AliveRun, HoldReason)>,
    /// Pid and start time of each process.
    processes: Vec<(u32, u64)>,
    /// The number of runs that were adopted by their notes.
    adopted: usize,
    /// The allocations of runs that are owned again.
    owned: BTreeSet<AllocId>,
    /// The runs of WASM tasks that are alive.
    wasm: BTreeSet<RunId>,
}

impl LiveRuns {
    /// Find the runs that are alive, and enter in `found` those that can be owned. `workers` has
    /// the tasks that live in workers. Blocks.
    pub(super) fn find(
        data_dir: &Path,
        found: &mut NodeRecords,
        workers: FoundTasks,
        lacks: bool,
        now: Timestamp,
    ) -> Result<Self, String> {
        let exits = data_dir.join("exits");
        let failed = |error| ostler_model::causes::chain(&error);
        let noted = live::read_notes(&exits).map_err(failed)?;
        let note_of = |run: &str| noted.get(run).or_else(|| workers.notes.get(run)).cloned();
        found.complete_runs(|run| note_of(run.as_str()));
        found.complete_ended(&live::find_ended_runs(&exits, &found.intents()).map_err(failed)?);
        let native = live::find_live_runs(&exits).map_err(failed)?;
        let mut this = Self::default();
        let known = found.known_allocs(lacks);
        let mut runs: Vec<AliveRun> = native.into_iter().map(AliveRun::Native).collect();
        runs.extend(runs_elsewhere(&runs, &known, &exits));
        runs.extend(find_wasm_runs(workers, &noted, &known)?);
        let verdicts = decide::decide(&runs, &known);
        this.owned = decide::owned_allocs(&runs, &known);
        for (run, verdict) in runs.into_iter().zip(verdicts) {
            match &run {
                AliveRun::Native(run) => {
                    this.processes.push((run.identity.pid, run.identity.start_ticks));
                }
                AliveRun::Wasm(run) => this.wasm.extend(run.run.clone()),
            }
            match verdict {
                RunDecision::Owned => {}
                RunDecision::Adopt(record) => {
                    if let Some(place) = run.place() {
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

    /// The runs of WASM tasks that are alive, owned or held back.
    pub(super) fn wasm_runs(&self) -> &BTreeSet<RunId> {
        &self.wasm
    }

    /// The notices for the operator.
    pub(super) fn notices(&self, data_dir: &Path) -> Vec<String> {
        let mut said = Vec::new();
        if self.adopted > 0 {
            said.push(format!(
                "{} run(s) that the state file did not know are alive and owned again",
                self.adopted
            ));
        }
        for (run, why) in &self.held {
            let held = HeldRun::from_run(run, why.to_string(), data_dir);
            said.push(format!(
                "a run is alive and held back ({held}): {}; nothing is started in its place \
                 until it ends: end it with `{}`",
                held.reason, held.end_with
            ));
        }
        said
    }

    /// The allocations whose directories are in use.
    pub(super) fn allocs(&self) -> BTreeSet<AllocId> {
        self.held.iter().filter_map(|(run, _)| Some(run.place()?.alloc)).collect()
    }

    /// Whether a run is alive of which nothing says where it belongs. Any directory may belong
    /// to it.
    pub(super) fn has_nameless(&self) -> bool {
        self.held.iter().any(|(run, _)| run.place().is_none())
    }

    /// Pids and start times of all processes found.
    pub(super) fn processes(&self) -> &[(u32, u64)] {
        &self.processes
    }
}

/// The runs that an agent holds back.
pub(super) struct HeldRuns {
    state: Age,
    runs: Vec<(AliveRun, HoldReason)>,
}

impl HeldRuns {
    pub(super) fn new(state: Age, live: LiveRuns) -> Self {
        Self { state, runs: live.held }
    }
}

impl LiveRuns {
    /// The holds that keep the places of these runs from being filled.
    pub(super) fn holds(&self, data_dir: &Path) -> ostler_control::unowned_runs::UnownedRuns {
        let held = self.held.iter().map(|(run, why)| {
            let shown = HeldRun::from_run(run, why.to_string(), data_dir);
            UnownedRun {
                name: run.name(),
                place: run.place().cloned().map(|at| HeldPlace {
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
        ostler_control::unowned_runs::UnownedRuns::new(held.collect(), self.owned.clone())
    }
}

/// The recorded native runs that no supervisor of this directory has. They belong to the directory
/// that this one is a copy of.
fn runs_elsewhere(
    runs: &[AliveRun],
    known: &BTreeMap<AllocId, KnownAlloc>,
    exits: &Path,
) -> Vec<AliveRun> {
    let found: BTreeSet<u32> = runs
        .iter()
        .filter_map(|run| match run {
            AliveRun::Native(run) => Some(run.supervisor.pid),
            AliveRun::Wasm(_) => None,
        })
        .collect();
    let recorded = recorded_runs(known).flat_map(|(place, run)| {
        let identities = run.identities.iter();
        identities.map(move |identity| (place.clone(), &run.id, identity.clone()))
    });
    let boot = identity::boot_id().unwrap_or_default();
    let other = recorded.filter_map(|(place, run, identity)| {
        let supervisor = identity.supervisor.filter(|who| !found.contains(&who.pid))?;
        if identity.boot_id != boot {
            return None;
        }
        let dir = live::other_data_dir(supervisor, exits)?;
        LiveRun::from_other_dir(run.to_string(), identity, Some(place), dir).map(AliveRun::Native)
    });
    other.collect()
}

/// The recorded runs, each with the place it belongs to.
fn recorded_runs(
    known: &BTreeMap<AllocId, KnownAlloc>,
) -> impl Iterator<Item = (RunPlace, &RunRecord)> {
    known.iter().flat_map(|(id, alloc)| {
        let of_place = move |place| alloc.tasks.iter().map(move |one| (place, one));
        let tasks = alloc.place.iter().flat_map(of_place);
        tasks.filter_map(move |((job, group, index), (name, task))| {
            let (job, group, task_name) = (job.clone(), group.clone(), name.clone());
            let place = RunPlace { alloc: *id, task: task_name, job, group, index: *index };
            Some((place, task.run.as_ref()?))
        })
    })
}

/// The runs of WASM tasks that are alive, and those that may be alive in workers of the directory
/// that this one is a copy of.
pub(super) fn find_wasm_runs(
    workers: FoundTasks,
    noted: &BTreeMap<String, RunNote>,
    known: &BTreeMap<AllocId, KnownAlloc>,
) -> Result<Vec<AliveRun>, String> {
    let FoundTasks { tasks, unasked, elsewhere, notes } = workers;
    let mut seen = BTreeSet::new();
    let mut runs: Vec<AliveRun> = tasks
        .into_iter()
        .filter(|task| seen.insert(task.run.clone()))
        .map(|task| {
            let run = task.run.as_str();
            let note = noted.get(run).or_else(|| notes.get(run)).cloned();
            AliveRun::wasm(
                task,
                note.map(|RunNote { alloc, task, job, group, index, record }| {
                    (RunPlace { alloc, task, job, group, index }, record)
                }),
            )
        })
        .collect();
    if unasked.is_empty() && elsewhere.is_empty() {
        return Ok(runs);
    }
    let boot = identity::boot_id().map_err(|error| error.to_string())?;
    let who = |(pid, ticks): &(u32, u64)| alive::worker(*pid, *ticks, &boot);
    runs.extend(unasked.iter().map(|worker| AliveRun::from_silent_worker(who(worker))));
    if let Some(other) = elsewhere.first() {
        let others =
            recorded_runs(known).filter(|(_, run)| decide::is_wasm(run) && !seen.contains(&run.id));
        runs.extend(others.map(|(place, run)| {
            AliveRun::Wasm(WasmRun {
                worker: who(other),
                run: Some(run.id.clone()),
                task: None,
                place: Some(place),
                record: None,
                elsewhere: true,
            })
        }));
    }
    Ok(runs)
}

impl AgentHandle {
    fn holds(&self) -> MutexGuard<'_, HeldRuns> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runs that are alive but not owned by this agent, and how its state file compared with
    /// what its directory knew.
    #[must_use]
    pub fn held_report(&self) -> HeldReport {
        let live: BTreeSet<String> = self
            .0
            .control
            .read_tables(|tables| tables.holds().names().map(str::to_owned).collect());
        let holds = self.holds();
        let held = holds.runs.iter().filter(|(run, _)| live.contains(&run.name()));
        let mut runs: Vec<_> = held.map(|(run, why)| self.describe_run(run, *why)).collect();
        runs.sort_by(|one, other| one.name.cmp(&other.name));
        HeldReport { state: holds.state, runs }
    }

    /// End a run that is held back, and wait until its place is free.
    ///
    /// # Errors
    /// When there is none of this name, or it does not end.
    pub async fn end_run(&self, name: &str) -> Result<HeldRun, EndRunError> {
        let found = {
            let holds = self.holds();
            holds.runs.iter().find(|(run, _)| run.name() == name).cloned()
        };
        let (run, why) = found.ok_or_else(|| EndRunError::Unknown { name: name.to_owned() })?;
        let ended = run.end(&*self.0.services.wasm_tasks, KILL_GRACE).await;
        ended.map_err(|source| EndRunError::Refused { name: name.to_owned(), source })?;
        self.release_run(&run).await;
        Ok(self.describe_run(&run, why))
    }

    fn describe_run(&self, run: &AliveRun, why: HoldReason) -> HeldRun {
        HeldRun::from_run(run, why.to_string(), &self.0.data_dir)
    }

    /// Wait in the background for the ends of all runs that are held back.
    pub(super) fn watch_held(&self) {
        let runs: Vec<AliveRun> = self.holds().runs.iter().map(|(run, _)| run.clone()).collect();
        for run in runs {
            let (weak, ended) = (Arc::downgrade(&self.0), self.0.ended.clone());
            let tasks = Arc::clone(&self.0.services.wasm_tasks);
            self.spawn_beside(async move {
                while !run.has_ended(&*tasks) {
                    tokio::select! {
                        () = ended.cancelled() => return,
                        () = clock::sleep(HELD_RUN_POLL) => {}
                    }
                }
                if let Some(agent) = weak.upgrade().map(AgentHandle) {
                    agent.release_run(&run).await;
                }
            });
        }
    }

    /// Release the place of a run that was held back and has ended. Idempotent.
    async fn release_run(&self, run: &AliveRun) {
        let name = run.name();
        {
            let mut holds = self.holds();
            let before = holds.runs.len();
            holds.runs.retain(|(held, _)| held.name() != name);
            if holds.runs.len() == before {
                return;
            }
        }
        let services = &self.0.services;
        match run {
            AliveRun::Native(run) => {
                let (pid, ticks) = (run.identity.pid, run.identity.start_ticks);
                services.processes.forget_process(pid, ticks);
            }
            // The note of the run is removed too.
            AliveRun::Wasm(WasmRun { run: Some(run), elsewhere: false, .. }) => {
                services.processes.adopt_note(run);
                services.processes.forget_run(run);
                services.wasm_tasks.forget_run(run);
            }
            AliveRun::Wasm(_) => {}
        }
        tracing::info!(name, "a run that was held back has ended");
        self.0.control.report_run_end(name).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_task_of_another_agent_is_left_to_that_agent() {
        let told = |job: &JobId, dir: Option<&str>| {
            let own = "ostler state end-run 7 --data-dir /copy".to_owned();
            explain_elsewhere(
                Some(job),
                dir.map(PathBuf::from),
                "it works elsewhere".to_owned(),
                own,
            )
        };
        let web = JobId::new("web").unwrap();
        let (reason, end_with) = told(&web, Some("/"));
        assert!(reason.starts_with("it is a task of the agent of data directory /,"), "{reason}");
        assert!(reason.contains("needs a data directory of its own"), "{reason}");
        assert_eq!(end_with, "ostler job stop web --data-dir /");
        let (reason, end_with) = told(&web, None);
        assert!(reason.contains("the agent of another data directory"), "{reason}");
        assert_eq!(end_with, "ostler job stop web --data-dir DIR");
        let team = JobId::from_qualified(web.qualified_id().replace("web", "team web")).unwrap();
        let (_, end_with) = told(&team, Some("/"));
        assert_eq!(end_with, "ostler job stop web --namespace team --data-dir /");
        let (reason, end_with) = told(&web, Some("/there/is/none"));
        assert!(reason.contains("/there/is/none, which is gone"), "{reason}");
        assert_eq!(end_with, "ostler state end-run 7 --data-dir /copy");
    }
}
