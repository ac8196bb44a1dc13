//! How a run ends and what follows.
//!
//! ```text
//!   Exited ── exit read ─► decided ─► Forgetting ── durable, forgotten ─► Delaying | Idle | Ending
//! ```
//! The driver and the host forget a run only after what follows is durable: an agent that is killed in
//! between finds the run, reads the same exit again, and decides the same.

use std::time::Duration;

use super::super::events;
use super::super::restart::{Ending, RestartDecision};
use super::{At, Intent, State, TaskEffect, TaskMachine};
use ostler_model::limits::END_RETRY;
use ostler_model::task::{ExitResult, TaskStatus};

/// What follows a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start again after a wait.
    Restart(Duration),
    /// Start again at once: the run did not count, or somebody asked for it.
    Again,
    /// Start again, though it counted as dead.
    Revive,
    /// Nothing.
    End,
}

impl TaskMachine {
    pub(super) fn exit_read(&mut self, at: At, exit: ExitResult) {
        self.public.push_event(events::terminated(at.now, &exit));
        let success = exit.successful();
        self.public.last_exit = Some(exit);
        let next = match self.intent {
            Some(Intent::Kill) => {
                self.public.push_event(match self.given_up.take() {
                    None => events::killed(at.now),
                    Some(error) => events::not_killed(at.now, &error),
                });
                Next::End
            }
            Some(Intent::KillLate) => Next::End,
            Some(Intent::Restart { failure }) => {
                self.intent = None;
                self.decided(at, Ending::RestartTriggered { failure })
            }
            None => self.decided(at, Ending::Exited { success }),
        };
        self.over(at, next);
        self.go(State::Forgetting);
        self.effects.push(TaskEffect::Forget);
    }

    /// The task did not start; nothing of the attempt is left.
    pub(super) fn decide(&mut self, at: At, ending: Ending) {
        let next = self.decided(at, ending);
        self.over(at, next);
        self.follow(at);
    }

    /// What follows, with its events.
    fn decided(&mut self, at: At, ending: Ending) -> Next {
        let decision = self.tracker.decide(
            ending,
            &self.rules.policy,
            self.rules.restart_on_success,
            at.now,
            at.random,
        );
        match decision {
            RestartDecision::Restart { delay, reason, .. } => {
                self.public.restarts = self.public.restarts.saturating_add(1);
                self.public.last_restart = Some(at.now);
                self.public.push_event(events::restarting(at.now, &reason, delay));
                Next::Restart(delay)
            }
            RestartDecision::NotRestarting { reason } => {
                self.public.push_event(events::not_restarting(at.now, &reason));
                Next::End
            }
            RestartDecision::Terminated { .. } | RestartDecision::Killed => Next::End,
        }
    }

    /// The run is over; the public state says so from here on.
    pub(super) fn over(&mut self, at: At, next: Next) {
        match next {
            Next::Restart(delay) => {
                self.public.status = TaskStatus::Pending;
                self.delayed_until = Some(at.now.plus(delay));
            }
            Next::Again | Next::Revive => self.public.status = TaskStatus::Pending,
            Next::End => {
                self.public.status = TaskStatus::Dead;
                self.public.finished_at.get_or_insert(at.now);
            }
        }
        self.next = Some(next);
    }

    /// Nothing of the run is known any more.
    pub(super) fn forgotten(&mut self, at: At) {
        self.undead = false;
        self.kills_again = 0;
        if self.intent.is_some_and(Intent::kills) && self.next != Some(Next::End) {
            self.public.push_event(events::killed(at.now));
            self.over(at, Next::End);
        }
        // Of a lost run processes could be left until now.
        match self.next {
            _ if self.state != State::Clearing => {}
            // The delay of the restart was decided before.
            Some(Next::Restart(_)) => self.public.status = TaskStatus::Pending,
            Some(next) => self.over(at, next),
            None => {}
        }
        self.follow(at);
    }

    /// What is left of the run does not end, or cannot be looked at now: it is not over, and gets no
    /// second one beside it. Tried again.
    pub(super) fn not_cleared(&mut self, at: At) {
        if self.leaving {
            return self.leave();
        }
        if self.public.status != TaskStatus::Dead {
            self.public.status = TaskStatus::Running;
            self.public.started_at.get_or_insert(at.now);
        }
        self.tell_undead();
    }

    /// What was killed by every means does not end: killed again, for as long as it takes.
    pub(super) fn not_ended(&mut self) {
        if self.leaving {
            return self.leave();
        }
        self.effects.extend([TaskEffect::Kill, TaskEffect::KillRun]);
        self.tell_undead();
    }

    /// Said once, and tried again ever more slowly.
    fn tell_undead(&mut self) {
        if !std::mem::replace(&mut self.undead, true) {
            self.effects.push(TaskEffect::TellUndead);
        }
        let pause = END_RETRY.start().saturating_mul(1 << self.kills_again.min(16));
        self.kills_again = self.kills_again.saturating_add(1);
        self.set_timer(pause.min(*END_RETRY.end()));
    }

    /// Go where the decision leads.
    fn follow(&mut self, at: At) {
        let next = self.next.take().unwrap_or(Next::End);
        match next {
            Next::Restart(_) | Next::Again if self.leaving => self.leave(),
            Next::Again => self.go(State::Gated),
            Next::Restart(delay) => {
                let until = self.delayed_until.unwrap_or(at.now);
                self.go(State::Delaying);
                self.set_timer(until.since(at.now).min(delay).max(DELAY_MIN));
            }
            Next::Revive => {
                self.revive(at);
                if self.leaving {
                    self.leave();
                }
            }
            Next::End => self.rest(),
        }
    }

    /// Is it kept, once dead, for a restart of the whole allocation?
    pub(super) fn stays(&self) -> bool {
        let over = self.finished || self.intent.is_some_and(Intent::kills);
        self.rules.restartable && !over
    }

    /// Dead: kept for a restart of the whole allocation, or at its end.
    pub(super) fn rest(&mut self) {
        if !self.stays() {
            self.end();
        } else if self.leaving {
            self.leave();
        } else {
            self.go(State::Idle);
        }
    }

    /// A dead task starts again: as new, but for its history.
    pub(super) fn revive(&mut self, at: At) {
        self.public.status = TaskStatus::Pending;
        self.public.failed = false;
        self.public.finished_at = None;
        self.public.restarts = self.public.restarts.saturating_add(1);
        self.public.last_restart = Some(at.now);
        self.go(State::Gated);
    }

    /// Killed without a run to forget.
    pub(super) fn killed(&mut self, at: At) {
        self.public.push_event(events::killed(at.now));
        self.over(at, Next::End);
        self.next = None;
        self.end();
    }

    pub(super) fn end(&mut self) {
        self.go(State::Ending);
        self.effects.push(TaskEffect::End);
    }
}

/// A timer of zero would fire at once.
const DELAY_MIN: Duration = Duration::from_nanos(1);
