//! Reads and writes YAML. A reference (`*name`) makes a copy of the value, and each copy counts in the budget.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ostler_text::yaml::{self, YamlError, YamlOptions, YamlValues};

use super::super::value::{HclText, Seq, Val, ValKind, number_text, parse_number};
use super::encoding::to_sorted_json;
use super::{FunctionCall, FunctionError};

/// The deepest nesting of the YAML.
const DEPTH_MAX: usize = 64;

pub(super) fn decode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let text = call.text(0)?;
    // Two bytes of the text can be a value in a list.
    call.pay(text.len().saturating_mul(8))?;
    let options = YamlOptions { depth_max: DEPTH_MAX, first_document_only: false };
    let read = yaml::read(&text, options, &mut JobValues { call: &mut call });
    let message = match read {
        Ok(document) => return Ok(document.map_or(ValKind::Null, |value| value.kind)),
        Err(YamlError::Value(error)) => return Err(error),
        Err(YamlError::Syntax(why)) => format!("this is not YAML: {why}"),
        Err(YamlError::TooDeep) => {
            format!("nested too deeply; at most {DEPTH_MAX} levels are allowed")
        }
        Err(YamlError::SelfReference) => "a reference in the YAML names what holds it".to_owned(),
        Err(YamlError::Merge) => "<< in YAML takes an object".to_owned(),
        Err(YamlError::SecondDocument) => "there is more than one document in the YAML".to_owned(),
    };
    call.fail_at(0, message)
}

/// Makes values of a job file, which the budget of the call pays for.
struct JobValues<'a, 'b> {
    call: &'a mut FunctionCall<'b>,
}

impl YamlValues for JobValues<'_, '_> {
    type Value = Val;
    type Error = FunctionError;

    fn make_scalar(&mut self, text: &str, is_plain: bool) -> Val {
        let kind = if is_plain { plain_scalar(text) } else { ValKind::literal(text) };
        Val::new(kind, self.call.span)
    }

    fn make_list(&mut self, items: Vec<Val>) -> Result<Val, FunctionError> {
        Ok(Val::new(ValKind::List(Seq::Tuple, items), self.call.span))
    }

    fn make_map(&mut self, entries: BTreeMap<String, Val>) -> Result<Val, FunctionError> {
        let members = entries.into_iter().map(|(name, value)| (name, (value.span, value)));
        Ok(Val::new(ValKind::Object(members.collect()), self.call.span))
    }

    fn key_text(&mut self, key: Val) -> Result<String, FunctionError> {
        match key.kind.to_text() {
            Some(text) => Ok(text.into_string()),
            None if key.kind == ValKind::Null => Ok("null".to_owned()),
            None => self.call.fail_at(0, "a name in YAML must be a text"),
        }
    }

    fn copy_value(&mut self, value: &Val) -> Result<Val, FunctionError> {
        self.call.pay(usize::try_from(value.size()).unwrap_or(usize::MAX))?;
        Ok(value.clone())
    }

    fn merge_entries(&mut self, into: &mut BTreeMap<String, Val>, from: Val) -> bool {
        let objects = match from.kind {
            ValKind::List(_, items) => items,
            kind => vec![Val::new(kind, from.span)],
        };
        objects.into_iter().all(|object| {
            let ValKind::Object(more) = object.kind else { return false };
            for (name, (_, member)) in more {
                into.entry(name).or_insert(member);
            }
            true
        })
    }
}

fn plain_scalar(text: &str) -> ValKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ValKind::Null,
        "true" | "True" | "TRUE" => ValKind::Bool(true),
        "false" | "False" | "FALSE" => ValKind::Bool(false),
        _ => {
            let radix = |sign, base| {
                let digits = text.strip_prefix(sign)?;
                u64::from_str_radix(digits, base).ok().map(serde_json::Number::from)
            };
            let number = radix("0x", 16).or_else(|| radix("0o", 8)).or_else(|| parse_number(text));
            number.map_or_else(|| ValKind::literal(text), ValKind::Number)
        }
    }
}

pub(super) fn encode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let value = call.take(0);
    // Each line is indented by its level, which is part of the cost.
    let indents = value.depth().saturating_mul(2);
    let size = usize::try_from(value.size()).unwrap_or(usize::MAX);
    call.pay(size.saturating_add(size.saturating_mul(indents) / 32))?;
    let mut out = String::new();
    write(&value, 0, &mut out);
    let text = out.trim_start();
    Ok(ValKind::Text(HclText::new(text, value.is_late())))
}

/// Write the value that stands after `name:` or `-`, with its line break.
fn write(value: &Val, level: usize, out: &mut String) {
    match &value.kind {
        ValKind::List(_, items) if !items.is_empty() => {
            // A list inside of a list begins on the line of its dash.
            for (index, item) in items.iter().enumerate() {
                start(out, level, index);
                out.push('-');
                write_inside(item, level + 1, out);
            }
        }
        ValKind::Object(members) if !members.is_empty() => {
            for (index, (name, (_, member))) in members.iter().enumerate() {
                start(out, level, index);
                let _ = write!(out, "{}:", serde_json::Value::from(name.as_str()));
                match &member.kind {
                    ValKind::List(_, items) if !items.is_empty() => {
                        out.push('\n');
                        write(member, level, out);
                    }
                    ValKind::Object(members) if !members.is_empty() => {
                        out.push('\n');
                        write(member, level + 1, out);
                    }
                    _ => write_inside(member, level + 1, out),
                }
            }
        }
        _ => write_inside(value, level, out),
    }
}

/// Write the blanks before an element; none where the line has begun with a dash.
fn start(out: &mut String, level: usize, index: usize) {
    if index > 0 || out.is_empty() || out.ends_with('\n') {
        out.push_str(&"  ".repeat(level));
    }
}

fn write_inside(value: &Val, level: usize, out: &mut String) {
    let nested = match &value.kind {
        ValKind::List(_, items) => !items.is_empty(),
        ValKind::Object(members) => !members.is_empty(),
        _ => false,
    };
    out.push(' ');
    if nested {
        write(value, level, out);
        return;
    }
    let text = match &value.kind {
        ValKind::Number(number) => number_text(number),
        _ => to_sorted_json(value.clone()).to_string(),
    };
    let _ = writeln!(out, "{text}");
}
