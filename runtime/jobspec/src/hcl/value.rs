//! What expressions make: the values of the tree, and what only matters while they are made: a set
//! is no list, and a list of one type is not equal to one that is just written down.

use std::collections::BTreeMap;

use serde_json::Number;

use super::super::diagnostic::Span;
use super::super::tree::{self, Key};

/// What each value costs beside its text: about what it takes in memory.
const VALUE_COST: u64 = 32;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Val {
    /// The value.
    pub kind: Kind,
    /// Where it is written; of a variable: where it is used.
    pub span: Span,
}

/// See [`Val`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    List(Seq, Vec<Val>),
    /// In the order of its names, each with the place it stands at.
    Object(BTreeMap<String, (Span, Val)>),
}

/// A text as the job will have it, character for character. Whether it holds a reference that is replaced
/// when the task starts is known from where it was made: nothing in the text says so, and what is read
/// from a file or given from outside may look just like one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    text: String,
    late: bool,
}

impl Text {
    /// A text that is no reference, whatever is in it.
    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self::new(text, false)
    }

    /// A reference, as it stands in the job.
    pub(super) fn reference(text: impl Into<String>) -> Self {
        Self::new(text, true)
    }

    /// A text that was made of others; `late`: of one that holds a reference.
    pub(super) fn new(text: impl Into<String>, late: bool) -> Self {
        Self { text: text.into(), late }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// Holds a reference that is replaced only when the task starts.
    pub(super) fn is_late(&self) -> bool {
        self.late
    }

    /// Append another one.
    pub(super) fn append(&mut self, other: &Self) {
        self.text.push_str(&other.text);
        self.late |= other.late;
    }

    /// The same changed in a way that leaves references what they are.
    pub(super) fn map(self, change: impl FnOnce(String) -> String) -> Self {
        Self { text: change(self.text), late: self.late }
    }
}

/// What kind of list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seq {
    /// Written down or made by a `for`: its elements may differ.
    Tuple,
    /// Of one type.
    List,
    /// Of one type, in order, each once; without positions.
    Set,
}

impl Kind {
    /// What kind of value it is, for messages.
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

    /// A text that is no reference, whatever is in it.
    pub(super) fn literal(text: impl Into<String>) -> Self {
        Self::Text(Text::literal(text))
    }

    /// A list of one type, all of it at one place.
    pub(super) fn list(kinds: impl IntoIterator<Item = Self>, span: Span) -> Self {
        Self::List(Seq::List, kinds.into_iter().map(|kind| Val { kind, span }).collect())
    }

    /// The text of a text, a number or a truth value.
    pub(super) fn to_text(&self) -> Option<Text> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(Text::literal(number_text(number))),
            Self::Bool(truth) => Some(Text::literal(truth.to_string())),
            _ => None,
        }
    }

    /// The same, as the job will have it.
    pub(super) fn to_characters(&self) -> Option<String> {
        self.to_text().map(Text::into_string)
    }
}

impl Val {
    pub(super) fn new(kind: Kind, span: Span) -> Self {
        Self { kind, span }
    }

    /// What it costs with everything inside.
    pub(super) fn size(&self) -> u64 {
        let inside: u64 = match &self.kind {
            Kind::List(_, items) => items.iter().map(Self::size).sum(),
            Kind::Object(members) => {
                members.iter().map(|(name, (_, value))| value.size() + bytes(name)).sum()
            }
            _ => 0,
        };
        self.own_size().saturating_add(inside)
    }

    /// The value itself, without what is inside.
    pub(super) fn own_size(&self) -> u64 {
        match &self.kind {
            Kind::Text(text) => bytes(text.as_str()).saturating_add(VALUE_COST),
            _ => VALUE_COST,
        }
    }

    /// Levels of lists and objects, this one included.
    pub(super) fn depth(&self) -> usize {
        1 + match &self.kind {
            Kind::List(_, items) => items.iter().map(Self::depth).max().unwrap_or(0),
            Kind::Object(members) => members.values().map(|(_, v)| v.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// The same value, all of it at another place.
    pub(super) fn moved(self, span: Span) -> Self {
        let kind = match self.kind {
            Kind::List(seq, items) => {
                Kind::List(seq, items.into_iter().map(|item| item.moved(span)).collect())
            }
            Kind::Object(members) => {
                let moved =
                    |(name, (_, value)): (String, (Span, Self))| (name, (span, value.moved(span)));
                Kind::Object(members.into_iter().map(moved).collect())
            }
            kind => kind,
        };
        Self { kind, span }
    }

    /// The value as the tree has it.
    pub(super) fn into_tree(self) -> tree::Value {
        let kind = match self.kind {
            Kind::Null => tree::ValueKind::Null,
            Kind::Bool(truth) => tree::ValueKind::Bool(truth),
            Kind::Number(number) => tree::ValueKind::Number(number),
            Kind::Text(text) => tree::ValueKind::Text(text.into_string()),
            Kind::List(_, items) => {
                tree::ValueKind::List(items.into_iter().map(Self::into_tree).collect())
            }
            Kind::Object(members) => {
                let mut members: Vec<_> = members
                    .into_iter()
                    .map(|(name, (at, value))| (Key::new(name, at), value.into_tree()))
                    .collect();
                // As written, where that can be said.
                members.sort_by_key(|(key, _)| key.span.start);
                tree::ValueKind::Object(members)
            }
        };
        tree::Value { kind, span: self.span }
    }

    /// Holds a reference that is replaced only when the task starts.
    pub(super) fn is_late(&self) -> bool {
        match &self.kind {
            Kind::Text(text) => text.is_late(),
            Kind::List(_, items) => items.iter().any(Self::is_late),
            Kind::Object(members) => members.values().any(|(_, value)| value.is_late()),
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

/// The number as JSON has it: whole ones as such. `None` for what is none.
pub(super) fn to_number(float: f64) -> Option<Number> {
    // Up to here each whole number is a float of its own.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if float.fract() == 0.0 && float.abs() <= EXACT {
        return format!("{float:.0}").parse::<i64>().ok().map(Number::from);
    }
    Number::from_f64(float)
}

/// HCL counts with hundreds of digits, we with those of a float: what is off by its last digit
/// alone is the shorter number (`0.1 + 0.2` is `0.3`).
pub(super) fn rounded(float: f64) -> f64 {
    let short: f64 = format!("{float:.14e}").parse().unwrap_or(float);
    if (short - float).abs() <= float.abs() * 4e-16 { short } else { float }
}

/// A decimal number in a text.
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
