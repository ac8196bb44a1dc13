//! Whom the operator believes: the `trust` block of the configuration, and the trust file.
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
use std::path::Path;

use super::super::diagnostic::{Diagnostics, Sink, Span, shown};
use super::super::schema::{Field, Schema, Shape};
use super::super::tree::{Block, Body};
use super::super::{Format, hcl};
use super::{Context, Reader};
use ostler_model::config::RegistryConfig;
use ostler_model::digest::Digest;
use ostler_model::limits::{
    NAME_BYTES_MAX, TRUST_DIGESTS_MAX, TRUST_FILE_BYTES_MAX, TRUST_KEYS_MAX, TRUST_PATTERNS_MAX,
};
use ostler_model::oci::{NoReference, Reference, SCHEME};
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{
    ListedDigest, PluginSource, PublicKey, Scope, TrustConfig, TrustFile, TrustedKey,
};

/// Longest reason of a revocation, bytes: one sentence.
const REASON_BYTES_MAX: usize = 512;
const KINDS: [(&str, PluginKind); 2] =
    [("driver", PluginKind::Driver), ("device", PluginKind::Device)];

const fn field(name: &'static str, shape: Shape) -> Field {
    Field { hcl: name, json: "", shape }
}

const fn labelled(name: &'static str, schema: &'static Schema) -> Field {
    field(name, Shape::Block { schema, label: Some("Name"), many: true })
}

/// The `trust` block of the agent's configuration.
pub(super) static TRUST: Schema = Schema {
    what: "trust",
    fields: &[field("file", Shape::Text), field("require_signature", Shape::TextList)],
};

/// A `registry` block of the agent's configuration.
pub(super) static REGISTRY: Schema =
    Schema { what: "a registry block", fields: &[field("insecure", Shape::Bool)] };

static FILE: Schema = Schema {
    what: "the trust file",
    fields: &[labelled("key", &KEY), labelled("digest", &DIGEST)],
};

static KEY: Schema = Schema {
    what: "a key block",
    fields: &[
        field("public_key", Shape::Text),
        field("plugins", Shape::TextList),
        field("kinds", Shape::TextList),
        field("revoked", Shape::Text),
    ],
};

static DIGEST: Schema = Schema {
    what: "a digest block",
    fields: &[
        field("plugins", Shape::TextList),
        field("kinds", Shape::TextList),
        field("revoked", Shape::Text),
    ],
};

/// Read the `trust` block.
pub(super) fn trust(block: Block, cx: &mut Context<'_>) -> TrustConfig {
    let mut reader = Reader::new(block.body, &TRUST, cx);
    let file = super::agent::path("file", &mut reader, cx);
    let mut require_signature = BTreeSet::new();
    for given in reader.texts("require_signature", cx).map(|(texts, _)| texts).unwrap_or_default() {
        let source = cx.choice("source of plugins", Some(given), &PluginSource::OUTSIDE);
        require_signature.extend(source);
    }
    reader.finish();
    if file.is_none() && !require_signature.is_empty() {
        let message = "signatures are required and no key is known; name a trust file with \
                       file = \"trust.hcl\"";
        cx.error(block.key.span, message);
    }
    TrustConfig { file, require_signature }
}

/// Read the `registry` blocks, by host and port.
pub(super) fn registries(
    blocks: Vec<Block>,
    cx: &mut Context<'_>,
) -> BTreeMap<String, RegistryConfig> {
    let mut registries = BTreeMap::new();
    for mut block in blocks {
        let Some(label) = block.labels.drain(..).next() else { continue };
        // What a reference can name, and nothing else.
        if let Err(error) = format!("{SCHEME}{}/x:x", label.name).parse::<Reference>() {
            cx.error(label.span, error.to_string());
        }
        let mut reader = Reader::new(block.body, &REGISTRY, cx);
        let insecure = reader.boolean("insecure", cx).unwrap_or(false);
        reader.finish();
        let name = label.name.to_ascii_lowercase();
        if registries.insert(name, RegistryConfig { insecure }).is_some() {
            cx.error(label.span, format!("a registry {} is here already", shown(&label.name)));
        }
    }
    registries
}

/// A place in a registry that stands at `source`; a file beside it would be another place.
pub(super) fn source(reader: &mut Reader, cx: &mut Context<'_>) -> Option<Reference> {
    let (text, at) = reader.text("source", cx)?;
    if reader.was_given("file") {
        cx.error(at, "file and source are two places; give one");
    }
    text.parse().map_err(|error: NoReference| cx.error(at, error.to_string())).ok()
}

/// A digest that stands at `name`.
pub(super) fn digest_at(
    name: &'static str,
    reader: &mut Reader,
    cx: &mut Context<'_>,
) -> Option<Digest> {
    let (text, at) = reader.text(name, cx)?;
    text.parse().map_err(|error| cx.error(at, format!("{name}: {error}"))).ok()
}

/// Read a trust file. An empty one believes nobody.
///
/// # Errors
/// Everything that is wrong, with places; never empty.
pub fn parse_trust_file(input: &[u8], file: &Path) -> Result<TrustFile, Diagnostics> {
    let name = file.display().to_string();
    let mut sink = Sink::default();
    let text = match super::agent::text_of(input, TRUST_FILE_BYTES_MAX, "the trust file", &mut sink)
    {
        Ok(text) => text,
        Err(before) => return Err(sink.finish(before, &name)),
    };
    let trust = hcl::read(text, &mut sink)
        .map(|body| trust_file(body, &mut Context::new(&mut sink, Format::Hcl)));
    match trust {
        Some(mut trust) if sink.is_empty() => {
            let line = super::agent::lines_of(text);
            trust.keys.iter_mut().for_each(|key| line(&mut key.line));
            trust.digests.values_mut().for_each(|digest| line(&mut digest.line));
            trust.file = name;
            Ok(trust)
        }
        _ => {
            if sink.is_empty() {
                sink.error(Span::default(), "the trust file cannot be used");
            }
            Err(sink.finish(text, &name))
        }
    }
}

fn trust_file(body: Body, cx: &mut Context<'_>) -> TrustFile {
    let mut reader = Reader::new(body, &FILE, cx);
    let keys = keys(reader.blocks("key"), cx);
    let digests = digests(reader.blocks("digest"), cx);
    reader.finish();
    TrustFile { file: String::new(), keys, digests }
}

fn keys(blocks: Vec<Block>, cx: &mut Context<'_>) -> Vec<TrustedKey> {
    let mut keys: Vec<TrustedKey> = Vec::new();
    for mut block in blocks {
        let Some(label) = block.labels.drain(..).next() else { continue };
        if keys.len() >= TRUST_KEYS_MAX {
            cx.error(label.span, format!("a trust file has at most {TRUST_KEYS_MAX} keys"));
            break;
        }
        let line = offset(block.key.span);
        let mut reader = Reader::new(block.body, &KEY, cx);
        let key = public_key(&mut reader, label.span, cx);
        let (scope, revoked) = said(&mut reader, cx);
        reader.finish();
        if label.name.trim().is_empty() || label.name.len() > NAME_BYTES_MAX {
            cx.error(label.span, format!("a name of a key has 1 to {NAME_BYTES_MAX} bytes"));
        }
        if keys.iter().any(|other| other.name == label.name) {
            cx.error(label.span, format!("a key {} is here already", shown(&label.name)));
        }
        let Some(key) = key else { continue };
        // One revoked and one not would say two things of the same signature.
        let same =
            |other: &&TrustedKey| other.key.id() == key.id() || other.key.is_same_point(&key);
        if let Some(other) = keys.iter().find(same) {
            let message = format!("this is the key of {}; say it once", shown(&other.name));
            cx.error(label.span, message);
        }
        keys.push(TrustedKey { name: label.name, key, scope, revoked, line });
    }
    keys
}

fn public_key(reader: &mut Reader, block: Span, cx: &mut Context<'_>) -> Option<PublicKey> {
    let Some((text, at)) = reader.text("public_key", cx) else {
        if !reader.was_given("public_key") {
            cx.error(block, "a key needs public_key = \"RW…\", the second line of its .pub file");
        }
        return None;
    };
    PublicKey::parse(&text).map_err(|error| cx.error(at, format!("public_key: {error}"))).ok()
}

fn digests(blocks: Vec<Block>, cx: &mut Context<'_>) -> BTreeMap<Digest, ListedDigest> {
    let mut digests = BTreeMap::new();
    for mut block in blocks {
        let Some(label) = block.labels.drain(..).next() else { continue };
        if digests.len() >= TRUST_DIGESTS_MAX {
            cx.error(label.span, format!("a trust file has at most {TRUST_DIGESTS_MAX} digests"));
            break;
        }
        let line = offset(block.key.span);
        let mut reader = Reader::new(block.body, &DIGEST, cx);
        let (scope, revoked) = said(&mut reader, cx);
        reader.finish();
        match label.name.parse::<Digest>() {
            Err(error) => cx.error(label.span, error.to_string()),
            Ok(digest) if digests.contains_key(&digest) => {
                cx.error(label.span, "this digest is here already; say it once");
            }
            Ok(digest) => drop(digests.insert(digest, ListedDigest { scope, revoked, line })),
        }
    }
    digests
}

/// What keys and digests have in common.
fn said(reader: &mut Reader, cx: &mut Context<'_>) -> (Scope, Option<String>) {
    let plugins = patterns(reader, cx);
    let kinds = reader.texts("kinds", cx).map(|(texts, at)| {
        if texts.is_empty() {
            cx.error(at, "kinds must not be empty; leave it out for any kind");
        }
        let kinds: Vec<_> = texts
            .into_iter()
            .map(|given| cx.choice("kind of plugins", Some(given), &KINDS))
            .collect();
        kinds.into_iter().flatten().collect()
    });
    let revoked = reader.text("revoked", cx).map(|(reason, at)| {
        if reason.trim().is_empty() || reason.len() > REASON_BYTES_MAX {
            let message = format!("revoked says why, in 1 to {REASON_BYTES_MAX} bytes");
            cx.error(at, message);
        }
        reason
    });
    (Scope { plugins, kinds: kinds.unwrap_or_default() }, revoked)
}

fn patterns(reader: &mut Reader, cx: &mut Context<'_>) -> Vec<String> {
    let Some((texts, at)) = reader.texts("plugins", cx) else { return Vec::new() };
    if texts.is_empty() {
        cx.error(at, "plugins must not be empty; leave it out for any plugin");
    }
    if texts.len() > TRUST_PATTERNS_MAX {
        cx.error(at, format!("at most {TRUST_PATTERNS_MAX} patterns; use * or another key"));
    }
    let mut patterns = Vec::new();
    for (text, at) in texts.into_iter().take(TRUST_PATTERNS_MAX) {
        if text.is_empty() || text.len() > NAME_BYTES_MAX {
            cx.error(at, format!("a name of plugins has 1 to {NAME_BYTES_MAX} bytes"));
        }
        patterns.push(text);
    }
    patterns
}

fn offset(span: Span) -> u32 {
    u32::try_from(span.start).unwrap_or(u32::MAX)
}
