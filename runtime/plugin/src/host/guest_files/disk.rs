//! How much a WASM task may add to its directories.
//!
//! ```text
//!   guest ─► write, resize, create, remove ─► host.rs, disk_p1: full? ─ yes ─► "no space left"
//!                                                  │ no
//!                                                  ▼ wasmtime-wasi does it, the file's growth counts
//! ```
//! The file system has no quota for a part of it, so the host counts, where the guest's calls pass: by
//! how much files grew and shrank, and a block for each name. Lengths count, not blocks: a hole
//! counts as if it were written. A file without a name counts as long as any task has it open. What was
//! there before the task is not counted, nor what others write meanwhile; the whole of an allocation's
//! directory is measured every minute besides. One write may lead beyond the bound, by less than
//! [`GUEST_IO_PIECE_BYTES`](ostler_model::limits::GUEST_IO_PIECE_BYTES).

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What a name in a directory counts, bytes: what it takes at least on most file systems.
pub(in crate::host) const NAME_BYTES: u64 = 4_096;

/// What one task has added so far, and how much it may.
#[derive(Debug)]
pub(in crate::host) struct DiskQuota {
    max: u64,
    added: AtomicU64,
}

impl DiskQuota {
    /// Nothing added yet.
    pub(in crate::host) const fn new(max: u64) -> Self {
        Self { max, added: AtomicU64::new(0) }
    }

    /// May nothing more be added?
    pub(in crate::host) fn full(&self) -> bool {
        self.added.load(Ordering::Relaxed) >= self.max
    }

    /// May a file of `before` bytes become one of `after`?
    pub(in crate::host) fn fits(&self, before: u64, after: u64) -> bool {
        let more = after.saturating_sub(before);
        more == 0 || self.added.load(Ordering::Relaxed).saturating_add(more) <= self.max
    }

    /// A file of `before` bytes has `after` now.
    pub(in crate::host) fn resized(&self, before: u64, after: u64) {
        let change = |added: u64| {
            let now = added.saturating_add(after.saturating_sub(before));
            Some(now.saturating_sub(before.saturating_sub(after)))
        };
        let _was = self.added.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// A name was made.
    pub(in crate::host) fn made(&self) {
        self.resized(0, NAME_BYTES);
    }

    /// A name was removed, and with it a file of so many bytes where it was its last.
    pub(in crate::host) fn removed(&self, bytes: u64) {
        self.resized(bytes.saturating_add(NAME_BYTES), 0);
    }
}

/// What identifies a file, as WASI tells it to guests: `metadata-hash`, `ino`.
pub(in crate::host) fn identity(device: u64, inode: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (device, inode).hash(&mut hasher);
    hasher.finish()
}

/// [`identity`] of an open file.
pub(in crate::host) fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|meta| identity(meta.dev(), meta.ino()))
}

/// The files that any WASM task of this agent has open.
#[derive(Debug, Default)]
pub(in crate::host) struct OpenInodes(Mutex<HashMap<u64, OpenInode>>);

#[derive(Debug, Default)]
struct OpenInode {
    times: u32,
    /// How often it was made shorter meanwhile.
    shrinks: u64,
    /// Who removed its last name, and has its bytes back when it is closed.
    unlinked_by: Option<Weak<DiskQuota>>,
}

impl OpenInodes {
    /// It is open once more.
    pub(in crate::host) fn opened(&self, inode: u64) {
        let mut open = self.lock();
        let entry = open.entry(inode).or_default();
        entry.times = entry.times.saturating_add(1);
    }

    /// Its last name is gone. `true`: it is open, so that its bytes are not back yet.
    pub(in crate::host) fn unlinked(&self, inode: u64, by: &Arc<DiskQuota>) -> bool {
        let mut open = self.lock();
        let entry = open.get_mut(&inode);
        let is_open = entry.is_some();
        if let Some(entry) = entry {
            entry.unlinked_by = Some(Arc::downgrade(by));
        }
        is_open
    }

    /// It was made shorter: who wrote into it before knows its length no more.
    pub(in crate::host) fn shrunk(&self, inode: u64) {
        if let Some(entry) = self.lock().get_mut(&inode) {
            entry.shrinks = entry.shrinks.saturating_add(1);
        }
    }

    /// How often it was made shorter since somebody has it open.
    pub(in crate::host) fn shrinks(&self, inode: u64) -> u64 {
        self.lock().get(&inode).map_or(0, |entry| entry.shrinks)
    }

    /// It is open once less; `bytes` tells its length.
    pub(in crate::host) fn closed(&self, inode: u64, bytes: impl FnOnce() -> u64) {
        let mut open = self.lock();
        let Some(entry) = open.get_mut(&inode) else { return };
        entry.times = entry.times.saturating_sub(1);
        if entry.times > 0 {
            return;
        }
        let gone = open.remove(&inode);
        drop(open);
        if let Some(quota) = gone.and_then(|gone| gone.unlinked_by?.upgrade()) {
            quota.resized(bytes(), 0);
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
    fn a_file_without_a_name_counts_until_the_last_who_has_it_open_closes_it() {
        let (quota, inodes) = (Arc::new(DiskQuota::new(100)), OpenInodes::default());
        quota.resized(0, 100);
        inodes.opened(7);
        inodes.opened(7);
        assert!(inodes.unlinked(7, &quota));
        inodes.closed(7, || 100);
        assert!(quota.full());
        inodes.closed(7, || 100);
        assert!(quota.fits(0, 100));
        assert!(!inodes.unlinked(7, &quota), "nobody has it open");
    }

    #[test]
    fn who_writes_learns_that_a_file_was_made_shorter() {
        let inodes = OpenInodes::default();
        inodes.shrunk(7);
        assert_eq!(inodes.shrinks(7), 0, "nobody has it open");
        inodes.opened(7);
        inodes.shrunk(7);
        assert_eq!((inodes.shrinks(7), inodes.shrinks(8)), (1, 0));
    }

    #[test]
    fn a_file_that_keeps_its_name_gives_nothing_back_when_it_is_closed() {
        let (quota, inodes) = (Arc::new(DiskQuota::new(100)), OpenInodes::default());
        quota.resized(0, 100);
        inodes.opened(7);
        inodes.closed(7, || 100);
        assert!(quota.full() && inodes.lock().is_empty());
    }

    #[test]
    fn what_was_there_before_gives_no_credit_beyond_the_whole() {
        let quota = DiskQuota::new(100);
        quota.removed(1 << 40);
        assert!(quota.fits(0, 100) && !quota.fits(0, 101));
    }
}
