//! What begins with a text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Text;

/// Body of `/v1/search`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SearchRequest {
    /// How it begins.
    pub prefix: String,
    /// Of what kind it is; `all` or empty: any.
    pub context: String,
}

/// What `/v1/search` answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SearchAnswer<'a> {
    /// Ids and names by kind.
    pub matches: BTreeMap<Text<'a>, Option<Vec<String>>>,
    /// Kinds of which there are more.
    pub truncations: BTreeMap<Text<'a>, bool>,
    /// Index of what was looked at.
    pub index: u64,
    /// There is no other server.
    pub last_contact: u64,
    /// There is no other server.
    pub known_leader: bool,
}
