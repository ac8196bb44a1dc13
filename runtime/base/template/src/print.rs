//! Prints values as Go does.

use ostler_text::number;

use crate::error::TemplateProblem;
use crate::sink::BoundedBuffer;
use crate::value::{MapKind, Value, ValueMap};

/// Print a value as an action does.
pub(crate) fn print_action(value: &Value, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    if value.is_nothing() { out.push("<no value>") } else { plain(value, out) }
}

/// Print a value as `%v` does.
pub(crate) fn plain(value: &Value, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    match value {
        Value::Nothing | Value::Null => out.push("<nil>"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(number.to_string()),
        Value::Uint(number) => out.push(number.to_string()),
        Value::Float(number) => out.push(number::general(*number, None)),
        Value::Text(text) => out.push(text),
        Value::TextWithFields(told) => out.push(told.text()),
        Value::List(list) => {
            out.push("[")?;
            for (index, item) in list.items().iter().enumerate() {
                if index > 0 {
                    out.push(" ")?;
                }
                plain(item, out)?;
            }
            out.push("]")
        }
        Value::Map(map) => entries(map, out),
        Value::Loop(..) => out.push("<loop>"),
        Value::Scratch => out.push("<scratch>"),
    }
}

fn entries(map: &ValueMap, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    let record = map.kind() == MapKind::Record;
    out.push(if record { "{" } else { "map[" })?;
    for (index, (key, value)) in map.entries().iter().enumerate() {
        if index > 0 {
            out.push(" ")?;
        }
        out.push(key)?;
        out.push(":")?;
        plain(value, out)?;
    }
    out.push(if record { "}" } else { "]" })
}

/// Print all values, with a space between two neighbours if neither is a text.
pub(crate) fn print_all(values: &[Value], out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    let mut before_is_text = true;
    for value in values {
        let is_text = matches!(value, Value::Text(_));
        if !before_is_text && !is_text {
            out.push(" ")?;
        }
        before_is_text = is_text;
        plain(value, out)?;
    }
    Ok(())
}

/// Print all values with spaces between them, and a line end.
pub(crate) fn print_line(values: &[Value], out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(" ")?;
        }
        plain(value, out)?;
    }
    out.push("\n")
}
