//! Whom failed calls count against: the plugin, or one task. Pure.
//!
//! ```text
//! a call about no task (fingerprint, stats, reserve) ─► the plugin: each counts
//! a call about a task (start, recover, stop)         ─► the task; towards the plugin each such task
//!                                                       counts once, and only when it is not alone:
//!                                                       another task struck too, or the plugin itself
//! ```
//! So a task whose configuration makes its driver trap, or whose handle does, fails alone, however
//! often it is started again; a driver that fails with different tasks is broken itself. A task is a
//! task of a group of a job: all its allocations, replacements included, are one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ostler_model::ids::{GroupName, JobId, TaskName};
use ostler_model::limits::{PLUGIN_STRIKES_KEPT_MAX, POISONED_TASKS_KEPT_MAX};
use ostler_model::time::Timestamp;

/// A task, whichever of its allocations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskKey {
    /// Its job.
    pub job: JobId,
    /// Its group.
    pub group: GroupName,
    /// Its name.
    pub task: TaskName,
}

impl std::fmt::Display for TaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {} of group {} of job {}", self.task, self.group, self.job)
    }
}

/// The strikes of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfTask {
    /// Oldest first.
    times: VecDeque<Timestamp>,
    /// Fingerprint of the configuration its last failed start had.
    config: Option<u64>,
    /// What went wrong last.
    reason: String,
}

/// A task that may not be started with its configuration for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// Failed calls about it that are not forgotten.
    pub strikes: usize,
    /// When enough of them are.
    pub until: Timestamp,
    /// What went wrong last.
    pub reason: String,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strikes {
    /// Those of calls about no task, oldest first.
    own: VecDeque<Timestamp>,
    tasks: BTreeMap<TaskKey, OfTask>,
}

fn counts(window: Duration, at: Timestamp, now: Timestamp) -> bool {
    now.since(at) < window
}

fn push(times: &mut VecDeque<Timestamp>, window: Duration, now: Timestamp) {
    times.retain(|at| counts(window, *at, now));
    if times.len() >= PLUGIN_STRIKES_KEPT_MAX {
        times.pop_front();
    }
    times.push_back(now);
}

impl Strikes {
    /// A call about no task failed.
    pub fn own(&mut self, window: Duration, now: Timestamp) {
        push(&mut self.own, window, now);
    }

    /// A call about a task failed; `config` is the fingerprint of its configuration, of a start.
    pub fn of_task(
        &mut self,
        window: Duration,
        now: Timestamp,
        task: &TaskKey,
        config: Option<u64>,
        reason: &str,
    ) {
        let live = |one: &OfTask| one.times.iter().any(|at| counts(window, *at, now));
        self.tasks.retain(|_, one| live(one));
        if self.tasks.len() >= POISONED_TASKS_KEPT_MAX && !self.tasks.contains_key(task) {
            let oldest = self.tasks.iter().min_by_key(|(_, one)| one.times.back().copied());
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.tasks.remove(&oldest);
            }
        }
        let one = self.tasks.entry(task.clone()).or_default();
        if config.is_some() && config != one.config {
            // Another configuration is another input: what the one before did says nothing of it.
            one.times.clear();
            one.config = config;
        }
        push(&mut one.times, window, now);
        reason.clone_into(&mut one.reason);
    }

    /// Every failed call that is not forgotten.
    #[must_use]
    pub fn all(&self, window: Duration, now: Timestamp) -> usize {
        let of = |times: &VecDeque<Timestamp>| {
            times.iter().filter(|at| counts(window, **at, now)).count()
        };
        self.tasks.values().map(|one| of(&one.times)).sum::<usize>() + of(&self.own)
    }

    /// What counts towards the plugin's quarantine. See the module.
    #[must_use]
    pub fn weight(&self, window: Duration, now: Timestamp) -> usize {
        let own = self.own.iter().filter(|at| counts(window, **at, now)).count();
        let live = |one: &&OfTask| one.times.iter().any(|at| counts(window, *at, now));
        let tasks = self.tasks.values().filter(live).count();
        own + if tasks > 1 || own > 0 { tasks } else { 0 }
    }

    /// Is the task not to be started with this configuration, after `most` failed calls about it?
    #[must_use]
    pub fn poisoned(
        &self,
        window: Duration,
        most: usize,
        now: Timestamp,
        task: &TaskKey,
        config: u64,
    ) -> Option<Poisoned> {
        let one = self.tasks.get(task).filter(|one| one.config == Some(config))?;
        let live: Vec<Timestamp> =
            one.times.iter().filter(|at| counts(window, **at, now)).copied().collect();
        // With the first of the last `most` forgotten there are fewer than that.
        let first = live.len().checked_sub(most.max(1)).and_then(|index| live.get(index))?;
        let until = first.plus(window);
        Some(Poisoned { strikes: live.len(), until, reason: one.reason.clone() })
    }

    /// The tasks with failed calls that are not forgotten.
    #[must_use]
    pub fn tasks(&self, window: Duration, now: Timestamp) -> BTreeMap<TaskKey, usize> {
        let count = |one: &OfTask| one.times.iter().filter(|at| counts(window, **at, now)).count();
        let counted = self.tasks.iter().map(|(key, one)| (key.clone(), count(one)));
        counted.filter(|(_, strikes)| *strikes > 0).collect()
    }

    /// Is there nothing to remember?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.tasks.is_empty()
    }

    /// Forget what counts towards the plugin; what a task did to it stays with the task.
    pub fn forgive(&mut self) {
        self.own.clear();
        // One task alone has no weight. Of several none may be told to be the one at fault.
        if self.tasks.len() > 1 {
            self.tasks.clear();
        }
    }
}
