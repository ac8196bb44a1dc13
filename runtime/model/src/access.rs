//! Who may do what over the API.
//!
//! ```text
//! token ─► policies: submit@web, read ─► Rights: web: submit, everywhere else: read
//!                                                        │
//!              what a request needs: a level in a namespace, or in the node ─► yes or no
//! ```
//! A level includes those below it. What belongs to no namespace (the node, its devices and plugins) needs the
//! level everywhere.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::digest::Digest;
use super::ids::Namespace;
use super::time::Timestamp;

/// What one may do, each with all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// See jobs, allocations, deployments, services and events; everywhere also the node, its devices,
    /// plugins and numbers.
    Read,
    /// Register, change and stop jobs, restart and signal tasks; see their logs, files and variables.
    Submit,
    /// Run commands inside tasks; everywhere also drain the node, collect allocations, follow the agent's
    /// log, upgrade plugins and lift their quarantine.
    Operate,
    /// Everything: tokens and namespaces too.
    Admin,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Operate, Self::Admin];

    /// Its name in policies.
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

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A level in a namespace, or everywhere: `submit@web`, `read`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AccessPolicy {
    /// What one may do.
    pub level: Level,
    /// Where; everywhere if nothing is named.
    pub namespace: Option<Namespace>,
}

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is no policy: write read, submit, operate or admin, the first three for one namespace as in submit@web"
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
        let level = Level::ALL.into_iter().find(|known| known.name() == level).ok_or_else(wrong)?;
        let namespace = namespace.map(Namespace::new).transpose().map_err(|_| wrong())?;
        // What it has more than operate belongs to no namespace.
        if level == Level::Admin && namespace.is_some() {
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

/// What somebody may do, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    everywhere: Option<Level>,
    namespaces: BTreeMap<Namespace, Level>,
}

impl Rights {
    /// Everything everywhere.
    #[must_use]
    pub const fn all() -> Self {
        Self { everywhere: Some(Level::Admin), namespaces: BTreeMap::new() }
    }

    /// What these policies give together.
    #[must_use]
    pub fn of(policies: &[AccessPolicy]) -> Self {
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

    /// May one do this in a namespace?
    #[must_use]
    pub fn allow(&self, level: Level, namespace: &str) -> bool {
        self.everywhere.max(self.namespaces.get(namespace).copied()) >= Some(level)
    }

    /// May one do this to the node, and in every namespace?
    #[must_use]
    pub fn allow_everywhere(&self, level: Level) -> bool {
        self.everywhere >= Some(level)
    }

    /// May one do this in any namespace at all?
    #[must_use]
    pub fn allow_somewhere(&self, level: Level) -> bool {
        self.allow_everywhere(level) || self.namespaces.values().any(|own| *own >= level)
    }
}

/// What a token is called by; no secret.
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

/// A token as it is kept: its secret is nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptToken {
    /// What it is called by.
    pub accessor: TokenId,
    /// For people; may be empty.
    pub name: String,
    /// What its bearer may do.
    pub policies: Vec<AccessPolicy>,
    /// The SHA-256 of its secret.
    pub secret: [u8; 32],
    /// When it was made.
    pub created: Timestamp,
    /// When it ends; never if absent.
    pub expires: Option<Timestamp>,
    /// Count of changes when it was made.
    pub create_index: u64,
    /// The same of its last change.
    pub modify_index: u64,
}

/// The tokens that were made over the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTokens {
    /// Changes so far.
    pub index: u64,
    /// Was the first one made, which needed no other?
    pub bootstrapped: bool,
    /// All of them.
    pub tokens: Vec<KeptToken>,
}

/// An `acl` block: who may do what over the API.
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
    /// How its secret is known.
    pub secret: SecretSource,
    /// What its bearer may do.
    pub policies: Vec<AccessPolicy>,
}

/// How the secret of a configured token is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// By its SHA-256.
    Digest(Digest),
    /// It stands in this file.
    File(std::path::PathBuf),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn rights(policies: &[&str]) -> Rights {
        Rights::of(&policies.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
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
        assert!(rights.allow(Level::Submit, "web") && !rights.allow(Level::Operate, "web"));
        assert!(rights.allow(Level::Read, "other") && !rights.allow(Level::Submit, "other"));
        assert!(rights.allow_everywhere(Level::Read) && !rights.allow_everywhere(Level::Submit));
        assert!(rights.allow_somewhere(Level::Submit) && !rights.allow_somewhere(Level::Admin));
    }

    #[test]
    fn a_right_in_one_namespace_is_none_elsewhere_nor_in_the_node() {
        let rights = rights(&["operate@web"]);
        assert!(rights.allow(Level::Operate, "web") && !rights.allow(Level::Read, "default"));
        assert!(!rights.allow_everywhere(Level::Read));
        assert!(!Rights::default().allow_somewhere(Level::Read));
        assert!(
            Rights::all().allow(Level::Admin, "any")
                && Rights::all().allow_everywhere(Level::Admin)
        );
    }
}
