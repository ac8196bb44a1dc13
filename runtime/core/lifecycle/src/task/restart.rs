//! The restart tracker decides whether a task that ended is started again, and when.
//!
//! ```text
//! Ending ─ killed ───────────────────────────────► Killed
//!        ─ asked for (not a failure) ────────────► Restart now, not counted
//!        ─ attempts = 0 ─────────────────────────► Terminated (ended well) | NotRestarting
//!        ─ window over? count := 0 ─ count += 1
//!              ├ start error, unrecoverable ─────► NotRestarting
//!              ├ ended well, kind runs once ─────► Terminated
//!              ├ count > attempts ─ mode fail ───► NotRestarting
//!              │                  ─ mode delay ──► Restart after the rest of the interval
//!              └ else ───────────────────────────► Restart after delay + up to a quarter
//! ```
//! Pure: time and randomness are arguments. The tracker is small and serialisable, because it must
//! be stored with the task: a restarted agent must not hand out a fresh budget.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use ostler_model::job::{JobKind, Lifecycle, LifecycleHook, RestartMode, RestartPolicy};
use ostler_model::planted::planted;
use ostler_model::time::Timestamp;
use ostler_text::duration::short_duration;

/// Shortest wait before a counted restart: a timer of zero would fire at once.
const DELAY_MIN: Duration = Duration::from_nanos(1);

/// Restarts counted in the current window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartTracker {
    count: u32,
    window_start: Timestamp,
}

/// How a task ended. Each question to the tracker has exactly one ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The task was killed on purpose.
    Killed,
    /// The task did not start: a prestart hook or the driver failed.
    StartFailed {
        /// A later start may succeed.
        recoverable: bool,
    },
    /// The task ran and ended by itself.
    Exited {
        /// Code 0, no signal, no error.
        success: bool,
    },
    /// Somebody asked for a restart and the task was stopped for it.
    RestartTriggered {
        /// True for a failed health check: counts like a failing exit. False for a person.
        failure: bool,
    },
}

/// What to do with a task that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartDecision {
    /// Start the task again.
    Restart {
        /// Wait before the start.
        delay: Duration,
        /// Text of the `Restarting` event; empty where the request has its own text.
        reason: String,
        /// The restart used up one attempt.
        counted: bool,
    },
    /// Do not start the task again; it counts as failed.
    NotRestarting {
        /// Text of the `Not Restarting` event.
        reason: String,
    },
    /// Do not start the task again; it ended as it should.
    Terminated {
        /// One sentence on why the task is not started again.
        reason: String,
    },
    /// The task was killed, so there is nothing to decide.
    Killed,
}

impl RestartTracker {
    /// A tracker whose first window starts now.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { count: 0, window_start: now }
    }

    /// Attempts used in the current window.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Start of the current window.
    #[must_use]
    pub fn window_start(&self) -> Timestamp {
        self.window_start
    }

    /// The longest wait that the last decision can have asked for.
    #[must_use]
    pub fn longest_delay(&self, policy: &RestartPolicy) -> Duration {
        match policy.mode {
            RestartMode::Delay if self.count > policy.attempts => policy.interval,
            _ => with_jitter(policy.delay, u64::MAX).max(DELAY_MIN),
        }
    }

    /// Decide what becomes of a task that ended, and count the attempt.
    ///
    /// `on_success_restarts` comes from [`restarts_on_success`]; `jitter` is a random number over
    /// the whole range of `u64`. Each call answers one ending; nothing is remembered but the count
    /// and the window.
    pub fn decide(
        &mut self,
        ending: Ending,
        policy: &RestartPolicy,
        on_success_restarts: bool,
        now: Timestamp,
        jitter: u64,
    ) -> RestartDecision {
        match ending {
            Ending::Killed => return RestartDecision::Killed,
            Ending::RestartTriggered { failure: false } => {
                return RestartDecision::Restart {
                    delay: Duration::ZERO,
                    reason: String::new(),
                    counted: false,
                };
            }
            _ => {}
        }
        let success_is_final = ending == Ending::Exited { success: true } && !on_success_restarts;
        if policy.attempts == 0 {
            let reason = "Policy allows no restarts".to_owned();
            return if success_is_final {
                RestartDecision::Terminated { reason }
            } else {
                RestartDecision::NotRestarting { reason }
            };
        }
        self.count_attempt(policy, now);
        if ending == (Ending::StartFailed { recoverable: false }) {
            return RestartDecision::NotRestarting { reason: "Error was unrecoverable".to_owned() };
        }
        if success_is_final {
            return RestartDecision::Terminated {
                reason: "Restart unnecessary as task terminated successfully".to_owned(),
            };
        }
        self.within_policy(policy, now, jitter)
    }

    fn count_attempt(&mut self, policy: &RestartPolicy, now: Timestamp) {
        // The clock was set back while no agent ran: the window cannot have started later than now.
        // Keeping the old start would freeze the budget for as long as the jump was.
        self.window_start = self.window_start.min(now);
        if now.since(self.window_start) > policy.interval {
            self.count = 0;
            self.window_start = now;
        }
        self.count = self.count.saturating_add(u32::from(!planted("attempts-not-counted")));
    }

    fn within_policy(
        &self,
        policy: &RestartPolicy,
        now: Timestamp,
        jitter: u64,
    ) -> RestartDecision {
        if self.count <= policy.attempts {
            return RestartDecision::Restart {
                delay: with_jitter(policy.delay, jitter).max(DELAY_MIN),
                reason: "Restart within policy".to_owned(),
                counted: true,
            };
        }
        match policy.mode {
            RestartMode::Fail => RestartDecision::NotRestarting {
                reason: format!(
                    "Exceeded allowed attempts {} in interval {} and mode is \"fail\"",
                    policy.attempts,
                    short_duration(policy.interval)
                ),
            },
            RestartMode::Delay => RestartDecision::Restart {
                delay: policy.interval.saturating_sub(now.since(self.window_start)).max(DELAY_MIN),
                reason: "Exceeded allowed attempts, applying a delay".to_owned(),
                counted: true,
            },
        }
    }
}

/// Does a successful exit of such a task lead to a restart? Not for work that runs to completion:
/// batch jobs, poststop tasks, and prestart and poststart tasks that are no sidecars.
#[must_use]
pub fn restarts_on_success(kind: JobKind, lifecycle: Option<Lifecycle>) -> bool {
    if kind.runs_to_completion() {
        return false;
    }
    match lifecycle {
        None => true,
        Some(Lifecycle { hook: LifecycleHook::Poststop, .. }) => false,
        Some(Lifecycle { hook: LifecycleHook::Prestart | LifecycleHook::Poststart, sidecar }) => {
            sidecar
        }
    }
}

/// `delay` plus a random part below a quarter of it, so that tasks that failed together do
/// not start together.
fn with_jitter(delay: Duration, jitter: u64) -> Duration {
    let quarter = u64::try_from((delay / 4).as_nanos()).unwrap_or(u64::MAX);
    let extra = (u128::from(quarter) * u128::from(jitter)) >> 64;
    delay.saturating_add(Duration::from_nanos(u64::try_from(extra).unwrap_or(quarter)))
}

#[cfg(test)]
#[path = "restart_tests.rs"]
mod tests;
