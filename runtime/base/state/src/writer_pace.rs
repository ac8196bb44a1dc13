//! Decides how long the writer waits after failures. Pure.

use std::time::Duration;

use ostler_model::limits::{STATE_LATER_RETRY_WALL_MAX, STATE_LATER_WALL_MAX};

/// The number of commits, and of moves of the journal, that failed in a row.
#[derive(Clone, Copy, Default)]
pub(super) struct RetryPace {
    commits: u32,
    settles: u32,
}

impl RetryPace {
    /// Note that a commit ended, with or without success.
    pub(super) fn note_commit(&mut self, well: bool) {
        self.commits = if well { 0 } else { self.commits.saturating_add(1) };
    }

    /// Note that a move of the journal ended, with or without success.
    pub(super) fn note_settle(&mut self, well: bool) {
        self.settles = if well { 0 } else { self.settles.saturating_add(1) };
    }

    /// How long a write may lag. A full disk is not tried five times a second.
    pub(super) fn lag_limit(self) -> Duration {
        doubled_wait(STATE_LATER_WALL_MAX, self.commits)
    }

    /// How long no write must come before the journal is moved.
    pub(super) fn idle_limit(self, first: Duration) -> Duration {
        doubled_wait(first, self.settles).max(first)
    }
}

/// `first`, doubled after each failure, up to the longest time between two tries.
fn doubled_wait(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(STATE_LATER_RETRY_WALL_MAX)
}
