//! The table of WASM tasks, by run. Pure: tokens, receivers and guests are only held.
//!
//! ```text
//! add ─► held ── release(run) ─► running ─► exited
//!          └───── kill ─► exited, and never ran
//! ```
//! A run that was killed or forgotten takes no new tasks. A driver call that was given up may still
//! be on its way to `spawn`, and what it starts then would belong to nobody.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::ended_runs::EndedRuns;
use ostler_model::ids::RunId;
use ostler_model::limits::WORKLOADS_PER_RUN_MAX;
use ostler_model::task::RawExit;
use ostler_sandbox::{CpuMeter, GuestAbort, GuestUsage};

/// Ends a task, before it runs and while it does.
#[derive(Default)]
pub(super) struct TaskKill {
    asked: AtomicBool,
    guest: OnceLock<GuestAbort>,
}

impl TaskKill {
    /// End the task.
    pub(super) fn kill(&self) {
        self.asked.store(true, Ordering::SeqCst);
        if let Some(guest) = self.guest.get() {
            guest.abort();
        }
    }

    /// Was the task asked to end?
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// The guest of the task runs from now on.
    pub(super) fn set_guest(&self, guest: GuestAbort) {
        let _first_stays = self.guest.set(guest);
        // A kill that came in between found no guest.
        if self.is_asked() {
            self.kill();
        }
    }
}

/// A task: how it ended, how to end it, and what it uses. `G` is a guest that was not released yet.
pub(super) struct TaskEntry<G> {
    pub exit: watch::Receiver<Option<RawExit>>,
    pub kill: Arc<TaskKill>,
    /// The guest, until it is released.
    pub held: Option<G>,
    /// How much memory the task holds.
    pub memory: Arc<GuestUsage>,
    /// Processor time of the task, set when it starts.
    pub cpu: Arc<OnceLock<CpuMeter>>,
    /// MHz reserved by the task.
    pub cpu_mhz: u32,
}

/// Why a task was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskRefusal {
    /// The run of the task has ended.
    RunEnded,
    /// The run of the task has as many tasks as it may.
    TooMany,
}

struct RunTasks<G> {
    /// Whether the run was released, so that a task that is added is not held.
    released: bool,
    tasks: HashMap<String, TaskEntry<G>>,
}

impl<G> Default for RunTasks<G> {
    fn default() -> Self {
        Self { released: false, tasks: HashMap::new() }
    }
}

pub(super) struct Registry<G> {
    runs: HashMap<RunId, RunTasks<G>>,
    ended: EndedRuns,
}

impl<G> Default for Registry<G> {
    fn default() -> Self {
        Self { runs: HashMap::new(), ended: EndedRuns::default() }
    }
}

impl<G> Registry<G> {
    /// Add a task. Returns its guest if the run was released before, so that it starts now.
    pub(super) fn add(
        &mut self,
        run: &RunId,
        id: String,
        mut entry: TaskEntry<G>,
    ) -> Result<Option<G>, TaskRefusal> {
        if self.ended.has(run) {
            return Err(TaskRefusal::RunEnded);
        }
        let of_run = self.runs.entry(run.clone()).or_default();
        if of_run.tasks.len() >= WORKLOADS_PER_RUN_MAX {
            return Err(TaskRefusal::TooMany);
        }
        let goes = if of_run.released { entry.held.take() } else { None };
        of_run.tasks.insert(id, entry);
        Ok(goes)
    }

    /// Release a run. Returns the guests that were held, with the ids of their tasks.
    pub(super) fn release(&mut self, run: &RunId) -> Vec<(String, G)> {
        if self.ended.has(run) {
            return Vec::new();
        }
        let of_run = self.runs.entry(run.clone()).or_default();
        of_run.released = true;
        let held = of_run.tasks.iter_mut();
        held.filter_map(|(id, entry)| Some((id.clone(), entry.held.take()?))).collect()
    }

    pub(super) fn get(&self, run: &RunId, id: &str) -> Option<&TaskEntry<G>> {
        self.runs.get(run)?.tasks.get(id)
    }

    /// End a run: its tasks are told to end. Returns the guests that were never released; the
    /// caller drops them.
    pub(super) fn kill(&mut self, run: &RunId) -> Vec<(String, G)> {
        self.ended.add(run);
        let Some(of_run) = self.runs.get_mut(run) else { return Vec::new() };
        let kill = |(id, entry): (&String, &mut TaskEntry<G>)| {
            entry.kill.kill();
            Some((id.clone(), entry.held.take()?))
        };
        of_run.tasks.iter_mut().filter_map(kill).collect()
    }

    pub(super) fn forget(&mut self, run: &RunId) -> Vec<(String, G)> {
        let held = self.kill(run);
        self.runs.remove(run);
        held
    }

    /// The runs that were never released. Their tasks have not run.
    pub(super) fn unreleased_runs(&self) -> Vec<RunId> {
        let held = self.runs.iter().filter(|(_, of_run)| !of_run.released);
        held.map(|(run, _)| run.clone()).collect()
    }

    /// Was this run released? `None`: the run is not known.
    pub(super) fn is_released(&self, run: &RunId) -> Option<bool> {
        self.runs.get(run).map(|of_run| of_run.released)
    }

    /// All tasks, each with its run and its id.
    pub(super) fn tasks(&self) -> impl Iterator<Item = (&RunId, &str, &TaskEntry<G>)> {
        self.runs.iter().flat_map(|(run, of_run)| {
            of_run.tasks.iter().map(move |(id, entry)| (run, id.as_str(), entry))
        })
    }

    pub(super) fn runs(&self) -> Vec<RunId> {
        self.runs.keys().cloned().collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::ids::{AllocId, TaskName};
    use ostler_model::rng::Rng;
    use ostler_sandbox::{GuestLimiter, StoreLimits};

    fn run(number: u32) -> RunId {
        let alloc = AllocId::new(Rng::from_seed(1).uuid());
        RunId::new(alloc, &TaskName::new("t").unwrap(), number)
    }

    fn entry(guest: u8) -> (TaskEntry<u8>, Arc<TaskKill>) {
        let kill = Arc::new(TaskKill::default());
        let exit = watch::channel(None).1;
        let memory = GuestLimiter::new(&StoreLimits::default()).usage();
        let (cpu, held) = (Arc::default(), Some(guest));
        (TaskEntry { exit, kill: Arc::clone(&kill), held, memory, cpu, cpu_mhz: 1 }, kill)
    }

    #[test]
    fn a_killed_run_takes_no_task_that_comes_late() {
        let mut registry = Registry::default();
        let (task, killed) = entry(1);
        registry.add(&run(1), "a".into(), task).unwrap();
        assert_eq!(registry.kill(&run(1)), [("a".to_owned(), 1)], "never let go");
        assert!(killed.is_asked());
        assert_eq!(registry.add(&run(1), "b".into(), entry(2).0), Err(TaskRefusal::RunEnded));
        assert!(registry.release(&run(1)).is_empty());
        registry.forget(&run(1));
        assert!(registry.get(&run(1), "a").is_none());
        assert_eq!(registry.add(&run(1), "b".into(), entry(2).0), Err(TaskRefusal::RunEnded));
        registry.add(&run(2), "b".into(), entry(2).0).unwrap();
    }

    #[test]
    fn a_task_is_held_until_its_run_is_let_go_and_one_that_comes_later_is_not() {
        let mut registry = Registry::default();
        assert_eq!(registry.add(&run(1), "a".into(), entry(1).0), Ok(None));
        assert_eq!(registry.add(&run(2), "b".into(), entry(2).0), Ok(None));
        assert_eq!(registry.release(&run(1)), [("a".to_owned(), 1)]);
        assert_eq!(registry.release(&run(1)), [], "once");
        assert_eq!(registry.add(&run(1), "c".into(), entry(3).0), Ok(Some(3)));
        assert_eq!(registry.unreleased_runs(), [run(2)]);
    }

    #[test]
    fn a_task_is_only_known_to_its_own_run() {
        let mut registry = Registry::default();
        registry.add(&run(1), "a".into(), entry(1).0).unwrap();
        assert!(registry.get(&run(1), "a").is_some());
        assert!(registry.get(&run(2), "a").is_none());
    }

    #[test]
    fn a_run_has_a_bounded_number_of_tasks() {
        let mut registry = Registry::default();
        for number in 0..WORKLOADS_PER_RUN_MAX {
            registry.add(&run(1), number.to_string(), entry(1).0).unwrap();
        }
        assert_eq!(registry.add(&run(1), "more".into(), entry(1).0), Err(TaskRefusal::TooMany));
        registry.add(&run(2), "other".into(), entry(1).0).unwrap();
    }
}
