//! Replaces `${…}` in texts of a job by values of the task's environment and the node.
//!
//! ```text
//! ${NOMAD_PORT_http} ${env.X} ${env["X"]}      variables of the task
//! ${attr.cpu.arch}   ${meta.rack}              attributes and meta of the node
//! ${node.unique.id|unique.name|datacenter|class|region|pool}   ${job.dir}
//! ```
//! One rule holds for every field: a known reference is replaced, and everything else is text and
//! stays as it is, such as a shell's `${1}` and `${X:-2}`, or an unknown name. A text that looks
//! like a reference of a job but is unknown is reported ([`unknown_references`]). Replaced text is
//! not looked at again, so a value cannot smuggle a reference in.
//!
//! A task's `config` is a template, as it is in Nomad: there `$${` means `${`, and `%%{` means
//! `%{`. No other field has such escapes.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use ostler_model::json::JsonObject;
use ostler_model::limits::{JOB_NESTING_MAX, MIB};

/// Largest text after interpolation, over one string or one whole object, bytes. A short text with
/// many references to one long value would otherwise grow without bound; the kernel takes 2 MiB of
/// arguments and environment together.
pub const INTERPOLATED_BYTES_MAX: usize = MIB as usize;
/// Most unknown references that are reported.
const UNKNOWN_MAX: usize = 16;
/// Longest reference shown, characters.
const REFERENCE_CHARS_SHOWN: usize = 64;
/// The first words of a job's references, before a `.` or `[`.
const ROOTS: [&str; 6] = ["attr", "meta", "node", "env", "device", "job"];

/// A reference of a job that nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownReference {
    /// What stands between `${` and `}`, cut when very long.
    pub reference: String,
    /// The known name most like it.
    pub nearest: Option<String>,
}

impl std::fmt::Display for UnknownReference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "${{{}}}", self.reference)?;
        match &self.nearest {
            Some(nearest) => write!(f, " (nearest: ${{{nearest}}})"),
            None => Ok(()),
        }
    }
}

/// Why a text could not be interpolated. Trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpolateError {
    /// The result is too long.
    #[error("the text is longer than {max} bytes after replacing its variables")]
    TooLong {
        /// Most bytes that the result may have.
        max: usize,
    },
    /// JSON inside JSON inside JSON …
    #[error("values are nested deeper than {max} levels")]
    TooDeep {
        /// Most levels that are allowed.
        max: usize,
    },
}

/// The values that references stand for, borrowed for one interpolation.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    /// Variables of the task.
    pub env: &'a BTreeMap<String, String>,
    /// Attributes of the node, without `attr.`.
    pub attributes: &'a BTreeMap<String, String>,
    /// Meta of the node, without `meta.`.
    pub meta: &'a BTreeMap<String, String>,
    /// Everything else by its full name: `node.class`, `job.dir`.
    pub facts: &'a BTreeMap<&'static str, String>,
}

impl<'a> Variables<'a> {
    pub(super) fn get(&self, reference: &str) -> Option<&'a str> {
        if let Some(value) = self.facts.get(reference) {
            return Some(value);
        }
        let (map, key) = match split_prefix(reference) {
            Some(("env", key)) => (self.env, key),
            Some(("attr", key)) => (self.attributes, key),
            Some(("meta", key)) => (self.meta, key),
            _ => (self.env, reference),
        };
        map.get(key).map(String::as_str)
    }

    fn nearest(&self, reference: &str) -> Option<String> {
        let reference: String = reference.chars().take(REFERENCE_CHARS_SHOWN).collect();
        let named = |prefix: &'static str, map: &'a BTreeMap<String, String>| {
            map.keys().map(move |k| format!("{prefix}{k}"))
        };
        let env_prefix = if reference.starts_with("env") { "env." } else { "" };
        self.facts
            .keys()
            .map(|k| (*k).to_owned())
            .chain(named(env_prefix, self.env))
            .chain(named("attr.", self.attributes))
            .chain(named("meta.", self.meta))
            .filter(|name| name.len() <= 2 * REFERENCE_CHARS_SHOWN)
            .filter_map(|name| Some((name_distance(&reference, &name)?, name)))
            .min()
            .map(|(_, name)| name)
    }
}

/// By how many letters a known name differs from a reference; `None`: by more than a third of the
/// letters that tell the name from others. A prefix such as `NOMAD_` does not count, because all
/// variables have it.
fn name_distance(reference: &str, name: &str) -> Option<usize> {
    let mut own = (reference, name);
    for root in ROOTS.iter().map(|root| format!("{root}.")).chain(["NOMAD_".to_owned()]) {
        if let (Some(one), Some(other)) = (own.0.strip_prefix(&root), own.1.strip_prefix(&root)) {
            own = (one, other);
        }
    }
    let (one, other) = (own.0.chars().count(), own.1.chars().count());
    // A name of a single letter resembles no other name.
    let distance = Some(strsim::levenshtein(own.0, own.1)).filter(|_| one.min(other) > 1)?;
    (distance <= (one.max(other) / 3).max(1)).then_some(distance)
}

/// `env.X`, `env["X"]` → (`env`, `X`); the same for `attr` and `meta`.
fn split_prefix(reference: &str) -> Option<(&str, &str)> {
    let end = reference.find(['.', '['])?;
    let (prefix, rest) = reference.split_at_checked(end)?;
    if let Some(key) = rest.strip_prefix('.') {
        return Some((prefix, key));
    }
    let key = rest.strip_prefix("[\"")?.strip_suffix("\"]")?;
    Some((prefix, key))
}

/// Replace the references in one text.
///
/// # Errors
/// [`InterpolateError::TooLong`]: the result is longer than [`INTERPOLATED_BYTES_MAX`].
pub fn interpolate(text: &str, scope: Variables<'_>) -> Result<String, InterpolateError> {
    Interpolator { scope, bytes_left: INTERPOLATED_BYTES_MAX, template: false }.text(text)
}

/// Replace the references in every string of the `config` of a task, at any depth, and resolve its
/// escapes. Keys stay as they are.
///
/// # Errors
/// As [`interpolate`], the bound taken over all strings together; and when the object is nested
/// deeper than a job file can be.
pub fn interpolate_config(
    config: &JsonObject,
    scope: Variables<'_>,
) -> Result<JsonObject, InterpolateError> {
    let mut run = Interpolator { scope, bytes_left: INTERPOLATED_BYTES_MAX, template: true };
    Ok(JsonObject::from(run.object(config.map(), 0)?))
}

/// The texts that look like references of a job and are unknown, each once.
pub fn unknown_references<'t>(
    texts: impl IntoIterator<Item = &'t str>,
    scope: Variables<'_>,
) -> Vec<UnknownReference> {
    let mut unknown: Vec<UnknownReference> = Vec::new();
    for text in texts {
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            rest = after;
            let Some((reference, _)) = reference_at(after) else { continue };
            if before.ends_with('$')
                || !is_job_reference(reference)
                || scope.get(reference).is_some()
            {
                continue;
            }
            let shown: String = reference.chars().take(REFERENCE_CHARS_SHOWN).collect();
            if unknown.iter().any(|known| known.reference == shown) {
                continue;
            }
            if unknown.len() == UNKNOWN_MAX {
                return unknown;
            }
            unknown.push(UnknownReference { reference: shown, nearest: scope.nearest(reference) });
        }
    }
    unknown
}

/// Every string of an object, at any depth.
pub fn strings_of(object: &JsonObject) -> Vec<&str> {
    fn add<'v>(value: &'v Value, into: &mut Vec<&'v str>, depth: usize) {
        match value {
            Value::String(text) => into.push(text),
            Value::Array(items) if depth < JOB_NESTING_MAX => {
                items.iter().for_each(|item| add(item, into, depth + 1));
            }
            Value::Object(object) if depth < JOB_NESTING_MAX => {
                object.values().for_each(|value| add(value, into, depth + 1));
            }
            _ => {}
        }
    }
    let mut strings = Vec::new();
    object.map().values().for_each(|value| add(value, &mut strings, 0));
    strings
}

/// Is the text meant as a reference of a job? `NOMAD_X` and `attr.x` are; `X` and `NOMAD_X:-1` may
/// be meant for a shell.
fn is_job_reference(reference: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match split_prefix(reference) {
        Some((root, key)) if ROOTS.contains(&root) => {
            let bracketed = reference.ends_with(']');
            !key.is_empty() && (bracketed || key.chars().all(plain))
        }
        _ => reference.starts_with("NOMAD_") && reference.chars().all(plain),
    }
}

/// The reference that this text begins with, and the text after its `}`. The search stops where the
/// next reference may begin, so that the text is read once, however many references are open.
fn reference_at(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    let end = text.char_indices().find(|(_, c)| match c {
        '"' => {
            quoted = !quoted;
            false
        }
        '}' => !quoted,
        '$' | '{' | '\n' => true,
        _ => false,
    });
    let (at, _) = end.filter(|(_, c)| *c == '}')?;
    let (reference, rest) = text.split_at_checked(at)?;
    Some((reference.trim(), rest.strip_prefix('}')?))
}

/// One interpolation, with what is left of its size bound.
struct Interpolator<'a> {
    scope: Variables<'a>,
    bytes_left: usize,
    /// The text has the escapes `$${` and `%%{` for `${` and `%{`.
    template: bool,
}

impl Interpolator<'_> {
    fn text(&mut self, text: &str) -> Result<String, InterpolateError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['$', '%']) {
            let (before, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
            self.append(&mut out, before)?;
            let twice = ["$${", "%%{"].into_iter().find(|twice| from.starts_with(twice));
            if let Some(twice) = twice.filter(|_| self.template) {
                self.append(&mut out, twice.get(1..).unwrap_or_default())?;
                rest = from.get(twice.len()..).unwrap_or_default();
                continue;
            }
            let known = from.strip_prefix("${").and_then(reference_at);
            let known = known.and_then(|(name, rest)| Some((self.scope.get(name)?, rest)));
            if let Some((value, after)) = known {
                self.append(&mut out, value)?;
                rest = after;
                continue;
            }
            let (sign, after) = from.split_at_checked(1).unwrap_or((from, ""));
            self.append(&mut out, sign)?;
            rest = after;
        }
        self.append(&mut out, rest)?;
        Ok(out)
    }

    fn append(&mut self, out: &mut String, text: &str) -> Result<(), InterpolateError> {
        self.bytes_left = self
            .bytes_left
            .checked_sub(text.len())
            .ok_or(InterpolateError::TooLong { max: INTERPOLATED_BYTES_MAX })?;
        out.push_str(text);
        Ok(())
    }

    fn object(
        &mut self,
        object: &Map<String, Value>,
        depth: usize,
    ) -> Result<Map<String, Value>, InterpolateError> {
        object.iter().map(|(key, value)| Ok((key.clone(), self.value(value, depth)?))).collect()
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<Value, InterpolateError> {
        if depth > JOB_NESTING_MAX {
            return Err(InterpolateError::TooDeep { max: JOB_NESTING_MAX });
        }
        Ok(match value {
            Value::String(text) => Value::String(self.text(text)?),
            Value::Array(items) => Value::Array(
                items.iter().map(|item| self.value(item, depth + 1)).collect::<Result<_, _>>()?,
            ),
            Value::Object(object) => Value::Object(self.object(object, depth + 1)?),
            other => other.clone(),
        })
    }
}

#[cfg(test)]
#[path = "interpolate_tests.rs"]
mod tests;
