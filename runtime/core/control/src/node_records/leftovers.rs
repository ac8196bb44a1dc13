//! Closes what a crashed agent left and nobody is to own again: processes are ended by their
//! identity, and states are closed.
//!
//! Runs of an embedded agent (`ostler run`) belong to no job on record and die with it. What
//! [`super::NodeRecords::kept_ids`] names is left alone. Native processes of the others are killed (by
//! pid, start time and boot id, so that a stranger with the same pid is safe). Every allocation
//! that was not at its end is recorded as failed, with the reason. An allocation with a process
//! that does not end keeps its records: the next start tries again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use futures_util::future::join_all;

use ostler_lifecycle::alloc::status::client_status;
use ostler_lifecycle::task::handle::{LocalState, find_leftovers};
use ostler_model::alloc::Allocation;
use ostler_model::clock::Timestamp;
use ostler_model::cow_arc::CowArc;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, RunId, TaskName};
use ostler_model::ports::{BoxFuture, ProcessIdentity};
use ostler_model::saved::SavedAllocState;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_state::records::{AllocStateKey, TaskLocalKey, TaskStateKey};
use ostler_state::{KeyPrefix, RecordKey, StateError, StateStore};

const REASON: &str = "the agent ended while the task ran";

/// The result of closing what an agent left.
#[derive(Debug, Default)]
pub(super) struct ClearOutcome {
    /// What was done, as sentences for people.
    pub(super) said: Vec<String>,
    /// Allocations of which something may still run. Their records stay.
    pub(super) unended: BTreeSet<AllocId>,
}

/// Ends a process of an agent that is gone. Returns whether the process lived.
pub type EndLeftover<'a> =
    &'a (dyn Fn(RunId, ProcessIdentity) -> BoxFuture<'static, io::Result<bool>> + Send + Sync);

/// End what was left and close the records, except for the allocations in `kept`.
pub(super) async fn clear_leftovers(
    state: &StateStore,
    kept: &BTreeSet<AllocId>,
    now: Timestamp,
    end: EndLeftover<'_>,
) -> Result<ClearOutcome, StateError> {
    let mut cleared = ClearOutcome::default();
    let mut endings = Vec::new();
    for leftover in find_leftovers(state)?.into_iter().filter(|left| !kept.contains(&left.alloc)) {
        // A process with a supervisor belongs to a job. It is not ended only because a record is
        // lost, but held back.
        let ours = leftover.identities.into_iter().filter(|identity| identity.supervisor.is_none());
        for identity in ours {
            let (alloc, task) = (leftover.alloc, leftover.task.clone());
            let pid = identity.pid;
            let ending = end(leftover.run.clone(), identity);
            endings.push(async move {
                let ended = ending.await;
                let whose = format!("process {pid} of task {task} ({})", alloc.short());
                let text = match &ended {
                    Ok(alive) => {
                        alive.then(|| format!("killed {whose}, left by an agent that crashed"))
                    }
                    Err(error) => Some(format!(
                        "{whose}, left by an agent that crashed, could not be ended: {error}; the \
                         next start tries again"
                    )),
                };
                (text, ended.is_err().then_some(alloc))
            });
        }
    }
    for (text, unended) in join_all(endings).await {
        cleared.said.extend(text);
        cleared.unended.extend(unended);
    }
    let left_alone = kept.union(&cleared.unended).copied().collect();
    close_records(state, &left_alone, now, &mut cleared.said).await?;
    Ok(cleared)
}

/// The records of the allocations that are being closed.
#[derive(Default)]
struct LeftoverRecords {
    /// Every task that has a state, or should have one.
    tasks: BTreeMap<AllocId, BTreeMap<TaskName, CowArc<TaskState>>>,
    /// Tasks whose state does not decode.
    unreadable: BTreeSet<(AllocId, TaskName)>,
    /// Allocations with a state that is terminal.
    ended: BTreeSet<AllocId>,
    /// Allocations with a task that had to be closed.
    closed: BTreeSet<AllocId>,
}

/// Close the records. They share commits, and all of them are durable when this returns.
async fn close_records(
    state: &StateStore,
    kept: &BTreeSet<AllocId>,
    now: Timestamp,
    said: &mut Vec<String>,
) -> Result<(), StateError> {
    let mut found = LeftoverRecords::default();
    let kept = |key: &RecordKey| key.alloc().is_some_and(|id| kept.contains(&id));
    for record in state.scan(&KeyPrefix::Allocs)?.into_iter().filter(|record| !kept(&record.key)) {
        match record.key.clone() {
            RecordKey::Alloc(id) => {
                let Ok(alloc) = record.decode::<Allocation>() else { continue };
                let tasks = alloc.task_group().map(|group| group.tasks.as_slice());
                // A task without a record of its state was never started.
                let begun = found.tasks.entry(id).or_default();
                for task in tasks.unwrap_or_default() {
                    begun.entry(task.name.clone()).or_default();
                }
            }
            RecordKey::AllocState(id) => {
                let Ok(saved) = record.decode::<SavedAllocState>() else { continue };
                if saved.client_status.is_terminal() {
                    found.ended.insert(id);
                }
            }
            RecordKey::TaskState(id, name) => {
                match record.decode::<CowArc<TaskState>>() {
                    Ok(task) => drop(found.tasks.entry(id).or_default().insert(name, task)),
                    // The record stays for an agent that can read it. The task counts as ended.
                    Err(error) => {
                        tracing::warn!(%error, "state of a task is not readable");
                        found.unreadable.insert((id, name));
                    }
                }
            }
            RecordKey::TaskLocal(id, name) => {
                let Ok(mut local) = record.decode::<LocalState>() else { continue };
                if local.run_complete && local.run.is_none() {
                    continue;
                }
                local.run = None;
                local.run_complete = true;
                state.put_later(&TaskLocalKey::of(id, name), &local).await?;
            }
            _ => {}
        }
    }
    close_tasks(state, now, &mut found).await?;
    for id in &found.closed {
        said.push(format!("allocation {} is recorded as failed: {REASON}", id.short()));
    }
    close_allocs(state, &found).await?;
    state.flush().await
}

async fn close_tasks(
    state: &StateStore,
    now: Timestamp,
    found: &mut LeftoverRecords,
) -> Result<(), StateError> {
    for (id, tasks) in &mut found.tasks {
        for (name, task) in tasks {
            if task.status == TaskStatus::Dead || found.unreadable.contains(&(*id, name.clone())) {
                continue;
            }
            task.status = TaskStatus::Dead;
            task.finished_at = Some(now);
            task.push_event(
                TaskEvent::new(EventKind::FailedRestoring, now, REASON).with_task_failure(),
            );
            state.put_later(&TaskStateKey::of(*id, name.clone()), task).await?;
            found.closed.insert(*id);
        }
    }
    Ok(())
}

/// Write the states of the allocations. They may lag behind their tasks' states, and
/// follow them here.
async fn close_allocs(state: &StateStore, found: &LeftoverRecords) -> Result<(), StateError> {
    for (id, tasks) in &found.tasks {
        if found.ended.contains(id) && !found.closed.contains(id) {
            continue;
        }
        let (client_status, description) = client_status(tasks);
        let saved = SavedAllocState {
            client_status,
            client_description: description.to_owned(),
            forced: false,
            finished: true,
        };
        state.put_later(&AllocStateKey::of(*id), &saved).await?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "leftovers_tests.rs"]
mod tests;
