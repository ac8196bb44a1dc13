//! One plugin's counts and health, as calls and fingerprint loops report them.
//!
//! ```text
//! Caller ─ may it be called? ◄─ policy: quarantine, poisonous tasks
//!        ├ every call ─► metrics (atomics)       ─┐
//!        └ a failed one ─► policy: a strike       ├─► PluginMeter::report ─► status
//! Refresher ─ each fingerprint ─► policy ─ wait  ─┘
//!           ◄─ woken when a quarantine begins or is lifted
//! ```
//! A plugin in quarantine gets no calls but those that running tasks need to end (`ENDING`); the
//! host ends processes without it anyway, when these fail too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::metrics::{BytesMoved, FunctionStats, Metrics};
use super::policy::{
    FailurePolicy, PluginEvent, PluginFailure, PluginHealth, PluginState, PolicyEffect, Quarantine,
};
use super::strikes::TaskKey;
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::ports::PluginCallError;

/// What a plugin in quarantine is still asked, for what it runs to end in order: how to stop it, what
/// its exit means, and to forget it.
const ENDING: [&str; 6] = ["stop", "kill", "exited", "inspect", "destroy", "release"];

/// See the module.
#[derive(Debug)]
pub struct PluginMeter {
    /// Of its block, for messages.
    name: String,
    policy: FailurePolicy,
    clock: Clock,
    metrics: Metrics,
    /// Processor time of the guest.
    cpu_nanos: AtomicU64,
    /// Most linear memory of one call, bytes.
    peak_memory: AtomicU64,
    /// Most host calls of one call.
    peak_host_calls: AtomicU64,
    /// When a call last answered; zero: never.
    last_ok: AtomicU64,
    health: Mutex<PluginHealth>,
    /// Something stands against it or a task: calls look at `health` first.
    suspect: AtomicBool,
    /// To be asked at once: a quarantine began, or was lifted.
    ask_now: Notify,
    /// Who is to be told when something about a quarantine changes.
    told: OnceLock<Arc<Notify>>,
    /// Strikes so far, forgotten ones too.
    struck: AtomicU64,
    /// It grew.
    struck_now: Notify,
    /// The strike of a fingerprint whose failure is still to be told.
    fingerprint_struck: AtomicBool,
    /// Tasks whose strikes are not counted there.
    excused: OnceLock<BTreeSet<TaskKey>>,
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
    /// Of those: what counts towards the quarantine. The strikes of one task alone do not.
    #[serde(default)]
    pub strikes_counted: usize,
    /// With so many counted it is put into quarantine.
    #[serde(default)]
    pub strikes_max: u32,
    /// Tasks about which calls failed lately, and how many of them.
    #[serde(default)]
    pub strikes_by_task: BTreeMap<String, usize>,
    /// Why and for how long it gets no calls.
    #[serde(default)]
    pub quarantine: Option<Quarantine>,
    /// How often it was put into quarantine since the agent started.
    #[serde(default)]
    pub quarantines: u64,
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
    /// Most linear memory of one call, bytes.
    #[serde(default)]
    pub peak_memory_bytes: u64,
    /// Most host calls of one call, WASI included.
    #[serde(default)]
    pub peak_host_calls: u64,
    /// What its calls cost, by function; those never called are absent.
    pub calls: BTreeMap<String, FunctionStats>,
}

/// How long a fingerprint is not to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FingerprintWait {
    /// As the plugin wants.
    Free,
    /// It failed: about so long.
    BackOff(Duration),
    /// In quarantine: exactly so long, or until it is lifted.
    Until(Option<Duration>),
}

impl PluginMeter {
    /// A meter for a plugin that has not been called; `name` is that of its block.
    #[must_use]
    pub fn new(name: &str, policy: FailurePolicy, clock: Clock) -> Self {
        Self {
            name: name.to_owned(),
            policy,
            clock,
            metrics: Metrics::default(),
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

    /// May this function be called now? `task` and the fingerprint of its configuration where the
    /// call begins one.
    ///
    /// # Errors
    /// [`PluginCallError::NotReady`] in quarantine; [`PluginCallError::Fatal`] for a task whose
    /// configuration made the driver fail again and again.
    pub fn admit(
        &self,
        call: &'static str,
        task: Option<(&TaskKey, u64)>,
    ) -> Result<(), PluginCallError> {
        if !self.suspect() {
            return Ok(());
        }
        let (health, now) = (self.health(), self.clock.now());
        if let Some(quarantine) = &health.quarantine {
            let probe = call == "fingerprint" && quarantine.due(now);
            if !probe && !ENDING.contains(&call) {
                let reason = self.in_quarantine(quarantine);
                return Err(PluginCallError::NotReady { name: self.name.clone(), reason });
            }
        }
        let poisoned =
            task.and_then(|(key, config)| health.poisoned(&self.policy, now, key, config));
        match poisoned {
            None => Ok(()),
            Some(poisoned) => Err(PluginCallError::Fatal(format!(
                "plugin {} failed {} times on this task with this configuration and is not asked \
                 to start it before {}: {}; change the task's config",
                self.name, poisoned.strikes, poisoned.until, poisoned.reason
            ))),
        }
    }

    /// Does anything stand against it or a task?
    pub fn suspect(&self) -> bool {
        self.suspect.load(Ordering::Acquire)
    }

    fn in_quarantine(&self, quarantine: &Quarantine) -> String {
        let end = match quarantine.until {
            Some(until) => format!("until {until}"),
            None => format!("until `ostler plugin lift {}`", self.name),
        };
        format!("in quarantine since {}, {end}: {}", quarantine.since, quarantine.reason)
    }

    /// A call ended, well or not.
    pub fn ended(&self, call: &str, took: Duration, cpu: Duration, moved: BytesMoved) {
        self.metrics.ended(call, took, moved);
        let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        self.cpu_nanos.fetch_add(cpu, Ordering::Relaxed);
    }

    /// What a call used inside the sandbox; not heard of calls that were given up.
    pub fn used(&self, memory_bytes: u64, host_calls: u64) {
        raise(&self.peak_memory, memory_bytes);
        raise(&self.peak_host_calls, host_calls);
    }

    /// It answered, if only that it cannot.
    pub fn answered(&self) {
        self.last_ok.store(self.clock.now().nanos(), Ordering::Relaxed);
    }

    /// It failed: a strike, against the task that the call was about, if any.
    pub fn failed(
        &self,
        call: &str,
        task: Option<(TaskKey, Option<u64>)>,
        error: &impl std::fmt::Display,
    ) {
        self.metrics.failed(call);
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

    /// A fingerprint was answered. In quarantine: how long to wait nevertheless.
    pub fn fingerprinted(&self) -> FingerprintWait {
        let effect = self.step(PluginEvent::Fingerprinted);
        match self.health().quarantine {
            Some(_) => FingerprintWait::Until(effect.retry_after),
            None => FingerprintWait::Free,
        }
    }

    /// A fingerprint failed: how long to wait before the next.
    pub fn fingerprint_failed(&self, reason: String) -> FingerprintWait {
        let effect = self.step(PluginEvent::FingerprintFailed(reason));
        if !self.fingerprint_struck.swap(false, Ordering::Relaxed) {
            self.count();
        }
        match self.health().quarantine {
            Some(_) => FingerprintWait::Until(effect.retry_after),
            None => FingerprintWait::BackOff(effect.retry_after.unwrap_or(self.policy.retry_max)),
        }
    }

    /// A person vouches for it: it is asked at once. `false` when it is not in quarantine; what
    /// stood against it or a task is forgotten all the same.
    pub fn lift(&self) -> bool {
        let lifted = self.step(PluginEvent::Lifted).turned.is_some();
        if lifted {
            self.ask_now.notify_one();
        }
        lifted
    }

    /// An earlier agent had it in quarantine.
    pub fn restore(&self, quarantine: Quarantine) {
        self.step(PluginEvent::Restored(quarantine));
    }

    /// Whom to tell when something about a quarantine changes; the first one stays.
    pub fn tell(&self, told: Arc<Notify>) {
        let _second = self.told.set(told);
    }

    /// Why it gets no calls, if so.
    #[must_use]
    pub fn quarantine(&self) -> Option<Quarantine> {
        self.health().quarantine.clone()
    }

    /// Have it asked out of turn.
    pub fn ask_now(&self) {
        self.ask_now.notify_one();
    }

    /// Calls that failed so far, forgotten ones too, but for those about excused tasks; and
    /// fingerprints that failed in whatever way.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// Wait until [`PluginMeter::struck`] grows. One who waits at a time.
    pub async fn strikes(&self) {
        self.struck_now.notified().await;
    }

    /// What went wrong last.
    #[must_use]
    pub fn last_error(&self) -> Option<PluginFailure> {
        self.health().last_error.clone()
    }

    /// The tasks about which calls failed lately.
    #[must_use]
    pub fn struck_tasks(&self) -> BTreeSet<TaskKey> {
        self.health().tasks(&self.policy, self.clock.now()).into_keys().collect()
    }

    /// Strikes about these tasks are not [`PluginMeter::struck`]: they were there before.
    pub fn excuse(&self, tasks: BTreeSet<TaskKey>) {
        let _second = self.excused.set(tasks);
    }

    /// Its policy.
    #[must_use]
    pub const fn policy(&self) -> &FailurePolicy {
        &self.policy
    }

    /// Wait until it is to be asked out of turn. One who waits at a time.
    pub async fn asked_for(&self) {
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
                tracing::error!(plugin, "{}", self.in_quarantine(&quarantine));
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

    /// When it will be asked again.
    pub fn due(&self, after: Option<Duration>) {
        let now = self.clock.now();
        let due = after.map(|after| now.plus(after));
        *self.next_check.lock().unwrap_or_else(PoisonError::into_inner) = due;
    }

    /// How it does now.
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
            calls: self.metrics.all(),
        }
    }

    fn health(&self) -> MutexGuard<'_, PluginHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most calls raise nothing, and then nothing is written.
fn raise(peak: &AtomicU64, to: u64) {
    if peak.load(Ordering::Relaxed) < to {
        peak.fetch_max(to, Ordering::Relaxed);
    }
}
