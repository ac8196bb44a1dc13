//! How often servers want to hear of nodes. Pure.

use std::time::Duration;

use ostler_model::rng::Rng;

/// Heartbeats of all nodes that stock servers want at most, each second.
const BEATS_PER_SECOND: u64 = 50;
/// Shortest time within which stock servers want the next heartbeat.
const TTL_MIN: Duration = Duration::from_secs(10);

/// Within which time nodes are to beat.
#[derive(Clone, Debug)]
pub enum BeatRule {
    /// Always this.
    Fixed(Duration),
    /// As stock servers do: fifty heartbeats a second of all nodes, ten seconds at least, and up to twice that
    /// at random.
    Stock(Rng),
}

impl BeatRule {
    pub(crate) fn within(&self, nodes: usize) -> Duration {
        match self {
            Self::Fixed(within) => *within,
            Self::Stock(rng) => {
                let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
                let least = TTL_MIN.max(Duration::from_millis(nodes * 1_000 / BEATS_PER_SECOND));
                let most = u64::try_from(least.as_millis()).unwrap_or(u64::MAX);
                least.saturating_add(Duration::from_millis(rng.below(most)))
            }
        }
    }
}
