//! One plugin's counts and health, as calls and fingerprint loops report them.
//!
//! ```text
//! Caller ─ every call ─► metrics (atomics)      ─┐
//!        └ a failed one ─► policy: a strike      ├─► PluginMeter::report ─► status
//! Refresher ─ each fingerprint ─► policy ─ wait ─┘
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::metrics::{FunctionStats, Metrics, Moved};
use super::policy::{FailurePolicy, PluginEvent, PluginFailure, PluginHealth, PluginState};
use crate::clock::{Clock, Timestamp};

/// See the module.
#[derive(Debug)]
pub struct PluginMeter {
    policy: FailurePolicy,
    clock: Clock,
    metrics: Metrics,
    /// Processor time of the guest.
    cpu_nanos: AtomicU64,
    /// When a call last answered; zero: never.
    last_ok: AtomicU64,
    health: Mutex<PluginHealth>,
    /// When it is asked again; absent: only when a watch fires.
    next_check: Mutex<Option<Timestamp>>,
}

/// How a plugin does, to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginActivity {
    /// Where it is.
    pub state: PluginState,
    /// Calls that failed lately, see [`FailurePolicy::strike_window`].
    pub strikes: usize,
    /// Fingerprints that failed in a row.
    pub failures_in_a_row: u32,
    /// What went wrong last, also when it works again.
    pub last_error: Option<PluginFailure>,
    /// When a call last answered.
    pub last_ok: Option<Timestamp>,
    /// When it is asked again; absent: only when what it watches changes.
    pub next_check: Option<Timestamp>,
    /// Processor time of its code, nanoseconds.
    pub cpu_nanos: u64,
    /// What its calls cost, by function; those never called are absent.
    pub calls: BTreeMap<String, FunctionStats>,
}

impl PluginMeter {
    /// A meter for a plugin that has not been called.
    #[must_use]
    pub fn new(policy: FailurePolicy, clock: Clock) -> Self {
        Self {
            policy,
            clock,
            metrics: Metrics::default(),
            cpu_nanos: AtomicU64::new(0),
            last_ok: AtomicU64::new(0),
            health: Mutex::default(),
            next_check: Mutex::default(),
        }
    }

    /// A call ended, well or not.
    pub(super) fn ended(&self, call: &str, took: Duration, cpu: Duration, moved: Moved) {
        self.metrics.ended(call, took, moved);
        let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.cpu_nanos.fetch_add(cpu, Ordering::Relaxed);
    }

    /// It answered, if only that it cannot.
    pub(super) fn answered(&self) {
        self.last_ok.store(self.clock.now().nanos(), Ordering::Relaxed);
    }

    /// It failed: a strike.
    pub(super) fn failed(&self, call: &str, error: &impl std::fmt::Display) {
        self.metrics.failed(call);
        let event = PluginEvent::Strike(format!("{call}: {error}"));
        self.health().step(&self.policy, self.clock.now(), event);
    }

    /// A fingerprint was answered.
    pub(super) fn fingerprinted(&self) {
        self.health().step(&self.policy, self.clock.now(), PluginEvent::Fingerprinted);
    }

    /// A fingerprint failed: how long to wait before the next, jitter not counted.
    pub(super) fn fingerprint_failed(&self, reason: String) -> Duration {
        let event = PluginEvent::FingerprintFailed(reason);
        let effect = self.health().step(&self.policy, self.clock.now(), event);
        effect.retry_after.unwrap_or(self.policy.retry_max)
    }

    /// When it will be asked again.
    pub(super) fn due(&self, after: Option<Duration>) {
        let now = self.clock.now().nanos();
        let nanos = |after: Duration| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let due = after.map(|after| Timestamp::from_nanos(now.saturating_add(nanos(after))));
        *self.next_check.lock().unwrap_or_else(PoisonError::into_inner) = due;
    }

    /// How it does now.
    #[must_use]
    pub fn report(&self) -> PluginActivity {
        let health = self.health().clone();
        let last_ok = self.last_ok.load(Ordering::Relaxed);
        PluginActivity {
            state: health.state,
            strikes: health.strikes(&self.policy, self.clock.now()),
            failures_in_a_row: health.failures,
            last_error: health.last_error,
            last_ok: (last_ok > 0).then(|| Timestamp::from_nanos(last_ok)),
            next_check: *self.next_check.lock().unwrap_or_else(PoisonError::into_inner),
            cpu_nanos: self.cpu_nanos.load(Ordering::Relaxed),
            calls: self.metrics.all(),
        }
    }

    fn health(&self) -> MutexGuard<'_, PluginHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
