//! The status of a check after its answers, and when the check restarts what it asks. Pure: no
//! clock, no I/O.
//!
//! ```text
//! answer ─► good (passing, warning)  in a row ≥ success_before_passing ──► that
//!        └► bad (critical)           in a row ≥ failures_before_critical ─► critical
//!                                    in a row ≥ failures_before_warning ──► warning, where that is sooner
//!           else it says what it said before
//!
//! what it says, after grace: unhealthy in a row = limit ─► restart; counted anew, with another grace
//! ```
//! A threshold of 0 counts as 1: the first answer decides.

use std::time::Duration;

use ostler_model::job::{Check, CheckRestart, CheckStatus};
use ostler_model::time::Timestamp;

/// The answers of one check since the start of what it asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckMachine {
    status: CheckStatus,
    success_before_passing: u32,
    failures_before_critical: u32,
    /// `None`: a check that has not failed often enough keeps its status.
    failures_before_warning: Option<u32>,
    restart: Option<CheckRestart>,
    /// Good answers in a row, and bad answers in a row; one of the two is 0.
    good: u32,
    bad: u32,
    /// Unhealthy answers in a row since the end of the grace.
    unhealthy: u32,
    grace_until: Timestamp,
}

impl CheckMachine {
    /// A check of something that was started at `started`.
    #[must_use]
    pub fn new(check: &Check, started: Timestamp) -> Self {
        let grace = check.restart.map_or(Duration::ZERO, |restart| restart.grace);
        Self {
            status: check.initial,
            success_before_passing: check.success_before_passing,
            failures_before_critical: check.failures_before_critical,
            failures_before_warning: Some(check.failures_before_warning).filter(|n| *n > 0),
            restart: check.restart,
            good: 0,
            bad: 0,
            unhealthy: 0,
            grace_until: started.plus(grace),
        }
    }

    /// The status after all answers so far.
    #[must_use]
    pub const fn status(&self) -> CheckStatus {
        self.status
    }

    /// Take an answer. Returns whether what the check asks is to be restarted.
    pub fn step(&mut self, now: Timestamp, answer: CheckStatus) -> bool {
        match answer {
            CheckStatus::Pending => return false,
            CheckStatus::Passing | CheckStatus::Warning => {
                self.good = self.good.saturating_add(1);
                self.bad = 0;
                if self.good >= self.success_before_passing {
                    self.status = answer;
                }
            }
            CheckStatus::Critical => {
                self.bad = self.bad.saturating_add(1);
                self.good = 0;
                if self.bad >= self.failures_before_critical {
                    self.status = CheckStatus::Critical;
                } else if self.failures_before_warning.is_some_and(|count| self.bad >= count) {
                    self.status = CheckStatus::Warning;
                }
            }
        }
        self.needs_restart(now)
    }

    fn needs_restart(&mut self, now: Timestamp) -> bool {
        let Some(restart) = self.restart else { return false };
        let unhealthy = match self.status {
            CheckStatus::Critical => true,
            CheckStatus::Warning => !restart.ignore_warnings,
            CheckStatus::Pending | CheckStatus::Passing => false,
        };
        if !unhealthy {
            self.unhealthy = 0;
            return false;
        }
        if now < self.grace_until {
            return false;
        }
        self.unhealthy = self.unhealthy.saturating_add(1);
        if self.unhealthy < restart.limit {
            return false;
        }
        // If the restart does not happen, for whatever reason, the check demands it again
        // after the grace.
        self.unhealthy = 0;
        self.grace_until = now.plus(restart.grace);
        true
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
