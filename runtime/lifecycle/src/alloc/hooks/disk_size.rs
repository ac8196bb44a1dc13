//! Ends an allocation whose directory is larger than its `ephemeral_disk` may be.
//!
//! Measured again and again while it runs: the disk is shared, and a quota of the file system would
//! need the agent to be root. A directory that is slow to walk is walked less often, so that
//! measuring never takes more than a hundredth of one core.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::size::{self, AllocDiskUse};
use ostler_model::alloc::ClientStatus;
use ostler_model::causes::chain;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::limits::{DISK_MEASURE_INTERVAL, DISK_MEASURE_PAUSE_FACTOR, MIB};

const NAME: &str = "disk_size";

pub(super) struct DiskSizeHook;

impl AllocHook for DiskSizeHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.background.run(NAME, watch(scope.clone()));
            Ok(())
        })
    }

    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.background.stop(NAME);
            Ok(())
        })
    }
}

async fn watch(scope: AllocScope) {
    let Some(size_mb) = scope.allocation.task_group().map(|g| g.ephemeral_disk.size_mb) else {
        return;
    };
    let mut pause = DISK_MEASURE_INTERVAL;
    loop {
        clock::sleep(pause).await;
        let took = Stopwatch::start();
        let used = measure(&scope).await;
        pause = DISK_MEASURE_INTERVAL.max(took.elapsed().saturating_mul(DISK_MEASURE_PAUSE_FACTOR));
        match used {
            Ok(used) => {
                if let Some(text) = size::over_limit(&used, size_mb) {
                    scope.tell(exceeded(&scope, &used, size_mb, text)).await;
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(alloc = %scope.allocation.id, %error, "directory not measured");
            }
        }
    }
}

async fn measure(scope: &AllocScope) -> Result<AllocDiskUse, String> {
    let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
    let meter = Arc::clone(&scope.disk_meter);
    let cancel = CancellationToken::new();
    // The walk ends when nobody waits for it any more.
    let _guard = cancel.clone().drop_guard();
    let measured = ostler_model::clock::blocking(move || meter(&root, id, &cancel)).await;
    measured.map_err(|e| e.to_string())?.map_err(|e| chain(&e))
}

fn exceeded(scope: &AllocScope, used: &AllocDiskUse, size_mb: u32, description: String) -> News {
    let limit = u64::from(size_mb).saturating_mul(MIB);
    let event = TaskEvent::new(EventKind::DiskExceeded, scope.clock.now(), description.clone())
        .detail("disk_limit", limit)
        .detail("disk_size", used.bytes)
        .failing();
    News::Force { status: ClientStatus::Failed, description, event: Some(event) }
}
