//! Starts a fingerprint before its interval is over, when watched paths or kernel subsystems
//! change.
//!
//! ```text
//! ChangeWatcher::subscribe(paths, subsystems) ─► Subscription ── wait_for_change(): ─► ask again
//!      │ the first one starts the thread            ▲             debounced
//!      ▼                                            │ a number goes up
//! thread `ostler-watch`, waiting ─┬─ inotify ── `paths`: whose path is it?
//!                                 ├─ netlink ── `uevent`: which subsystem?
//!                                 └─ eventfd ── the list of subscriptions changed
//! ```
//! The kernel's own events announce new devices; inotify does not, because sysfs does not report
//! them.
//!
//! Nothing here is needed for correctness: plugins are also asked on their intervals. So whatever
//! fails (no netlink in a container, no inotify watches left) is reported once in the log and in
//! [`WatchReport`], and the rest goes on. When the kernel dropped events, everything counts as
//! changed. A path on a file system that hangs can hang the thread, and with it the watches of
//! others, but never the agent.

mod kernel;
mod paths;
#[doc(hidden)]
pub mod testing;
mod thread;
pub mod uevent;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::watch;

use ostler_model::clock::timeout;
use ostler_model::limits::{
    WATCH_DEBOUNCE_MAX, WATCH_NOTES_MAX, WATCH_PATHS_MAX, WATCH_QUIET, WATCH_SUBSCRIPTIONS_MAX,
    WATCH_SUBSYSTEMS_MAX,
};

/// Names a subscription for as long as the watcher lives.
type SubscriptionId = u64;
/// A counter that goes up by one with every piece of news.
type Bell = Arc<watch::Sender<u64>>;

/// Watches paths and kernel subsystems for all plugins. Clones share it; the thread ends with the
/// last one.
#[derive(Clone, Debug, Default)]
pub struct ChangeWatcher(Arc<ChangeWatcherInner>);

#[derive(Debug, Default)]
struct ChangeWatcherInner(Mutex<Option<Arc<WatchState>>>);

/// The state that the watcher, its subscriptions and its thread share.
#[derive(Debug)]
struct WatchState {
    wanted: Mutex<SubscriptionList>,
    report: Mutex<WatchReport>,
    /// Wakes the thread when the list of subscriptions changed.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct SubscriptionList {
    next: SubscriptionId,
    entries: BTreeMap<SubscriptionId, SubscriptionEntry>,
    closed: bool,
}

#[derive(Debug)]
struct SubscriptionEntry {
    paths: Vec<PathBuf>,
    subsystems: BTreeSet<String>,
    bell: Bell,
}

/// The state of the watcher, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WatchReport {
    /// Number of subscriptions now.
    pub subscriptions: usize,
    /// Number of kernel watches on paths now.
    pub kernel_watches: usize,
    /// How often the kernel dropped events, so that everything counted as changed.
    pub overflows: u64,
    /// What does not work, as sentences. The key is the path or the source concerned.
    pub degraded: BTreeMap<String, String>,
}

impl ChangeWatcher {
    /// A watcher. It does nothing before the first subscription.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Watch these paths (absolute) and these kernel subsystems (`pci`, `usb`, …) until the
    /// subscription is dropped. More than [`WATCH_PATHS_MAX`] or [`WATCH_SUBSYSTEMS_MAX`] are cut.
    ///
    /// The subscription reports a change once when its watches are in place, because earlier
    /// changes were not seen. It never fails: what cannot be watched does not change.
    #[must_use]
    pub fn subscribe(&self, paths: &[String], subsystems: &[String]) -> Subscription {
        let bell = Bell::default();
        let heard = bell.subscribe();
        let paths: Vec<PathBuf> = paths.iter().take(WATCH_PATHS_MAX).map(PathBuf::from).collect();
        let subsystems: BTreeSet<String> =
            subsystems.iter().take(WATCH_SUBSYSTEMS_MAX).cloned().collect();
        let nothing = paths.is_empty() && subsystems.is_empty();
        let place =
            if nothing { None } else { self.enter(SubscriptionEntry { paths, subsystems, bell }) };
        Subscription { heard, seen: 0, _place: place }
    }

    /// The state of the watcher now.
    #[must_use]
    pub fn report(&self) -> WatchReport {
        let owner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shared) = &*owner else { return WatchReport::default() };
        let subscriptions = shared.lock_subscriptions().entries.len();
        let report = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
        WatchReport { subscriptions, ..report.clone() }
    }

    fn enter(&self, entry: SubscriptionEntry) -> Option<SubscriptionGuard> {
        let shared = self.ensure_thread()?;
        let id = {
            let mut wanted = shared.lock_subscriptions();
            if wanted.entries.len() >= WATCH_SUBSCRIPTIONS_MAX {
                drop(wanted);
                shared.report_degraded("subscriptions", || {
                    format!("only {WATCH_SUBSCRIPTIONS_MAX} plugins can watch for changes")
                });
                return None;
            }
            wanted.next += 1;
            let id = wanted.next;
            wanted.entries.insert(id, entry);
            id
        };
        shared.wake();
        Some(SubscriptionGuard { id, shared })
    }

    /// The state shared with the thread. The thread is started when there is none.
    fn ensure_thread(&self) -> Option<Arc<WatchState>> {
        let mut owner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = &*owner {
            return Some(Arc::clone(shared));
        }
        let started = start_thread();
        match &started {
            Ok(shared) => *owner = Some(Arc::clone(shared)),
            Err(error) => tracing::warn!(%error, "changes are not watched for"),
        }
        started.ok()
    }
}

fn start_thread() -> std::io::Result<Arc<WatchState>> {
    let shared = Arc::new(WatchState::new()?);
    let own = Arc::clone(&shared);
    let name = "ostler-watch".to_owned();
    std::thread::Builder::new().name(name).spawn(move || thread::run(own))?;
    Ok(shared)
}

impl Drop for ChangeWatcherInner {
    fn drop(&mut self) {
        let shared = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(shared) = shared {
            shared.lock_subscriptions().closed = true;
            shared.wake();
        }
    }
}

impl WatchState {
    fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wanted: Mutex::default(), report: Mutex::default(), wake })
    }

    fn lock_subscriptions(&self) -> MutexGuard<'_, SubscriptionList> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    fn wake(&self) {
        // Fails only when the counter is full; then the thread is awake.
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Clear the wake-up: the list of subscriptions is about to be read.
    fn clear_wake(&self) {
        let _empty = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    fn report(&self, change: impl FnOnce(&mut WatchReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Report once what does not work.
    fn report_degraded(&self, what: &str, message: impl FnOnce() -> String) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if report.degraded.contains_key(what) || report.degraded.len() >= WATCH_NOTES_MAX {
            return;
        }
        let message = message();
        tracing::warn!("{message}");
        report.degraded.insert(what.to_owned(), message);
    }
}

/// Removes its entry from the list of subscriptions when it is dropped.
#[derive(Debug)]
struct SubscriptionGuard {
    id: SubscriptionId,
    shared: Arc<WatchState>,
}

impl Drop for SubscriptionGuard {
    fn drop(&mut self) {
        self.shared.lock_subscriptions().entries.remove(&self.id);
        self.shared.wake();
    }
}

/// Waits for changes of what was subscribed to. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    heard: watch::Receiver<u64>,
    seen: u64,
    _place: Option<SubscriptionGuard>,
}

impl Subscription {
    /// A subscription to nothing: it never reports a change.
    #[must_use]
    pub fn nothing() -> Self {
        Self { heard: Bell::default().subscribe(), seen: 0, _place: None }
    }

    /// Wait until something changed and then nothing changed for [`WATCH_QUIET`], or until
    /// [`WATCH_DEBOUNCE_MAX`] is over: a burst is one change. It never returns where nothing is
    /// watched. The future may be dropped half-way without a loss.
    pub async fn wait_for_change(&mut self) {
        let seen = self.seen;
        if self.heard.wait_for(|rung| *rung != seen).await.is_err() {
            std::future::pending().await
        }
        let debounce =
            async { while let Some(Ok(())) = timeout(WATCH_QUIET, self.heard.changed()).await {} };
        let _restless = timeout(WATCH_DEBOUNCE_MAX, debounce).await;
        self.seen = *self.heard.borrow_and_update();
    }
}

#[cfg(test)]
mod tests;
