//! How a plugin does, when it is asked again, and when it is not called any more: decisions without
//! clock or I/O.
//!
//! ```text
//!            fingerprint answered                       fingerprint answered
//! Starting ──────────────────────► Running ◄──────────────────────────────────┐
//!    │                                │  fingerprint failed                    │
//!    └────────────────────────────────┴──────────────► BackingOff ─────────────┘
//!                                                        │  ▲ fingerprint failed:
//!                                                        └──┘ twice the wait, up to a bound
//! any call failed: a strike; a strike is forgotten after a time
//! any state ── strikes_max strikes ─► Quarantined ── time over, probe answered ─► Running
//!                                      │  ▲   │ lifted by a person ─► Starting
//!                                      └──┘   └ manual: no time, no probe
//!                            probe failed: twice as long, up to a bound
//! ```
//! A *strike* is a call that trapped, hung, broke a limit or answered against the rules. A plugin that
//! says "I cannot" in the way the interface has for it earns none, but a fingerprint that ends so has
//! failed as well. Strikes of calls about one task count against that task: [`super::strikes`]. A
//! plugin that is put into quarantine again soon after one ended has relapsed: twice as long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::strikes::{Poisoned, Strikes, TaskKey};
pub use ostler_model::config::{FailurePolicy, QuarantineFor};
use ostler_model::limits::{PLUGIN_MESSAGE_BYTES_MAX, QUARANTINE_MAX};
use ostler_model::shown;
use ostler_model::time::Timestamp;

/// Shortest wait for the end of a quarantine: the timers and the clock are not one.
const PROBE_WAIT_MIN: Duration = Duration::from_millis(100);

/// Where a plugin is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginState {
    /// It has not been heard of yet.
    #[default]
    Starting,
    /// Its last fingerprint was answered.
    Running,
    /// Its last fingerprint failed; it is asked again after a wait.
    BackingOff,
    /// It failed too often: it gets no calls but those that end what it runs.
    Quarantined,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFailure {
    /// When.
    pub at: Timestamp,
    /// What.
    pub reason: String,
}

/// Why and for how long a plugin gets no calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Since when.
    pub since: Timestamp,
    /// When it is tried again; absent: when a person lifts it.
    pub until: Option<Timestamp>,
    /// What brought it here.
    pub reason: String,
    /// How often in a row it came back here, failed probes included.
    pub relapses: u32,
}

impl Quarantine {
    /// Is its time over, so that the plugin may be tried?
    #[must_use]
    pub fn due(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// The clock was set back since it was recorded: it begins now, and is not longer for that.
    fn take_the_future_as(&mut self, now: Timestamp) {
        if now < self.since {
            let length = |until: Timestamp| until.since(self.since);
            self.until = self.until.map(|until| now.plus(length(until)));
            self.since = now;
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginEvent {
    /// A fingerprint was answered.
    Fingerprinted,
    /// A fingerprint failed, for whatever reason. Comes after the strike, if it was one.
    FingerprintFailed(String),
    /// A call failed.
    Strike {
        /// The task it was about; absent: about none.
        task: Option<TaskKey>,
        /// Fingerprint of the task's configuration, of a start.
        config: Option<u64>,
        /// What went wrong.
        reason: String,
    },
    /// A person vouches for it.
    Lifted,
    /// An earlier agent had it in quarantine.
    Restored(Quarantine),
}

/// What follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyEffect {
    /// Ask again after this time, jitter not counted. Absent after a failure, or in quarantine: not
    /// before a person lifts it.
    pub retry_after: Option<Duration>,
    /// It came into this state now.
    pub turned: Option<PluginState>,
}

/// When a quarantine ended by itself, and how long it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lift {
    at: Timestamp,
    length: Duration,
    relapses: u32,
}

/// How a plugin does. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginHealth {
    /// Where it is.
    pub state: PluginState,
    /// Failed fingerprints in a row.
    pub failures: u32,
    /// What went wrong last.
    pub last_error: Option<PluginFailure>,
    /// Why it gets no calls, in [`PluginState::Quarantined`].
    pub quarantine: Option<Quarantine>,
    /// How often it was put into quarantine.
    pub quarantines: u64,
    strikes: Strikes,
    last_lift: Option<Lift>,
}

impl PluginHealth {
    /// Take in what happened.
    pub fn step(
        &mut self,
        policy: &FailurePolicy,
        now: Timestamp,
        event: PluginEvent,
    ) -> PolicyEffect {
        let before = self.state;
        let retry_after = match event {
            PluginEvent::Fingerprinted => self.answered(now),
            PluginEvent::FingerprintFailed(reason) => self.not_answered(policy, now, reason),
            PluginEvent::Strike { task, config, reason } => {
                self.strike(policy, now, task.as_ref(), config, reason);
                None
            }
            PluginEvent::Lifted => {
                if self.quarantine.take().is_some() {
                    self.state = PluginState::Starting;
                }
                self.last_lift = None;
                self.failures = 0;
                self.strikes = Strikes::default();
                None
            }
            PluginEvent::Restored(mut quarantine) => {
                quarantine.take_the_future_as(now);
                let held = quarantine.until.map(|until| until.since(now).max(PROBE_WAIT_MIN));
                self.quarantine = Some(quarantine);
                self.state = PluginState::Quarantined;
                held
            }
        };
        let turned = (self.state != before).then_some(self.state);
        PolicyEffect { retry_after, turned }
    }

    fn answered(&mut self, now: Timestamp) -> Option<Duration> {
        if let Some(quarantine) = &self.quarantine {
            if !quarantine.due(now) {
                // Asked before it came here.
                return self.held(now);
            }
            let until = quarantine.until.unwrap_or(now);
            let length = until.since(quarantine.since);
            self.last_lift = Some(Lift { at: now, length, relapses: quarantine.relapses });
            self.quarantine = None;
            self.strikes.forgive();
        }
        self.state = PluginState::Running;
        self.failures = 0;
        None
    }

    fn not_answered(
        &mut self,
        policy: &FailurePolicy,
        now: Timestamp,
        reason: String,
    ) -> Option<Duration> {
        let Some(quarantine) = &mut self.quarantine else {
            let wait = back_off(policy, self.failures);
            self.state = PluginState::BackingOff;
            self.failures = self.failures.saturating_add(1);
            self.remember(now, reason);
            return Some(wait);
        };
        if quarantine.due(now) {
            quarantine.relapses = quarantine.relapses.saturating_add(1);
            quarantine.since = now;
            quarantine.until = until(policy, quarantine.relapses, now);
            quarantine.reason = cut(format!("it was tried again and failed: {reason}"));
            self.remember(now, reason);
        }
        self.held(now)
    }

    /// How long the quarantine still lasts.
    fn held(&self, now: Timestamp) -> Option<Duration> {
        let until = self.quarantine.as_ref()?.until?;
        Some(until.since(now).max(PROBE_WAIT_MIN))
    }

    fn strike(
        &mut self,
        policy: &FailurePolicy,
        now: Timestamp,
        task: Option<&TaskKey>,
        config: Option<u64>,
        reason: String,
    ) {
        let window = policy.strike_window;
        match task {
            Some(task) => self.strikes.of_task(window, now, task, config, &cut(reason.clone())),
            None => self.strikes.own(window, now),
        }
        let weight = self.strikes.weight(window, now);
        if self.quarantine.is_none() && weight >= policy.strikes_max as usize {
            let relapses = self.relapses(policy, now);
            let why = format!(
                "{weight} strikes within {}, the last: {reason}",
                humantime::format_duration(window)
            );
            let until = until(policy, relapses, now);
            self.quarantine = Some(Quarantine { since: now, until, reason: cut(why), relapses });
            self.quarantines = self.quarantines.saturating_add(1);
            self.state = PluginState::Quarantined;
        }
        self.remember(now, reason);
    }

    /// How often in a row it came here, when it comes now.
    fn relapses(&self, policy: &FailurePolicy, now: Timestamp) -> u32 {
        let soon = |lift: &Lift| now.since(lift.at) < policy.strike_window.max(lift.length);
        let lift = self.last_lift.filter(soon);
        lift.map_or(0, |lift| lift.relapses.saturating_add(1))
    }

    /// Strikes that are not forgotten, those that count against a task alone included.
    #[must_use]
    pub fn strikes(&self, policy: &FailurePolicy, now: Timestamp) -> usize {
        self.strikes.all(policy.strike_window, now)
    }

    /// What of them counts towards the quarantine.
    #[must_use]
    pub fn weight(&self, policy: &FailurePolicy, now: Timestamp) -> usize {
        self.strikes.weight(policy.strike_window, now)
    }

    /// Why the task is not to be started with this configuration, if so.
    #[must_use]
    pub fn poisoned(
        &self,
        policy: &FailurePolicy,
        now: Timestamp,
        task: &TaskKey,
        config: u64,
    ) -> Option<Poisoned> {
        let most = policy.strikes_max as usize;
        self.strikes.poisoned(policy.strike_window, most, now, task, config)
    }

    /// The tasks with strikes that are not forgotten, and how many.
    #[must_use]
    pub fn tasks(
        &self,
        policy: &FailurePolicy,
        now: Timestamp,
    ) -> std::collections::BTreeMap<TaskKey, usize> {
        self.strikes.tasks(policy.strike_window, now)
    }

    /// Nothing stands against it or any task.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.quarantine.is_none() && self.strikes.is_empty()
    }

    fn remember(&mut self, at: Timestamp, reason: String) {
        self.last_error = Some(PluginFailure { at, reason: cut(reason) });
    }
}

fn cut(text: String) -> String {
    shown::cut(text, PLUGIN_MESSAGE_BYTES_MAX)
}

/// When a quarantine that begins now ends.
fn until(policy: &FailurePolicy, relapses: u32, now: Timestamp) -> Option<Timestamp> {
    let QuarantineFor::Time(first) = policy.quarantine else { return None };
    let length = first.saturating_mul(1 << relapses.min(16)).min(QUARANTINE_MAX.max(first));
    Some(now.plus(length))
}

/// The wait after one more failure: doubles with each in a row, up to the bound.
fn back_off(policy: &FailurePolicy, failures: u32) -> Duration {
    let wait = policy.retry_first.saturating_mul(1 << failures.min(16));
    wait.min(policy.retry_max.max(policy.retry_first))
}

/// Between half a wait and the whole: plugins that failed for one reason do not come back at one
/// moment. `random` is any number.
#[must_use]
pub fn jittered(wait: Duration, random: u64) -> Duration {
    let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    let half = nanos / 2;
    let part = (u128::from(random) * (u128::from(nanos - half) + 1)) >> 64;
    Duration::from_nanos(half.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)))
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
