//! Measures again and again what the allocations have on disk.
//!
//! ```text
//!   every 10 s: how full is the file system? (once for all of them)
//!                        │ allocations that are due
//!                        ▼
//!        it took in little ─► spared     much ─► walked ─► too large: the owner is told
//!             │ spared 15 times
//!             └─► walked, as far as a thousandth of one core goes
//! ```
//! An allocation is due a minute after it was looked at last; a new one holds nothing yet. What is asked of the system at rest does not
//! grow with the number of allocations: one look serves all that are due, and who is walked without a
//! reason waits until there is time for it. A directory that is slow to walk is due less often, so that
//! measuring it never takes more than a hundredth of one core.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::hooks::News;
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

/// Watches over what allocations have on disk. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub struct DiskWatch(Arc<Shared>);

struct Shared {
    root: PathBuf,
    meter: Arc<dyn DiskMeter>,
    clock: Clock,
    table: Mutex<Table>,
    ended: CancellationToken,
    /// Ends whoever looks, with the last of those who have this.
    _end: DropGuard,
}

/// Who is watched. Pure.
#[derive(Default)]
struct Table {
    watched: BTreeMap<AllocId, Watched>,
    /// Number of the look.
    now: u64,
    /// Somebody looks.
    looks: bool,
    /// What the file system held at the last look.
    filled: Option<u64>,
    /// Who was walked last without a reason: the next is after it.
    last: AllocId,
    /// Time left for such walks.
    left: Duration,
    /// Who is being walked.
    walked: Option<(AllocId, CancellationToken)>,
}

struct Watched {
    disk: EphemeralDisk,
    owner: queue::Sender<Box<News>>,
    /// Number of the look at which it is due.
    due: u64,
    last: Option<Measured>,
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

/// What to do with an allocation that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Walk it.
    Walk,
    /// Walk it when there is time; until then this is known.
    AtLeisure(Measured),
    /// Nothing; this is known.
    Spare(Measured),
}

impl Measured {
    /// What the allocation wrote the file system holds too, unless as much of something else was removed
    /// meanwhile: so half of what is left counts, and not every time.
    fn due(self, filled: u64, limit: u64) -> Due {
        let filled_least = self.filled.min(filled);
        let left = limit.saturating_sub(self.bytes);
        if filled.saturating_sub(filled_least) >= left / 2 {
            return Due::Walk;
        }
        if self.spared >= DISK_WALKS_SPARED_MAX {
            return Due::AtLeisure(Self { filled: filled_least, ..self });
        }
        Due::Spare(Self { filled: filled_least, spared: self.spared.saturating_add(1), ..self })
    }
}

/// As many looks as take so long.
fn looks(time: Duration) -> u64 {
    let looks = time.as_nanos().div_ceil(DISK_LOOK_INTERVAL.as_nanos());
    u64::try_from(looks).unwrap_or(u64::MAX)
}

impl Table {
    /// Another look; false: nobody is watched any more.
    fn begin(&mut self) -> bool {
        self.now = self.now.saturating_add(1);
        self.left = DISK_LOOK_INTERVAL / DISK_SPARED_WALKS_FACTOR;
        self.filled = None;
        self.watched.retain(|_, of| !of.owner.is_closed());
        self.looks = !self.watched.is_empty();
        self.looks
    }

    /// Who is walked now, as the file system holds so much, and who when there is time.
    fn choose(&mut self, filled: Option<u64>) -> (Vec<AllocId>, Vec<AllocId>) {
        let (now, next) = (self.now, self.now.saturating_add(looks(DISK_MEASURE_INTERVAL)));
        let (mut walk, mut leisure) = (Vec::new(), Vec::new());
        for (id, of) in self.watched.iter_mut().filter(|(_, of)| of.due <= now) {
            let limit = u64::from(of.disk.size_mb).saturating_mul(MIB);
            let known = of.last.zip(filled);
            match known.map_or(Due::Walk, |(last, filled)| last.due(filled, limit)) {
                Due::Walk => walk.push(*id),
                Due::AtLeisure(known) => {
                    (of.last, of.due) = (Some(known), next);
                    leisure.push(*id);
                }
                Due::Spare(known) => (of.last, of.due) = (Some(known), next),
            }
        }
        // In turns: the first ones are due again before the last ones had theirs.
        let turn = leisure.partition_point(|id| *id <= self.last);
        leisure.rotate_left(turn);
        (walk, leisure)
    }

    /// An allocation was walked, which took so long.
    fn measured(&mut self, id: AllocId, took: Duration, last: Option<Measured>) {
        self.walked = None;
        let pause = DISK_MEASURE_INTERVAL.max(took.saturating_mul(DISK_MEASURE_PAUSE_FACTOR));
        if let Some(of) = self.watched.get_mut(&id) {
            (of.last, of.due) = (last, self.now.saturating_add(looks(pause)));
        }
    }
}

impl DiskWatch {
    /// Watches over nothing yet. Allocations have their directories below `root`.
    #[must_use]
    pub fn new(root: PathBuf, meter: Arc<dyn DiskMeter>, clock: Clock) -> Self {
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        Self(Arc::new(Shared { root, meter, clock, table: Mutex::default(), ended, _end: end }))
    }

    /// Measure an allocation until it is forgotten, its owner is gone, or it has more than `disk` says and
    /// its owner was told. Nothing is in the directory of a `new` one yet. Needs a tokio runtime.
    pub fn watch(
        &self,
        id: AllocId,
        disk: EphemeralDisk,
        new: bool,
        owner: queue::Sender<Box<News>>,
    ) {
        let mut table = self.0.table();
        // Less than an interval from now where somebody looks already and the next look is close.
        let due = table.now.saturating_add(looks(DISK_MEASURE_INTERVAL));
        let known = |filled| Measured { bytes: 0, filled, spared: 0 };
        let last = table.filled.filter(|_| new).map(known);
        table.watched.insert(id, Watched { disk, owner, due, last });
        if !std::mem::replace(&mut table.looks, true) {
            drop(tokio::spawn(look_on(Arc::downgrade(&self.0), self.0.ended.clone())));
        }
    }

    /// An allocation is not measured any more.
    pub fn forget(&self, id: AllocId) {
        let mut table = self.0.table();
        table.watched.remove(&id);
        if let Some((_, walk)) = table.walked.as_ref().filter(|(walked, _)| *walked == id) {
            walk.cancel();
        }
    }
}

/// Look until nobody is watched.
async fn look_on(shared: Weak<Shared>, ended: CancellationToken) {
    loop {
        tokio::select! {
            () = clock::sleep(DISK_LOOK_INTERVAL) => {}
            () = ended.cancelled() => return,
        }
        let Some(shared) = shared.upgrade() else { return };
        if !shared.table().begin() {
            return;
        }
        shared.look().await;
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let filled = clock::blocking(move || this.meter.filled(&this.root)).await.unwrap_or(None);
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

    /// Walk the directory of an allocation; how long it took.
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
        let used = clock::blocking(walk).await.unwrap_or_else(|error| Err(error.to_string()));
        let took = took.elapsed();
        let complete = used.as_ref().ok().filter(|used| used.complete).zip(filled);
        let last = complete.map(|(used, filled)| Measured { bytes: used.bytes, filled, spared: 0 });
        self.table().measured(id, took, last);
        match used {
            Ok(used) => {
                if let Some(text) = size::over_limit(&used, disk)
                    && self.table().watched.remove(&id).is_some()
                {
                    // The owner is gone: it has ended already.
                    let _gone = owner.send(Box::new(self.exceeded(&used, disk, text))).await;
                }
            }
            Err(error) => tracing::warn!(alloc = %id, %error, "directory not measured"),
        }
        took
    }

    fn exceeded(&self, used: &AllocDiskUse, disk: EphemeralDisk, description: String) -> News {
        let limit = u64::from(disk.size_mb).saturating_mul(MIB);
        let event = TaskEvent::new(EventKind::DiskExceeded, self.clock.now(), description.clone())
            .detail("disk_limit", limit)
            .detail("disk_size", used.bytes);
        if !disk.size_stated {
            return News::Say(event);
        }
        let event = Some(event.failing());
        News::Force { status: ClientStatus::Failed, description, event }
    }
}

#[cfg(test)]
#[path = "disk_watch_tests.rs"]
mod tests;
