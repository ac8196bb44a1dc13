//! Derives from the states of an allocation's tasks the client status of the allocation, whether
//! and why the living tasks must be stopped, and in which order.
//!
//! ```text
//! any dead and failed ─► failed     any running ─► running
//! any pending ─────────► pending    all dead ────► complete      (first that holds)
//!
//! kill order:  leader ─► mains, one-shot prestart and poststart ─► sidecars     (poststop: never)
//! ```
//! Pure functions of the group and the states. A task absent from the states counts as pending.

use std::collections::BTreeMap;
use std::fmt;

use ostler_model::alloc::ClientStatus;
use ostler_model::cow_arc::CowArc;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::TaskName;
use ostler_model::job::{LifecycleHook, Task, TaskGroup};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

/// The client status of an allocation, and a sentence on it. While the status is `Failed`, sibling
/// tasks may still be ending.
#[must_use]
pub fn client_status(
    states: &BTreeMap<TaskName, CowArc<TaskState>>,
) -> (ClientStatus, &'static str) {
    let any = |status: TaskStatus| states.values().any(|s| s.status == status);
    if states.values().any(|s| s.status == TaskStatus::Dead && s.failed) {
        (ClientStatus::Failed, "Failed tasks")
    } else if any(TaskStatus::Running) {
        (ClientStatus::Running, "Tasks are running")
    } else if any(TaskStatus::Pending) {
        (ClientStatus::Pending, pending_text(states))
    } else if any(TaskStatus::Dead) {
        (ClientStatus::Complete, "All tasks have completed")
    } else {
        (ClientStatus::Pending, "")
    }
}

/// The sentence on an allocation of which no task runs, but one may still start.
fn pending_text(states: &BTreeMap<TaskName, CowArc<TaskState>>) -> &'static str {
    let ran = |state: &CowArc<TaskState>| state.started_at.is_some();
    if states.values().any(|s| s.status == TaskStatus::Pending && ran(s)) {
        "Tasks wait to be started again"
    } else if states.values().any(ran) {
        "Not all tasks have started"
    } else {
        "No tasks have started"
    }
}

/// Why the living tasks of an allocation are stopped without anybody asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// The leader ended.
    LeaderDead {
        /// The task that is the leader of its group.
        leader: TaskName,
    },
    /// A task failed for good.
    SiblingFailed {
        /// The task that failed.
        sibling: TaskName,
    },
    /// Only sidecars are left.
    MainTasksDead,
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaderDead { .. } => f.write_str("Leader Task in Group dead"),
            Self::SiblingFailed { sibling } => write!(f, "Task's sibling \"{sibling}\" failed"),
            Self::MainTasksDead => f.write_str("Main tasks in the group died"),
        }
    }
}

impl KillReason {
    /// The event for each task that is stopped.
    #[must_use]
    pub fn event(&self, now: Timestamp) -> TaskEvent {
        let text = self.to_string();
        match self {
            Self::LeaderDead { .. } => TaskEvent::new(EventKind::LeaderDead, now, text),
            Self::SiblingFailed { sibling } => TaskEvent::new(EventKind::SiblingFailed, now, text)
                .detail("failed_sibling", sibling),
            Self::MainTasksDead => TaskEvent::new(EventKind::MainTasksDead, now, text),
        }
    }
}

/// Must the living tasks be stopped, and why? `None` also when nothing but poststop tasks lives.
/// A dead leader wins over a failed sibling, that over dead main tasks. Poststop tasks neither
/// cause this nor are they stopped by it.
#[must_use]
pub fn kill_reason(
    group: &TaskGroup,
    states: &BTreeMap<TaskName, CowArc<TaskState>>,
) -> Option<KillReason> {
    let counted = || group.tasks.iter().map(|task| &**task).filter(|t| !is_poststop(t));
    let dead = |task: &Task| state_of(states, task).is_some_and(|s| s.status == TaskStatus::Dead);
    if counted().all(dead) {
        return None;
    }
    if let Some(leader) = counted().find(|t| t.leader && dead(t)) {
        return Some(KillReason::LeaderDead { leader: leader.name.clone() });
    }
    let failed = |task: &Task| state_of(states, task).is_some_and(|s| s.failed);
    if let Some(sibling) = counted().find(|t| dead(t) && failed(t)) {
        return Some(KillReason::SiblingFailed { sibling: sibling.name.clone() });
    }
    let only_sidecars_live = counted().filter(|t| !dead(t)).all(is_sidecar);
    // A group of sidecars alone has no main tasks that could have died.
    let has_main = counted().any(|t| t.lifecycle.is_none());
    (only_sidecars_live && has_main).then_some(KillReason::MainTasksDead)
}

/// The stages in which an allocation's tasks are stopped: the tasks of a stage at once, then wait
/// for all of them, then the next stage. Empty stages are left out, poststop tasks too: they run
/// when the others are dead.
#[must_use]
pub fn kill_order(group: &TaskGroup) -> Vec<Vec<TaskName>> {
    let leader = group.tasks.iter().position(|t| t.leader && !is_poststop(t));
    let stage_of = |(index, task): (usize, &Task)| match (Some(index) == leader, is_sidecar(task)) {
        _ if is_poststop(task) => None,
        (true, _) => Some(0),
        (false, false) => Some(1),
        (false, true) => Some(2),
    };
    (0..3_u8)
        .map(|stage| {
            let tasks = group.tasks.iter().map(|task| &**task).enumerate();
            tasks.filter(|t| stage_of(*t) == Some(stage)).map(|(_, t)| t.name.clone()).collect()
        })
        .filter(|stage: &Vec<TaskName>| !stage.is_empty())
        .collect()
}

/// The tasks that run when all others are dead.
#[must_use]
pub fn poststop_tasks(group: &TaskGroup) -> Vec<TaskName> {
    group.tasks.iter().filter(|t| is_poststop(t)).map(|t| t.name.clone()).collect()
}

fn state_of<'a>(
    states: &'a BTreeMap<TaskName, CowArc<TaskState>>,
    task: &Task,
) -> Option<&'a TaskState> {
    states.get(&task.name).map(|state| &**state)
}

/// Does the task run when all others are dead?
#[must_use]
pub fn is_poststop(task: &Task) -> bool {
    task.lifecycle.is_some_and(|l| l.hook == LifecycleHook::Poststop)
}

fn is_sidecar(task: &Task) -> bool {
    task.lifecycle.is_some_and(|l| l.sidecar && l.hook != LifecycleHook::Poststop)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
