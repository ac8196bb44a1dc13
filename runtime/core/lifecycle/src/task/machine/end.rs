//! How a run ends, and what follows.
//!
//! ```text
//!   Exited ── exit read ─► decided ─► Forgetting ── durable, forgotten ─► Delaying | Idle | Ending
//! ```
//! The driver and the host forget a run only after what follows is durable: an agent that is killed in
//! between finds the run, reads the same exit again, and decides the same.

use std::time::Duration;

use super::super::events;
use super::super::restart::{Ending, RestartDecision};
use super::{EndIntent, MachineState, StepContext, TaskEffect, TaskMachine};
use ostler_model::limits::END_RETRY;
use ostler_model::task::{ExitResult, TaskStatus};

/// What follows when a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRun {
    /// Start again after a wait.
    Restart(Duration),
    /// Start again at once: the run did not count, or somebody asked for it.
    Again,
    /// Start again, although the task counted as dead.
    Revive,
    /// No run follows.
    End,
}

impl TaskMachine {
    pub(super) fn exit_read(&mut self, at: StepContext, exit: ExitResult) {
        self.public.push_event(events::terminated_event(at.now, &exit));
        let success = exit.is_successful();
        self.public.last_exit = Some(exit);
        let next = match self.intent {
            Some(EndIntent::Kill) => {
                self.public.push_event(match self.given_up.take() {
                    None => events::killed_event(at.now),
                    Some(error) => events::not_killed_event(at.now, &error),
                });
                AfterRun::End
            }
            Some(EndIntent::KillLate) => AfterRun::End,
            Some(EndIntent::Restart { failure }) => {
                self.intent = None;
                self.decide_next(at, Ending::RestartTriggered { failure })
            }
            None => self.decide_next(at, Ending::Exited { success }),
        };
        self.record_end(at, next);
        self.go_to(MachineState::Forgetting);
        self.effects.push(TaskEffect::Forget);
    }

    /// Decide what follows a start that failed. Nothing of the attempt is left.
    pub(super) fn end_failed_start(&mut self, at: StepContext, ending: Ending) {
        let next = self.decide_next(at, ending);
        self.record_end(at, next);
        self.follow_decision(at);
    }

    /// Decide what follows a run, and add the events of the decision.
    fn decide_next(&mut self, at: StepContext, ending: Ending) -> AfterRun {
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
                self.public.push_event(events::restarting_event(at.now, &reason, delay));
                AfterRun::Restart(delay)
            }
            RestartDecision::NotRestarting { reason } => {
                self.public.push_event(events::not_restarting_event(at.now, &reason));
                AfterRun::End
            }
            RestartDecision::Terminated { .. } | RestartDecision::Killed => AfterRun::End,
        }
    }

    /// Mark the run as over; the public state says so from now on.
    pub(super) fn record_end(&mut self, at: StepContext, next: AfterRun) {
        match next {
            AfterRun::Restart(delay) => {
                self.public.status = TaskStatus::Pending;
                self.delayed_until = Some(at.now.plus(delay));
            }
            AfterRun::Again | AfterRun::Revive => self.public.status = TaskStatus::Pending,
            AfterRun::End => {
                self.public.status = TaskStatus::Dead;
                self.public.finished_at.get_or_insert(at.now);
            }
        }
        self.next = Some(next);
    }

    /// Driver and host have forgotten the run: go on with what follows.
    pub(super) fn finish_forgetting(&mut self, at: StepContext) {
        self.undead = false;
        self.kills_again = 0;
        if self.intent.is_some_and(EndIntent::is_kill) && self.next != Some(AfterRun::End) {
            self.public.push_event(events::killed_event(at.now));
            self.record_end(at, AfterRun::End);
        }
        // Processes of a lost run may have been left until now.
        match self.next {
            _ if self.state != MachineState::Clearing => {}
            // The delay of the restart was decided before.
            Some(AfterRun::Restart(_)) => self.public.status = TaskStatus::Pending,
            Some(next) => self.record_end(at, next),
            None => {}
        }
        self.follow_decision(at);
    }

    /// Try again to clear a run that does not end, or cannot be looked at now. It is not over, so
    /// no second run begins beside it.
    pub(super) fn retry_clear(&mut self, at: StepContext) {
        if self.leaving {
            return self.leave();
        }
        if self.public.status != TaskStatus::Dead {
            self.public.status = TaskStatus::Running;
            self.public.started_at.get_or_insert(at.now);
        }
        self.tell_undead();
    }

    /// Kill a run again that does not end although it was killed by every means. This goes on for
    /// as long as it takes.
    pub(super) fn retry_kill(&mut self) {
        if self.leaving {
            return self.leave();
        }
        self.effects.extend([TaskEffect::Kill, TaskEffect::KillRun]);
        self.tell_undead();
    }

    /// Report once that the run does not end, and set the timer for the next try; the tries
    /// become ever slower.
    fn tell_undead(&mut self) {
        if !std::mem::replace(&mut self.undead, true) {
            self.effects.push(TaskEffect::ReportUndead);
        }
        let pause = END_RETRY.start().saturating_mul(1 << self.kills_again.min(16));
        self.kills_again = self.kills_again.saturating_add(1);
        self.set_timer(pause.min(*END_RETRY.end()));
    }

    /// Go where the decision leads.
    fn follow_decision(&mut self, at: StepContext) {
        let next = self.next.take().unwrap_or(AfterRun::End);
        match next {
            AfterRun::Restart(_) | AfterRun::Again if self.leaving => self.leave(),
            AfterRun::Again => self.go_to(MachineState::Gated),
            AfterRun::Restart(delay) => {
                let until = self.delayed_until.unwrap_or(at.now);
                self.go_to(MachineState::Delaying);
                self.set_timer(until.since(at.now).min(delay).max(DELAY_MIN));
            }
            AfterRun::Revive => {
                self.revive(at);
                if self.leaving {
                    self.leave();
                }
            }
            AfterRun::End => self.idle_or_end(),
        }
    }

    /// Is the task, once dead, kept for a restart of the whole allocation?
    pub(super) fn is_restartable(&self) -> bool {
        let over = self.finished || self.intent.is_some_and(EndIntent::is_kill);
        self.rules.restartable && !over
    }

    /// The task is dead: keep it for a restart of the whole allocation, or end it.
    pub(super) fn idle_or_end(&mut self) {
        if !self.is_restartable() {
            self.end();
        } else if self.leaving {
            self.leave();
        } else {
            self.go_to(MachineState::Idle);
        }
    }

    /// Start a dead task again, as a new one with its old history.
    pub(super) fn revive(&mut self, at: StepContext) {
        self.public.status = TaskStatus::Pending;
        self.public.failed = false;
        self.public.finished_at = None;
        self.public.restarts = self.public.restarts.saturating_add(1);
        self.public.last_restart = Some(at.now);
        self.go_to(MachineState::Gated);
    }

    /// End a task that was killed while no run was there to forget.
    pub(super) fn end_killed(&mut self, at: StepContext) {
        self.public.push_event(events::killed_event(at.now));
        self.record_end(at, AfterRun::End);
        self.next = None;
        self.end();
    }

    pub(super) fn end(&mut self) {
        self.go_to(MachineState::Ending);
        self.effects.push(TaskEffect::End);
    }
}

/// A timer of zero would fire at once.
const DELAY_MIN: Duration = Duration::from_nanos(1);
