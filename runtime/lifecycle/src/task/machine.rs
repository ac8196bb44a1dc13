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
//! the runner puts on every call. Only two wait for as long as it takes, and say so: `Reaping` and
//! `Clearing`, for a run that was killed and does not end. It is not over until it is. `Dead` and
//! `Detached` are final. `Exited` asks the driver what the exit means and makes it forget the run,
//! so a new run begins only when the old one is gone.
//! `Detached`: the agent leaves, the task runs on.
//!
//! The machine owns the public [`TaskState`]; inputs that come late or twice change nothing.

mod end;
mod requests;
mod restore;
mod types;

use std::time::Duration;

use super::events::{self, Signals};
use super::restart::{Ending, RestartTracker};
use ostler_model::event::TaskEvent;
use ostler_model::held_once::HeldOnce;
use ostler_model::limits::{DRIVER_RETRY, KILL_GRACE};
use ostler_model::planted::planted;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

use self::end::Next;
pub use self::restore::{KnownRun, RecordedTask};
pub use self::types::{At, Rules, State, TaskEffect, TaskInput};

/// Why the present run is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intent {
    Kill,
    /// A kill that came after the workload had ended by itself: it was not killed.
    KillLate,
    /// Whether it counts as a failure.
    Restart {
        failure: bool,
    },
}

impl Intent {
    fn kills(self) -> bool {
        matches!(self, Self::Kill | Self::KillLate)
    }
}

/// The decisions for one task.
#[derive(Clone, Debug)]
pub struct TaskMachine {
    state: State,
    public: HeldOnce<TaskState>,
    tracker: RestartTracker,
    rules: Rules,
    /// Of the driver of the present run.
    signals: Signals,
    intent: Option<Intent>,
    /// The agent leaves as soon as the start on its way has answered.
    leaving: bool,
    /// The task was prepared before.
    set_up: bool,
    /// Answers "not ready" in a row, with the last reason.
    refusals: u32,
    refusal: String,
    timer: bool,
    /// What was killed does not end, and that was said.
    undead: bool,
    /// How often it was killed again.
    kills_again: u32,
    /// Why the run counts as over although nobody saw it end.
    given_up: Option<String>,
    /// The allocation is over: a dead task is not kept for a restart.
    finished: bool,
    /// The end of the run does not wait for `shutdown_delay`.
    skip_delay: bool,
    /// When the present wait for `shutdown_delay` began.
    delay_since: Timestamp,
    /// What follows when the run is forgotten.
    next: Option<Next>,
    /// The next start does not come before.
    delayed_until: Option<Timestamp>,
    /// The workload of a run being recovered is watched already.
    watched: bool,
    /// The run being recovered has no handle on record.
    unfinished: bool,
    effects: Vec<TaskEffect>,
}

impl TaskMachine {
    /// A task never seen before: `Gated`, with its `Received` event.
    #[must_use]
    pub fn new(rules: Rules, now: Timestamp) -> Self {
        let mut public = HeldOnce::from(TaskState::default());
        public.push_event(events::received(now));
        Self {
            state: State::Gated,
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

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// What the world sees.
    #[must_use]
    pub fn public(&self) -> &HeldOnce<TaskState> {
        &self.public
    }

    /// Restarts used, to be persisted.
    #[must_use]
    pub fn tracker(&self) -> RestartTracker {
        self.tracker
    }

    /// When the next start may come, while a restart delay runs; to be persisted.
    #[must_use]
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.delayed_until
    }

    /// It is to end, and nothing is to follow.
    #[must_use]
    pub fn killed_for_good(&self) -> bool {
        self.intent.is_some_and(Intent::kills)
    }

    /// Take one input; what must be done now, in order.
    pub fn step(&mut self, at: At, input: TaskInput) -> Vec<TaskEffect> {
        match input {
            TaskInput::Kill { event, reason, skip_delay } => {
                self.kill(at, event, &reason, skip_delay);
            }
            TaskInput::Restart { reason, failure } => self.restart(at, &reason, failure),
            TaskInput::ForceRestart { reason } => self.force_restart(at, &reason),
            TaskInput::Finish => self.finish(),
            TaskInput::Rules(rules) => self.rules_changed(at, rules),
            TaskInput::DriverKnown { signals } => self.signals = signals,
            TaskInput::Shutdown => self.shutdown(),
            TaskInput::TimerFired => self.timer_fired(at),
            TaskInput::Note(event) if !self.is_final() => self.public.push_event(event),
            // A driver without signals refuses it: nothing is sent.
            TaskInput::Signaled { signal }
                if self.state == State::Running && self.signals == Signals::Sent =>
            {
                self.public.push_event(events::signaling(at.now, &signal));
            }
            other => self.progress(at, other),
        }
        std::mem::take(&mut self.effects)
    }

    fn is_final(&self) -> bool {
        matches!(self.state, State::Dead | State::Detached)
    }

    /// The ordinary way of a run.
    fn progress(&mut self, at: At, input: TaskInput) {
        match (self.state, input) {
            (State::Gated, TaskInput::GateOpened) => self.prepare(at),
            (State::Preparing, TaskInput::Prepared) => {
                self.ready();
                self.delayed_until = None;
                self.go(State::Starting);
                self.effects.push(TaskEffect::Start);
            }
            (State::Preparing, TaskInput::DriverNotReady { reason }) => {
                self.await_driver(at, reason);
            }
            (State::Preparing, TaskInput::NodeNotReady { reason }) => self.await_node(at, reason),
            (State::Preparing, TaskInput::PrepareFailed { event, recoverable }) => {
                self.public.push_event(event);
                self.decide(at, Ending::StartFailed { recoverable });
            }
            (State::Starting | State::StoppingStart, TaskInput::Started) => self.started(at),
            // Whatever it was, the next agent tries it again: it may have been the leaving itself.
            (State::Starting, TaskInput::StartFailed { recoverable: true, .. }) if self.leaving => {
                self.leave();
            }
            (State::Starting, TaskInput::StartFailed { error, recoverable }) => {
                self.public.push_event(events::driver_failure(at.now, &error));
                self.decide(at, Ending::StartFailed { recoverable });
            }
            (State::StoppingStart, TaskInput::StartFailed { .. }) => self.killed(at),
            (
                State::Running
                | State::ShutdownDelay
                | State::Stopping
                | State::Killing
                | State::Reaping,
                TaskInput::WorkloadEnded,
            ) => self.read_exit(),
            (State::Reaping, TaskInput::GivenUp { error }) if self.killed_for_good() => {
                self.given_up = Some(error);
                self.read_exit();
            }
            (State::Recovering, TaskInput::WorkloadEnded) => {
                self.effects.push(TaskEffect::AbandonRecover);
                self.read_exit();
            }
            (State::AwaitingRecovery, TaskInput::WorkloadEnded) => self.read_exit(),
            (State::Exited, TaskInput::ExitRead(exit)) => self.exit_read(at, exit),
            (State::Exited, TaskInput::NeverRan) => self.never_ran_after_all(at),
            // The record of the run stays: the next agent reads the exit again.
            (State::Forgetting, TaskInput::NotDurable) if self.leaving => self.leave(),
            (State::Forgetting | State::Clearing, TaskInput::Forgotten | TaskInput::Cleared) => {
                self.forgotten(at);
            }
            (State::Clearing, TaskInput::NotCleared) => self.not_cleared(at),
            (State::Recovering, input) => self.recovering(at, input),
            (State::Stopping, TaskInput::StopFailed { error }) => {
                self.public.push_event(events::driver_failure(at.now, &error));
                self.escalate_to_kill();
            }
            (State::Killing, TaskInput::KillFailed { error }) => {
                self.public.push_event(events::driver_failure(at.now, &error));
                self.escalate_to_host();
            }
            (State::Ending, TaskInput::Ended) => self.go(State::Dead),
            _ => {}
        }
    }

    fn prepare(&mut self, at: At) {
        if !self.set_up {
            self.set_up = true;
            self.public.push_event(events::task_setup(at.now));
        }
        self.go(State::Preparing);
        self.effects.push(TaskEffect::Prepare);
    }

    /// The driver answered.
    fn ready(&mut self) {
        self.refusals = 0;
        self.refusal.clear();
    }

    fn await_driver(&mut self, at: At, reason: String) {
        let pause = self.refused(at, reason, events::waiting_for_driver);
        self.go(State::AwaitingDriver);
        self.set_timer(pause);
    }

    /// What the node is short of says nothing of the task, and may come back.
    fn await_node(&mut self, at: At, reason: String) {
        let pause = self.refused(at, reason, events::waiting_for_node);
        self.go(State::AwaitingDriver);
        self.set_timer(pause);
    }

    /// What a start needs is not ready: said once per reason; how long to wait before asking again.
    fn refused(
        &mut self,
        at: At,
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

    fn started(&mut self, at: At) {
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.public.last_exit = None;
        self.public.push_event(events::started(at.now));
        let killed = self.state == State::StoppingStart;
        if self.leaving && !killed {
            self.leave();
            return;
        }
        if killed {
            self.stop_run(at);
        } else {
            self.go(State::Running);
        }
        self.effects.push(TaskEffect::Watch);
    }

    /// Begin to end the run, for good or to start it again: when `shutdown_delay` is over, where there is one
    /// and it is wanted.
    fn stop_run(&mut self, at: At) {
        match self.rules.shutdown_delay {
            Some(_) if self.skip_delay => {
                self.public.push_event(events::skipping_shutdown_delay(at.now));
                self.stop_now();
            }
            Some(delay) => {
                self.public.push_event(events::waiting_shutdown_delay(at.now, delay));
                self.delay_since = at.now;
                self.go(State::ShutdownDelay);
                self.set_timer(delay);
            }
            None => self.stop_now(),
        }
    }

    fn stop_now(&mut self) {
        self.go(State::Stopping);
        self.effects.push(TaskEffect::Stop(self.rules.kill_timeout));
        self.set_timer(self.rules.kill_timeout);
    }

    fn escalate_to_kill(&mut self) {
        self.go(State::Killing);
        self.effects.push(TaskEffect::Kill);
        self.set_timer(KILL_GRACE);
    }

    fn escalate_to_host(&mut self) {
        self.go(State::Reaping);
        self.effects.push(TaskEffect::KillRun);
        self.set_timer(KILL_GRACE);
    }

    fn read_exit(&mut self) {
        self.undead = false;
        self.kills_again = 0;
        self.go(State::Exited);
        self.effects.push(TaskEffect::ReadExit);
    }

    fn timer_fired(&mut self, at: At) {
        if !std::mem::take(&mut self.timer) {
            return;
        }
        match self.state {
            State::AwaitingDriver => self.prepare(at),
            State::AwaitingRecovery => self.recover(),
            State::Recovering => self.recovery_late(at),
            State::StoppingStart => {
                self.effects.push(TaskEffect::AbandonStart);
                self.killed(at);
            }
            State::ShutdownDelay => self.stop_now(),
            State::Stopping if planted("stop-without-kill") => {}
            State::Stopping => self.escalate_to_kill(),
            State::Killing => self.escalate_to_host(),
            State::Reaping => self.not_ended(),
            State::Clearing => self.effects.push(TaskEffect::Clear),
            State::Delaying => self.go(State::Gated),
            _ => {}
        }
    }

    fn leave(&mut self) {
        self.go(State::Detached);
        self.effects.push(TaskEffect::Leave);
    }

    fn set_timer(&mut self, after: Duration) {
        self.timer = true;
        self.effects.push(TaskEffect::Timer(after));
    }

    fn go(&mut self, to: State) {
        if std::mem::take(&mut self.timer) {
            self.effects.push(TaskEffect::CancelTimer);
        }
        self.state = to;
    }
}

#[cfg(test)]
mod tests;
