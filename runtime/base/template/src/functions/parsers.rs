//! Functions that parse texts into values.

use std::collections::BTreeMap;

use super::{Row, string, text, yaml_read};
use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::value::{Value, lossy};

pub(super) const ALL: &[Row] = &[
    ("parseBool", 1, Some(1), parse_bool),
    ("parseInt", 1, Some(1), |_, a| {
        number(
            string(a, 0)?,
            "whole number",
            |text| text.parse().ok().map(Value::Int),
            Value::Int(0),
        )
    }),
    ("parseUint", 1, Some(1), |_, a| {
        let read = |text: &str| text.parse().ok().filter(|_| !text.starts_with('+'));
        number(
            string(a, 0)?,
            "whole number without a sign",
            |text| read(text).map(Value::Uint),
            Value::Uint(0),
        )
    }),
    ("parseFloat", 1, Some(1), |_, a| {
        let read = |text: &str| text.parse().ok().map(Value::Float);
        number(string(a, 0)?, "number", read, Value::Float(0.0))
    }),
    ("parseJSON", 1, Some(1), parse_json),
    ("parseYAML", 1, Some(1), |run, a| {
        let text = string(a, 0)?;
        if text.is_empty() {
            return Value::map(BTreeMap::new());
        }
        run.charge_bytes(text.len().saturating_mul(PARSED_PER_BYTE))?;
        yaml_read::read(text)
    }),
];

/// The bytes that a value can take for each byte of the JSON or YAML it is parsed from.
const PARSED_PER_BYTE: usize = 16;

fn number(
    text: &str,
    what: &str,
    read: impl Fn(&str) -> Option<Value>,
    empty: Value,
) -> Result<Value, TemplateProblem> {
    if text.is_empty() {
        return Ok(empty);
    }
    read(text).ok_or_else(|| TemplateProblem::Value(format!("{text:?} is not a {what}")))
}

fn parse_bool(_run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    match lossy(text(arguments, 0)?).as_ref() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
        other => {
            Err(TemplateProblem::Value(format!("{other:?} is not a bool; write true or false")))
        }
    }
}

fn parse_json(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let text = text(arguments, 0)?;
    if text.is_empty() {
        return Value::map(BTreeMap::new());
    }
    run.charge_bytes(text.len().saturating_mul(PARSED_PER_BYTE))?;
    let wrong = |error| TemplateProblem::Value(format!("the text is not JSON: {error}"));
    let json: serde_json::Value = serde_json::from_slice(text).map_err(wrong)?;
    from_json(&json)
}

/// Convert a value of JSON. The recursion is bounded, because the JSON parser bounds the nesting.
fn from_json(json: &serde_json::Value) -> Result<Value, TemplateProblem> {
    use serde_json::Value as Json;
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::Float(number.as_f64().unwrap_or_default()),
        Json::String(text) => Value::text(text),
        Json::Array(items) => {
            Value::list(items.iter().map(from_json).collect::<Result<_, TemplateProblem>>()?)?
        }
        Json::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| Ok((key.clone(), from_json(value)?)));
            Value::map(entries.collect::<Result<_, TemplateProblem>>()?)?
        }
    })
}
