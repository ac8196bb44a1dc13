//! Tracks what is known to be durable. Pure.
//!
//! ```text
//!              begin_write      finish(Put)
//!  unknown ───────────► busy ───────────────► durable(digest) ──┐ begin_write
//!     ▲                  ▲ │ finish(Unknown, Removed)           │
//!     └──────────────────┼─┘                                    │
//!                        └──────────────────────────────────────┘
//! ```
//!
//! A write may be skipped only if its key is *durable* with the same digest and has nothing on its
//! way. While a write is on its way the outcome is open: it may replace what is durable now, or
//! fail after it was applied. So the next write of that key must be carried out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use xxhash_rust::xxh3::xxh3_128;

use super::keys::alloc_of;
use ostler_model::ids::AllocId;

/// The number of destroyed allocations that are remembered; the oldest is forgotten first. A late
/// persist comes within seconds of the destroy, and ids are never used again. 65,536 of them take
/// about 2 MiB.
pub const TOMBSTONES_MAX: usize = 65_536;

/// A digest that stands for the content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueDigest {
    /// This is no `u128`, which would be aligned to 16 bytes: each record has an entry with one
    /// of these.
    hash: [u8; 16],
    len: usize,
}

impl ValueDigest {
    /// The digest of a record without its checksum ([`super::codec::strip_checksum`]).
    #[must_use]
    pub fn from_unsealed(unsealed: &[u8]) -> Self {
        Self { hash: xxh3_128(unsealed).to_le_bytes(), len: unsealed.len() }
    }
}

/// What is done with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDecision {
    /// The same content is durable and nothing is on its way, so nothing is done.
    Unchanged,
    /// The write is carried out.
    Write,
    /// The allocation is destroyed, so the write is dropped.
    Destroyed,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// This content is durable.
    Put(ValueDigest),
    /// The record was durably removed.
    Removed,
    /// The commit failed, so either content may be there.
    Unknown,
}

#[derive(Debug, Default)]
struct KeyState {
    durable: Option<ValueDigest>,
    /// The number of writes on their way.
    busy: u32,
}

type Entries = BTreeMap<Box<[u8]>, KeyState>;

/// A write that may lag, while it is the newest of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaterWrite {
    /// The ticket of the write in the queue, see [`super::queue::WriteQueue`].
    pub ticket: u64,
    /// The digest of the content that is to be written.
    pub digest: ValueDigest,
}

/// The digests of all durable records, the writes on their way, and the destroyed allocations.
#[derive(Debug, Default)]
pub struct Dedup {
    /// Entries by allocation first: most keys belong to one, each allocation has a few, and all of
    /// them go together.
    allocs: HashMap<AllocId, Entries>,
    others: Entries,
    later: HashMap<Box<[u8]>, LaterWrite>,
    destroyed: HashSet<AllocId>,
    destroyed_order: VecDeque<AllocId>,
}

impl Dedup {
    /// Enter a record that was durable at the start.
    pub fn warm(&mut self, key: &[u8], digest: ValueDigest) {
        self.entry(key).durable = Some(digest);
    }

    /// Decide what is done with a write of `digest` to `key`.
    #[must_use]
    pub fn decide(&self, key: &[u8], digest: ValueDigest) -> WriteDecision {
        let entries = match alloc_of(key) {
            Some(id) if !self.destroyed.is_empty() && self.destroyed.contains(&id) => {
                return WriteDecision::Destroyed;
            }
            Some(id) => self.allocs.get(&id),
            None => Some(&self.others),
        };
        match entries.and_then(|entries| entries.get(key)) {
            Some(KeyState { durable: Some(durable), busy: 0 }) if *durable == digest => {
                WriteDecision::Unchanged
            }
            _ => WriteDecision::Write,
        }
    }

    /// Note that a write of `key` is on its way. Each call is followed by one [`Dedup::finish`],
    /// in order.
    pub fn begin_write(&mut self, key: &[u8]) {
        self.later.remove(key);
        let entry = self.entry(key);
        entry.busy = entry.busy.saturating_add(1);
    }

    /// The same as [`Dedup::begin`] for a write that may lag, and so may be replaced while
    /// it waits.
    pub fn begin_later_write(&mut self, key: &[u8], later: LaterWrite) {
        self.begin_write(key);
        self.later.insert(key.into(), later);
    }

    /// The newest change of `key` that is on its way, if that is a write that may lag.
    #[must_use]
    pub fn later_write(&self, key: &[u8]) -> Option<LaterWrite> {
        self.later.get(key).copied()
    }

    /// Note that the waiting write of `key` has another content now.
    pub fn update_later(&mut self, key: &[u8], later: LaterWrite) {
        if let Some(waiting) = self.later.get_mut(key) {
            *waiting = later;
        }
    }

    /// Note that a removal of everything under `prefix` is on its way. Writes that wait before it
    /// must not be replaced by newer ones.
    pub fn bar_prefix(&mut self, prefix: &[u8]) {
        self.later.retain(|key, _| !key.starts_with(prefix));
    }

    /// Whether a write of `key` is on its way.
    #[must_use]
    pub fn is_busy(&self, key: &[u8]) -> bool {
        let entries = alloc_of(key).map_or(Some(&self.others), |id| self.allocs.get(&id));
        entries.and_then(|entries| entries.get(key)).is_some_and(|entry| entry.busy > 0)
    }

    /// Note that a write of `key` has ended.
    pub fn finish(&mut self, key: &[u8], ended: WriteEnd) {
        let alloc = alloc_of(key);
        let entries = alloc.map_or(Some(&mut self.others), |id| self.allocs.get_mut(&id));
        let Some(entries) = entries else { return };
        let Some(entry) = entries.get_mut(key) else { return };
        entry.busy = entry.busy.saturating_sub(1);
        entry.durable = match ended {
            WriteEnd::Put(digest) => Some(digest),
            WriteEnd::Removed | WriteEnd::Unknown => None,
        };
        if entry.busy > 0 {
            return;
        }
        let unknown = entry.durable.is_none();
        if unknown {
            entries.remove(key);
        }
        let empty = entries.is_empty();
        self.later.remove(key);
        if let Some(id) = alloc.filter(|_| empty) {
            self.allocs.remove(&id);
        }
    }

    /// Forget what is durable under `prefix`, after its removal ended with or without success.
    pub fn forget_prefix(&mut self, prefix: &[u8]) {
        match alloc_of(prefix) {
            Some(id) => {
                if let Some(entries) = self.allocs.get_mut(&id) {
                    forget(entries, prefix);
                    if entries.is_empty() {
                        self.allocs.remove(&id);
                    }
                }
            }
            None => {
                forget(&mut self.others, prefix);
                self.allocs.retain(|_, entries| {
                    forget(entries, prefix);
                    !entries.is_empty()
                });
            }
        }
    }

    /// Drop every write of this allocation from now on.
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

    /// The number of known keys.
    #[must_use]
    pub fn len(&self) -> usize {
        let of_allocs: usize = self.allocs.values().map(Entries::len).sum();
        of_allocs.saturating_add(self.others.len())
    }

    /// Whether no keys are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.others.is_empty()
    }

    fn entry(&mut self, key: &[u8]) -> &mut KeyState {
        let entries = match alloc_of(key) {
            Some(id) => self.allocs.entry(id).or_default(),
            None => &mut self.others,
        };
        entries.entry(key.into()).or_default()
    }
}

fn forget(entries: &mut Entries, prefix: &[u8]) {
    entries.retain(|key, entry| {
        if key.starts_with(prefix) {
            entry.durable = None;
        }
        entry.busy > 0 || entry.durable.is_some()
    });
}

#[cfg(test)]
#[path = "dedup_tests.rs"]
mod tests;
