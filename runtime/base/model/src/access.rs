//! Access rights at the API.
//!
//! ```text
//! token ─► policies: submit@web, read ─► Rights: web: submit, everywhere else: read
//!                                                        │
//!              what a request needs: a level in a namespace, or in the node ─► yes or no
//! ```
//! A level includes those below it. Requests about what belongs to no namespace (the node, its
//! devices and plugins) need the level everywhere.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::digest::Digest;
use super::ids::Namespace;
use super::time::Timestamp;

/// A level of access. Each level includes all levels before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AccessLevel {
    /// See jobs, allocations, deployments, services and events; everywhere also the node, its devices,
    /// plugins and numbers.
    Read,
    /// Register, change and stop jobs, restart and signal tasks; see their logs, files and variables.
    Submit,
    /// Run commands inside tasks; everywhere also drain the node, collect allocations, follow the agent's
    /// log, upgrade plugins and lift their quarantine.
    Operate,
    /// All rights, also those over tokens and namespaces.
    Admin,
}

impl AccessLevel {
    /// Every level, lowest first.
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Operate, Self::Admin];

    /// Name of the level in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for AccessLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A level in a namespace, or everywhere: `submit@web`, `read`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccessPolicy {
    /// The level that the policy gives.
    pub level: AccessLevel,
    /// The namespace in which it gives the level; everywhere if absent.
    pub namespace: Option<Namespace>,
}

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a policy: write read, submit, operate or admin, the first three for one namespace as in \
     submit@web"
)]
pub struct NotPolicy {
    /// The text, cut to a readable length.
    pub given: String,
}

impl FromStr for AccessPolicy {
    type Err = NotPolicy;

    fn from_str(text: &str) -> Result<Self, NotPolicy> {
        let wrong = || NotPolicy { given: text.chars().take(64).collect() };
        let (level, namespace) = match text.split_once('@') {
            Some((level, namespace)) => (level, Some(namespace)),
            None => (text, None),
        };
        let level =
            AccessLevel::ALL.into_iter().find(|known| known.name() == level).ok_or_else(wrong)?;
        let namespace = namespace.map(Namespace::new).transpose().map_err(|_| wrong())?;
        // The rights that admin adds to operate belong to no namespace.
        if level == AccessLevel::Admin && namespace.is_some() {
            return Err(wrong());
        }
        Ok(Self { level, namespace })
    }
}

impl fmt::Display for AccessPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}@{namespace}", self.level),
            None => write!(f, "{}", self.level),
        }
    }
}

impl TryFrom<String> for AccessPolicy {
    type Error = NotPolicy;
    fn try_from(text: String) -> Result<Self, NotPolicy> {
        text.parse()
    }
}

impl From<AccessPolicy> for String {
    fn from(policy: AccessPolicy) -> Self {
        policy.to_string()
    }
}

/// The levels that somebody has, by namespace and everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    everywhere: Option<AccessLevel>,
    namespaces: BTreeMap<Namespace, AccessLevel>,
}

impl Rights {
    /// The highest level everywhere.
    #[must_use]
    pub const fn all() -> Self {
        Self { everywhere: Some(AccessLevel::Admin), namespaces: BTreeMap::new() }
    }

    /// The rights that these policies give together.
    #[must_use]
    pub fn from_policies(policies: &[AccessPolicy]) -> Self {
        let mut rights = Self::default();
        for AccessPolicy { level, namespace } in policies {
            match namespace {
                None => rights.everywhere = rights.everywhere.max(Some(*level)),
                Some(namespace) => {
                    let own = rights.namespaces.entry(namespace.clone()).or_insert(*level);
                    *own = (*own).max(*level);
                }
            }
        }
        rights
    }

    /// Whether the rights include a level in a namespace.
    #[must_use]
    pub fn allow(&self, level: AccessLevel, namespace: &str) -> bool {
        self.everywhere.max(self.namespaces.get(namespace).copied()) >= Some(level)
    }

    /// Whether the rights include a level for the node, and so in every namespace.
    #[must_use]
    pub fn allow_everywhere(&self, level: AccessLevel) -> bool {
        self.everywhere >= Some(level)
    }

    /// Whether the rights include a level in at least one namespace.
    #[must_use]
    pub fn allow_somewhere(&self, level: AccessLevel) -> bool {
        self.allow_everywhere(level) || self.namespaces.values().any(|own| *own >= level)
    }
}

/// Id of a token. It is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenId(Uuid);

impl TokenId {
    /// From a UUID.
    #[must_use]
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl TryFrom<String> for TokenId {
    type Error = uuid::Error;
    fn try_from(text: String) -> Result<Self, uuid::Error> {
        Uuid::try_parse(&text).map(Self)
    }
}

impl From<TokenId> for String {
    fn from(id: TokenId) -> Self {
        id.to_string()
    }
}

/// A token as it is stored. Only a digest of its secret is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// Id of the token.
    pub accessor: TokenId,
    /// Name for people; may be empty.
    pub name: String,
    /// Policies that give the rights of the bearer.
    pub policies: Vec<AccessPolicy>,
    /// The SHA-256 of the token's secret.
    pub secret: [u8; 32],
    /// When the token was made.
    pub created: Timestamp,
    /// When the token expires; never if absent.
    pub expires: Option<Timestamp>,
    /// Number of changes of all tokens when this one was made.
    pub create_index: u64,
    /// Number of changes of all tokens when this one was changed last.
    pub modify_index: u64,
}

/// The tokens that were made over the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecords {
    /// Number of changes so far.
    pub index: u64,
    /// The first token was made, which needed no other token.
    pub bootstrapped: bool,
    /// All tokens that were made over the API.
    pub tokens: Vec<TokenRecord>,
}

/// An `acl` block: access rights at the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclConfig {
    /// Requests over TCP need a token.
    pub enabled: bool,
    /// `token "name" { … }`, by name.
    pub tokens: BTreeMap<String, ConfiguredToken>,
}

/// A `token` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredToken {
    /// Where the secret of the token comes from.
    pub secret: SecretSource,
    /// Policies that give the rights of the bearer.
    pub policies: Vec<AccessPolicy>,
}

/// Where the secret of a configured token comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// The configuration has the SHA-256 of the secret.
    Digest(Digest),
    /// The secret is in this file.
    File(std::path::PathBuf),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn rights(policies: &[&str]) -> Rights {
        Rights::from_policies(
            &policies.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn policies_are_written_as_they_are_read() {
        for text in ["read", "submit@web", "operate@a-1", "admin"] {
            assert_eq!(text.parse::<AccessPolicy>().unwrap().to_string(), text);
        }
        for wrong in
            ["", "Read", "read@", "read@a/b", "write", "read @web", "@web", "read@*", "admin@web"]
        {
            let error = wrong.parse::<AccessPolicy>().unwrap_err().to_string();
            assert!(error.contains("submit@web"), "{error}");
        }
    }

    #[test]
    fn a_level_includes_those_below_it_where_it_was_given() {
        let rights = rights(&["read", "submit@web", "read@web"]);
        assert!(
            rights.allow(AccessLevel::Submit, "web") && !rights.allow(AccessLevel::Operate, "web")
        );
        assert!(
            rights.allow(AccessLevel::Read, "other") && !rights.allow(AccessLevel::Submit, "other")
        );
        assert!(
            rights.allow_everywhere(AccessLevel::Read)
                && !rights.allow_everywhere(AccessLevel::Submit)
        );
        assert!(
            rights.allow_somewhere(AccessLevel::Submit)
                && !rights.allow_somewhere(AccessLevel::Admin)
        );
    }

    #[test]
    fn a_right_in_one_namespace_is_none_elsewhere_nor_in_the_node() {
        let rights = rights(&["operate@web"]);
        assert!(
            rights.allow(AccessLevel::Operate, "web")
                && !rights.allow(AccessLevel::Read, "default")
        );
        assert!(!rights.allow_everywhere(AccessLevel::Read));
        assert!(!Rights::default().allow_somewhere(AccessLevel::Read));
        assert!(
            Rights::all().allow(AccessLevel::Admin, "any")
                && Rights::all().allow_everywhere(AccessLevel::Admin)
        );
    }
}
