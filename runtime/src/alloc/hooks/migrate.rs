//! Takes over what the previous allocation kept on its disk.
//!
//! Failing to is not the allocation's failure: it says so and starts with an empty directory. Whatever
//! was not moved stays with the previous allocation until that is collected.

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::dir::AllocDir;
use crate::alloc::migrate::{self, MigrateError, Moved};
use crate::model::event::{EventKind, TaskEvent};
use crate::model::ids::TaskName;
use crate::task::hooks::chain;

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
            let moving = move || -> Result<Moved, MigrateError> {
                migrate::move_data(&root, from, to, &tasks)
                    // What stopped half-way goes on where it stopped.
                    .or_else(|_| migrate::move_data(&root, from, to, &tasks))
                    .inspect_err(|_| rebuild(&root, to))
            };
            let moved = scope.on_disk(moving).await?;
            let text = match moved {
                Ok(moved) if moved.is_nothing() => return Ok(()),
                Ok(moved) => {
                    let items: Vec<String> = moved.items.iter().map(ToString::to_string).collect();
                    format!("took over from allocation {from}: {}", items.join(", "))
                }
                Err(error) => format!(
                    "data of allocation {from} was not taken over, starting without: {}",
                    chain(&error)
                ),
            };
            let event = TaskEvent::new(EventKind::HookMessage, scope.clock.now(), text)
                .detail("previous_alloc", from);
            scope.tell(News::Say(event)).await;
            Ok(())
        })
    }
}

/// Half of the data is worse than none: a program finds an empty directory or a whole one.
fn rebuild(root: &std::path::Path, alloc: crate::model::ids::AllocId) {
    let rebuilt = AllocDir::destroy(root, alloc).and_then(|()| AllocDir::create(root, alloc));
    if let Err(error) = rebuilt {
        tracing::error!(%alloc, error = %chain(&error), "directory not rebuilt after a move that failed");
    }
}
