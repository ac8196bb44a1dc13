//! Decides on the state of a plugin: when it is asked again, and when it is not called any more.
//! Pure, without a clock or I/O.
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
//! A *strike* is a call that trapped, hung, broke a limit or answered against the rules. A plugin
//! that says "I cannot" in the way the interface has for it earns none, but a fingerprint with that
//! answer has failed as well. Strikes of calls about one task count against that task:
//! [`super::strikes`]. A plugin that is put into quarantine again soon after one ended has
//! relapsed, and the quarantine is twice as long.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::strikes::{PoisonedTask, Strikes, TaskKey};
pub use ostler_model::config::{FailurePolicy, QuarantineFor};
use ostler_model::limits::{PLUGIN_MESSAGE_BYTES_MAX, QUARANTINE_MAX};
use ostler_model::printable;
use ostler_model::time::Timestamp;

/// The shortest wait for the end of a quarantine, because the timers and the clock do not
/// agree exactly.
const PROBE_WAIT_MIN: Duration = Duration::from_millis(100);

/// The state of a plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginState {
    /// The plugin has not answered yet.
    #[default]
    Starting,
    /// Its last fingerprint was answered.
    Running,
    /// Its last fingerprint failed; it is asked again after a wait.
    BackingOff,
    /// It failed too often, and gets only the calls that end what it runs.
    Quarantined,
}

/// A failure of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFailure {
    /// The time of the failure, by the agent's clock.
    pub at: Timestamp,
    /// The reason as a text, cut to a bounded length.
    pub reason: String,
}

/// The reason and the duration of a quarantine, in which a plugin gets no calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// When the quarantine began.
    pub since: Timestamp,
    /// When the plugin is tried again; `None` means when a person lifts the quarantine.
    pub until: Option<Timestamp>,
    /// The reason of the quarantine.
    pub reason: String,
    /// How often in a row the plugin came back into quarantine, failed probes included.
    pub relapses: u32,
}

impl Quarantine {
    /// Whether the time of the quarantine is over, so that the plugin may be tried.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Shift a quarantine that lies in the future, because the clock was set back since it was
    /// recorded. It begins now and keeps its length.
    fn shift_to_now(&mut self, now: Timestamp) {
        if now < self.since {
            let length = |until: Timestamp| until.since(self.since);
            self.until = self.until.map(|until| now.plus(length(until)));
            self.since = now;
        }
    }
}

/// An event about a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginEvent {
    /// A fingerprint was answered.
    Fingerprinted,
    /// A fingerprint failed for any reason. If that was a strike, this event comes after it.
    FingerprintFailed(String),
    /// A call failed.
    Strike {
        /// The task that the call was about; `None` if it was about no task.
        task: Option<TaskKey>,
        /// The fingerprint of the task's configuration, for a start.
        config: Option<u64>,
        /// What went wrong, as a text.
        reason: String,
    },
    /// A person vouches for the plugin.
    Lifted,
    /// An earlier agent had the plugin in quarantine.
    Restored(Quarantine),
}

/// The consequences of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyEffect {
    /// Ask again after this time, without jitter. `None` after a failure, or in quarantine, means
    /// not before a person lifts the quarantine.
    pub retry_after: Option<Duration>,
    /// The state that the plugin came into now, if it changed.
    pub turned: Option<PluginState>,
}

/// The end of a quarantine that ended by itself, and how long it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lift {
    at: Timestamp,
    length: Duration,
    relapses: u32,
}

/// The health of a plugin. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginHealth {
    /// The state of the plugin.
    pub state: PluginState,
    /// The number of failed fingerprints in a row.
    pub failures: u32,
    /// The last failure.
    pub last_error: Option<PluginFailure>,
    /// The quarantine, in [`PluginState::Quarantined`].
    pub quarantine: Option<Quarantine>,
    /// How often the plugin was put into quarantine.
    pub quarantines: u64,
    strikes: Strikes,
    last_lift: Option<Lift>,
}

impl PluginHealth {
    /// Apply an event. Returns its consequences.
    pub fn step(
        &mut self,
        policy: &FailurePolicy,
        now: Timestamp,
        event: PluginEvent,
    ) -> PolicyEffect {
        let before = self.state;
        let retry_after = match event {
            PluginEvent::Fingerprinted => self.take_answer(now),
            PluginEvent::FingerprintFailed(reason) => self.take_failure(policy, now, reason),
            PluginEvent::Strike { task, config, reason } => {
                self.add_strike(policy, now, task.as_ref(), config, reason);
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
                quarantine.shift_to_now(now);
                let held = quarantine.until.map(|until| until.since(now).max(PROBE_WAIT_MIN));
                self.quarantine = Some(quarantine);
                self.state = PluginState::Quarantined;
                held
            }
        };
        let turned = (self.state != before).then_some(self.state);
        PolicyEffect { retry_after, turned }
    }

    fn take_answer(&mut self, now: Timestamp) -> Option<Duration> {
        if let Some(quarantine) = &self.quarantine {
            if !quarantine.is_over(now) {
                // The plugin was asked before the quarantine began.
                return self.quarantine_left(now);
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

    fn take_failure(
        &mut self,
        policy: &FailurePolicy,
        now: Timestamp,
        reason: String,
    ) -> Option<Duration> {
        let Some(quarantine) = &mut self.quarantine else {
            let wait = retry_wait(policy, self.failures);
            self.state = PluginState::BackingOff;
            self.failures = self.failures.saturating_add(1);
            self.remember(now, reason);
            return Some(wait);
        };
        if quarantine.is_over(now) {
            quarantine.relapses = quarantine.relapses.saturating_add(1);
            quarantine.since = now;
            quarantine.until = quarantine_end(policy, quarantine.relapses, now);
            quarantine.reason = cut(format!("it was tried again and failed: {reason}"));
            self.remember(now, reason);
        }
        self.quarantine_left(now)
    }

    /// How long the quarantine still lasts.
    fn quarantine_left(&self, now: Timestamp) -> Option<Duration> {
        let until = self.quarantine.as_ref()?.until?;
        Some(until.since(now).max(PROBE_WAIT_MIN))
    }

    fn add_strike(
        &mut self,
        policy: &FailurePolicy,
        now: Timestamp,
        task: Option<&TaskKey>,
        config: Option<u64>,
        reason: String,
    ) {
        let window = policy.strike_window;
        match task {
            Some(task) => {
                self.strikes.add_task_strike(window, now, task, config, &cut(reason.clone()))
            }
            None => self.strikes.add_plugin_strike(window, now),
        }
        let weight = self.strikes.weight(window, now);
        if self.quarantine.is_none() && weight >= policy.strikes_max as usize {
            let relapses = self.relapses(policy, now);
            let why = format!(
                "{weight} strikes within {}, the last: {reason}",
                humantime::format_duration(window)
            );
            let until = quarantine_end(policy, relapses, now);
            self.quarantine = Some(Quarantine { since: now, until, reason: cut(why), relapses });
            self.quarantines = self.quarantines.saturating_add(1);
            self.state = PluginState::Quarantined;
        }
        self.remember(now, reason);
    }

    /// How often in a row the plugin was in quarantine, if one begins now.
    fn relapses(&self, policy: &FailurePolicy, now: Timestamp) -> u32 {
        let soon = |lift: &Lift| now.since(lift.at) < policy.strike_window.max(lift.length);
        let lift = self.last_lift.filter(soon);
        lift.map_or(0, |lift| lift.relapses.saturating_add(1))
    }

    /// The number of strikes that are not forgotten, including those that count against a
    /// task alone.
    #[must_use]
    pub fn strikes(&self, policy: &FailurePolicy, now: Timestamp) -> usize {
        self.strikes.total_strikes(policy.strike_window, now)
    }

    /// How many of them count towards the quarantine.
    #[must_use]
    pub fn weight(&self, policy: &FailurePolicy, now: Timestamp) -> usize {
        self.strikes.weight(policy.strike_window, now)
    }

    /// Why the task must not be started with this configuration; `None` if it may.
    #[must_use]
    pub fn poisoned_task(
        &self,
        policy: &FailurePolicy,
        now: Timestamp,
        task: &TaskKey,
        config: u64,
    ) -> Option<PoisonedTask> {
        let most = policy.strikes_max as usize;
        self.strikes.poisoned_task(policy.strike_window, most, now, task, config)
    }

    /// The tasks with strikes that are not forgotten, and the number of these strikes.
    #[must_use]
    pub fn tasks(
        &self,
        policy: &FailurePolicy,
        now: Timestamp,
    ) -> std::collections::BTreeMap<TaskKey, usize> {
        self.strikes.tasks(policy.strike_window, now)
    }

    /// Whether there are no strikes against the plugin or any task.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.quarantine.is_none() && self.strikes.is_empty()
    }

    fn remember(&mut self, at: Timestamp, reason: String) {
        self.last_error = Some(PluginFailure { at, reason: cut(reason) });
    }
}

fn cut(text: String) -> String {
    printable::truncate_text(text, PLUGIN_MESSAGE_BYTES_MAX)
}

/// When a quarantine that begins now will end.
fn quarantine_end(policy: &FailurePolicy, relapses: u32, now: Timestamp) -> Option<Timestamp> {
    let QuarantineFor::Time(first) = policy.quarantine else { return None };
    let length = first.saturating_mul(1 << relapses.min(16)).min(QUARANTINE_MAX.max(first));
    Some(now.plus(length))
}

/// The wait after one more failure. It doubles with each failure in a row, up to the limit.
fn retry_wait(policy: &FailurePolicy, failures: u32) -> Duration {
    let wait = policy.retry_first.saturating_mul(1 << failures.min(16));
    wait.min(policy.retry_max.max(policy.retry_first))
}

/// A random time between half the wait and the whole, so that plugins that failed for one reason do
/// not come back at the same moment. `random` is any number.
#[must_use]
pub fn jitter_wait(wait: Duration, random: u64) -> Duration {
    let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    let half = nanos / 2;
    let part = (u128::from(random) * (u128::from(nanos - half) + 1)) >> 64;
    Duration::from_nanos(half.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)))
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
