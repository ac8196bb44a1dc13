//! Converts what the agent knows into the types of [`ostler_wire`].
//!
//! A test compares each shape with recorded answers of a real Nomad. Nomad writes `null` for an
//! empty list or map in many places. Here it is written as an empty list or map, which Nomad's
//! clients accept as well.

pub(crate) mod agent;
pub(crate) mod alloc;
mod alloc_resources;
pub(crate) mod change;
pub(crate) mod deployment;
pub(crate) mod diff;
pub(crate) mod job;
pub(crate) mod metric;
pub(crate) mod node;
pub(crate) mod stats;
mod task;

use serde::Serialize;
use serde_json::Value;

use ostler_wire::Text;
pub(crate) use ostler_wire::moment;

/// The region of every node that is no part of a cluster.
pub(crate) const REGION: &str = "global";

/// The word by which a value is written in JSON.
pub(crate) fn word(of: impl Serialize) -> Text<'static> {
    match serde_json::to_value(of) {
        Ok(Value::String(word)) => word.into(),
        _ => Text::default(),
    }
}

#[cfg(test)]
mod recorded_tests;
