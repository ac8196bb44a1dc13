//! Ends an allocation whose directory is larger than its `ephemeral_disk` allows. Where the job
//! states no size, people are told and the allocation runs on.
//!
//! The directory is measured repeatedly while the allocation runs, because the disk is shared and a
//! quota of the file system would need the agent to be root. One watch measures all allocations
//! ([`crate::alloc::disk_watch`]); it asks little of the disk while little is written.

use super::{AllocHook, AllocScope, HookResult};

const NAME: &str = "disk_size";

pub(super) struct DiskSizeHook;

impl AllocHook for DiskSizeHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            if let Some(group) = scope.allocation.task_group() {
                let (id, disk) = (scope.allocation.id, group.ephemeral_disk);
                // A previous allocation, or an earlier run, may have left data in the directory.
                let new = !scope.started_before && scope.allocation.previous.is_none();
                scope.node.disk_watch.watch(id, disk, new, scope.owner.clone());
            }
            Ok(())
        })
    }

    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.node.disk_watch.forget(scope.allocation.id);
            Ok(())
        })
    }
}
