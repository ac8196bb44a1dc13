//! A watcher that tests move by hand, and what it was asked to watch.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::{ChangeWatcher, ChangeWatcherInner, WatchState};

impl ChangeWatcher {
    /// A watcher without thread: only [`ChangeWatcher::ring_all`] makes it report.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn without_thread() -> io::Result<Self> {
        Ok(Self(Arc::new(ChangeWatcherInner(Mutex::new(Some(Arc::new(WatchState::new()?)))))))
    }

    /// Ring every subscription, as after lost events.
    pub fn ring_all(&self) {
        if let Some(shared) = self.ensure_thread() {
            for entry in shared.lock_subscriptions().entries.values() {
                entry.bell.send_modify(|rung| *rung += 1);
            }
        }
    }

    /// Subscriptions so far.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.ensure_thread().map_or(0, |shared| shared.lock_subscriptions().next)
    }

    /// Every kernel subsystem that somebody watches, sorted.
    #[must_use]
    pub fn watched(&self) -> Vec<String> {
        let all: BTreeSet<_> = self.ensure_thread().map_or_else(BTreeSet::new, |shared| {
            let wanted = shared.lock_subscriptions();
            wanted.entries.values().flat_map(|entry| entry.subsystems.clone()).collect()
        });
        all.into_iter().collect()
    }

    /// Every path that somebody watches, sorted.
    #[must_use]
    pub fn watched_paths(&self) -> Vec<PathBuf> {
        let all: BTreeSet<_> = self.ensure_thread().map_or_else(BTreeSet::new, |shared| {
            let wanted = shared.lock_subscriptions();
            wanted.entries.values().flat_map(|entry| entry.paths.clone()).collect()
        });
        all.into_iter().collect()
    }
}
