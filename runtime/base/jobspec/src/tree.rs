//! The form that both syntaxes are read into before anything is checked: blocks, attributes and values, each
//! with its place in the file.
//!
//! Names are those of the file: `kill_timeout` in HCL, `KillTimeout` in JSON.

use serde_json::{Map, Number};

use super::diagnostic::Span;

/// A name, and the place where it stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SpannedKey {
    /// The name as the file has it.
    pub name: String,
    /// The bytes of the file that the name takes.
    pub span: Span,
}

impl SpannedKey {
    pub(super) fn new(name: impl Into<String>, span: Span) -> Self {
        Self { name: name.into(), span }
    }
}

/// An evaluated value, and the place where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SpannedValue {
    /// What the value is, with its content.
    pub kind: ValueKind,
    /// The place where the value is written; for the value of a variable, the place where it is used.
    pub span: Span,
}

/// What a value is, with its content.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ValueKind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<SpannedValue>),
    Object(Vec<(SpannedKey, SpannedValue)>),
    /// The value could not be evaluated, which was reported.
    Refused,
}

impl ValueKind {
    /// The kind of the value, in words for messages.
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

impl SpannedValue {
    /// The value as plain JSON, without places. Of equal names, the last one is kept.
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

/// An attribute: `name = value`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AttributeItem {
    pub key: SpannedKey,
    pub value: SpannedValue,
}

/// A block: `name "label" { … }`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    pub key: SpannedKey,
    pub labels: Vec<SpannedKey>,
    pub body: Body,
}

/// The content of a block, or of the whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Body {
    pub items: Vec<Item>,
}

impl Block {
    /// The block that stands for a whole file.
    pub(super) fn from_body(body: Body) -> Self {
        Self { key: SpannedKey::new("", Span::default()), labels: Vec::new(), body }
    }
}

impl Body {
    /// Whether the body has an attribute or a block of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.items.iter().any(|item| item.key().name == name)
    }

    /// A body of the members of an object, each one as an attribute.
    pub(super) fn from_members(members: Vec<(SpannedKey, SpannedValue)>) -> Self {
        let attribute = |(key, value)| Item::Attribute(AttributeItem { key, value });
        Self { items: members.into_iter().map(attribute).collect() }
    }
}

/// One attribute or block of a body.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Attribute(AttributeItem),
    Block(Block),
}

impl Item {
    /// The value of an attribute.
    pub(super) fn value(&self) -> Option<&SpannedValue> {
        match self {
            Self::Attribute(attribute) => Some(&attribute.value),
            Self::Block(_) => None,
        }
    }

    pub(super) fn key(&self) -> &SpannedKey {
        match self {
            Self::Attribute(attribute) => &attribute.key,
            Self::Block(block) => &block.key,
        }
    }
}
