//! What a crashed agent left: processes are ended by identity, states are closed honestly.
//!
//! An embedded agent does not take allocations of an earlier one over. Native processes it left
//! are killed (by pid, start time and boot id, so that a stranger with the same pid is safe), and
//! every allocation that was not at its end is recorded as failed, with the reason.

use std::collections::BTreeSet;

use crate::clock::Timestamp;
use crate::host::process::identity::{Leftover as Reaped, reap_leftover};
use crate::model::alloc::Allocation;
use crate::model::event::{EventKind, TaskEvent};
use crate::model::task::{TaskState, TaskStatus};
use crate::state::{Key, Prefix, StateError, StateStore};
use crate::task::handle::{LocalState, leftovers};

const REASON: &str = "the agent ended while the task ran";

/// End what was left and close the records. What was done, as sentences.
pub(super) async fn clear(state: &StateStore, now: Timestamp) -> Result<Vec<String>, StateError> {
    let mut said = Vec::new();
    for leftover in leftovers(state)? {
        let pids: Vec<u32> = leftover.identities.iter().map(|id| id.pid).collect();
        let identities = leftover.identities;
        let reaped = tokio::task::spawn_blocking(move || {
            identities.iter().map(reap_leftover).collect::<Vec<_>>()
        });
        for (pid, reaped) in pids.iter().zip(reaped.await.unwrap_or_default()) {
            match reaped {
                Ok(Reaped::Killed) => said.push(format!(
                    "killed process {pid} of task {} ({}), left by an agent that crashed",
                    leftover.task,
                    leftover.alloc.short()
                )),
                Ok(Reaped::Gone) => {}
                Err(error) => said.push(format!(
                    "process {pid} of task {} ({}), left by an agent that crashed, could not be \
                     killed: {error}",
                    leftover.task,
                    leftover.alloc.short()
                )),
            }
        }
    }
    close_records(state, now, &mut said).await?;
    Ok(said)
}

async fn close_records(
    state: &StateStore,
    now: Timestamp,
    said: &mut Vec<String>,
) -> Result<(), StateError> {
    let mut closed = BTreeSet::new();
    let records = state.scan(&Prefix::Allocs)?;
    let begun: BTreeSet<&Key> =
        records.iter().map(|r| &r.key).filter(|k| matches!(k, Key::TaskState(..))).collect();
    for record in &records {
        match record.key.clone() {
            Key::Alloc(id) => {
                // Taken, and the agent ended before all of its tasks had a state.
                let Ok(alloc) = record.decode::<Allocation>() else { continue };
                for task in alloc.task_group().iter().flat_map(|group| &group.tasks) {
                    let key = Key::TaskState(id, task.name.clone());
                    if !begun.contains(&key) {
                        close_task(state, &key, TaskState::default(), now).await?;
                        closed.insert(id);
                    }
                }
            }
            key @ Key::TaskState(alloc, _) => {
                let Ok(task) = record.decode::<TaskState>() else { continue };
                if task.status != TaskStatus::Dead {
                    close_task(state, &key, task, now).await?;
                    closed.insert(alloc);
                }
            }
            key @ Key::TaskLocal(..) => {
                let Ok(mut local) = record.decode::<LocalState>() else { continue };
                if local.run_complete && local.run.is_none() {
                    continue;
                }
                local.run = None;
                local.run_complete = true;
                state.put(&key, &local).await?;
            }
            _ => {}
        }
    }
    for id in closed {
        said.push(format!("allocation {} is recorded as failed: {REASON}", id.short()));
    }
    Ok(())
}

async fn close_task(
    state: &StateStore,
    key: &Key,
    mut task: TaskState,
    now: Timestamp,
) -> Result<(), StateError> {
    task.status = TaskStatus::Dead;
    task.finished_at = Some(now);
    task.push_event(TaskEvent::new(EventKind::FailedRestoring, now, REASON).failing());
    state.put(key, &task).await.map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::model::job::JobKind;
    use crate::rng::Rng;
    use crate::testing::fixtures;

    #[tokio::test]
    async fn tasks_without_a_state_are_closed_once_and_ended_ones_are_left_alone() {
        let state = StateStore::in_memory().unwrap();
        let tasks = ["ended", "running", "never"].map(|name| fixtures::task(name).unwrap());
        let names = tasks.clone().map(|task| task.name);
        let alloc = fixtures::allocation(JobKind::Batch, tasks.to_vec(), &Rng::seeded(1)).unwrap();
        state.put(&Key::Alloc(alloc.id), &alloc).await.unwrap();
        let key = |task: usize| Key::TaskState(alloc.id, names[task].clone());
        let ended = TaskState { status: TaskStatus::Dead, ..TaskState::default() };
        let running = TaskState { status: TaskStatus::Running, ..TaskState::default() };
        state.put(&key(0), &ended).await.unwrap();
        state.put(&key(1), &running).await.unwrap();

        let now = Timestamp::from_nanos(7);
        let said = clear(&state, now).await.unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(state.get::<TaskState>(&key(0)).unwrap().unwrap(), ended);
        for closed in [1, 2] {
            let task: TaskState = state.get(&key(closed)).unwrap().unwrap();
            assert_eq!((task.status, task.failed), (TaskStatus::Dead, true));
            assert_eq!(task.finished_at, Some(now));
        }
        assert!(clear(&state, now).await.unwrap().is_empty(), "said once");
    }
}
