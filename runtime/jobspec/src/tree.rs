//! The form both syntaxes are read into before anything is checked: blocks, attributes, values,
//! each with its place in the file.
//!
//! Names are those of the file: `kill_timeout` in HCL, `KillTimeout` in JSON.

use serde_json::{Map, Number};

use super::diagnostic::Span;

/// A name and where it stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Key {
    /// The name as the file has it.
    pub name: String,
    /// Where.
    pub span: Span,
}

impl Key {
    pub(super) fn new(name: impl Into<String>, span: Span) -> Self {
        Self { name: name.into(), span }
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

impl Block {
    /// A whole file.
    pub(super) fn of_file(body: Body) -> Self {
        Self { key: Key::new("", Span::default()), labels: Vec::new(), body }
    }
}

impl Body {
    /// Does something stand at this name?
    pub(super) fn has(&self, name: &str) -> bool {
        self.items.iter().any(|item| item.key().name == name)
    }

    /// The members of an object, each an attribute.
    pub(super) fn of(members: Vec<(Key, Value)>) -> Self {
        let attribute = |(key, value)| Item::Attribute(Attribute { key, value });
        Self { items: members.into_iter().map(attribute).collect() }
    }
}

/// See [`Body`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Attribute(Attribute),
    Block(Block),
}

impl Item {
    /// The value of an attribute.
    pub(super) fn value(&self) -> Option<&Value> {
        match self {
            Self::Attribute(attribute) => Some(&attribute.value),
            Self::Block(_) => None,
        }
    }

    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Attribute(attribute) => &attribute.key,
            Self::Block(block) => &block.key,
        }
    }
}
