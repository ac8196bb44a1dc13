//! Variables. The texts in them are [`Secret`]s, which debug output does not show.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use ostler_model::vars::Secret;

use crate::{Text, or_empty};

/// Nomad's `VariableMetadata`: a variable without its items.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VariableMetadata<'a> {
    /// The namespace of the variable.
    pub namespace: Text<'a>,
    /// The path of the variable.
    pub path: Text<'a>,
    /// The index of the variables when this one was created.
    pub create_index: u64,
    /// The index of the variables when this one was last written.
    pub modify_index: u64,
    /// The time at which it was created, nanoseconds since 1970.
    pub create_time: u64,
    /// The time at which it was last written, nanoseconds since 1970.
    pub modify_time: u64,
}

/// Nomad's `Variable`: a variable with its items.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireVariable<'a> {
    /// The namespace of the variable.
    pub namespace: Text<'a>,
    /// The path of the variable.
    pub path: Text<'a>,
    /// The index of the variables when this one was created; 0 if it does not exist.
    pub create_index: u64,
    /// The index of the variables when this one was last written; 0 if it does not exist.
    pub modify_index: u64,
    /// The time at which it was created, nanoseconds since 1970.
    pub create_time: u64,
    /// The time at which it was last written, nanoseconds since 1970.
    pub modify_time: u64,
    /// The items of the variable, by name; empty if the variable does not exist.
    #[serde(deserialize_with = "or_empty")]
    pub items: BTreeMap<String, Secret>,
}

/// A request to write a variable, as far as the agent reads it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VariablePut {
    /// The namespace of the variable; if it is not empty, it must be that of the request.
    #[serde(deserialize_with = "or_empty")]
    pub namespace: String,
    /// The path of the variable; if it is not empty, it must be that of the request.
    #[serde(deserialize_with = "or_empty")]
    pub path: String,
    /// The new items of the variable, by name.
    #[serde(deserialize_with = "or_empty")]
    pub items: BTreeMap<String, Secret>,
    /// Nomad's lock of a variable. It is refused: this agent has no locks.
    pub lock: Option<serde::de::IgnoredAny>,
}
