//! A task of an earlier agent.
//!
//! ```text
//! what is recorded                         then
//! dead, complete                           Dead: nothing is run
//! dead, not complete                       [Clearing ─►] Idle | Ending
//! a run, restart decided                   Clearing ─► Delaying: the rest of the delay
//! a run and its handle                     Recovering ─► Running        owned again, or ended for the
//!                                              │                        restart that was under way
//!                                              │ ─► Exited              ended while nobody looked
//!                                              │ ─► AwaitingRecovery    driver not ready: asked again,
//!                                              │                        the run goes on, the host watches it
//!                                              └ ─► Clearing ─► Gated    lost with agent or machine
//! a run without a handle                   Clearing ─► Gated            it never ran, or is lost;
//!                                          where that makes a difference (no attempts allowed),
//!                                          Recovering: the driver tells whether it may have run
//! no run, delay recorded                   Delaying: the rest of the delay
//! no run                                   Gated
//! ```
//! A run that was lost with the agent or the machine uses up no attempt: it is not the task's
//! failure. A policy without any attempt still forbids the restart.

use std::time::Duration;

use super::super::events;
use super::super::restart::RestartTracker;
use super::end::Next;
use super::{At, Intent, Rules, State, TaskEffect, TaskInput, TaskMachine};
use ostler_model::event::EventKind;
use ostler_model::planted::planted;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

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
pub struct RecordedTask {
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

/// Why a run without a handle is given up.
const UNFINISHED: &str = "the agent ended while the task was being started";

impl TaskMachine {
    /// A task of an earlier agent, and what to do first.
    #[must_use]
    pub fn restore(
        rules: Rules,
        now: Timestamp,
        restored: RecordedTask,
    ) -> (Self, Vec<TaskEffect>) {
        let mut machine = Self::new(rules, now);
        let RecordedTask { state, tracker, run, complete, delayed_until } = restored;
        if let Some(state) = state {
            machine.set_up = state.events.iter().any(|e| e.kind == EventKind::TaskSetup)
                || state.events_total > u64::try_from(state.events.len()).unwrap_or(u64::MAX);
            machine.public = state.into();
        }
        let kept = tracker.filter(|_| !planted("fresh-attempts-at-restart"));
        machine.tracker = kept.unwrap_or(machine.tracker);
        machine.delayed_until = delayed_until.map(|until| machine.at_most(now, until));
        let at = At { now, random: 0 };
        if complete {
            machine.restore_complete(at);
        }
        if machine.public.status == TaskStatus::Dead {
            machine.restore_dead(run, complete);
        } else {
            machine.restore_live(at, run);
        }
        let effects = std::mem::take(&mut machine.effects);
        (machine, effects)
    }

    /// The clock may have been set back since: no wait is longer than the policy could have asked for.
    fn at_most(&self, now: Timestamp, until: Timestamp) -> Timestamp {
        until.min(now.plus(self.tracker.longest_delay(&self.rules.policy)))
    }

    /// It ended for good, whatever was written of it last.
    fn restore_complete(&mut self, at: At) {
        self.finished = true;
        if self.public.status != TaskStatus::Dead {
            let lost = events::failed_restoring(at.now, "it ended, and how is not recorded");
            self.public.push_event(lost.failing());
            self.public.status = TaskStatus::Dead;
        }
        self.public.finished_at.get_or_insert(at.now);
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
            // It was never reported as running: it begins as a new task does.
            (KnownRun::None, None) if self.public.status == TaskStatus::Pending => {}
            (KnownRun::None, None) => {
                self.lost(at, "nothing is recorded of its run");
            }
            (_, Some(until)) => {
                self.public.status = TaskStatus::Pending;
                self.next = Some(Next::Restart(until.since(at.now)));
                self.clear();
            }
            (KnownRun::Started, None) => {
                // Asked for and accepted, and the agent ended before the run did.
                let asked = events::restart_under_way(&self.public);
                self.intent = asked.map(|failure| Intent::Restart { failure });
                self.recover();
            }
            (KnownRun::Unfinished, None) if self.rules.policy.attempts == 0 => {
                self.unfinished = true;
                self.recover();
            }
            (KnownRun::Unfinished, None) => self.lost(at, UNFINISHED),
        }
    }

    fn wait_until(&mut self, at: At, until: Timestamp) {
        let rest = until.since(at.now);
        if !rest.is_zero() {
            self.state = State::Delaying;
            self.set_timer(rest);
        }
    }

    pub(super) fn recover(&mut self) {
        self.go(State::Recovering);
        self.effects.push(TaskEffect::Recover);
    }

    fn clear(&mut self) {
        self.go(State::Clearing);
        self.effects.push(TaskEffect::Clear);
    }

    /// The run went down with its agent or machine.
    fn lost(&mut self, at: At, reason: &str) {
        self.public.push_event(events::failed_restoring(at.now, reason));
        let next = if self.intent.is_some_and(Intent::kills) {
            self.public.push_event(events::killed(at.now));
            Next::End
        } else if matches!(self.intent.take(), Some(Intent::Restart { .. })) {
            self.again(at)
        } else if self.rules.policy.attempts == 0 {
            self.public.push_event(events::not_restarting(at.now, "Policy allows no restarts"));
            Next::End
        } else {
            self.again(at)
        };
        // The run ends when none of its processes is left.
        self.next = Some(next);
        self.clear();
    }

    fn again(&mut self, at: At) -> Next {
        self.public.push_event(events::restarting(at.now, "", Duration::ZERO));
        self.public.restarts = self.public.restarts.saturating_add(1);
        self.public.last_restart = Some(at.now);
        Next::Again
    }

    /// Answers of a recovery.
    pub(super) fn recovering(&mut self, at: At, input: TaskInput) {
        match input {
            TaskInput::Recovered { ended } => self.recovered(at, ended),
            TaskInput::RecoveryNotReady { reason, held } => self.not_ready(at, reason, held),
            TaskInput::NeverRan => {
                self.never_ran(at);
                self.clear();
            }
            TaskInput::RecoveryFailed { reason } => self.lost(at, &reason),
            _ => {}
        }
    }

    fn not_ready(&mut self, at: At, reason: String, held: bool) {
        if held {
            self.runs_on(at);
        }
        let pause = self.refused(at, reason, events::waiting_for_recovery);
        if self.intent.is_some_and(Intent::kills) {
            self.stop_unrecovered(at);
        } else {
            self.go(State::AwaitingRecovery);
            self.set_timer(pause);
        }
    }

    /// The host has it: it runs, whatever was written last.
    fn runs_on(&mut self, at: At) {
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.watch_once();
    }

    /// End a run that its driver has not taken back: by the host's signal, or, where the host does
    /// not have it either, by what is recorded of it.
    pub(super) fn stop_unrecovered(&mut self, at: At) {
        if self.watched {
            self.stop_run(at);
        } else {
            let reason = std::mem::take(&mut self.refusal);
            self.lost(at, if reason.is_empty() { UNFINISHED } else { &reason });
        }
    }

    /// The recovery takes too long for a kill.
    pub(super) fn recovery_late(&mut self, at: At) {
        self.effects.push(TaskEffect::AbandonRecover);
        if !self.unfinished {
            self.runs_on(at);
        }
        self.stop_unrecovered(at);
    }

    fn never_ran(&mut self, at: At) {
        let killed = self.intent.is_some_and(Intent::kills);
        if killed {
            self.public.push_event(events::killed(at.now));
        } else {
            self.intent = None;
        }
        self.over(at, if killed { Next::End } else { Next::Again });
    }

    /// It ended before its program ran: the agent that was to let it go was killed first.
    pub(super) fn never_ran_after_all(&mut self, at: At) {
        self.never_ran(at);
        self.go(State::Forgetting);
        self.effects.push(TaskEffect::Forget);
    }

    fn recovered(&mut self, at: At, ended: bool) {
        self.ready();
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.public.last_exit = None;
        if ended {
            // The run ended by itself before the kill.
            self.intent = self.intent.map(|i| if i.kills() { Intent::KillLate } else { i });
        } else {
            self.public.push_event(events::recovered(at.now));
        }
        if self.intent.is_some() && !ended {
            self.stop_run(at);
        } else {
            self.go(State::Running);
        }
        self.watch_once();
    }

    pub(super) fn watch_once(&mut self) {
        if !std::mem::replace(&mut self.watched, true) {
            self.effects.push(TaskEffect::Watch);
        }
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
