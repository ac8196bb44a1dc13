//! Decides which parts of a newer copy of an allocation take effect in place.
//!
//! ```text
//!   in place     group: shutdown_delay, services, health, update, reschedule, max_run_duration,
//!                constraints, count
//!                task: restart, kill_timeout, kill_signal, shutdown_delay, leader, lifecycle,
//!                      log sizes, constraints
//!                allocation: desired, job version, deployment; job: name, priority, datacenters, constraints
//!   never        everything else: another set of tasks, a driver, a configuration, resources …
//! ```
//! A change that cannot take effect in place needs an allocation with a new id. If a copy changes
//! such a part all the same, the change is ignored: the allocation keeps saying what its tasks were
//! started with. Pure.

use std::sync::Arc;

use ostler_model::alloc::{AllocDeployment, Allocation};
use ostler_model::cow_arc::CowArc;
use ostler_model::job::{Job, LogConfig, Task, TaskGroup};

/// `old` with what `new` changes in place. `None` when `new` is of a group its job does not have.
#[must_use]
pub fn merge_in_place(old: &Allocation, new: &Allocation) -> Option<Allocation> {
    let group = group(old.task_group()?, new.task_group()?);
    let mut groups = old.job.groups.clone();
    for known in groups.iter_mut().filter(|known| known.name == old.group) {
        *known = group.clone();
    }
    let job = Job {
        name: new.job.name.clone(),
        priority: new.job.priority,
        datacenters: new.job.datacenters.clone(),
        constraints: new.job.constraints.clone(),
        groups,
        ..old.job.as_ref().clone()
    };
    Some(Allocation {
        job: Arc::new(job),
        desired: new.desired,
        desired_description: new.desired_description.clone(),
        modify_index: new.modify_index,
        job_version: new.job_version,
        deployment: match (&old.deployment, &new.deployment) {
            // In the same deployment the deadlines still count from the old start. A canary may
            // have been accepted.
            (Some(old), Some(new)) if old.id == new.id => {
                Some(AllocDeployment { since: old.since, ..new.clone() })
            }
            (_, new) => new.clone(),
        },
        ..old.clone()
    })
}

fn group(old: &TaskGroup, new: &TaskGroup) -> TaskGroup {
    let tasks = old.tasks.iter().map(|known| match new.task(&known.name) {
        Some(newer) => CowArc::from(task(known, newer)),
        None => known.clone(),
    });
    TaskGroup {
        count: new.count,
        constraints: new.constraints.clone(),
        shutdown_delay: new.shutdown_delay,
        health: new.health,
        services: new.services.clone(),
        max_run_duration: new.max_run_duration,
        update: new.update,
        reschedule: new.reschedule,
        tasks: tasks.collect(),
        ..old.clone()
    }
}

fn task(old: &Task, new: &Task) -> Task {
    Task {
        constraints: new.constraints.clone(),
        restart: new.restart,
        kill_timeout: new.kill_timeout,
        kill_signal: new.kill_signal.clone(),
        leader: new.leader,
        lifecycle: new.lifecycle,
        logs: LogConfig { disabled: old.logs.disabled, ..new.logs },
        shutdown_delay: new.shutdown_delay,
        ..old.clone()
    }
}

#[cfg(test)]
#[path = "update_tests.rs"]
mod tests;
