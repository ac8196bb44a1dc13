//! Whom the operator trusts, as data: the `trust` block of the configuration and the trust file.
//! Read by `ostler_jobspec`, decided on by `ostler_artifact::trust`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::plugin::PluginKind;

/// Where the bytes of a plugin come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginSource {
    /// They are part of the agent.
    BuiltIn,
    /// A file of the plugin directory.
    PluginDir,
    /// A file that a block names.
    File,
    /// A registry that a block names.
    Oci,
}

impl PluginSource {
    /// Those of which a signature can be required, with their words in the configuration.
    pub const OUTSIDE: [(&'static str, Self); 3] =
        [("plugin_dir", Self::PluginDir), ("file", Self::File), ("oci", Self::Oci)];
}

impl fmt::Display for PluginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BuiltIn => "built_in",
            Self::PluginDir => "plugin_dir",
            Self::File => "file",
            Self::Oci => "oci",
        })
    }
}

/// A `trust` block of the agent's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustConfig {
    /// The trust file.
    pub file: Option<PathBuf>,
    /// Sources whose plugins somebody must vouch for.
    pub require_signature: BTreeSet<PluginSource>,
}

/// Number by which a signature names its key; 16 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// The number with these bytes, as they stand in keys and signatures.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a public key is the second line of a minisign .pub file: 56 characters that begin with RW"
)]
pub struct NoPublicKey;

/// A minisign public key (Ed25519).
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    id: KeyId,
    point: [u8; 32],
    verifier: minisign_verify::PublicKey,
}

impl PublicKey {
    /// Read the text of a key: the second line of a `.pub` file.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, NoPublicKey> {
        let text = text.trim();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text);
        let bytes = <[u8; 42]>::try_from(bytes.map_err(|_| NoPublicKey)?);
        let bytes = bytes.map_err(|_| NoPublicKey)?;
        let (head, point) = bytes.split_last_chunk::<32>().ok_or(NoPublicKey)?;
        let id = head.last_chunk::<8>().ok_or(NoPublicKey)?;
        let verifier = minisign_verify::PublicKey::from_base64(text).map_err(|_| NoPublicKey)?;
        Ok(Self { id: KeyId::from_bytes(*id), point: *point, verifier })
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// The same key, whatever number it was given.
    #[must_use]
    pub fn is_same_point(&self, other: &Self) -> bool {
        self.point == other.point
    }

    /// What checks signatures with it.
    #[must_use]
    pub const fn verifier(&self) -> &minisign_verify::PublicKey {
        &self.verifier
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.id)
    }
}

/// For which plugins somebody may vouch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustScope {
    /// Names, each a literal or a pattern with `*`; empty: any.
    pub plugins: Vec<String>,
    /// Kinds; empty: any.
    pub kinds: Vec<PluginKind>,
}

/// A `key` block of the trust file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKey {
    /// What people call it.
    pub name: String,
    /// The key.
    pub key: PublicKey,
    /// What it may sign.
    pub scope: TrustScope,
    /// It is never trusted any more, and why.
    pub revoked: Option<String>,
    /// Line of the block.
    pub line: u32,
}

/// A `digest` block of the trust file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDigest {
    /// For which plugins these bytes are trusted.
    pub scope: TrustScope,
    /// These bytes are never trusted, and why.
    pub revoked: Option<String>,
    /// Line of the block.
    pub line: u32,
}

/// A trust file: whose signatures are trusted, and which bytes are trusted or never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustFile {
    /// The file, as it was named.
    pub file: String,
    /// Keys; no two have the same number or are the same key.
    pub keys: Vec<TrustedKey>,
    /// Digests.
    pub digests: BTreeMap<Digest, ListedDigest>,
}

impl TrustFile {
    /// `file:line`.
    #[must_use]
    pub fn place(&self, line: u32) -> String {
        format!("{}:{line}", self.file)
    }
}

/// Who says that a plugin's bytes may be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Voucher {
    /// It is part of the agent.
    Agent,
    /// A key of the trust file signed it.
    Key {
        /// Name of the key in the trust file.
        name: String,
        /// Its number.
        key_id: String,
        /// What the signer wrote beside it; signed too.
        comment: String,
    },
    /// The trust file lists its digest.
    Digest {
        /// `file:line`.
        place: String,
    },
    /// Its block in the configuration pins its digest.
    Pin,
    /// Nobody, and nothing requires it.
    Nobody,
}

impl fmt::Display for Voucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent => f.write_str("part of the agent"),
            Self::Key { name, key_id, .. } => write!(f, "signed by {name} (key {key_id})"),
            Self::Digest { place } => write!(f, "its digest is listed at {place}"),
            Self::Pin => f.write_str("its block pins its digest"),
            Self::Nobody => f.write_str("nobody vouches for it, and nothing requires it"),
        }
    }
}
