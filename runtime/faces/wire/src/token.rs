//! Tokens and policies of the API's access control.

use serde::{Deserialize, Serialize};

use crate::{Absent, Text, or_empty};

/// Nomad's `ACLToken`. Its secret stands only in the answer to the request that creates it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclToken<'a> {
    /// The public id of the token; it is no secret.
    #[serde(rename = "AccessorID", deserialize_with = "or_empty")]
    pub accessor_id: Text<'a>,
    /// The secret that the bearer sends; empty except in the answer that creates the token.
    #[serde(rename = "SecretID", deserialize_with = "or_empty")]
    pub secret_id: Text<'a>,
    /// The name of the token, for people.
    #[serde(deserialize_with = "or_empty")]
    pub name: Text<'a>,
    /// The type: `management` allows everything everywhere; any other token is `client`.
    #[serde(rename = "Type", deserialize_with = "or_empty")]
    pub kind: Text<'a>,
    /// The policies, such as `read` or `submit@web`; empty for a `management` token.
    #[serde(deserialize_with = "or_empty")]
    pub policies: Vec<String>,
    /// Whether the token counts in all regions; always true, because there is one region.
    pub global: bool,
    /// Nomad's checksum of the token: always `null`.
    pub hash: Absent,
    /// The time at which it was created, RFC 3339.
    #[serde(deserialize_with = "or_empty")]
    pub create_time: Text<'a>,
    /// The time at which it expires, RFC 3339; absent if it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<String>,
    /// Ours: whether it stands in the agent's configuration.
    pub configured: bool,
    /// The index of the tokens when this one was created.
    pub create_index: u64,
    /// The index of the tokens when this one last changed.
    pub modify_index: u64,
}

/// A request to create or change a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclTokenRequest {
    /// The public id of the token; it must be that of the path, or empty.
    #[serde(rename = "AccessorID", deserialize_with = "or_empty")]
    pub accessor_id: String,
    /// The name of the token, for people.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
    /// The type: `management` or `client`; empty means `client`.
    #[serde(rename = "Type", deserialize_with = "or_empty")]
    pub kind: String,
    /// The policies; empty for a `management` token.
    #[serde(deserialize_with = "or_empty")]
    pub policies: Vec<String>,
    /// The time after which it expires, such as `8h`; empty for never.
    #[serde(rename = "ExpirationTTL", deserialize_with = "or_empty")]
    pub expiration_ttl: String,
    /// Nomad's other form of the time of expiry: refused.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub expiration_time: serde_json::Value,
    /// The roles of Nomad; a request with roles is refused.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub roles: serde_json::Value,
}

/// Nomad's `ACLPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AclPolicy {
    /// The name of the policy, such as `submit@web`.
    #[serde(deserialize_with = "or_empty")]
    pub name: String,
    /// A description of what it allows, for people.
    #[serde(deserialize_with = "or_empty")]
    pub description: String,
    /// Nomad's rules. Always empty: the name says what the policy allows.
    #[serde(deserialize_with = "or_empty")]
    pub rules: String,
    /// Nomad's checksum of the policy: always `null`.
    pub hash: Absent,
    /// The index at which the policy was created. Always 1: policies exist from the beginning.
    pub create_index: u64,
    /// The index of its last change: always 1.
    pub modify_index: u64,
}
