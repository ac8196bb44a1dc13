//! Which WASM tasks there are, by run. Pure: tokens and receivers are only held.
//!
//! A run that was killed or forgotten takes no new tasks: a driver call that was given up may still
//! be on its way to `spawn`, and what it starts then would belong to nobody.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use ostler_model::ids::RunId;
use ostler_model::limits::WORKLOADS_PER_RUN_MAX;
use ostler_model::task::RawExit;
use ostler_sandbox::{CpuMeter, GuestUsage};

/// Ended runs remembered. A call that was given up is over within a tick or two, long before this
/// many others end.
const ENDED_RUNS_MAX: usize = 4_096;

/// A task: whose it is, how it ended, how to end it.
pub(super) struct Entry {
    pub run: RunId,
    pub exit: watch::Receiver<Option<RawExit>>,
    pub kill: CancellationToken,
    /// What it holds.
    pub memory: Arc<GuestUsage>,
    /// What it costs, from its first step on.
    pub cpu: Arc<OnceLock<CpuMeter>>,
}

/// Why a task was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// Its run is over.
    RunEnded,
    /// Its run has as many tasks as it may.
    TooMany,
}

#[derive(Default)]
pub(super) struct Registry {
    tasks: HashMap<String, Entry>,
    ended: HashSet<RunId>,
    /// The same, oldest first.
    ended_in_order: VecDeque<RunId>,
}

impl Registry {
    pub(super) fn add(&mut self, id: String, entry: Entry) -> Result<(), NotTaken> {
        if self.ended.contains(&entry.run) {
            return Err(NotTaken::RunEnded);
        }
        if self.tasks.values().filter(|known| known.run == entry.run).count()
            >= WORKLOADS_PER_RUN_MAX
        {
            return Err(NotTaken::TooMany);
        }
        self.tasks.insert(id, entry);
        Ok(())
    }

    pub(super) fn get(&self, run: &RunId, id: &str) -> Option<&Entry> {
        self.tasks.get(id).filter(|entry| &entry.run == run)
    }

    pub(super) fn kill(&mut self, run: &RunId) {
        self.end(run);
        for entry in self.tasks.values().filter(|entry| &entry.run == run) {
            entry.kill.cancel();
        }
    }

    pub(super) fn forget(&mut self, run: &RunId) {
        self.kill(run);
        self.tasks.retain(|_, entry| &entry.run != run);
    }

    pub(super) fn kill_all(&self) {
        for entry in self.tasks.values() {
            entry.kill.cancel();
        }
    }

    fn end(&mut self, run: &RunId) {
        if !self.ended.insert(run.clone()) {
            return;
        }
        self.ended_in_order.push_back(run.clone());
        if self.ended_in_order.len() > ENDED_RUNS_MAX
            && let Some(oldest) = self.ended_in_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
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
        let alloc = AllocId::new(Rng::seeded(1).uuid());
        RunId::new(alloc, &TaskName::new("t").unwrap(), number)
    }

    fn entry(run: &RunId) -> (Entry, CancellationToken) {
        let kill = CancellationToken::new();
        let exit = watch::channel(None).1;
        let memory = GuestLimiter::new(&StoreLimits::default()).usage();
        let cpu = Arc::default();
        (Entry { run: run.clone(), exit, kill: kill.clone(), memory, cpu }, kill)
    }

    #[test]
    fn a_killed_run_takes_no_task_that_comes_late() {
        let mut registry = Registry::default();
        let (task, killed) = entry(&run(1));
        registry.add("a".into(), task).unwrap();
        registry.kill(&run(1));
        assert!(killed.is_cancelled());
        assert_eq!(registry.add("b".into(), entry(&run(1)).0), Err(NotTaken::RunEnded));
        registry.forget(&run(1));
        assert!(registry.get(&run(1), "a").is_none());
        assert_eq!(registry.add("b".into(), entry(&run(1)).0), Err(NotTaken::RunEnded));
        registry.add("b".into(), entry(&run(2)).0).unwrap();
    }

    #[test]
    fn a_task_is_only_known_to_its_own_run() {
        let mut registry = Registry::default();
        registry.add("a".into(), entry(&run(1)).0).unwrap();
        assert!(registry.get(&run(1), "a").is_some());
        assert!(registry.get(&run(2), "a").is_none());
    }

    #[test]
    fn a_run_has_a_bounded_number_of_tasks() {
        let mut registry = Registry::default();
        for number in 0..WORKLOADS_PER_RUN_MAX {
            registry.add(number.to_string(), entry(&run(1)).0).unwrap();
        }
        assert_eq!(registry.add("more".into(), entry(&run(1)).0), Err(NotTaken::TooMany));
        registry.add("other".into(), entry(&run(2)).0).unwrap();
    }
}
