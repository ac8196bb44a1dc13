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

    /// From a text as RFC 3339 has it (`2026-01-02T03:04:05.678Z`); none for another, and for Nomad's
    /// "never", which is before 1970.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let at = humantime::parse_rfc3339(text).ok()?;
        let since = at.duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_nanos()).ok().map(Self)
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
