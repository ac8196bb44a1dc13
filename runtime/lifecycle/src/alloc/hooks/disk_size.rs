//! Ends an allocation whose directory is larger than its `ephemeral_disk` may be.
//!
//! Measured again and again while it runs: the disk is shared, and a quota of the file system would
//! need the agent to be root. A directory that is slow to walk is walked less often, so that
//! measuring never takes more than a hundredth of one core. It is not walked at all while the whole
//! file system took in less than would bring the allocation half way to its limit: ten thousand
//! allocations at rest cost ten thousand calls a minute, not as many walks.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{AllocHook, AllocScope, HookResult, News};
use crate::alloc::size::{self, AllocDiskUse};
use ostler_model::alloc::ClientStatus;
use ostler_model::causes::chain;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::limits::{
    DISK_MEASURE_INTERVAL, DISK_MEASURE_PAUSE_FACTOR, DISK_WALKS_SPARED_MAX, MIB,
};

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
    let limit = u64::from(size_mb).saturating_mul(MIB);
    let (mut pause, mut last) = (DISK_MEASURE_INTERVAL, None);
    loop {
        clock::sleep(pause).await;
        let took = Stopwatch::start();
        // Boxed: hardly ever there, and this future is kept for each allocation.
        let (used, known) = Box::pin(measure(&scope, last.take(), limit)).await;
        last = known;
        pause = DISK_MEASURE_INTERVAL.max(took.elapsed().saturating_mul(DISK_MEASURE_PAUSE_FACTOR));
        match used {
            Ok(None) => {}
            Ok(Some(used)) => {
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

/// What was measured last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    /// Of the allocation.
    bytes: u64,
    /// The least that the file system held since.
    filled: u64,
    /// How often it was not walked since.
    spared: u32,
}

impl Measured {
    /// Spare the walk this time? What the allocation wrote the file system holds too, unless as much of
    /// something else was removed meanwhile: so half of what is left counts, and not every time.
    fn spared(self, filled: u64, limit: u64) -> Option<Self> {
        let filled_least = self.filled.min(filled);
        let left = limit.saturating_sub(self.bytes);
        let spare = self.spared < DISK_WALKS_SPARED_MAX && filled - filled_least < left / 2;
        spare.then(|| Self { filled: filled_least, spared: self.spared.saturating_add(1), ..self })
    }
}

/// What the allocation has on disk; none when it was not walked. And what is known for the next time.
async fn measure(
    scope: &AllocScope,
    last: Option<Measured>,
    limit: u64,
) -> (Result<Option<AllocDiskUse>, String>, Option<Measured>) {
    let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
    let meter = Arc::clone(&scope.disk_meter);
    let cancel = CancellationToken::new();
    // The walk ends when nobody waits for it any more.
    let _guard = cancel.clone().drop_guard();
    let look = move || {
        let filled = meter.filled(&root);
        if let (Some(last), Some(filled)) = (last, filled)
            && let Some(spared) = last.spared(filled, limit)
        {
            return (Ok(None), Some(spared));
        }
        let used = meter.measure_alloc(&root, id, &cancel).map_err(|e| chain(&e));
        let complete = used.as_ref().ok().filter(|used| used.complete);
        let known = complete.zip(filled);
        let known = known.map(|(used, filled)| Measured { bytes: used.bytes, filled, spared: 0 });
        (used.map(Some), known)
    };
    clock::blocking(look).await.unwrap_or_else(|error| (Err(error.to_string()), None))
}

fn exceeded(scope: &AllocScope, used: &AllocDiskUse, size_mb: u32, description: String) -> News {
    let limit = u64::from(size_mb).saturating_mul(MIB);
    let event = TaskEvent::new(EventKind::DiskExceeded, scope.clock.now(), description.clone())
        .detail("disk_limit", limit)
        .detail("disk_size", used.bytes)
        .failing();
    News::Force { status: ClientStatus::Failed, description, event: Some(event) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: Measured = Measured { bytes: 100, filled: 10_000, spared: 0 };
    const LIMIT: u64 = 300;

    #[test]
    fn a_directory_is_not_walked_while_the_file_system_took_in_little() {
        let spared = LAST.spared(10_099, LIMIT).expect("less than half of what is left");
        assert_eq!(spared, Measured { spared: 1, ..LAST });
        assert_eq!(LAST.spared(10_100, LIMIT), None, "half of it");
        assert_eq!(LAST.spared(10_000, 50), None, "above its limit already");
    }

    #[test]
    fn what_is_written_after_others_removed_much_is_seen() {
        let after = LAST.spared(4_000, LIMIT).expect("the file system shrank");
        assert_eq!(after.filled, 4_000);
        assert_eq!(after.spared(4_100, LIMIT), None);
    }

    #[test]
    fn it_is_walked_at_times_without_a_reason() {
        let walks = std::iter::successors(Some(LAST), |last| last.spared(10_000, LIMIT)).count();
        assert_eq!(walks, DISK_WALKS_SPARED_MAX as usize + 1);
    }
}
