//! Functions for Base64, JSON, CSV, YAML and URLs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json};

use super::super::value::{HclText, Seq, Val, ValKind, to_number};
use super::{Function, FunctionCall, FunctionError, yaml};
use crate::diagnostic::Span;

pub(super) const TABLE: &[(&str, Function)] = &[
    ("base64decode", base64_decode),
    ("base64encode", base64_encode),
    ("csvdecode", csv_decode),
    ("jsondecode", json_decode),
    ("jsonencode", json_encode),
    ("urlencode", url_encode),
    ("yamldecode", yaml::decode),
    ("yamlencode", yaml::encode),
];

fn base64_encode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let text = call.text(0)?;
    call.pay(text.len() * 2)?;
    Ok(ValKind::literal(STANDARD.encode(text)))
}

fn base64_decode(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let bytes = STANDARD.decode(call.text(0)?.as_bytes());
    let Ok(bytes) = bytes else { return call.fail_at(0, "this is not base64") };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(ValKind::literal(text)),
        Err(_) => call.fail_at(0, "the decoded value is not text: a job file must be UTF-8"),
    }
}

/// Encode a text for a URL, as Go writes a query: a blank becomes a plus.
fn url_encode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let text = call.text(0)?;
    call.pay(text.len() * 3)?;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            b' ' => out.push('+'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    Ok(ValKind::literal(out))
}

/// Write a value as JSON. References that are known later are written as they are.
fn json_encode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let value = call.take(0);
    let late = value.is_late();
    let size = usize::try_from(value.size()).unwrap_or(usize::MAX);
    // An escape takes at most six times the bytes of its character.
    call.pay(size)?;
    let text = html_safe(&to_sorted_json(value).to_string());
    call.pay(text.len())?;
    Ok(ValKind::Text(HclText::new(text, late)))
}

/// The JSON with escapes for the characters that have a meaning in HTML, as Go writes it.
pub(super) fn html_safe(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out
}

/// The value as JSON, with members in the order of their names.
pub(super) fn to_sorted_json(value: Val) -> Json {
    match value.kind {
        ValKind::Object(members) => {
            let member = |(name, (_, value)): (String, (Span, Val))| (name, to_sorted_json(value));
            Json::Object(members.into_iter().map(member).collect::<Map<_, _>>())
        }
        ValKind::List(_, items) => Json::Array(items.into_iter().map(to_sorted_json).collect()),
        kind => Val::new(kind, value.span).into_tree().into_json(),
    }
}

fn json_decode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let text = call.text(0)?;
    // Two bytes of the text can be a value in a list.
    call.pay(text.len().saturating_mul(8))?;
    match serde_json::from_str(&text) {
        Ok(json) => Ok(from_json(json, call.span).kind),
        Err(error) => call.fail_at(0, format!("this is not JSON: {error}")),
    }
}

fn from_json(json: Json, span: Span) -> Val {
    let kind = match json {
        Json::Null => ValKind::Null,
        Json::Bool(truth) => ValKind::Bool(truth),
        Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => to_number(float).map_or(ValKind::Null, ValKind::Number),
            None => ValKind::Number(number),
        },
        Json::String(text) => ValKind::literal(text),
        Json::Array(items) => {
            ValKind::List(Seq::Tuple, items.into_iter().map(|item| from_json(item, span)).collect())
        }
        Json::Object(members) => {
            let member = |(name, value)| (name, (span, from_json(value, span)));
            ValKind::Object(members.into_iter().map(member).collect())
        }
    };
    Val::new(kind, span)
}

/// Read CSV into a list with an object for each line. The first line has the names.
fn csv_decode(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    let text = call.text(0)?;
    let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
    let names: Vec<String> = match reader.headers() {
        Ok(names) => names.iter().map(str::to_owned).collect(),
        Err(error) => return call.fail_at(0, format!("this is not CSV: {error}")),
    };
    if names.is_empty() {
        return call.fail_at(0, "the first line, with the names, is missing");
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(error) => return call.fail_at(0, format!("this is not CSV: {error}")),
        };
        let size: usize = names.iter().map(|name| name.len() + 64).sum();
        call.pay(record.as_slice().len().saturating_add(size))?;
        let span = call.span;
        let member = |(name, text): (&String, &str)| {
            (name.clone(), (span, Val::new(ValKind::literal(text), span)))
        };
        let members: BTreeMap<_, _> = names.iter().zip(record.iter()).map(member).collect();
        if members.len() != names.len() {
            return call.fail_at(0, "two columns have the same name");
        }
        rows.push(ValKind::Object(members));
    }
    Ok(ValKind::list(rows, call.span))
}
