//! The thread that waits for the kernel.
//!
//! ```text
//! wait ─► read inotify, read uevents ─► whose? ─► wake those ─► a short pause ─► wait
//!  ▲ the list changed: place new ones, drop old ones                  (bursts become one)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::kernel;
use super::paths::Paths;
use super::{Bell, SubscriptionId, WatchState};
use ostler_model::limits::WATCH_READ_PAUSE;

/// The thread's copy of a subscription.
struct ThreadSubscription {
    paths: Vec<PathBuf>,
    subsystems: BTreeSet<String>,
    bell: Bell,
}

/// The thread's own state.
struct WatchThread {
    shared: Arc<WatchState>,
    known: BTreeMap<SubscriptionId, ThreadSubscription>,
    /// Open while some subscription has paths.
    paths: Option<Paths>,
    kernel: Option<OwnedFd>,
}

/// Run until the watcher is gone.
pub(super) fn run(shared: Arc<WatchState>) {
    let mut watching = WatchThread { shared, known: BTreeMap::new(), paths: None, kernel: None };
    while watching.sync_subscriptions() {
        watching.wait(None);
        watching.read_news();
        watching.wait(Some(WATCH_READ_PAUSE));
    }
}

impl WatchThread {
    /// Take up new subscriptions and drop those that ended. `false`: the watcher is gone.
    fn sync_subscriptions(&mut self) -> bool {
        self.shared.clear_wake();
        let mut new = BTreeMap::new();
        {
            let wanted = self.shared.lock_subscriptions();
            if wanted.closed {
                return false;
            }
            let ended: Vec<SubscriptionId> =
                self.known.keys().filter(|id| !wanted.entries.contains_key(id)).copied().collect();
            for (id, entry) in &wanted.entries {
                if !self.known.contains_key(id) {
                    let (paths, subsystems) = (entry.paths.clone(), entry.subsystems.clone());
                    new.insert(
                        *id,
                        ThreadSubscription { paths, subsystems, bell: Arc::clone(&entry.bell) },
                    );
                }
            }
            drop(wanted);
            for id in ended {
                self.known.remove(&id);
                if let Some(paths) = &mut self.paths {
                    paths.remove(id);
                }
            }
        }
        let fresh: Vec<SubscriptionId> = new.keys().copied().collect();
        self.known.append(&mut new);
        self.open();
        for id in fresh {
            self.place(id);
            // Earlier changes were not seen, so the subscription is rung once.
            self.ring(id);
        }
        let watches = self.paths.as_ref().map_or(0, Paths::len);
        self.shared.report(|report| report.kernel_watches = watches);
        true
    }

    /// Open the sources that some subscription needs, and close the others.
    fn open(&mut self) {
        if self.known.values().all(|known| known.paths.is_empty()) {
            self.paths = None;
        } else if self.paths.is_none() {
            match Paths::new() {
                Ok(paths) => {
                    self.paths = Some(paths);
                    let all: Vec<SubscriptionId> = self.known.keys().copied().collect();
                    for id in all {
                        self.place(id);
                    }
                }
                Err(error) => self.shared.report_degraded("paths", || {
                    format!("paths are not watched, only looked at at intervals: inotify: {error}")
                }),
            }
        }
        if self.known.values().all(|known| known.subsystems.is_empty()) {
            self.kernel = None;
        } else if self.kernel.is_none() {
            match kernel::open() {
                Ok(socket) => self.kernel = Some(socket),
                Err(error) => self.shared.report_degraded("kernel", || {
                    format!(
                        "kernel events cannot be received, so devices are only asked for at intervals: \
                         netlink: {error}"
                    )
                }),
            }
        }
    }

    fn place(&mut self, id: SubscriptionId) {
        let (Some(paths), Some(known)) = (&mut self.paths, self.known.get(&id)) else { return };
        for (path, error) in paths.place(id, &known.paths) {
            self.shared.report_degraded(&path.to_string_lossy(), || {
                format!("{} is not watched, only looked at at intervals: {error}", path.display())
            });
        }
    }

    fn ring(&self, id: SubscriptionId) {
        if let Some(known) = self.known.get(&id) {
            known.bell.send_modify(|rung| *rung = rung.wrapping_add(1));
        }
    }

    /// Wait for news. With a pause, wait only for a change of the list.
    fn wait(&self, pause: Option<Duration>) {
        let mut fds = vec![PollFd::new(self.shared.wake_fd(), PollFlags::IN)];
        if pause.is_none() {
            let sources = self.paths.as_ref().map(Paths::fd).into_iter().chain(&self.kernel);
            fds.extend(sources.map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        // When the call is interrupted or fails, the next round tries again after a pause.
        let _ready = poll(&mut fds, pause.as_ref());
    }

    /// Read both sources and wake the subscriptions concerned.
    fn read_news(&mut self) {
        let mut changed = BTreeSet::new();
        if let Some(paths) = &mut self.paths {
            let heard = paths.read();
            changed.extend(&heard.changed);
            if heard.overflow || heard.broken.is_some() {
                self.shared.report(|report| report.overflows += 1);
                changed.extend(self.subscriptions_where(|known| !known.paths.is_empty()));
            }
            let moved =
                if heard.overflow { changed.iter().copied().collect() } else { heard.moved };
            for id in moved {
                self.place(id);
            }
            if let Some(error) = heard.broken {
                self.close_source("paths", error);
            }
        }
        if let Some(socket) = &self.kernel {
            let heard = kernel::read(socket);
            if heard.overflow || heard.broken.is_some() {
                self.shared.report(|report| report.overflows += 1);
                changed.extend(self.subscriptions_where(|known| !known.subsystems.is_empty()));
            }
            let news = &heard.subsystems;
            changed.extend(
                self.subscriptions_where(|known| news.iter().any(|s| known.subsystems.contains(s))),
            );
            if let Some(error) = heard.broken {
                self.close_source("kernel", error);
            }
        }
        for id in changed {
            self.ring(id);
        }
    }

    /// Close a source that cannot be read. The next change of the list opens it again.
    fn close_source(&mut self, source: &'static str, error: Errno) {
        match source {
            "paths" => self.paths = None,
            _ => self.kernel = None,
        }
        self.shared
            .report_degraded(source, || format!("changes can no longer be received: {error}"));
    }

    fn subscriptions_where(
        &self,
        fits: impl Fn(&ThreadSubscription) -> bool,
    ) -> Vec<SubscriptionId> {
        self.known.iter().filter(|(_, known)| fits(known)).map(|(id, _)| *id).collect()
    }
}
