//! The counts and the health of one plugin, as calls and fingerprint loops report them.
//!
//! ```text
//! Caller ─ may it be called? ◄─ policy: quarantine, poisonous tasks
//!        ├ every call ─► metrics (atomics)       ─┐
//!        └ a failed one ─► policy: a strike       ├─► PluginMeter::report ─► status
//! Refresher ─ each fingerprint ─► policy ─ wait  ─┘
//!           ◄─ woken when a quarantine begins or is lifted
//! ```
//! A plugin in quarantine gets only the calls that running tasks need to end (`ENDING`). The host
//! ends processes without it anyway if these calls fail too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::metrics::{BytesMoved, FunctionMeters, FunctionStats};
use super::policy::{
    FailurePolicy, PluginEvent, PluginFailure, PluginHealth, PluginState, PolicyEffect, Quarantine,
};
use super::strikes::TaskKey;
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::ports::PluginCallError;

/// The functions that are still called in quarantine, so that running tasks end in order: how to
/// stop a task, what its exit means, and to forget it.
const ENDING: [&str; 6] = ["stop", "kill", "exited", "inspect", "destroy", "release"];

/// The meter of one plugin. See the module.
#[derive(Debug)]
pub struct PluginMeter {
    /// The name of the plugin's block, for messages.
    name: String,
    policy: FailurePolicy,
    clock: Clock,
    metrics: FunctionMeters,
    /// The processor time of the guest, in nanoseconds.
    cpu_nanos: AtomicU64,
    /// The most linear memory of one call, in bytes.
    peak_memory: AtomicU64,
    /// The most host calls of one call.
    peak_host_calls: AtomicU64,
    /// The time of day at which a call was last answered, in nanoseconds; zero means never.
    last_ok: AtomicU64,
    health: Mutex<PluginHealth>,
    /// Whether there are strikes against the plugin or a task, so that calls must check
    /// `health` first.
    suspect: AtomicBool,
    /// Signals that the plugin is to be asked at once, because a quarantine began or was lifted.
    ask_now: Notify,
    /// The listener for changes of a quarantine.
    told: OnceLock<Arc<Notify>>,
    /// The number of strikes so far, forgotten ones included.
    struck: AtomicU64,
    /// Signals that `struck` has grown.
    struck_now: Notify,
    /// Whether the last failed fingerprint was counted as a strike, and is still to be recorded as
    /// a failure.
    fingerprint_struck: AtomicBool,
    /// The tasks whose strikes are not counted in `struck`.
    excused: OnceLock<BTreeSet<TaskKey>>,
    /// When the plugin is asked again; `None` means only when a watch fires.
    next_check: Mutex<Option<Timestamp>>,
}

/// The state and the counts of a plugin, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginActivity {
    /// The state of the plugin, such as running or in quarantine.
    pub state: PluginState,
    /// The number of calls that failed recently, see [`FailurePolicy::strike_window`].
    pub strikes: usize,
    /// How many of them count towards the quarantine. The strikes of one task alone do not.
    #[serde(default)]
    pub strikes_counted: usize,
    /// The number of counted strikes at which the plugin is put into quarantine.
    #[serde(default)]
    pub strikes_max: u32,
    /// The tasks about which calls failed recently, and how many.
    #[serde(default)]
    pub strikes_by_task: BTreeMap<String, usize>,
    /// The quarantine, if the plugin gets no calls.
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    /// How often the plugin was put into quarantine since the agent started.
    #[serde(default)]
    pub quarantines: u64,
    /// The number of fingerprints that failed in a row.
    pub failures_in_a_row: u32,
    /// The last failure, also if the plugin works again.
    pub last_error: Option<PluginFailure>,
    /// When a call was last answered.
    pub last_ok: Option<Timestamp>,
    /// When the plugin is asked again; `None` means only when something that it watches changes.
    pub next_check: Option<Timestamp>,
    /// The processor time of its code, in nanoseconds.
    pub cpu_nanos: u64,
    /// The most linear memory of one call, in bytes.
    #[serde(default)]
    pub peak_memory_bytes: u64,
    /// The most host calls of one call, WASI included.
    #[serde(default)]
    pub peak_host_calls: u64,
    /// The costs of its calls, by function. Functions that were never called are left out.
    pub calls: BTreeMap<String, FunctionStats>,
}

/// How long to wait before the next fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FingerprintWait {
    /// As long as the plugin wants.
    Free,
    /// About this long, because the fingerprint failed.
    BackOff(Duration),
    /// In quarantine: exactly this long, or until it is lifted.
    Until(Option<Duration>),
}

impl PluginMeter {
    /// A meter for a plugin that has not been called. `name` is that of its block.
    #[must_use]
    pub fn new(name: &str, policy: FailurePolicy, clock: Clock) -> Self {
        Self {
            name: name.to_owned(),
            policy,
            clock,
            metrics: FunctionMeters::default(),
            cpu_nanos: AtomicU64::new(0),
            peak_memory: AtomicU64::new(0),
            peak_host_calls: AtomicU64::new(0),
            last_ok: AtomicU64::new(0),
            health: Mutex::default(),
            suspect: AtomicBool::new(false),
            ask_now: Notify::new(),
            told: OnceLock::new(),
            struck: AtomicU64::new(0),
            struck_now: Notify::new(),
            fingerprint_struck: AtomicBool::new(false),
            excused: OnceLock::new(),
            next_check: Mutex::default(),
        }
    }

    /// Check that this function may be called now. For a call that starts a task, `task` has the
    /// task and the fingerprint of its configuration.
    ///
    /// # Errors
    /// [`PluginCallError::NotReady`] in quarantine; [`PluginCallError::Fatal`] for a task whose
    /// configuration made the driver fail again and again.
    pub fn admit(
        &self,
        call: &'static str,
        task: Option<(&TaskKey, u64)>,
    ) -> Result<(), PluginCallError> {
        if !self.is_suspect() {
            return Ok(());
        }
        let (health, now) = (self.health(), self.clock.now());
        if let Some(quarantine) = &health.quarantine {
            let probe = call == "fingerprint" && quarantine.is_over(now);
            if !probe && !ENDING.contains(&call) {
                let reason = self.quarantine_text(quarantine);
                return Err(PluginCallError::NotReady { name: self.name.clone(), reason });
            }
        }
        let poisoned =
            task.and_then(|(key, config)| health.poisoned_task(&self.policy, now, key, config));
        match poisoned {
            None => Ok(()),
            Some(poisoned) => Err(PluginCallError::Fatal(format!(
                "plugin {} failed {} times on this task with this configuration and is not asked \
                 to start it before {}: {}; change the task's config",
                self.name, poisoned.strikes, poisoned.until, poisoned.reason
            ))),
        }
    }

    /// Whether there are strikes against the plugin or a task.
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Acquire)
    }

    fn quarantine_text(&self, quarantine: &Quarantine) -> String {
        let end = match quarantine.until {
            Some(until) => format!("until {until}"),
            None => format!("until `ostler plugin lift {}`", self.name),
        };
        format!("in quarantine since {}, {end}: {}", quarantine.since, quarantine.reason)
    }

    /// Record that a call ended, with or without success.
    pub fn record_end(&self, call: &str, took: Duration, cpu: Duration, moved: BytesMoved) {
        self.metrics.record_end(call, took, moved);
        let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.cpu_nanos.fetch_add(cpu, Ordering::Relaxed);
    }

    /// Record what a call used inside the sandbox. Calls that were given up are not recorded.
    pub fn record_peaks(&self, memory_bytes: u64, host_calls: u64) {
        raise(&self.peak_memory, memory_bytes);
        raise(&self.peak_host_calls, host_calls);
    }

    /// Record that the plugin answered, even if only with a refusal.
    pub fn record_answer(&self) {
        self.last_ok.store(self.clock.now().nanos(), Ordering::Relaxed);
    }

    /// Record that a call failed. It is a strike, against the task that the call was about, if
    /// there is one.
    pub fn record_failure(
        &self,
        call: &str,
        task: Option<(TaskKey, Option<u64>)>,
        error: &impl std::fmt::Display,
    ) {
        self.metrics.record_failure(call);
        let excused = |(key, _): &(TaskKey, Option<u64>)| {
            self.excused.get().is_some_and(|excused| excused.contains(key))
        };
        let excused = task.as_ref().is_some_and(excused);
        if call == "fingerprint" {
            self.fingerprint_struck.store(true, Ordering::Relaxed);
        }
        let (task, config) = task.map_or((None, None), |(task, config)| (Some(task), config));
        self.step(PluginEvent::Strike { task, config, reason: format!("{call}: {error}") });
        if !excused {
            self.count();
        }
    }

    fn count(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
        self.struck_now.notify_one();
    }

    /// Record that a fingerprint was answered. In quarantine, the result says how long to
    /// wait nevertheless.
    pub fn record_fingerprint(&self) -> FingerprintWait {
        let effect = self.step(PluginEvent::Fingerprinted);
        match self.health().quarantine {
            Some(_) => FingerprintWait::Until(effect.retry_after),
            None => FingerprintWait::Free,
        }
    }

    /// Record that a fingerprint failed. Returns how long to wait before the next.
    pub fn record_fingerprint_failure(&self, reason: String) -> FingerprintWait {
        let effect = self.step(PluginEvent::FingerprintFailed(reason));
        if !self.fingerprint_struck.swap(false, Ordering::Relaxed) {
            self.count();
        }
        match self.health().quarantine {
            Some(_) => FingerprintWait::Until(effect.retry_after),
            None => FingerprintWait::BackOff(effect.retry_after.unwrap_or(self.policy.retry_max)),
        }
    }

    /// Lift the quarantine, because a person vouches for the plugin, and have it asked at once.
    /// Returns `false` if it is not in quarantine. The strikes against it and its tasks are
    /// forgotten in any case.
    pub fn lift(&self) -> bool {
        let lifted = self.step(PluginEvent::Lifted).turned.is_some();
        if lifted {
            self.ask_now.notify_one();
        }
        lifted
    }

    /// Restore the quarantine in which an earlier agent had the plugin.
    pub fn restore(&self, quarantine: Quarantine) {
        self.step(PluginEvent::Restored(quarantine));
    }

    /// Set the listener for changes of a quarantine. Only the first one counts.
    pub fn set_listener(&self, told: Arc<Notify>) {
        let _second = self.told.set(told);
    }

    /// The quarantine, if the plugin is in one.
    #[must_use]
    pub fn quarantine(&self) -> Option<Quarantine> {
        self.health().quarantine.clone()
    }

    /// Have the plugin asked out of turn.
    pub fn request_check(&self) {
        self.ask_now.notify_one();
    }

    /// The number of failed calls so far, forgotten ones included, except calls about excused
    /// tasks, and of fingerprints that failed in any way.
    #[must_use]
    pub fn strike_count(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// Wait until [`PluginMeter::struck`] grows. Only one task may wait at a time.
    pub async fn wait_strike(&self) {
        self.struck_now.notified().await;
    }

    /// The last failure.
    #[must_use]
    pub fn last_error(&self) -> Option<PluginFailure> {
        self.health().last_error.clone()
    }

    /// The tasks about which calls failed recently.
    #[must_use]
    pub fn struck_tasks(&self) -> BTreeSet<TaskKey> {
        self.health().tasks(&self.policy, self.clock.now()).into_keys().collect()
    }

    /// Excuse these tasks: their strikes were there before and do not count in
    /// [`PluginMeter::struck`].
    pub fn excuse_tasks(&self, tasks: BTreeSet<TaskKey>) {
        let _second = self.excused.set(tasks);
    }

    /// The failure policy from the plugin's block.
    #[must_use]
    pub const fn policy(&self) -> &FailurePolicy {
        &self.policy
    }

    /// Wait until the plugin is to be asked out of turn. Only one task may wait at a time.
    pub async fn wait_check_request(&self) {
        self.ask_now.notified().await;
    }

    fn step(&self, event: PluginEvent) -> PolicyEffect {
        let mut health = self.health();
        let before = health.quarantine.clone();
        let effect = health.step(&self.policy, self.clock.now(), event);
        self.suspect.store(!health.is_clean(), Ordering::Release);
        let quarantine = health.quarantine.clone();
        drop(health);
        if let (true, Some(told)) = (before != quarantine, self.told.get()) {
            told.notify_one();
        }
        let plugin = self.name.as_str();
        match (effect.turned, quarantine) {
            (Some(PluginState::Quarantined), Some(quarantine)) => {
                tracing::error!(plugin, "{}", self.quarantine_text(&quarantine));
                self.ask_now.notify_one();
            }
            (Some(PluginState::Running), _) => tracing::info!(plugin, "the plugin runs"),
            (Some(PluginState::Starting), _) => tracing::info!(plugin, "quarantine lifted"),
            (Some(PluginState::BackingOff), _) => {
                tracing::warn!(plugin, "the plugin is backing off")
            }
            _ => {}
        }
        effect
    }

    /// Set the time at which the plugin will be asked again, as a duration from now.
    pub fn set_next_check(&self, after: Option<Duration>) {
        let now = self.clock.now();
        let due = after.map(|after| now.plus(after));
        *self.next_check.lock().unwrap_or_else(PoisonError::into_inner) = due;
    }

    /// The present state and counts.
    #[must_use]
    pub fn report(&self) -> PluginActivity {
        let (health, now) = (self.health().clone(), self.clock.now());
        let by_task = health.tasks(&self.policy, now).into_iter();
        let last_ok = self.last_ok.load(Ordering::Relaxed);
        PluginActivity {
            state: health.state,
            strikes: health.strikes(&self.policy, now),
            strikes_counted: health.weight(&self.policy, now),
            strikes_max: self.policy.strikes_max,
            strikes_by_task: by_task.map(|(task, count)| (task.to_string(), count)).collect(),
            quarantine: health.quarantine,
            quarantines: health.quarantines,
            failures_in_a_row: health.failures,
            last_error: health.last_error,
            last_ok: (last_ok > 0).then(|| Timestamp::from_nanos(last_ok)),
            next_check: *self.next_check.lock().unwrap_or_else(PoisonError::into_inner),
            cpu_nanos: self.cpu_nanos.load(Ordering::Relaxed),
            peak_memory_bytes: self.peak_memory.load(Ordering::Relaxed),
            peak_host_calls: self.peak_host_calls.load(Ordering::Relaxed),
            calls: self.metrics.function_stats(),
        }
    }

    fn health(&self) -> MutexGuard<'_, PluginHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Raise a peak. Most calls raise nothing, and then nothing is written.
fn raise(peak: &AtomicU64, to: u64) {
    if peak.load(Ordering::Relaxed) < to {
        peak.fetch_max(to, Ordering::Relaxed);
    }
}
