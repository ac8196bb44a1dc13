//! Functions of texts and of lists of texts.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::{Row, argument, string, text, whole};
use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::print;
use crate::value::{MapKind, Value, lossy};

pub(super) const ALL: &[Row] = &[
    ("base64Encode", 1, Some(1), |_, a| Ok(Value::text(STANDARD.encode(text(a, 0)?)))),
    ("base64Decode", 1, Some(1), |_, a| decode_base64(&STANDARD, a)),
    ("base64URLEncode", 1, Some(1), |_, a| Ok(Value::text(URL_SAFE.encode(text(a, 0)?)))),
    ("base64URLDecode", 1, Some(1), |_, a| decode_base64(&URL_SAFE, a)),
    ("sha256Hex", 1, Some(1), |_, a| Ok(Value::text(hex(&Sha256::digest(text(a, 0)?))))),
    ("md5sum", 1, Some(1), |_, a| Ok(Value::text(hex(&Md5::digest(text(a, 0)?))))),
    ("toLower", 1, Some(1), |_, a| Ok(Value::text(lossy(text(a, 0)?).to_lowercase()))),
    ("toUpper", 1, Some(1), |_, a| Ok(Value::text(lossy(text(a, 0)?).to_uppercase()))),
    ("toTitle", 1, Some(1), |_, a| Ok(Value::text(title(&lossy(text(a, 0)?))))),
    ("trimSpace", 1, Some(1), |_, a| Ok(Value::text(lossy(text(a, 0)?).trim()))),
    ("trim", 2, Some(2), |_, a| {
        let set = string(a, 0)?;
        Ok(Value::text(string(a, 1)?.trim_matches(|c| set.contains(c))))
    }),
    ("trimPrefix", 2, Some(2), |_, a| {
        let (prefix, text) = (text(a, 0)?, text(a, 1)?);
        Ok(Value::text(text.strip_prefix(prefix).unwrap_or(text)))
    }),
    ("trimSuffix", 2, Some(2), |_, a| {
        let (suffix, text) = (text(a, 0)?, text(a, 1)?);
        Ok(Value::text(text.strip_suffix(suffix).unwrap_or(text)))
    }),
    ("join", 2, Some(2), join),
    ("split", 2, Some(2), split),
    ("replaceAll", 3, Some(3), replace_all),
    ("regexMatch", 2, Some(2), |run, a| {
        let text = lossy(text(a, 1)?);
        Ok(Value::Bool(run.pattern(string(a, 0)?, &text)?.is_match(&text)))
    }),
    ("regexReplaceAll", 3, Some(3), regex_replace_all),
    ("indent", 2, Some(2), indent),
    ("in", 2, Some(2), |_, a| Ok(Value::Bool(contains_value(argument(a, 0), argument(a, 1))))),
    ("contains", 2, Some(2), |_, a| {
        Ok(Value::Bool(contains_value(argument(a, 1), argument(a, 0))))
    }),
    ("containsAll", 2, Some(2), |_, a| test_members(a, |each| each.iter().all(|is| *is))),
    ("containsAny", 2, Some(2), |_, a| test_members(a, |each| each.iter().any(|is| *is))),
    ("containsNone", 2, Some(2), |_, a| test_members(a, |each| !each.iter().any(|is| *is))),
    ("containsNotAll", 2, Some(2), |_, a| test_members(a, |each| !each.iter().all(|is| *is))),
    ("explode", 1, Some(1), explode),
    ("explodeMap", 1, Some(1), explode),
    ("byTag", 1, Some(1), by_tag),
];

fn decode_base64(
    engine: &impl base64::Engine,
    arguments: &[Value],
) -> Result<Value, TemplateProblem> {
    // As in Go, line ends inside the text are skipped.
    let text: Vec<u8> =
        text(arguments, 0)?.iter().copied().filter(|byte| !b"\r\n".contains(byte)).collect();
    let wrong = |error| TemplateProblem::Value(format!("the text is not base64: {error}"));
    Ok(Value::text(engine.decode(text).map_err(wrong)?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text with the first letter of each word as a capital.
fn title(text: &str) -> String {
    let mut before = ' ';
    let mut titled = String::with_capacity(text.len());
    for c in text.chars() {
        let separates = if before.is_ascii() {
            !(before.is_ascii_alphanumeric() || before == '_')
        } else {
            !before.is_alphanumeric() && before.is_whitespace()
        };
        before = c;
        if separates { titled.extend(c.to_uppercase()) } else { titled.push(c) }
    }
    titled
}

fn join(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let separator = text(arguments, 0)?;
    let Value::List(list) = argument(arguments, 1) else {
        let what = argument(arguments, 1).describe();
        return Err(TemplateProblem::Value(format!("argument 2 is {what}, not a list of strings")));
    };
    let mut sink = run.sink();
    for (index, item) in list.items().iter().enumerate() {
        let Value::Text(item) = item else {
            let what = item.describe();
            return Err(TemplateProblem::Value(format!("item {index} is {what}, not a string")));
        };
        if index > 0 {
            sink.push(separator)?;
        }
        sink.push(item)?;
    }
    Ok(Value::text(sink.into_bytes()))
}

fn split(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let (separator, text) = (lossy(text(arguments, 0)?), lossy(text(arguments, 1)?));
    let text = text.trim();
    if text.is_empty() {
        return Ok(Value::texts::<&str>([]));
    }
    run.charge_bytes(text.len().saturating_mul(8))?;
    if separator.is_empty() {
        return Ok(Value::texts(text.chars().map(String::from)));
    }
    Ok(Value::texts(text.split(separator.as_ref())))
}

fn replace_all(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let (from, to, text) =
        (lossy(text(arguments, 0)?), lossy(text(arguments, 1)?), lossy(text(arguments, 2)?));
    let mut sink = run.sink();
    let mut rest = 0;
    for (at, found) in text.match_indices(from.as_ref()) {
        sink.push(text.get(rest..at).unwrap_or_default())?;
        sink.push(to.as_bytes())?;
        rest = at + found.len();
    }
    sink.push(text.get(rest..).unwrap_or_default())?;
    Ok(Value::text(sink.into_bytes()))
}

fn regex_replace_all(
    run: &mut Renderer<'_>,
    arguments: &[Value],
) -> Result<Value, TemplateProblem> {
    let (pattern, to) = (string(arguments, 0)?, string(arguments, 1)?);
    let text = lossy(text(arguments, 2)?);
    let pattern = run.pattern(pattern, &text)?;
    let mut sink = run.sink();
    pattern.replace(&text, to, |found| {
        sink.push(found.before)?;
        let mut becomes = String::new();
        (found.becomes)(&mut becomes);
        sink.push(becomes)
    })?;
    Ok(Value::text(sink.into_bytes()))
}

fn indent(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let spaces = usize::try_from(whole(arguments, 0)?);
    let spaces = spaces.map_err(|_| TemplateProblem::value("the number of spaces is negative"))?;
    let mut sink = run.sink();
    for line in text(arguments, 1)?.split_inclusive(|byte| *byte == b'\n') {
        if line != b"\n" {
            sink.repeat(" ", spaces)?;
        }
        sink.push(line)?;
    }
    Ok(Value::text(sink.into_bytes()))
}

/// Whether a value is an item of a list, or part of a text.
fn contains_value(all: &Value, one: &Value) -> bool {
    match (all, one) {
        (Value::List(list), _) => list.items().iter().any(|item| match (item, one) {
            (Value::Int(item), Value::Int(one)) => item == one,
            (Value::Float(item), Value::Float(one)) => item == one,
            (Value::Text(item), Value::Text(one)) => item == one,
            _ => false,
        }),
        (Value::Text(all), Value::Text(one)) => lossy(all).contains(lossy(one).as_ref()),
        _ => false,
    }
}

fn test_members(arguments: &[Value], holds: fn(&[bool]) -> bool) -> Result<Value, TemplateProblem> {
    let Value::List(wanted) = argument(arguments, 0) else {
        let what = argument(arguments, 0).describe();
        return Err(TemplateProblem::Value(format!("argument 1 is {what}, not a list")));
    };
    let all = argument(arguments, 1);
    let each: Vec<bool> = wanted.items().iter().map(|one| contains_value(all, one)).collect();
    Ok(Value::Bool(holds(&each)))
}

/// A tree of the levels that the `/` in keys separates.
#[derive(Default)]
struct Levels {
    below: BTreeMap<String, Levels>,
    value: Option<Value>,
}

impl Levels {
    fn into_value(self) -> Result<Value, TemplateProblem> {
        if let Some(value) = self.value {
            return Ok(value);
        }
        let mut entries = BTreeMap::new();
        for (key, below) in self.below {
            entries.insert(key, below.into_value()?);
        }
        Value::map(entries)
    }
}

fn explode(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let mut pairs: Vec<(String, Value)> = match argument(arguments, 0) {
        Value::Map(map) => map.entries().iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        other => {
            return Err(TemplateProblem::Value(format!("takes a map, not {}", other.describe())));
        }
    };
    pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
    let mut root = Levels::default();
    for (key, value) in pairs {
        run.charge_bytes(key.len().saturating_mul(2))?;
        let parts: Vec<&str> = key.split('/').collect();
        if parts.len() > crate::limits::TEMPLATE_VALUE_NESTING_MAX {
            return Err(TemplateProblem::too_deep(crate::limits::TEMPLATE_VALUE_NESTING_MAX));
        }
        let Some((last, above)) = parts.split_last() else { continue };
        let mut level = &mut root;
        for part in above {
            level = level.below.entry((*part).to_owned()).or_default();
            if level.value.is_some() {
                return Err(TemplateProblem::Value(format!(
                    "{key:?}: {part:?} has a value already"
                )));
            }
        }
        if !last.is_empty() {
            level.below.entry((*last).to_owned()).or_default().value = Some(value);
        }
    }
    root.into_value()
}

/// Services by their tags.
fn by_tag(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let items = match argument(arguments, 0) {
        Value::Nothing | Value::Null => return Value::map(BTreeMap::new()),
        Value::List(list) => list.items(),
        other => {
            return Err(TemplateProblem::Value(format!(
                "takes services, not {}",
                other.describe()
            )));
        }
    };
    let mut by_tag: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for item in items {
        let tags = match item {
            Value::Map(map) if map.kind() == MapKind::Record => map.entries().get("Tags"),
            _ => None,
        };
        let Some(Value::List(tags)) = tags else {
            return Err(TemplateProblem::value("takes services, and one item is not a service"));
        };
        for tag in tags.items() {
            let mut sink = run.sink();
            print::print_action(tag, &mut sink)?;
            run.charge_bytes(sink.len().saturating_add(64))?;
            let tag = lossy(&sink.into_bytes()).into_owned();
            by_tag.entry(tag).or_default().push(item.clone());
        }
    }
    let lists = by_tag.into_iter().map(|(tag, items)| Ok((tag, Value::list(items)?)));
    Value::map(lists.collect::<Result<_, TemplateProblem>>()?)
}
