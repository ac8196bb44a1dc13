//! The form both syntaxes are read into before anything is checked: blocks, attributes, values,
//! each with its place in the file.
//!
//! Names in the tree are those of HCL (`kill_timeout`); [`Key::written`] is what the file says
//! (`KillTimeout` in JSON), and what messages repeat.

use serde_json::{Map, Number};

use super::diagnostic::Span;

/// A name and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    /// The name in the terms of HCL.
    pub name: String,
    /// The name as the file has it, when that is another.
    pub original: Option<String>,
    /// Where.
    pub span: Span,
}

impl Key {
    pub(super) fn new(name: impl Into<String>, span: Span) -> Self {
        Self { name: name.into(), original: None, span }
    }

    /// The name as the file has it.
    pub(super) fn written(&self) -> &str {
        self.original.as_deref().unwrap_or(&self.name)
    }
}

/// An evaluated value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    /// The value.
    pub kind: ValueKind,
    /// Where it is written; of a variable: where it is used.
    pub span: Span,
}

/// See [`Value`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ValueKind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(Key, Value)>),
    /// Could not be evaluated, which was reported.
    Refused,
}

impl ValueKind {
    /// What kind of value it is, for messages.
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            Self::Refused => "unusable",
        }
    }
}

impl Value {
    /// The same as plain JSON, without places. Of equal names the last wins.
    pub(super) fn into_json(self) -> serde_json::Value {
        match self.kind {
            ValueKind::Null | ValueKind::Refused => serde_json::Value::Null,
            ValueKind::Bool(truth) => truth.into(),
            ValueKind::Number(number) => number.into(),
            ValueKind::Text(text) => text.into(),
            ValueKind::List(items) => {
                serde_json::Value::Array(items.into_iter().map(Self::into_json).collect())
            }
            ValueKind::Object(members) => {
                let mut map = Map::new();
                for (key, value) in members {
                    map.insert(key.name, value.into_json());
                }
                serde_json::Value::Object(map)
            }
        }
    }

    /// Levels of lists and objects, this one included.
    pub(super) fn depth(&self) -> usize {
        1 + match &self.kind {
            ValueKind::List(items) => items.iter().map(Self::depth).max().unwrap_or(0),
            ValueKind::Object(members) => members.iter().map(|(_, v)| v.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// `name = value`
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attribute {
    pub key: Key,
    pub value: Value,
}

/// `name "label" { … }`
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub key: Key,
    pub labels: Vec<Key>,
    pub body: Body,
}

/// What stands between two braces, or the whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Body {
    pub items: Vec<Item>,
}

/// See [`Body`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Attribute(Attribute),
    Block(Block),
}

impl Item {
    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Attribute(attribute) => &attribute.key,
            Self::Block(block) => &block.key,
        }
    }
}
