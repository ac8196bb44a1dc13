//! A point in time, by the time of day and by a steady clock that is never set.
//!
//! ```text
//!            read by the clock of this agent        read from a record, or told by somebody
//!   of day   what the machine said                  what is written
//!   steady   the time of day at the agent's start,  what is written: the steady clock of an agent
//!            and what passed since then             begins at the time of day
//! ```
//! The time of day is shown, stored and sent. The steady reading is used to compare and to count,
//! so setting the clock of the machine changes no wait. A time that an earlier agent recorded may
//! lie in the future, because the clock was set back since. Code that restores such a time bounds
//! it (by [`Timestamp::min`] with the latest possible time).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Readings that differ by less count as one reading, so that a time that was stored and read again
/// is the same.
const PARTED_NANOS: u64 = 100_000_000;

/// Nanoseconds since 1970-01-01T00:00:00Z. Zero means "never" in Nomad's JSON; here absence is an
/// `Option`.
#[derive(Clone, Copy, Default)]
pub struct Timestamp {
    of_day: u64,
    steady: u64,
}

impl Timestamp {
    /// From nanoseconds since the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { of_day: nanos, steady: nanos }
    }

    /// From two readings of one moment: the time of day and the steady clock.
    #[must_use]
    pub const fn from_readings(of_day: u64, steady: u64) -> Self {
        let parted = of_day.abs_diff(steady) >= PARTED_NANOS;
        Self { of_day, steady: if parted { steady } else { of_day } }
    }

    /// The point of a time of day that another process read: a worker, a supervisor or a plugin.
    /// `self` is the present time of this process, and `nanos` counts since the epoch.
    #[must_use]
    pub fn translate_nanos(self, nanos: u64) -> Self {
        let steady = match nanos.checked_sub(self.of_day) {
            Some(later) => self.steady.saturating_add(later),
            None => self.steady.saturating_sub(self.of_day.saturating_sub(nanos)),
        };
        Self { of_day: nanos, steady }
    }

    /// The time of day, in nanoseconds since the epoch, to be shown, stored and sent. For counting
    /// there are [`Timestamp::since`] and [`Timestamp::plus`].
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.of_day
    }

    /// The time of day in the type of the standard library.
    #[must_use]
    pub fn to_system_time(self) -> std::time::SystemTime {
        std::time::UNIX_EPOCH + Duration::from_nanos(self.of_day)
    }

    /// This point moved later by `by`; stops at the largest representable time.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self { of_day: self.of_day.saturating_add(by), steady: self.steady.saturating_add(by) }
    }

    /// From a text of RFC 3339 (`2026-01-02T03:04:05.678Z`). `None` for any other text, and for
    /// Nomad's "never", which is before 1970.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let at = humantime::parse_rfc3339(text).ok()?;
        let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_nanos()).ok().map(Self::from_nanos)
    }

    /// Time that passed from `earlier` to this point, even if the clock of the machine was set
    /// meanwhile. Zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.steady.saturating_sub(earlier.steady))
    }

    /// Time that remains at `now` until this point, by the reading that reaches it first. It is for
    /// an end that was announced as a time of day and must not move when the clock of the machine
    /// is set back.
    #[must_use]
    pub fn remaining_at(self, now: Self) -> Duration {
        let of_day = Duration::from_nanos(self.of_day.saturating_sub(now.of_day));
        self.since(now).min(of_day)
    }
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.steady == other.steady
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.steady.cmp(&other.steady)
    }
}

impl Hash for Timestamp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.steady.hash(state);
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct("Timestamp", &self.of_day)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::from_nanos)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.of_day == self.steady {
            f.debug_tuple("Timestamp").field(&self.of_day).finish()
        } else {
            f.debug_tuple("Timestamp").field(&self.of_day).field(&self.steady).finish()
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_seconds(self.to_system_time()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn what_passed_is_counted_and_the_time_of_day_is_shown() {
        let before = Timestamp::from_readings(5 * HOUR, 5 * HOUR);
        // The clock was set back by two hours, and one passed.
        let after = Timestamp::from_readings(4 * HOUR, 6 * HOUR);
        assert!(before < after && after.since(before) == Duration::from_nanos(HOUR));
        assert_eq!(
            (after.nanos(), after.plus(Duration::from_nanos(HOUR)).nanos()),
            (4 * HOUR, 5 * HOUR)
        );
        assert_eq!(after.to_string(), "1970-01-01T04:00:00Z");
        assert_eq!(serde_json::to_string(&after).ok(), Some((4 * HOUR).to_string()));
    }

    #[test]
    fn what_somebody_else_read_is_counted_from_the_clock_that_it_was_told_to() {
        for now in [
            Timestamp::from_readings(4 * HOUR, 6 * HOUR),
            Timestamp::from_readings(6 * HOUR, 4 * HOUR),
        ] {
            let told = now.translate_nanos(now.nanos() - HOUR);
            assert_eq!(
                (now.since(told), told.nanos()),
                (Duration::from_nanos(HOUR), now.nanos() - HOUR)
            );
            assert_eq!(
                now.translate_nanos(now.nanos() + HOUR).since(now),
                Duration::from_nanos(HOUR)
            );
        }
    }

    #[test]
    fn what_ends_at_a_time_of_day_ends_by_the_reading_that_comes_to_it_first() {
        let hours = |hours: u64| Duration::from_nanos(hours * HOUR);
        let end = Timestamp::from_nanos(8 * HOUR);
        assert_eq!(end.remaining_at(Timestamp::from_nanos(6 * HOUR)), hours(2));
        assert_eq!(
            end.remaining_at(Timestamp::from_readings(7 * HOUR, 2 * HOUR)),
            hours(1),
            "set forward"
        );
        assert_eq!(
            end.remaining_at(Timestamp::from_readings(2 * HOUR, 7 * HOUR)),
            hours(1),
            "set back"
        );
        assert_eq!(end.remaining_at(Timestamp::from_readings(9 * HOUR, 2 * HOUR)), Duration::ZERO);
    }

    #[test]
    fn readings_that_hardly_part_are_one() {
        let read = Timestamp::from_readings(HOUR, HOUR + 50);
        assert_eq!(read, Timestamp::from_nanos(read.nanos()));
    }
}
