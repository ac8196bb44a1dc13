//! What wakes a fingerprint before its interval is over: paths and kernel subsystems that change.
//!
//! ```text
//! Watcher::subscribe(paths, subsystems) ─► Subscription ── changed().await: debounced ─► ask again
//!      │ the first one starts the thread        ▲
//!      ▼                                        │ a number goes up
//! thread `ostler-watch`, waiting ─┬─ inotify ── `paths`: whose path is it?
//!                                 ├─ netlink ── `uevent`: which subsystem?
//!                                 └─ eventfd ── the list of subscriptions changed
//! ```
//! New devices are told of by the kernel's events, not by inotify: sysfs does not announce them.
//!
//! Nothing here is needed for correctness: plugins are asked on their intervals as well. So whatever
//! fails (no netlink in a container, no inotify watches left) is said once in the log and in
//! [`WatchReport`], and the rest goes on. When the kernel dropped events, everything counts as
//! changed. A path on a file system that hangs can hang the thread, and with it the watches of
//! others; never the agent.

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
/// Goes up by one for every piece of news.
type Bell = Arc<watch::Sender<u64>>;

/// Watches for everybody. Clones share it; the thread ends with the last one.
#[derive(Clone, Debug, Default)]
pub struct Watcher(Arc<Owner>);

#[derive(Debug, Default)]
struct Owner(Mutex<Option<Arc<Shared>>>);

/// What watcher, subscriptions and thread share.
#[derive(Debug)]
struct Shared {
    wanted: Mutex<Wanted>,
    report: Mutex<WatchReport>,
    /// Wakes the thread when the list changed.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Wanted {
    next: SubscriptionId,
    entries: BTreeMap<SubscriptionId, Entry>,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    paths: Vec<PathBuf>,
    subsystems: BTreeSet<String>,
    bell: Bell,
}

/// How the watcher does.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WatchReport {
    /// Subscriptions now.
    pub subscriptions: usize,
    /// Kernel watches on paths now.
    pub kernel_watches: usize,
    /// How often the kernel dropped events, so that everything counted as changed.
    pub overflows: u64,
    /// What does not work, by what it is about.
    pub degraded: BTreeMap<String, String>,
}

impl Watcher {
    /// A watcher; it does nothing before the first subscription.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Watch these paths (absolute) and these kernel subsystems (`pci`, `usb`, …) until the
    /// subscription is dropped. More than [`WATCH_PATHS_MAX`] or [`WATCH_SUBSYSTEMS_MAX`] are cut.
    ///
    /// The subscription reports a change once when its watches are in place: what changed before
    /// was not seen. It never fails; what cannot be watched does not change.
    #[must_use]
    pub fn subscribe(&self, paths: &[String], subsystems: &[String]) -> Subscription {
        let bell = Bell::default();
        let heard = bell.subscribe();
        let paths: Vec<PathBuf> = paths.iter().take(WATCH_PATHS_MAX).map(PathBuf::from).collect();
        let subsystems: BTreeSet<String> =
            subsystems.iter().take(WATCH_SUBSYSTEMS_MAX).cloned().collect();
        let nothing = paths.is_empty() && subsystems.is_empty();
        let place = if nothing { None } else { self.enter(Entry { paths, subsystems, bell }) };
        Subscription { heard, seen: 0, _place: place }
    }

    /// How it does.
    #[must_use]
    pub fn report(&self) -> WatchReport {
        let owner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shared) = &*owner else { return WatchReport::default() };
        let subscriptions = shared.wanted().entries.len();
        let report = shared.report.lock().unwrap_or_else(PoisonError::into_inner);
        WatchReport { subscriptions, ..report.clone() }
    }

    fn enter(&self, entry: Entry) -> Option<Place> {
        let shared = self.shared()?;
        let id = {
            let mut wanted = shared.wanted();
            if wanted.entries.len() >= WATCH_SUBSCRIPTIONS_MAX {
                drop(wanted);
                shared.degraded("subscriptions", || {
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
        Some(Place { id, shared })
    }

    /// The thread's shared state; the thread is started when it is not there.
    fn shared(&self) -> Option<Arc<Shared>> {
        let mut owner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = &*owner {
            return Some(Arc::clone(shared));
        }
        let started = start();
        match &started {
            Ok(shared) => *owner = Some(Arc::clone(shared)),
            Err(error) => tracing::warn!(%error, "changes are not watched for"),
        }
        started.ok()
    }
}

fn start() -> std::io::Result<Arc<Shared>> {
    let shared = Arc::new(Shared::new()?);
    let own = Arc::clone(&shared);
    let name = "ostler-watch".to_owned();
    std::thread::Builder::new().name(name).spawn(move || thread::run(own))?;
    Ok(shared)
}

impl Drop for Owner {
    fn drop(&mut self) {
        let shared = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(shared) = shared {
            shared.wanted().closed = true;
            shared.wake();
        }
    }
}

impl Shared {
    fn new() -> std::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { wanted: Mutex::default(), report: Mutex::default(), wake })
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    fn wake(&self) {
        // Fails only when the counter is full; then the thread is awake.
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Forget that the list changed: it is about to be read.
    fn quiet(&self) {
        let _empty = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    fn report(&self, change: impl FnOnce(&mut WatchReport)) {
        change(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Say once what does not work.
    fn degraded(&self, what: &str, message: impl FnOnce() -> String) {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if report.degraded.contains_key(what) || report.degraded.len() >= WATCH_NOTES_MAX {
            return;
        }
        let message = message();
        tracing::warn!("{message}");
        report.degraded.insert(what.to_owned(), message);
    }
}

/// An entry in the list of what is wanted, taken back when it is dropped.
#[derive(Debug)]
struct Place {
    id: SubscriptionId,
    shared: Arc<Shared>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.wanted().entries.remove(&self.id);
        self.shared.wake();
    }
}

/// Hears of changes; dropped: unsubscribed.
#[derive(Debug)]
pub struct Subscription {
    heard: watch::Receiver<u64>,
    seen: u64,
    _place: Option<Place>,
}

impl Subscription {
    /// One that never hears of anything.
    #[must_use]
    pub fn nothing() -> Self {
        Self { heard: Bell::default().subscribe(), seen: 0, _place: None }
    }

    /// Wait until something changed and then was quiet for [`WATCH_QUIET`], at most
    /// [`WATCH_DEBOUNCE_MAX`]: a burst is one change. Never ends for what is not watched. Dropped
    /// half-way it loses nothing.
    pub async fn changed(&mut self) {
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
