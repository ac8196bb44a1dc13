//! How much a WASM task may add to its directories.
//!
//! ```text
//!   guest ─► write, resize, create, remove ─► disk_p1, disk_p2: full? ─ yes ─► "no space left"
//!                                                  │ no
//!                                                  ▼ wasmtime-wasi does it, the file's growth counts
//! ```
//! The file system has no quota for a part of it, so the host counts, where the guest's calls pass: by
//! how much files grew and shrank, and a block for each name. Lengths count, not blocks: a hole
//! counts as if it were written. What was there before the task is not counted, nor what others write
//! meanwhile; the whole of an allocation's directory is measured every minute besides. One write may
//! lead beyond the bound, by less than the task's memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a name in a directory counts, bytes: what it takes at least on most file systems.
pub(super) const NAME_BYTES: u64 = 4_096;

/// What one task has added so far, and how much it may.
#[derive(Debug)]
pub(super) struct DiskQuota {
    max: u64,
    added: AtomicU64,
}

impl DiskQuota {
    /// Nothing added yet.
    pub(super) const fn new(max: u64) -> Self {
        Self { max, added: AtomicU64::new(0) }
    }

    /// May nothing more be added?
    pub(super) fn full(&self) -> bool {
        self.added.load(Ordering::Relaxed) >= self.max
    }

    /// May a file of `before` bytes become one of `after`?
    pub(super) fn fits(&self, before: u64, after: u64) -> bool {
        let more = after.saturating_sub(before);
        more == 0 || self.added.load(Ordering::Relaxed).saturating_add(more) <= self.max
    }

    /// A file of `before` bytes has `after` now.
    pub(super) fn resized(&self, before: u64, after: u64) {
        // Only the thread that polls the guest is here, so the two steps are one.
        let added = self.added.load(Ordering::Relaxed);
        let now = added.saturating_add(after.saturating_sub(before));
        self.added.store(now.saturating_sub(before.saturating_sub(after)), Ordering::Relaxed);
    }

    /// A name was made.
    pub(super) fn made(&self) {
        self.resized(0, NAME_BYTES);
    }

    /// A name was removed, and with it a file of so many bytes where it was its last.
    pub(super) fn removed(&self, bytes: u64) {
        self.resized(bytes.saturating_add(NAME_BYTES), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_counts_and_what_is_given_back_may_be_used_again() {
        let quota = DiskQuota::new(10_000);
        assert!(quota.fits(5_000, 15_000) && !quota.fits(5_000, 15_001));
        quota.resized(0, 10_000);
        assert!(quota.full() && quota.fits(8_000, 2_000) && !quota.fits(0, 1));
        quota.resized(10_000, 4_000);
        assert!(!quota.full());
        quota.made();
        quota.made();
        assert!(quota.full());
        quota.removed(4_000);
        quota.removed(0);
        assert!(quota.fits(0, 10_000));
    }

    #[test]
    fn what_was_there_before_gives_no_credit_beyond_the_whole() {
        let quota = DiskQuota::new(100);
        quota.removed(1 << 40);
        assert!(quota.fits(0, 100) && !quota.fits(0, 101));
    }
}
