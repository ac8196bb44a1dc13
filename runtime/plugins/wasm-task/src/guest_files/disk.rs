//! Limits how much a WASM task may add to its directories.
//!
//! ```text
//!   guest ─► write, resize, create, remove ─► host.rs, disk_p1: full? ─ yes ─► "no space left"
//!                                                  │ no
//!                                                  ▼ wasmtime-wasi does it, the file's growth counts
//! ```
//! The file system has no quota for a part of it. So the host counts in the guest's calls: by how
//! much files grew and shrank, and a block for each name. Lengths count, not blocks, so a hole
//! counts as if it were written. A file without a name counts as long as any task has it open.
//! What was there before the task does not count, nor what others write meanwhile; besides, the
//! whole of an allocation's directory is measured every minute. One write may exceed the bound, by
//! less than [`GUEST_IO_PIECE_BYTES`](ostler_model::limits::GUEST_IO_PIECE_BYTES).

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// How many bytes a name in a directory counts. A name takes at least that much on
/// most file systems.
pub(crate) const NAME_BYTES: u64 = 4_096;

/// How much one task has added so far, and how much it may add.
#[derive(Debug)]
pub(crate) struct DiskQuota {
    max: u64,
    added: AtomicU64,
}

impl DiskQuota {
    /// A quota of which nothing is used yet.
    pub(crate) const fn new(max: u64) -> Self {
        Self { max, added: AtomicU64::new(0) }
    }

    /// Is the quota used up, so that nothing more may be added?
    pub(crate) fn is_full(&self) -> bool {
        self.added.load(Ordering::Relaxed) >= self.max
    }

    /// May a file of `before` bytes become one of `after`?
    pub(crate) fn fits(&self, before: u64, after: u64) -> bool {
        let more = after.saturating_sub(before);
        more == 0 || self.added.load(Ordering::Relaxed).saturating_add(more) <= self.max
    }

    /// Count a file that had `before` bytes and has `after` now.
    pub(crate) fn record_resize(&self, before: u64, after: u64) {
        let change = |added: u64| {
            let now = added.saturating_add(after.saturating_sub(before));
            Some(now.saturating_sub(before.saturating_sub(after)))
        };
        let _was = self.added.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Count a new name.
    pub(crate) fn record_name(&self) {
        self.record_resize(0, NAME_BYTES);
    }

    /// Count a name that was removed. `bytes` is the length of the file, if this was its last name.
    pub(crate) fn record_removal(&self, bytes: u64) {
        self.record_resize(bytes.saturating_add(NAME_BYTES), 0);
    }
}

/// The number that identifies a file, as WASI tells it to guests: `metadata-hash`, `ino`.
pub(crate) fn identity(device: u64, inode: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (device, inode).hash(&mut hasher);
    hasher.finish()
}

/// The [`identity`] of an open file.
pub(crate) fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|meta| identity(meta.dev(), meta.ino()))
}

/// The files that WASM tasks of this agent have open.
#[derive(Debug, Default)]
pub(crate) struct OpenInodes(Mutex<HashMap<u64, OpenInode>>);

#[derive(Debug, Default)]
struct OpenInode {
    times: u32,
    /// How often the file was made shorter meanwhile.
    shrinks: u64,
    /// The quota of the task that removed the last name of the file. It gets the bytes back when
    /// the file is closed.
    unlinked_by: Option<Weak<DiskQuota>>,
}

impl OpenInodes {
    /// Count a file that was opened once more.
    pub(crate) fn add_open(&self, inode: u64) {
        let mut open = self.lock();
        let entry = open.entry(inode).or_default();
        entry.times = entry.times.saturating_add(1);
    }

    /// Note that the last name of a file is gone. `true`: the file is open, so its
    /// bytes still count.
    pub(crate) fn mark_unlinked(&self, inode: u64, by: &Arc<DiskQuota>) -> bool {
        let mut open = self.lock();
        let entry = open.get_mut(&inode);
        let is_open = entry.is_some();
        if let Some(entry) = entry {
            entry.unlinked_by = Some(Arc::downgrade(by));
        }
        is_open
    }

    /// Count that a file was made shorter, so that streams that write into it do not rely
    /// on its length.
    pub(crate) fn count_shrink(&self, inode: u64) {
        if let Some(entry) = self.lock().get_mut(&inode) {
            entry.shrinks = entry.shrinks.saturating_add(1);
        }
    }

    /// How often a file was made shorter since somebody has it open.
    pub(crate) fn shrink_count(&self, inode: u64) -> u64 {
        self.lock().get(&inode).map_or(0, |entry| entry.shrinks)
    }

    /// Count a file that was closed once. `bytes` returns its length.
    pub(crate) fn remove_open(&self, inode: u64, bytes: impl FnOnce() -> u64) {
        let mut open = self.lock();
        let Some(entry) = open.get_mut(&inode) else { return };
        entry.times = entry.times.saturating_sub(1);
        if entry.times > 0 {
            return;
        }
        let gone = open.remove(&inode);
        drop(open);
        if let Some(quota) = gone.and_then(|gone| gone.unlinked_by?.upgrade()) {
            quota.record_resize(bytes(), 0);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, OpenInode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_counts_and_what_is_given_back_may_be_used_again() {
        let quota = DiskQuota::new(10_000);
        assert!(quota.fits(5_000, 15_000) && !quota.fits(5_000, 15_001));
        quota.record_resize(0, 10_000);
        assert!(quota.is_full() && quota.fits(8_000, 2_000) && !quota.fits(0, 1));
        quota.record_resize(10_000, 4_000);
        assert!(!quota.is_full());
        quota.record_name();
        quota.record_name();
        assert!(quota.is_full());
        quota.record_removal(4_000);
        quota.record_removal(0);
        assert!(quota.fits(0, 10_000));
    }

    #[test]
    fn a_file_without_a_name_counts_until_the_last_who_has_it_open_closes_it() {
        let (quota, inodes) = (Arc::new(DiskQuota::new(100)), OpenInodes::default());
        quota.record_resize(0, 100);
        inodes.add_open(7);
        inodes.add_open(7);
        assert!(inodes.mark_unlinked(7, &quota));
        inodes.remove_open(7, || 100);
        assert!(quota.is_full());
        inodes.remove_open(7, || 100);
        assert!(quota.fits(0, 100));
        assert!(!inodes.mark_unlinked(7, &quota), "nobody has it open");
    }

    #[test]
    fn who_writes_learns_that_a_file_was_made_shorter() {
        let inodes = OpenInodes::default();
        inodes.count_shrink(7);
        assert_eq!(inodes.shrink_count(7), 0, "nobody has it open");
        inodes.add_open(7);
        inodes.count_shrink(7);
        assert_eq!((inodes.shrink_count(7), inodes.shrink_count(8)), (1, 0));
    }

    #[test]
    fn a_file_that_keeps_its_name_gives_nothing_back_when_it_is_closed() {
        let (quota, inodes) = (Arc::new(DiskQuota::new(100)), OpenInodes::default());
        quota.record_resize(0, 100);
        inodes.add_open(7);
        inodes.remove_open(7, || 100);
        assert!(quota.is_full() && inodes.lock().is_empty());
    }

    #[test]
    fn what_was_there_before_gives_no_credit_beyond_the_whole() {
        let quota = DiskQuota::new(100);
        quota.record_removal(1 << 40);
        assert!(quota.fits(0, 100) && !quota.fits(0, 101));
    }
}
