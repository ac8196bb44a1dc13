//! A point in time as the state file and the API know it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01T00:00:00Z. Zero means "never" in Nomad's JSON; here absence is an
/// `Option`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From nanoseconds since the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// This point moved later by `by`; stops at the largest representable time.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this point; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = std::time::UNIX_EPOCH + Duration::from_nanos(self.0);
        humantime::format_rfc3339_seconds(at).fmt(f)
    }
}
