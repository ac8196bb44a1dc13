//! Blocks of free form as values.

use std::collections::BTreeMap;

use super::Context;
use crate::diagnostic::{Span, shown};
use crate::tree::{Attribute, Body, Item, Key, Value, ValueKind};

/// Most places of one block that are remembered: for messages, which can do without.
const PLACES_MAX: usize = 4_096;

/// Where a value and everything in it stands, by dotted path.
pub(super) fn places(path: &str, at: Span, value: &Value, into: &mut BTreeMap<String, Span>) {
    if into.len() >= PLACES_MAX {
        return;
    }
    into.insert(path.to_owned(), at);
    match &value.kind {
        ValueKind::Object(members) => {
            for (key, value) in members {
                places(&format!("{path}.{}", key.name), key.span, value, into);
            }
        }
        ValueKind::List(items) => {
            for (index, item) in items.iter().enumerate() {
                places(&format!("{path}.{index}"), item.span, item, into);
            }
        }
        _ => {}
    }
}

/// What blocks inside a block of free form become.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nested {
    /// Objects, repeated ones lists of objects, and labels levels of objects.
    Objects,
    /// Lists of objects, and labels levels of such lists.
    Lists,
}

impl Nested {
    /// The first block of its name.
    fn first(self, value: Value) -> Value {
        match self {
            Self::Objects => value,
            Self::Lists => Value { span: value.span, kind: ValueKind::List(vec![value]) },
        }
    }
}

/// A block as values.
pub(super) fn members(body: Body, nested: Nested, cx: &mut Context<'_>) -> Vec<(Key, Value)> {
    let mut members: Vec<(Key, Value)> = Vec::new();
    // Index in `members` and how many blocks are there; absent for attributes.
    let mut seen: BTreeMap<String, (usize, Option<usize>)> = BTreeMap::new();
    for item in body.items {
        match item {
            Item::Attribute(Attribute { key, value }) => {
                if seen.insert(key.name.clone(), (members.len(), None)).is_some() {
                    cx.error(key.span, format!("{} is given twice", shown(&key.name)));
                    continue;
                }
                members.push((key, value));
            }
            Item::Block(block) => {
                let span = block.key.span;
                let inner = ValueKind::Object(self::members(block.body, nested, cx));
                let mut value = Value { kind: inner, span };
                for label in block.labels.into_iter().rev() {
                    let (span, inner) = (label.span, nested.first(value));
                    value = Value { kind: ValueKind::Object(vec![(label, inner)]), span };
                }
                match seen.get(&block.key.name).copied() {
                    None => {
                        seen.insert(block.key.name.clone(), (members.len(), Some(1)));
                        members.push((block.key, nested.first(value)));
                    }
                    Some((_, None)) => {
                        let name = shown(&block.key.name);
                        cx.error(span, format!("{name} is given twice"));
                    }
                    Some((index, Some(count))) => {
                        if let Some((_, first)) = members.get_mut(index) {
                            append(first, value, count, nested);
                        }
                        seen.insert(block.key.name, (index, Some(count + 1)));
                    }
                }
            }
        }
    }
    members
}

/// Make a list of the first block when the second comes.
fn append(place: &mut Value, value: Value, count: usize, nested: Nested) {
    if count == 1 && nested == Nested::Objects {
        let span = place.span;
        let first = std::mem::replace(place, Value { kind: ValueKind::Null, span });
        place.kind = ValueKind::List(vec![first]);
    }
    if let ValueKind::List(items) = &mut place.kind {
        items.push(value);
    }
}
