//! What an allocation does next: pure decisions, no clock, no I/O.
//!
//! ```text
//!   Preparing ── hooks done ──► Running ── all owners of tasks gone ──► Cleaning ── post hooks ──► Done
//!       │                          ▲ kill plan: [hooks] [delay] leader ─► mains ─► sidecars           │
//!       ├─ hooks failed: every task fails and is killed ─► Running                                    │
//!       └─ the same while a task of an earlier agent runs: tried again, nothing of it is ended        │
//!                                                              Destroyed ◄── destroy hooks ── Destroying
//!   agent leaves: Preparing, Running ──► Leaving ── all owners of tasks gone ──► Left
//!                 Cleaning, while a post-run hook waits or the end cannot be written ──► Left
//!
//!   an allocation of an earlier agent begins at
//!     Done        it had finished: nothing is run any more
//!     Running     it is to stop, had ended, or cannot be read: no pre-run hooks; what lives is killed
//!     Preparing   otherwise: hooks are run again while its tasks are owned again
//! ```
//! Every edge, by phase (a test compares this list with the code):
//!
//! ```text
//! edges:
//!   Preparing -> Running Cleaning Leaving
//!   Running -> Cleaning Leaving
//!   Cleaning -> Done Destroying Left
//!   Done -> Destroying
//!   Destroying -> Destroyed
//!   Leaving -> Left
//!   Destroyed ->
//!   Left ->
//! ```
//! Level-triggered: each look at the states of all tasks gives the gates, the reason to stop the
//! rest, the next stage of a stop, and the public [`AllocState`]. A stop goes through stages; a stage
//! ends when its tasks are dead; while a stop is under way only poststop tasks may start. Those are
//! left to the coordinator, which starts them when the others are dead; a second stop ends them too,
//! so that a person is never kept waiting. Tasks that ended stay restartable until all have ended:
//! then pre-kill hooks run, unless a stop ran them, and the tasks are told that it is over.
//!
//! The client status is derived from the tasks, or forced (run too long, disk full, records
//! unreadable). A verdict on the health is given once for a deployment; it is told when it is durable.

mod look;
mod plan;
mod public;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::coordinator::{Coordinator, Gate};
use super::status::is_poststop;
use crate::by_task::ByTask;
use crate::task::events;
use ostler_model::alloc::{AllocState, ClientStatus};
use ostler_model::event::TaskEvent;
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::TaskName;
use ostler_model::job::TaskGroup;
use ostler_model::limits::HOOK_RETRY;
use ostler_model::saved::DeploymentStatus;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

use self::plan::KillPlan;
pub use self::types::{AllocEffect, AllocInput, AllocPhase, Blame, RecordedAlloc, RestartRefusal};

/// Hooks that run once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hooks {
    NotRun,
    Running,
    Done,
}

/// A restart of the whole allocation.
#[derive(Clone, Debug)]
enum Restart {
    /// Its hooks run.
    Hooks {
        /// For the tasks' events.
        reason: String,
    },
    /// The tasks are being told; until all are, their states say nothing about the end.
    Asking,
}

/// The decisions for one allocation.
#[derive(Clone, Debug)]
pub struct AllocMachine {
    group: TaskGroup,
    phase: AllocPhase,
    coordinator: Coordinator,
    /// As told to the tasks last.
    gates: ByTask<Gate>,
    states: Arc<BTreeMap<TaskName, HeldOnce<TaskState>>>,
    public: AllocState,
    plan: Option<KillPlan>,
    restart: Option<Restart>,
    /// Gates may open: the pre-run hooks are done.
    prepared: bool,
    /// Some task was started.
    started: bool,
    pre_kill: Hooks,
    /// The tasks know that it is over.
    finishing: bool,
    /// The owners of all tasks have ended.
    gone: bool,
    /// Post-run hooks are done.
    cleaned: bool,
    destroy: bool,
    /// The agent leaves.
    leaving: bool,
    forced: Option<(ClientStatus, String)>,
    /// An earlier agent had it.
    restored: bool,
    /// How often pre-run hooks were tried again, and why the last time.
    retries: u32,
    trouble: Option<String>,
    /// What a hook waits for, before the first task or after the last.
    waiting: Option<String>,
    health: Option<DeploymentStatus>,
    /// What a verdict is for.
    deployment: Option<Box<str>>,
    /// On its way to the disk, with what to tell then.
    verdict: Option<(DeploymentStatus, Vec<(TaskName, TaskEvent)>)>,
    /// When it was first seen to have ended.
    ended_at: Option<Timestamp>,
    effects: Vec<AllocEffect>,
}

impl AllocMachine {
    /// An allocation never run before, and what to do first.
    #[must_use]
    pub fn new(
        group: TaskGroup,
        states: BTreeMap<TaskName, HeldOnce<TaskState>>,
    ) -> (Self, Vec<AllocEffect>) {
        let coordinator = Coordinator::new(&group);
        let mut machine = Self::at(AllocPhase::Preparing, group, coordinator, states);
        machine.refresh_public(Timestamp::default());
        (machine, vec![AllocEffect::PreHooks])
    }

    /// An allocation of an earlier agent, and what to do first.
    #[must_use]
    pub fn restore(
        now: Timestamp,
        group: TaskGroup,
        states: BTreeMap<TaskName, HeldOnce<TaskState>>,
        known: RecordedAlloc,
    ) -> (Self, Vec<AllocEffect>) {
        let coordinator = Coordinator::restored(&group);
        let mut machine = Self::at(AllocPhase::Preparing, group, coordinator, states);
        machine.restored = true;
        machine.health = known.health;
        machine.started |= known.started;
        let saved = known.saved.unwrap_or_default();
        if saved.finished {
            machine.phase = AllocPhase::Done;
            machine.forced = Some((saved.client_status, saved.client_description));
            machine.refresh_public(now);
            return (machine, Vec::new());
        }
        let ended = machine.derived().0.terminal() || saved.client_status.terminal();
        if let Some(trouble) = known.trouble {
            machine.phase = AllocPhase::Running;
            let event = events::setup_failure(now, &trouble).failing();
            machine.force(ClientStatus::Failed, trouble, Some(event));
        } else if saved.forced {
            machine.phase = AllocPhase::Running;
            machine.force(saved.client_status, saved.client_description, None);
        } else if let Some(reason) = known.stop {
            machine.stop(&reason, false);
            machine.resume_ended();
        } else if ended {
            // The allocation had ended, and no task has a record: none is started now.
            if !machine.started && !machine.derived().0.terminal() {
                machine.stop("the allocation had ended before", false);
            }
            machine.resume_ended();
        } else {
            machine.effects.push(AllocEffect::PreHooks);
        }
        machine.look(now);
        machine.refresh_public(now);
        let first = std::mem::take(&mut machine.effects);
        (machine, first)
    }

    fn at(
        phase: AllocPhase,
        group: TaskGroup,
        coordinator: Coordinator,
        states: BTreeMap<TaskName, HeldOnce<TaskState>>,
    ) -> Self {
        let gates = group.tasks.iter().map(|t| (t.name.clone(), Gate::Closed)).collect();
        let mut machine = Self {
            group,
            phase,
            coordinator,
            gates,
            states: Arc::default(),
            public: AllocState::default(),
            plan: None,
            restart: None,
            prepared: false,
            started: false,
            pre_kill: Hooks::NotRun,
            finishing: false,
            gone: false,
            cleaned: false,
            destroy: false,
            leaving: false,
            forced: None,
            restored: false,
            retries: 0,
            trouble: None,
            waiting: None,
            health: None,
            deployment: None,
            verdict: None,
            ended_at: None,
            effects: Vec::new(),
        };
        machine.take_states(states);
        machine
    }

    /// It needs no pre-run hooks any more: only an end in order.
    fn resume_ended(&mut self) {
        self.phase = AllocPhase::Running;
        self.prepared = self.started;
        self.effects.retain(|effect| *effect != AllocEffect::AbandonPreHooks);
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

    /// Is it being stopped, by whomever?
    #[must_use]
    pub fn ending(&self) -> bool {
        self.plan.is_some()
    }

    /// Is the status forced?
    #[must_use]
    pub fn forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Why a restart of the whole allocation, or of a task of it, is not possible now.
    #[must_use]
    pub fn restart_refusal(&self) -> Option<RestartRefusal> {
        if !matches!(self.phase, AllocPhase::Preparing | AllocPhase::Running) {
            return Some(RestartRefusal::Ended);
        }
        if self.public.client_status.terminal() || self.finishing {
            return Some(RestartRefusal::Ended);
        }
        // Where only poststop tasks are left, it ends by itself.
        let mut others = self.group.tasks.iter().filter(|task| !is_poststop(task));
        if self.plan.is_some() || others.all(|task| self.is_dead(&task.name)) {
            return Some(RestartRefusal::Ending);
        }
        self.restart.is_some().then_some(RestartRefusal::Restarting)
    }

    /// Take one input; what must be done now, in order.
    pub fn step(&mut self, now: Timestamp, input: AllocInput) -> Vec<AllocEffect> {
        match self.phase {
            AllocPhase::Preparing | AllocPhase::Running => self.living(now, input),
            AllocPhase::Leaving => match input {
                AllocInput::Tasks(states) => self.take_states(states),
                AllocInput::TasksGone => self.phase = AllocPhase::Left,
                AllocInput::HealthSaved => self.health_saved(),
                _ => {}
            },
            _ => self.over(input),
        }
        self.look(now);
        self.refresh_public(now);
        std::mem::take(&mut self.effects)
    }

    /// While it prepares or runs.
    fn living(&mut self, now: Timestamp, input: AllocInput) {
        let preparing = self.phase == AllocPhase::Preparing;
        match input {
            AllocInput::HooksDone if preparing => {
                self.phase = AllocPhase::Running;
                self.prepared = true;
                self.waiting = None;
            }
            AllocInput::HooksFailed { error, blame } if preparing => {
                let again = match blame {
                    Blame::Node => true,
                    Blame::Nobody => self.restored,
                    Blame::Alloc => self.restored && self.runs(),
                };
                if again {
                    self.prepare_again(now, error);
                    return;
                }
                self.phase = AllocPhase::Running;
                self.waiting = None;
                let event = events::setup_failure(now, &error).failing();
                self.end_all(Some(event), &error);
            }
            AllocInput::Waiting { what } if preparing => self.waiting = what,
            AllocInput::Network(status) => self.public.network = Some(Arc::new(status)),
            AllocInput::Tasks(states) => self.take_states(states),
            AllocInput::TasksGone => self.gone = true,
            AllocInput::Update { group, hooks } => self.update(*group, hooks),
            AllocInput::Stop { reason, skip_shutdown_delay } => {
                self.stop(&reason, skip_shutdown_delay);
            }
            AllocInput::Force { status, description, event } => {
                self.force(status, description, event);
            }
            AllocInput::PreKilled => self.pre_kill = Hooks::Done,
            AllocInput::RestartAll { reason } if self.restart_refusal().is_none() => {
                self.restart = Some(Restart::Hooks { reason });
                self.effects.push(AllocEffect::RestartHooks);
            }
            AllocInput::RestartReady { ok } => self.restart_ready(ok),
            AllocInput::RestartAsked => self.restart = None,
            AllocInput::Deployed(deployment) => self.deployed(deployment),
            AllocInput::Verdict { healthy, reasons } => self.judge(now, healthy, &reasons),
            AllocInput::HealthSaved => self.health_saved(),
            AllocInput::TimerFired => {
                if let Some(plan) = &mut self.plan {
                    plan.timer_fired();
                }
            }
            // Once all owners are gone nothing runs on, and what is left to do is bounded, unless a
            // hook waits.
            AllocInput::Shutdown if self.gone => self.leaving = true,
            AllocInput::Shutdown => self.leave(),
            AllocInput::Destroy => {
                self.destroy = true;
                if self.plan.is_none() {
                    self.stop("allocation destroyed", false);
                }
            }
            _ => {}
        }
    }

    /// Does some task run?
    fn runs(&self) -> bool {
        self.states.values().any(|state| state.status == TaskStatus::Running)
    }

    /// Pre-run hooks failed. What runs is not ended for that, and what the node is short of says nothing of the
    /// allocation and may come back: tried again ever more slowly, said once.
    fn prepare_again(&mut self, now: Timestamp, error: String) {
        if self.trouble.as_ref() != Some(&error) {
            let event = events::preparing_again(now, &error);
            let tasks = self.states.iter().filter(|(_, state)| state.status != TaskStatus::Dead);
            let notes = tasks.map(|(task, _)| (task.clone(), event.clone())).collect();
            self.effects.push(AllocEffect::Notes(notes));
        }
        self.waiting = Some(error.clone());
        self.trouble = Some(error);
        let pause = HOOK_RETRY.start().saturating_mul(1 << self.retries.min(16));
        self.retries = self.retries.saturating_add(1);
        self.effects.push(AllocEffect::PreHooksAfter(pause.min(*HOOK_RETRY.end())));
    }

    /// Once every task has ended.
    fn over(&mut self, input: AllocInput) {
        match (self.phase, input) {
            (AllocPhase::Cleaning, AllocInput::Cleaned) => self.cleaned = true,
            (AllocPhase::Cleaning | AllocPhase::Done, AllocInput::Destroy) => self.destroy = true,
            (AllocPhase::Cleaning, AllocInput::HealthSaved) => self.health_saved(),
            (AllocPhase::Cleaning, AllocInput::Waiting { what }) => self.waiting = what,
            (AllocPhase::Cleaning, AllocInput::Shutdown) => self.leaving = true,
            (AllocPhase::Cleaning, AllocInput::NotSaved) => self.phase = AllocPhase::Left,
            (AllocPhase::Destroying, AllocInput::Destroyed) => self.phase = AllocPhase::Destroyed,
            _ => {}
        }
        self.give_up_waiting();
        // The phase says that it has ended only when the verdict on its health is durable.
        let cleaned = self.phase == AllocPhase::Cleaning && self.cleaned && self.verdict.is_none();
        if self.destroy && (cleaned || self.phase == AllocPhase::Done) {
            self.phase = AllocPhase::Destroying;
            self.effects.push(AllocEffect::DestroyHooks);
        } else if cleaned {
            self.phase = AllocPhase::Done;
        }
    }

    /// Whoever removes the allocation, and an agent that leaves, does not wait with a post-run hook.
    fn give_up_waiting(&mut self) {
        let waits = self.phase == AllocPhase::Cleaning && !self.cleaned && self.waiting.is_some();
        if !waits || !(self.destroy || self.leaving) {
            return;
        }
        self.effects.push(AllocEffect::AbandonPostHooks);
        if self.destroy {
            self.cleaned = true;
        } else {
            // The hook is not done: the next agent runs it again.
            self.phase = AllocPhase::Left;
        }
    }

    fn take_states(&mut self, states: BTreeMap<TaskName, HeldOnce<TaskState>>) {
        self.states = Arc::new(states);
        let begun =
            |s: &HeldOnce<TaskState>| s.status == TaskStatus::Running || s.started_at.is_some();
        self.started |= self.states.values().any(begun);
    }

    fn update(&mut self, group: TaskGroup, hooks: bool) {
        self.coordinator.update(&group);
        self.group = group;
        if hooks && self.plan.is_none() && !self.public.client_status.terminal() {
            self.effects.push(AllocEffect::UpdateHooks);
        }
    }

    /// It ends with this status, whatever its tasks say.
    fn force(&mut self, status: ClientStatus, description: String, event: Option<TaskEvent>) {
        if self.forced.is_some() || self.finishing {
            return;
        }
        if self.phase == AllocPhase::Preparing {
            self.effects.push(AllocEffect::AbandonPreHooks);
            self.phase = AllocPhase::Running;
        }
        self.end_all(event, &description);
        self.forced = Some((status, description));
    }

    fn restart_ready(&mut self, ok: bool) {
        let Some(Restart::Hooks { reason }) = self.restart.take() else {
            return;
        };
        // All of them may have ended, and been told to finish, while the hooks ran.
        if ok && !self.finishing {
            self.restart = Some(Restart::Asking);
            self.coordinator.reset();
            self.set_gates();
            self.effects.push(AllocEffect::ForceRestart { reason });
        }
    }

    fn leave(&mut self) {
        if self.phase == AllocPhase::Preparing {
            self.effects.push(AllocEffect::AbandonPreHooks);
        }
        self.restart = None;
        self.phase = AllocPhase::Leaving;
        self.effects.push(AllocEffect::LeaveTasks);
    }
}

#[cfg(test)]
mod tests;
