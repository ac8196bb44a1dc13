//! Nomad's JSON shapes, and what they are made of.
//!
//! Field names, types and units are Nomad's; a test compares each shape with recorded answers of a
//! real one. Texts are borrowed from the views: a list of thousands of allocations is written, not
//! copied. Nomad writes `null` for an empty list or map in many places; here an empty one is an
//! empty one, which its clients take as well.

pub(in crate::api) mod agent;
pub(in crate::api) mod alloc;
pub(in crate::api) mod device_stats;
pub(in crate::api) mod evaluation;
pub(in crate::api) mod given;
pub(in crate::api) mod host;
pub(in crate::api) mod job;
pub(in crate::api) mod metric;
pub(in crate::api) mod node;
pub(in crate::api) mod plan;
pub(in crate::api) mod stats;
pub(in crate::api) mod task;
pub(in crate::api) mod write;

use serde::{Serialize, Serializer};

use ostler_model::time::Timestamp;

/// The region every node of this kind is in.
pub(in crate::api) const REGION: &str = "global";

/// Something Nomad has and this agent does not; always `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::api) struct Absent;

impl Serialize for Absent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}

/// A point in time as `2026-11-20T15:20:14.820270161Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct Moment(pub Timestamp);

impl Moment {
    /// Nomad's text for "never".
    pub const NEVER: &'static str = "0001-01-01T00:00:00Z";

    pub fn maybe(at: Option<Timestamp>) -> Option<Self> {
        at.map(Self)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(self.0.nanos());
        serializer.collect_str(&humantime::format_rfc3339_nanos(at))
    }
}

#[cfg(test)]
#[path = "recorded_tests.rs"]
mod recorded;
