//! A search for everything whose id or name begins with a text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Text;

/// The body of `/v1/search`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SearchRequest {
    /// The beginning of the id or the name.
    pub prefix: String,
    /// The kind of object to search; `all` or empty for any.
    pub context: String,
}

/// The answer of `/v1/search`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SearchAnswer<'a> {
    /// The ids or names that were found, by kind.
    pub matches: BTreeMap<Text<'a>, Option<Vec<String>>>,
    /// Whether there are more than the answer has, by kind.
    pub truncations: BTreeMap<Text<'a>, bool>,
    /// The index of the state that was searched.
    pub index: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub last_contact: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub known_leader: bool,
}
