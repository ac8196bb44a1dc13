//! What is known to be durable. Pure.
//!
//! ```text
//!              begin            settle(Put)
//!  unknown ───────────► busy ───────────────► durable(digest) ──┐ begin
//!     ▲                  ▲ │ settle(Unknown, Removed)           │
//!     └──────────────────┼─┘                                    │
//!                        └──────────────────────────────────────┘
//! ```
//!
//! Only a key that is *durable* with the same digest and has nothing on its way may be skipped.
//! While a write is on its way the outcome is open: it may replace what is durable now, or fail
//! after it was applied, so the next write of that key is real.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Bound;

use xxhash_rust::xxh3::xxh3_128;

use super::backend::prefix_bounds;
use crate::model::ids::AllocId;

/// Destroyed allocations remembered; the oldest is forgotten first. A late persist comes within
/// seconds of the destroy, and ids are never used again; 65,536 of them are about 2 MiB.
pub const TOMBSTONES_MAX: usize = 65_536;

/// Stands for a record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    hash: u128,
    len: usize,
}

impl Digest {
    /// The digest of a record without its checksum ([`super::codec::unsealed`]).
    #[must_use]
    pub fn of(unsealed: &[u8]) -> Self {
        Self { hash: xxh3_128(unsealed), len: unsealed.len() }
    }
}

/// What to do with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The same content is durable and nothing is on its way: nothing to do.
    Unchanged,
    /// Write it.
    Write,
    /// Its allocation is destroyed: drop it.
    Destroyed,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// This content is durable.
    Put(Digest),
    /// The record is durably gone.
    Removed,
    /// The commit failed: either content may be there.
    Unknown,
}

#[derive(Debug, Default)]
struct Entry {
    durable: Option<Digest>,
    /// Writes on their way.
    busy: u32,
    /// The newest of them, if it may lag.
    later: Option<Later>,
}

/// A write that may lag, while it is the newest of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// Its place in the queue, see [`super::queue::Queue`].
    pub ticket: u64,
    /// Its content.
    pub digest: Digest,
}

/// Digests of all durable records, writes on their way, destroyed allocations.
#[derive(Debug, Default)]
pub struct Dedup {
    entries: BTreeMap<Box<[u8]>, Entry>,
    destroyed: HashSet<AllocId>,
    destroyed_order: VecDeque<AllocId>,
}

impl Dedup {
    /// Learn of a record that was durable at the start.
    pub fn warm(&mut self, key: &[u8], digest: Digest) {
        self.entries.entry(key.into()).or_default().durable = Some(digest);
    }

    /// What to do with a write of `digest` to `key`, a record of allocation `alloc` if of any.
    #[must_use]
    pub fn decide(&self, key: &[u8], alloc: Option<AllocId>, digest: Digest) -> Decision {
        if alloc.is_some_and(|id| self.destroyed.contains(&id)) {
            return Decision::Destroyed;
        }
        match self.entries.get(key) {
            Some(Entry { durable: Some(durable), busy: 0, .. }) if *durable == digest => {
                Decision::Unchanged
            }
            _ => Decision::Write,
        }
    }

    /// A write of `key` is on its way. Each is followed by one [`Dedup::settle`], in order.
    pub fn begin(&mut self, key: &[u8]) {
        self.begin_with(key, None);
    }

    /// As [`Dedup::begin`], of a write that may lag and so may be replaced while it waits.
    pub fn begin_later(&mut self, key: &[u8], later: Later) {
        self.begin_with(key, Some(later));
    }

    fn begin_with(&mut self, key: &[u8], later: Option<Later>) {
        let entry = match self.entries.get_mut(key) {
            Some(entry) => entry,
            None => self.entries.entry(key.into()).or_default(),
        };
        entry.busy = entry.busy.saturating_add(1);
        entry.later = later;
    }

    /// The newest change of `key` that is on its way, if that is a write that may lag.
    #[must_use]
    pub fn later(&self, key: &[u8]) -> Option<Later> {
        self.entries.get(key)?.later
    }

    /// The waiting write of `key` that may lag has another content now.
    pub fn replaced(&mut self, key: &[u8], later: Later) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.later = Some(later);
        }
    }

    /// A removal of everything under `prefix` is on its way: what waits before it is not to be
    /// replaced by something newer.
    pub fn bar_prefix(&mut self, prefix: &[u8]) {
        let (from, to) = prefix_bounds(prefix);
        let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        for (_, entry) in self.entries.range_mut::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range) {
            entry.later = None;
        }
    }

    /// A write of `key` ended.
    pub fn settle(&mut self, key: &[u8], settled: Settled) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.busy = entry.busy.saturating_sub(1);
        entry.durable = match settled {
            Settled::Put(digest) => Some(digest),
            Settled::Removed | Settled::Unknown => None,
        };
        if entry.busy == 0 {
            entry.later = None;
        }
        if entry.busy == 0 && entry.durable.is_none() {
            self.entries.remove(key);
        }
    }

    /// Forget what is durable under `prefix`: its removal ended, well or not.
    pub fn forget_prefix(&mut self, prefix: &[u8]) {
        let (from, to) = prefix_bounds(prefix);
        let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let mut idle: Vec<Box<[u8]>> = Vec::new();
        for (key, entry) in self.entries.range_mut::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>(range) {
            entry.durable = None;
            if entry.busy == 0 {
                idle.push(key.clone());
            }
        }
        for key in idle {
            self.entries.remove(&key);
        }
    }

    /// From here on every write of this allocation is dropped.
    pub fn destroy(&mut self, id: AllocId) {
        if !self.destroyed.insert(id) {
            return;
        }
        self.destroyed_order.push_back(id);
        if self.destroyed_order.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.destroyed_order.pop_front()
        {
            self.destroyed.remove(&oldest);
        }
    }

    /// Whether a write of `key` is on its way.
    #[must_use]
    pub fn is_busy(&self, key: &[u8]) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.busy > 0)
    }

    /// Keys known here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No keys are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
#[path = "dedup_tests.rs"]
mod tests;
