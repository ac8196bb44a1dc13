//! Runs that are alive and that the state file does not know as they are: recognised before anything
//! is removed or started.
//!
//! ```text
//! start: supervisors (live::find), ─► decide (pure) ─┬─ owned: on record                      ─► restore
//!        tasks of workers                            ├─ adopt: entered as the run of its task ─► restore
//!                                                    └─ held back:
//!          its directory and its exit record stay, its allocation gets no owner, its place
//!          in its job is not filled ─ it ends, by itself or by `ostler state end-run` ─► lifted:
//!          the allocation gets its owner, the place is filled
//! ```
//! A state file is behind when an older copy was put back, when its newest commit cannot be read, or
//! when it is gone. Nothing here is ended by the agent itself: what runs may be what is wanted, and
//! only a person can tell.

pub mod alive;
pub mod decide;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use self::alive::{Alive, WasmRun};
use self::decide::{RunDecision, Why};
use super::AgentHandle;
use ostler_control::admission::Problem;
use ostler_control::held::{Held, HeldPlace};
use ostler_control::recorded::{KnownAlloc, Recorded};
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
    /// By what it is named in commands.
    pub name: String,
    /// Its supervisor's process, of a native task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<u32>,
    /// Its worker's process, of a WASM task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
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
    pub fn of(run: &Alive, reason: String, data_dir: &Path) -> Self {
        let (name, place) = (run.name(), run.place());
        let (supervisor, worker, pid) = match run {
            Alive::Native(run) => (Some(run.supervisor.pid), None, Some(run.identity.pid)),
            Alive::Wasm(run) => (None, Some(run.worker.pid), None),
        };
        let own = format!("ostler state end-run {name} --data-dir {}", data_dir.display());
        let (reason, end_with) = match run.is_elsewhere() {
            true => of_other(place.map(|place| &place.job), run.works_for(), reason, own),
            false => (reason, own),
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

/// Why a run of another data directory is left alone, and the command that ends it: its job's own agent does, which
/// is not to lose a task because its directory was copied. A directory that is gone has no agent.
fn of_other(
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
        "it is a task of the agent of {which}, of which this one is a copy: this agent leaves it alone, and needs a \
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

/// What is held back, and how the state file compares with what its directory knew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReport {
    /// Of the file as it was opened.
    pub state: Age,
    /// Sorted by name.
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
    #[error("no run that is held back is called {name}; `ostler state runs` lists them")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// It was asked to end, and did not.
    #[error("run {name} was not ended; look at its processes")]
    Refused {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Runs found alive at the start of an agent.
#[derive(Debug, Default)]
pub(super) struct LiveRuns {
    /// Those that nobody owns.
    held: Vec<(Alive, Why)>,
    /// All of them.
    processes: Vec<(u32, u64)>,
    /// How many were adopted by their notes.
    adopted: usize,
    /// Allocations of runs that are owned again.
    owned: BTreeSet<AllocId>,
    /// Runs of WASM tasks that live.
    wasm: BTreeSet<RunId>,
}

impl LiveRuns {
    /// Look for them, and enter in `found` those that can be owned. `workers`: what lives there. Blocks.
    pub(super) fn find(
        data_dir: &Path,
        found: &mut Recorded,
        workers: FoundTasks,
        lacks: bool,
        now: Timestamp,
    ) -> Result<Self, String> {
        let exits = data_dir.join("exits");
        let failed = |error| ostler_model::causes::chain(&error);
        let noted = live::noted(&exits).map_err(failed)?;
        found.complete_runs(|run| noted.get(run.as_str()).cloned());
        found.complete_ended(&live::ended(&exits, &found.intents()).map_err(failed)?);
        let native = live::find(&exits).map_err(failed)?;
        let mut this = Self::default();
        let known = found.known(lacks);
        let mut runs: Vec<Alive> = native.into_iter().map(Alive::Native).collect();
        runs.extend(of_elsewhere(&runs, &known, &exits));
        runs.extend(wasm(workers, &noted, &known)?);
        let verdicts = decide::decide(&runs, &known);
        this.owned = decide::owned(&runs, &known);
        for (run, verdict) in runs.into_iter().zip(verdicts) {
            match &run {
                Alive::Native(run) => {
                    this.processes.push((run.identity.pid, run.identity.start_ticks));
                }
                Alive::Wasm(run) => this.wasm.extend(run.run.clone()),
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

    /// Runs of WASM tasks that live, owned or held back.
    pub(super) fn wasm_runs(&self) -> &BTreeSet<RunId> {
        &self.wasm
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
                "a run is alive and held back ({held}): {}; nothing is started in its place \
                 until it ends: end it with `{}`",
                held.reason, held.end_with
            ));
        }
        said
    }

    /// Allocations whose directories are in use.
    pub(super) fn allocs(&self) -> BTreeSet<AllocId> {
        self.held.iter().filter_map(|(run, _)| Some(run.place()?.alloc)).collect()
    }

    /// A run is alive of which nothing says where it belongs: any directory may be its.
    pub(super) fn nameless(&self) -> bool {
        self.held.iter().any(|(run, _)| run.place().is_none())
    }

    /// Pids and start times of all processes found.
    pub(super) fn processes(&self) -> &[(u32, u64)] {
        &self.processes
    }
}

/// What an agent holds back.
pub(super) struct Holds {
    state: Age,
    runs: Vec<(Alive, Why)>,
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
        ostler_control::held::Holds::new(held.collect(), self.owned.clone())
    }
}

/// Native runs on record that no supervisor of this directory has: those of the directory that this one is
/// a copy of.
fn of_elsewhere(runs: &[Alive], known: &BTreeMap<AllocId, KnownAlloc>, exits: &Path) -> Vec<Alive> {
    let found: BTreeSet<u32> = runs
        .iter()
        .filter_map(|run| match run {
            Alive::Native(run) => Some(run.supervisor.pid),
            Alive::Wasm(_) => None,
        })
        .collect();
    let recorded = on_record(known).flat_map(|(place, run)| {
        let identities = run.identities.iter();
        identities.map(move |identity| (place.clone(), &run.id, identity.clone()))
    });
    let boot = identity::boot_id().unwrap_or_default();
    let other = recorded.filter_map(|(place, run, identity)| {
        let supervisor = identity.supervisor.filter(|who| !found.contains(&who.pid))?;
        if identity.boot_id != boot {
            return None;
        }
        let dir = live::elsewhere(supervisor, exits)?;
        LiveRun::of_elsewhere(run.to_string(), identity, Some(place), dir).map(Alive::Native)
    });
    other.collect()
}

/// Runs on record, each with where it belongs.
fn on_record(
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

/// Runs of WASM tasks that live, and those that may live in workers of the directory that this one is a copy
/// of.
pub(super) fn wasm(
    workers: FoundTasks,
    noted: &BTreeMap<String, RunNote>,
    known: &BTreeMap<AllocId, KnownAlloc>,
) -> Result<Vec<Alive>, String> {
    let FoundTasks { tasks, unasked, elsewhere } = workers;
    let mut seen = BTreeSet::new();
    let mut runs: Vec<Alive> = tasks
        .into_iter()
        .filter(|task| seen.insert(task.run.clone()))
        .map(|task| {
            let note = noted.get(task.run.as_str()).cloned();
            Alive::wasm(
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
    runs.extend(unasked.iter().map(|worker| Alive::unasked(who(worker))));
    if let Some(other) = elsewhere.first() {
        let others =
            on_record(known).filter(|(_, run)| decide::is_wasm(run) && !seen.contains(&run.id));
        runs.extend(others.map(|(place, run)| {
            Alive::Wasm(WasmRun {
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
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs that are alive and that this agent does not own, and how its state file compared with
    /// what its directory knew.
    #[must_use]
    pub fn held(&self) -> HeldReport {
        let live: BTreeSet<String> =
            self.0.control.look(|tables| tables.holds().names().map(str::to_owned).collect());
        let holds = self.holds();
        let held = holds.runs.iter().filter(|(run, _)| live.contains(&run.name()));
        let mut runs: Vec<_> = held.map(|(run, why)| self.shown(run, *why)).collect();
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
        self.lift(&run).await;
        Ok(self.shown(&run, why))
    }

    fn shown(&self, run: &Alive, why: Why) -> HeldRun {
        HeldRun::of(run, why.to_string(), &self.0.data_dir)
    }

    /// Wait for the ends of all runs that are held back.
    pub(super) fn watch_held(&self) {
        let runs: Vec<Alive> = self.holds().runs.iter().map(|(run, _)| run.clone()).collect();
        for run in runs {
            let (weak, ended) = (Arc::downgrade(&self.0), self.0.ended.clone());
            let tasks = Arc::clone(&self.0.services.wasm_tasks);
            self.beside(async move {
                while !run.ended(&*tasks) {
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
    async fn lift(&self, run: &Alive) {
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
            Alive::Native(run) => {
                let (pid, ticks) = (run.identity.pid, run.identity.start_ticks);
                services.processes.forget_process(pid, ticks);
            }
            // Its note goes with it.
            Alive::Wasm(WasmRun { run: Some(run), elsewhere: false, .. }) => {
                services.processes.adopt_note(run);
                services.processes.forget_run(run);
                services.wasm_tasks.forget_run(run);
            }
            Alive::Wasm(_) => {}
        }
        tracing::info!(name, "a run that was held back has ended");
        self.0.control.run_ended(name).await;
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
            of_other(Some(job), dir.map(PathBuf::from), "it works elsewhere".to_owned(), own)
        };
        let web = JobId::new("web").unwrap();
        let (reason, end_with) = told(&web, Some("/"));
        assert!(reason.starts_with("it is a task of the agent of data directory /,"), "{reason}");
        assert!(reason.contains("needs a data directory of its own"), "{reason}");
        assert_eq!(end_with, "ostler job stop web --data-dir /");
        let (reason, end_with) = told(&web, None);
        assert!(reason.contains("the agent of another data directory"), "{reason}");
        assert_eq!(end_with, "ostler job stop web --data-dir DIR");
        let team = JobId::from_qualified(web.qualified().replace("web", "team web")).unwrap();
        let (_, end_with) = told(&team, Some("/"));
        assert_eq!(end_with, "ostler job stop web --namespace team --data-dir /");
        let (reason, end_with) = told(&web, Some("/there/is/none"));
        assert!(reason.contains("/there/is/none, which is gone"), "{reason}");
        assert_eq!(end_with, "ostler state end-run 7 --data-dir /copy");
    }
}
