//! Reads and writes YAML. A reference (`*name`) makes a copy of the value, and each copy counts in the budget.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::super::super::diagnostic::Span;
use super::super::value::{HclText, Seq, Val, ValKind, number_text, parse_number};
use super::encoding::to_sorted_json;
use super::{FunctionCall, FunctionError};

/// The deepest nesting of the YAML.
const DEPTH_MAX: usize = 64;

/// A list or an object whose end was not read yet.
struct YamlFrame {
    anchor: usize,
    made: YamlContent,
}

enum YamlContent {
    List(Vec<Val>),
    /// The members of an object, and the name that the next value belongs to.
    Object(BTreeMap<String, (Span, Val)>, Option<String>),
}

pub(super) fn decode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let text = call.text(0)?;
    // Two bytes of the text can be a value in a list.
    call.pay(text.len().saturating_mul(8))?;
    let span = call.span;
    let mut open: Vec<YamlFrame> = Vec::new();
    let mut anchors: BTreeMap<usize, Val> = BTreeMap::new();
    let mut document: Option<Val> = None;
    for event in Parser::new_from_str(&text) {
        let event = match event {
            Ok((event, _)) => event,
            Err(error) => return call.fail_at(0, format!("this is not YAML: {error}")),
        };
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (Val::new(scalar(&text, style, tag.as_deref()), span), anchor)
            }
            Event::Alias(anchor) => {
                let Some(value) = anchors.get(&anchor) else {
                    return call.fail_at(0, "a reference in the YAML names what holds it");
                };
                let value = value.clone();
                call.pay(usize::try_from(value.size()).unwrap_or(usize::MAX))?;
                (value, 0)
            }
            Event::SequenceStart(anchor, ..) | Event::MappingStart(anchor, ..) => {
                if open.len() >= DEPTH_MAX {
                    return call.fail_at(
                        0,
                        format!("nested too deeply; at most {DEPTH_MAX} levels are allowed"),
                    );
                }
                let made = match event {
                    Event::SequenceStart(..) => YamlContent::List(Vec::new()),
                    _ => YamlContent::Object(BTreeMap::new(), None),
                };
                open.push(YamlFrame { anchor, made });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(YamlFrame { anchor, made: YamlContent::List(items) }) => {
                    (Val::new(ValKind::List(Seq::Tuple, items), span), anchor)
                }
                Some(YamlFrame { anchor, made: YamlContent::Object(members, _) }) => {
                    (Val::new(ValKind::Object(members), span), anchor)
                }
                None => continue,
            },
            Event::DocumentStart(_) if document.is_some() => {
                return call.fail_at(0, "there is more than one document in the YAML");
            }
            _ => continue,
        };
        if anchor != 0 {
            call.pay(usize::try_from(value.size()).unwrap_or(usize::MAX))?;
            anchors.insert(anchor, value.clone());
        }
        if let Err(message) = put(&mut open, &mut document, value) {
            return call.fail_at(0, message);
        }
    }
    Ok(document.map_or(ValKind::Null, |value| value.kind))
}

/// Put a value where it belongs.
fn put(open: &mut [YamlFrame], document: &mut Option<Val>, value: Val) -> Result<(), String> {
    match open.last_mut().map(|open| &mut open.made) {
        None => *document = Some(value),
        Some(YamlContent::List(items)) => items.push(value),
        Some(YamlContent::Object(members, name)) => match name.take() {
            // The members of another object are merged. Members that are written here override them.
            Some(merged) if merged == "<<" => {
                let sources = match value.kind {
                    ValKind::List(_, items) => items,
                    kind => vec![Val::new(kind, value.span)],
                };
                for source in sources {
                    let ValKind::Object(more) = source.kind else {
                        return Err("<< in YAML takes an object".to_owned());
                    };
                    for (name, member) in more {
                        members.entry(name).or_insert(member);
                    }
                }
            }
            Some(known) => {
                members.insert(known, (value.span, value));
            }
            None => match value.kind.to_text() {
                Some(text) => *name = Some(text.into_string()),
                None if value.kind == ValKind::Null => *name = Some("null".to_owned()),
                None => return Err("a name in YAML must be a text".to_owned()),
            },
        },
    }
    Ok(())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> ValKind {
    let is = |name: &str| tag.is_some_and(|tag| tag.suffix == name);
    if style != ScalarStyle::Plain || is("str") {
        return ValKind::literal(text);
    }
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
