//! What a job says of where its allocations go, and of how many there may be.

use serde::{Deserialize, Serialize};

use super::job::Affinity;
use super::json::JsonObject;

/// Which nodes a job or a group prefers: kept and shown. It decides among nodes, so one node has nothing
/// to decide by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// What is preferred of a node.
    pub affinities: Vec<Affinity>,
    /// Over what they are spread.
    pub spreads: Vec<Spread>,
}

/// How allocations are spread over nodes (`spread`). One node keeps it and gets all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// What nodes are told apart by, such as `${node.datacenter}`.
    pub attribute: String,
    /// How much it counts beside others, 1 to 100.
    pub weight: u8,
    /// Shares by value; none: even ones.
    pub targets: Vec<SpreadTarget>,
}

/// The share of nodes of one value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadTarget {
    /// The value.
    pub value: String,
    /// Percent of the allocations, 0 to 100; of all targets together at most 100.
    pub percent: u8,
}

/// Between which counts a group may be scaled (`scaling`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingPolicy {
    /// Whether an autoscaler is to look at it. Somebody who asks by hand is not held back.
    pub enabled: bool,
    /// Least count.
    pub min: u32,
    /// Largest count.
    pub max: u32,
    /// What the autoscaler is told; the agent keeps it.
    pub policy: JsonObject,
}

/// Why a count is none that a [`ScalingPolicy`] allows, in the words that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfRange {
    /// Too few.
    #[error("group count was less than scaling policy minimum: {count} < {min}")]
    Below {
        /// The count.
        count: u32,
        /// The least.
        min: u32,
    },
    /// Too many.
    #[error("group count was greater than scaling policy maximum: {count} > {max}")]
    Above {
        /// The count.
        count: u32,
        /// The largest.
        max: u32,
    },
}

impl ScalingPolicy {
    /// Is this a count that the policy allows?
    ///
    /// # Errors
    /// When it is not.
    pub const fn check(&self, count: u32) -> Result<(), OutOfRange> {
        let Self { min, max, .. } = *self;
        if count < min {
            Err(OutOfRange::Below { count, min })
        } else if count > max {
            Err(OutOfRange::Above { count, max })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_allowed_from_the_least_to_the_largest() {
        let policy = ScalingPolicy { enabled: true, min: 1, max: 3, policy: JsonObject::default() };
        assert_eq!(policy.check(0), Err(OutOfRange::Below { count: 0, min: 1 }));
        assert_eq!((policy.check(1), policy.check(3)), (Ok(()), Ok(())));
        assert_eq!(policy.check(4), Err(OutOfRange::Above { count: 4, max: 3 }));
    }
}
