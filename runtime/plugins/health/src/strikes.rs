//! Decides whom failed calls count against: the plugin, or one task. Pure.
//!
//! ```text
//! a call about no task (fingerprint, stats, reserve) ─► the plugin: each counts
//! a call about a task (start, recover, stop)         ─► the task; towards the plugin each such task
//!                                                       counts once, and only when it is not alone:
//!                                                       another task struck too, or the plugin itself
//! ```
//! So a task whose configuration or handle makes its driver trap fails alone, however often it is
//! started again, while a driver that fails with different tasks is broken itself. A task here is a
//! task of a group of a job: all its allocations, replacements included, count as one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ostler_model::ids::{GroupName, JobId, TaskName};
use ostler_model::limits::{PLUGIN_STRIKES_KEPT_MAX, POISONED_TASKS_KEPT_MAX};
use ostler_model::time::Timestamp;

/// A task of a group of a job, whichever of its allocations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskKey {
    /// The id of the job.
    pub job: JobId,
    /// The name of the task group.
    pub group: GroupName,
    /// The name of the task in the group.
    pub task: TaskName,
}

impl std::fmt::Display for TaskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {} of group {} of job {}", self.task, self.group, self.job)
    }
}

/// The strikes of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TaskStrikes {
    /// The times of the strikes, oldest first.
    times: VecDeque<Timestamp>,
    /// The fingerprint of the configuration of its last failed start.
    config: Option<u64>,
    /// The reason of the last failure.
    reason: String,
}

/// A task that must not be started with its configuration for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoisonedTask {
    /// The number of failed calls about it that are not forgotten.
    pub strikes: usize,
    /// When enough of these calls are forgotten.
    pub until: Timestamp,
    /// The reason of the last failure.
    pub reason: String,
}

/// The strikes of a plugin. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strikes {
    /// The strikes of calls about no task, oldest first.
    own: VecDeque<Timestamp>,
    tasks: BTreeMap<TaskKey, TaskStrikes>,
}

fn is_counted(window: Duration, at: Timestamp, now: Timestamp) -> bool {
    now.since(at) < window
}

fn push_time(times: &mut VecDeque<Timestamp>, window: Duration, now: Timestamp) {
    times.retain(|at| is_counted(window, *at, now));
    if times.len() >= PLUGIN_STRIKES_KEPT_MAX {
        times.pop_front();
    }
    times.push_back(now);
}

impl Strikes {
    /// Record a failed call about no task.
    pub fn add_plugin_strike(&mut self, window: Duration, now: Timestamp) {
        push_time(&mut self.own, window, now);
    }

    /// Record a failed call about a task. For a start, `config` is the fingerprint of
    /// its configuration.
    pub fn add_task_strike(
        &mut self,
        window: Duration,
        now: Timestamp,
        task: &TaskKey,
        config: Option<u64>,
        reason: &str,
    ) {
        let live = |one: &TaskStrikes| one.times.iter().any(|at| is_counted(window, *at, now));
        self.tasks.retain(|_, one| live(one));
        if self.tasks.len() >= POISONED_TASKS_KEPT_MAX && !self.tasks.contains_key(task) {
            let oldest = self.tasks.iter().min_by_key(|(_, one)| one.times.back().copied());
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.tasks.remove(&oldest);
            }
        }
        let one = self.tasks.entry(task.clone()).or_default();
        if config.is_some() && config != one.config {
            // Another configuration is another input, so the strikes of the one before do not
            // count.
            one.times.clear();
            one.config = config;
        }
        push_time(&mut one.times, window, now);
        reason.clone_into(&mut one.reason);
    }

    /// The number of failed calls that are not forgotten.
    #[must_use]
    pub fn total_strikes(&self, window: Duration, now: Timestamp) -> usize {
        let of = |times: &VecDeque<Timestamp>| {
            times.iter().filter(|at| is_counted(window, **at, now)).count()
        };
        self.tasks.values().map(|one| of(&one.times)).sum::<usize>() + of(&self.own)
    }

    /// How many strikes count towards the plugin's quarantine. See the module.
    #[must_use]
    pub fn weight(&self, window: Duration, now: Timestamp) -> usize {
        let own = self.own.iter().filter(|at| is_counted(window, **at, now)).count();
        let live = |one: &&TaskStrikes| one.times.iter().any(|at| is_counted(window, *at, now));
        let tasks = self.tasks.values().filter(live).count();
        own + if tasks > 1 || own > 0 { tasks } else { 0 }
    }

    /// Whether the task must not be started with this configuration, after `most` failed calls
    /// about it.
    #[must_use]
    pub fn poisoned_task(
        &self,
        window: Duration,
        most: usize,
        now: Timestamp,
        task: &TaskKey,
        config: u64,
    ) -> Option<PoisonedTask> {
        let one = self.tasks.get(task).filter(|one| one.config == Some(config))?;
        let live: Vec<Timestamp> =
            one.times.iter().filter(|at| is_counted(window, **at, now)).copied().collect();
        // Once the first of the last `most` is forgotten, fewer than `most` are left.
        let first = live.len().checked_sub(most.max(1)).and_then(|index| live.get(index))?;
        let until = first.plus(window);
        Some(PoisonedTask { strikes: live.len(), until, reason: one.reason.clone() })
    }

    /// The tasks with failed calls that are not forgotten, and the number of these calls.
    #[must_use]
    pub fn tasks(&self, window: Duration, now: Timestamp) -> BTreeMap<TaskKey, usize> {
        let count =
            |one: &TaskStrikes| one.times.iter().filter(|at| is_counted(window, **at, now)).count();
        let counted = self.tasks.iter().map(|(key, one)| (key.clone(), count(one)));
        counted.filter(|(_, strikes)| *strikes > 0).collect()
    }

    /// Whether there is nothing to remember.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.tasks.is_empty()
    }

    /// Forget what counts towards the plugin. The strikes of a single task stay with the task.
    pub fn forgive(&mut self) {
        self.own.clear();
        // One task alone has no weight. Of several, none can be said to be the one at fault.
        if self.tasks.len() > 1 {
            self.tasks.clear();
        }
    }
}
