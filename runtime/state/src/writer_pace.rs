//! How long the writer waits after failures. Pure.

use std::time::Duration;

use ostler_model::limits::{STATE_LATER_RETRY_WALL_MAX, STATE_LATER_WALL_MAX};

/// How many commits, and how many moves of the journal, failed in a row.
#[derive(Clone, Copy, Default)]
pub(super) struct Pace {
    commits: u32,
    settles: u32,
}

impl Pace {
    /// A commit ended, well or not.
    pub(super) fn committed(&mut self, well: bool) {
        self.commits = if well { 0 } else { self.commits.saturating_add(1) };
    }

    /// A move ended, well or not.
    pub(super) fn settled(&mut self, well: bool) {
        self.settles = if well { 0 } else { self.settles.saturating_add(1) };
    }

    /// How long a write may lag: a disk that is full is not asked five times a second.
    pub(super) fn lag(self) -> Duration {
        doubled(STATE_LATER_WALL_MAX, self.commits)
    }

    /// How long nothing comes before the journal is moved.
    pub(super) fn idle(self, first: Duration) -> Duration {
        doubled(first, self.settles).max(first)
    }
}

/// `first`, twice as long after each failure, up to the longest between two tries.
fn doubled(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(16)).min(STATE_LATER_RETRY_WALL_MAX)
}
