//! Limits how much a plugin may write to the agent's log: bytes per second. The rest is dropped and
//! counted. Pure: the time is an argument.

use ostler_model::clock::Timestamp;

/// A bucket of log bytes that fills with time and holds the bytes of one second.
#[derive(Debug, Clone)]
pub struct LogMeter {
    per_second: u64,
    level: u64,
    filled_at: Timestamp,
    dropped: u64,
}

/// What to do with one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogVerdict {
    /// Write the message.
    Write {
        /// How many messages were dropped since the last one that was written.
        dropped: u64,
    },
    /// Drop the message.
    Drop,
}

impl LogMeter {
    /// A full bucket.
    #[must_use]
    pub const fn new(per_second: u64, now: Timestamp) -> Self {
        Self { per_second, level: per_second, filled_at: now, dropped: 0 }
    }

    /// Decide about a message of `bytes` at `now`, and count it.
    pub fn take(&mut self, bytes: usize, now: Timestamp) -> LogVerdict {
        let elapsed = now.since(self.filled_at).as_millis();
        let gained = elapsed.saturating_mul(u128::from(self.per_second)) / 1000;
        if gained > 0 {
            let gained = u64::try_from(gained).unwrap_or(u64::MAX);
            self.level = self.level.saturating_add(gained).min(self.per_second);
            self.filled_at = now;
        }
        // Even an empty message costs something.
        let cost = (bytes as u64).max(32);
        if cost > self.level {
            self.dropped = self.dropped.saturating_add(1);
            return LogVerdict::Drop;
        }
        self.level -= cost;
        LogVerdict::Write { dropped: std::mem::take(&mut self.dropped) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_cut_to_the_rate_and_the_next_message_says_how_much_was_lost() {
        let mut now = Timestamp::from_nanos(0);
        let mut meter = LogMeter::new(1_000, now);
        let written = (0..100).filter(|_| meter.take(100, now) != LogVerdict::Drop).count();
        assert_eq!(written, 10);
        now = now.plus(Duration::from_millis(100));
        assert_eq!(meter.take(100, now), LogVerdict::Write { dropped: 90 });
        assert_eq!(meter.take(100, now), LogVerdict::Drop);
        now = now.plus(Duration::from_secs(3_600));
        let written = (0..100).filter(|_| meter.take(100, now) != LogVerdict::Drop).count();
        assert_eq!(written, 10, "a long silence saves up one second's worth, not more");
    }
}
