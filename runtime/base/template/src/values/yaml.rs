//! Writes maps as YAML, in blocks. The items of a list are indented no deeper than its key.

use std::cmp::Ordering;

use ostler_text::number;

use crate::error::TemplateProblem;
use crate::sink::BoundedBuffer;
use crate::value::{Value, lossy};
use crate::values::yaml_words::{YamlWord, resolve};

/// Write a value as YAML.
pub(crate) fn write(value: &Value, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    block(value, 0, true, out)
}

/// Write a value that begins here. Its further lines are indented by `depth` levels.
fn block(
    value: &Value,
    depth: usize,
    inline: bool,
    out: &mut BoundedBuffer,
) -> Result<(), TemplateProblem> {
    match value {
        Value::TextWithFields(told) => block(told.data(), depth, inline, out),
        Value::Map(map) if !map.entries().is_empty() => {
            let mut entries: Vec<_> = map.entries().iter().collect();
            entries.sort_by(|(left, _), (right, _)| natural(left, right));
            for (index, (key, value)) in entries.into_iter().enumerate() {
                start(index == 0 && inline, depth, out)?;
                text(key, depth, out)?;
                out.push(":")?;
                let value = match value {
                    Value::TextWithFields(told) => told.data(),
                    other => other,
                };
                match value {
                    Value::Map(inner) if !inner.entries().is_empty() => {
                        out.push("\n")?;
                        block(value, depth + 1, false, out)?;
                    }
                    Value::List(list) if !list.items().is_empty() => {
                        out.push("\n")?;
                        block(value, depth, false, out)?;
                    }
                    _ => {
                        out.push(" ")?;
                        block(value, depth + 1, true, out)?;
                    }
                }
            }
            Ok(())
        }
        Value::List(list) if !list.items().is_empty() => {
            for (index, item) in list.items().iter().enumerate() {
                start(index == 0 && inline, depth, out)?;
                out.push("- ")?;
                block(item, depth + 1, true, out)?;
            }
            Ok(())
        }
        Value::Map(_) => out.push("{}\n"),
        Value::List(_) => out.push("[]\n"),
        other => {
            scalar(other, depth, out)?;
            out.push("\n")
        }
    }
}

fn start(here: bool, depth: usize, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    if here { Ok(()) } else { out.repeat("  ", depth) }
}

fn scalar(value: &Value, depth: usize, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    match value {
        Value::Nothing | Value::Null => out.push("null"),
        Value::Bool(value) => out.push(if *value { "true" } else { "false" }),
        Value::Int(number) => out.push(number.to_string()),
        Value::Uint(number) => out.push(number.to_string()),
        Value::Float(number) if number.is_nan() => out.push(".nan"),
        Value::Float(number) if number.is_infinite() => {
            out.push(if *number > 0.0 { ".inf" } else { "-.inf" })
        }
        Value::Float(number) => out.push(number::general(*number, None)),
        Value::Text(bytes) => text(&lossy(bytes), depth, out),
        other => {
            Err(TemplateProblem::Value(format!("{} cannot be written as YAML", other.describe())))
        }
    }
}

/// Write a text with the fewest quotes that keep it a text.
fn text(text: &str, depth: usize, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    if text.is_empty() || !matches!(resolve(text), YamlWord::Text) || switch(text) || date(text) {
        return double(text, out);
    }
    if text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{feff}')) {
        return double(text, out);
    }
    if text.contains('\n') {
        return literal(text, depth, out);
    }
    if needs_quotes(text) {
        out.push("'")?;
        out.push(text.replace('\'', "''"))?;
        return out.push("'");
    }
    out.push(text)
}

/// Whether older readers take the word for true or false.
fn switch(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let cased =
        text == lower || text == text.to_ascii_uppercase() || text.get(1..) == lower.get(1..);
    cased && matches!(lower.as_str(), "y" | "n" | "yes" | "no" | "on" | "off")
}

/// Whether the text begins with a day, which readers take for a time.
fn date(text: &str) -> bool {
    let day = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let parts: Vec<&str> = day.split('-').collect();
    let fits = |part: &str, least, most| {
        (least..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    matches!(parts.as_slice(), [y, m, d] if fits(y, 4, 4) && fits(m, 1, 2) && fits(d, 1, 2))
}

fn needs_quotes(text: &str) -> bool {
    let first = text.chars().next().unwrap_or(' ');
    let second = text.chars().nth(1);
    let opens = "#,[]{}&*!|>'\"%@`".contains(first);
    let marks = matches!(first, '-' | '?' | ':') && second.is_none_or(char::is_whitespace);
    opens
        || marks
        || text.starts_with(char::is_whitespace)
        || text.ends_with(char::is_whitespace)
        || text.starts_with("---")
        || text.starts_with("...")
        || text.contains(": ")
        || text.ends_with(':')
        || text.contains(" #")
}

fn literal(text: &str, depth: usize, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    let ends = text.len() - text.trim_end_matches('\n').len();
    out.push("|")?;
    if text.starts_with([' ', '\n']) {
        out.push("2")?;
    }
    out.push(match ends {
        0 => "-",
        1 => "",
        _ => "+",
    })?;
    let body = text.strip_suffix('\n').unwrap_or(text);
    for line in body.split('\n') {
        out.push("\n")?;
        if !line.is_empty() {
            out.repeat("  ", depth.max(1))?;
            out.push(line)?;
        }
    }
    Ok(())
}

fn double(text: &str, out: &mut BoundedBuffer) -> Result<(), TemplateProblem> {
    out.push("\"")?;
    for c in text.chars() {
        match c {
            '"' => out.push("\\\"")?,
            '\\' => out.push("\\\\")?,
            '\0' => out.push("\\0")?,
            '\x07' => out.push("\\a")?,
            '\x08' => out.push("\\b")?,
            '\t' => out.push("\\t")?,
            '\n' => out.push("\\n")?,
            '\x0b' => out.push("\\v")?,
            '\x0c' => out.push("\\f")?,
            '\r' => out.push("\\r")?,
            '\x1b' => out.push("\\e")?,
            '\u{feff}' => out.push("\\uFEFF")?,
            c if c.is_control() => out.push(format!("\\x{:02X}", u32::from(c)))?,
            c => out.push(c.encode_utf8(&mut [0; 4]))?,
        }
    }
    out.push("\"")
}

/// The order in which people sort: `a9` before `a10`.
fn natural(left: &str, right: &str) -> Ordering {
    let differs = left.char_indices().zip(right.chars()).find(|((_, a), b)| a != b);
    let Some(((at, a), b)) = differs else { return left.len().cmp(&right.len()) };
    if a.is_alphabetic() || b.is_alphabetic() {
        return if a.is_alphabetic() == b.is_alphabetic() {
            a.cmp(&b)
        } else {
            a.is_alphabetic().cmp(&b.is_alphabetic())
        };
    }
    let [left, right] = [left, right].map(|text| digits(text.get(at..).unwrap_or_default()));
    let [small, large] = [left, right].map(|digits| digits.trim_start_matches('0'));
    let by_value = small.len().cmp(&large.len()).then_with(|| small.cmp(large));
    by_value.then_with(|| left.len().cmp(&right.len())).then_with(|| a.cmp(&b))
}

fn digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}
