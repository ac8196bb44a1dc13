//! Restores the machine of a task of an earlier agent.
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
use super::end::AfterRun;
use super::{EndIntent, MachineState, StepContext, TaskEffect, TaskInput, TaskMachine, TaskRules};
use ostler_model::event::EventKind;
use ostler_model::planted::planted;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

/// What is recorded of the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownRun {
    /// There is no run.
    None,
    /// The run was begun, but whether anything of it ran is not known.
    Unfinished,
    /// The run has a handle.
    Started,
}

/// What is recorded of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedTask {
    /// The public state of the task.
    pub state: Option<TaskState>,
    /// The restarts used so far.
    pub tracker: Option<RestartTracker>,
    /// The last run of the task.
    pub run: KnownRun,
    /// The stop hooks of the task ran.
    pub complete: bool,
    /// The next start does not come before this time. Together with a run it means that the run is
    /// over, and what follows its exit is decided.
    pub delayed_until: Option<Timestamp>,
}

/// Why a run without a handle is given up.
const UNFINISHED: &str = "the agent ended while the task was being started";

impl TaskMachine {
    /// The machine of a task of an earlier agent, and what to do first.
    #[must_use]
    pub fn restore(
        rules: TaskRules,
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
        machine.delayed_until = delayed_until.map(|until| machine.cap_delay(now, until));
        let at = StepContext { now, random: 0 };
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

    /// Limit a delay to the longest that the policy can ask for, because the clock may have been
    /// set back since.
    fn cap_delay(&self, now: Timestamp, until: Timestamp) -> Timestamp {
        until.min(now.plus(self.tracker.longest_delay(&self.rules.policy)))
    }

    /// Restore a task that ended for good, whatever public state was written last.
    fn restore_complete(&mut self, at: StepContext) {
        self.finished = true;
        if self.public.status != TaskStatus::Dead {
            let lost = events::failed_restoring(at.now, "it ended, and how is not recorded");
            self.public.push_event(lost.with_task_failure());
            self.public.status = TaskStatus::Dead;
        }
        self.public.finished_at.get_or_insert(at.now);
    }

    fn restore_dead(&mut self, run: KnownRun, complete: bool) {
        match (run, complete) {
            (KnownRun::None, true) => self.state = MachineState::Dead,
            (KnownRun::None, false) => self.idle_or_end(),
            _ => {
                self.next = Some(AfterRun::End);
                self.clear();
            }
        }
    }

    fn restore_live(&mut self, at: StepContext, run: KnownRun) {
        match (run, self.delayed_until) {
            (KnownRun::None, Some(until)) => {
                self.public.status = TaskStatus::Pending;
                self.wait_until(at, until);
            }
            // The task was never reported as running, so it begins as a new task does.
            (KnownRun::None, None) if self.public.status == TaskStatus::Pending => {}
            (KnownRun::None, None) => {
                self.lose_run(at, "nothing is recorded of its run");
            }
            (_, Some(until)) => {
                self.public.status = TaskStatus::Pending;
                self.next = Some(AfterRun::Restart(until.since(at.now)));
                self.clear();
            }
            (KnownRun::Started, None) => {
                // A restart was accepted, and the agent ended before the run did.
                let asked = events::restart_under_way(&self.public);
                self.intent = asked.map(|failure| EndIntent::Restart { failure });
                self.recover();
            }
            (KnownRun::Unfinished, None) if self.rules.policy.attempts == 0 => {
                self.unfinished = true;
                self.recover();
            }
            (KnownRun::Unfinished, None) => self.lose_run(at, UNFINISHED),
        }
    }

    fn wait_until(&mut self, at: StepContext, until: Timestamp) {
        let rest = until.since(at.now);
        if !rest.is_zero() {
            self.state = MachineState::Delaying;
            self.set_timer(rest);
        }
    }

    pub(super) fn recover(&mut self) {
        self.go_to(MachineState::Recovering);
        self.effects.push(TaskEffect::Recover);
    }

    fn clear(&mut self) {
        self.go_to(MachineState::Clearing);
        self.effects.push(TaskEffect::Clear);
    }

    /// The run was lost with its agent or machine: clear what is left, and decide what follows.
    fn lose_run(&mut self, at: StepContext, reason: &str) {
        self.public.push_event(events::failed_restoring(at.now, reason));
        let next = if self.intent.is_some_and(EndIntent::is_kill) {
            self.public.push_event(events::killed_event(at.now));
            AfterRun::End
        } else if matches!(self.intent.take(), Some(EndIntent::Restart { .. })) {
            self.restart_lost(at)
        } else if self.rules.policy.attempts == 0 {
            self.public
                .push_event(events::not_restarting_event(at.now, "Policy allows no restarts"));
            AfterRun::End
        } else {
            self.restart_lost(at)
        };
        // The run ends when none of its processes is left.
        self.next = Some(next);
        self.clear();
    }

    fn restart_lost(&mut self, at: StepContext) -> AfterRun {
        self.public.push_event(events::restarting_event(at.now, "", Duration::ZERO));
        self.public.restarts = self.public.restarts.saturating_add(1);
        self.public.last_restart = Some(at.now);
        AfterRun::Again
    }

    /// Take an answer of a recovery.
    pub(super) fn step_recovering(&mut self, at: StepContext, input: TaskInput) {
        match input {
            TaskInput::Recovered { ended } => self.own_recovered(at, ended),
            TaskInput::RecoveryNotReady { reason, held } => self.retry_recovery(at, reason, held),
            TaskInput::NeverRan => {
                self.end_never_ran(at);
                self.clear();
            }
            TaskInput::RecoveryFailed { reason } => self.lose_run(at, &reason),
            _ => {}
        }
    }

    fn retry_recovery(&mut self, at: StepContext, reason: String, held: bool) {
        if held {
            self.mark_running(at);
        }
        let pause = self.count_refusal(at, reason, events::waiting_for_recovery);
        if self.intent.is_some_and(EndIntent::is_kill) {
            self.stop_unrecovered(at);
        } else {
            self.go_to(MachineState::AwaitingRecovery);
            self.set_timer(pause);
        }
    }

    /// The host has the run, so it runs, whatever public state was written last.
    fn mark_running(&mut self, at: StepContext) {
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.watch_once();
    }

    /// End a run that its driver has not recovered: by the host's signal, or, where the host does
    /// not have the run either, by what is recorded of it.
    pub(super) fn stop_unrecovered(&mut self, at: StepContext) {
        if self.watched {
            self.stop_run(at);
        } else {
            let reason = std::mem::take(&mut self.refusal);
            self.lose_run(at, if reason.is_empty() { UNFINISHED } else { &reason });
        }
    }

    /// A recovery takes too long while the run is to be killed.
    pub(super) fn recovery_late(&mut self, at: StepContext) {
        self.effects.push(TaskEffect::AbandonRecover);
        if !self.unfinished {
            self.mark_running(at);
        }
        self.stop_unrecovered(at);
    }

    fn end_never_ran(&mut self, at: StepContext) {
        let killed = self.intent.is_some_and(EndIntent::is_kill);
        if killed {
            self.public.push_event(events::killed_event(at.now));
        } else {
            self.intent = None;
        }
        self.record_end(at, if killed { AfterRun::End } else { AfterRun::Again });
    }

    /// The run ended before its program ran, because the agent that was to release it
    /// was killed first.
    pub(super) fn forget_never_ran(&mut self, at: StepContext) {
        self.end_never_ran(at);
        self.go_to(MachineState::Forgetting);
        self.effects.push(TaskEffect::Forget);
    }

    fn own_recovered(&mut self, at: StepContext, ended: bool) {
        self.clear_refusals();
        self.public.status = TaskStatus::Running;
        self.public.started_at.get_or_insert(at.now);
        self.public.last_exit = None;
        if ended {
            // The run ended by itself before the kill.
            self.intent = self.intent.map(|i| if i.is_kill() { EndIntent::KillLate } else { i });
        } else {
            self.public.push_event(events::recovered_event(at.now));
        }
        if self.intent.is_some() && !ended {
            self.stop_run(at);
        } else {
            self.go_to(MachineState::Running);
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
