//! Decides what to do by the states of the tasks and by what is done so far.

use super::plan::KillPlan;
use super::{AllocEffect, AllocMachine, AllocPhase, Hooks, Restart};
use crate::alloc::coordinator::TaskGate;
use crate::alloc::status::{is_poststop, kill_order, kill_reason};
use ostler_model::time::Timestamp;

impl AllocMachine {
    /// Look at the states: gates, reasons to stop, next stage of a stop, the end.
    pub(super) fn apply_states(&mut self, now: Timestamp) {
        if !matches!(self.phase, AllocPhase::Preparing | AllocPhase::Running) {
            return;
        }
        // The known states are from before the tasks were told to run again.
        let asking = matches!(self.restart, Some(Restart::Asking)) && !self.gone;
        if asking && self.plan.is_none() {
            return;
        }
        if self.plan.is_none()
            && let Some(reason) = kill_reason(&self.group, &self.states)
        {
            let order = kill_order(&self.group);
            self.begin_plan(KillPlan::new(Some(reason.event(now)), &reason.to_string(), order));
        }
        self.advance_plan();
        if self.prepared && !asking {
            self.coordinator.step(&self.states);
        }
        self.set_gates();
        if !asking {
            self.end_if_over(now);
        }
    }

    /// Tell the tasks whose gate changed. While a stop is under way only poststop tasks may start.
    /// Once all tasks are told to finish none may start, although pre-run hooks of a restored
    /// allocation may end after that.
    pub(super) fn set_gates(&mut self) {
        if self.finishing {
            return;
        }
        let mut changes = Vec::new();
        for task in &self.group.tasks {
            let allowed = self.prepared && (self.plan.is_none() || is_poststop(task));
            let wanted = if allowed { self.coordinator.gate(&task.name) } else { TaskGate::Closed };
            if self.gates.get(&task.name) != Some(&wanted) {
                self.gates.insert(task.name.clone(), wanted);
                changes.push((task.name.clone(), wanted));
            }
        }
        if !changes.is_empty() {
            self.effects.push(AllocEffect::Gates(changes));
        }
    }

    pub(super) fn run_pre_kill(&mut self) {
        self.pre_kill = Hooks::Running;
        self.effects.push(AllocEffect::PreKillHooks);
    }

    fn end_if_over(&mut self, now: Timestamp) {
        let all_dead = self.group.tasks.iter().all(|t| self.is_dead(&t.name));
        if !all_dead && !self.gone {
            return;
        }
        if self.pre_kill == Hooks::NotRun {
            self.run_pre_kill();
        }
        if self.pre_kill != Hooks::Done {
            return;
        }
        if self.gone {
            if self.phase == AllocPhase::Preparing {
                self.effects.push(AllocEffect::AbandonPreHooks);
            }
            self.judge_failure(now);
            self.waiting = None;
            self.phase = AllocPhase::Cleaning;
            self.effects.push(AllocEffect::PostHooks);
        } else if !self.finishing && self.verdict.is_none() {
            // The verdict comes first, because a task that is gone gets no events any more.
            self.finishing = true;
            self.effects.push(AllocEffect::FinishTasks);
        }
    }
}
