//! What is said over the agent's HTTP API, each request and each answer described once: the server
//! writes these types, the command line reads them.
//!
//! Names, types and units are Nomad's. Texts are borrowed where they are written: a list of thousands of
//! allocations is not copied first. A reader passes over what it does not know, and takes what is absent
//! or `null` for empty, so that an agent of another version, or a Nomad, can be asked. What Nomad does
//! not have is marked as ours.
//!
//! Start reading at `alloc.rs`.

mod agent;
mod alloc;
mod change;
mod deployment;
mod diff;
mod exec;
mod file;
mod job;
mod node;
mod resources;
mod scaling;
mod search;
mod service;
mod stats;
mod token;
mod variable;

use std::borrow::Cow;

pub use agent::*;
pub use alloc::*;
pub use change::*;
pub use deployment::*;
pub use diff::*;
pub use exec::*;
pub use file::*;
pub use job::*;
pub use node::*;
pub use resources::*;
pub use scaling::*;
pub use search::*;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
pub use service::*;
pub use stats::*;
pub use token::*;
pub use variable::*;

/// A text, borrowed by who writes it.
pub type Text<'a> = Cow<'a, str>;

/// Nomad's text for "never".
pub const NEVER: &str = "0001-01-01T00:00:00Z";

/// Something Nomad has and this agent does not: written as `null`, and passed over by who reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent;

impl Serialize for Absent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}

impl<'de> Deserialize<'de> for Absent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Self)
    }
}

/// `null` is the empty value.
fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
