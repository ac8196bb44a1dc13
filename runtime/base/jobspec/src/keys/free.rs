//! Turns blocks of free form into values.

use std::collections::BTreeMap;

use super::Context;
use crate::diagnostic::{Span, quote_text};
use crate::tree::{AttributeItem, Body, Item, SpannedKey, SpannedValue, ValueKind};

/// The largest number of places of one block that are remembered. They are for messages, which work without them.
const PLACES_MAX: usize = 4_096;

/// Collect the places of a value and of all its parts, by dotted path.
pub(super) fn places(
    path: &str,
    at: Span,
    value: &SpannedValue,
    into: &mut BTreeMap<String, Span>,
) {
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

/// The form that blocks inside of a block of free form get.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NestedForm {
    /// A block becomes an object, a repeated one a list of objects, and a label a level of objects.
    Objects,
    /// A block becomes a list of objects, and a label a level of such lists.
    Lists,
}

impl NestedForm {
    /// The value of the first block of a name.
    fn first(self, value: SpannedValue) -> SpannedValue {
        match self {
            Self::Objects => value,
            Self::Lists => SpannedValue { span: value.span, kind: ValueKind::List(vec![value]) },
        }
    }
}

/// The members of a block as values.
pub(super) fn members(
    body: Body,
    nested: NestedForm,
    cx: &mut Context<'_>,
) -> Vec<(SpannedKey, SpannedValue)> {
    let mut members: Vec<(SpannedKey, SpannedValue)> = Vec::new();
    // The index in `members`, and the number of blocks of the name; absent for attributes.
    let mut seen: BTreeMap<String, (usize, Option<usize>)> = BTreeMap::new();
    for item in body.items {
        match item {
            Item::Attribute(AttributeItem { key, value }) => {
                if seen.insert(key.name.clone(), (members.len(), None)).is_some() {
                    cx.error(key.span, format!("{} is given twice", quote_text(&key.name)));
                    continue;
                }
                members.push((key, value));
            }
            Item::Block(block) => {
                let span = block.key.span;
                let inner = ValueKind::Object(self::members(block.body, nested, cx));
                let mut value = SpannedValue { kind: inner, span };
                for label in block.labels.into_iter().rev() {
                    let (span, inner) = (label.span, nested.first(value));
                    value = SpannedValue { kind: ValueKind::Object(vec![(label, inner)]), span };
                }
                match seen.get(&block.key.name).copied() {
                    None => {
                        seen.insert(block.key.name.clone(), (members.len(), Some(1)));
                        members.push((block.key, nested.first(value)));
                    }
                    Some((_, None)) => {
                        let name = quote_text(&block.key.name);
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

/// Add a further block of a name. With the second one, the value becomes a list.
fn append(place: &mut SpannedValue, value: SpannedValue, count: usize, nested: NestedForm) {
    if count == 1 && nested == NestedForm::Objects {
        let span = place.span;
        let first = std::mem::replace(place, SpannedValue { kind: ValueKind::Null, span });
        place.kind = ValueKind::List(vec![first]);
    }
    if let ValueKind::List(items) = &mut place.kind {
        items.push(value);
    }
}
