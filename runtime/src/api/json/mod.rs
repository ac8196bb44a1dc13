//! What the agent knows in the shapes of [`ostler_wire`].
//!
//! A test compares each shape with recorded answers of a real Nomad. Nomad writes `null` for an empty list
//! or map in many places; here an empty one is an empty one, which its clients take as well.

pub(in crate::api) mod agent;
pub(in crate::api) mod alloc;
pub(in crate::api) mod change;
mod given;
pub(in crate::api) mod job;
pub(in crate::api) mod metric;
pub(in crate::api) mod node;
pub(in crate::api) mod stats;
mod task;

use serde::Serialize;
use serde_json::Value;

use ostler_model::time::Timestamp;
use ostler_wire::Text;

/// The region every node of this kind is in.
pub(in crate::api) const REGION: &str = "global";

/// A point in time as `2026-11-20T15:20:14.820270161Z`.
pub(in crate::api) fn moment(at: Timestamp) -> Text<'static> {
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(at.nanos());
    humantime::format_rfc3339_nanos(at).to_string().into()
}

/// The word that stands for a value in JSON.
pub(in crate::api) fn word(of: impl Serialize) -> Text<'static> {
    match serde_json::to_value(of) {
        Ok(Value::String(word)) => word.into(),
        _ => Text::default(),
    }
}

#[cfg(test)]
#[path = "recorded_tests.rs"]
mod recorded;
