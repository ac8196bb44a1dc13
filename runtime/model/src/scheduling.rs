//! Whether a node takes what is new, and how it is emptied: on record, so that a restart changes neither.
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

/// What is on record of a node beside its jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeScheduling {
    /// Nothing new is placed. A drain makes it so, and its end leaves it so.
    pub ineligible: bool,
    /// It is being emptied.
    pub drain: Option<NodeDrain>,
    /// Index of the last change; 0 before the first.
    pub modify_index: u64,
    /// What happened to it, oldest first: the last [`NODE_EVENTS_MAX`].
    pub events: Vec<NodeEvent>,
}

impl NodeScheduling {
    /// Note what happened; the oldest event goes where there are too many.
    pub fn note(&mut self, event: NodeEvent) {
        self.modify_index = event.index;
        self.events.push(event);
        let over = self.events.len().saturating_sub(NODE_EVENTS_MAX);
        self.events.drain(..over);
    }
}

/// How a node is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDrain {
    /// What is left by then is stopped at once.
    pub deadline: DrainDeadline,
    /// Allocations of system jobs run on.
    pub ignore_system: bool,
    /// When it was asked for.
    pub started_at: Timestamp,
}

impl NodeDrain {
    /// Is everything to be stopped at once by now?
    #[must_use]
    pub fn is_forced(&self, now: Timestamp) -> bool {
        match self.deadline {
            DrainDeadline::AtOnce => true,
            DrainDeadline::Never => false,
            DrainDeadline::After { at, .. } => at <= now,
        }
    }
}

/// When a drain stops what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainDeadline {
    /// From the beginning.
    AtOnce,
    /// Whatever ends by itself may do so.
    Never,
    /// Then.
    After {
        /// As it was asked.
        length: Duration,
        /// The time of day.
        at: Timestamp,
    },
}

/// Something that happened to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// When.
    pub at: Timestamp,
    /// Index from which it is visible.
    pub index: u64,
    /// What.
    pub kind: NodeEventKind,
}

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeEventKind {
    /// The first agent of its data directory came up.
    Registered,
    /// Nothing new is placed any more.
    Ineligible,
    /// It takes what is new again.
    Eligible,
    /// It is being emptied.
    DrainSet,
    /// The same, with another deadline or other exceptions.
    DrainUpdated,
    /// It is not emptied any further.
    DrainDisabled,
    /// Everything that was to be stopped has ended.
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

    /// What of the cluster it concerns, as Nomad names it.
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
