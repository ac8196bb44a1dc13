//! Decides when an allocation is healthy. Pure: no clock, no I/O.
//!
//! ```text
//!             task states, check results, time
//!                          │
//!                          ▼
//!   Waiting ── good without a break for min_healthy_time ──────────────► Healthy
//!      │ ╲──── a task failed, or ended that should run ────────────────► Unhealthy, at once
//!      ╰────── healthy_deadline after the allocation was placed ───────► Unhealthy
//! ```
//! *Good* is: every task that should run runs, every one-shot beside them succeeded, and, where
//! the policy is [`HealthCheck::Checks`], every check of the group passes. A check without an
//! answer does not pass. Since when a task runs is read from the newest states, so a state or
//! result that was replaced before anybody looked does no harm: a start or a return to passing
//! begins the time anew.
//!
//! ```text
//! task            must             is blamed when
//! main, sidecar   run              it failed, ended, does not run, or not long enough
//! one-shot        have succeeded   it failed, or is not done
//! poststop        nothing          never
//! ```
//! There is one verdict. After the verdict the machine does nothing any more, whatever happens.

mod reasons;

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::cow_arc::CowArc;
use ostler_model::event::EventKind;
use ostler_model::ids::TaskName;
use ostler_model::job::{
    Check, CheckStatus, HealthCheck, HealthPolicy, LifecycleHook, OnUpdate, Service, Task,
    TaskGroup,
};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

/// Which check of an allocation, in the words of the job file. Names are not interpolated here, so
/// that an expected check and its result have the same id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId {
    /// The task that offers the service; `None`: the group offers it.
    pub task: Option<TaskName>,
    /// Name of the service as it stands in the job file.
    pub service: String,
    /// Port of the service: services of the same name differ in their ports.
    pub port: Option<String>,
    /// Name of the check; unique in its service.
    pub check: String,
}

impl CheckId {
    /// The id of a check of a service.
    #[must_use]
    pub fn from_check(service: &Service, check: &Check) -> Self {
        Self {
            task: service.task.clone(),
            service: service.name.clone(),
            port: service.port.clone(),
            check: check.name.clone(),
        }
    }
}

/// The present result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// The check that the result is of.
    pub id: CheckId,
    /// Name of the service in the list of the node.
    pub service: String,
    /// Name of the check with its references replaced.
    pub name: String,
    /// Status of the check after its thresholds.
    pub status: CheckStatus,
    /// A deployment accepts the status: the check passes, unless `on_update` accepts more.
    pub passing: bool,
    /// Status code of the last HTTP answer.
    pub code: Option<u16>,
    /// Text of the last answer, or why there is none; at most
    /// [`ostler_model::limits::CHECK_OUTPUT_BYTES_MAX`].
    pub output: String,
    /// When `passing` changed last.
    pub since: Timestamp,
    /// When the check was answered last.
    pub answered: Option<Timestamp>,
}

/// The checks of a group that a deployment waits for, in file order.
#[must_use]
pub fn expected_checks(group: &TaskGroup) -> Vec<CheckId> {
    let ids = group.services.iter().flat_map(|service| {
        let asked = service.checks.iter().filter(|check| check.on_update != OnUpdate::Ignore);
        asked.map(|check| CheckId::from_check(service, check))
    });
    ids.collect()
}

/// An input of the machine: what happened.
#[derive(Clone, Copy, Debug)]
pub enum HealthInput<'a> {
    /// The newest states of the tasks. A missing task counts as pending.
    Tasks(&'a BTreeMap<TaskName, CowArc<TaskState>>),
    /// The newest results of the checks. A missing check counts as not passing.
    Checks(&'a [CheckResult]),
    /// The time of the last [`HealthEffect::Timer`] is over.
    TimerFired,
    /// The allocation is set healthy or unhealthy by request.
    Requested(bool),
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
    /// The allocation is healthy.
    pub healthy: bool,
    /// All reasons in one text, at most [`ostler_model::limits::HEALTH_TEXT_BYTES_MAX`].
    pub text: String,
    /// The reason for each task that gets an event, at most
    /// [`ostler_model::limits::HEALTH_REASON_BYTES_MAX`] each. A task that did nothing wrong gets
    /// none, except that the main tasks get failing checks of the group. Empty when healthy.
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

/// The duty of a task; poststop tasks have none.
fn duty(task: &Task) -> Option<Duty> {
    match task.lifecycle {
        Some(lifecycle) if lifecycle.hook == LifecycleHook::Poststop => None,
        Some(lifecycle) if !lifecycle.sidecar => Some(Duty::Succeed),
        _ => Some(Duty::Run),
    }
}

/// A task, and the part of its newest state that matters for the health.
#[derive(Clone, Debug)]
struct WatchedTask {
    name: TaskName,
    duty: Duty,
    is_main: bool,
    status: TaskStatus,
    failed: bool,
    /// Start of the present run.
    started: Option<Timestamp>,
    /// Text of the event that is quoted when the task is blamed.
    last_event: String,
}

impl WatchedTask {
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

    fn take_state(&mut self, state: Option<&TaskState>) {
        let none = TaskState::default();
        let state = state.unwrap_or(&none);
        self.status = state.status;
        self.failed = state.failed;
        self.started = newest_start(state);
        self.last_event = reasons::last_event(state);
    }

    /// The task can no longer become good.
    fn is_broken(&self) -> bool {
        self.failed || self.duty == Duty::Run && self.status == TaskStatus::Dead
    }

    /// The task fulfils its duty now.
    fn is_good(&self) -> bool {
        match self.duty {
            Duty::Run => self.status == TaskStatus::Running && !self.failed,
            Duty::Succeed => self.status == TaskStatus::Dead && !self.failed,
        }
    }

    /// Since when the task fulfils its duty. `None` for a one-shot, whose time of success
    /// does not count.
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

/// Watches one allocation until there is a verdict. Drop the machine when the allocation is to
/// stop: tasks that end because they were asked to would count against the allocation.
#[derive(Clone, Debug)]
pub struct HealthMachine {
    policy: HealthPolicy,
    deadline: Timestamp,
    tasks: Vec<WatchedTask>,
    /// In file order; empty where the policy does not ask for checks.
    expected: Vec<CheckId>,
    results: BTreeMap<CheckId, CheckResult>,
    /// When the timer fires that was requested last.
    armed: Option<Timestamp>,
    judged: bool,
}

impl HealthMachine {
    /// Watch an allocation of `group` that was placed at `created_at`. The deadline counts from
    /// that time, whatever restarts of the agent lie between. Give the machine the states of the
    /// tasks first. An allocation that has its verdict needs no machine.
    #[must_use]
    pub fn new(policy: HealthPolicy, group: &TaskGroup, created_at: Timestamp) -> Self {
        let watched = |task: &CowArc<Task>| Some(WatchedTask::new(task, duty(task)?));
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

    /// Whether results of checks matter for the verdict.
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
                    .for_each(|task| task.take_state(states.get(&task.name).map(|state| &**state)));
            }
            HealthInput::Checks(results) => {
                let results = results.iter().map(|result| (result.id.clone(), result.clone()));
                self.results = results.collect();
            }
            HealthInput::TimerFired => self.armed = None,
            HealthInput::Requested(healthy) => {
                return self.verdict(self.requested_verdict(healthy));
            }
        }
        if self.policy.check == HealthCheck::Manual {
            return Vec::new();
        }
        self.judge(now)
    }

    fn judge(&mut self, now: Timestamp) -> Vec<HealthEffect> {
        if self.tasks.iter().any(WatchedTask::is_broken) {
            return self.verdict(self.broken_verdict());
        }
        // The end of the window counts, not the time of the look: a late timer changes no verdict.
        let healthy_at = self.good_since().map(|since| since.plus(self.policy.min_healthy_time));
        let in_time = healthy_at.filter(|at| *at <= self.deadline);
        match in_time {
            Some(at) if at <= now => self.verdict(self.healthy_verdict()),
            _ if self.deadline <= now => self.verdict(self.late_verdict(now)),
            _ => self.arm(now, in_time.unwrap_or(self.deadline)),
        }
    }

    /// Since when everything has been good; `None` while something is not.
    fn good_since(&self) -> Option<Timestamp> {
        if !self.tasks.iter().all(WatchedTask::is_good) {
            return None;
        }
        let mut since = self.tasks.iter().filter_map(WatchedTask::good_since).max();
        for id in &self.expected {
            let result = self.results.get(id).filter(|result| result.passing)?;
            since = since.max(Some(result.since));
        }
        // A running task always has a start, so the default is never used for one.
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
