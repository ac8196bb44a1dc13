//! Which plugins the operator trusts, as data: the `trust` block of the configuration and the trust
//! file. `ostler_jobspec` reads it, and `ostler_artifact::trust` decides by it.

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
    /// The plugin is part of the agent.
    BuiltIn,
    /// A file of the plugin directory.
    PluginDir,
    /// A file that a block names.
    File,
    /// A registry that a block names.
    Oci,
}

impl PluginSource {
    /// The sources for which a signature can be required, with their names in the configuration.
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
    /// Path of the trust file.
    pub file: Option<PathBuf>,
    /// Sources whose plugins the trust file must vouch for.
    pub require_signature: BTreeSet<PluginSource>,
}

/// Number by which a signature names its key. As text it is 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// The number of these bytes, in the order of keys and signatures.
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
    /// When the text is no public key.
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

    /// Number of the key, which signatures name.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// Whether both are the same key, even under different numbers.
    #[must_use]
    pub fn is_same_point(&self, other: &Self) -> bool {
        self.point == other.point
    }

    /// The key in the form that checks signatures.
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

/// The plugins that a key or digest vouches for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustScope {
    /// Names of plugins, each a literal or a pattern with `*`; empty for all names.
    pub plugins: Vec<String>,
    /// Kinds of plugins; empty for all kinds.
    pub kinds: Vec<PluginKind>,
}

/// A `key` block of the trust file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKey {
    /// Name of the key in the trust file.
    pub name: String,
    /// The public key that checks signatures.
    pub key: PublicKey,
    /// The plugins that the key may sign.
    pub scope: TrustScope,
    /// Why the key is not trusted any more; `None` when it is.
    pub revoked: Option<String>,
    /// Line of the block in the trust file.
    pub line: u32,
}

/// A `digest` block of the trust file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDigest {
    /// The plugins for which these bytes are trusted.
    pub scope: TrustScope,
    /// Why these bytes are never trusted; `None` when they are trusted.
    pub revoked: Option<String>,
    /// Line of the block in the trust file.
    pub line: u32,
}

/// A trust file: which signatures are trusted, and which bytes are trusted or revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustFile {
    /// Path of the file, as it was named.
    pub file: String,
    /// The keys. No two have the same number or are the same key.
    pub keys: Vec<TrustedKey>,
    /// Trusted and revoked components, by their SHA-256.
    pub digests: BTreeMap<Digest, ListedDigest>,
}

impl TrustFile {
    /// `file:line` of a line in the trust file.
    #[must_use]
    pub fn place(&self, line: u32) -> String {
        format!("{}:{line}", self.file)
    }
}

/// What vouches for the bytes of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Voucher {
    /// The plugin is part of the agent.
    Agent,
    /// A key of the trust file signed it.
    Key {
        /// Name of the key in the trust file.
        name: String,
        /// Number of the key.
        key_id: String,
        /// The signer's comment, which is signed too.
        comment: String,
    },
    /// The trust file lists its digest.
    Digest {
        /// `file:line` of the entry in the trust file.
        place: String,
    },
    /// The plugin's block in the configuration pins its digest.
    Pin,
    /// Nothing vouches for the plugin, and nothing requires that.
    Nobody,
}

impl fmt::Display for Voucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent => f.write_str("part of the agent"),
            Self::Key { name, key_id, .. } => write!(f, "signed by {name} (key {key_id})"),
            Self::Digest { place } => write!(f, "its digest is listed at {place}"),
            Self::Pin => f.write_str("its block pins its digest"),
            Self::Nobody => {
                f.write_str("no signature or digest vouches for it, and none is required")
            }
        }
    }
}
