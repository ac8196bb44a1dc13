//! The values of expressions. They are those of the tree, with distinctions that matter only during the evaluation: a
//! set is no list, and a list of one type does not equal a list that is just written down.

use std::collections::BTreeMap;

use serde_json::Number;

use crate::diagnostic::Span;
use crate::tree::{self, SpannedKey};

/// The cost of a value beside its text, in bytes: about the memory that it takes.
const VALUE_COST: u64 = 32;

/// A value, and the place where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Val {
    /// What the value is, with its content.
    pub kind: ValKind,
    /// The place where the value is written; for the value of a variable, the place where it is used.
    pub span: Span,
}

/// What a value is, with its content.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ValKind {
    Null,
    Bool(bool),
    Number(Number),
    Text(HclText),
    List(Seq, Vec<Val>),
    /// The members by name, each with its place.
    Object(BTreeMap<String, (Span, Val)>),
}

/// A text as the job will have it, character for character. Whether it holds a reference that is replaced when the
/// task starts depends on how the text was made. It cannot be seen in the text, because a text from a file or from
/// outside may look just like a reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HclText {
    text: String,
    late: bool,
}

impl HclText {
    /// A text without references, whatever it looks like.
    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self::new(text, false)
    }

    /// A text that is a reference, as it stands in the job.
    pub(super) fn reference(text: impl Into<String>) -> Self {
        Self::new(text, true)
    }

    /// A text that was made of other texts. `late` tells that one of them holds a reference.
    pub(super) fn new(text: impl Into<String>, late: bool) -> Self {
        Self { text: text.into(), late }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// Whether the text holds a reference that is replaced only when the task starts.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Append another text.
    pub(super) fn append(&mut self, other: &Self) {
        self.text.push_str(&other.text);
        self.late |= other.late;
    }

    /// The text after a change that keeps references as they are.
    pub(super) fn map(self, change: impl FnOnce(String) -> String) -> Self {
        Self { text: change(self.text), late: self.late }
    }
}

/// The kind of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seq {
    /// A list that was written down or made by a `for`. Its elements may differ in type.
    Tuple,
    /// A list of elements of one type.
    List,
    /// A set: elements of one type, sorted, each one once. It has no positions.
    Set,
}

impl ValKind {
    /// The kind of the value, in words for messages.
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(Seq::Set, _) => "a set",
            Self::List(..) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// A text without references, whatever it looks like.
    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self::Text(HclText::literal(text))
    }

    /// A list of one type, whose elements all have the same place.
    pub(super) fn list(kinds: impl IntoIterator<Item = Self>, span: Span) -> Self {
        Self::List(Seq::List, kinds.into_iter().map(|kind| Val { kind, span }).collect())
    }

    /// The value as a text, if it is a text, a number or a truth value.
    pub(super) fn to_text(&self) -> Option<HclText> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(HclText::literal(number_text(number))),
            Self::Bool(truth) => Some(HclText::literal(truth.to_string())),
            _ => None,
        }
    }

    /// The same as characters, as the job will have them.
    pub(super) fn to_characters(&self) -> Option<String> {
        self.to_text().map(HclText::into_string)
    }
}

impl Val {
    pub(super) fn new(kind: ValKind, span: Span) -> Self {
        Self { kind, span }
    }

    /// The cost of the value with everything inside of it.
    pub(super) fn size(&self) -> u64 {
        let inside: u64 = match &self.kind {
            ValKind::List(_, items) => items.iter().map(Self::size).sum(),
            ValKind::Object(members) => {
                members.iter().map(|(name, (_, value))| value.size() + bytes(name)).sum()
            }
            _ => 0,
        };
        self.own_size().saturating_add(inside)
    }

    /// The cost of the value itself, without what is inside of it.
    pub(super) fn own_size(&self) -> u64 {
        match &self.kind {
            ValKind::Text(text) => bytes(text.as_str()).saturating_add(VALUE_COST),
            _ => VALUE_COST,
        }
    }

    /// The number of levels of lists and objects, with the value itself.
    pub(super) fn depth(&self) -> usize {
        1 + match &self.kind {
            ValKind::List(_, items) => items.iter().map(Self::depth).max().unwrap_or(0),
            ValKind::Object(members) => members.values().map(|(_, v)| v.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// The same value, with another place for all of its parts.
    pub(super) fn with_span(self, span: Span) -> Self {
        let kind = match self.kind {
            ValKind::List(seq, items) => {
                ValKind::List(seq, items.into_iter().map(|item| item.with_span(span)).collect())
            }
            ValKind::Object(members) => {
                let moved = |(name, (_, value)): (String, (Span, Self))| {
                    (name, (span, value.with_span(span)))
                };
                ValKind::Object(members.into_iter().map(moved).collect())
            }
            kind => kind,
        };
        Self { kind, span }
    }

    /// The value as the tree has it.
    pub(super) fn into_tree(self) -> tree::SpannedValue {
        let kind = match self.kind {
            ValKind::Null => tree::ValueKind::Null,
            ValKind::Bool(truth) => tree::ValueKind::Bool(truth),
            ValKind::Number(number) => tree::ValueKind::Number(number),
            ValKind::Text(text) => tree::ValueKind::Text(text.into_string()),
            ValKind::List(_, items) => {
                tree::ValueKind::List(items.into_iter().map(Self::into_tree).collect())
            }
            ValKind::Object(members) => {
                let mut members: Vec<_> = members
                    .into_iter()
                    .map(|(name, (at, value))| (SpannedKey::new(name, at), value.into_tree()))
                    .collect();
                // The members are in the order in which they are written, if their places are known.
                members.sort_by_key(|(key, _)| key.span.start);
                tree::ValueKind::Object(members)
            }
        };
        tree::SpannedValue { kind, span: self.span }
    }

    /// Whether the value holds a reference that is replaced only when the task starts.
    pub(super) fn is_late(&self) -> bool {
        match &self.kind {
            ValKind::Text(text) => text.is_late(),
            ValKind::List(_, items) => items.iter().any(Self::is_late),
            ValKind::Object(members) => members.values().any(|(_, value)| value.is_late()),
            _ => false,
        }
    }
}

fn bytes(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// A number in digits, without an exponent.
pub(super) fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float.to_string(),
        _ => number.to_string(),
    }
}

/// The number as one of JSON, in which whole numbers have no fraction. `None` means that it is no number of JSON.
pub(super) fn to_number(float: f64) -> Option<Number> {
    // Up to this bound, a float holds every whole number exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if float.fract() == 0.0 && float.abs() <= EXACT {
        return format!("{float:.0}").parse::<i64>().ok().map(Number::from);
    }
    Number::from_f64(float)
}

/// Round a result to fewer digits, if it differs only in its last digit: `0.1 + 0.2` is `0.3`. HCL computes with
/// hundreds of digits, and Ostler with those of a float.
pub(super) fn round_float(float: f64) -> f64 {
    let short: f64 = format!("{float:.14e}").parse().unwrap_or(float);
    if (short - float).abs() <= float.abs() * 4e-16 { short } else { float }
}

/// The decimal number that a text is, if it is one.
pub(super) fn parse_number(text: &str) -> Option<Number> {
    if let Ok(number) = text.parse::<i64>() {
        return Some(number.into());
    }
    if let Ok(number) = text.parse::<u64>() {
        return Some(number.into());
    }
    let plain = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    text.parse().ok().filter(|_| plain).and_then(to_number)
}
