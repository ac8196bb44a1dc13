//! Which tasks of an allocation may start: the lifecycle coordinator.
//!
//! Every task runner waits at a gate before each run. The coordinator reads the states of all
//! tasks and opens the gates phase by phase:
//!
//! ```text
//! phase        gates open                                     left when
//! Init         none                                           every task is pending
//! Prestart     prestart                                       one-shots succeeded, sidecars run¹
//! Main         prestart sidecars, mains                       no main is pending
//! Poststart    prestart sidecars, mains, poststart            one-shots succeeded, sidecars run
//! WaitAlloc    prestart sidecars, mains, poststart sidecars   (only by the rule below)
//! Poststop     poststop                                       never
//!
//! ¹ or ended well
//! any phase ── every task but the poststop ones is dead ──► Poststop
//! ```
//! Gates of running tasks that close stay without effect until the task would run again. Pure:
//! level-triggered on the states, so a missed intermediate state does no harm.

use std::collections::BTreeMap;

use crate::by_task::ByTask;
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::TaskName;
use ostler_model::job::{Lifecycle, LifecycleHook, Task, TaskGroup};
use ostler_model::planted::planted;
use ostler_model::task::{TaskState, TaskStatus};

/// May a task start?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskGate {
    /// The task may start.
    Open,
    /// The task waits.
    Closed,
}

/// Where an allocation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskPhase {
    /// Nothing has begun; leftovers of an earlier life may still be on their way out.
    Init,
    /// Prestart tasks run.
    Prestart,
    /// Main tasks start.
    Main,
    /// Poststart tasks start.
    Poststart,
    /// Everything that was to start has started.
    WaitAlloc,
    /// Poststop tasks run.
    Poststop,
}

/// When a task runs in the life of its allocation; this decides its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    PrestartOnce,
    PrestartSidecar,
    Main,
    PoststartOnce,
    PoststartSidecar,
    Poststop,
}

impl Role {
    fn from_lifecycle(lifecycle: Option<Lifecycle>) -> Self {
        match lifecycle.map(|l| (l.hook, l.sidecar)) {
            None => Self::Main,
            Some((LifecycleHook::Prestart, false)) => Self::PrestartOnce,
            Some((LifecycleHook::Prestart, true)) => Self::PrestartSidecar,
            Some((LifecycleHook::Poststart, false)) => Self::PoststartOnce,
            Some((LifecycleHook::Poststart, true)) => Self::PoststartSidecar,
            Some((LifecycleHook::Poststop, _)) => Self::Poststop,
        }
    }

    fn gate_in(self, phase: TaskPhase) -> TaskGate {
        use TaskPhase::{Main, Poststart, Poststop, Prestart, WaitAlloc};
        let open = match self {
            Self::PrestartOnce => phase == Prestart,
            Self::PrestartSidecar => matches!(phase, Prestart | Main | Poststart | WaitAlloc),
            Self::Main => matches!(phase, Main | Poststart | WaitAlloc),
            Self::PoststartOnce => phase == Poststart,
            Self::PoststartSidecar => matches!(phase, Poststart | WaitAlloc),
            Self::Poststop => phase == Poststop,
        };
        if open { TaskGate::Open } else { TaskGate::Closed }
    }
}

/// The gates of one allocation.
#[derive(Clone, Debug)]
pub struct Coordinator {
    phase: TaskPhase,
    tasks: ByTask<(Role, TaskGate)>,
}

impl Coordinator {
    /// A coordinator of a new allocation: all gates are closed and nothing has begun.
    #[must_use]
    pub fn new(group: &TaskGroup) -> Self {
        Self::new_in_phase(group, TaskPhase::Init)
    }

    /// A coordinator of an allocation that was there before the agent. The first
    /// [`Coordinator::step`] goes forward to the phase of the stored states.
    #[must_use]
    pub fn new_restored(group: &TaskGroup) -> Self {
        Self::new_in_phase(group, TaskPhase::Prestart)
    }

    fn new_in_phase(group: &TaskGroup, phase: TaskPhase) -> Self {
        let closed = |task: &Task| {
            (task.name.clone(), (Role::from_lifecycle(task.lifecycle), TaskGate::Closed))
        };
        Self { phase, tasks: group.tasks.iter().map(|task| closed(task)).collect() }
    }

    /// The phase reached.
    #[must_use]
    pub fn phase(&self) -> TaskPhase {
        self.phase
    }

    /// The gate of a task; closed for one the group does not have.
    #[must_use]
    pub fn gate(&self, task: &TaskName) -> TaskGate {
        self.tasks.get(task).map_or(TaskGate::Closed, |(_, gate)| *gate)
    }

    /// Go forward as far as the states allow, and say which gates changed. A task absent from
    /// `states` counts as pending. Call once at the start and after each change.
    pub fn step(
        &mut self,
        states: &BTreeMap<TaskName, CowArc<TaskState>>,
    ) -> Vec<(TaskName, TaskGate)> {
        while let Some(next) = self.next_phase(states) {
            self.phase = next;
        }
        self.apply()
    }

    /// Take the roles of the tasks from a newer copy of the group. The tasks themselves
    /// are the same.
    pub fn update(&mut self, group: &TaskGroup) {
        for task in &group.tasks {
            if let Some((role, _)) = self.tasks.get_mut(&task.name) {
                *role = Role::from_lifecycle(task.lifecycle);
            }
        }
    }

    /// Begin a new life, for a restart of the whole allocation: closes all gates. Feed the next
    /// [`Coordinator::step`] with states taken after the tasks were asked to run again: the old
    /// ones (all dead) would read as the end.
    pub fn reset(&mut self) -> Vec<(TaskName, TaskGate)> {
        self.phase = TaskPhase::Init;
        self.apply()
    }

    /// The next phase, later than this one; so the walk ends.
    fn next_phase(&self, states: &BTreeMap<TaskName, CowArc<TaskState>>) -> Option<TaskPhase> {
        if self.phase == TaskPhase::Poststop {
            return None;
        }
        // A group of poststop tasks alone is at its end at once.
        if self.every(states, |role| role != Role::Poststop, |s| s.status == TaskStatus::Dead) {
            return Some(TaskPhase::Poststop);
        }
        let early = planted("main-before-prestart");
        let succeeded = |s: &TaskState| s.is_successful() || early;
        // A sidecar that ended well (in a batch job it is not started again) has had its turn;
        // waiting for it to run would wait for ever.
        let runs = |s: &TaskState| s.status == TaskStatus::Running || s.is_successful();
        match self.phase {
            TaskPhase::Init => self
                .every(states, |_| true, |s| s.status == TaskStatus::Pending)
                .then_some(TaskPhase::Prestart),
            TaskPhase::Prestart => (self.every(states, |r| r == Role::PrestartOnce, succeeded)
                && self.every(states, |r| r == Role::PrestartSidecar, runs))
            .then_some(TaskPhase::Main),
            TaskPhase::Main => self
                .every(states, |r| r == Role::Main, |s| s.status != TaskStatus::Pending)
                .then_some(TaskPhase::Poststart),
            TaskPhase::Poststart => (self.every(states, |r| r == Role::PoststartOnce, succeeded)
                && self.every(states, |r| r == Role::PoststartSidecar, runs))
            .then_some(TaskPhase::WaitAlloc),
            TaskPhase::WaitAlloc | TaskPhase::Poststop => None,
        }
    }

    /// Does `holds` hold for every task of the chosen roles?
    fn every(
        &self,
        states: &BTreeMap<TaskName, CowArc<TaskState>>,
        chosen: impl Fn(Role) -> bool,
        holds: impl Fn(&TaskState) -> bool,
    ) -> bool {
        let pending = TaskState::default();
        self.tasks
            .iter()
            .filter(|(_, (role, _))| chosen(*role))
            .all(|(name, _)| holds(states.get(name).map_or(&pending, |state| state)))
    }

    fn apply(&mut self) -> Vec<(TaskName, TaskGate)> {
        let mut changes = Vec::new();
        for (name, (role, gate)) in self.tasks.iter_mut() {
            let wanted = role.gate_in(self.phase);
            if std::mem::replace(gate, wanted) != wanted {
                changes.push((name.clone(), wanted));
            }
        }
        changes
    }
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
