//! The loops that ask plugins for their fingerprints.
//!
//! ```text
//! add ─► first answer, waited for with a bound ─► loop: ─► wait ─► ask ─┐
//!                                                   ▲                   │
//!                                                   └───────────────────┘
//! wait: until what the plugin asked is over, or what it watches changed (debounced, and not too soon
//!       after the last question); after a failure: a back-off with jitter, or a change; in
//!       quarantine: until it is over or lifted, whatever changes
//! ```
//! The newest answer of a plugin says what it watches. If that is new, the plugin is asked once
//! more as soon as the watches are in place, because earlier changes were not seen. For an
//! undetected plugin, the subsystems in which hardware and drivers appear are watched too, and if
//! it does not say what to watch, its earlier watches stay.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::meter::{FingerprintWait, PluginMeter};
use super::policy::jitter_wait;
use ostler_model::clock::{sleep, timeout};
use ostler_model::device::{Health, HealthState};
use ostler_model::limits::{
    DEVICE_UNDETECTED_INTERVAL, FINGERPRINT_WALL_MAX, FIRST_FINGERPRINT_WAIT,
    UNDETECTED_SUBSYSTEMS, WATCH_ASK_GAP, WATCH_ASK_GAP_FAILING,
};
use ostler_model::rng::Rng;
use ostler_node::watch::{ChangeWatcher, Subscription};

/// The events after which a plugin wants to be asked again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextCheck {
    /// After this time, which is never shorter than [`ostler_model::limits::NEXT_CHECK_MIN`].
    pub after: Option<Duration>,
    /// When one of these absolute paths changes.
    pub paths: Vec<String>,
    /// When the kernel reports events of these subsystems.
    pub subsystems: Vec<String>,
}

/// The result of a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FingerprintOutcome {
    /// The plugin answered, and this says when to ask again.
    Answered(NextCheck),
    /// The plugin answered that there is nothing for it on this node. Its watches stay, and the
    /// subsystems in which hardware and its drivers appear are watched too.
    Undetected(NextCheck),
    /// The plugin did not answer, or answered wrongly, for this reason.
    Failed(String),
    /// Another plugin has taken its place, so it is never asked again.
    Over,
}

impl FingerprintOutcome {
    /// The outcome for a driver or device plugin with this health.
    #[must_use]
    pub fn from_health(health: &Health, next: NextCheck) -> Self {
        let undetected = health.state == HealthState::Undetected;
        if undetected { Self::Undetected(next) } else { Self::Answered(next) }
    }
}

/// The fingerprint loops of one manager.
#[derive(Debug)]
pub struct Refresher {
    watcher: ChangeWatcher,
    rng: Rng,
    stop: CancellationToken,
    loops: TaskTracker,
}

impl Refresher {
    /// Loops that `watcher` wakes. `rng` spreads the retries.
    #[must_use]
    pub fn new(watcher: ChangeWatcher, rng: Rng) -> Self {
        Self { watcher, rng, stop: CancellationToken::new(), loops: TaskTracker::new() }
    }

    /// Ask once and wait for the answer (bounded), then keep asking in the background. `ask`
    /// publishes what it found; `meter` gets the result.
    pub async fn add<F, Answer>(&self, meter: Arc<PluginMeter>, ask: F)
    where
        F: Fn() -> Answer + Send + 'static,
        Answer: Future<Output = FingerprintOutcome> + Send,
    {
        let watched = WatchedPaths {
            watcher: self.watcher.clone(),
            paths: Vec::new(),
            subsystems: Vec::new(),
            subscription: Subscription::nothing(),
        };
        let mut session = AskSession { meter, rng: self.rng.clone(), watched };
        // A late answer is no strike here, because the plugin's own deadline may be longer.
        let first = timeout(FIRST_FINGERPRINT_WAIT, ask()).await;
        let late =
            || FingerprintOutcome::Failed(format!("no answer within {FIRST_FINGERPRINT_WAIT:?}"));
        let Some(mut wait) = session.take_outcome(first.unwrap_or_else(late)) else { return };
        let stop = self.stop.clone();
        self.loops.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = session.wait_until_due(wait) => {}
                }
                let asked = session.ask_within(FINGERPRINT_WALL_MAX, ask()).await;
                match session.take_outcome(asked) {
                    Some(again) => wait = again,
                    None => return,
                }
            }
        });
    }

    /// Stop asking. A call in flight is waited for; it has the plugin's deadline.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.loops.close();
        self.loops.wait().await;
    }
}

/// The wait before the next fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AskWait {
    /// The longest wait; `None` means until a change.
    longest: Option<Duration>,
    /// The time before which a change does not count; `None` means that no change counts.
    gap: Option<Duration>,
}

/// One plugin that is asked again and again.
struct AskSession {
    meter: Arc<PluginMeter>,
    rng: Rng,
    watched: WatchedPaths,
}

impl AskSession {
    /// Wait for the answer. If it takes too long, that is a strike, like a call that ran into its
    /// own deadline.
    async fn ask_within(
        &self,
        bound: Duration,
        answer: impl Future<Output = FingerprintOutcome>,
    ) -> FingerprintOutcome {
        if let Some(asked) = timeout(bound, answer).await {
            return asked;
        }
        let late = format!("no answer within {bound:?}");
        self.meter.record_failure("fingerprint", None, &late);
        FingerprintOutcome::Failed(late)
    }

    /// Record the outcome of a fingerprint. Returns `None` if it was the last.
    fn take_outcome(&mut self, asked: FingerprintOutcome) -> Option<AskWait> {
        let mut longest = None;
        let held = match asked {
            FingerprintOutcome::Answered(next) => {
                longest = next.after;
                self.watched.watch_paths(next);
                self.meter.record_fingerprint()
            }
            FingerprintOutcome::Undetected(next) => {
                longest = next.after.or(Some(DEVICE_UNDETECTED_INTERVAL));
                self.watched.watch_for_hardware(next);
                self.meter.record_fingerprint()
            }
            FingerprintOutcome::Failed(reason) => self.meter.record_fingerprint_failure(reason),
            FingerprintOutcome::Over => return None,
        };
        let wait = match held {
            FingerprintWait::Free => AskWait { longest, gap: Some(WATCH_ASK_GAP) },
            FingerprintWait::BackOff(wait) => {
                let longest = Some(jitter_wait(wait, self.rng.next_u64()));
                AskWait { longest, gap: Some(WATCH_ASK_GAP_FAILING) }
            }
            FingerprintWait::Until(longest) => AskWait { longest, gap: None },
        };
        self.meter.set_next_check(wait.longest);
        Some(wait)
    }

    /// Wait until the plugin is to be asked again. If this is dropped half-way, no change is lost.
    async fn wait_until_due(&mut self, wait: AskWait) {
        let Self { meter, watched, .. } = self;
        let change = async {
            let Some(gap) = wait.gap else { return std::future::pending().await };
            sleep(gap).await;
            watched.subscription.wait_for_change().await;
        };
        let asked_for = async {
            tokio::select! {
                biased;
                () = change => {}
                () = meter.wait_check_request() => {}
            }
        };
        match wait.longest {
            Some(longest) => {
                let _interval = timeout(longest, asked_for).await;
            }
            None => asked_for.await,
        }
    }
}

/// What a plugin watches now.
struct WatchedPaths {
    watcher: ChangeWatcher,
    paths: Vec<String>,
    subsystems: Vec<String>,
    subscription: Subscription,
}

impl WatchedPaths {
    /// Watch what the plugin asks for now, or asked for last, and the subsystems in which
    /// hardware appears.
    fn watch_for_hardware(&mut self, next: NextCheck) {
        let NextCheck { after, mut paths, mut subsystems } = next;
        if paths.is_empty() && subsystems.is_empty() {
            paths.clone_from(&self.paths);
            subsystems.clone_from(&self.subsystems);
        }
        for subsystem in UNDETECTED_SUBSYSTEMS {
            if !subsystems.iter().any(|known| known == subsystem) {
                subsystems.push((*subsystem).to_owned());
            }
        }
        self.watch_paths(NextCheck { after, paths, subsystems });
    }

    fn watch_paths(&mut self, next: NextCheck) {
        if next.paths == self.paths && next.subsystems == self.subsystems {
            return;
        }
        self.paths = next.paths;
        self.subsystems = next.subsystems;
        self.subscription = self.watcher.subscribe(&self.paths, &self.subsystems);
    }
}

#[cfg(test)]
#[path = "refresh_tests.rs"]
mod tests;
