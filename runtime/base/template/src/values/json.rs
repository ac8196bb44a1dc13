//! Writes values as JSON, with the spelling of Go's encoder.

use ostler_text::number;

use crate::error::TemplateProblem;
use crate::sink::BoundedBuffer;
use crate::value::{Value, lossy};

/// How the JSON is laid out and escaped.
#[derive(Clone, Copy)]
pub(crate) struct JsonStyle {
    pretty: bool,
    /// Whether `<`, `>` and `&` are escaped, so that the JSON can stand in HTML.
    escapes: bool,
}

impl JsonStyle {
    /// JSON in one line.
    pub(crate) fn plain() -> Self {
        Self { pretty: false, escapes: true }
    }

    /// JSON in many lines, indented.
    pub(crate) fn pretty() -> Self {
        Self { pretty: true, escapes: true }
    }

    /// The same style without escapes of `<`, `>` and `&`.
    pub(crate) fn unescaped(self) -> Self {
        Self { escapes: false, ..self }
    }
}

/// Write a value as JSON.
pub(crate) fn write(
    value: &Value,
    style: JsonStyle,
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    item(value, style, 0, out)
}

fn item(
    value: &Value,
    style: JsonStyle,
    depth: usize,
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    match value {
        Value::Nothing | Value::Null => out.push("null"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(number.to_string()),
        Value::Uint(number) => out.push(number.to_string()),
        Value::Float(number) => out.push(float(*number)?),
        Value::Text(text) => string(&lossy(text), style, out),
        Value::TextWithFields(told) => item(told.data(), style, depth, out),
        Value::List(list) => {
            let items = list.items();
            out.push("[")?;
            for (index, value) in items.iter().enumerate() {
                write_separator(index, style, depth, out)?;
                item(value, style, depth + 1, out)?;
            }
            end(items.is_empty(), style, depth, out)?;
            out.push("]")
        }
        Value::Map(map) => {
            out.push("{")?;
            for (index, (key, value)) in map.entries().iter().enumerate() {
                write_separator(index, style, depth, out)?;
                string(key, style, out)?;
                out.push(if style.pretty { ": " } else { ":" })?;
                item(value, style, depth + 1, out)?;
            }
            end(map.entries().is_empty(), style, depth, out)?;
            out.push("}")
        }
        other => {
            Err(TemplateProblem::Value(format!("{} cannot be written as JSON", other.describe())))
        }
    }
}

fn write_separator(
    index: usize,
    style: JsonStyle,
    depth: usize,
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    if index > 0 {
        out.push(",")?;
    }
    if style.pretty {
        out.push("\n")?;
        out.repeat("  ", depth + 1)?;
    }
    Ok(())
}

fn end(
    empty: bool,
    style: JsonStyle,
    depth: usize,
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    if style.pretty && !empty {
        out.push("\n")?;
        out.repeat("  ", depth)?;
    }
    Ok(())
}

/// A number, with an exponent where it is very large or very small.
fn float(value: f64) -> Result<String, TemplateProblem> {
    if !value.is_finite() {
        return Err(TemplateProblem::value("JSON has no infinite numbers"));
    }
    let (digits, exponent) = number::shortest(value);
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value != 0.0 && !(-6..21).contains(&exponent) {
        let (first, rest) = digits.split_at_checked(1).unwrap_or((&digits, ""));
        let point = if rest.is_empty() { "" } else { "." };
        let way = if exponent < 0 { '-' } else { '+' };
        return Ok(format!("{sign}{first}{point}{rest}e{way}{}", exponent.unsigned_abs()));
    }
    Ok(format!("{sign}{}", number::plain(&digits, exponent)))
}

/// Write a text in quotes.
fn string(text: &str, style: JsonStyle, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    out.push("\"")?;
    for c in text.chars() {
        match c {
            '"' => out.push("\\\"")?,
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\u{2028}' => out.push("\\u2028")?,
            '\u{2029}' => out.push("\\u2029")?,
            '<' | '>' | '&' if style.escapes => out.push(format!("\\u{:04x}", u32::from(c)))?,
            c if u32::from(c) < 0x20 => out.push(format!("\\u{:04x}", u32::from(c)))?,
            c => out.push(c.encode_utf8(&mut [0; 4]))?,
        }
    }
    out.push("\"")
}
