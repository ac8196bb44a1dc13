//! Takes over what the previous allocation kept on its disk.
//!
//! Failing to is not the allocation's failure: it says so and starts with an empty directory, and
//! the data stays with the previous allocation until that is collected. Half of the data is worse
//! than none, but none of it is thrown away: what cannot be given back stays here.
//!
//! A previous one that never started took nothing over that it used: its own previous one has the data,
//! and so on. What is on record of them is durable, because they are over.
//!
//! What another node has is fetched, where the group says `migrate` and this is a node of a cluster.

use std::time::Duration;

use super::fetch::DiskFetch;
use super::{AllocHook, AllocScope, HookFailure, HookResult, News};
use crate::alloc::migrate::{self, Inherited, NotTakenOver};
use crate::task::handle::LocalState;
use ostler_model::alloc::Allocation;
use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::HOOK_WALL_MAX;
use ostler_model::task::TaskState;
use ostler_state::{Key, Prefix, StateError, StateStore};

pub(super) struct MigrateHook;

impl AllocHook for MigrateHook {
    fn name(&self) -> &'static str {
        "disk_migration"
    }

    /// What is moved on this node is moved soon. What is fetched takes as long as it takes, within a bound of
    /// its own; a stop drops it.
    fn wall(&self) -> Option<Duration> {
        None
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let allocation = &scope.allocation;
            // Tasks that ran have written to the data that was moved before: it is not moved
            // again.
            let (Some(group), Some(from), false) =
                (allocation.task_group(), allocation.previous, scope.started_before)
            else {
                return Ok(());
            };
            if !group.ephemeral_disk.keeps_data() {
                return Ok(());
            }
            let (root, to) = (scope.alloc_root.clone(), allocation.id);
            let tasks: Vec<TaskName> = group.tasks.iter().map(|t| t.name.clone()).collect();
            let store = scope.store.clone();
            let moving = move || migrate::inherit(&root, &line(&store, from), to, &tasks);
            let moving = clock::timeout(HOOK_WALL_MAX, scope.on_disk(moving)).await;
            let late = || HookFailure::late(HOOK_WALL_MAX);
            let Some(Inherited { from, moved }) = moving.ok_or_else(late)?? else {
                return fetch(scope, from).await;
            };
            let text = match moved {
                Ok(moved) => {
                    let items: Vec<String> = moved.items.iter().map(ToString::to_string).collect();
                    format!("took over from allocation {from}: {}", items.join(", "))
                }
                Err(NotTakenOver { error, stays: None }) => format!(
                    "data of allocation {from} was not taken over, starting without: {}",
                    chain(&error)
                ),
                Err(NotTakenOver { error, stays: Some(why) }) => format!(
                    "data of allocation {from} was not taken over as a whole: {}; what was moved \
                     before stays here, because it could not be taken back: {}",
                    chain(&error),
                    chain(&why)
                ),
            };
            let event = TaskEvent::new(EventKind::HookMessage, scope.clock.now(), text)
                .detail("previous_alloc", from);
            scope.tell(News::Say(event)).await;
            Ok(())
        })
    }
}

/// Nobody on this node has it: another one may.
async fn fetch(scope: &AllocScope, from: AllocId) -> Result<(), HookFailure> {
    let (Some(group), Some(others)) = (scope.allocation.task_group(), scope.elsewhere(from)) else {
        return Ok(());
    };
    if !group.ephemeral_disk.migrate {
        return Ok(());
    }
    let tasks = group.tasks.iter().map(|task| task.name.clone()).collect();
    let size_mb = group.ephemeral_disk.size_mb;
    let text = match (DiskFetch { scope, others, from, tasks, size_mb }).run().await {
        Ok(fetched) if fetched.is_nothing() => return Ok(()),
        Ok(fetched) => fetched.text(from),
        Err(why) => format!("data of allocation {from} was not fetched, starting without: {why}"),
    };
    let event = TaskEvent::new(EventKind::HookMessage, scope.clock.now(), text)
        .detail("previous_alloc", from);
    scope.tell(News::Say(event)).await;
    Ok(())
}

/// The allocation `from`, and those before it as long as each never started.
fn line(store: &StateStore, from: AllocId) -> Vec<AllocId> {
    let mut line = vec![from];
    let mut at = from;
    loop {
        match before(store, at) {
            // An allocation has one place in a line; a record that says otherwise is not followed.
            Ok(Some(before)) if !line.contains(&before) => {
                line.push(before);
                at = before;
            }
            Ok(_) => return line,
            Err(error) => {
                tracing::error!(alloc = %at, %error, "whose data it was to take over is not known");
                return line;
            }
        }
    }
}

/// Whose place `alloc` was to take; `None` when it started, or is not on record.
fn before(store: &StateStore, alloc: AllocId) -> Result<Option<AllocId>, StateError> {
    for record in store.scan(&Prefix::Tasks(alloc))? {
        let started = match record.key {
            Key::TaskState(..) => record.decode::<TaskState>()?.started_at.is_some(),
            Key::TaskLocal(..) => record.decode::<LocalState>()?.run.is_some(),
            _ => false,
        };
        if started {
            return Ok(None);
        }
    }
    Ok(store.get::<Allocation>(&Key::Alloc(alloc))?.and_then(|allocation| allocation.previous))
}
