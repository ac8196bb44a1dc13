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
use super::{Bell, Shared, SubscriptionId};
use ostler_model::limits::WATCH_READ_PAUSE;

/// What the thread knows of a subscription.
struct Known {
    paths: Vec<PathBuf>,
    subsystems: BTreeSet<String>,
    bell: Bell,
}

/// The thread's own state.
struct Watching {
    shared: Arc<Shared>,
    known: BTreeMap<SubscriptionId, Known>,
    /// Open while somebody wants it.
    paths: Option<Paths>,
    kernel: Option<OwnedFd>,
}

/// Run until the watcher is gone.
pub(super) fn run(shared: Arc<Shared>) {
    let mut watching = Watching { shared, known: BTreeMap::new(), paths: None, kernel: None };
    while watching.follow_the_list() {
        watching.wait(None);
        watching.hear();
        watching.wait(Some(WATCH_READ_PAUSE));
    }
}

impl Watching {
    /// Take up new subscriptions and drop those that ended. `false`: the watcher is gone.
    fn follow_the_list(&mut self) -> bool {
        self.shared.quiet();
        let mut new = BTreeMap::new();
        {
            let wanted = self.shared.wanted();
            if wanted.closed {
                return false;
            }
            let ended: Vec<SubscriptionId> =
                self.known.keys().filter(|id| !wanted.entries.contains_key(id)).copied().collect();
            for (id, entry) in &wanted.entries {
                if !self.known.contains_key(id) {
                    let (paths, subsystems) = (entry.paths.clone(), entry.subsystems.clone());
                    new.insert(*id, Known { paths, subsystems, bell: Arc::clone(&entry.bell) });
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
            // What changed before now was not seen.
            self.ring(id);
        }
        let watches = self.paths.as_ref().map_or(0, Paths::len);
        self.shared.report(|report| report.kernel_watches = watches);
        true
    }

    /// Open what is wanted and close what is not.
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
                Err(error) => self.shared.degraded("paths", || {
                    format!("paths are not watched, only asked for on intervals: inotify: {error}")
                }),
            }
        }
        if self.known.values().all(|known| known.subsystems.is_empty()) {
            self.kernel = None;
        } else if self.kernel.is_none() {
            match kernel::open() {
                Ok(socket) => self.kernel = Some(socket),
                Err(error) => self.shared.degraded("kernel", || {
                    format!(
                        "kernel events are not heard, devices are only asked for on intervals: \
                         netlink: {error}"
                    )
                }),
            }
        }
    }

    fn place(&mut self, id: SubscriptionId) {
        let (Some(paths), Some(known)) = (&mut self.paths, self.known.get(&id)) else { return };
        for (path, error) in paths.place(id, &known.paths) {
            self.shared.degraded(&path.to_string_lossy(), || {
                format!("{} is not watched, only asked for on intervals: {error}", path.display())
            });
        }
    }

    fn ring(&self, id: SubscriptionId) {
        if let Some(known) = self.known.get(&id) {
            known.bell.send_modify(|rung| *rung = rung.wrapping_add(1));
        }
    }

    /// Wait for news, or after news only for a change of the list.
    fn wait(&self, pause: Option<Duration>) {
        let mut fds = vec![PollFd::new(self.shared.wake_fd(), PollFlags::IN)];
        if pause.is_none() {
            let sources = self.paths.as_ref().map(Paths::fd).into_iter().chain(&self.kernel);
            fds.extend(sources.map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        // Interrupted or failed: the next round looks again, after a pause.
        let _ready = poll(&mut fds, pause.as_ref());
    }

    /// Read both sources and wake whom it concerns.
    fn hear(&mut self) {
        let mut changed = BTreeSet::new();
        if let Some(paths) = &mut self.paths {
            let heard = paths.read();
            changed.extend(&heard.changed);
            if heard.overflow || heard.broken.is_some() {
                self.shared.report(|report| report.overflows += 1);
                changed.extend(self.with(|known| !known.paths.is_empty()));
            }
            let moved =
                if heard.overflow { changed.iter().copied().collect() } else { heard.moved };
            for id in moved {
                self.place(id);
            }
            if let Some(error) = heard.broken {
                self.broken("paths", error);
            }
        }
        if let Some(socket) = &self.kernel {
            let heard = kernel::read(socket);
            if heard.overflow || heard.broken.is_some() {
                self.shared.report(|report| report.overflows += 1);
                changed.extend(self.with(|known| !known.subsystems.is_empty()));
            }
            let news = &heard.subsystems;
            changed.extend(self.with(|known| news.iter().any(|s| known.subsystems.contains(s))));
            if let Some(error) = heard.broken {
                self.broken("kernel", error);
            }
        }
        for id in changed {
            self.ring(id);
        }
    }

    /// A source that cannot be read is closed; the next change of the list opens it again.
    fn broken(&mut self, source: &'static str, error: Errno) {
        match source {
            "paths" => self.paths = None,
            _ => self.kernel = None,
        }
        self.shared.degraded(source, || format!("changes are not heard any more: {error}"));
    }

    fn with(&self, fits: impl Fn(&Known) -> bool) -> Vec<SubscriptionId> {
        self.known.iter().filter(|(_, known)| fits(known)).map(|(id, _)| *id).collect()
    }
}
