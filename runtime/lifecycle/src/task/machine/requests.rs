//! What others ask of a task: kill, restart, finish, newer rules, the agent's leaving.
//!
//! ```text
//!              nothing runs         starting        runs                 ended, being forgotten    Idle
//! kill         Ending               its answer      stop ─► kill ─► host nothing follows           Ending
//! restart      no                   no              stop, start again    no                        no
//! force        at once, undelayed   starts anyway   stop, start again    starts again              starts
//! finish       remembered           remembered      remembered           Ending                    Ending
//! ```
//! A run that is being recovered is there but its driver may not be: a restart of it is kept until the
//! driver has it; in a kill the host sends the signal when the recovery takes too long. Both wait for
//! `shutdown_delay` first. A kill that comes while a restart waits ends with the rest of that wait, or at once
//! where it is not to wait.

use std::time::Duration;

use super::super::events;
use super::end::Next;
use super::{At, Intent, Rules, State, TaskEffect, TaskMachine};
use ostler_model::event::TaskEvent;
use ostler_model::limits::KILL_GRACE;
use ostler_model::planted::planted;
use ostler_model::task::TaskStatus;

impl TaskMachine {
    pub(super) fn kill(
        &mut self,
        at: At,
        event: Option<TaskEvent>,
        reason: &str,
        skip_delay: bool,
    ) {
        if self.is_final() || self.state == State::Ending {
            return;
        }
        self.skip_delay |= skip_delay;
        if self.intent.is_some_and(Intent::kills) {
            if skip_delay && self.state == State::ShutdownDelay {
                self.stop_run(at);
            }
            return;
        }
        match self.state {
            State::Delaying if planted("delay-outlives-kill") => return,
            // A dead task gets no event. It is only kept no longer for a restart.
            State::Idle => return self.end(),
            // The run ended by itself: what is recorded of its end stays.
            State::Exited if self.intent.is_none() => {
                self.intent = Some(Intent::KillLate);
                return;
            }
            State::Forgetting | State::Clearing
                if self.public.status == TaskStatus::Dead || self.next == Some(Next::End) =>
            {
                self.intent = Some(Intent::KillLate);
                self.next = Some(Next::End);
                return;
            }
            _ => {}
        }
        self.intent = Some(Intent::Kill);
        if let Some(event) = event {
            self.public.push_event(event);
        }
        let killing = if self.runs() {
            events::killing(at.now, reason, self.rules.kill_timeout, self.signals)
        } else {
            events::killing_idle(at.now, reason)
        };
        self.public.push_event(killing);
        match self.state {
            State::Gated | State::AwaitingDriver | State::Delaying => self.killed(at),
            State::Preparing => {
                self.effects.push(TaskEffect::AbandonPrepare);
                self.killed(at);
            }
            State::Starting => {
                self.go(State::StoppingStart);
                self.set_timer(self.rules.kill_timeout);
            }
            State::Running => self.stop_run(at),
            // The driver is being asked. Wait long enough for the host to own the run, not for all
            // that hooks may take.
            State::Recovering => self.set_timer(KILL_GRACE),
            // The driver is not there to be asked; the host sends the signal.
            State::AwaitingRecovery => self.stop_unrecovered(at),
            // No run is to follow, so processes that do not end need not be waited for.
            State::Reaping if self.undead => self.effects.push(TaskEffect::TellUndead),
            State::ShutdownDelay => self.delay_goes_on(at),
            // It is being ended for a restart: the run ends, and no restart follows.
            _ => {}
        }
    }

    /// Killed while a restart waits: the wait that has begun is the kill's too.
    fn delay_goes_on(&mut self, at: At) {
        if self.skip_delay {
            self.stop_run(at);
        } else {
            let rest = self.rest_of_delay(at);
            self.public.push_event(events::waiting_shutdown_delay(at.now, rest));
        }
    }

    fn rest_of_delay(&self, at: At) -> Duration {
        let waited = at.now.since(self.delay_since);
        self.rules.shutdown_delay.unwrap_or_default().saturating_sub(waited)
    }

    fn restart_signaled(&mut self, at: At, reason: &str) {
        let limit = self.rules.kill_timeout;
        self.public.push_event(events::restart_signaled(at.now, reason, limit, self.signals));
    }

    /// May something of the task run now?
    fn runs(&self) -> bool {
        !matches!(
            self.state,
            State::Gated
                | State::Preparing
                | State::AwaitingDriver
                | State::Delaying
                | State::Forgetting
                | State::Clearing
        )
    }

    pub(super) fn restart(&mut self, at: At, reason: &str, failure: bool) {
        match self.state {
            State::Running => {
                self.intent = Some(Intent::Restart { failure });
                self.restart_signaled(at, reason);
                self.stop_run(at);
            }
            State::AwaitingRecovery => self.restart_anyway(at, reason, failure),
            _ => {}
        }
    }

    pub(super) fn force_restart(&mut self, at: At, reason: &str) {
        self.restart_anyway(at, reason, false);
    }

    fn restart_anyway(&mut self, at: At, reason: &str, failure: bool) {
        if self.intent.is_some() {
            // It is being killed, or ended for a restart.
            return;
        }
        match (self.state, self.next) {
            (State::Running, _) => return self.restart(at, reason, failure),
            (State::Exited | State::Recovering | State::AwaitingRecovery, _) => {
                self.intent = Some(Intent::Restart { failure });
            }
            (State::Forgetting | State::Clearing, Some(Next::Restart(_))) => {
                self.next = Some(Next::Again);
            }
            (State::Forgetting | State::Clearing, Some(Next::End)) if self.stays() => {
                self.next = Some(Next::Revive);
            }
            (State::Delaying, _) => self.go(State::Gated),
            (State::Idle, _) => self.revive(at),
            // It is about to start, or it has ended for good.
            _ => return,
        }
        self.restart_signaled(at, reason);
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
        if self.next == Some(Next::Revive) {
            self.next = Some(Next::End);
        }
        if self.state == State::Idle {
            self.end();
        }
    }

    pub(super) fn rules_changed(&mut self, at: At, rules: Rules) {
        let before = std::mem::replace(&mut self.rules, rules).shutdown_delay;
        if self.state != State::ShutdownDelay || before == rules.shutdown_delay {
            return;
        }
        let rest = self.rest_of_delay(at);
        if rest.is_zero() {
            self.stop_now();
        } else {
            self.set_timer(rest);
        }
    }

    pub(super) fn shutdown(&mut self) {
        match self.state {
            State::Gated
            | State::AwaitingDriver
            | State::AwaitingRecovery
            | State::Delaying
            | State::Idle
            | State::Running => self.leave(),
            State::Preparing => {
                self.effects.push(TaskEffect::AbandonPrepare);
                self.leave();
            }
            State::Recovering => {
                self.effects.push(TaskEffect::AbandonRecover);
                self.leave();
            }
            // The next agent finds the restart on record, and begins the wait anew.
            State::ShutdownDelay if !self.killed_for_good() => self.leave(),
            // What does not end is the next agent's to wait for, by the record of the run.
            State::Reaping if self.undead => self.leave(),
            State::Clearing if self.timer => self.leave(),
            // What is on its way is finished first, all of it bounded.
            _ => self.leaving = true,
        }
    }
}
