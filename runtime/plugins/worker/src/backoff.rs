//! How long to wait before a worker that ended is started again. Pure.

use std::time::Duration;

use ostler_model::limits::{WORKER_BACKOFF_MAX, WORKER_BACKOFF_MIN, WORKER_STEADY_AFTER};
use ostler_model::time::Timestamp;

/// How many workers of one kind ended soon after their start, and when the last of them did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    /// How many workers in a row did not live long.
    short: u32,
    /// When the last of those workers ended.
    ended_at: Timestamp,
}

impl Backoff {
    /// The record after one more end: a worker ended after it had lived for `lived`, or could
    /// not be started.
    pub fn with_end(self, lived: Duration, now: Timestamp) -> Self {
        let short = if lived >= WORKER_STEADY_AFTER { 0 } else { self.short.saturating_add(1) };
        Self { short, ended_at: now }
    }

    /// How many workers in a row did not live long.
    pub const fn short_lives(self) -> u32 {
        self.short
    }

    /// Did the last worker end so long ago that the record says nothing any more?
    pub fn is_past(self, now: Timestamp) -> bool {
        now.since(self.ended_at) >= WORKER_STEADY_AFTER + WORKER_BACKOFF_MAX
    }

    /// How long to wait before the next worker is started. The first worker that ended is
    /// replaced at once.
    pub fn wait(self, now: Timestamp) -> Duration {
        let Some(doublings) = self.short.checked_sub(2) else { return Duration::ZERO };
        let factor = 2_u32.saturating_pow(doublings);
        let pause = WORKER_BACKOFF_MIN.saturating_mul(factor).min(WORKER_BACKOFF_MAX);
        pause.saturating_sub(now.since(self.ended_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default().plus(Duration::from_secs(seconds))
    }

    #[test]
    fn the_first_end_costs_no_time_and_each_further_one_twice_as_much_up_to_a_bound() {
        let mut after = Backoff::default().with_end(SHORT, at(1));
        assert_eq!(after.wait(at(1)), Duration::ZERO);
        let mut before = WORKER_BACKOFF_MIN / 2;
        for _ in 0..3 {
            after = after.with_end(SHORT, at(1));
            assert_eq!(after.wait(at(1)), before * 2);
            before *= 2;
        }
        for _ in 0..100 {
            after = after.with_end(SHORT, at(1));
        }
        assert_eq!(after.wait(at(1)), WORKER_BACKOFF_MAX);
    }

    #[test]
    fn time_that_passed_is_not_waited_for_and_a_long_life_makes_good() {
        let short = Backoff::default().with_end(SHORT, at(1)).with_end(SHORT, at(1));
        assert!(short.wait(at(1)) > Duration::ZERO);
        assert_eq!(short.wait(at(1_000)), Duration::ZERO);
        assert_eq!(short.with_end(WORKER_STEADY_AFTER, at(1)).wait(at(1)), Duration::ZERO);
        assert!(short.is_past(at(1_000)) && !short.is_past(at(10)));
    }
}
