//! JSON objects → the blocks they would be in HCL, along the tables of [`super::super::schema`].
//!
//! Programs send many fields of features a job does not use as null, zero or empty: those are left
//! out. What a table does not know is kept under its own name, for the decoder to report.

use super::super::diagnostic::{Sink, Span};
use super::super::schema::{Field, JOB, Schema, Shape, is_neutral};
use super::super::tree::{Attribute, Block, Body, Item, Key, Value, ValueKind};

/// The job's object as a `job` block.
pub(super) fn job(key: Key, members: Vec<(Key, Value)>, sink: &mut Sink) -> Block {
    let key = Key { name: "job".to_owned(), original: Some("Job".to_owned()), span: key.span };
    Block { key, labels: Vec::new(), body: body(members, &JOB, sink) }
}

fn body(members: Vec<(Key, Value)>, schema: &'static Schema, sink: &mut Sink) -> Body {
    let mut items = Vec::with_capacity(members.len());
    for (key, value) in members {
        if value.kind == ValueKind::Null {
            continue;
        }
        match schema.json_field(&key.name) {
            None => items.push(attribute(foreign(key), value)),
            Some(field) => member(field, key, value, &mut items, sink),
        }
    }
    Body { items }
}

fn attribute(key: Key, value: Value) -> Item {
    Item::Attribute(Attribute { key, value })
}

/// A name no table has in HCL, so that it is not taken for one: `driver` in JSON is unknown.
fn foreign(key: Key) -> Key {
    Key { name: format!("json:{}", key.name), original: Some(key.name), span: key.span }
}

fn member(field: &'static Field, key: Key, value: Value, items: &mut Vec<Item>, sink: &mut Sink) {
    let renamed =
        Key { name: field.hcl.to_owned(), original: Some(field.json.to_owned()), span: key.span };
    match field.shape {
        Shape::Served => {}
        Shape::Unsupported { neutral, missed, .. } => {
            let missed = missed.filter(|missed| is_neutral(&value, missed.values));
            match missed {
                _ if is_neutral(&value, neutral) || is_empty(&value) => {}
                Some(missed) if missed.in_json => sink.warn(key.span, missed.warning(field.json)),
                Some(_) => {}
                None => report_unsupported(field, &key, sink),
            }
        }
        Shape::IntegerNotZero if is_empty(&value) => {}
        Shape::Block { schema, label: None, many: false } => match value.kind {
            ValueKind::Object(members) => {
                let body = body(members, schema, sink);
                items.push(Item::Block(Block { key: renamed, labels: Vec::new(), body }));
            }
            kind => items.push(attribute(renamed, Value { kind, span: value.span })),
        },
        Shape::Block { schema, label, .. } => match value.kind {
            ValueKind::List(elements) => {
                for element in elements {
                    items.extend(element_block(field, schema, label, element, sink));
                }
            }
            kind => {
                let name = if field.hcl.is_empty() { "port" } else { field.hcl };
                let key = Key { name: name.to_owned(), ..renamed };
                items.push(attribute(key, Value { kind, span: value.span }));
            }
        },
        _ => items.push(attribute(renamed, value)),
    }
}

fn report_unsupported(field: &Field, key: &Key, sink: &mut Sink) {
    let Shape::Unsupported { hint, .. } = field.shape else {
        return;
    };
    let comma = if hint.is_empty() { "" } else { "; " };
    let name = field.json;
    let message = format!("{name} is valid in Nomad, not supported by Ostler yet{comma}{hint}");
    sink.error(key.span, message);
}

/// One object of a list as a block; its label member becomes the label.
fn element_block(
    field: &'static Field,
    schema: &'static Schema,
    label: Option<&'static str>,
    element: Value,
    sink: &mut Sink,
) -> Option<Item> {
    let span = Span::new(element.span.start, element.span.start + 1);
    let ValueKind::Object(mut members) = element.kind else {
        let kind = element.kind.describe();
        sink.error(element.span, format!("{} must hold objects, not {kind}", field.json));
        return None;
    };
    let mut labels = Vec::new();
    if let Some(label) = label {
        let mut kept = Vec::with_capacity(members.len());
        for (key, value) in members {
            match value.kind {
                _ if key.name != label => kept.push((key, value)),
                ValueKind::Text(text) if labels.is_empty() => {
                    labels.push(Key::new(text, value.span));
                }
                ValueKind::Text(_) => sink.error(key.span, format!("{label} is given twice")),
                ValueKind::Null => {}
                kind => {
                    let kind = kind.describe();
                    sink.error(value.span, format!("{label} must be a text, not {kind}"));
                }
            }
        }
        members = kept;
    }
    let (name, original) = singular(field);
    let key = Key { name: name.to_owned(), original: Some(original.to_owned()), span };
    let body = body(members, schema, sink);
    check_port(field, &key, &body, sink);
    Some(Item::Block(Block { key, labels, body }))
}

/// What one element of a list is called in HCL and in messages.
fn singular(field: &'static Field) -> (&'static str, &'static str) {
    match field.json {
        "DynamicPorts" => ("port", "a port"),
        "ReservedPorts" => ("port", "a port"),
        "TaskGroups" => ("group", "a task group"),
        "Tasks" => ("task", "a task"),
        "Devices" => ("device", "a device"),
        "Services" => ("service", "a service"),
        "Checks" => ("check", "a check"),
        json => (field.hcl, json),
    }
}

/// Nomad has two lists of ports: with and without a number.
fn check_port(field: &Field, key: &Key, body: &Body, sink: &mut Sink) {
    let value = body.items.iter().find(|item| item.key().name == "static");
    match (field.json, value) {
        ("ReservedPorts", None) => {
            sink.error(
                key.span,
                "a reserved port needs a Value; without one it belongs to DynamicPorts",
            );
        }
        ("DynamicPorts", Some(item)) => {
            let at = item.key().span;
            sink.error(at, "a dynamic port has no Value; with one it belongs to ReservedPorts");
        }
        _ => {}
    }
}

/// Null, zero, false, nothing, or only such things inside.
fn is_empty(value: &Value) -> bool {
    match &value.kind {
        ValueKind::Null | ValueKind::Refused => true,
        ValueKind::Bool(truth) => !truth,
        ValueKind::Number(number) => number.as_f64() == Some(0.0),
        ValueKind::Text(text) => text.is_empty(),
        ValueKind::List(items) => items.is_empty(),
        ValueKind::Object(members) => members.iter().all(|(_, value)| is_empty(value)),
    }
}
