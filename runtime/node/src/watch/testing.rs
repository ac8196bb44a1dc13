//! A watcher that tests move by hand, and what it was asked to watch.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::{Owner, Shared, Watcher};

impl Watcher {
    /// A watcher without thread: only [`Watcher::ring_all`] makes it report.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn without_thread() -> io::Result<Self> {
        Ok(Self(Arc::new(Owner(Mutex::new(Some(Arc::new(Shared::new()?)))))))
    }

    /// Ring every subscription, as after lost events.
    pub fn ring_all(&self) {
        if let Some(shared) = self.shared() {
            for entry in shared.wanted().entries.values() {
                entry.bell.send_modify(|rung| *rung += 1);
            }
        }
    }

    /// Subscriptions so far.
    #[must_use]
    pub fn entered(&self) -> u64 {
        self.shared().map_or(0, |shared| shared.wanted().next)
    }

    /// Every kernel subsystem that somebody watches, sorted.
    #[must_use]
    pub fn watched(&self) -> Vec<String> {
        let all: BTreeSet<_> = self.shared().map_or_else(BTreeSet::new, |shared| {
            let wanted = shared.wanted();
            wanted.entries.values().flat_map(|entry| entry.subsystems.clone()).collect()
        });
        all.into_iter().collect()
    }

    /// Every path that somebody watches, sorted.
    #[must_use]
    pub fn watched_paths(&self) -> Vec<PathBuf> {
        let all: BTreeSet<_> = self.shared().map_or_else(BTreeSet::new, |shared| {
            let wanted = shared.wanted();
            wanted.entries.values().flat_map(|entry| entry.paths.clone()).collect()
        });
        all.into_iter().collect()
    }
}
