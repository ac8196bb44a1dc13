//! Handles the requests to a task: kill, restart, finish, newer rules, the leaving of the agent.
//!
//! ```text
//!              nothing runs         starting        runs                 ended, being forgotten    Idle
//! kill         Ending               its answer      stop ─► kill ─► host nothing follows           Ending
//! restart      no                   no              stop, start again    no                        no
//! force        at once, undelayed   starts anyway   stop, start again    starts again              starts
//! finish       remembered           remembered      remembered           Ending                    Ending
//! ```
//! A run that is being recovered exists, but its driver may not be ready. A restart of the run is
//! kept until the driver has it. For a kill the host sends the signal when the recovery takes too
//! long. Both wait for `shutdown_delay` first. A kill that comes while a restart waits takes over
//! the rest of that wait, or ends the run at once where the kill skips the delay.

use std::time::Duration;

use super::super::events;
use super::end::AfterRun;
use super::{EndIntent, MachineState, StepContext, TaskEffect, TaskMachine, TaskRules};
use ostler_model::event::TaskEvent;
use ostler_model::limits::KILL_GRACE;
use ostler_model::planted::planted;
use ostler_model::task::TaskStatus;

impl TaskMachine {
    pub(super) fn kill(
        &mut self,
        at: StepContext,
        event: Option<TaskEvent>,
        reason: &str,
        skip_delay: bool,
    ) {
        if self.is_final() || self.state == MachineState::Ending {
            return;
        }
        self.skip_delay |= skip_delay;
        if self.intent.is_some_and(EndIntent::is_kill) {
            if skip_delay && self.state == MachineState::ShutdownDelay {
                self.stop_run(at);
            }
            return;
        }
        match self.state {
            MachineState::Delaying if planted("delay-outlives-kill") => return,
            // A dead task gets no event. It is just no longer kept for a restart.
            MachineState::Idle => return self.end(),
            // The run ended by itself: what is recorded of its end stays.
            MachineState::Exited if self.intent.is_none() => {
                self.intent = Some(EndIntent::KillLate);
                return;
            }
            MachineState::Forgetting | MachineState::Clearing
                if self.public.status == TaskStatus::Dead || self.next == Some(AfterRun::End) =>
            {
                self.intent = Some(EndIntent::KillLate);
                self.next = Some(AfterRun::End);
                return;
            }
            _ => {}
        }
        self.intent = Some(EndIntent::Kill);
        if let Some(event) = event {
            self.public.push_event(event);
        }
        let killing = if self.may_run() {
            events::killing_event(at.now, reason, self.rules.kill_timeout, self.signals)
        } else {
            events::killing_idle_event(at.now, reason)
        };
        self.public.push_event(killing);
        match self.state {
            MachineState::Gated | MachineState::AwaitingDriver | MachineState::Delaying => {
                self.end_killed(at)
            }
            MachineState::Preparing => {
                self.effects.push(TaskEffect::AbandonPrepare);
                self.end_killed(at);
            }
            MachineState::Starting => {
                self.go_to(MachineState::StoppingStart);
                self.set_timer(self.rules.kill_timeout);
            }
            MachineState::Running => self.stop_run(at),
            // The driver is being asked. The wait is long enough for the host to own the run, but
            // not as long as hooks may take.
            MachineState::Recovering => self.set_timer(KILL_GRACE),
            // The driver cannot be asked, so the host sends the signal.
            MachineState::AwaitingRecovery => self.stop_unrecovered(at),
            // No run is to follow, so nobody needs to wait for processes that do not end.
            MachineState::Reaping if self.undead => self.effects.push(TaskEffect::ReportUndead),
            MachineState::ShutdownDelay => self.continue_delay(at),
            // The run is being ended for a restart: it ends, and no restart follows.
            _ => {}
        }
    }

    /// A kill while a restart waits for `shutdown_delay`: the wait that has begun counts for
    /// the kill too.
    fn continue_delay(&mut self, at: StepContext) {
        if self.skip_delay {
            self.stop_run(at);
        } else {
            let rest = self.rest_of_delay(at);
            self.public.push_event(events::waiting_shutdown_delay(at.now, rest));
        }
    }

    fn rest_of_delay(&self, at: StepContext) -> Duration {
        let waited = at.now.since(self.delay_since);
        self.rules.shutdown_delay.unwrap_or_default().saturating_sub(waited)
    }

    fn note_restart(&mut self, at: StepContext, reason: &str) {
        let limit = self.rules.kill_timeout;
        self.public.push_event(events::restart_signaled_event(at.now, reason, limit, self.signals));
    }

    /// May something of the task run now?
    fn may_run(&self) -> bool {
        !matches!(
            self.state,
            MachineState::Gated
                | MachineState::Preparing
                | MachineState::AwaitingDriver
                | MachineState::Delaying
                | MachineState::Forgetting
                | MachineState::Clearing
        )
    }

    pub(super) fn restart(&mut self, at: StepContext, reason: &str, failure: bool) {
        match self.state {
            MachineState::Running => {
                self.intent = Some(EndIntent::Restart { failure });
                self.note_restart(at, reason);
                self.stop_run(at);
            }
            MachineState::AwaitingRecovery => self.restart_anyway(at, reason, failure),
            _ => {}
        }
    }

    pub(super) fn force_restart(&mut self, at: StepContext, reason: &str) {
        self.restart_anyway(at, reason, false);
    }

    fn restart_anyway(&mut self, at: StepContext, reason: &str, failure: bool) {
        if self.intent.is_some() {
            // The run is being killed, or ended for a restart.
            return;
        }
        match (self.state, self.next) {
            (MachineState::Running, _) => return self.restart(at, reason, failure),
            (
                MachineState::Exited | MachineState::Recovering | MachineState::AwaitingRecovery,
                _,
            ) => {
                self.intent = Some(EndIntent::Restart { failure });
            }
            (MachineState::Forgetting | MachineState::Clearing, Some(AfterRun::Restart(_))) => {
                self.next = Some(AfterRun::Again);
            }
            (MachineState::Forgetting | MachineState::Clearing, Some(AfterRun::End))
                if self.is_restartable() =>
            {
                self.next = Some(AfterRun::Revive);
            }
            (MachineState::Delaying, _) => self.go_to(MachineState::Gated),
            (MachineState::Idle, _) => self.revive(at),
            // The task is about to start, or it has ended for good.
            _ => return,
        }
        self.note_restart(at, reason);
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
        if self.next == Some(AfterRun::Revive) {
            self.next = Some(AfterRun::End);
        }
        if self.state == MachineState::Idle {
            self.end();
        }
    }

    pub(super) fn change_rules(&mut self, at: StepContext, rules: TaskRules) {
        let before = std::mem::replace(&mut self.rules, rules).shutdown_delay;
        if self.state != MachineState::ShutdownDelay || before == rules.shutdown_delay {
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
            MachineState::Gated
            | MachineState::AwaitingDriver
            | MachineState::AwaitingRecovery
            | MachineState::Delaying
            | MachineState::Idle
            | MachineState::Running => self.leave(),
            MachineState::Preparing => {
                self.effects.push(TaskEffect::AbandonPrepare);
                self.leave();
            }
            MachineState::Recovering => {
                self.effects.push(TaskEffect::AbandonRecover);
                self.leave();
            }
            // The next agent finds the restart on record, and begins the wait anew.
            MachineState::ShutdownDelay if !self.is_killed_for_good() => self.leave(),
            // The next agent finds the run on record, and waits for what does not end.
            MachineState::Reaping if self.undead => self.leave(),
            MachineState::Clearing if self.timer => self.leave(),
            // Calls on their way finish first; all of them are bounded.
            _ => self.leaving = true,
        }
    }
}
