//! `${…}` in strings and in JSON, replaced by values of the task's environment and the node.
//!
//! ```text
//! ${NOMAD_PORT_http} ${env.X} ${env["X"]}      variables of the task
//! ${attr.cpu.arch}   ${meta.rack}              attributes and meta of the node
//! ${node.unique.id|unique.name|datacenter|class|region|pool}   ${job.dir}
//! $${HOME}                                     becomes ${HOME}, for a shell to read
//! ```
//! Nothing is silently empty: a reference nobody knows is an error with the nearest known name.
//! Replaced text is not looked at again, so a value cannot smuggle a reference in.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use ostler_model::json::JsonObject;
use ostler_model::limits::{JOB_NESTING_MAX, MIB};

/// Largest text after interpolation, over one string or one whole object, bytes. A short text with
/// many references to one long value would otherwise grow without bound; the kernel takes 2 MiB of
/// arguments and environment together.
pub const INTERPOLATED_BYTES_MAX: usize = MIB as usize;
/// Most unknown references named in one error.
const UNKNOWN_MAX: usize = 16;
/// Longest reference shown in an error, characters.
const REFERENCE_CHARS_SHOWN: usize = 64;

/// A reference nobody knows.
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
    /// References nobody knows, each once.
    #[error(
        "unknown variables: {}; write $${{…}} for text that shall stay as it is",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Unknown(Vec<UnknownReference>),
    /// `${` without `}`.
    #[error("${{ without }} at \"{near}\"; write $${{ for a literal ${{")]
    Unclosed {
        /// The beginning of what follows.
        near: String,
    },
    /// The result is too long.
    #[error("the text is longer than {max} bytes after replacing its variables")]
    TooLong {
        /// Largest result, bytes.
        max: usize,
    },
    /// JSON inside JSON inside JSON …
    #[error("values are nested deeper than {max} levels")]
    TooDeep {
        /// Deepest nesting.
        max: usize,
    },
}

/// What references mean. Borrowed, made for one interpolation.
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
            .map(|name| (strsim::levenshtein(&reference, &name), name))
            .min()
            .filter(|(distance, _)| *distance <= 2 + reference.chars().count() / 3)
            .map(|(_, name)| name)
    }
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
/// [`InterpolateError`]: unknown references (all of them), an unclosed one, or a result longer
/// than [`INTERPOLATED_BYTES_MAX`].
pub fn interpolate(text: &str, scope: Variables<'_>) -> Result<String, InterpolateError> {
    let mut run = Run::new(scope);
    let result = run.text(text)?;
    run.finish(result)
}

/// Replace the references in every string of an object, at any depth. Keys stay as they are.
///
/// # Errors
/// As [`interpolate`], the bound taken over all strings together; and when the object is nested
/// deeper than a job file can be.
pub fn interpolate_json(
    object: &JsonObject,
    scope: Variables<'_>,
) -> Result<JsonObject, InterpolateError> {
    let mut run = Run::new(scope);
    let result = JsonObject::from(run.object(object.map(), 0)?);
    run.finish(result)
}

/// One interpolation: what is left of the size bound and what was unknown.
struct Run<'a> {
    scope: Variables<'a>,
    bytes_left: usize,
    unknown: Vec<UnknownReference>,
}

impl<'a> Run<'a> {
    fn new(scope: Variables<'a>) -> Self {
        Self { scope, bytes_left: INTERPOLATED_BYTES_MAX, unknown: Vec::new() }
    }

    fn finish<T>(self, result: T) -> Result<T, InterpolateError> {
        if self.unknown.is_empty() {
            Ok(result)
        } else {
            Err(InterpolateError::Unknown(self.unknown))
        }
    }

    fn text(&mut self, text: &str) -> Result<String, InterpolateError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                self.append(&mut out, before)?;
                self.append(&mut out, "${")?;
                rest = after;
                continue;
            }
            self.append(&mut out, before)?;
            let Some((reference, after)) = split_reference(after) else {
                return Err(InterpolateError::Unclosed { near: shown(after) });
            };
            match self.scope.get(reference.trim()) {
                Some(value) => self.append(&mut out, value)?,
                None => self.report(reference.trim()),
            }
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

    fn report(&mut self, reference: &str) {
        let shown = shown(reference);
        let known = self.unknown.iter().any(|u| u.reference == shown);
        if !known && self.unknown.len() < UNKNOWN_MAX {
            let nearest = self.scope.nearest(reference);
            self.unknown.push(UnknownReference { reference: shown, nearest });
        }
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

/// Split at the `}` that ends the reference; one inside quotes (`env["a}b"]`) does not.
fn split_reference(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    let end = text.char_indices().find_map(|(index, c)| {
        quoted ^= c == '"';
        (c == '}' && !quoted).then_some(index)
    });
    let (reference, rest) = match end {
        Some(end) => text.split_at_checked(end)?,
        // An odd quote hides every brace; take the first one, so that the error names it.
        None => return text.split_once('}'),
    };
    Some((reference, rest.strip_prefix('}')?))
}

fn shown(text: &str) -> String {
    text.chars().take(REFERENCE_CHARS_SHOWN).collect()
}

#[cfg(test)]
#[path = "interpolate_tests.rs"]
mod tests;
