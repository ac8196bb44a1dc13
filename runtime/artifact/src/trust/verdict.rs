//! The decision: may these bytes be used, and who says so.
//!
//! ```text
//! built in ─► yes, unless the block pins other bytes
//! revoked digest, another digest than pinned, damaged or wrong signature, revoked key ─► no
//! signed by a key that may sign it, or listed digest                        ─► yes
//! neither: required ─► no       not required ─► yes, and nobody vouches
//! ```
//! A digest that a block pins says which bytes are meant, not that somebody looked at them: it does
//! not stand in for a required signature. A digest in the trust file does.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::signature::{SignatureError, Signed};
use ostler_model::digest::Digest;
use ostler_model::grants::wildcard;
use ostler_model::oci::SCHEME;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{KeyId, PluginSource, TrustFile, TrustScope, Voucher};

/// What the operator demands of plugins.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The trust file: none is configured, or it was read, or why it cannot be used. The last
    /// refuses every plugin that is not built in: what it revokes is not known.
    pub file: Option<Result<Arc<TrustFile>, String>>,
    /// Sources whose plugins somebody must vouch for.
    pub require: BTreeSet<PluginSource>,
}

impl Policy {
    /// The trust file, when there is one that can be used.
    #[must_use]
    pub fn trust(&self) -> Option<&TrustFile> {
        self.file.as_ref()?.as_ref().ok().map(AsRef::as_ref)
    }
}

/// What the plugin's own block demands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The only bytes that will do.
    pub digest: Option<Digest>,
    /// In place of what holds for its source.
    pub require_signature: Option<bool>,
}

/// What is decided about.
#[derive(Clone, Debug)]
pub struct PluginOrigin<'a> {
    /// Name of its block, or the name it gives itself.
    pub name: &'a str,
    /// Where the bytes come from.
    pub source: PluginSource,
    /// Its file, or its place in a registry.
    pub place: &'a str,
    /// What it is, when that could be told.
    pub kind: Option<PluginKind>,
    /// Digest of the bytes.
    pub digest: Digest,
}

/// Why a plugin is not trusted; each says what would mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustRefusal {
    /// The trust file cannot be used.
    #[error("nothing can be said about its trust: {reason}; correct the trust file")]
    NoTrustFile {
        /// What is wrong with it.
        reason: String,
    },
    /// These bytes are revoked.
    #[error(
        "its digest {} is revoked at {place}: {reason}; replace the file with another version",
        digest.tagged()
    )]
    RevokedDigest {
        /// The digest.
        digest: Digest,
        /// Where it says so.
        place: String,
        /// The operator's words.
        reason: String,
    },
    /// Other bytes than the block pins.
    #[error(
        "its block pins {}, and the file has {}; put the right file there, or if the new one is \
         meant configure\nplugin \"{name}\" {{\n  digest = \"{}\"\n}}",
        pinned.tagged(), found.tagged(), found.tagged()
    )]
    OtherDigest {
        /// Name of the block.
        name: String,
        /// What the block says.
        pinned: Digest,
        /// What the bytes have.
        found: Digest,
    },
    /// A signature that is no signature.
    #[error("its signature, {}, is damaged: {error}; copy it again, or remove it", beside(place))]
    DamagedSignature {
        /// The plugin.
        place: String,
        /// What is wrong.
        #[source]
        error: SignatureError,
    },
    /// A signature of other bytes.
    #[error(
        "its signature by {key} (key {key_id}) is not one of these bytes: the plugin or {} was \
         changed; copy both again from where they come from",
        beside(place)
    )]
    WrongSignature {
        /// Name of the key.
        key: String,
        /// Its number.
        key_id: KeyId,
        /// The plugin.
        place: String,
    },
    /// Signed, but nothing by that key is trusted any more.
    #[error(
        "it is signed by {key} (key {key_id}), which is revoked at {place}: {reason}; have it \
         signed with another key"
    )]
    RevokedKey {
        /// Name of the key.
        key: String,
        /// Its number.
        key_id: KeyId,
        /// Where it says so.
        place: String,
        /// The operator's words.
        reason: String,
    },
    /// Signed by a key that may not sign this.
    #[error(
        "it is signed by {key} (key {key_id}), which may not sign {}; if it may, widen plugins or \
         kinds of the key at {place}, or add to the trust file\n{}",
        described(name, *kind), digest_lines(*digest)
    )]
    BeyondScope {
        /// Name of the key.
        key: String,
        /// Its number.
        key_id: KeyId,
        /// Where its block is.
        place: String,
        /// Name of the plugin.
        name: String,
        /// Its kind.
        kind: Option<PluginKind>,
        /// Its digest.
        digest: Digest,
    },
    /// Signed by a key that nobody named.
    #[error(
        "a signature is required, and it is signed by the key {key_id}, which is not in the trust \
         file; if that key is to be trusted, add to {trust}\nkey \"{name}\" {{\n  public_key = \
         \"second line of the signer's .pub file\"\n  plugins    = [\"{name}\"]\n}}"
    )]
    UnknownKey {
        /// Name of the plugin.
        name: String,
        /// The key's number.
        key_id: KeyId,
        /// The trust file.
        trust: String,
    },
    /// These bytes are listed, for others.
    #[error(
        "its digest is listed at {place}, which does not let it be {}; if it may be, widen plugins or kinds \
         there: the names of the block and of the plugin itself must both fit",
        described(name, *kind)
    )]
    DigestBeyondScope {
        /// Where the digest is listed.
        place: String,
        /// Name of the plugin.
        name: String,
        /// Its kind.
        kind: Option<PluginKind>,
    },
    /// Nobody signed it.
    #[error(
        "a signature is required of plugins from {from}, and it has none; {}\nor trust exactly \
         these bytes by adding to {trust}\n{}",
        signing(place), digest_lines(*digest)
    )]
    Unsigned {
        /// Name of the plugin.
        name: String,
        /// Where it comes from.
        from: PluginSource,
        /// Its file.
        place: String,
        /// Its digest.
        digest: Digest,
        /// The trust file.
        trust: String,
    },
}

fn described(name: &str, kind: Option<PluginKind>) -> String {
    match kind {
        Some(kind) => format!("the {kind} plugin {name}"),
        None => format!("the plugin {name}"),
    }
}

/// Where the signature of a plugin is.
fn beside(place: &str) -> String {
    match place.starts_with(SCHEME) {
        true => format!("the signature layer of {place}"),
        false => format!("{place}.minisig"),
    }
}

/// How a plugin gets a signature.
fn signing(place: &str) -> String {
    match place.starts_with(SCHEME) {
        true => "have it pushed with one, a layer application/vnd.ostler.minisign.v1".to_owned(),
        false => format!("put one beside it with\nminisign -S -s SECRET_KEY -m {place}"),
    }
}

/// The lines of a trust file that trust these bytes.
fn digest_lines(digest: Digest) -> String {
    format!("digest \"{}\" {{}}", digest.tagged())
}

/// May `subject` be used? `signed` is what [`super::check`] said of its bytes and the trust file of
/// `policy`.
///
/// # Errors
/// Why not.
pub fn verdict(
    policy: &Policy,
    demand: &Demand,
    subject: &PluginOrigin<'_>,
    signed: &Signed<'_>,
) -> Result<Voucher, TrustRefusal> {
    if subject.source == PluginSource::BuiltIn {
        // A block may pin what comes with the agent too, or rule it out by pinning a file.
        return pinned(demand, subject).map(|()| Voucher::Agent);
    }
    if let Some(Err(reason)) = &policy.file {
        return Err(TrustRefusal::NoTrustFile { reason: reason.clone() });
    }
    let trust = policy.trust();
    never(trust, demand, subject, signed)?;
    if let Some(voucher) = voucher(trust, subject, signed) {
        return Ok(voucher);
    }
    let required = policy.require.contains(&subject.source);
    if demand.require_signature.unwrap_or(required) {
        return Err(missing(trust, subject, signed));
    }
    Ok(if demand.digest.is_some() { Voucher::Pin } else { Voucher::Nobody })
}

/// What makes the bytes unusable whoever vouches for them.
fn never(
    trust: Option<&TrustFile>,
    demand: &Demand,
    subject: &PluginOrigin<'_>,
    signed: &Signed<'_>,
) -> Result<(), TrustRefusal> {
    let place = |line| trust.map(|trust| trust.place(line)).unwrap_or_default();
    let (digest, file) = (subject.digest, subject.place.to_owned());
    let listed = trust.and_then(|trust| trust.digests.get(&digest));
    if let Some((listed, reason)) = listed.and_then(|l| Some((l, l.revoked.clone()?))) {
        return Err(TrustRefusal::RevokedDigest { digest, place: place(listed.line), reason });
    }
    pinned(demand, subject)?;
    match signed {
        Signed::Unreadable(error) => {
            Err(TrustRefusal::DamagedSignature { place: file, error: error.clone() })
        }
        Signed::Wrong { key } => Err(TrustRefusal::WrongSignature {
            key: key.name.clone(),
            key_id: key.key.id(),
            place: file,
        }),
        Signed::By { key, .. } => match &key.revoked {
            Some(reason) => Err(TrustRefusal::RevokedKey {
                key: key.name.clone(),
                key_id: key.key.id(),
                place: place(key.line),
                reason: reason.clone(),
            }),
            None => Ok(()),
        },
        Signed::Not | Signed::Unknown { .. } => Ok(()),
    }
}

/// Are these the bytes that the block pins, if it does?
fn pinned(demand: &Demand, subject: &PluginOrigin<'_>) -> Result<(), TrustRefusal> {
    let (name, found) = (subject.name.to_owned(), subject.digest);
    match demand.digest {
        Some(pinned) if pinned != found => Err(TrustRefusal::OtherDigest { name, pinned, found }),
        _ => Ok(()),
    }
}

/// Who of the trust file vouches, if anybody.
fn voucher(
    trust: Option<&TrustFile>,
    subject: &PluginOrigin<'_>,
    signed: &Signed<'_>,
) -> Option<Voucher> {
    if let Signed::By { key, comment } = signed
        && covers(&key.scope, subject)
    {
        return Some(Voucher::Key {
            name: key.name.clone(),
            key_id: key.key.id().to_string(),
            comment: comment.clone(),
        });
    }
    let trust = trust?;
    let listed = trust.digests.get(&subject.digest)?;
    covers(&listed.scope, subject).then(|| Voucher::Digest { place: trust.place(listed.line) })
}

/// A kind that could not be told is covered by none that is named.
fn covers(scope: &TrustScope, subject: &PluginOrigin<'_>) -> bool {
    let named = |pattern: &String| wildcard(pattern, subject.name);
    let kind = |kind: &PluginKind| Some(*kind) == subject.kind;
    (scope.plugins.is_empty() || scope.plugins.iter().any(named))
        && (scope.kinds.is_empty() || scope.kinds.iter().any(kind))
}

/// Why nobody vouches.
fn missing(
    trust: Option<&TrustFile>,
    subject: &PluginOrigin<'_>,
    signed: &Signed<'_>,
) -> TrustRefusal {
    let name = subject.name.to_owned();
    let listed = trust.and_then(|trust| Some((trust, trust.digests.get(&subject.digest)?)));
    if let Some((trust, listed)) = listed {
        // It is there: a second line for it would make the file unusable.
        let place = trust.place(listed.line);
        return TrustRefusal::DigestBeyondScope { place, name, kind: subject.kind };
    }
    let file = match trust {
        Some(trust) => trust.file.clone(),
        None => "a trust file (trust { file = \"…\" } in the configuration)".to_owned(),
    };
    match signed {
        Signed::Unknown { key } => TrustRefusal::UnknownKey { name, key_id: *key, trust: file },
        Signed::By { key, .. } => TrustRefusal::BeyondScope {
            key: key.name.clone(),
            key_id: key.key.id(),
            place: trust.map(|trust| trust.place(key.line)).unwrap_or_default(),
            name,
            kind: subject.kind,
            digest: subject.digest,
        },
        Signed::Not | Signed::Unreadable(_) | Signed::Wrong { .. } => TrustRefusal::Unsigned {
            name,
            from: subject.source,
            place: subject.place.to_owned(),
            digest: subject.digest,
            trust: file,
        },
    }
}
