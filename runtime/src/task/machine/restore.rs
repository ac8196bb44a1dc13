//! A task of an earlier agent.
//!
//! ```text
//! what is recorded                         then
//! dead, complete                           Dead: nothing is run
//! dead, not complete                       [Clearing ─►] Idle | Ending
//! a run, restart decided                   Clearing ─► Delaying: the rest of the delay
//! a run and its handle                     Recovering ─► Running        owned again
//!                                              │ ─► Settling            ended while nobody looked
//!                                              │ ─► AwaitingRecovery    driver not ready: asked again,
//!                                              │                        the run goes on, the host watches it
//!                                              └ ─► Clearing ─► Gated    lost with agent or machine
//! a run without a handle                   Clearing ─► Gated            it never ran, or is lost
//! no run, delay recorded                   Delaying: the rest of the delay
//! no run                                   Gated
//! ```
//! A run that was lost with the agent or the machine uses up no attempt: it is not the task's
//! failure. A policy without any attempt still forbids the restart.

use std::time::Duration;

use super::super::events;
use super::super::restart::RestartTracker;
use super::end::Next;
use super::{At, Effect, Intent, Rules, State, TaskInput, TaskMachine};
use crate::model::task::{TaskState, TaskStatus};
use crate::model::time::Timestamp;

/// What is recorded of the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownRun {
    /// There is none.
    None,
    /// It was begun; whether it got anywhere is not known.
    Unfinished,
    /// It has a handle.
    Started,
}

/// What is recorded of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Its public state.
    pub state: Option<TaskState>,
    /// Restarts used.
    pub tracker: Option<RestartTracker>,
    /// Its last run.
    pub run: KnownRun,
    /// Its stop hooks ran.
    pub complete: bool,
    /// The next start does not come before. Together with a run: that run is over and its exit was
    /// decided upon.
    pub delayed_until: Option<Timestamp>,
}

impl TaskMachine {
    /// A task of an earlier agent, and what to do first.
    #[must_use]
    pub fn restore(rules: Rules, now: Timestamp, restored: Restored) -> (Self, Vec<Effect>) {
        let mut machine = Self::new(rules, now);
        let Restored { state, tracker, run, complete, delayed_until } = restored;
        if let Some(state) = state {
            machine.set_up = !state.events.is_empty();
            machine.public = state;
        }
        machine.tracker = tracker.unwrap_or(machine.tracker);
        machine.delayed_until = delayed_until;
        let at = At { now, random: 0 };
        if machine.public.status == TaskStatus::Dead {
            machine.restore_dead(run, complete);
        } else {
            machine.restore_live(at, run);
        }
        let effects = std::mem::take(&mut machine.effects);
        (machine, effects)
    }

    fn restore_dead(&mut self, run: KnownRun, complete: bool) {
        match (run, complete) {
            (KnownRun::None, true) => self.state = State::Dead,
            (KnownRun::None, false) => self.rest(),
            _ => {
                self.next = Some(Next::End);
                self.clear();
            }
        }
    }

    fn restore_live(&mut self, at: At, run: KnownRun) {
        match (run, self.delayed_until) {
            (KnownRun::None, Some(until)) => {
                self.public.status = TaskStatus::Pending;
                self.wait_until(at, until);
            }
            // Not seen running by anybody: as if it had never been tried.
            (KnownRun::None, None) if self.public.status == TaskStatus::Pending => {}
            (KnownRun::None, None) => {
                self.lost(at, "nothing is recorded of its run");
            }
            (_, Some(until)) => {
                self.public.status = TaskStatus::Pending;
                self.next = Some(Next::Restart(until.since(at.now)));
                self.clear();
            }
            (KnownRun::Started, None) => self.recover(),
            (KnownRun::Unfinished, None) => {
                self.lost(at, "the agent ended while the task was being started");
            }
        }
    }

    /// The rest of a delay; never longer than the policy could have asked for, in case the clock
    /// was set back.
    fn wait_until(&mut self, at: At, until: Timestamp) {
        let longest = self.rules.policy.interval.max(self.rules.policy.delay.saturating_mul(2));
        let rest = until.since(at.now).min(longest);
        if rest.is_zero() {
            return;
        }
        self.state = State::Delaying;
        self.set_timer(rest.max(Duration::from_nanos(1)));
    }

    pub(super) fn recover(&mut self) {
        self.go(State::Recovering);
        self.effects.push(Effect::Recover);
    }

    fn clear(&mut self) {
        self.go(State::Clearing);
        self.effects.push(Effect::Clear);
    }

    /// The run went down with its agent or machine.
    fn lost(&mut self, at: At, reason: &str) {
        self.public.push_event(events::failed_restoring(at.now, reason));
        let next = if self.intent.is_some_and(Intent::kills) {
            self.public.push_event(events::killed(at.now, None));
            Next::End
        } else if self.rules.policy.attempts == 0 {
            self.public.push_event(events::not_restarting(at.now, "Policy allows no restarts"));
            Next::End
        } else {
            self.public.restarts = self.public.restarts.saturating_add(1);
            self.public.last_restart = Some(at.now);
            Next::Again
        };
        self.over(at, next);
        self.clear();
    }

    /// Answers of a recovery.
    pub(super) fn recovering(&mut self, at: At, input: TaskInput) {
        match input {
            TaskInput::Recovered { ended } => self.recovered(at, ended),
            TaskInput::RecoveryNotReady { reason } => {
                // The host has it: it runs, whatever was written last.
                self.public.status = TaskStatus::Running;
                self.public.started_at.get_or_insert(at.now);
                self.watch_once();
                let pause = self.refused(at, reason);
                if self.intent.is_some_and(Intent::kills) {
                    self.escalate_to_host();
                } else {
                    self.go(State::AwaitingRecovery);
                    self.set_timer(pause);
                }
            }
            TaskInput::NeverRan => {
                let killed = self.intent.is_some_and(Intent::kills);
                if killed {
                    self.public.push_event(events::killed(at.now, None));
                }
                self.over(at, if killed { Next::End } else { Next::Again });
                self.clear();
            }
            TaskInput::RecoveryFailed { reason } => self.lost(at, &reason),
            _ => {}
        }
    }

    fn recovered(&mut self, at: At, ended: bool) {
        self.ready();
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.public.last_exit = None;
        if !ended {
            self.public.push_event(events::recovered(at.now));
        }
        if self.intent.is_some_and(Intent::kills) && !ended {
            self.stop_run(at, true);
        } else {
            self.go(State::Running);
        }
        self.watch_once();
    }

    fn watch_once(&mut self) {
        if !std::mem::replace(&mut self.watched, true) {
            self.effects.push(Effect::Watch);
        }
    }
}
