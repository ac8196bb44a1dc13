//! Counts of what the store did, for people, benchmarks and tests.
//!
//! They start when the store is opened ([`super::StateStore::stats`]). The sum since the file was
//! made is kept in the file. It is written along with every [`STATE_COUNTERS_COMMITS`]th commit and
//! at the end, for `ostler state stats`. A killed agent loses the counts since the last such write.
//!
//! [`STATE_COUNTERS_COMMITS`]: ostler_model::limits::STATE_COUNTERS_COMMITS

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::backend::Op;
use super::codec;
use super::keys::RecordKey;

/// The number of classes of [`Stats::batch_sizes`].
pub const BATCH_CLASSES: usize = 10;

/// The counts since the store was opened, or, when they come from the file, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The number of values given to the store, for a durable or a lagging write.
    pub puts: u64,
    /// The number of those values that were durable already.
    pub unchanged: u64,
    /// The number of those values that were dropped because their allocation is destroyed.
    pub destroyed: u64,
    /// The number of those values whose write may lag.
    pub later: u64,
    /// The number of lagging values that were replaced by a newer one while they waited.
    pub replaced: u64,
    /// The number of lagging writes that were tried again after a failed commit.
    pub later_retried: u64,
    /// The number of lagging writes that were given up after a failed commit.
    pub later_lost: u64,
    /// The number of committed changes: puts, deletes and destroys.
    pub writes: u64,
    /// The number of bytes of keys and records in those changes.
    pub bytes: u64,
    /// The number of transactions that were committed.
    pub commits: u64,
    /// The number of transactions that failed.
    pub commits_failed: u64,
    /// The largest number of changes in one transaction.
    pub batch_largest: u64,
    /// The numbers of transactions by their changes: 1, 2, up to 4, 8, 16, 32, 64, 128, 256, 512.
    pub batch_sizes: [u64; BATCH_CLASSES],
    /// The number of changes that wait for the writer now.
    pub queued: u64,
    /// The number of records whose durable content is known.
    pub keys: u64,
}

impl Stats {
    /// The share, from 0 to 1, of the given values that were durable already; `None` if none
    /// was given.
    #[must_use]
    pub fn duplicate_ratio(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        (self.puts > 0).then(|| self.unchanged as f64 / self.puts as f64)
    }

    /// The sum of both. The present values (`queued`, `keys`) are taken from `later`.
    #[must_use]
    pub fn add_later(&self, later: &Self) -> Self {
        let mut batch_sizes = later.batch_sizes;
        for (sum, before) in batch_sizes.iter_mut().zip(self.batch_sizes) {
            *sum = sum.saturating_add(before);
        }
        Self {
            puts: self.puts.saturating_add(later.puts),
            unchanged: self.unchanged.saturating_add(later.unchanged),
            destroyed: self.destroyed.saturating_add(later.destroyed),
            later: self.later.saturating_add(later.later),
            replaced: self.replaced.saturating_add(later.replaced),
            later_retried: self.later_retried.saturating_add(later.later_retried),
            later_lost: self.later_lost.saturating_add(later.later_lost),
            writes: self.writes.saturating_add(later.writes),
            bytes: self.bytes.saturating_add(later.bytes),
            commits: self.commits.saturating_add(later.commits),
            commits_failed: self.commits_failed.saturating_add(later.commits_failed),
            batch_largest: self.batch_largest.max(later.batch_largest),
            batch_sizes,
            queued: later.queued,
            keys: later.keys,
        }
    }
}

/// The class of a transaction of `size` changes in [`Stats::batch_sizes`].
fn class(size: u64) -> usize {
    let class = size.max(1).next_power_of_two().trailing_zeros();
    usize::try_from(class).unwrap_or(usize::MAX).min(BATCH_CLASSES - 1)
}

/// The counts since the store was opened.
#[derive(Debug, Default)]
pub struct StoreCounters {
    /// The counts of earlier openings.
    before: Stats,
    /// See [`Stats::puts`]; the same holds for the other fields.
    pub puts: AtomicU64,
    /// See [`Stats`].
    pub unchanged: AtomicU64,
    /// See [`Stats`].
    pub destroyed: AtomicU64,
    /// See [`Stats`].
    pub later: AtomicU64,
    /// See [`Stats`].
    pub replaced: AtomicU64,
    /// See [`Stats`].
    pub later_retried: AtomicU64,
    /// See [`Stats`].
    pub later_lost: AtomicU64,
    writes: AtomicU64,
    bytes: AtomicU64,
    /// See [`Stats`].
    pub commits: AtomicU64,
    /// See [`Stats`].
    pub commits_failed: AtomicU64,
    batch_largest: AtomicU64,
    batch_sizes: [AtomicU64; BATCH_CLASSES],
}

/// Add `by` to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl StoreCounters {
    /// Counters at zero, for a file that already has the counts `before`.
    #[must_use]
    pub fn new(before: Stats) -> Self {
        Self { before, ..Self::default() }
    }

    /// Count a committed transaction of `size` changes with this many bytes.
    pub fn count_commit(&self, size: usize, bytes: u64) {
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        count(&self.commits, 1);
        count(&self.writes, size);
        count(&self.bytes, bytes);
        self.batch_largest.fetch_max(size, Ordering::Relaxed);
        if let Some(class) = self.batch_sizes.get(class(size)) {
            count(class, 1);
        }
    }

    /// The present counts, with the number of waiting writes and of known keys.
    #[must_use]
    pub fn snapshot(&self, queued: usize, keys: usize) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            puts: read(&self.puts),
            unchanged: read(&self.unchanged),
            destroyed: read(&self.destroyed),
            later: read(&self.later),
            replaced: read(&self.replaced),
            later_retried: read(&self.later_retried),
            later_lost: read(&self.later_lost),
            writes: read(&self.writes),
            bytes: read(&self.bytes),
            commits: read(&self.commits),
            commits_failed: read(&self.commits_failed),
            batch_largest: read(&self.batch_largest),
            batch_sizes: self.batch_sizes.each_ref().map(read),
            queued: u64::try_from(queued).unwrap_or(u64::MAX),
            keys: u64::try_from(keys).unwrap_or(u64::MAX),
        }
    }

    /// Whether anything was counted since the store was opened.
    #[must_use]
    pub fn has_counts(&self) -> bool {
        self.snapshot(0, 0) != Stats::default()
    }

    /// The write that keeps the counts in the file.
    #[must_use]
    pub fn record(&self) -> Option<Op> {
        let key = RecordKey::Counters;
        let mut record = Vec::new();
        let sum = self.before.add_later(&self.snapshot(0, 0));
        // Counts are no state, so losing them is harmless.
        codec::encode(key.kind(), &sum, &mut record).ok()?;
        Some(Op::Put { key: key.encode().into(), value: record.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_classed_by_the_power_of_two_that_holds_them() {
        let expected =
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (257, 9), (512, 9), (9_999, 9)];
        for (size, expected) in expected {
            assert_eq!(class(size), expected, "{size}");
        }
    }

    #[test]
    fn counts_of_two_openings_add_up() {
        let first = StoreCounters::new(Stats::default());
        count(&first.puts, 3);
        first.count_commit(2, 100);
        let second = StoreCounters::new(first.snapshot(0, 0));
        count(&second.puts, 1);
        second.count_commit(9, 50);
        let sum = second.before.add_later(&second.snapshot(4, 5));
        assert_eq!((sum.puts, sum.writes, sum.bytes, sum.commits), (4, 11, 150, 2));
        assert_eq!((sum.batch_largest, sum.queued, sum.keys), (9, 4, 5));
        assert_eq!((sum.batch_sizes[1], sum.batch_sizes[4]), (1, 1));
    }
}
