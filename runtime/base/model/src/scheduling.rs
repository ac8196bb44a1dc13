//! Whether new allocations are placed on a node, and how the node is drained. Both are on record,
//! so that a restart of the agent changes neither.
//!
//! ```text
//!   eligible ◄─ eligibility ─► ineligible ◄─ all are over, or disabled ─┐
//!      ▲  └────── drain ──────────┐ │ drain                            │
//!      │                          ▼ ▼                                  │
//!      └─ disabled ─────────── draining: stopped step by step ─────────┘
//!                                 └─ deadline ─► the rest at once
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limits::NODE_EVENTS_MAX;
use super::time::Timestamp;

/// The eligibility and the drain of a node, as they are on record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeScheduling {
    /// No new allocations are placed. A drain sets this, and the end of the drain leaves it set.
    pub ineligible: bool,
    /// The drain under way, if there is one.
    pub drain: Option<NodeDrain>,
    /// Index of the last change; 0 before the first.
    pub modify_index: u64,
    /// The last [`NODE_EVENTS_MAX`] events of the node, oldest first.
    pub events: Vec<NodeEvent>,
}

impl NodeScheduling {
    /// Add an event. The oldest one is dropped when there are too many.
    pub fn note(&mut self, event: NodeEvent) {
        self.modify_index = event.index;
        self.events.push(event);
        let over = self.events.len().saturating_sub(NODE_EVENTS_MAX);
        self.events.drain(..over);
    }
}

/// How a node is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDrain {
    /// When the remaining allocations are stopped all at once.
    pub deadline: DrainDeadline,
    /// Allocations of system jobs run on.
    pub ignore_system: bool,
    /// When the drain was requested.
    pub started_at: Timestamp,
}

impl NodeDrain {
    /// Whether all remaining allocations are to be stopped at once by now.
    #[must_use]
    pub fn is_forced(&self, now: Timestamp) -> bool {
        match self.deadline {
            DrainDeadline::AtOnce => true,
            DrainDeadline::Never => false,
            DrainDeadline::After { at, .. } => at <= now,
        }
    }
}

/// When a drain stops the remaining allocations all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainDeadline {
    /// At the beginning of the drain.
    AtOnce,
    /// Never: allocations may end by themselves.
    Never,
    /// At the end of this time.
    After {
        /// Length of the wait, as it was requested.
        length: Duration,
        /// Time of day at which the wait ends.
        at: Timestamp,
    },
}

/// Something that happened to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// When the event happened.
    pub at: Timestamp,
    /// Index of the change at which the event became visible.
    pub index: u64,
    /// What happened to the node.
    pub kind: NodeEventKind,
}

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEventKind {
    /// The first agent of its data directory came up.
    Registered,
    /// No new allocations are placed on the node any more.
    Ineligible,
    /// New allocations may be placed on the node again.
    Eligible,
    /// A drain of the node began.
    DrainSet,
    /// The drain got another deadline or other exceptions.
    DrainUpdated,
    /// The drain was called off.
    DrainDisabled,
    /// All allocations that the drain was to stop have ended.
    DrainComplete,
}

impl NodeEventKind {
    /// The sentence that Nomad's tools show.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Registered => "Node registered",
            Self::Ineligible => "Node marked as ineligible for scheduling",
            Self::Eligible => "Node marked as eligible for scheduling",
            Self::DrainSet => "Node drain strategy set",
            Self::DrainUpdated => "Node drain strategy updated",
            Self::DrainDisabled => "Node drain strategy unset",
            Self::DrainComplete => "Node drain complete",
        }
    }

    /// Part of the cluster that the event concerns, by Nomad's name.
    #[must_use]
    pub const fn subsystem(self) -> &'static str {
        match self {
            Self::Registered | Self::Ineligible | Self::Eligible => "Cluster",
            Self::DrainSet | Self::DrainUpdated | Self::DrainDisabled | Self::DrainComplete => {
                "Drain"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(index: u64) -> NodeEvent {
        NodeEvent { at: Timestamp::from_nanos(index), index, kind: NodeEventKind::Eligible }
    }

    #[test]
    fn the_newest_events_are_kept() {
        let mut node = NodeScheduling::default();
        (1..=30).for_each(|index| node.note(event(index)));
        assert_eq!(node.events.len(), NODE_EVENTS_MAX);
        assert_eq!(
            (node.events.last().map(|event| event.index), node.modify_index),
            (Some(30), 30)
        );
    }

    #[test]
    fn a_drain_is_forced_from_its_deadline_on() {
        let at = |deadline| NodeDrain {
            deadline,
            ignore_system: false,
            started_at: Timestamp::from_nanos(5),
        };
        let (length, end) = (Duration::from_nanos(4), Timestamp::from_nanos(9));
        let after = at(DrainDeadline::After { length, at: end });
        assert!(!after.is_forced(Timestamp::from_nanos(8)) && after.is_forced(end));
        assert!(at(DrainDeadline::AtOnce).is_forced(Timestamp::default()));
        assert!(!at(DrainDeadline::Never).is_forced(Timestamp::from_nanos(u64::MAX)));
    }
}
