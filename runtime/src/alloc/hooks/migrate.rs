//! Takes over what the previous allocation kept on its disk.
//!
//! Failing to is not the allocation's failure: it says so and starts with an empty directory, and
//! the data stays with the previous allocation until that is collected. Half of the data is worse
//! than none, but none of it is thrown away: what cannot be given back stays here.

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::migrate::{self, NotTakenOver};
use crate::model::causes::chain;
use crate::model::event::{EventKind, TaskEvent};
use crate::model::ids::TaskName;

pub(super) struct MigrateHook;

impl AllocHook for MigrateHook {
    fn name(&self) -> &'static str {
        "disk_migration"
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let allocation = &scope.allocation;
            // Tasks that ran wrote to what was moved then.
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
            let moving = move || migrate::take_over(&root, from, to, &tasks);
            let moved = scope.on_disk(moving).await?;
            let text = match moved {
                Ok(moved) if moved.is_nothing() => return Ok(()),
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
