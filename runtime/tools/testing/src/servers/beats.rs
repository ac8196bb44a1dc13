//! How often servers want heartbeats. Pure.

use std::time::Duration;

use ostler_model::rng::Rng;

/// The most heartbeats of all nodes that stock servers want each second.
const BEATS_PER_SECOND: u64 = 50;
/// The shortest time within which stock servers want the next heartbeat.
const TTL_MIN: Duration = Duration::from_secs(10);

/// The rule for the time within which the next heartbeat is due.
#[derive(Clone, Debug)]
pub enum BeatRule {
    /// Always this time.
    Fixed(Duration),
    /// As in stock servers: fifty heartbeats a second of all nodes, at least ten seconds, and up to
    /// twice that at random.
    Stock(Rng),
}

impl BeatRule {
    pub(crate) fn next_within(&self, nodes: usize) -> Duration {
        match self {
            Self::Fixed(within) => *within,
            Self::Stock(rng) => {
                let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
                let least = TTL_MIN.max(Duration::from_millis(nodes * 1_000 / BEATS_PER_SECOND));
                let most = u64::try_from(least.as_millis()).unwrap_or(u64::MAX);
                least.saturating_add(Duration::from_millis(rng.number_below(most)))
            }
        }
    }
}
