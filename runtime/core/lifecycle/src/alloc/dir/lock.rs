//! Locks on the directories of allocations.
//!
//! Building, moving and removing a directory take several steps each. They come from different
//! owners (the allocation itself, its successor, garbage collection), so each locks the
//! directories that it changes. Several locks are taken together or not at all, so nobody waits
//! while holding one.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use super::AllocDirError;
use ostler_model::ids::AllocId;
use ostler_model::limits::ALLOC_DIR_LOCK_WALL_MAX;

/// The allocations whose directories are locked now. Ids are unique for ever, so the root is not
/// part of the key.
static BUSY: Mutex<LockedDirs> = Mutex::new(LockedDirs { allocs: BTreeSet::new(), waiting: 0 });
static FREED: Condvar = Condvar::new();

struct LockedDirs {
    allocs: BTreeSet<AllocId>,
    /// How many threads wait. Waking nobody costs a system call, and nearly always nobody waits.
    waiting: usize,
}

/// Locks directories until it is dropped.
#[derive(Debug)]
#[must_use]
pub(in super::super) struct AllocDirLock(Vec<AllocId>);

impl AllocDirLock {
    /// Wait until the directories of all `allocs` are free, and lock them. Blocks.
    ///
    /// # Errors
    /// [`AllocDirError::Busy`] when one is not free within [`ALLOC_DIR_LOCK_WALL_MAX`].
    pub(in super::super) fn take(allocs: &[AllocId]) -> Result<Self, AllocDirError> {
        let taken = |busy: &LockedDirs| allocs.iter().copied().find(|a| busy.allocs.contains(a));
        let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        if taken(&busy).is_some() {
            busy.waiting = busy.waiting.saturating_add(1);
            let freed = FREED
                .wait_timeout_while(busy, ALLOC_DIR_LOCK_WALL_MAX, |busy| taken(busy).is_some());
            (busy, _) = freed.unwrap_or_else(PoisonError::into_inner);
            busy.waiting = busy.waiting.saturating_sub(1);
        }
        if let Some(alloc) = taken(&busy) {
            return Err(AllocDirError::Busy { alloc, waited: ALLOC_DIR_LOCK_WALL_MAX });
        }
        busy.allocs.extend(allocs);
        Ok(Self(allocs.to_vec()))
    }
}

impl Drop for AllocDirLock {
    fn drop(&mut self) {
        let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        for alloc in &self.0 {
            busy.allocs.remove(alloc);
        }
        if busy.waiting > 0 {
            FREED.notify_all();
        }
    }
}
