//! Corrects times on record that are later than now, and deadlines that are further away than their
//! policy allows. Pure.
//!
//! The clock of the machine may have been set back since an earlier agent wrote its records. Times
//! in the future would then make every wait longer. The rest of a task's wait is bounded where its
//! policy is known: in `TaskMachine::restore` of `ostler-lifecycle`.

use std::sync::Arc;

use super::{AllocRecords, NodeRecords};
use ostler_model::alloc::Allocation;
use ostler_model::planted::planted;
use ostler_model::rollout::{Deployment, JobDeployments};
use ostler_model::scheduling::{DrainDeadline, NodeScheduling};
use ostler_model::task::TaskState;
use ostler_model::time::Timestamp;

impl NodeRecords {
    /// Replace times in the future by `now`. See the module.
    pub(super) fn clamp_future_times(&mut self, now: Timestamp) {
        if planted("future-on-record") {
            return;
        }
        for (_, known) in &mut self.deployments {
            clamp_deployments(known, now);
        }
        self.allocs.values_mut().for_each(|records| clamp_alloc(records, now));
        clamp_scheduling(&mut self.scheduling, now);
    }
}

fn clamp_time(at: &mut Timestamp, now: Timestamp) {
    *at = (*at).min(now);
}

fn clamp_deployments(known: &mut JobDeployments, now: Timestamp) {
    let late = |one: &Deployment| {
        one.groups.values().any(|group| {
            group.require_progress_by.is_some_and(|by| by > now.plus(group.progress_deadline))
        })
    };
    for one in known.all.iter_mut().filter(|one| late(one)) {
        for group in Arc::make_mut(one).groups.values_mut() {
            let latest = now.plus(group.progress_deadline);
            group.require_progress_by = group.require_progress_by.map(|by| by.min(latest));
        }
    }
}

fn clamp_alloc(records: &mut AllocRecords, now: Timestamp) {
    if let Some(alloc) = records.allocation.as_mut().filter(|alloc| is_later(alloc, now)) {
        let alloc = Arc::make_mut(alloc);
        clamp_time(&mut alloc.created_at, now);
        alloc.deployment.iter_mut().for_each(|of| clamp_time(&mut of.since, now));
        alloc.reschedules.iter_mut().for_each(|event| clamp_time(&mut event.time, now));
    }
    let restored = &mut records.restored;
    restored
        .health
        .iter_mut()
        .flat_map(|health| &mut health.changed_at)
        .for_each(|at| clamp_time(at, now));
    restored
        .tasks
        .values_mut()
        .flat_map(|task| &mut task.state)
        .for_each(|state| clamp_task(state, now));
}

fn is_later(alloc: &Allocation, now: Timestamp) -> bool {
    let since = alloc.deployment.iter().map(|of| of.since);
    let followed = alloc.reschedules.iter().map(|event| event.time);
    std::iter::once(alloc.created_at).chain(since).chain(followed).any(|at| at > now)
}

fn clamp_task(state: &mut TaskState, now: Timestamp) {
    let told = [&mut state.last_restart, &mut state.started_at, &mut state.finished_at];
    told.into_iter().flatten().for_each(|at| clamp_time(at, now));
    state.events.iter_mut().for_each(|event| clamp_time(&mut event.time, now));
}

fn clamp_scheduling(known: &mut NodeScheduling, now: Timestamp) {
    known.events.iter_mut().for_each(|event| clamp_time(&mut event.at, now));
    let Some(drain) = &mut known.drain else { return };
    clamp_time(&mut drain.started_at, now);
    if let DrainDeadline::After { length, at } = &mut drain.deadline {
        *at = (*at).min(now.plus(*length));
    }
}

#[cfg(test)]
#[path = "future_times_tests.rs"]
mod tests;
