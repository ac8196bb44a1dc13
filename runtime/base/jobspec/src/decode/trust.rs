//! Decodes whom the operator trusts: the `trust` block of the configuration, and the trust file.
//!
//! ```hcl
//! key "release" {
//!   public_key = "RWQ…"
//!   plugins    = ["acme-*"]
//!   kinds      = ["device"]
//! }
//! key "old" {
//!   public_key = "RWQ…"
//!   revoked    = "lost in May"
//! }
//! digest "sha256:…" { plugins = ["exec2"] }
//! digest "sha256:…" { revoked = "loses files" }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::offset;
use crate::diagnostic::{Diagnostics, quote_text};
use crate::keys::{Context, Keys as _, Setting, Texts, choice, keys};
use crate::tree::Block;
use crate::{Inputs, Syntax, hcl, text};
use ostler_model::config::RegistryConfig;
use ostler_model::digest::Digest;
use ostler_model::limits::{
    NAME_BYTES_MAX, TRUST_DIGESTS_MAX, TRUST_FILE_BYTES_MAX, TRUST_KEYS_MAX, TRUST_PATTERNS_MAX,
};
use ostler_model::oci::{OciReference, SCHEME};
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{
    ListedDigest, PluginSource, PublicKey, TrustConfig, TrustFile, TrustScope, TrustedKey,
};

/// The longest reason of a revocation, in bytes: room for one sentence.
const REASON_BYTES_MAX: usize = 512;
const KINDS: [(&str, PluginKind); 2] =
    [("driver", PluginKind::Driver), ("device", PluginKind::Device)];

keys! {
    struct TrustKeys: "trust" {
        /// The trust file: keys and digests that are trusted.
        file: Setting<PathBuf>, "none";
        /// Sources whose plugins need a signature or a listed digest: `plugin_dir`, `file`, `oci`.
        require_signature: Texts, "none";
    }
}

keys! {
    struct RegistryKeys: "a registry block", label Name {
        /// Asked over plain HTTP.
        insecure: Setting<bool> = false;
    }
}

keys! {
    struct TrustFileKeys: "the trust file" {
        /// A key whose signatures are trusted, by a name for people.
        keys "key": Vec<PublicKeyKeys>;
        /// A file that is trusted, or not, by its digest.
        digests "digest": Vec<DigestKeys>;
    }
}

keys! {
    struct PublicKeyKeys: "a key block", label Name {
        /// The second line of the key's `.pub` file.
        public_key: Setting<String>, "needed";
        /// Names or patterns of plugins it vouches for.
        plugins: Texts, "any";
        /// What it vouches for: `driver`, `device`.
        kinds: Texts, "any";
        /// Why it is not trusted any more.
        revoked: Setting<String>, "trusted";
    }
}

keys! {
    struct DigestKeys: "a digest block", label Name {
        /// Names or patterns of plugins that may have these bytes.
        plugins: Texts, "any";
        /// What the plugin may be: `driver`, `device`.
        kinds: Texts, "any";
        /// Why the bytes are refused.
        revoked: Setting<String>, "trusted";
    }
}

/// Decode a `trust` block.
pub(super) fn trust(keys: TrustKeys, cx: &mut Context<'_>) -> TrustConfig {
    let sources = keys.require_signature.value.into_iter().flatten();
    let sources = sources.filter_map(|(text, at)| {
        choice("source of plugins", &text, at, &PluginSource::OUTSIDE, cx)
    });
    let require_signature = sources.collect();
    let trust = TrustConfig { file: keys.file.value, require_signature };
    if trust.file.is_none() && !trust.require_signature.is_empty() {
        let message = "signatures are required and no key is known; name a trust file with \
                       file = \"trust.hcl\"";
        cx.error(keys.at, message);
    }
    trust
}

/// Decode the `registry` blocks, by host and port.
pub(super) fn registries(
    blocks: Vec<RegistryKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<String, RegistryConfig> {
    let mut registries = BTreeMap::new();
    for keys in blocks {
        let label = keys.label;
        // The label must be a registry that a reference can name.
        if let Err(error) = format!("{SCHEME}{}/x:x", label.name).parse::<OciReference>() {
            cx.error(label.span, error.to_string());
        }
        let registry = RegistryConfig { insecure: keys.insecure.get() };
        if registries.insert(label.name.to_ascii_lowercase(), registry).is_some() {
            cx.error(
                label.span,
                format!("a registry {} is already defined", quote_text(&label.name)),
            );
        }
    }
    registries
}

/// Read a trust file. An empty one trusts nobody.
///
/// # Errors
/// All problems of the text, with their places; never empty.
pub fn parse_trust_file(input: &[u8], file: &Path) -> Result<TrustFile, Diagnostics> {
    let what = "the trust file";
    let (mut trust, text, _) =
        text::read_whole(input, file, TRUST_FILE_BYTES_MAX, what, |text, sink| {
            let cx = &mut Context::new(sink, Syntax::Hcl);
            let keys = TrustFileKeys::read(
                Block::from_body(hcl::read(text, &Inputs::default(), cx.sink)?),
                cx,
            );
            let (digests, file) = (digests(keys.digests, cx), String::new());
            Some(TrustFile { file, keys: trusted_keys(keys.keys, cx), digests })
        })?;
    let line = text::lines_of(text);
    trust.keys.iter_mut().for_each(|key| line(&mut key.line));
    trust.digests.values_mut().for_each(|digest| line(&mut digest.line));
    trust.file = file.display().to_string();
    Ok(trust)
}

fn trusted_keys(blocks: Vec<PublicKeyKeys>, cx: &mut Context<'_>) -> Vec<TrustedKey> {
    let mut names = BTreeSet::new();
    let mut trusted: Vec<TrustedKey> = Vec::new();
    for keys in blocks {
        let label = keys.label;
        if trusted.len() >= TRUST_KEYS_MAX {
            cx.error(label.span, format!("a trust file has at most {TRUST_KEYS_MAX} keys"));
            break;
        }
        if !keys.public_key.was_given {
            let message = "a key needs public_key = \"RW…\", the second line of its .pub file";
            cx.error(label.span, message);
        }
        let scope = scope(keys.plugins, keys.kinds, cx);
        let revoked = revocation_reason(keys.revoked, cx);
        if label.name.trim().is_empty() || label.name.len() > NAME_BYTES_MAX {
            cx.error(label.span, format!("a name of a key has 1 to {NAME_BYTES_MAX} bytes"));
        }
        cx.add_unique(&mut names, "a key", &label);
        let parse = |text: String| PublicKey::parse(&text).map_err(|e| format!("public_key: {e}"));
        let Some(key) = keys.public_key.parse_with(cx, parse) else { continue };
        // Two blocks of one key could contradict each other: one revoked, and one not.
        let same =
            |other: &&TrustedKey| other.key.id() == key.id() || other.key.is_same_point(&key);
        if let Some(other) = trusted.iter().find(same) {
            let message = format!("this is the key of {}; give it once", quote_text(&other.name));
            cx.error(label.span, message);
        }
        let line = offset(keys.at);
        trusted.push(TrustedKey { name: label.name, key, scope, revoked, line });
    }
    trusted
}

fn digests(blocks: Vec<DigestKeys>, cx: &mut Context<'_>) -> BTreeMap<Digest, ListedDigest> {
    let mut digests = BTreeMap::new();
    for keys in blocks {
        let label = keys.label;
        if digests.len() >= TRUST_DIGESTS_MAX {
            cx.error(label.span, format!("a trust file has at most {TRUST_DIGESTS_MAX} digests"));
            break;
        }
        let (scope, line) = (scope(keys.plugins, keys.kinds, cx), offset(keys.at));
        let listed = ListedDigest { scope, revoked: revocation_reason(keys.revoked, cx), line };
        match label.name.parse::<Digest>() {
            Err(error) => cx.error(label.span, error.to_string()),
            Ok(digest) if digests.contains_key(&digest) => {
                cx.error(label.span, "this digest is already listed; give it once");
            }
            Ok(digest) => drop(digests.insert(digest, listed)),
        }
    }
    digests
}

/// The plugins that a key or a digest vouches for.
fn scope(plugins: Texts, kinds: Texts, cx: &mut Context<'_>) -> TrustScope {
    let plugins = patterns(plugins, cx);
    let Some((kinds, at)) = kinds.with_place() else {
        return TrustScope { plugins, kinds: Vec::new() };
    };
    if kinds.is_empty() {
        cx.error(at, "kinds must not be empty; leave it out for any kind");
    }
    let kinds = kinds.into_iter();
    let kinds = kinds.filter_map(|(text, at)| choice("kind of plugins", &text, at, &KINDS, cx));
    TrustScope { plugins, kinds: kinds.collect() }
}

fn revocation_reason(reason: Setting<String>, cx: &mut Context<'_>) -> Option<String> {
    let (reason, at) = reason.with_place()?;
    if reason.trim().is_empty() || reason.len() > REASON_BYTES_MAX {
        cx.error(at, format!("revoked says why, in 1 to {REASON_BYTES_MAX} bytes"));
    }
    Some(reason)
}

fn patterns(texts: Texts, cx: &mut Context<'_>) -> Vec<String> {
    let count = texts.value.as_ref().map_or(1, Vec::len);
    if count == 0 {
        cx.error(texts.at, "plugins must not be empty; leave it out for any plugin");
    }
    if count > TRUST_PATTERNS_MAX {
        cx.error(texts.at, format!("at most {TRUST_PATTERNS_MAX} patterns; use * or another key"));
    }
    texts.check(cx, |text| {
        (text.is_empty() || text.len() > NAME_BYTES_MAX)
            .then(|| format!("a name of plugins has 1 to {NAME_BYTES_MAX} bytes"))
    });
    texts.plain().unwrap_or_default()
}
