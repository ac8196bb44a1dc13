//! When an allocation is healthy: pure decisions, no clock, no I/O.
//!
//! ```text
//!             task states, check results, time
//!                          │
//!                          ▼
//!   Waiting ── good without a break for min_healthy_time ──────────────► Healthy
//!      │ ╲──── a task failed, or ended that should run ────────────────► Unhealthy, at once
//!      ╰────── healthy_deadline after the allocation was placed ───────► Unhealthy
//! ```
//! *Good* is: every task that should run runs, every one-shot beside them succeeded, and, where the
//! policy is [`HealthCheck::Checks`], every check of the group passes; one that said nothing yet
//! does not. What runs since when is read from the newest states, so that a state or result that
//! was replaced before anybody looked does no harm: a start or a return to passing begins the time
//! anew.
//!
//! ```text
//! task            must             is blamed when
//! main, sidecar   run              it failed, ended, does not run, or not long enough
//! one-shot        have succeeded   it failed, or is not done
//! poststop        nothing          never
//! ```
//! There is one verdict. Afterwards nothing is said any more, whatever happens.

mod reasons;

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::event::EventKind;
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::TaskName;
use ostler_model::job::{
    Check, CheckStatus, HealthCheck, HealthPolicy, LifecycleHook, OnUpdate, Service, Task,
    TaskGroup,
};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

/// Which check of an allocation, in the words of the job file: names are not interpolated here, so
/// that what is expected and what is reported have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId {
    /// The task that offers the service; absent: the group.
    pub task: Option<TaskName>,
    /// The service.
    pub service: String,
    /// Its port: services of one name have another.
    pub port: Option<String>,
    /// The check; unique in its service.
    pub check: String,
}

impl CheckId {
    /// Of a check of a service.
    #[must_use]
    pub fn of(service: &Service, check: &Check) -> Self {
        Self {
            task: service.task.clone(),
            service: service.name.clone(),
            port: service.port.clone(),
            check: check.name.clone(),
        }
    }
}

/// What a check says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// Which.
    pub id: CheckId,
    /// The service, by its name in the list of the node.
    pub service: String,
    /// The check, by its name with what that refers to.
    pub name: String,
    /// What it says, after its thresholds.
    pub status: CheckStatus,
    /// That is what a deployment wants of it: that it passes, unless `on_update` says otherwise.
    pub passing: bool,
    /// The status of the last HTTP answer.
    pub code: Option<u16>,
    /// What the last answer said, or why there is none; at most [`ostler_model::limits::CHECK_OUTPUT_BYTES_MAX`].
    pub output: String,
    /// Passing, or not passing, since then.
    pub since: Timestamp,
    /// When it was answered last.
    pub answered: Option<Timestamp>,
}

/// The checks of a group that a deployment asks for, in file order.
#[must_use]
pub fn expected_checks(group: &TaskGroup) -> Vec<CheckId> {
    let ids = group.services.iter().flat_map(|service| {
        let asked = service.checks.iter().filter(|check| check.on_update != OnUpdate::Ignore);
        asked.map(|check| CheckId::of(service, check))
    });
    ids.collect()
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum HealthInput<'a> {
    /// The states of the tasks are these. One that is missing counts as pending.
    Tasks(&'a BTreeMap<TaskName, HeldOnce<TaskState>>),
    /// The results of the checks are these. One that is missing counts as not passing.
    Checks(&'a [CheckResult]),
    /// The time of the last [`HealthEffect::Timer`] is over.
    TimerFired,
    /// Somebody says that it is healthy, or that it is not.
    Said(bool),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthEffect {
    /// Give [`HealthInput::TimerFired`] after this time. Takes the place of an earlier timer.
    Timer(Duration),
    /// The verdict; the last effect there is.
    Verdict(HealthVerdict),
}

/// Healthy or not, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthVerdict {
    /// Healthy.
    pub healthy: bool,
    /// All reasons in one text, at most [`ostler_model::limits::HEALTH_TEXT_BYTES_MAX`].
    pub text: String,
    /// For the events of the tasks: what each is told, at most
    /// [`ostler_model::limits::HEALTH_REASON_BYTES_MAX`] each. A task that did nothing wrong is told
    /// nothing, except that the main tasks hear of failing checks of the group. Empty when healthy.
    pub tasks: Vec<(TaskName, String)>,
}

/// What a task must do for the allocation to be good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Main tasks and sidecars.
    Run,
    /// One-shots before and after the start of the mains.
    Succeed,
}

/// A task's duty; poststop tasks have none.
fn duty(task: &Task) -> Option<Duty> {
    match task.lifecycle {
        Some(lifecycle) if lifecycle.hook == LifecycleHook::Poststop => None,
        Some(lifecycle) if !lifecycle.sidecar => Some(Duty::Succeed),
        _ => Some(Duty::Run),
    }
}

/// A task, and what of its newest state matters here.
#[derive(Clone, Debug)]
struct Watched {
    name: TaskName,
    duty: Duty,
    is_main: bool,
    status: TaskStatus,
    failed: bool,
    /// Start of the present run.
    started: Option<Timestamp>,
    /// What was last said of it.
    last_event: String,
}

impl Watched {
    fn new(task: &Task, duty: Duty) -> Self {
        Self {
            name: task.name.clone(),
            duty,
            is_main: task.lifecycle.is_none(),
            status: TaskStatus::Pending,
            failed: false,
            started: None,
            last_event: String::new(),
        }
    }

    fn see(&mut self, state: Option<&TaskState>) {
        let none = TaskState::default();
        let state = state.unwrap_or(&none);
        self.status = state.status;
        self.failed = state.failed;
        self.started = newest_start(state);
        self.last_event = reasons::last_event(state);
    }

    /// It will never be what it should be.
    fn is_broken(&self) -> bool {
        self.failed || self.duty == Duty::Run && self.status == TaskStatus::Dead
    }

    /// It is what it should be.
    fn is_good(&self) -> bool {
        match self.duty {
            Duty::Run => self.status == TaskStatus::Running && !self.failed,
            Duty::Succeed => self.status == TaskStatus::Dead && !self.failed,
        }
    }

    /// Since when, where that counts: how long ago a one-shot succeeded does not.
    fn good_since(&self) -> Option<Timestamp> {
        if self.duty == Duty::Run { self.started } else { None }
    }
}

/// The start of the present run. `started_at` is that of the first; the event of the newest start is
/// kept longest, and the decision to restart comes before it.
pub(super) fn newest_start(state: &TaskState) -> Option<Timestamp> {
    let events = state.events.iter().filter(|event| event.kind == EventKind::Started);
    let event = events.map(|event| event.time).max();
    event.max(state.last_restart).max(state.started_at)
}

/// Watches one allocation until there is a verdict. Drop it when the allocation is to stop: tasks
/// that end because they were asked to would be held against it.
#[derive(Clone, Debug)]
pub struct HealthMachine {
    policy: HealthPolicy,
    deadline: Timestamp,
    tasks: Vec<Watched>,
    /// In file order; empty where the policy does not ask for checks.
    expected: Vec<CheckId>,
    results: BTreeMap<CheckId, CheckResult>,
    /// When the timer fires that was last asked for.
    armed: Option<Timestamp>,
    judged: bool,
}

impl HealthMachine {
    /// Watch an allocation of `group` that was placed at `created_at`; the deadline counts from
    /// there, whatever restarts of the agent lie between. Give it the states of the tasks first.
    /// For an allocation that has its verdict none is to be made.
    #[must_use]
    pub fn new(policy: HealthPolicy, group: &TaskGroup, created_at: Timestamp) -> Self {
        let watched = |task: &HeldOnce<Task>| Some(Watched::new(task, duty(task)?));
        let expected = match policy.check {
            HealthCheck::Checks => expected_checks(group),
            HealthCheck::TaskStates | HealthCheck::Manual => Vec::new(),
        };
        Self {
            policy,
            deadline: created_at.plus(policy.healthy_deadline),
            tasks: group.tasks.iter().filter_map(watched).collect(),
            expected,
            results: BTreeMap::new(),
            armed: None,
            judged: false,
        }
    }

    /// Whether the verdict was given.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.judged
    }

    /// Whether results of checks matter to it.
    #[must_use]
    pub fn wants_checks(&self) -> bool {
        !self.judged && !self.expected.is_empty()
    }

    /// Take what happened and say what is to be done. Does nothing any more after the verdict.
    pub fn step(&mut self, now: Timestamp, input: HealthInput<'_>) -> Vec<HealthEffect> {
        if self.judged {
            return Vec::new();
        }
        match input {
            HealthInput::Tasks(states) => {
                self.tasks
                    .iter_mut()
                    .for_each(|task| task.see(states.get(&task.name).map(|state| &**state)));
            }
            HealthInput::Checks(results) => {
                let results = results.iter().map(|result| (result.id.clone(), result.clone()));
                self.results = results.collect();
            }
            HealthInput::TimerFired => self.armed = None,
            HealthInput::Said(healthy) => return self.verdict(self.said(healthy)),
        }
        if self.policy.check == HealthCheck::Manual {
            return Vec::new();
        }
        self.judge(now)
    }

    fn judge(&mut self, now: Timestamp) -> Vec<HealthEffect> {
        if self.tasks.iter().any(Watched::is_broken) {
            return self.verdict(self.broken());
        }
        // The end of the window, whenever somebody looks: a late timer changes no verdict.
        let healthy_at = self.good_since().map(|since| since.plus(self.policy.min_healthy_time));
        let in_time = healthy_at.filter(|at| *at <= self.deadline);
        match in_time {
            Some(at) if at <= now => self.verdict(self.healthy()),
            _ if self.deadline <= now => self.verdict(self.late(now)),
            _ => self.arm(now, in_time.unwrap_or(self.deadline)),
        }
    }

    /// Since when everything has been good; `None` while something is not.
    fn good_since(&self) -> Option<Timestamp> {
        if !self.tasks.iter().all(Watched::is_good) {
            return None;
        }
        let mut since = self.tasks.iter().filter_map(Watched::good_since).max();
        for id in &self.expected {
            let result = self.results.get(id).filter(|result| result.passing)?;
            since = since.max(Some(result.since));
        }
        // No task that should run has no start: such a state is not one a task can have.
        Some(since.unwrap_or_default())
    }

    fn arm(&mut self, now: Timestamp, due: Timestamp) -> Vec<HealthEffect> {
        if self.armed == Some(due) {
            return Vec::new();
        }
        self.armed = Some(due);
        vec![HealthEffect::Timer(due.since(now))]
    }

    fn verdict(&mut self, verdict: HealthVerdict) -> Vec<HealthEffect> {
        self.judged = true;
        vec![HealthEffect::Verdict(verdict)]
    }
}

#[cfg(test)]
mod tests;
