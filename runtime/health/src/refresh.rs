//! Session plugins for their fingerprints again and again.
//!
//! ```text
//! add ─► first answer, waited for with a bound ─► loop: ─► wait ─► ask ─┐
//!                                                   ▲                   │
//!                                                   └───────────────────┘
//! wait: until what the plugin asked is over, or what it watches changed (debounced, and not too soon
//!       after the last question); after a failure: a back-off with jitter, or a change; in
//!       quarantine: until it is over or lifted, whatever changes
//! ```
//! What a plugin watches is what its newest answer says. When that is new, the plugin is asked once
//! more as soon as the watches are in place: what changed before them was not seen. For one that is
//! undetected the subsystems in which hardware and drivers appear are watched too, and where it does
//! not say what to watch, what it said before.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::meter::{FingerprintWait, PluginMeter};
use super::policy::jittered;
use ostler_model::clock::{sleep, timeout};
use ostler_model::device::{Health, HealthState};
use ostler_model::limits::{
    DEVICE_UNDETECTED_INTERVAL, FINGERPRINT_WALL_MAX, FIRST_FINGERPRINT_WAIT,
    UNDETECTED_SUBSYSTEMS, WATCH_ASK_GAP, WATCH_ASK_GAP_FAILING,
};
use ostler_model::rng::Rng;
use ostler_node::watch::{Subscription, Watcher};

/// What a plugin wants to be asked again for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextCheck {
    /// After this time; never shorter than [`ostler_model::limits::NEXT_CHECK_MIN`].
    pub after: Option<Duration>,
    /// When these paths change; absolute.
    pub paths: Vec<String>,
    /// When the kernel has news of these subsystems.
    pub subsystems: Vec<String>,
}

/// How a fingerprint went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FingerprintOutcome {
    /// The plugin answered; when to ask again.
    Answered(NextCheck),
    /// It answered that there is nothing for it on this node. What it asked to watch stays watched;
    /// with it, the subsystems in which hardware and its drivers appear.
    Undetected(NextCheck),
    /// It did not, or wrongly, and why.
    Failed(String),
    /// Another has taken its place: it is never asked again.
    Over,
}

impl FingerprintOutcome {
    /// A fingerprint with this health, of a driver or a device plugin.
    #[must_use]
    pub fn of(health: &Health, next: NextCheck) -> Self {
        let undetected = health.state == HealthState::Undetected;
        if undetected { Self::Undetected(next) } else { Self::Answered(next) }
    }
}

/// The loops of one manager.
#[derive(Debug)]
pub struct Refresher {
    watcher: Watcher,
    rng: Rng,
    stop: CancellationToken,
    loops: TaskTracker,
}

impl Refresher {
    /// Loops that are woken by `watcher`; `rng` spreads the retries.
    #[must_use]
    pub fn new(watcher: Watcher, rng: Rng) -> Self {
        Self { watcher, rng, stop: CancellationToken::new(), loops: TaskTracker::new() }
    }

    /// Ask once and wait for it (bounded), then keep asking in the background. `ask` publishes what
    /// it found; `meter` hears how it went.
    pub async fn add<F, Answer>(&self, meter: Arc<PluginMeter>, ask: F)
    where
        F: Fn() -> Answer + Send + 'static,
        Answer: Future<Output = FingerprintOutcome> + Send,
    {
        let watched = Watched {
            watcher: self.watcher.clone(),
            paths: Vec::new(),
            subsystems: Vec::new(),
            subscription: Subscription::nothing(),
        };
        let mut session = Session { meter, rng: self.rng.clone(), watched };
        // No strike when it is late: its own deadline may be longer.
        let first = timeout(FIRST_FINGERPRINT_WAIT, ask()).await;
        let late =
            || FingerprintOutcome::Failed(format!("no answer within {FIRST_FINGERPRINT_WAIT:?}"));
        let Some(mut wait) = session.heard(first.unwrap_or_else(late)) else { return };
        let stop = self.stop.clone();
        self.loops.spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = session.due(wait) => {}
                }
                let asked = session.answer(FINGERPRINT_WALL_MAX, ask()).await;
                match session.heard(asked) {
                    Some(again) => wait = again,
                    None => return,
                }
            }
        });
    }

    /// Stop asking. A call in flight is waited for: it has the plugin's deadline.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.loops.close();
        self.loops.wait().await;
    }
}

/// Until when to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    /// At most so long; absent: until a change.
    longest: Option<Duration>,
    /// A change does not count sooner; absent: not at all.
    gap: Option<Duration>,
}

/// One plugin that is asked.
struct Session {
    meter: Arc<PluginMeter>,
    rng: Rng,
    watched: Watched,
}

impl Session {
    /// The answer, unless it takes too long: that is a strike, as of a call that ran into its own
    /// deadline.
    async fn answer(
        &self,
        bound: Duration,
        answer: impl Future<Output = FingerprintOutcome>,
    ) -> FingerprintOutcome {
        if let Some(asked) = timeout(bound, answer).await {
            return asked;
        }
        let late = format!("no answer within {bound:?}");
        self.meter.failed("fingerprint", None, &late);
        FingerprintOutcome::Failed(late)
    }

    /// Take in how a fingerprint went. `None`: it was the last.
    fn heard(&mut self, asked: FingerprintOutcome) -> Option<Wait> {
        let mut longest = None;
        let held = match asked {
            FingerprintOutcome::Answered(next) => {
                longest = next.after;
                self.watched.follow(next);
                self.meter.fingerprinted()
            }
            FingerprintOutcome::Undetected(next) => {
                longest = next.after.or(Some(DEVICE_UNDETECTED_INTERVAL));
                self.watched.look_out(next);
                self.meter.fingerprinted()
            }
            FingerprintOutcome::Failed(reason) => self.meter.fingerprint_failed(reason),
            FingerprintOutcome::Over => return None,
        };
        let wait = match held {
            FingerprintWait::Free => Wait { longest, gap: Some(WATCH_ASK_GAP) },
            FingerprintWait::BackOff(wait) => {
                let longest = Some(jittered(wait, self.rng.next_u64()));
                Wait { longest, gap: Some(WATCH_ASK_GAP_FAILING) }
            }
            FingerprintWait::Until(longest) => Wait { longest, gap: None },
        };
        self.meter.due(wait.longest);
        Some(wait)
    }

    /// Wait until it is to be asked again. Dropped half-way it loses no change.
    async fn due(&mut self, wait: Wait) {
        let Self { meter, watched, .. } = self;
        let change = async {
            let Some(gap) = wait.gap else { return std::future::pending().await };
            sleep(gap).await;
            watched.subscription.changed().await;
        };
        let asked_for = async {
            tokio::select! {
                biased;
                () = change => {}
                () = meter.asked_for() => {}
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
struct Watched {
    watcher: Watcher,
    paths: Vec<String>,
    subsystems: Vec<String>,
    subscription: Subscription,
}

impl Watched {
    /// What the plugin asks for now, or asked for last, and where hardware appears.
    fn look_out(&mut self, next: NextCheck) {
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
        self.follow(NextCheck { after, paths, subsystems });
    }

    fn follow(&mut self, next: NextCheck) {
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
