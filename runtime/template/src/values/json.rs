//! Values as JSON, in the spelling of Go's encoder.

use crate::error::TemplateProblem;
use crate::number;
use crate::sink::Sink;
use crate::value::{Value, lossy};

/// How it is written.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pretty: bool,
    /// `<`, `>` and `&` as they can stand in HTML.
    escapes: bool,
}

impl Style {
    /// In one line.
    pub(crate) fn plain() -> Self {
        Self { pretty: false, escapes: true }
    }

    /// In many lines.
    pub(crate) fn pretty() -> Self {
        Self { pretty: true, escapes: true }
    }

    /// With `<`, `>` and `&` as they are.
    pub(crate) fn unescaped(self) -> Self {
        Self { escapes: false, ..self }
    }
}

/// Write a value.
pub(crate) fn write(value: &Value, style: Style, out: &mut Sink) -> Result<(), TemplateProblem> {
    item(value, style, 0, out)
}

fn item(value: &Value, style: Style, depth: usize, out: &mut Sink) -> Result<(), TemplateProblem> {
    match value {
        Value::Nothing | Value::Null => out.push("null"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(number.to_string()),
        Value::Uint(number) => out.push(number.to_string()),
        Value::Float(number) => out.push(float(*number)?),
        Value::Text(text) => string(&lossy(text), style, out),
        Value::Told(told) => item(told.data(), style, depth, out),
        Value::List(list) => {
            let items = list.items();
            out.push("[")?;
            for (index, value) in items.iter().enumerate() {
                between(index, style, depth, out)?;
                item(value, style, depth + 1, out)?;
            }
            end(items.is_empty(), style, depth, out)?;
            out.push("]")
        }
        Value::Map(map) => {
            out.push("{")?;
            for (index, (key, value)) in map.entries().iter().enumerate() {
                between(index, style, depth, out)?;
                string(key, style, out)?;
                out.push(if style.pretty { ": " } else { ":" })?;
                item(value, style, depth + 1, out)?;
            }
            end(map.entries().is_empty(), style, depth, out)?;
            out.push("}")
        }
        other => Err(TemplateProblem::Value(format!("{} cannot be written as JSON", other.what()))),
    }
}

fn between(
    index: usize,
    style: Style,
    depth: usize,
    out: &mut Sink,
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

fn end(empty: bool, style: Style, depth: usize, out: &mut Sink) -> Result<(), TemplateProblem> {
    if style.pretty && !empty {
        out.push("\n")?;
        out.repeat("  ", depth)?;
    }
    Ok(())
}

/// With an exponent where the number is very large or small.
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

/// A text in quotes.
fn string(text: &str, style: Style, out: &mut Sink) -> Result<(), TemplateProblem> {
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
