//! Takes over the data that the previous allocation has on its disk.
//!
//! An allocation does not fail when this fails. It tells people, starts with an empty directory,
//! and the data stays with the previous allocation until that one is collected. Half of the data is
//! worse than none, but no data is thrown away: what cannot be given back stays here.
//!
//! A previous allocation that never started used no data. Then the allocation before it has the
//! data, and so on. The records of these allocations are durable, because the allocations are over.
//!
//! Data on another node is fetched, where the group says `migrate` and this node is in a cluster.

use std::time::Duration;

use super::fetch::DiskFetch;
use super::{AllocHook, AllocScope, HookFailure, HookNews, HookResult};
use crate::alloc::migrate::{self, InheritedData, TakeOverError};
use crate::task::handle::LocalState;
use ostler_model::alloc::Allocation;
use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::HOOK_WALL_MAX;
use ostler_model::task::TaskState;
use ostler_state::records::AllocKey;
use ostler_state::{KeyPrefix, RecordKey, StateError, StateStore};

pub(super) struct MigrateHook;

impl AllocHook for MigrateHook {
    fn name(&self) -> &'static str {
        "disk_migration"
    }

    /// No bound. A move on this node takes little time. A fetch has a bound of its own, and a
    /// stop drops it.
    fn wall(&self) -> Option<Duration> {
        None
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let allocation = &scope.allocation;
            // The data was moved before the tasks started, and they have written to it since.
            let (Some(group), Some(from), false) =
                (allocation.task_group(), allocation.previous, scope.started_before)
            else {
                return Ok(());
            };
            if !group.ephemeral_disk.keeps_data() {
                return Ok(());
            }
            let (root, to) = (scope.node.alloc_root.clone(), allocation.id);
            let tasks: Vec<TaskName> = group.tasks.iter().map(|t| t.name.clone()).collect();
            let store = scope.node.state.clone();
            let moving =
                move || migrate::inherit(&root, &find_predecessors(&store, from), to, &tasks);
            let moving = clock::timeout(HOOK_WALL_MAX, scope.on_disk(moving)).await;
            let late = || HookFailure::from_timeout(HOOK_WALL_MAX);
            let Some(InheritedData { from, moved }) = moving.ok_or_else(late)?? else {
                return fetch_data(scope, from).await;
            };
            let text = match moved {
                Ok(moved) => {
                    let items: Vec<String> = moved.items.iter().map(ToString::to_string).collect();
                    format!("took over from allocation {from}: {}", items.join(", "))
                }
                Err(TakeOverError { error, stays: None }) => format!(
                    "data of allocation {from} was not taken over, so the allocation starts without it: {}",
                    chain(&error)
                ),
                Err(TakeOverError { error, stays: Some(why) }) => format!(
                    "data of allocation {from} was not taken over as a whole: {}; what was moved \
                     before stays here, because it could not be taken back: {}",
                    chain(&error),
                    chain(&why)
                ),
            };
            let event = TaskEvent::new(EventKind::HookMessage, scope.node.clock.now(), text)
                .detail("previous_alloc", from);
            scope.tell(HookNews::Say(event)).await;
            Ok(())
        })
    }
}

/// Fetch the data from another node, because no allocation of this node has it.
async fn fetch_data(scope: &AllocScope, from: AllocId) -> Result<(), HookFailure> {
    let (Some(group), Some(others)) = (scope.allocation.task_group(), scope.other_nodes_for(from))
    else {
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
        Err(why) => format!(
            "data of allocation {from} was not fetched, so the allocation starts without it: {why}"
        ),
    };
    let event = TaskEvent::new(EventKind::HookMessage, scope.node.clock.now(), text)
        .detail("previous_alloc", from);
    scope.tell(HookNews::Say(event)).await;
    Ok(())
}

/// The allocation `from`, and those before it as long as each never started.
fn find_predecessors(store: &StateStore, from: AllocId) -> Vec<AllocId> {
    let mut line = vec![from];
    let mut at = from;
    loop {
        match find_predecessor(store, at) {
            // An allocation stands in the line once. A record that says otherwise is not followed.
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

/// The allocation whose place `alloc` was to take. `None` when `alloc` started or is not on record.
fn find_predecessor(store: &StateStore, alloc: AllocId) -> Result<Option<AllocId>, StateError> {
    for record in store.scan(&KeyPrefix::Tasks(alloc))? {
        let started = match record.key {
            RecordKey::TaskState(..) => record.decode::<TaskState>()?.started_at.is_some(),
            RecordKey::TaskLocal(..) => record.decode::<LocalState>()?.run.is_some(),
            _ => false,
        };
        if started {
            return Ok(None);
        }
    }
    Ok(store.get::<Allocation>(&AllocKey::of(alloc))?.and_then(|allocation| allocation.previous))
}
