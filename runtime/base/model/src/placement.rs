//! Where the allocations of a job are to be placed, and how many there may be.

use serde::{Deserialize, Serialize};

use super::job::Affinity;
use super::json::JsonObject;

/// Which nodes a job or a group prefers. The agent keeps and shows this; with one node there is
/// nothing to decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// What is preferred of a node.
    pub affinities: Vec<Affinity>,
    /// Attributes of nodes over which the allocations are spread.
    pub spreads: Vec<Spread>,
}

/// How allocations are spread over nodes (`spread`). One node keeps it and gets all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Attribute whose values tell nodes apart, such as `${node.datacenter}`.
    pub attribute: String,
    /// Weight of this spread beside others, 1 to 100.
    pub weight: u8,
    /// Shares by value; with none, all values get even shares.
    pub targets: Vec<SpreadTarget>,
}

/// The share of nodes of one value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadTarget {
    /// Value of the attribute.
    pub value: String,
    /// Percent of the allocations, 0 to 100. All targets together have at most 100.
    pub percent: u8,
}

/// Between which counts a group may be scaled (`scaling`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalingPolicy {
    /// Whether an autoscaler may scale the group. A person may scale it in any case.
    pub enabled: bool,
    /// Smallest count of the group.
    pub min: u32,
    /// Largest count of the group.
    pub max: u32,
    /// Policy for the autoscaler, which the agent only keeps.
    pub policy: JsonObject,
}

/// Why a [`ScalingPolicy`] does not allow a count, in the words that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfRange {
    /// The count is too small.
    #[error("group count was less than scaling policy minimum: {count} < {min}")]
    Below {
        /// The count that was asked for.
        count: u32,
        /// The smallest count that the policy allows.
        min: u32,
    },
    /// The count is too large.
    #[error("group count was greater than scaling policy maximum: {count} > {max}")]
    Above {
        /// The count that was asked for.
        count: u32,
        /// The largest count that the policy allows.
        max: u32,
    },
}

impl ScalingPolicy {
    /// Check that the policy allows this count.
    ///
    /// # Errors
    /// When it does not.
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
