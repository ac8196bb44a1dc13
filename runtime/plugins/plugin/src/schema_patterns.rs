//! Limits what the regular expressions of a plugin's JSON Schema cost. Pure.
//!
//! Each pattern becomes an automaton in the agent's memory, and a few characters can stand for
//! millions of states. All patterns of a schema share one budget: the more patterns there are, the
//! less each has.

use std::collections::BTreeSet;

use serde_json::Value;

use ostler_model::limits::{
    SCHEMA_AUTOMATA_BYTES_MAX, SCHEMA_AUTOMATON_BYTES_MAX, SCHEMA_PATTERN_BYTES_MAX,
    SCHEMA_PATTERNS_BYTES_MAX, SCHEMA_PATTERNS_MAX,
};

/// Why the patterns of a schema are not compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternCostError {
    /// A pattern is too long.
    #[error("a pattern has {bytes} bytes; at most {SCHEMA_PATTERN_BYTES_MAX}")]
    TooLong {
        /// Length of the pattern, bytes.
        bytes: usize,
    },
    /// The validator would compile the patterns of property names a second time, outside
    /// of the budget.
    #[error("it has both patternProperties and unevaluatedProperties; use additionalProperties")]
    Unevaluated,
    /// There are too many patterns, or all together are too long.
    #[error(
        "its patterns are too many: {count} with {bytes} bytes; at most {SCHEMA_PATTERNS_MAX} with \
         {SCHEMA_PATTERNS_BYTES_MAX}"
    )]
    TooMany {
        /// How many different patterns there are.
        count: usize,
        /// Length of all patterns together, bytes.
        bytes: usize,
    },
}

/// How many bytes the automaton of each pattern of this schema may take. The schema was checked
/// before, so it is not deep.
pub(super) fn automaton_bytes(schema: &Value) -> Result<usize, PatternCostError> {
    let mut patterns = BTreeSet::new();
    collect(schema, &mut patterns);
    if has_key(schema, "unevaluatedProperties") && has_key(schema, "patternProperties") {
        return Err(PatternCostError::Unevaluated);
    }
    let bytes = patterns.iter().map(|pattern| pattern.len()).sum();
    if let Some(long) = patterns.iter().find(|one| one.len() > SCHEMA_PATTERN_BYTES_MAX) {
        return Err(PatternCostError::TooLong { bytes: long.len() });
    }
    let count = patterns.len();
    if count > SCHEMA_PATTERNS_MAX || bytes > SCHEMA_PATTERNS_BYTES_MAX {
        return Err(PatternCostError::TooMany { count, bytes });
    }
    Ok((SCHEMA_AUTOMATA_BYTES_MAX / count.max(1)).min(SCHEMA_AUTOMATON_BYTES_MAX))
}

/// Is there such a key anywhere, whatever it means there?
fn has_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| has_key(item, key)),
        Value::Object(members) => {
            members.iter().any(|(name, member)| name == key || has_key(member, key))
        }
        _ => false,
    }
}

/// Collect everything that may be taken for a pattern. A schema in an example counts too.
fn collect<'a>(value: &'a Value, into: &mut BTreeSet<&'a str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        Value::Object(members) => {
            for (name, member) in members {
                match (name.as_str(), member) {
                    ("pattern", Value::String(pattern)) => drop(into.insert(pattern)),
                    ("patternProperties", Value::Object(named)) => {
                        into.extend(named.keys().map(String::as_str));
                        collect(member, into);
                    }
                    _ => collect(member, into),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_few_patterns_have_much_each_and_many_share_what_there_is() {
        assert_eq!(automaton_bytes(&json!({"pattern": "a"})), Ok(SCHEMA_AUTOMATON_BYTES_MAX));
        let names = (0..SCHEMA_PATTERNS_MAX).map(|n| (format!("^{n}$"), json!({})));
        let many = json!({"patternProperties": names.collect::<serde_json::Map<_, _>>()});
        assert_eq!(automaton_bytes(&many), Ok(SCHEMA_AUTOMATA_BYTES_MAX / SCHEMA_PATTERNS_MAX));
    }

    #[test]
    fn what_would_compile_names_of_properties_again_is_refused() {
        let named = json!({"patternProperties": {"\\w{30}": {}}});
        let many = json!({"allOf": [named], "unevaluatedProperties": false});
        assert_eq!(automaton_bytes(&many), Err(PatternCostError::Unevaluated));
        assert!(automaton_bytes(&json!({"unevaluatedProperties": false})).is_ok());
    }

    #[test]
    fn patterns_are_found_wherever_they_stand_and_the_same_counts_once() {
        let same = json!([{"pattern": "x"}, {"not": {"pattern": "x"}}]);
        assert_eq!(automaton_bytes(&json!({"allOf": same})), Ok(SCHEMA_AUTOMATON_BYTES_MAX));
        let all = (0..=SCHEMA_PATTERNS_MAX).map(|n| json!({"items": {"pattern": format!("{n}")}}));
        let many = automaton_bytes(&json!({"anyOf": all.collect::<Vec<_>>()}));
        assert!(matches!(many, Err(PatternCostError::TooMany { .. })), "{many:?}");
        let long = automaton_bytes(&json!({"pattern": "x".repeat(SCHEMA_PATTERN_BYTES_MAX + 1)}));
        assert!(matches!(long, Err(PatternCostError::TooLong { .. })), "{long:?}");
    }
}
