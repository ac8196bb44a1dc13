//! How a plugin does, and when it is asked again: decisions without clock or I/O.
//!
//! ```text
//!            fingerprint answered                       fingerprint answered
//! Starting ──────────────────────► Running ◄──────────────────────────────────┐
//!    │                                │  fingerprint failed                    │
//!    └────────────────────────────────┴──────────────► BackingOff ─────────────┘
//!                                                        │  ▲ fingerprint failed:
//!                                                        └──┘ twice the wait, up to a bound
//! any call failed: a strike; a strike is forgotten after a time
//! ```
//! A *strike* is a call that trapped, hung, broke a limit or answered against the rules. A plugin that
//! says "I cannot" in the way the interface has for it earns none, but a fingerprint that ends so has
//! failed as well. A plugin is never given up.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{PLUGIN_MESSAGE_BYTES_MAX, PLUGIN_STRIKES_KEPT_MAX};
pub use crate::model::config::FailurePolicy;
use crate::model::time::Timestamp;

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
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFailure {
    /// When.
    pub at: Timestamp,
    /// What.
    pub reason: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginEvent {
    /// A fingerprint was answered.
    Fingerprinted,
    /// A fingerprint failed, for whatever reason. Comes after the strike, if it was one.
    FingerprintFailed(String),
    /// A call failed.
    Strike(String),
}

/// What follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Ask again after this time, jitter not counted.
    pub retry_after: Option<Duration>,
    /// It came into this state now.
    pub turned: Option<PluginState>,
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
    /// When the strikes were, oldest first.
    strikes: VecDeque<Timestamp>,
}

impl PluginHealth {
    /// Take in what happened.
    pub fn step(&mut self, policy: &FailurePolicy, now: Timestamp, event: PluginEvent) -> Effect {
        let before = self.state;
        let retry_after = match event {
            PluginEvent::Fingerprinted => {
                self.state = PluginState::Running;
                self.failures = 0;
                None
            }
            PluginEvent::FingerprintFailed(reason) => {
                let wait = back_off(policy, self.failures);
                self.state = PluginState::BackingOff;
                self.failures = self.failures.saturating_add(1);
                self.remember(now, reason);
                Some(wait)
            }
            PluginEvent::Strike(reason) => {
                self.remember(now, reason);
                self.forget(policy, now);
                if self.strikes.len() >= PLUGIN_STRIKES_KEPT_MAX {
                    self.strikes.pop_front();
                }
                self.strikes.push_back(now);
                None
            }
        };
        let turned = (self.state != before).then_some(self.state);
        Effect { retry_after, turned }
    }

    /// Strikes that are not forgotten.
    #[must_use]
    pub fn strikes(&self, policy: &FailurePolicy, now: Timestamp) -> usize {
        self.strikes.iter().filter(|at| counts(policy, **at, now)).count()
    }

    fn forget(&mut self, policy: &FailurePolicy, now: Timestamp) {
        self.strikes.retain(|at| counts(policy, *at, now));
    }

    fn remember(&mut self, at: Timestamp, mut reason: String) {
        if reason.len() > PLUGIN_MESSAGE_BYTES_MAX {
            let end = (0..=PLUGIN_MESSAGE_BYTES_MAX).rev().find(|at| reason.is_char_boundary(*at));
            reason.truncate(end.unwrap_or(0));
        }
        self.last_error = Some(PluginFailure { at, reason });
    }
}

/// A clock that was set back makes a strike look as if it came later: it counts then.
fn counts(policy: &FailurePolicy, at: Timestamp, now: Timestamp) -> bool {
    let age = Duration::from_nanos(now.nanos().saturating_sub(at.nanos()));
    age < policy.strike_window
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_nanos(secs * 1_000_000_000)
    }

    fn failed() -> PluginEvent {
        PluginEvent::FingerprintFailed("no".to_owned())
    }

    #[test]
    fn the_wait_doubles_with_each_failure_in_a_row_up_to_its_bound_and_an_answer_ends_the_row() {
        let policy = FailurePolicy::default();
        let mut health = PluginHealth::default();
        let mut wait = |event| health.step(&policy, at(1), event).retry_after;
        let row: Vec<_> = (0..9).map(|_| wait(failed()).unwrap().as_secs()).collect();
        assert_eq!(row, [1, 2, 4, 8, 16, 32, 64, 120, 120]);
        assert_eq!(wait(PluginEvent::Fingerprinted), None);
        assert_eq!(wait(failed()), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_plugin_turns_once_to_backing_off_and_once_back() {
        let policy = FailurePolicy::default();
        let mut health = PluginHealth::default();
        let mut turned = |event| health.step(&policy, at(1), event).turned;
        assert_eq!(turned(PluginEvent::Fingerprinted), Some(PluginState::Running));
        assert_eq!(turned(PluginEvent::Fingerprinted), None);
        assert_eq!(turned(PluginEvent::Strike("start".to_owned())), None, "it still answers");
        assert_eq!(turned(failed()), Some(PluginState::BackingOff));
        assert_eq!(turned(failed()), None);
        assert_eq!(turned(PluginEvent::Fingerprinted), Some(PluginState::Running));
    }

    #[test]
    fn a_strike_is_forgotten_after_its_time_and_the_last_error_is_not() {
        let window = Duration::from_secs(600);
        let policy = FailurePolicy { strike_window: window, ..FailurePolicy::default() };
        let mut health = PluginHealth::default();
        health.step(&policy, at(100), PluginEvent::Strike("trap".to_owned()));
        health.step(&policy, at(400), PluginEvent::Strike("hang".to_owned()));
        assert_eq!(health.strikes(&policy, at(500)), 2);
        assert_eq!(health.strikes(&policy, at(700)), 1);
        assert_eq!(health.strikes(&policy, at(1_000)), 0);
        assert_eq!(health.strikes(&policy, at(0)), 2, "the clock was set back");
        let error = health.last_error.unwrap();
        assert_eq!((error.at, &*error.reason), (at(400), "hang"));
    }

    #[test]
    fn strikes_are_counted_up_to_a_bound() {
        let policy = FailurePolicy::default();
        let mut health = PluginHealth::default();
        for _ in 0..2 * PLUGIN_STRIKES_KEPT_MAX {
            health.step(&policy, at(1), PluginEvent::Strike("trap".to_owned()));
        }
        assert_eq!(health.strikes(&policy, at(1)), PLUGIN_STRIKES_KEPT_MAX);
    }

    proptest! {
        #[test]
        fn no_history_makes_a_plugin_wait_beyond_its_bound_or_grow(
            events in prop::collection::vec((0u8..3, 0u64..100_000), 0..200),
            first in 1u64..100, max in 1u64..1_000
        ) {
            let policy = FailurePolicy {
                retry_first: Duration::from_secs(first),
                retry_max: Duration::from_secs(max),
                ..FailurePolicy::default()
            };
            let mut health = PluginHealth::default();
            let mut strikes = 0;
            for (kind, time) in events {
                let event = match kind {
                    0 => PluginEvent::Fingerprinted,
                    1 => failed(),
                    _ => PluginEvent::Strike("ä".repeat(PLUGIN_MESSAGE_BYTES_MAX)),
                };
                strikes += usize::from(kind == 2);
                let answered = event == PluginEvent::Fingerprinted;
                let effect = health.step(&policy, at(time), event);
                if let Some(wait) = effect.retry_after {
                    prop_assert!(wait >= Duration::from_secs(first));
                    prop_assert!(wait <= Duration::from_secs(max.max(first)));
                }
                prop_assert_eq!(health.state == PluginState::Running, answered
                    || (kind == 2 && health.failures == 0 && health.state == PluginState::Running));
                prop_assert!(health.strikes(&policy, at(time)) <= strikes.min(PLUGIN_STRIKES_KEPT_MAX));
                if let Some(error) = &health.last_error {
                    prop_assert!(error.reason.len() <= PLUGIN_MESSAGE_BYTES_MAX);
                }
            }
        }

        #[test]
        fn jitter_stays_between_half_the_wait_and_the_whole(millis in 0u64..200_000, random: u64) {
            let wait = Duration::from_millis(millis);
            let jittered = jittered(wait, random);
            prop_assert!(jittered >= wait / 2 && jittered <= wait, "{jittered:?} of {wait:?}");
        }
    }

    #[test]
    fn the_whole_range_of_the_jitter_is_used() {
        let wait = Duration::from_secs(2);
        assert_eq!(jittered(wait, 0), Duration::from_secs(1));
        assert_eq!(jittered(wait, u64::MAX), wait);
    }
}
