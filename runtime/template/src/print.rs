//! Values as Go prints them.

use crate::error::TemplateProblem;
use crate::number;
use crate::sink::Sink;
use crate::value::{Map, MapKind, Value};

/// As an action shows it.
pub(crate) fn shown(value: &Value, out: &mut Sink) -> Result<(), TemplateProblem> {
    if value.is_nothing() { out.push("<no value>") } else { plain(value, out) }
}

/// As `%v` does.
pub(crate) fn plain(value: &Value, out: &mut Sink) -> Result<(), TemplateProblem> {
    match value {
        Value::Nothing | Value::Null => out.push("<nil>"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(number.to_string()),
        Value::Uint(number) => out.push(number.to_string()),
        Value::Float(number) => out.push(number::general(*number, None)),
        Value::Text(text) => out.push(text),
        Value::Told(told) => out.push(told.text()),
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

fn entries(map: &Map, out: &mut Sink) -> Result<(), TemplateProblem> {
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

/// All of them; a space between two of which neither is a text.
pub(crate) fn printed(values: &[Value], out: &mut Sink) -> Result<(), TemplateProblem> {
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

/// All of them with spaces, and the end of a line.
pub(crate) fn printed_line(values: &[Value], out: &mut Sink) -> Result<(), TemplateProblem> {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(" ")?;
        }
        plain(value, out)?;
    }
    out.push("\n")
}
