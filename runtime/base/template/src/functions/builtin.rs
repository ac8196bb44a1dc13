//! The functions that Go's templates have.

use std::cmp::Ordering;

use super::{Row, argument, text, whole};
use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::value::{MapKind, Value, lossy};
use crate::{compare, print, printf};

pub(super) const ALL: &[Row] = &[
    // The evaluation handles these two itself, because they do not evaluate every argument.
    ("and", 1, None, first),
    ("or", 1, None, first),
    ("not", 1, Some(1), |_, arguments| Ok(Value::Bool(!argument(arguments, 0).truth()))),
    ("eq", 2, None, eq),
    ("ne", 2, Some(2), |_, a| {
        compare::same(argument(a, 0), argument(a, 1)).map(|same| Value::Bool(!same))
    }),
    ("lt", 2, Some(2), |_, a| compare_order(a, |order| order == Ordering::Less)),
    ("le", 2, Some(2), |_, a| compare_order(a, |order| order != Ordering::Greater)),
    ("gt", 2, Some(2), |_, a| compare_order(a, |order| order == Ordering::Greater)),
    ("ge", 2, Some(2), |_, a| compare_order(a, |order| order != Ordering::Less)),
    ("len", 1, Some(1), len),
    ("index", 1, None, index),
    ("slice", 1, Some(4), slice),
    ("print", 0, None, |run, a| print_with(run, a, print::print_all)),
    ("println", 0, None, |run, a| print_with(run, a, print::print_line)),
    ("printf", 1, None, format_text),
    ("html", 0, None, |run, a| escape_text(run, a, html)),
    ("js", 0, None, |run, a| escape_text(run, a, js)),
    ("urlquery", 0, None, |run, a| escape_text(run, a, urlquery)),
];

fn first(_run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    Ok(argument(arguments, 0).clone())
}

fn eq(_run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let first = argument(arguments, 0);
    for other in arguments.iter().skip(1) {
        if compare::same(first, other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn compare_order(arguments: &[Value], is: fn(Ordering) -> bool) -> Result<Value, TemplateProblem> {
    let order = compare::order(argument(arguments, 0), argument(arguments, 1))?;
    Ok(Value::Bool(order.is_some_and(is)))
}

fn count(count: usize) -> Value {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

fn len(_run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    match argument(arguments, 0) {
        Value::Text(text) => Ok(count(text.len())),
        Value::TextWithFields(told) => Ok(count(told.text().len())),
        Value::List(list) => Ok(count(list.items().len())),
        Value::Map(map) if map.kind() != MapKind::Record => Ok(count(map.entries().len())),
        other => Err(TemplateProblem::Value(format!("{} has no length", other.describe()))),
    }
}

fn index(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let mut value = argument(arguments, 0).clone();
    for at in 1..arguments.len() {
        run.charge_bytes(0)?;
        value = match &value {
            Value::Map(map) if map.kind() != MapKind::Record => {
                let key = lossy(text(arguments, at)?).into_owned();
                match (map.entries().get(&key), map.kind()) {
                    (Some(value), _) => value.clone(),
                    (None, MapKind::Texts) => Value::text(""),
                    (None, _) => Value::Null,
                }
            }
            Value::List(list) => {
                let place = place(arguments, at, list.items().len())?;
                list.items().get(place).cloned().unwrap_or(Value::Null)
            }
            Value::Text(bytes) => {
                let place = place(arguments, at, bytes.len())?;
                Value::Int(bytes.get(place).copied().map_or(0, i64::from))
            }
            other => {
                let what = other.describe();
                return Err(TemplateProblem::Value(format!("{what} has nothing at an index")));
            }
        };
    }
    Ok(value)
}

/// The argument as an index into `count` items.
fn place(arguments: &[Value], at: usize, count: usize) -> Result<usize, TemplateProblem> {
    let index = whole(arguments, at)?;
    let place = usize::try_from(index).ok().filter(|place| *place < count);
    place.ok_or_else(|| {
        TemplateProblem::Value(format!("index {index} is out of range: there are {count}"))
    })
}

fn slice(_run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let value = argument(arguments, 0);
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(list) => list.items().len(),
        other => return Err(TemplateProblem::Value(format!("{} has no slices", other.describe()))),
    };
    let mut bounds = [0, length, length];
    for (at, bound) in bounds.iter_mut().enumerate().take(arguments.len().saturating_sub(1)) {
        let index = whole(arguments, at + 1)?;
        let place = usize::try_from(index).ok().filter(|place| *place <= length);
        let out =
            || TemplateProblem::Value(format!("index {index} is out of range: there are {length}"));
        *bound = place.ok_or_else(out)?;
    }
    let [from, to, _] = bounds;
    match value {
        Value::Text(text) => text.get(from..to).map(Value::text),
        Value::List(list) if list.has_only_texts() => list.items().get(from..to).map(|items| {
            let texts = items.iter().filter_map(|item| match item {
                Value::Text(text) => Some(text),
                _ => None,
            });
            Value::texts(texts)
        }),
        Value::List(list) => {
            list.items().get(from..to).map(|items| Value::list(items.to_vec())).transpose()?
        }
        _ => None,
    }
    .ok_or_else(|| {
        TemplateProblem::Value(format!("the slice ends at {to}, before it begins at {from}"))
    })
}

type Print = fn(&[Value], &mut crate::sink::BoundedBuffer) -> Result<(), TemplateProblem>;

fn print_with(
    run: &mut Renderer<'_>,
    arguments: &[Value],
    how: Print,
) -> Result<Value, TemplateProblem> {
    let mut sink = run.sink();
    how(arguments, &mut sink)?;
    Ok(Value::text(sink.into_bytes()))
}

fn format_text(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let format = lossy(text(arguments, 0)?).into_owned();
    let mut sink = run.sink();
    printf::printf(&format, arguments.get(1..).unwrap_or_default(), &mut sink)?;
    Ok(Value::text(sink.into_bytes()))
}

/// A function that escapes a character; `None` leaves the character as it is.
type Escape = fn(char) -> Option<String>;

/// The arguments as one text, with some characters escaped.
fn escape_text(
    run: &mut Renderer<'_>,
    arguments: &[Value],
    escape: Escape,
) -> Result<Value, TemplateProblem> {
    let plain = match arguments {
        [Value::Text(text)] => text.to_vec(),
        _ => {
            let mut sink = run.sink();
            print::print_all(arguments, &mut sink)?;
            sink.into_bytes()
        }
    };
    let mut sink = run.sink();
    for c in lossy(&plain).chars() {
        match escape(c) {
            Some(text) => sink.push(text)?,
            None => sink.push(c.encode_utf8(&mut [0; 4]))?,
        }
    }
    Ok(Value::text(sink.into_bytes()))
}

fn html(c: char) -> Option<String> {
    let text = match c {
        '\0' => "\u{fffd}",
        '"' => "&#34;",
        '\'' => "&#39;",
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        _ => return None,
    };
    Some(text.to_owned())
}

fn js(c: char) -> Option<String> {
    match c {
        '\\' => Some("\\\\".to_owned()),
        '\'' => Some("\\'".to_owned()),
        '"' => Some("\\\"".to_owned()),
        '<' | '>' | '&' | '=' => Some(format!("\\u{:04X}", u32::from(c))),
        c if c.is_control() => Some(format!("\\u{:04X}", u32::from(c))),
        _ => None,
    }
}

fn urlquery(c: char) -> Option<String> {
    if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~') {
        return None;
    }
    if c == ' ' {
        return Some("+".to_owned());
    }
    Some(c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect())
}
