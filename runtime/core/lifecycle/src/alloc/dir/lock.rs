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
static BUSY: Mutex<BTreeSet<AllocId>> = Mutex::new(BTreeSet::new());
static FREED: Condvar = Condvar::new();

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
        let taken = |busy: &BTreeSet<AllocId>| allocs.iter().copied().find(|a| busy.contains(a));
        let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut busy, _) = FREED
            .wait_timeout_while(busy, ALLOC_DIR_LOCK_WALL_MAX, |busy| taken(busy).is_some())
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(alloc) = taken(&busy) {
            return Err(AllocDirError::Busy { alloc, waited: ALLOC_DIR_LOCK_WALL_MAX });
        }
        busy.extend(allocs);
        Ok(Self(allocs.to_vec()))
    }
}

impl Drop for AllocDirLock {
    fn drop(&mut self) {
        let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
        for alloc in &self.0 {
            busy.remove(alloc);
        }
        FREED.notify_all();
    }
}
