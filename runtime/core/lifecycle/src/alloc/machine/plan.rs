//! Ends the tasks of an allocation stage by stage, after the hooks and the delay.
//!
//! ```text
//!   pre-kill hooks ─► [group shutdown_delay] ─► leader ─► mains ─► sidecars ─► (poststop: when forced)
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::types::AllocEffect;
use super::{AllocMachine, AllocPhase, Hooks, Restart};
use crate::alloc::status::{kill_order, poststop_tasks};
use crate::task::events::is_undead;
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;
use ostler_model::task::TaskStatus;

/// A stop under way. Never taken back.
#[derive(Clone, Debug)]
pub(super) struct KillPlan {
    event: Option<TaskEvent>,
    reason: String,
    /// The stages that have not begun.
    rest: VecDeque<Vec<TaskName>>,
    /// The tasks of the stages that have begun.
    begun: BTreeSet<TaskName>,
    /// The tasks that were told to end.
    asked: BTreeSet<TaskName>,
    /// The group's `shutdown_delay`, until it begins.
    delay: Option<Duration>,
    /// The group's `shutdown_delay` runs.
    delayed: bool,
    /// Do not wait for the pre-kill hooks.
    hurry: bool,
    /// Do not wait for the delays of tasks.
    skip: bool,
}

impl KillPlan {
    pub(super) fn new(
        event: Option<TaskEvent>,
        reason: &str,
        stages: impl IntoIterator<Item = Vec<TaskName>>,
    ) -> Self {
        Self {
            event,
            reason: reason.to_owned(),
            rest: stages.into_iter().collect(),
            begun: BTreeSet::new(),
            asked: BTreeSet::new(),
            delay: None,
            delayed: false,
            hurry: false,
            skip: false,
        }
    }

    pub(super) fn timer_fired(&mut self) {
        self.delayed = false;
    }

    /// Do not wait for the group's delay.
    fn end_delay(&mut self) {
        self.delay = None;
        self.delayed = false;
    }
}

impl AllocMachine {
    /// Begin a stop. A restart that the tasks are being told of is still answered.
    pub(super) fn begin_plan(&mut self, plan: KillPlan) {
        self.restart = self.restart.take().filter(|restart| matches!(restart, Restart::Asking));
        self.plan = Some(plan);
    }

    /// Advance the plan as far as the states allow.
    pub(super) fn advance_plan(&mut self) {
        let Some(mut plan) = self.plan.take() else {
            return;
        };
        if self.pre_kill == Hooks::NotRun && self.started {
            self.run_pre_kill();
        }
        if self.pre_kill != Hooks::Running || plan.hurry {
            if let Some(delay) = plan.delay.take() {
                plan.delayed = true;
                self.effects.push(AllocEffect::Timer(delay));
            }
            self.advance_stages(&mut plan);
        }
        self.plan = Some(plan);
    }

    fn advance_stages(&mut self, plan: &mut KillPlan) {
        while !plan.delayed {
            let due = self.live_tasks(plan.begun.iter());
            // A restart that was on its way may have started a task again that was dead when
            // its stage began.
            let not_asked: Vec<_> = due.iter().filter(|t| !plan.asked.contains(*t)).collect();
            if !not_asked.is_empty() {
                let tasks: Vec<TaskName> = not_asked.into_iter().cloned().collect();
                plan.asked.extend(tasks.iter().cloned());
                self.effects.push(AllocEffect::Kill {
                    tasks,
                    event: plan.event.clone(),
                    reason: plan.reason.clone(),
                    skip_shutdown_delay: plan.skip,
                });
            }
            // A task whose processes do not end does not hold up the next stage.
            if due.iter().any(|task| !self.states.get(task).is_some_and(|state| is_undead(state))) {
                return;
            }
            let Some(next) = plan.rest.pop_front() else {
                return;
            };
            plan.begun.extend(next);
        }
    }

    pub(super) fn live_tasks<'a>(
        &self,
        tasks: impl Iterator<Item = &'a TaskName>,
    ) -> Vec<TaskName> {
        tasks.filter(|t| !self.is_dead(t)).cloned().collect()
    }

    pub(super) fn is_dead(&self, task: &TaskName) -> bool {
        self.states.get(task).is_some_and(|s| s.status == TaskStatus::Dead)
    }

    /// Stop the allocation for this reason.
    pub(super) fn stop(&mut self, reason: &str, skip: bool) {
        if self.plan.is_some() {
            self.stop_again(reason, skip);
            return;
        }
        if self.phase == AllocPhase::Preparing && !self.started {
            self.effects.push(AllocEffect::AbandonPreHooks);
            self.phase = AllocPhase::Running;
            self.end_all(None, reason);
            return;
        }
        let order = kill_order(&self.group);
        let any_live = order.iter().any(|stage| !self.live_tasks(stage.iter()).is_empty());
        let mut plan = KillPlan::new(None, reason, order);
        plan.skip = skip;
        plan.delay = self.group.shutdown_delay.filter(|d| any_live && !skip && !d.is_zero());
        self.begin_plan(plan);
    }

    /// A second stop: all waits end, and the poststop tasks need not run to their end.
    fn stop_again(&mut self, reason: &str, skip: bool) {
        let poststop = poststop_tasks(&self.group);
        let live = self.live_tasks(poststop.iter());
        let others_dead =
            self.group.tasks.iter().all(|t| poststop.contains(&t.name) || self.is_dead(&t.name));
        let Some(mut plan) = self.plan.take() else {
            return;
        };
        plan.hurry = true;
        plan.end_delay();
        let mut told = Vec::new();
        if skip && !plan.skip {
            plan.skip = true;
            told = self.live_tasks(plan.asked.iter());
        }
        if others_dead {
            // A task that is being killed is not told again.
            told.extend(live.into_iter().filter(|t| !plan.asked.contains(t)));
            plan.asked.extend(told.iter().cloned());
        }
        if !told.is_empty() {
            self.effects.push(AllocEffect::Kill {
                tasks: told,
                event: None,
                reason: reason.to_owned(),
                skip_shutdown_delay: plan.skip,
            });
        }
        self.plan = Some(plan);
    }

    /// End every task, poststop tasks too, and open no gate any more. Tasks that run end in order.
    /// Where no task was started, all end at once.
    pub(super) fn end_all(&mut self, event: Option<TaskEvent>, reason: &str) {
        self.prepared = false;
        let poststop = poststop_tasks(&self.group);
        if let Some(plan) = &mut self.plan {
            plan.end_delay();
            plan.rest.push_back(poststop);
            return;
        }
        let stages = if self.started {
            let mut stages = kill_order(&self.group);
            stages.push(poststop);
            stages
        } else {
            let all: BTreeSet<TaskName> = self.group.tasks.iter().map(|t| t.name.clone()).collect();
            vec![all.into_iter().collect()]
        };
        self.begin_plan(KillPlan::new(event, reason, stages));
    }
}
