//! Has an item the form its table wants: block or attribute, labels, known, supported?

use super::super::Format;
use super::super::diagnostic::shown;
use super::super::schema::{Schema, Shape, is_neutral};
use super::super::tree::{Attribute, Block, Item, Key, ValueKind};
use super::Context;

/// Report a key no table has.
pub(super) fn unknown(key: &Key, schema: &'static Schema, cx: &mut Context<'_>) {
    let instead = cx.sink.nearest(key.written(), schema.names(cx.format));
    let message = format!("{} is unknown in {}", shown(key.written()), schema.what);
    cx.sink.suggest(key.span, message, instead);
}

/// The item if it has the form its table wants, and is given at all.
pub(super) fn checked(item: Item, shape: Shape, cx: &mut Context<'_>) -> Option<Item> {
    let key = item.key();
    let name = key.written();
    match (shape, &item) {
        (Shape::Unsupported { .. }, Item::Attribute(Attribute { value, .. }))
            if value.kind == ValueKind::Null =>
        {
            None
        }
        (Shape::Unsupported { neutral, .. }, Item::Attribute(Attribute { value, .. }))
            if is_neutral(value, neutral) =>
        {
            None
        }
        (
            Shape::Unsupported { missed: Some(missed), .. },
            Item::Attribute(Attribute { value, .. }),
        ) if is_neutral(value, missed.values) => {
            cx.sink.warn(key.span, missed.warning(name));
            None
        }
        (Shape::Unsupported { hint, .. }, _) => {
            let comma = if hint.is_empty() { "" } else { "; " };
            let message =
                format!("{name} is valid in Nomad, not supported by Ostler yet{comma}{hint}");
            cx.error(key.span, message);
            None
        }
        (_, Item::Attribute(Attribute { value, .. })) if value.kind == ValueKind::Refused => None,
        (Shape::Block { label, many, .. }, Item::Attribute(attribute)) => {
            if attribute.value.kind != ValueKind::Null {
                block_expected(attribute, label, many, cx);
            }
            None
        }
        (Shape::Block { label, .. }, Item::Block(block)) => {
            labels_fit(block, label, cx).then_some(item)
        }
        (Shape::TextMap | Shape::Free, Item::Block(_)) => Some(item),
        (_, Item::Block(_)) => {
            cx.error(key.span, format!("{name} is no block; write {name} = …"));
            None
        }
        (_, Item::Attribute(Attribute { value, .. })) => {
            (value.kind != ValueKind::Null).then_some(item)
        }
    }
}

fn block_expected(attribute: &Attribute, label: Option<&str>, many: bool, cx: &mut Context<'_>) {
    let name = attribute.key.written();
    let form = match (cx.format, label, many) {
        (Format::Hcl, None, _) => format!("{name} is a block; write {name} {{ … }}"),
        (Format::Hcl, Some(_), _) => {
            format!("{name} is a block; write {name} \"name\" {{ … }}")
        }
        (Format::Json, _, true) => format!("{name} must be a list of objects"),
        (Format::Json, _, false) => format!("{name} must be an object"),
    };
    let at = if cx.format == Format::Hcl { attribute.key.span } else { attribute.value.span };
    cx.error(at, form);
}

fn labels_fit(block: &Block, label: Option<&str>, cx: &mut Context<'_>) -> bool {
    let name = block.key.written();
    match (label, block.labels.as_slice()) {
        (None, []) | (Some(_), [_]) => true,
        (None, [first, ..]) => {
            cx.error(first.span, format!("{name} takes no label"));
            true
        }
        (Some(label), []) => {
            let form = match cx.format {
                Format::Hcl => format!("{name} needs a name; write {name} \"name\" {{ … }}"),
                Format::Json => format!("{name} needs a {label}"),
            };
            cx.error(block.key.span, form);
            false
        }
        (Some(_), [_, second, ..]) => {
            cx.error(second.span, format!("{name} takes one label"));
            true
        }
    }
}
