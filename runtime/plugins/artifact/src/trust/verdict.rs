//! Decides whether bytes may be used, and who vouches for them.
//!
//! ```text
//! built in ─► yes, unless the block pins other bytes
//! revoked digest, another digest than pinned, damaged or wrong signature, revoked key ─► no
//! signed by a key that may sign it, or listed digest                        ─► yes
//! neither: required ─► no       not required ─► yes, and nobody vouches
//! ```
//! A digest that a block pins says which bytes are meant, not that somebody examined them, so it
//! does not replace a required signature. A digest in the trust file does.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::signature::{SignatureCheck, SignatureError};
use ostler_model::digest::Digest;
use ostler_model::grants::wildcard;
use ostler_model::oci::SCHEME;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{KeyId, PluginSource, TrustFile, TrustScope, Voucher};

/// The operator's demands on plugins.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The trust file: `None` if none is configured, else the file or the reason why it cannot be
    /// used. In the last case every plugin that is not built in is refused, because it is unknown
    /// what the file revokes.
    pub file: Option<Result<Arc<TrustFile>, String>>,
    /// The sources of plugins for which somebody must vouch.
    pub require: BTreeSet<PluginSource>,
}

impl Policy {
    /// The trust file, if there is one that can be used.
    #[must_use]
    pub fn trust(&self) -> Option<&TrustFile> {
        self.file.as_ref()?.as_ref().ok().map(AsRef::as_ref)
    }
}

/// The demands of the plugin's own block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The digest of the only bytes that are accepted.
    pub digest: Option<Digest>,
    /// Whether a signature is required. This overrides what holds for the source.
    pub require_signature: Option<bool>,
}

/// The plugin that is decided about.
#[derive(Clone, Debug)]
pub struct PluginOrigin<'a> {
    /// Name of its block, or the name it gives itself.
    pub name: &'a str,
    /// The way in which the bytes come to the agent.
    pub source: PluginSource,
    /// The path of its file, or its place in a registry.
    pub place: &'a str,
    /// Driver or device plugin, if that is known.
    pub kind: Option<PluginKind>,
    /// Digest of the bytes.
    pub digest: Digest,
}

/// Why a plugin is not trusted. Each message says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustRefusal {
    /// The trust file cannot be used.
    #[error("whether to trust it cannot be decided: {reason}; correct the trust file")]
    NoTrustFile {
        /// What is wrong with the trust file.
        reason: String,
    },
    /// The trust file revokes these bytes.
    #[error(
        "its digest {} is revoked at {place}: {reason}; replace the file with another version",
        digest.to_tagged()
    )]
    RevokedDigest {
        /// The digest of the bytes.
        digest: Digest,
        /// The place in the trust file.
        place: String,
        /// The operator's reason in the trust file.
        reason: String,
    },
    /// These are not the bytes that the block pins.
    #[error(
        "its block pins {}, and the file has {}; put the right file there, or if the new one is \
         meant configure\nplugin \"{name}\" {{\n  digest = \"{}\"\n}}",
        pinned.to_tagged(), found.to_tagged(), found.to_tagged()
    )]
    OtherDigest {
        /// The name of the block.
        name: String,
        /// The digest in the block.
        pinned: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// The signature cannot be read as one.
    #[error(
        "its signature, {}, is damaged: {error}; copy it again, or remove it",
        signature_place(place)
    )]
    DamagedSignature {
        /// The path or the reference of the plugin.
        place: String,
        /// What is wrong with the signature.
        #[source]
        error: SignatureError,
    },
    /// The signature is one of other bytes.
    #[error(
        "its signature by {key} (key {key_id}) does not match this file: the plugin or {} was changed; copy \
         both again from their source",
        signature_place(place)
    )]
    WrongSignature {
        /// The name of the key.
        key: String,
        /// The number of the key, as minisign shows it.
        key_id: KeyId,
        /// The path or the reference of the plugin.
        place: String,
    },
    /// The plugin is signed by a key that is revoked.
    #[error(
        "it is signed by {key} (key {key_id}), which is revoked at {place}: {reason}; have it \
         signed with another key"
    )]
    RevokedKey {
        /// The name of the key.
        key: String,
        /// The number of the key, as minisign shows it.
        key_id: KeyId,
        /// The place in the trust file.
        place: String,
        /// The operator's reason in the trust file.
        reason: String,
    },
    /// The plugin is signed by a key that may not sign it.
    #[error(
        "it is signed by {key} (key {key_id}), which may not sign {}; if it may, widen plugins or \
         kinds of the key at {place}, or add to the trust file\n{}",
        describe_plugin(name, *kind), digest_lines(*digest)
    )]
    BeyondScope {
        /// The name of the key.
        key: String,
        /// The number of the key, as minisign shows it.
        key_id: KeyId,
        /// The place of the key's block in the trust file.
        place: String,
        /// The name of the plugin.
        name: String,
        /// Driver or device plugin, if that is known.
        kind: Option<PluginKind>,
        /// The digest of the bytes.
        digest: Digest,
    },
    /// The plugin is signed by a key that the trust file does not name.
    #[error(
        "a signature is required, and it is signed by the key {key_id}, which is not in the trust \
         file; if that key is to be trusted, add to {trust}\nkey \"{name}\" {{\n  public_key = \
         \"second line of the signer's .pub file\"\n  plugins    = [\"{name}\"]\n}}"
    )]
    UnknownKey {
        /// The name of the plugin.
        name: String,
        /// The number of the key, as minisign shows it.
        key_id: KeyId,
        /// The path of the trust file.
        trust: String,
    },
    /// These bytes are listed in the trust file, but for other plugins.
    #[error(
        "its digest is listed at {place}, which does not let it be {}; if it may be, widen plugins or kinds \
         there: the names of the block and of the plugin itself must both fit",
        describe_plugin(name, *kind)
    )]
    DigestBeyondScope {
        /// The place of the digest in the trust file.
        place: String,
        /// The name of the plugin.
        name: String,
        /// Driver or device plugin, if that is known.
        kind: Option<PluginKind>,
    },
    /// The plugin has no signature.
    #[error(
        "a signature is required of plugins from {from}, and it has none; {}\nor trust exactly \
         these bytes by adding to {trust}\n{}",
        signing_advice(place), digest_lines(*digest)
    )]
    Unsigned {
        /// The name of the plugin.
        name: String,
        /// The way in which the plugin comes to the agent.
        from: PluginSource,
        /// The path or the reference of the plugin.
        place: String,
        /// The digest of the bytes.
        digest: Digest,
        /// The path of the trust file.
        trust: String,
    },
}

fn describe_plugin(name: &str, kind: Option<PluginKind>) -> String {
    match kind {
        Some(kind) => format!("the {kind} plugin {name}"),
        None => format!("the plugin {name}"),
    }
}

/// The place of a plugin's signature, for a message.
fn signature_place(place: &str) -> String {
    if place.starts_with(SCHEME) {
        format!("the signature layer of {place}")
    } else {
        format!("{place}.minisig")
    }
}

/// The advice on how to sign a plugin.
fn signing_advice(place: &str) -> String {
    if place.starts_with(SCHEME) {
        "have it pushed with one, a layer application/vnd.ostler.minisign.v1".to_owned()
    } else {
        format!("put one beside it with\nminisign -S -s SECRET_KEY -m {place}")
    }
}

/// The lines of a trust file that trust these bytes.
fn digest_lines(digest: Digest) -> String {
    format!("digest \"{}\" {{}}", digest.to_tagged())
}

/// Decide whether `subject` may be used. `signed` is the result of [`super::check`] for its bytes
/// and the trust file of `policy`.
///
/// # Errors
/// Why it may not be used.
pub fn verdict(
    policy: &Policy,
    demand: &Demand,
    subject: &PluginOrigin<'_>,
    signed: &SignatureCheck<'_>,
) -> Result<Voucher, TrustRefusal> {
    if subject.source == PluginSource::BuiltIn {
        // A block may pin a built-in plugin too, or rule it out by pinning a file.
        return check_pinned(demand, subject).map(|()| Voucher::Agent);
    }
    if let Some(Err(reason)) = &policy.file {
        return Err(TrustRefusal::NoTrustFile { reason: reason.clone() });
    }
    let trust = policy.trust();
    check_unusable(trust, demand, subject, signed)?;
    if let Some(voucher) = find_voucher(trust, subject, signed) {
        return Ok(voucher);
    }
    let required = policy.require.contains(&subject.source);
    if demand.require_signature.unwrap_or(required) {
        return Err(missing_voucher(trust, subject, signed));
    }
    Ok(if demand.digest.is_some() { Voucher::Pin } else { Voucher::Nobody })
}

/// Check what makes the bytes unusable, whoever vouches for them.
fn check_unusable(
    trust: Option<&TrustFile>,
    demand: &Demand,
    subject: &PluginOrigin<'_>,
    signed: &SignatureCheck<'_>,
) -> Result<(), TrustRefusal> {
    let place = |line| trust.map(|trust| trust.place(line)).unwrap_or_default();
    let (digest, file) = (subject.digest, subject.place.to_owned());
    let listed = trust.and_then(|trust| trust.digests.get(&digest));
    if let Some((listed, reason)) = listed.and_then(|l| Some((l, l.revoked.clone()?))) {
        return Err(TrustRefusal::RevokedDigest { digest, place: place(listed.line), reason });
    }
    check_pinned(demand, subject)?;
    match signed {
        SignatureCheck::Unreadable(error) => {
            Err(TrustRefusal::DamagedSignature { place: file, error: error.clone() })
        }
        SignatureCheck::Wrong { key } => Err(TrustRefusal::WrongSignature {
            key: key.name.clone(),
            key_id: key.key.id(),
            place: file,
        }),
        SignatureCheck::By { key, .. } => match &key.revoked {
            Some(reason) => Err(TrustRefusal::RevokedKey {
                key: key.name.clone(),
                key_id: key.key.id(),
                place: place(key.line),
                reason: reason.clone(),
            }),
            None => Ok(()),
        },
        SignatureCheck::Not | SignatureCheck::Unknown { .. } => Ok(()),
    }
}

/// Check that these are the bytes that the block pins, if it pins any.
fn check_pinned(demand: &Demand, subject: &PluginOrigin<'_>) -> Result<(), TrustRefusal> {
    let (name, found) = (subject.name.to_owned(), subject.digest);
    match demand.digest {
        Some(pinned) if pinned != found => Err(TrustRefusal::OtherDigest { name, pinned, found }),
        _ => Ok(()),
    }
}

/// Who vouches for the bytes in the trust file, if anybody does.
fn find_voucher(
    trust: Option<&TrustFile>,
    subject: &PluginOrigin<'_>,
    signed: &SignatureCheck<'_>,
) -> Option<Voucher> {
    if let SignatureCheck::By { key, comment } = signed
        && is_covered(&key.scope, subject)
    {
        return Some(Voucher::Key {
            name: key.name.clone(),
            key_id: key.key.id().to_string(),
            comment: comment.clone(),
        });
    }
    let trust = trust?;
    let listed = trust.digests.get(&subject.digest)?;
    is_covered(&listed.scope, subject).then(|| Voucher::Digest { place: trust.place(listed.line) })
}

/// Whether a scope covers the plugin. A plugin of unknown kind is not covered by a scope that
/// names kinds.
fn is_covered(scope: &TrustScope, subject: &PluginOrigin<'_>) -> bool {
    let named = |pattern: &String| wildcard(pattern, subject.name);
    let kind = |kind: &PluginKind| Some(*kind) == subject.kind;
    (scope.plugins.is_empty() || scope.plugins.iter().any(named))
        && (scope.kinds.is_empty() || scope.kinds.iter().any(kind))
}

/// The reason why nobody vouches for the plugin.
fn missing_voucher(
    trust: Option<&TrustFile>,
    subject: &PluginOrigin<'_>,
    signed: &SignatureCheck<'_>,
) -> TrustRefusal {
    let name = subject.name.to_owned();
    let listed = trust.and_then(|trust| Some((trust, trust.digests.get(&subject.digest)?)));
    if let Some((trust, listed)) = listed {
        // The digest is listed already; a second line for it would make the file unusable.
        let place = trust.place(listed.line);
        return TrustRefusal::DigestBeyondScope { place, name, kind: subject.kind };
    }
    let file = match trust {
        Some(trust) => trust.file.clone(),
        None => "a trust file (trust { file = \"…\" } in the configuration)".to_owned(),
    };
    match signed {
        SignatureCheck::Unknown { key } => {
            TrustRefusal::UnknownKey { name, key_id: *key, trust: file }
        }
        SignatureCheck::By { key, .. } => TrustRefusal::BeyondScope {
            key: key.name.clone(),
            key_id: key.key.id(),
            place: trust.map(|trust| trust.place(key.line)).unwrap_or_default(),
            name,
            kind: subject.kind,
            digest: subject.digest,
        },
        SignatureCheck::Not | SignatureCheck::Unreadable(_) | SignatureCheck::Wrong { .. } => {
            TrustRefusal::Unsigned {
                name,
                from: subject.source,
                place: subject.place.to_owned(),
                digest: subject.digest,
                trust: file,
            }
        }
    }
}
