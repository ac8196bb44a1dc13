//! What a task does next: pure decisions, no clock, no I/O.
//!
//! ```text
//!            gate open     hooks done      driver says yes      workload ended
//!   Gated ──────────► Preparing ──────► Starting ──────► Running ──────► Exited ────► Ending ──► Dead
//!     ▲                │     ▲                                              │           ▲
//!     │       not ready▼     │again                              restart    │           │ no restart
//!     │           AwaitingDriver                                            ▼           │
//!     └───────────────────────────── delay over ─────────────────────── Delaying ───────┘ killed
//!
//!   kill or restart of a run:  [ShutdownDelay ─►] Stopping ─► Killing ─► Reaping ─► Exited
//!                                stop_signal ────┘      │          │  ▲     │
//!                                kill_timeout ──────────┘          │  └─────┘ it does not end: said,
//!                                                                  │          killed again
//!                                                                  └ the host kills, plugin not asked
//! ```
//! Every edge, by state (a test compares this list with the code):
//!
//! ```text
//! edges:
//!   Gated -> Preparing Ending Detached
//!   Preparing -> Starting AwaitingDriver Delaying Idle Ending Detached
//!   AwaitingDriver -> Preparing Ending Detached
//!   Starting -> Running StoppingStart Delaying Idle Ending Detached
//!   StoppingStart -> ShutdownDelay Stopping Ending
//!   Running -> Exited ShutdownDelay Stopping Detached
//!   ShutdownDelay -> Stopping Exited Detached
//!   Stopping -> Killing Exited
//!   Killing -> Reaping Exited
//!   Reaping -> Exited Detached
//!   Exited -> Forgetting
//!   Forgetting -> Gated Delaying Idle Ending Detached
//!   Delaying -> Gated Ending Detached
//!   Recovering -> Running AwaitingRecovery Clearing Exited ShutdownDelay Stopping Detached
//!   AwaitingRecovery -> Recovering Clearing Exited ShutdownDelay Stopping Detached
//!   Clearing -> Gated Delaying Idle Ending Detached
//!   Idle -> Gated Ending Detached
//!   Ending -> Dead
//!   Dead ->
//!   Detached ->
//! ```
//! Each state that waits for something outside has a second way out: a timer set here, or the bound
//! that the runner puts on every call. Only `Reaping` and `Clearing` wait for as long as it takes,
//! and report that: they wait for a run that was killed and does not end, because such a run is not
//! over. `Dead` and `Detached` are final. `Exited` asks the driver what the exit means and makes it
//! forget the run, so a new run begins only when the old one is gone. In `Detached` the agent has
//! left and the task runs on.
//!
//! The machine owns the public [`TaskState`]. Inputs that come late or twice change nothing.

mod end;
mod requests;
mod restore;
mod types;

use std::time::Duration;

use super::events::{self, Signals};
use super::restart::{Ending, RestartTracker};
use ostler_model::cow_arc::CowArc;
use ostler_model::event::TaskEvent;
use ostler_model::limits::{DRIVER_RETRY, KILL_GRACE};
use ostler_model::planted::planted;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

use self::end::AfterRun;
pub use self::restore::{KnownRun, RecordedTask};
pub use self::types::{MachineState, StepContext, TaskEffect, TaskInput, TaskRules};

/// Why the present run is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndIntent {
    /// The run is being killed for good.
    Kill,
    /// A kill that came after the workload had ended by itself, so the workload was not killed.
    KillLate,
    /// The run ends for a restart. `failure`: the restart counts as a failure.
    Restart { failure: bool },
}

impl EndIntent {
    fn is_kill(self) -> bool {
        matches!(self, Self::Kill | Self::KillLate)
    }
}

/// The decisions for one task.
#[derive(Clone, Debug)]
pub struct TaskMachine {
    state: MachineState,
    public: CowArc<TaskState>,
    tracker: RestartTracker,
    rules: TaskRules,
    /// Whether the driver of the present run sends signals.
    signals: Signals,
    intent: Option<EndIntent>,
    /// The agent leaves as soon as what is on its way has answered.
    leaving: bool,
    /// The task was prepared before.
    set_up: bool,
    /// Number of answers "not ready" in a row.
    refusals: u32,
    /// The reason of the last answer "not ready".
    refusal: String,
    timer: bool,
    /// A run that was killed does not end, and that was reported.
    undead: bool,
    /// How often a run that does not end was killed again.
    kills_again: u32,
    /// Why the run counts as over although nobody saw it end.
    given_up: Option<String>,
    /// The allocation is over, so a dead task is not kept for a restart.
    finished: bool,
    /// The end of the run does not wait for `shutdown_delay`.
    skip_delay: bool,
    /// When the present wait for `shutdown_delay` began.
    delay_since: Timestamp,
    /// What follows when the run is forgotten.
    next: Option<AfterRun>,
    /// The next start does not come before this time.
    delayed_until: Option<Timestamp>,
    /// The workload of a run that is being recovered is watched already.
    watched: bool,
    /// The run that is being recovered has no handle on record.
    unfinished: bool,
    effects: Vec<TaskEffect>,
}

impl TaskMachine {
    /// The machine of a new task: `Gated`, with its `Received` event.
    #[must_use]
    pub fn new(rules: TaskRules, now: Timestamp) -> Self {
        let mut public = CowArc::from(TaskState::default());
        public.push_event(events::received_event(now));
        Self {
            state: MachineState::Gated,
            public,
            tracker: RestartTracker::new(now),
            rules,
            signals: Signals::default(),
            intent: None,
            leaving: false,
            set_up: false,
            refusals: 0,
            refusal: String::new(),
            timer: false,
            undead: false,
            kills_again: 0,
            given_up: None,
            finished: false,
            skip_delay: false,
            delay_since: now,
            next: None,
            delayed_until: None,
            watched: false,
            unfinished: false,
            effects: Vec::new(),
        }
    }

    /// The state of the owner.
    #[must_use]
    pub fn state(&self) -> MachineState {
        self.state
    }

    /// The public state of the task.
    #[must_use]
    pub fn public(&self) -> &CowArc<TaskState> {
        &self.public
    }

    /// The restarts used so far; they must be persisted.
    #[must_use]
    pub fn tracker(&self) -> RestartTracker {
        self.tracker
    }

    /// When the next start may come, while a restart delay runs; it must be persisted.
    #[must_use]
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.delayed_until
    }

    /// Is the run to end, with no run after it?
    #[must_use]
    pub fn is_killed_for_good(&self) -> bool {
        self.intent.is_some_and(EndIntent::is_kill)
    }

    /// Take one input. Returns what must be done now, in order.
    pub fn step(&mut self, at: StepContext, input: TaskInput) -> Vec<TaskEffect> {
        match input {
            TaskInput::Kill { event, reason, skip_delay } => {
                self.kill(at, event, &reason, skip_delay);
            }
            TaskInput::Restart { reason, failure } => self.restart(at, &reason, failure),
            TaskInput::ForceRestart { reason } => self.force_restart(at, &reason),
            TaskInput::Finish => self.finish(),
            TaskInput::Rules(rules) => self.change_rules(at, rules),
            TaskInput::DriverKnown { signals } => self.signals = signals,
            TaskInput::Shutdown => self.shutdown(),
            TaskInput::TimerFired => self.timer_fired(at),
            TaskInput::Note(event) if !self.is_final() => self.public.push_event(event),
            // A driver without signals refuses it: nothing is sent.
            TaskInput::Signaled { signal }
                if self.state == MachineState::Running && self.signals == Signals::Sent =>
            {
                self.public.push_event(events::signaling_event(at.now, &signal));
            }
            other => self.step_run(at, other),
        }
        std::mem::take(&mut self.effects)
    }

    fn is_final(&self) -> bool {
        matches!(self.state, MachineState::Dead | MachineState::Detached)
    }

    /// Take an input of the ordinary life of a run.
    fn step_run(&mut self, at: StepContext, input: TaskInput) {
        match (self.state, input) {
            (MachineState::Gated, TaskInput::GateOpened) => self.prepare(at),
            (MachineState::Preparing, TaskInput::Prepared) => {
                self.clear_refusals();
                self.delayed_until = None;
                self.go_to(MachineState::Starting);
                self.effects.push(TaskEffect::Start);
            }
            (MachineState::Preparing, TaskInput::DriverNotReady { reason }) => {
                self.await_driver(at, reason);
            }
            (MachineState::Preparing, TaskInput::NodeNotReady { reason }) => {
                self.await_node(at, reason)
            }
            (MachineState::Preparing, TaskInput::PrepareFailed { event, recoverable }) => {
                self.public.push_event(event);
                self.end_failed_start(at, Ending::StartFailed { recoverable });
            }
            (MachineState::Starting | MachineState::StoppingStart, TaskInput::Started) => {
                self.run_started(at)
            }
            // The leaving of the agent may be the cause of the failure, so the next agent
            // starts the task.
            (MachineState::Starting, TaskInput::StartFailed { recoverable: true, .. })
                if self.leaving =>
            {
                self.leave();
            }
            (MachineState::Starting, TaskInput::StartFailed { error, recoverable }) => {
                self.public.push_event(events::driver_failure(at.now, &error));
                self.end_failed_start(at, Ending::StartFailed { recoverable });
            }
            (MachineState::StoppingStart, TaskInput::StartFailed { .. }) => self.end_killed(at),
            (
                MachineState::Running
                | MachineState::ShutdownDelay
                | MachineState::Stopping
                | MachineState::Killing
                | MachineState::Reaping,
                TaskInput::WorkloadEnded,
            ) => self.read_exit(),
            (MachineState::Reaping, TaskInput::GivenUp { error }) if self.is_killed_for_good() => {
                self.given_up = Some(error);
                self.read_exit();
            }
            (MachineState::Recovering, TaskInput::WorkloadEnded) => {
                self.effects.push(TaskEffect::AbandonRecover);
                self.read_exit();
            }
            (MachineState::AwaitingRecovery, TaskInput::WorkloadEnded) => self.read_exit(),
            (MachineState::Exited, TaskInput::ExitRead(exit)) => self.exit_read(at, exit),
            (MachineState::Exited, TaskInput::NeverRan) => self.forget_never_ran(at),
            // The record of the run stays: the next agent reads the exit again.
            (MachineState::Forgetting, TaskInput::NotDurable) if self.leaving => self.leave(),
            (
                MachineState::Forgetting | MachineState::Clearing,
                TaskInput::Forgotten | TaskInput::Cleared,
            ) => {
                self.finish_forgetting(at);
            }
            (MachineState::Clearing, TaskInput::NotCleared) => self.retry_clear(at),
            (MachineState::Recovering, input) => self.step_recovering(at, input),
            (MachineState::Stopping, TaskInput::StopFailed { error }) => {
                self.public.push_event(events::driver_failure(at.now, &error));
                self.escalate_to_kill();
            }
            (MachineState::Killing, TaskInput::KillFailed { error }) => {
                self.public.push_event(events::driver_failure(at.now, &error));
                self.escalate_to_host();
            }
            (MachineState::Ending, TaskInput::Ended) => self.go_to(MachineState::Dead),
            _ => {}
        }
    }

    fn prepare(&mut self, at: StepContext) {
        if !self.set_up {
            self.set_up = true;
            self.public.push_event(events::task_setup(at.now));
        }
        self.go_to(MachineState::Preparing);
        self.effects.push(TaskEffect::Prepare);
    }

    /// The driver is ready: forget its refusals.
    fn clear_refusals(&mut self) {
        self.refusals = 0;
        self.refusal.clear();
    }

    fn await_driver(&mut self, at: StepContext, reason: String) {
        let pause = self.count_refusal(at, reason, events::waiting_for_driver);
        self.go_to(MachineState::AwaitingDriver);
        self.set_timer(pause);
    }

    /// Wait for what the node is short of. That is not the task's fault, and a later
    /// try may succeed.
    fn await_node(&mut self, at: StepContext, reason: String) {
        let pause = self.count_refusal(at, reason, events::waiting_for_node);
        self.go_to(MachineState::AwaitingDriver);
        self.set_timer(pause);
    }

    /// Count a refusal of what a start needs, and report each reason once. Returns how long to wait
    /// before asking again.
    fn count_refusal(
        &mut self,
        at: StepContext,
        reason: String,
        event: fn(Timestamp, &str) -> TaskEvent,
    ) -> Duration {
        if self.refusal != reason {
            self.public.push_event(event(at.now, &reason));
            self.refusal = reason;
        }
        let pause = DRIVER_RETRY
            .start()
            .saturating_mul(1 << self.refusals.min(16))
            .min(*DRIVER_RETRY.end());
        self.refusals = self.refusals.saturating_add(1);
        pause
    }

    fn run_started(&mut self, at: StepContext) {
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.public.last_exit = None;
        self.public.push_event(events::started_event(at.now));
        let killed = self.state == MachineState::StoppingStart;
        if self.leaving && !killed {
            self.leave();
            return;
        }
        if killed {
            self.stop_run(at);
        } else {
            self.go_to(MachineState::Running);
        }
        self.effects.push(TaskEffect::Watch);
    }

    /// Begin to end the run, for good or to start it again. The end waits for `shutdown_delay`,
    /// unless the delay is to be skipped.
    fn stop_run(&mut self, at: StepContext) {
        match self.rules.shutdown_delay {
            Some(_) if self.skip_delay => {
                self.public.push_event(events::skipping_shutdown_delay(at.now));
                self.stop_now();
            }
            Some(delay) => {
                self.public.push_event(events::waiting_shutdown_delay(at.now, delay));
                self.delay_since = at.now;
                self.go_to(MachineState::ShutdownDelay);
                self.set_timer(delay);
            }
            None => self.stop_now(),
        }
    }

    fn stop_now(&mut self) {
        self.go_to(MachineState::Stopping);
        self.effects.push(TaskEffect::Stop(self.rules.kill_timeout));
        self.set_timer(self.rules.kill_timeout);
    }

    fn escalate_to_kill(&mut self) {
        self.go_to(MachineState::Killing);
        self.effects.push(TaskEffect::Kill);
        self.set_timer(KILL_GRACE);
    }

    fn escalate_to_host(&mut self) {
        self.go_to(MachineState::Reaping);
        self.effects.push(TaskEffect::KillRun);
        self.set_timer(KILL_GRACE);
    }

    fn read_exit(&mut self) {
        self.undead = false;
        self.kills_again = 0;
        self.go_to(MachineState::Exited);
        self.effects.push(TaskEffect::ReadExit);
    }

    fn timer_fired(&mut self, at: StepContext) {
        if !std::mem::take(&mut self.timer) {
            return;
        }
        match self.state {
            MachineState::AwaitingDriver => self.prepare(at),
            MachineState::AwaitingRecovery => self.recover(),
            MachineState::Recovering => self.recovery_late(at),
            MachineState::StoppingStart => {
                self.effects.push(TaskEffect::AbandonStart);
                self.end_killed(at);
            }
            MachineState::ShutdownDelay => self.stop_now(),
            MachineState::Stopping if planted("stop-without-kill") => {}
            MachineState::Stopping => self.escalate_to_kill(),
            MachineState::Killing => self.escalate_to_host(),
            MachineState::Reaping => self.retry_kill(),
            MachineState::Clearing => self.effects.push(TaskEffect::Clear),
            MachineState::Delaying => self.go_to(MachineState::Gated),
            _ => {}
        }
    }

    fn leave(&mut self) {
        self.go_to(MachineState::Detached);
        self.effects.push(TaskEffect::Leave);
    }

    fn set_timer(&mut self, after: Duration) {
        self.timer = true;
        self.effects.push(TaskEffect::Timer(after));
    }

    fn go_to(&mut self, to: MachineState) {
        if std::mem::take(&mut self.timer) {
            self.effects.push(TaskEffect::CancelTimer);
        }
        self.state = to;
    }
}

#[cfg(test)]
mod tests;
