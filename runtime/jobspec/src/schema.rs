//! What may stand where in a job file: one table per block, with the names of both syntaxes.
//!
//! The table also knows what Nomad has and Ostler does not have yet, so that such a key is an error
//! that says so, and what a JSON job carries that only servers write, so that it is skipped.

mod tables;

use std::time::Duration;

use super::Format;
use super::tree::{Value, ValueKind};
use super::units::parse_duration;
pub(super) use tables::{ENVELOPE, JOB};

/// The keys and blocks of one block.
#[derive(Debug)]
pub(super) struct Schema {
    /// The block in messages: `a task`.
    pub what: &'static str,
    /// What it may hold.
    pub fields: &'static [Field],
}

/// One key or block.
#[derive(Debug)]
pub(super) struct Field {
    /// Name in HCL; empty when only JSON has it.
    pub hcl: &'static str,
    /// Name in JSON; empty when only HCL has it.
    pub json: &'static str,
    /// What stands there.
    pub shape: Shape,
}

/// What stands at a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A text; numbers and truth values become texts. In JSON the empty one is none.
    Text,
    /// A whole number, or one written as a text.
    Integer,
    /// The same; in JSON, where absent fields are often zero, zero is none.
    IntegerNotZero,
    /// `true`, `false` or these as a text.
    Bool,
    /// `"15s"`; in JSON nanoseconds too.
    Duration,
    /// A list of texts.
    TextList,
    /// `env`, `meta`: names with texts, as a block or as an object.
    TextMap,
    /// `config`: anything, as a block or as an object; the driver checks it.
    Free,
    /// A block.
    Block {
        /// What it holds.
        schema: &'static Schema,
        /// With a label in HCL: the JSON member that has it.
        label: Option<&'static str>,
        /// May be there more than once; in JSON a list.
        many: bool,
    },
    /// Valid in Nomad, not supported yet.
    Unsupported {
        /// A next step, or empty.
        hint: &'static str,
        /// What means the same as leaving it out; see [`is_neutral`].
        neutral: &'static [&'static str],
        /// What is accepted although it promises something that does not happen.
        missed: Option<&'static Missed>,
    },
    /// JSON only: written by servers or read by them before the job; skipped.
    Served,
}

/// Values that are accepted without doing what they say, which is told in a warning.
#[derive(Debug)]
pub(super) struct Missed {
    /// As in [`Shape::Unsupported`].
    pub values: &'static [&'static str],
    /// What happens instead.
    pub instead: &'static str,
    /// Also told of a job in JSON. There clients fill in Nomad's defaults, so only what somebody
    /// would miss who never wrote it.
    pub in_json: bool,
}

impl Missed {
    /// The warning about the key that is written so.
    pub(super) fn warning(&self, key: &str) -> String {
        format!("{key} has no effect yet: {}", self.instead)
    }
}

impl Schema {
    /// The field of this name in HCL.
    pub(super) fn field(&self, hcl: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.hcl == hcl && !hcl.is_empty())
    }

    /// The field of this name in JSON.
    pub(super) fn json_field(&self, json: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.json == json && !json.is_empty())
    }

    /// Names that can be written, for suggestions; supported ones first.
    pub(super) fn names(&self, format: Format) -> impl Iterator<Item = &'static str> {
        let name = move |field: &'static Field| match format {
            Format::Hcl => field.hcl,
            Format::Json => field.json,
        };
        let supported = |field: &&'static Field| {
            !matches!(field.shape, Shape::Unsupported { .. } | Shape::Served)
        };
        let rest =
            self.fields.iter().filter(move |f| !supported(f) && !matches!(f.shape, Shape::Served));
        self.fields
            .iter()
            .filter(supported)
            .map(name)
            .chain(rest.map(name))
            .filter(|name| !name.is_empty() && !name.contains(' '))
    }
}

/// Is `value` one of those that mean the same as leaving the key out? Scalars are compared as texts
/// and, where they are durations, as such, so that `10m` is also `600s` and in JSON the same in
/// nanoseconds; `[]` is the empty list; an object stands for all that have its members.
pub(super) fn is_neutral(value: &Value, neutral: &[&str]) -> bool {
    neutral.iter().any(|neutral| match &value.kind {
        ValueKind::Text(text) => {
            let duration = |text: &str| parse_duration(text).ok();
            text == neutral || duration(neutral).is_some_and(|d| duration(text) == Some(d))
        }
        ValueKind::Number(number) => {
            let nanos =
                |duration: Duration| Some(duration.as_nanos()) == number.as_u64().map(u128::from);
            number.to_string() == *neutral || parse_duration(neutral).is_ok_and(nanos)
        }
        ValueKind::Bool(truth) => truth.to_string() == *neutral,
        ValueKind::List(items) => items.is_empty() && *neutral == "[]",
        ValueKind::Object(members) => {
            let wanted: serde_json::Map<_, _> = serde_json::from_str(neutral).unwrap_or_default();
            let has = |(name, wanted): (&String, &serde_json::Value)| {
                let member = members.iter().find(|(key, _)| key.name == *name);
                member.is_some_and(|(_, value)| value.clone().into_json() == *wanted)
            };
            !wanted.is_empty() && wanted.iter().all(has)
        }
        ValueKind::Null | ValueKind::Refused => false,
    })
}

#[cfg(test)]
mod tests {
    use super::tables::TASK;
    use super::*;

    fn check(schema: &'static Schema) {
        for (index, field) in schema.fields.iter().enumerate() {
            assert!(!(field.hcl.is_empty() && field.json.is_empty()), "{}", schema.what);
            for other in schema.fields.iter().skip(index + 1) {
                assert!(field.hcl.is_empty() || field.hcl != other.hcl, "{}", field.hcl);
                assert!(field.json.is_empty() || field.json != other.json, "{}", field.json);
            }
            if let Shape::Block { schema, .. } = field.shape {
                check(schema);
            }
        }
    }

    #[test]
    fn no_name_is_in_a_table_twice() {
        check(&JOB);
    }

    #[test]
    fn suggestions_prefer_what_is_supported() {
        let names: Vec<_> = TASK.names(Format::Hcl).collect();
        let at = |name| names.iter().position(|n| *n == name);
        assert!(at("shutdown_delay") < at("template"));
        assert!(!names.contains(&""));
    }
}
