//! Sorts the content of a block by key, and checks that each item is known, supported, and of the described form.

use super::{BlockForm, BlockSchema, Context, Field, FieldKind, FieldShape, is_neutral};
use crate::Syntax;
use crate::diagnostic::{Span, quote_text};
use crate::tree::{AttributeItem, Block, Body, Item, SpannedKey, SpannedValue, ValueKind};

/// The items of a block at one key.
pub(crate) struct KeyEntry {
    pub field: &'static Field,
    /// The place where the block begins.
    pub at: Span,
    /// Whether something stands at the key, usable or not, so that its absence is not reported.
    pub was_given: bool,
    /// The usable items. There is more than one only where that is allowed.
    pub items: Vec<Item>,
}

/// The checked content of a block, in the order of its description.
pub(crate) struct BlockItems {
    pub at: Span,
    pub label: SpannedKey,
    entries: std::vec::IntoIter<KeyEntry>,
}

impl BlockItems {
    /// Check a block against its description. Unknown keys, unsupported ones, blocks in place of
    /// attributes or the reverse, and repetitions are reported and left out.
    pub(super) fn sort(block: Block, schema: &'static BlockSchema, cx: &mut Context<'_>) -> Self {
        let at = block.key.span;
        let entry = |field| KeyEntry { field, at, was_given: false, items: Vec::new() };
        let mut entries: Vec<KeyEntry> = schema.fields.iter().map(entry).collect();
        for item in block.body.items {
            let is_null = item.value().is_some_and(|value| value.kind == ValueKind::Null);
            // Programs send null for many fields of features that a job does not use.
            if is_null && cx.syntax == Syntax::Json {
                continue;
            }
            let name = &item.key().name;
            let named =
                |entry: &&mut KeyEntry| !name.is_empty() && entry.field.name(cx.syntax) == name;
            match entries.iter_mut().find(named) {
                Some(entry) => entry.add(item, is_null, cx),
                None => report_unknown(item.key(), schema, cx),
            }
        }
        Self {
            at,
            label: block.labels.into_iter().next().unwrap_or_default(),
            entries: entries.into_iter(),
        }
    }

    /// The value of the next key of the description.
    pub(crate) fn next<K: FieldKind>(&mut self, cx: &mut Context<'_>) -> K {
        self.entries.next().map(|entry| K::read(entry, cx)).unwrap_or_default()
    }
}

impl KeyEntry {
    fn add(&mut self, item: Item, is_null: bool, cx: &mut Context<'_>) {
        let shape = self.field.shape;
        for item in to_blocks(item, self.field, cx) {
            self.was_given |= !is_null;
            let Some(item) = check_item(item, shape, cx) else { continue };
            if self.items.is_empty()
                || matches!(
                    shape,
                    FieldShape::Block { form: BlockForm::List | BlockForm::ByName, .. }
                )
            {
                self.items.push(item);
            } else {
                let SpannedKey { name, span } = item.key();
                cx.error(*span, format!("{name} is given twice"));
            }
        }
    }
}

/// The item as the blocks that it would be in HCL, if it has objects of JSON at a block; otherwise as it is.
fn to_blocks(item: Item, field: &Field, cx: &mut Context<'_>) -> Vec<Item> {
    let FieldShape::Block { schema, form } = field.shape else { return vec![item] };
    match item {
        Item::Attribute(AttributeItem { key, value }) if cx.syntax == Syntax::Json => {
            match (value.kind, form) {
                (ValueKind::List(elements), BlockForm::List) => {
                    let block = |element| element_block(field, schema, element, cx);
                    elements.into_iter().filter_map(block).map(Item::Block).collect()
                }
                (ValueKind::Object(members), BlockForm::ByName) => {
                    let block = |(name, value)| named_block(field, schema, name, value, cx);
                    members.into_iter().filter_map(block).map(Item::Block).collect()
                }
                (ValueKind::Object(members), BlockForm::One) => {
                    let (labels, body) = (Vec::new(), Body::from_members(members));
                    vec![Item::Block(Block { key, labels, body })]
                }
                (kind, _) => {
                    let value = SpannedValue { kind, span: value.span };
                    vec![Item::Attribute(AttributeItem { key, value })]
                }
            }
        }
        item => vec![item],
    }
}

/// Report a key that the description does not have.
fn report_unknown(key: &SpannedKey, schema: &'static BlockSchema, cx: &mut Context<'_>) {
    let instead = cx.sink.nearest(&key.name, schema.names(cx.syntax));
    let message = format!("{} is unknown in {}", quote_text(&key.name), schema.what);
    cx.sink.suggest(key.span, message, instead);
}

/// The item, if it has the described form and a value.
fn check_item(item: Item, shape: FieldShape, cx: &mut Context<'_>) -> Option<Item> {
    let SpannedKey { name, span } = item.key().clone();
    let nothing = [ValueKind::Refused, ValueKind::Null];
    match (shape, item) {
        (FieldShape::Served, _) => None,
        (FieldShape::Unsupported { .. }, item) => {
            report_unsupported(&name, span, item.value(), shape, cx);
            None
        }
        (_, item) if item.value().is_some_and(|value| nothing.contains(&value.kind)) => None,
        (FieldShape::Block { schema, form }, Item::Attribute(AttributeItem { value, .. })) => {
            let (at, form) = match (cx.syntax, schema.label, form) {
                (Syntax::Hcl, None, _) => (span, format!("is a block; write {name} {{ … }}")),
                (Syntax::Hcl, Some(_), _) => {
                    (span, format!("is a block; write {name} \"name\" {{ … }}"))
                }
                (Syntax::Json, _, BlockForm::List) => {
                    (value.span, "must be a list of objects".to_owned())
                }
                (Syntax::Json, _, BlockForm::ByName) => {
                    (value.span, "must be an object of objects, by name".to_owned())
                }
                (Syntax::Json, _, BlockForm::One) => (value.span, "must be an object".to_owned()),
            };
            cx.refuse(at, format!("{name} {form}"))
        }
        (FieldShape::Block { schema, .. }, Item::Block(block)) => {
            labels_fit(&block, schema, cx).then_some(Item::Block(block))
        }
        (FieldShape::TextMap | FieldShape::TextListMap | FieldShape::Free, item) => Some(item),
        (_, Item::Block(_)) => cx.refuse(span, format!("{name} is not a block; write {name} = …")),
        (_, item) => Some(item),
    }
}

/// Report a key that Nomad has and Ostler does not, unless its value has no effect. Programs send zeros and empty
/// values for features that a job does not use. `value` is absent where a block stands.
fn report_unsupported(
    name: &str,
    at: Span,
    value: Option<&SpannedValue>,
    shape: FieldShape,
    cx: &mut Context<'_>,
) {
    let FieldShape::Unsupported { hint, neutral, missed, left_out, is_said_by_being_there } = shape
    else {
        return;
    };
    let json = cx.syntax == Syntax::Json;
    let is = |values| value.is_some_and(|value| is_neutral(value, values));
    // An empty value means the same as no value: false, zero, an empty text or list.
    let nothing = |value: &SpannedValue| {
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

/// Whether the block has the label that it needs. Surplus labels are reported, and do not make it unusable.
fn labels_fit(block: &Block, schema: &BlockSchema, cx: &mut Context<'_>) -> bool {
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

/// One object of a JSON list as a block. Its member for the label becomes the label.
fn element_block(
    field: &Field,
    schema: &BlockSchema,
    element: SpannedValue,
    cx: &mut Context<'_>,
) -> Option<Block> {
    let span = Span::new(element.span.start, element.span.start + 1);
    let ValueKind::Object(mut members) = element.kind else {
        let kind = element.kind.describe();
        return cx.refuse(element.span, format!("{} must hold objects, not {kind}", field.json));
    };
    let is_label =
        |(key, _): &(SpannedKey, SpannedValue)| schema.label.is_some_and(|label| key.name == label);
    let label = members.iter().position(is_label).map(|at| members.remove(at));
    let label = label.and_then(|(key, value)| match value.kind {
        ValueKind::Text(text) => Some(SpannedKey::new(text, value.span)),
        ValueKind::Null => None,
        kind => {
            let kind = kind.describe();
            cx.refuse(value.span, format!("{} must be a text, not {kind}", key.name))
        }
    });
    let (key, labels) = (SpannedKey::new(schema.what, span), label.into_iter().collect());
    Some(Block { key, labels, body: Body::from_members(members) })
}

/// One member of a JSON object of objects as a block. The name of the member is the label; a member for the label
/// is ignored.
fn named_block(
    field: &Field,
    schema: &BlockSchema,
    name: SpannedKey,
    value: SpannedValue,
    cx: &mut Context<'_>,
) -> Option<Block> {
    let span = Span::new(value.span.start, value.span.start + 1);
    let ValueKind::Object(mut members) = value.kind else {
        let kind = value.kind.describe();
        return cx.refuse(value.span, format!("{} must hold objects, not {kind}", field.json));
    };
    members.retain(|(key, _)| schema.label.is_none_or(|label| key.name != label));
    let key = SpannedKey::new(schema.what, span);
    Some(Block { key, labels: vec![name], body: Body::from_members(members) })
}

/// Whether a value is null, zero, false or empty, or an object of such values. An object inside of an object counts
/// as a value, because its presence has a meaning.
pub(crate) fn is_empty(value: &SpannedValue) -> bool {
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
