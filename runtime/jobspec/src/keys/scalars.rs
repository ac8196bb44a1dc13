//! The values of single attributes.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use super::{Bounds, Context, Field, MOST, Shape};
use crate::diagnostic::{Span, shown};
use crate::tree::{Value, ValueKind};
use crate::{Syntax, units};

/// A value of one attribute.
pub(crate) trait Scalar: Sized {
    const SHAPE: Shape;
    /// In JSON, what stands there when there is nothing.
    const ABSENT: Option<&'static str> = None;

    /// `None` after a problem was reported.
    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self>;

    fn json(&self) -> Json;
}

/// One of a closed list of words; anything else is reported.
pub(crate) fn choice<T: Copy>(
    what: &str,
    text: &str,
    at: Span,
    choices: &[(&'static str, T)],
    cx: &mut Context<'_>,
) -> Option<T> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
        return Some(*choice);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let instead = cx.sink.nearest(text, names.iter().copied());
    let message = format!("{} is no {what}; valid are {}", shown(text), names.join(", "));
    cx.sink.suggest(at, message, instead);
    None
}

/// Types that are written as one of a few words.
macro_rules! keyword {
    ($($type:ty, $what:literal: $($word:literal = $variant:ident),+;)+) => {$(
        impl $crate::keys::Scalar for $type {
            const SHAPE: $crate::keys::Shape = $crate::keys::Shape::Word(&[$($word),+]);
            const ABSENT: Option<&'static str> = Some("");

            fn read(
                value: $crate::tree::Value,
                field: &$crate::keys::Field,
                cx: &mut $crate::keys::Context<'_>,
            ) -> Option<Self> {
                let at = value.span;
                let text = $crate::keys::text(value, field, cx)?;
                $crate::keys::choice($what, &text, at, &[$(($word, Self::$variant)),+], cx)
            }

            fn json(&self) -> serde_json::Value {
                match self { $(Self::$variant => $word.into(),)+ }
            }
        }
    )+};
}
pub(crate) use keyword;

/// The value as a text.
pub(crate) fn text(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<String> {
    as_text(value.kind)
        .or_else(|kind| wrong(field.name(cx.syntax), value.span, "a text", &kind, cx).ok_or(()))
        .ok()
}

impl Scalar for String {
    const SHAPE: Shape = Shape::Text;
    const ABSENT: Option<&'static str> = Some("");

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        text(value, field, cx)
    }

    fn json(&self) -> Json {
        self.as_str().into()
    }
}

impl Scalar for PathBuf {
    const SHAPE: Shape = Shape::Text;

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let at = value.span;
        let text = text(value, field, cx)?;
        filled(text, (field.name(cx.syntax), field.needs), at, cx).map(Self::from)
    }

    fn json(&self) -> Json {
        self.to_str().into()
    }
}

/// A text that says something, of a key and, where it has to be there, what needs it.
pub(super) fn filled(
    text: String,
    (key, needs): (&str, Option<(&'static str, &'static str)>),
    at: Span,
    cx: &mut Context<'_>,
) -> Option<String> {
    if text.contains('\0') {
        return cx.refuse(at, format!("{key} must not contain the character NUL"));
    }
    if text.trim().is_empty() {
        let next = needs.map_or("leave it out for the default", |(hcl, json)| cx.name(hcl, json));
        return cx.refuse(at, format!("{key} must not be empty; {next}"));
    }
    Some(text)
}

macro_rules! integers {
    ($($type:ty)+) => {$(
        impl Scalar for $type {
            const SHAPE: Shape = Shape::Integer;

            fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
                integer(&value, field, cx).and_then(|number| number.try_into().ok())
            }

            fn json(&self) -> Json {
                (*self).into()
            }
        }
    )+};
}
integers! { u8 u16 u32 u64 i8 i32 i64 }

/// A whole number within the bounds of its key.
fn integer(value: &Value, field: &Field, cx: &mut Context<'_>) -> Option<i64> {
    let (key, at) = (field.name(cx.syntax), value.span);
    let number = match &value.kind {
        ValueKind::Number(number) => whole(number),
        ValueKind::Text(text) => text.trim().parse().ok(),
        _ => None,
    };
    let Some(number) = number else {
        return wrong(key, at, "a whole number", &value.kind, cx);
    };
    let (least, most) = match field.bounds {
        Bounds::Whole(least, most) | Bounds::NotZero(least, most) => (least, most),
        _ => (i64::MIN, i64::MAX),
    };
    if (least..=most).contains(&number) {
        return Some(number);
    }
    let bounds = match most == MOST && number < least {
        true => format!("at least {least}"),
        false => format!("{least} to {most}"),
    };
    cx.error(at, format!("{key} must be {bounds}, not {number}"));
    None
}

/// The number if it is whole: `8` and `8.0`.
fn whole(number: &serde_json::Number) -> Option<i64> {
    if let Some(number) = number.as_i64() {
        return Some(number);
    }
    let number = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
    format!("{number:.0}").parse().ok()
}

impl Scalar for bool {
    const SHAPE: Shape = Shape::Bool;

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        match &value.kind {
            ValueKind::Bool(truth) => Some(*truth),
            ValueKind::Text(text) if text == "true" => Some(true),
            ValueKind::Text(text) if text == "false" => Some(false),
            kind => wrong(field.name(cx.syntax), value.span, "true or false", kind, cx),
        }
    }

    fn json(&self) -> Json {
        (*self).into()
    }
}

impl Scalar for Duration {
    const SHAPE: Shape = Shape::Duration;

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let (key, at) = (field.name(cx.syntax), value.span);
        let duration = duration(&value, key, cx)?;
        let Bounds::Time(least, most) = field.bounds else { return Some(duration) };
        if (least..=most).contains(&duration) {
            return Some(duration);
        }
        let [least, most, given] = [least, most, duration].map(humantime::format_duration);
        // A job file is told what it says, too.
        let not = if field.json.is_empty() { String::new() } else { format!(", not {given}") };
        cx.error(at, format!("{key} must be {least} to {most}{not}"));
        None
    }

    /// Nomad's durations are signed; a job file has none that does not fit.
    fn json(&self) -> Json {
        i64::try_from(self.as_nanos()).unwrap_or(i64::MAX).into()
    }
}

fn duration(value: &Value, key: &str, cx: &mut Context<'_>) -> Option<Duration> {
    let at = value.span;
    let text = match (&value.kind, cx.syntax) {
        (ValueKind::Text(text), _) => text.clone(),
        (ValueKind::Number(number), Syntax::Hcl) => number.to_string(),
        (ValueKind::Number(number), Syntax::Json) => {
            let nanos = number.as_u64().filter(|nanos| i64::try_from(*nanos).is_ok());
            if nanos.is_none() {
                cx.error(at, format!("{key} must be nanoseconds from 0 to {}", i64::MAX));
            }
            return nanos.map(Duration::from_nanos);
        }
        (kind, _) => return wrong(key, at, "a duration such as \"15s\"", kind, cx),
    };
    let error = match units::parse_duration(&text) {
        Ok(duration) => return Some(duration),
        Err(error) => error,
    };
    let instead = match &error {
        units::DurationError::NoUnit { seconds } => Some(format!("{seconds:?}")),
        _ => None,
    };
    cx.sink.suggest(at, format!("{key}: {}: {error}", shown(&text)), instead.as_deref());
    None
}

/// Whatever stands there.
impl Scalar for Value {
    const SHAPE: Shape = Shape::Any;

    fn read(value: Value, _: &Field, _: &mut Context<'_>) -> Option<Self> {
        Some(value)
    }

    fn json(&self) -> Json {
        self.clone().into_json()
    }
}

/// A list of texts with their places.
impl Scalar for Vec<(String, Span)> {
    const SHAPE: Shape = Shape::TextList;

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        texts(value, field, "a list of texts", cx)
    }

    fn json(&self) -> Json {
        self.iter().map(|(text, _)| text.as_str()).collect()
    }
}

fn texts(
    value: Value,
    field: &Field,
    wanted: &str,
    cx: &mut Context<'_>,
) -> Option<Vec<(String, Span)>> {
    let key = field.name(cx.syntax);
    let ValueKind::List(items) = value.kind else {
        return wrong(key, value.span, wanted, &value.kind, cx);
    };
    let text = |item: Value| match as_text(item.kind) {
        Ok(text) => Some((text, item.span)),
        Err(kind) => wrong(key, item.span, wanted, &kind, cx),
    };
    Some(items.into_iter().filter_map(text).collect())
}

/// Lists of arguments.
#[derive(Default)]
pub(crate) struct Arguments(pub Vec<Vec<String>>);

impl Scalar for Arguments {
    const SHAPE: Shape = Shape::TextLists;

    fn read(value: Value, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let wanted = "a list of argument lists such as [[\"--query\", \"*\"]]";
        let (key, at) = (field.name(cx.syntax), value.span);
        let ValueKind::List(items) = value.kind else {
            return wrong(key, at, wanted, &value.kind, cx);
        };
        if items.is_empty() {
            let message =
                "args must not be empty; leave it out for no arguments, write [[\"**\"]] for any";
            cx.error(at, message);
        }
        let plain = |(text, _): (String, Span)| text;
        let list =
            |item| texts(item, field, wanted, cx).map(|l| l.into_iter().map(plain).collect());
        Some(Self(items.into_iter().filter_map(list).collect()))
    }

    fn json(&self) -> Json {
        self.0.clone().into()
    }
}

pub(super) fn is_empty_text(value: &Value) -> bool {
    matches!(&value.kind, ValueKind::Text(text) if text.is_empty())
}

pub(super) fn as_text(kind: ValueKind) -> Result<String, ValueKind> {
    match kind {
        ValueKind::Text(text) => Ok(text),
        ValueKind::Number(number) => Ok(number.to_string()),
        ValueKind::Bool(truth) => Ok(truth.to_string()),
        other => Err(other),
    }
}

/// Report a value of a wrong type. Of one that could not be evaluated, that was said.
pub(super) fn wrong<T>(
    key: &str,
    at: Span,
    wanted: &str,
    kind: &ValueKind,
    cx: &mut Context<'_>,
) -> Option<T> {
    let shown = match kind {
        ValueKind::Refused => return None,
        ValueKind::Text(text) => shown(text),
        other => other.describe().to_owned(),
    };
    cx.error(at, format!("{key} must be {wanted}, not {shown}"));
    None
}
