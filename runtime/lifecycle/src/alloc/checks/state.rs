//! What a check says after its answers, and when it restarts what it asks: pure, no clock, no I/O.
//!
//! ```text
//! answer ─► good (passing, warning)  in a row ≥ success_before_passing ──► that
//!        └► bad (critical)           in a row ≥ failures_before_critical ─► critical
//!                                    in a row ≥ failures_before_warning ──► warning, where that is sooner
//!           else it says what it said before
//!
//! what it says, after grace: unhealthy in a row = limit ─► restart; counted anew, with another grace
//! ```
//! A count of 0 is one of 1: the first answer decides.

use std::time::Duration;

use ostler_model::job::{Check, CheckRestart, CheckStatus};
use ostler_model::time::Timestamp;

/// The answers of one check since what it asks was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckMachine {
    status: CheckStatus,
    success_before_passing: u32,
    failures_before_critical: u32,
    /// Absent: a check that has not failed often enough says what it said.
    failures_before_warning: Option<u32>,
    restart: Option<CheckRestart>,
    /// Answers in a row that were good, or bad; one of them is 0.
    good: u32,
    bad: u32,
    /// Unhealthy answers in a row since the end of the grace.
    unhealthy: u32,
    grace_until: Timestamp,
}

impl CheckMachine {
    /// Of something that was started then.
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

    /// What it says.
    #[must_use]
    pub const fn status(&self) -> CheckStatus {
        self.status
    }

    /// Take an answer; whether what it asks is to be restarted for it.
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
        self.restarts(now)
    }

    fn restarts(&mut self, now: Timestamp) -> bool {
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
        // Where it is not restarted, for whatever reason, it is asked for again in time.
        self.unhealthy = 0;
        self.grace_until = now.plus(restart.grace);
        true
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
