//! The requests and answers of the agent's HTTP API. Each is described once: the server writes
//! these types, and the command line reads them. Nomad's servers are told of the node in the same
//! types; `message.rs` says in which form.
//!
//! Names, types and units are Nomad's. The server borrows texts when it writes them, so that a list
//! of thousands of allocations is not copied first. A reader ignores fields that it does not know,
//! and takes an absent field or `null` as empty, so that it can also ask an agent of another
//! version, or Nomad itself. Fields that Nomad does not have are marked with "Ours".
//!
//! Start reading at `alloc.rs`.

mod agent;
mod alloc;
mod change;
mod deployment;
mod diff;
mod exec;
mod file;
pub mod go_time;
mod job;
mod message;
mod node;
mod resources;
mod scaling;
mod search;
mod service;
mod stats;
mod token;
mod variable;

use std::borrow::Cow;
use std::time::{Duration, UNIX_EPOCH};

pub use agent::*;
pub use alloc::*;
pub use change::*;
pub use deployment::*;
pub use diff::*;
pub use exec::*;
pub use file::*;
pub use job::*;
pub use message::message;
pub use node::*;
use ostler_model::time::Timestamp;
pub use resources::*;
pub use scaling::*;
pub use search::*;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
pub use service::*;
pub use stats::*;
pub use token::*;
pub use variable::*;

/// A text. The server borrows it, a reader owns it.
pub type Text<'a> = Cow<'a, str>;

/// The time that Nomad writes for "never".
pub const NEVER: &str = "0001-01-01T00:00:00Z";

/// A time as `2026-11-20T15:20:14.820270161Z`.
#[must_use]
pub fn moment(at: Timestamp) -> Text<'static> {
    let at = UNIX_EPOCH + Duration::from_nanos(at.nanos());
    humantime::format_rfc3339_nanos(at).to_string().into()
}

/// A field that Nomad has and this agent does not. It is written as `null`, and a reader ignores
/// it. Servers are not told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent;

impl Serialize for Absent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        message::json_only(&(), serializer)
    }
}

impl<'de> Deserialize<'de> for Absent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Self)
    }
}

/// Reads a value, and takes `null` as the empty value of its type.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
