//! Counts of what the store did: for people, benchmarks and tests.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// What happened since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Calls of [`super::StateStore::put`].
    pub puts: u64,
    /// Puts of what was durable already.
    pub unchanged: u64,
    /// Puts dropped because their allocation is destroyed.
    pub destroyed: u64,
    /// Changes committed: puts, deletes and destroys.
    pub writes: u64,
    /// Bytes of keys and records in them.
    pub bytes: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Transactions failed.
    pub commits_failed: u64,
    /// Most changes in one transaction.
    pub batch_largest: u64,
    /// Changes waiting for the writer now.
    pub queued: u64,
    /// Records whose durable content is known.
    pub keys: u64,
}

/// Counts since the store was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls of `put`.
    pub puts: AtomicU64,
    /// Puts of what was durable already.
    pub unchanged: AtomicU64,
    /// Puts of destroyed allocations.
    pub destroyed: AtomicU64,
    /// Changes committed.
    pub writes: AtomicU64,
    /// Bytes of keys and records committed.
    pub bytes: AtomicU64,
    /// Transactions committed.
    pub commits: AtomicU64,
    /// Transactions failed.
    pub commits_failed: AtomicU64,
    /// Most changes in one transaction.
    pub batch_largest: AtomicU64,
}

/// Count `by` more.
pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    /// The counts now, with the writes waiting and the keys known.
    #[must_use]
    pub fn snapshot(&self, queued: usize, keys: usize) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            puts: read(&self.puts),
            unchanged: read(&self.unchanged),
            destroyed: read(&self.destroyed),
            writes: read(&self.writes),
            bytes: read(&self.bytes),
            commits: read(&self.commits),
            commits_failed: read(&self.commits_failed),
            batch_largest: read(&self.batch_largest),
            queued: u64::try_from(queued).unwrap_or(u64::MAX),
            keys: u64::try_from(keys).unwrap_or(u64::MAX),
        }
    }
}
