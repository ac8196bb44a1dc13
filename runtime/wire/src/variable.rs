//! Variables. What is in their items is a [`Secret`], which debug output does not show.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use ostler_model::vars::Secret;

use crate::{Text, or_empty};

/// `VariableMetadata`: a variable, without what is in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VariableMetadata<'a> {
    /// Its namespace.
    pub namespace: Text<'a>,
    /// Its path.
    pub path: Text<'a>,
    /// Index of the variables when it came.
    pub create_index: u64,
    /// Index of the variables when it was written last.
    pub modify_index: u64,
    /// Nanoseconds since 1970 of when it came.
    pub create_time: u64,
    /// Nanoseconds since 1970 of when it was written last.
    pub modify_time: u64,
}

/// `Variable`: a variable with what is in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Variable<'a> {
    /// Its namespace.
    pub namespace: Text<'a>,
    /// Its path.
    pub path: Text<'a>,
    /// Index of the variables when it came; 0: there is none.
    pub create_index: u64,
    /// Index of the variables when it was written last; 0: there is none.
    pub modify_index: u64,
    /// Nanoseconds since 1970 of when it came.
    pub create_time: u64,
    /// Nanoseconds since 1970 of when it was written last.
    pub modify_time: u64,
    /// What it consists of; none: there is no such variable.
    #[serde(deserialize_with = "or_empty")]
    pub items: BTreeMap<String, Secret>,
}

/// What is read of a variable that is to be written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VariablePut {
    /// That of the request, where it is there.
    #[serde(deserialize_with = "or_empty")]
    pub namespace: String,
    /// That of the request, where it is there.
    #[serde(deserialize_with = "or_empty")]
    pub path: String,
    /// What it is to consist of.
    #[serde(deserialize_with = "or_empty")]
    pub items: BTreeMap<String, Secret>,
    /// Nomad's locks, which are not kept here.
    pub lock: Option<serde::de::IgnoredAny>,
}
