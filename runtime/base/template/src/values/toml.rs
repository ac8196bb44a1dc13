//! Writes maps as TOML: first the simple values, then the tables, indented by two more spaces on each level.

use ostler_text::number;

use crate::error::TemplateProblem;
use crate::sink::BoundedBuffer;
use crate::value::{Value, ValueMap, lossy};

/// Write a map as TOML.
pub(crate) fn write(value: &Value, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    match value {
        Value::Map(map) => table(map, &[], out),
        other => Err(TemplateProblem::Value(format!("{} is not a TOML table", other.describe()))),
    }
}

/// The value that is written in place of a value: for a text that has fields, its data.
fn as_data(value: &Value) -> &Value {
    match value {
        Value::TextWithFields(told) => told.data(),
        other => other,
    }
}

fn is_table(value: &Value) -> bool {
    let value = as_data(value);
    matches!(value, Value::Map(_)) || is_tables(value)
}

/// Whether a value is a list that holds tables alone.
fn is_tables(value: &Value) -> bool {
    let Value::List(list) = value else { return false };
    let is_map = |item| matches!(as_data(item), Value::Map(_));
    !list.items().is_empty() && list.items().iter().all(is_map)
}

fn table(map: &ValueMap, path: &[&str], out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    for (key, value) in map.entries().iter().filter(|(_, value)| !is_table(value)) {
        if value.is_nothing() {
            continue;
        }
        out.repeat("  ", path.len())?;
        name(key, out)?;
        out.push(" = ")?;
        simple(value, out)?;
        out.push("\n")?;
    }
    for (key, value) in map.entries().iter().filter(|(_, value)| is_table(value)) {
        let mut path = path.to_vec();
        path.push(key);
        match as_data(value) {
            Value::Map(inner) => {
                header(&path, ("[", "]"), out)?;
                table(inner, &path, out)?;
            }
            Value::List(list) => {
                for item in list.items() {
                    let Value::Map(inner) = as_data(item) else { continue };
                    header(&path, ("[[", "]]"), out)?;
                    table(inner, &path, out)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn header(
    path: &[&str],
    around: (&str, &str),
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    // An empty line stands before each table of the first level, and before each table of a list.
    if out.len() > 0 && (path.len() == 1 || around.0 == "[[") {
        out.push("\n")?;
    }
    out.repeat("  ", path.len().saturating_sub(1))?;
    out.push(around.0)?;
    for (index, part) in path.iter().enumerate() {
        if index > 0 {
            out.push(".")?;
        }
        name(part, out)?;
    }
    out.push(around.1)?;
    out.push("\n")
}

fn name(key: &str, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(bare) { out.push(key) } else { write_quoted(key, out) }
}

fn write_quoted(text: &str, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    out.push("\"")?;
    for c in text.chars() {
        match c {
            '"' => out.push("\\\"")?,
            '\\' => out.push("\\\\")?,
            '\x08' => out.push("\\b")?,
            '\x0c' => out.push("\\f")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            c if c.is_control() => out.push(format!("\\u{:04X}", u32::from(c)))?,
            c => out.push(c.encode_utf8(&mut [0; 4]))?,
        }
    }
    out.push("\"")
}

fn simple(value: &Value, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    match as_data(value) {
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(number.to_string()),
        Value::Uint(number) => out.push(number.to_string()),
        Value::Float(number) if number.is_finite() => {
            let (digits, exponent) = number::shortest(*number);
            let text = number::plain(&digits, exponent);
            out.push(if number.is_sign_negative() { "-" } else { "" })?;
            out.push(&text)?;
            out.push(if text.contains('.') { "" } else { ".0" })
        }
        Value::Text(text) => write_quoted(&lossy(text), out),
        Value::List(list) => {
            out.push("[")?;
            for (index, item) in list.items().iter().enumerate() {
                if index > 0 {
                    out.push(", ")?;
                }
                simple(item, out)?;
            }
            out.push("]")
        }
        Value::Map(map) => {
            out.push("{")?;
            for (index, (key, value)) in map.entries().iter().enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                name(key, out)?;
                out.push(" = ")?;
                simple(value, out)?;
            }
            out.push("}")
        }
        other => {
            Err(TemplateProblem::Value(format!("{} cannot be written as TOML", other.describe())))
        }
    }
}
