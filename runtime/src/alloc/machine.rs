//! What an allocation does next: pure decisions, no clock, no I/O.
//!
//! ```text
//!   Preparing ── hooks done ──► Running ── all owners of tasks gone ──► Cleaning ── post hooks ──► Done
//!       │                          ▲ kill plan: [shutdown_delay] leader ─► mains ─► sidecars          │
//!       └─ hooks failed: every task fails and is killed ─► Running                                    │
//!                                                              Destroyed ◄── destroy hooks ── Destroying
//!   agent leaves: Preparing, Running ──► Leaving ── all owners of tasks gone ──► Left
//! ```
//! Every edge, by phase (a test compares this list with the code):
//!
//! ```text
//! edges:
//!   Preparing -> Running Leaving
//!   Running -> Cleaning Leaving
//!   Cleaning -> Done Destroying
//!   Done -> Destroying
//!   Destroying -> Destroyed
//!   Leaving -> Left
//!   Destroyed ->
//!   Left ->
//! ```
//! Level-triggered: each look at the states of all tasks gives the gates, the reason to stop the
//! rest, the next stage of a stop, and the public [`AllocState`]. A stop goes through stages; a stage
//! ends when its tasks are dead. Poststop tasks are left to the coordinator, which starts them when
//! the others are dead; a second stop ends them too, so that a person is never kept waiting.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::coordinator::{Coordinator, Gate};
use super::status::{client_status, kill_order, kill_reason, poststop_tasks};
use crate::model::alloc::AllocState;
use crate::model::event::TaskEvent;
use crate::model::ids::TaskName;
use crate::model::job::TaskGroup;
use crate::model::task::{TaskState, TaskStatus};
use crate::model::time::Timestamp;
use crate::task::events;

/// Where the owner of an allocation is; drawn in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocPhase {
    /// Pre-run hooks run.
    Preparing,
    /// Tasks run, wait, or are being stopped.
    Running,
    /// Every task ended; post-run hooks run.
    Cleaning,
    /// Finished; directory and records are kept.
    Done,
    /// Directory and records are being removed.
    Destroying,
    /// Nothing is left.
    Destroyed,
    /// The agent leaves; the owners of the tasks are ending.
    Leaving,
    /// The agent left; tasks run on.
    Left,
}

impl AllocPhase {
    /// Has the run ended, one way or another?
    #[must_use]
    pub fn finished(self) -> bool {
        matches!(self, Self::Done | Self::Destroying | Self::Destroyed | Self::Left)
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocInput {
    /// Pre-run hooks are done.
    HooksDone,
    /// A pre-run hook failed.
    HooksFailed {
        /// For the tasks' events.
        error: String,
    },
    /// States of all tasks, newest.
    Tasks(BTreeMap<TaskName, TaskState>),
    /// The owners of all tasks have ended.
    TasksGone,
    /// Somebody wants it to end.
    Stop {
        /// `kill_reason` of the tasks' events.
        reason: String,
    },
    /// The timer set last ran out.
    TimerFired,
    /// The agent leaves.
    Shutdown,
    /// Post-run hooks are done.
    Cleaned,
    /// Remove it; stops it first when needed.
    Destroy,
    /// Destroy hooks are done.
    Destroyed,
}

/// What the runner must do.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocEffect {
    /// Run the pre-run hooks; answer `HooksDone` or `HooksFailed`.
    PreHooks,
    /// Drop the pre-run hooks that run.
    AbandonPreHooks,
    /// Open or close gates.
    Gates(Vec<(TaskName, Gate)>),
    /// Kill these tasks.
    Kill {
        /// All at once.
        tasks: Vec<TaskName>,
        /// Said to each first.
        event: Option<TaskEvent>,
        /// `kill_reason` of the `Killing` event.
        reason: String,
    },
    /// Set the one timer; answer `TimerFired`.
    Timer(Duration),
    /// End every task's owner without touching the task.
    LeaveTasks,
    /// Run the post-run hooks; answer `Cleaned`.
    PostHooks,
    /// Run the destroy hooks; answer `Destroyed`.
    DestroyHooks,
}

/// A stop under way.
#[derive(Clone, Debug)]
struct KillPlan {
    event: Option<TaskEvent>,
    reason: String,
    /// Stages not begun.
    rest: VecDeque<Vec<TaskName>>,
    /// The stage under way.
    stage: Vec<TaskName>,
    /// The group's `shutdown_delay` is running.
    delayed: bool,
}

/// The decisions for one allocation.
#[derive(Debug)]
pub struct AllocMachine {
    group: TaskGroup,
    phase: AllocPhase,
    coordinator: Coordinator,
    states: BTreeMap<TaskName, TaskState>,
    public: AllocState,
    plan: Option<KillPlan>,
    /// Gates may open: the pre-run hooks are done.
    prepared: bool,
    destroy: bool,
    effects: Vec<AllocEffect>,
}

impl AllocMachine {
    /// An allocation never run before, and what to do first.
    #[must_use]
    pub fn new(
        group: TaskGroup,
        states: BTreeMap<TaskName, TaskState>,
    ) -> (Self, Vec<AllocEffect>) {
        let coordinator = Coordinator::new(&group);
        let mut machine = Self {
            group,
            phase: AllocPhase::Preparing,
            coordinator,
            states,
            public: AllocState::default(),
            plan: None,
            prepared: false,
            destroy: false,
            effects: Vec::new(),
        };
        machine.refresh_public();
        (machine, vec![AllocEffect::PreHooks])
    }

    /// Where it is.
    #[must_use]
    pub fn phase(&self) -> AllocPhase {
        self.phase
    }

    /// What the world sees.
    #[must_use]
    pub fn public(&self) -> &AllocState {
        &self.public
    }

    /// Take one input; what must be done now, in order.
    pub fn step(&mut self, now: Timestamp, input: AllocInput) -> Vec<AllocEffect> {
        use AllocPhase as P;
        match (self.phase, input) {
            (P::Preparing, AllocInput::HooksDone) => {
                self.phase = P::Running;
                self.prepared = true;
            }
            (P::Preparing, AllocInput::HooksFailed { error }) => {
                self.phase = P::Running;
                let event = events::setup_failure(now, &error).failing();
                self.kill_all(Some(event), &error);
            }
            (P::Preparing, AllocInput::Stop { reason }) => self.stop_preparing(&reason),
            (P::Running, AllocInput::Stop { reason }) => self.stop(&reason),
            (P::Preparing | P::Running | P::Leaving, AllocInput::Tasks(states)) => {
                self.states = states;
                self.refresh_public();
            }
            (P::Running, AllocInput::TimerFired) => {
                if let Some(plan) = &mut self.plan {
                    plan.delayed = false;
                }
            }
            (P::Running, AllocInput::TasksGone) => {
                self.phase = P::Cleaning;
                self.effects.push(AllocEffect::PostHooks);
            }
            (P::Preparing | P::Running, AllocInput::Shutdown) => {
                if self.phase == P::Preparing {
                    self.effects.push(AllocEffect::AbandonPreHooks);
                }
                self.phase = P::Leaving;
                self.effects.push(AllocEffect::LeaveTasks);
            }
            (P::Leaving, AllocInput::TasksGone) => self.phase = P::Left,
            (P::Cleaning, AllocInput::Cleaned) if self.destroy => self.destroy_now(),
            (P::Cleaning, AllocInput::Cleaned) => self.phase = P::Done,
            (P::Done, AllocInput::Destroy) => self.destroy_now(),
            (P::Preparing | P::Running | P::Cleaning, AllocInput::Destroy) => {
                self.destroy = true;
                match self.phase {
                    P::Preparing => self.stop_preparing("allocation destroyed"),
                    P::Running if self.plan.is_none() => self.stop("allocation destroyed"),
                    _ => {}
                }
            }
            (P::Destroying, AllocInput::Destroyed) => self.phase = P::Destroyed,
            _ => {}
        }
        self.look(now);
        std::mem::take(&mut self.effects)
    }

    fn destroy_now(&mut self) {
        self.phase = AllocPhase::Destroying;
        self.effects.push(AllocEffect::DestroyHooks);
    }

    /// Look at the states: gates, reasons to stop, next stage of a stop.
    fn look(&mut self, now: Timestamp) {
        if self.phase != AllocPhase::Running {
            return;
        }
        if self.plan.is_none()
            && let Some(reason) = kill_reason(&self.group, &self.states)
        {
            self.plan = Some(KillPlan {
                event: Some(reason.event(now)),
                reason: reason.to_string(),
                rest: kill_order(&self.group).into(),
                stage: Vec::new(),
                delayed: false,
            });
        }
        self.advance_plan();
        if self.prepared {
            let changes = self.coordinator.step(&self.states);
            if !changes.is_empty() {
                self.effects.push(AllocEffect::Gates(changes));
            }
        }
    }

    fn advance_plan(&mut self) {
        let Some(mut plan) = self.plan.take() else {
            return;
        };
        while !plan.delayed && self.live(&plan.stage).is_empty() {
            let Some(next) = plan.rest.pop_front() else {
                break;
            };
            let live = self.live(&next);
            plan.stage = next;
            if !live.is_empty() {
                self.effects.push(AllocEffect::Kill {
                    tasks: live,
                    event: plan.event.clone(),
                    reason: plan.reason.clone(),
                });
            }
        }
        self.plan = Some(plan);
    }

    fn live(&self, tasks: &[TaskName]) -> Vec<TaskName> {
        let dead =
            |t: &&TaskName| self.states.get(*t).is_some_and(|s| s.status == TaskStatus::Dead);
        tasks.iter().filter(|t| !dead(t)).cloned().collect()
    }

    fn stop(&mut self, reason: &str) {
        if let Some(plan) = &mut self.plan {
            // Asked again: no more waiting, and poststop tasks need not run to their end.
            plan.delayed = false;
            let asked: BTreeSet<TaskName> = plan.stage.iter().cloned().collect();
            let poststop = self.live(&poststop_tasks(&self.group));
            let others_dead = self.group.tasks.iter().all(|t| {
                poststop.contains(&t.name)
                    || self.states.get(&t.name).is_some_and(|s| s.status == TaskStatus::Dead)
            });
            // One that is being killed already is not killed again.
            let waiting: Vec<_> = poststop.into_iter().filter(|t| !asked.contains(t)).collect();
            if others_dead && !waiting.is_empty() {
                if let Some(plan) = &mut self.plan {
                    plan.stage.extend(waiting.iter().cloned());
                }
                self.effects.push(AllocEffect::Kill {
                    tasks: waiting,
                    event: None,
                    reason: reason.to_owned(),
                });
            }
            return;
        }
        let rest: VecDeque<_> = kill_order(&self.group).into();
        let any_live = rest.iter().any(|stage| !self.live(stage).is_empty());
        let delay = self.group.shutdown_delay.filter(|d| any_live && !d.is_zero());
        if let Some(delay) = delay {
            self.effects.push(AllocEffect::Timer(delay));
        }
        self.plan = Some(KillPlan {
            event: None,
            reason: reason.to_owned(),
            rest,
            stage: Vec::new(),
            delayed: delay.is_some(),
        });
    }

    /// Stopped before anything could run: poststop tasks have nothing to come after.
    fn stop_preparing(&mut self, reason: &str) {
        self.effects.push(AllocEffect::AbandonPreHooks);
        self.phase = AllocPhase::Running;
        self.kill_all(None, reason);
    }

    fn kill_all(&mut self, event: Option<TaskEvent>, reason: &str) {
        let all: BTreeSet<TaskName> = self.group.tasks.iter().map(|t| t.name.clone()).collect();
        self.plan = Some(KillPlan {
            event,
            reason: reason.to_owned(),
            rest: VecDeque::from([all.into_iter().collect()]),
            stage: Vec::new(),
            delayed: false,
        });
    }

    fn refresh_public(&mut self) {
        let (status, description) = client_status(&self.states);
        self.public = AllocState {
            client_status: status,
            client_description: description.to_owned(),
            tasks: self.states.clone(),
            health: None,
        };
    }
}

#[cfg(test)]
mod tests;
