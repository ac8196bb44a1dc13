//! Ends an allocation whose directory is larger than its `ephemeral_disk` may be; where the job states no size,
//! people are told.
//!
//! Measured again and again while it runs: the disk is shared, and a quota of the file system would
//! need the agent to be root. All are measured by one ([`crate::alloc::disk_watch`]), which asks little of
//! the disk while little is written.

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
                // Another may have left its data, or an earlier run its own.
                let new = !scope.started_before && scope.allocation.previous.is_none();
                scope.disk_watch.watch(id, disk, new, scope.owner.clone());
            }
            Ok(())
        })
    }

    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.disk_watch.forget(scope.allocation.id);
            Ok(())
        })
    }
}
