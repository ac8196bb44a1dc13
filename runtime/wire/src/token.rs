//! Tokens and policies of the API.

use serde::{Deserialize, Serialize};

use crate::{Absent, Text, or_empty};

/// A token. Its secret stands only in the answer to who makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclToken<'a> {
    /// What it is called by; no secret.
    #[serde(rename = "AccessorID", deserialize_with = "or_empty")]
    pub accessor_id: Text<'a>,
    /// What its bearer sends; empty but where the token is made.
    #[serde(rename = "SecretID", deserialize_with = "or_empty")]
    pub secret_id: Text<'a>,
    /// For people.
    #[serde(deserialize_with = "or_empty")]
    pub name: Text<'a>,
    /// `management`: everything everywhere; else `client`.
    #[serde(rename = "Type", deserialize_with = "or_empty")]
    pub kind: Text<'a>,
    /// `read`, `submit@web` …; empty of a `management` token.
    #[serde(deserialize_with = "or_empty")]
    pub policies: Vec<String>,
    /// Known in all regions: there is one.
    pub global: bool,
    /// Nomad's sum of the token.
    pub hash: Absent,
    /// RFC 3339.
    #[serde(deserialize_with = "or_empty")]
    pub create_time: Text<'a>,
    /// RFC 3339; absent if it never ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<String>,
    /// Ours: does it stand in the agent's configuration?
    pub configured: bool,
    /// Count of changes when it was made.
    pub create_index: u64,
    /// The same of its last change.
    pub modify_index: u64,
}

/// A token that is wanted, or what it becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclTokenRequest {
    /// The token, where the path names one.
    #[serde(rename = "AccessorID", deserialize_with = "or_empty")]
    pub accessor_id: String,
    /// For people.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
    /// `management` or `client`; `client` if empty.
    #[serde(rename = "Type", deserialize_with = "or_empty")]
    pub kind: String,
    /// What its bearer may do; none of a `management` token.
    #[serde(deserialize_with = "or_empty")]
    pub policies: Vec<String>,
    /// After what time it ends: a duration such as `8h`; never if empty.
    #[serde(rename = "ExpirationTTL", deserialize_with = "or_empty")]
    pub expiration_ttl: String,
    /// Nomad's other way to say it: refused.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub expiration_time: serde_json::Value,
    /// Nomad's roles: refused.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub roles: serde_json::Value,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclPolicy {
    /// Its name.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
    /// What it allows.
    #[serde(deserialize_with = "or_empty")]
    pub description: String,
    /// Nomad's rules: none, they are in the name.
    #[serde(deserialize_with = "or_empty")]
    pub rules: String,
    /// Nomad's sum of the policy.
    pub hash: Absent,
    /// Always 1: they are there from the beginning.
    pub create_index: u64,
    /// The same.
    pub modify_index: u64,
}
