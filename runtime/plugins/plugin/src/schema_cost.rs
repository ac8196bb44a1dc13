//! Counts how much there is to check in a JSON Schema of a plugin. Pure.
//!
//! A schema runs in the agent, not in the sandbox. A schema of a few hundred bytes can refer to
//! itself for ever. It can also refer to each of its parts twice, those to theirs, and so on: 2^40
//! checks. So a schema is checked before it is used. References are followed, and what they lead to
//! is counted as often as it is referred to.

use std::collections::HashMap;

use serde_json::Value;

/// Most parts of a schema, with references followed. The largest schema of a built-in plugin
/// has some hundred.
const PARTS_MAX: u64 = 20_000;

/// Deepest part of a schema, with references followed. A check against the schema recurses as deep
/// on the stack of a thread.
const DEPTH_MAX: u32 = 128;

/// Why a schema is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SchemaCostError {
    /// A reference leads back to where it is.
    #[error("{reference} refers to itself; write out what is meant to the depth that is needed")]
    Endless {
        /// Text of the reference.
        reference: String,
    },
    /// A reference does not lead to a part of this schema.
    #[error("{reference} does not refer to a part of this schema; write for example #/$defs/part")]
    Elsewhere {
        /// Text of the reference.
        reference: String,
    },
    /// The schema is nested too deep.
    #[error("more than {DEPTH_MAX} parts deep, references followed")]
    TooDeep,
    /// The schema has too many parts.
    #[error("more than {PARTS_MAX} parts, references followed")]
    TooMuch,
    /// The schema has a keyword that changes what references mean.
    #[error("{keyword} is not supported; refer to parts by #/$defs/part")]
    Keyword {
        /// Name of the keyword.
        keyword: String,
    },
}

/// Keywords that change what references mean, or refer by other means.
const KEYWORDS: [&str; 6] =
    ["$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$id"];

/// Fail unless checking against this schema is a bounded piece of work.
pub(super) fn check_cost(schema: &Value) -> Result<(), SchemaCostError> {
    let mut walk = SchemaWalk { root: schema, known: HashMap::new(), depth: 0 };
    walk.count_parts(schema, true).map(drop)
}

struct SchemaWalk<'a> {
    root: &'a Value,
    /// Parts below each reference; `None` while they are being counted.
    known: HashMap<&'a str, Option<u64>>,
    depth: u32,
}

impl<'a> SchemaWalk<'a> {
    /// Count a value and everything below it, whether it is a schema or not. It is cheap to
    /// be strict here.
    fn count_parts(&mut self, value: &'a Value, outermost: bool) -> Result<u64, SchemaCostError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(SchemaCostError::TooDeep);
        }
        let parts = self.count_below(value, outermost);
        self.depth -= 1;
        parts
    }

    fn count_below(&mut self, value: &'a Value, outermost: bool) -> Result<u64, SchemaCostError> {
        let mut sum = 1_u64;
        match value {
            Value::Array(items) => {
                for item in items {
                    sum = sum.saturating_add(self.count_parts(item, false)?);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    if name == "$ref"
                        && let Value::String(reference) = member
                    {
                        sum = sum.saturating_add(self.count_referred(reference)?);
                        continue;
                    }
                    // The `$id` of the whole schema changes nothing.
                    let named_whole = outermost && name == "$id";
                    if KEYWORDS.contains(&name.as_str()) && member.is_string() && !named_whole {
                        return Err(SchemaCostError::Keyword { keyword: name.clone() });
                    }
                    sum = sum.saturating_add(self.count_parts(member, false)?);
                }
            }
            _ => {}
        }
        if sum > PARTS_MAX { Err(SchemaCostError::TooMuch) } else { Ok(sum) }
    }

    fn count_referred(&mut self, reference: &'a str) -> Result<u64, SchemaCostError> {
        match self.known.get(reference) {
            Some(Some(parts)) => return Ok(*parts),
            Some(None) => return Err(SchemaCostError::Endless { reference: reference.to_owned() }),
            None => {}
        }
        let elsewhere = || SchemaCostError::Elsewhere { reference: reference.to_owned() };
        let pointer = reference.strip_prefix('#').ok_or_else(elsewhere)?;
        let target = self.root.pointer(pointer).ok_or_else(elsewhere)?;
        self.known.insert(reference, None);
        let parts = self.count_parts(target, pointer.is_empty())?;
        self.known.insert(reference, Some(parts));
        Ok(parts)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schema_that_refers_to_itself_is_refused_also_in_a_circle() {
        let itself = json!({"allOf": [{"$ref": "#"}]});
        let error = check_cost(&itself).unwrap_err();
        assert_eq!(error, SchemaCostError::Endless { reference: "#".to_owned() });
        let circle = json!({
            "$ref": "#/$defs/a",
            "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}
        });
        assert!(matches!(check_cost(&circle), Err(SchemaCostError::Endless { .. })));
    }

    #[test]
    fn a_schema_that_doubles_at_each_reference_is_too_much_and_one_that_repeats_a_part_is_not() {
        let mut defs = serde_json::Map::new();
        for n in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            defs.insert(format!("d{n}"), json!({"allOf": [next, next]}));
        }
        defs.insert("d40".to_owned(), json!({}));
        let exploding = json!({"$ref": "#/$defs/d0", "$defs": defs});
        assert_eq!(check_cost(&exploding), Err(SchemaCostError::TooMuch));
        let part = json!({"$ref": "#/$defs/part"});
        let honest = json!({"$id": "https://example.org/x", "oneOf": [part, {"items": part}],
            "$defs": {"part": {"type": "object", "properties": {"a": {"type": "string"}}}}});
        assert_eq!(check_cost(&honest), Ok(()));
    }

    #[test]
    fn a_long_chain_of_references_is_too_deep() {
        let mut defs = serde_json::Map::new();
        for n in 0..1_000 {
            defs.insert(format!("d{n}"), json!({"not": {"$ref": format!("#/$defs/d{}", n + 1)}}));
        }
        defs.insert("d1000".to_owned(), json!({}));
        let chain = json!({"$ref": "#/$defs/d0", "$defs": defs});
        assert_eq!(check_cost(&chain), Err(SchemaCostError::TooDeep));
    }

    #[test]
    fn references_to_other_places_and_by_other_means_are_refused() {
        for reference in ["https://example.org/x", "other.json", "#part", "#/$defs/none"] {
            let error = check_cost(&json!({ "$ref": reference })).unwrap_err();
            assert_eq!(error, SchemaCostError::Elsewhere { reference: reference.to_owned() });
        }
        let moved = json!({"properties": {"a": {"$id": "https://example.org/x"}}});
        assert!(matches!(check_cost(&moved), Err(SchemaCostError::Keyword { .. })));
        let property = json!({"properties": {"$id": {"type": "string"}}});
        assert_eq!(check_cost(&property), Ok(()));
    }
}
