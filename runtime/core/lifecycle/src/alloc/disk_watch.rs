//! Measures repeatedly how much the allocations have on disk.
//!
//! ```text
//!   every 10 s: how full is the file system? (once for all of them)
//!                        │ allocations that are due
//!                        ▼
//!        it took in little ─► spared     much ─► walked ─► too large: the owner is told
//!             │ spared 15 times
//!             └─► walked, as far as a thousandth of one core goes
//! ```
//! An allocation is due a minute after it was measured last; a new one holds nothing yet. The
//! work at rest does not grow with the number of allocations: one look at the file system serves
//! all that are due, and a walk without a reason waits until there is time for it. A directory
//! that is slow to walk is due less often, so that measuring it never takes more than a hundredth
//! of one core.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::hooks::HookNews;
use super::size::{self, AllocDiskUse, DiskMeter};
use crate::queue;
use ostler_model::alloc::ClientStatus;
use ostler_model::causes::chain;
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::AllocId;
use ostler_model::job::EphemeralDisk;
use ostler_model::limits::{
    DISK_LOOK_INTERVAL, DISK_MEASURE_INTERVAL, DISK_MEASURE_PAUSE_FACTOR, DISK_SPARED_WALKS_FACTOR,
    DISK_WALKS_SPARED_MAX, MIB,
};

/// Measures what allocations have on disk. Clones share one watch, which ends with the
/// last of them.
#[derive(Clone)]
pub struct DiskWatch(Arc<DiskWatchInner>);

struct DiskWatchInner {
    root: PathBuf,
    meter: Arc<dyn DiskMeter>,
    clock: Clock,
    table: Mutex<DiskWatchTable>,
    ended: CancellationToken,
    /// Ends the loop that measures when the last clone goes.
    _end: DropGuard,
}

/// The allocations that are measured. Pure.
#[derive(Default)]
struct DiskWatchTable {
    watched: BTreeMap<AllocId, WatchedDisk>,
    /// Number of the present look at the file system.
    now: u64,
    /// The loop that measures runs.
    looks: bool,
    /// Bytes that the file system held at the last look.
    filled: Option<u64>,
    /// The allocation that was walked last without a reason: the next such walk is of the
    /// one after it.
    last: AllocId,
    /// Time left in this look for walks without a reason.
    left: Duration,
    /// The allocation that is being walked.
    walked: Option<(AllocId, CancellationToken)>,
}

struct WatchedDisk {
    disk: EphemeralDisk,
    owner: queue::QueueSender<Box<HookNews>>,
    /// Number of the look at which the allocation is due.
    due: u64,
    last: Option<DiskMeasurement>,
}

/// The last measurement of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskMeasurement {
    /// Bytes that the allocation had on disk.
    bytes: u64,
    /// The least bytes that the file system held since.
    filled: u64,
    /// How often the walk was spared since.
    spared: u32,
}

/// What to do with an allocation that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkDecision {
    /// Walk its directory now.
    Walk,
    /// Walk its directory when there is time. Until then this measurement stands.
    AtLeisure(DiskMeasurement),
    /// Do not walk its directory. This measurement stands.
    Spare(DiskMeasurement),
}

impl DiskMeasurement {
    /// Whether a walk is needed. The file system holds what the allocation wrote, unless as much of
    /// something else was removed meanwhile. So a walk is due when the file system grew by half of
    /// what the allocation may still write, and now and then without such growth.
    fn decide_walk(self, filled: u64, limit: u64) -> WalkDecision {
        let filled_least = self.filled.min(filled);
        let left = limit.saturating_sub(self.bytes);
        if filled.saturating_sub(filled_least) >= left / 2 {
            return WalkDecision::Walk;
        }
        if self.spared >= DISK_WALKS_SPARED_MAX {
            return WalkDecision::AtLeisure(Self { filled: filled_least, ..self });
        }
        WalkDecision::Spare(Self {
            filled: filled_least,
            spared: self.spared.saturating_add(1),
            ..self
        })
    }
}

/// How many looks take this time.
fn count_rounds(time: Duration) -> u64 {
    let looks = time.as_nanos().div_ceil(DISK_LOOK_INTERVAL.as_nanos());
    u64::try_from(looks).unwrap_or(u64::MAX)
}

impl DiskWatchTable {
    /// Begin another look. False: no allocation is measured any more.
    fn begin_round(&mut self) -> bool {
        self.now = self.now.saturating_add(1);
        self.left = DISK_LOOK_INTERVAL / DISK_SPARED_WALKS_FACTOR;
        self.filled = None;
        self.watched.retain(|_, of| !of.owner.is_closed());
        self.looks = !self.watched.is_empty();
        self.looks
    }

    /// The allocations to walk now, and those to walk when there is time. `filled` is what the
    /// file system holds.
    fn choose(&mut self, filled: Option<u64>) -> (Vec<AllocId>, Vec<AllocId>) {
        let (now, next) = (self.now, self.now.saturating_add(count_rounds(DISK_MEASURE_INTERVAL)));
        let (mut walk, mut leisure) = (Vec::new(), Vec::new());
        for (id, of) in self.watched.iter_mut().filter(|(_, of)| of.due <= now) {
            let limit = u64::from(of.disk.size_mb).saturating_mul(MIB);
            let known = of.last.zip(filled);
            match known.map_or(WalkDecision::Walk, |(last, filled)| last.decide_walk(filled, limit))
            {
                WalkDecision::Walk => walk.push(*id),
                WalkDecision::AtLeisure(known) => {
                    (of.last, of.due) = (Some(known), next);
                    leisure.push(*id);
                }
                WalkDecision::Spare(known) => (of.last, of.due) = (Some(known), next),
            }
        }
        // In turns, because the first ones are due again before the last ones had their walk.
        let turn = leisure.partition_point(|id| *id <= self.last);
        leisure.rotate_left(turn);
        (walk, leisure)
    }

    /// Record a walk and the time that it took.
    fn record_walk(&mut self, id: AllocId, took: Duration, last: Option<DiskMeasurement>) {
        self.walked = None;
        let pause = DISK_MEASURE_INTERVAL.max(took.saturating_mul(DISK_MEASURE_PAUSE_FACTOR));
        if let Some(of) = self.watched.get_mut(&id) {
            (of.last, of.due) = (last, self.now.saturating_add(count_rounds(pause)));
        }
    }
}

impl DiskWatch {
    /// A watch that measures nothing yet. Allocations have their directories below `root`.
    #[must_use]
    pub fn new(root: PathBuf, meter: Arc<dyn DiskMeter>, clock: Clock) -> Self {
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        Self(Arc::new(DiskWatchInner {
            root,
            meter,
            clock,
            table: Mutex::default(),
            ended,
            _end: end,
        }))
    }

    /// Measure an allocation until it is forgotten, its owner is gone, or it has more than
    /// `disk` allows and its owner was told. The directory of a `new` allocation is empty. Needs
    /// a tokio runtime.
    pub fn watch(
        &self,
        id: AllocId,
        disk: EphemeralDisk,
        new: bool,
        owner: queue::QueueSender<Box<HookNews>>,
    ) {
        let mut table = self.0.table();
        // This is less than an interval from now where the loop runs already and the next
        // look is close.
        let due = table.now.saturating_add(count_rounds(DISK_MEASURE_INTERVAL));
        let known = |filled| DiskMeasurement { bytes: 0, filled, spared: 0 };
        let last = table.filled.filter(|_| new).map(known);
        table.watched.insert(id, WatchedDisk { disk, owner, due, last });
        if !std::mem::replace(&mut table.looks, true) {
            drop(tokio::spawn(measure_repeatedly(Arc::downgrade(&self.0), self.0.ended.clone())));
        }
    }

    /// Stop measuring an allocation.
    pub fn forget(&self, id: AllocId) {
        let mut table = self.0.table();
        table.watched.remove(&id);
        if let Some((_, walk)) = table.walked.as_ref().filter(|(walked, _)| *walked == id) {
            walk.cancel();
        }
    }
}

/// Measure until no allocation is left to measure.
async fn measure_repeatedly(shared: Weak<DiskWatchInner>, ended: CancellationToken) {
    loop {
        tokio::select! {
            () = clock::sleep(DISK_LOOK_INTERVAL) => {}
            () = ended.cancelled() => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        if !shared.table().begin_round() {
            return;
        }
        shared.measure_due_allocs().await;
    }
}

impl DiskWatchInner {
    fn table(&self) -> MutexGuard<'_, DiskWatchTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn measure_due_allocs(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let filled =
            clock::run_blocking(move || this.meter.filled_bytes(&this.root)).await.unwrap_or(None);
        let (walk, leisure) = {
            let mut table = self.table();
            table.filled = filled;
            table.choose(filled)
        };
        for id in walk {
            self.walk(id, filled).await;
        }
        for id in leisure {
            let took = self.walk(id, filled).await;
            let mut table = self.table();
            table.last = id;
            table.left = table.left.saturating_sub(took);
            if table.left.is_zero() {
                break;
            }
        }
    }

    /// Walk the directory of an allocation. Returns how long the walk took.
    async fn walk(self: &Arc<Self>, id: AllocId, filled: Option<u64>) -> Duration {
        let cancel = CancellationToken::new();
        let (disk, owner) = {
            let mut table = self.table();
            let Some(of) = table.watched.get(&id) else { return Duration::ZERO };
            let known = (of.disk, of.owner.clone());
            table.walked = Some((id, cancel.clone()));
            known
        };
        // The walk ends when nobody waits for it any more.
        let _guard = cancel.clone().drop_guard();
        let (this, took) = (Arc::clone(self), Stopwatch::start());
        let walk = move || this.meter.measure_alloc(&this.root, id, &cancel).map_err(|e| chain(&e));
        let used = clock::run_blocking(walk).await.unwrap_or_else(|error| Err(error.to_string()));
        let took = took.elapsed();
        let complete = used.as_ref().ok().filter(|used| used.complete).zip(filled);
        let last =
            complete.map(|(used, filled)| DiskMeasurement { bytes: used.bytes, filled, spared: 0 });
        self.table().record_walk(id, took, last);
        match used {
            Ok(used) => {
                if let Some(text) = size::over_limit(&used, disk)
                    && self.table().watched.remove(&id).is_some()
                {
                    // The owner is gone: it has ended already.
                    let _gone = owner.send(Box::new(self.over_limit_news(&used, disk, text))).await;
                }
            }
            Err(error) => tracing::warn!(alloc = %id, %error, "directory not measured"),
        }
        took
    }

    fn over_limit_news(
        &self,
        used: &AllocDiskUse,
        disk: EphemeralDisk,
        description: String,
    ) -> HookNews {
        let limit = u64::from(disk.size_mb).saturating_mul(MIB);
        let event = TaskEvent::new(EventKind::DiskExceeded, self.clock.now(), description.clone())
            .detail("disk_limit", limit)
            .detail("disk_size", used.bytes);
        if !disk.size_stated {
            return HookNews::Say(event);
        }
        let event = Some(event.with_task_failure());
        HookNews::Force { status: ClientStatus::Failed, description, event }
    }
}

#[cfg(test)]
#[path = "disk_watch_tests.rs"]
mod tests;
