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
//! The machine is level-triggered: each look at the states of all tasks gives the gates, the
//! reason to stop the rest, the next stage of a stop, and the public [`AllocState`]. A stop goes
//! through stages, and a stage ends when its tasks are dead. While a stop is under way only
//! poststop tasks may start. The coordinator starts them when the others are dead; a second stop
//! ends them too, so that a person is never kept waiting. Tasks that ended stay restartable until
//! all have ended. Then the pre-kill hooks run, unless a stop ran them, and the tasks are told
//! that the allocation is over.
//!
//! The client status is derived from the tasks, or forced (run too long, disk full, records
//! unreadable). A verdict on the health is given once for a deployment, and published when
//! it is durable.

mod look;
mod plan;
mod public;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::coordinator::{Coordinator, TaskGate};
use super::status::is_poststop;
use crate::by_task::ByTask;
use crate::task::events;
use ostler_model::alloc::{AllocState, ClientStatus};
use ostler_model::cow_arc::CowArc;
use ostler_model::event::TaskEvent;
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
    /// The tasks are being told. Until all are told, their states say nothing about the end
    /// of the allocation.
    Asking,
}

/// The decisions for one allocation.
#[derive(Clone, Debug)]
pub struct AllocMachine {
    group: TaskGroup,
    phase: AllocPhase,
    coordinator: Coordinator,
    /// The gates as the tasks were told last.
    gates: ByTask<TaskGate>,
    states: Arc<BTreeMap<TaskName, CowArc<TaskState>>>,
    public: AllocState,
    plan: Option<KillPlan>,
    restart: Option<Restart>,
    /// The pre-run hooks are done, so gates may open.
    prepared: bool,
    /// Some task was started, now or by an earlier agent.
    started: bool,
    pre_kill: Hooks,
    /// The tasks were told that the allocation is over.
    finishing: bool,
    /// The owners of all tasks have ended.
    gone: bool,
    /// Post-run hooks are done.
    cleaned: bool,
    destroy: bool,
    /// The agent leaves.
    leaving: bool,
    forced: Option<(ClientStatus, String)>,
    /// The allocation is one of an earlier agent.
    restored: bool,
    /// How often the pre-run hooks were tried again.
    retries: u32,
    /// Why the pre-run hooks were tried again the last time.
    trouble: Option<String>,
    /// What a hook waits for, before the first task or after the last.
    waiting: Option<String>,
    health: Option<DeploymentStatus>,
    /// Id of the deployment that a verdict is for.
    deployment: Option<Box<str>>,
    /// A verdict on its way to the disk, with the events that follow when it is durable.
    verdict: Option<(DeploymentStatus, Vec<(TaskName, TaskEvent)>)>,
    /// When the allocation was first seen to have ended.
    ended_at: Option<Timestamp>,
    effects: Vec<AllocEffect>,
}

impl AllocMachine {
    /// The machine of an allocation that never ran, and what to do first.
    #[must_use]
    pub fn new(
        group: TaskGroup,
        states: BTreeMap<TaskName, CowArc<TaskState>>,
    ) -> (Self, Vec<AllocEffect>) {
        let coordinator = Coordinator::new(&group);
        let mut machine = Self::new_in_phase(AllocPhase::Preparing, group, coordinator, states);
        machine.refresh_public(Timestamp::default());
        (machine, vec![AllocEffect::PreHooks])
    }

    /// The machine of an allocation of an earlier agent, and what to do first.
    #[must_use]
    pub fn restore(
        now: Timestamp,
        group: TaskGroup,
        states: BTreeMap<TaskName, CowArc<TaskState>>,
        known: RecordedAlloc,
    ) -> (Self, Vec<AllocEffect>) {
        let coordinator = Coordinator::new_restored(&group);
        let mut machine = Self::new_in_phase(AllocPhase::Preparing, group, coordinator, states);
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
        let ended = machine.status_of_tasks().0.is_terminal() || saved.client_status.is_terminal();
        if let Some(trouble) = known.trouble {
            machine.phase = AllocPhase::Running;
            let event = events::setup_failure(now, &trouble).with_task_failure();
            machine.force(ClientStatus::Failed, trouble, Some(event));
        } else if saved.forced {
            machine.phase = AllocPhase::Running;
            machine.force(saved.client_status, saved.client_description, None);
        } else if let Some(reason) = known.stop {
            machine.stop(&reason, false);
            machine.resume_ended();
        } else if ended {
            // The allocation had ended, and no task has a record: none is started now.
            if !machine.started && !machine.status_of_tasks().0.is_terminal() {
                machine.stop("the allocation had ended before", false);
            }
            machine.resume_ended();
        } else {
            machine.effects.push(AllocEffect::PreHooks);
        }
        machine.apply_states(now);
        machine.refresh_public(now);
        let first = std::mem::take(&mut machine.effects);
        (machine, first)
    }

    fn new_in_phase(
        phase: AllocPhase,
        group: TaskGroup,
        coordinator: Coordinator,
        states: BTreeMap<TaskName, CowArc<TaskState>>,
    ) -> Self {
        let gates = group.tasks.iter().map(|t| (t.name.clone(), TaskGate::Closed)).collect();
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

    /// Go on with the end of an allocation: it needs no pre-run hooks any more.
    fn resume_ended(&mut self) {
        self.phase = AllocPhase::Running;
        self.prepared = self.started;
        self.effects.retain(|effect| *effect != AllocEffect::AbandonPreHooks);
    }

    /// The phase of the owner.
    #[must_use]
    pub fn phase(&self) -> AllocPhase {
        self.phase
    }

    /// The public state of the allocation.
    #[must_use]
    pub fn public(&self) -> &AllocState {
        &self.public
    }

    /// Is a stop under way, whoever asked for it?
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.plan.is_some()
    }

    /// Is the client status forced?
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Why a restart of the whole allocation, or of a task of it, is not possible now.
    #[must_use]
    pub fn restart_refusal(&self) -> Option<RestartRefusal> {
        if !matches!(self.phase, AllocPhase::Preparing | AllocPhase::Running) {
            return Some(RestartRefusal::Ended);
        }
        if self.public.client_status.is_terminal() || self.finishing {
            return Some(RestartRefusal::Ended);
        }
        // Where only poststop tasks are left, the allocation ends by itself.
        let mut others = self.group.tasks.iter().filter(|task| !is_poststop(task));
        if self.plan.is_some() || others.all(|task| self.is_dead(&task.name)) {
            return Some(RestartRefusal::Ending);
        }
        self.restart.is_some().then_some(RestartRefusal::Restarting)
    }

    /// Take one input. Returns what must be done now, in order.
    pub fn step(&mut self, now: Timestamp, input: AllocInput) -> Vec<AllocEffect> {
        match self.phase {
            AllocPhase::Preparing | AllocPhase::Running => self.step_living(now, input),
            AllocPhase::Leaving => match input {
                AllocInput::Tasks(states) => self.take_states(states),
                AllocInput::TasksGone => self.phase = AllocPhase::Left,
                AllocInput::HealthSaved => self.publish_verdict(),
                _ => {}
            },
            _ => self.step_ended(input),
        }
        self.apply_states(now);
        self.refresh_public(now);
        std::mem::take(&mut self.effects)
    }

    /// Take an input while the allocation prepares or runs.
    fn step_living(&mut self, now: Timestamp, input: AllocInput) {
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
                    Blame::Alloc => self.restored && self.has_running_task(),
                };
                if again {
                    self.prepare_again(now, error);
                    return;
                }
                self.phase = AllocPhase::Running;
                self.waiting = None;
                let event = events::setup_failure(now, &error).with_task_failure();
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
            AllocInput::Deployed(deployment) => self.set_deployment(deployment),
            AllocInput::Verdict { healthy, reasons } => self.judge(now, healthy, &reasons),
            AllocInput::HealthSaved => self.publish_verdict(),
            AllocInput::TimerFired => {
                if let Some(plan) = &mut self.plan {
                    plan.timer_fired();
                }
            }
            // Once all owners are gone nothing runs on, and what is left to do is bounded, unless
            // a hook waits.
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
    fn has_running_task(&self) -> bool {
        self.states.values().any(|state| state.status == TaskStatus::Running)
    }

    /// Try pre-run hooks again that failed, ever more slowly. Tasks that run are not ended for the
    /// failure. What the node is short of is not the allocation's fault and may come back. People
    /// are told once.
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

    /// Take an input once every task has ended.
    fn step_ended(&mut self, input: AllocInput) {
        match (self.phase, input) {
            (AllocPhase::Cleaning, AllocInput::Cleaned) => self.cleaned = true,
            (AllocPhase::Cleaning | AllocPhase::Done, AllocInput::Destroy) => self.destroy = true,
            (AllocPhase::Cleaning, AllocInput::HealthSaved) => self.publish_verdict(),
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

    /// End the wait of a post-run hook when the allocation is to be removed or the agent leaves.
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

    fn take_states(&mut self, states: BTreeMap<TaskName, CowArc<TaskState>>) {
        self.states = Arc::new(states);
        let begun =
            |s: &CowArc<TaskState>| s.status == TaskStatus::Running || s.started_at.is_some();
        self.started |= self.states.values().any(begun);
    }

    fn update(&mut self, group: TaskGroup, hooks: bool) {
        self.coordinator.update(&group);
        self.group = group;
        if hooks && self.plan.is_none() && !self.public.client_status.is_terminal() {
            self.effects.push(AllocEffect::UpdateHooks);
        }
    }

    /// End the allocation with this status, whatever its tasks say.
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
        // All tasks may have ended, and been told to finish, while the hooks ran.
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
