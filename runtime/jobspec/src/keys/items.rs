//! What stands in one block, by key: known, supported, and of the form its description wants.

use super::{Context, Field, Form, Kind, Schema, Shape, is_neutral};
use crate::Syntax;
use crate::diagnostic::{Span, shown};
use crate::tree::{Attribute, Block, Body, Item, Key, Value, ValueKind};

/// What stands at one key.
pub(crate) struct Entry {
    pub field: &'static Field,
    /// Where the block begins.
    pub at: Span,
    /// Something stands there, usable or not, so that its absence need not be reported.
    pub was_given: bool,
    /// What of it is usable; more than one only where that is allowed.
    pub items: Vec<Item>,
}

/// The checked content of one block, in the order of its description.
pub(crate) struct Items {
    pub at: Span,
    pub label: Key,
    entries: std::vec::IntoIter<Entry>,
}

impl Items {
    /// Check a block against its description. Unknown keys, unsupported ones, blocks in place of
    /// attributes or the reverse, and repetitions are reported and left out.
    pub(super) fn sort(block: Block, schema: &'static Schema, cx: &mut Context<'_>) -> Self {
        let at = block.key.span;
        let entry = |field| Entry { field, at, was_given: false, items: Vec::new() };
        let mut entries: Vec<Entry> = schema.fields.iter().map(entry).collect();
        for item in block.body.items {
            let is_null = item.value().is_some_and(|value| value.kind == ValueKind::Null);
            // Programs send many fields of features a job does not use as null.
            if is_null && cx.syntax == Syntax::Json {
                continue;
            }
            let name = &item.key().name;
            let named =
                |entry: &&mut Entry| !name.is_empty() && entry.field.name(cx.syntax) == name;
            match entries.iter_mut().find(named) {
                Some(entry) => entry.add(item, is_null, cx),
                None => unknown(item.key(), schema, cx),
            }
        }
        Self {
            at,
            label: block.labels.into_iter().next().unwrap_or_default(),
            entries: entries.into_iter(),
        }
    }

    /// The value of the next key of the description.
    pub(crate) fn next<K: Kind>(&mut self, cx: &mut Context<'_>) -> K {
        self.entries.next().map(|entry| K::read(entry, cx)).unwrap_or_default()
    }
}

impl Entry {
    fn add(&mut self, item: Item, is_null: bool, cx: &mut Context<'_>) {
        let shape = self.field.shape;
        for item in in_form(item, self.field, cx) {
            self.was_given |= !is_null;
            let Some(item) = checked(item, shape, cx) else { continue };
            if self.items.is_empty()
                || matches!(shape, Shape::Block { form: Form::List | Form::ByName, .. })
            {
                self.items.push(item);
            } else {
                let Key { name, span } = item.key();
                cx.error(*span, format!("{name} is given twice"));
            }
        }
    }
}

/// The objects of JSON as the blocks they would be in HCL; anything else as it is.
fn in_form(item: Item, field: &Field, cx: &mut Context<'_>) -> Vec<Item> {
    let Shape::Block { schema, form } = field.shape else { return vec![item] };
    match item {
        Item::Attribute(Attribute { key, value }) if cx.syntax == Syntax::Json => {
            match (value.kind, form) {
                (ValueKind::List(elements), Form::List) => {
                    let block = |element| element_block(field, schema, element, cx);
                    elements.into_iter().filter_map(block).map(Item::Block).collect()
                }
                (ValueKind::Object(members), Form::ByName) => {
                    let block = |(name, value)| named_block(field, schema, name, value, cx);
                    members.into_iter().filter_map(block).map(Item::Block).collect()
                }
                (ValueKind::Object(members), Form::One) => {
                    let (labels, body) = (Vec::new(), Body::of(members));
                    vec![Item::Block(Block { key, labels, body })]
                }
                (kind, _) => {
                    let value = Value { kind, span: value.span };
                    vec![Item::Attribute(Attribute { key, value })]
                }
            }
        }
        item => vec![item],
    }
}

/// Report a key no description has.
fn unknown(key: &Key, schema: &'static Schema, cx: &mut Context<'_>) {
    let instead = cx.sink.nearest(&key.name, schema.names(cx.syntax));
    let message = format!("{} is unknown in {}", shown(&key.name), schema.what);
    cx.sink.suggest(key.span, message, instead);
}

/// The item if it has the form its description wants, and is given at all.
fn checked(item: Item, shape: Shape, cx: &mut Context<'_>) -> Option<Item> {
    let Key { name, span } = item.key().clone();
    let nothing = [ValueKind::Refused, ValueKind::Null];
    match (shape, item) {
        (Shape::Served, _) => None,
        (Shape::Unsupported { .. }, item) => {
            unsupported(&name, span, item.value(), shape, cx);
            None
        }
        (_, item) if item.value().is_some_and(|value| nothing.contains(&value.kind)) => None,
        (Shape::Block { schema, form }, Item::Attribute(Attribute { value, .. })) => {
            let (at, form) = match (cx.syntax, schema.label, form) {
                (Syntax::Hcl, None, _) => (span, format!("is a block; write {name} {{ … }}")),
                (Syntax::Hcl, Some(_), _) => {
                    (span, format!("is a block; write {name} \"name\" {{ … }}"))
                }
                (Syntax::Json, _, Form::List) => {
                    (value.span, "must be a list of objects".to_owned())
                }
                (Syntax::Json, _, Form::ByName) => {
                    (value.span, "must be an object of objects, by name".to_owned())
                }
                (Syntax::Json, _, Form::One) => (value.span, "must be an object".to_owned()),
            };
            cx.refuse(at, format!("{name} {form}"))
        }
        (Shape::Block { schema, .. }, Item::Block(block)) => {
            labels_fit(&block, schema, cx).then_some(Item::Block(block))
        }
        (Shape::TextMap | Shape::TextListMap | Shape::Free, item) => Some(item),
        (_, Item::Block(_)) => cx.refuse(span, format!("{name} is no block; write {name} = …")),
        (_, item) => Some(item),
    }
}

/// Report what Nomad has and Ostler does not, unless it changes nothing. Programs send zero and
/// nothing for what a job does not use. `value` is absent where a block stands.
fn unsupported(name: &str, at: Span, value: Option<&Value>, shape: Shape, cx: &mut Context<'_>) {
    let Shape::Unsupported { hint, neutral, missed, left_out, is_said_by_being_there } = shape
    else {
        return;
    };
    let json = cx.syntax == Syntax::Json;
    let is = |values| value.is_some_and(|value| is_neutral(value, values));
    // False, zero, an empty text or list: what is there anyway where nothing is.
    let nothing = |value: &Value| {
        let is_block = matches!(value.kind, ValueKind::Object(_));
        is_empty(value) && !(is_block && is_said_by_being_there)
    };
    match missed.filter(|missed| is(missed.values)) {
        _ if is(neutral) || value.is_some_and(nothing) => {}
        Some(missed) if !json || missed.in_json => {
            cx.sink.warn(at, format!("{name} has no effect yet: {}", missed.instead));
        }
        Some(_) => {}
        None => {
            let comma = if hint.is_empty() { "" } else { "; " };
            let yet = if left_out { "" } else { " yet" };
            cx.error(
                at,
                format!("{name} is valid in Nomad, not supported by Ostler{yet}{comma}{hint}"),
            );
        }
    }
}

/// Has the block the label it wants? Those too many are reported, and it can be used without them.
fn labels_fit(block: &Block, schema: &Schema, cx: &mut Context<'_>) -> bool {
    let name = &block.key.name;
    let most = usize::from(schema.label.is_some());
    if let Some(more) = block.labels.get(most) {
        let what = if most == 0 { "no label" } else { "one label" };
        cx.error(more.span, format!("{name} takes {what}"));
    }
    let missing = schema.label.filter(|_| block.labels.is_empty());
    if let Some(label) = missing {
        let form = match cx.syntax {
            Syntax::Hcl => format!("{name} needs a name; write {name} \"name\" {{ … }}"),
            Syntax::Json => format!("{name} needs a {label}"),
        };
        cx.error(block.key.span, form);
    }
    missing.is_none()
}

/// One object of a JSON list as a block; its label member becomes the label.
fn element_block(
    field: &Field,
    schema: &Schema,
    element: Value,
    cx: &mut Context<'_>,
) -> Option<Block> {
    let span = Span::new(element.span.start, element.span.start + 1);
    let ValueKind::Object(mut members) = element.kind else {
        let kind = element.kind.describe();
        return cx.refuse(element.span, format!("{} must hold objects, not {kind}", field.json));
    };
    let is_label = |(key, _): &(Key, Value)| schema.label.is_some_and(|label| key.name == label);
    let label = members.iter().position(is_label).map(|at| members.remove(at));
    let label = label.and_then(|(key, value)| match value.kind {
        ValueKind::Text(text) => Some(Key::new(text, value.span)),
        ValueKind::Null => None,
        kind => {
            let kind = kind.describe();
            cx.refuse(value.span, format!("{} must be a text, not {kind}", key.name))
        }
    });
    let (key, labels) = (Key::new(schema.what, span), label.into_iter().collect());
    Some(Block { key, labels, body: Body::of(members) })
}

/// One member of a JSON object of objects as a block; its name is the label, whatever the label member
/// says.
fn named_block(
    field: &Field,
    schema: &Schema,
    name: Key,
    value: Value,
    cx: &mut Context<'_>,
) -> Option<Block> {
    let span = Span::new(value.span.start, value.span.start + 1);
    let ValueKind::Object(mut members) = value.kind else {
        let kind = value.kind.describe();
        return cx.refuse(value.span, format!("{} must hold objects, not {kind}", field.json));
    };
    members.retain(|(key, _)| schema.label.is_none_or(|label| key.name != label));
    let key = Key::new(schema.what, span);
    Some(Block { key, labels: vec![name], body: Body::of(members) })
}

/// Null, zero, false, nothing, or only such things inside. An object in an object says something: that
/// it is there.
pub(crate) fn is_empty(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Null | ValueKind::Refused => true,
        ValueKind::Bool(truth) => !truth,
        ValueKind::Number(number) => number.as_f64() == Some(0.0),
        ValueKind::Text(text) => text.is_empty(),
        ValueKind::List(items) => items.is_empty(),
        ValueKind::Object(members) => members
            .iter()
            .all(|(_, value)| !matches!(value.kind, ValueKind::Object(_)) && is_empty(value)),
    }
}
