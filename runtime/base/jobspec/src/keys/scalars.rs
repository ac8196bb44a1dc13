//! The types of values that stand at single attributes.

use std::path::PathBuf;
use std::time::Duration;

use ostler_text::duration::{DurationError, parse_duration};
use serde_json::Value as Json;

use super::{Context, Field, FieldBounds, FieldShape, MOST};
use crate::Syntax;
use crate::diagnostic::{Span, quote_text};
use crate::tree::{SpannedValue, ValueKind};

/// A type of value that stands at a single attribute.
pub(crate) trait ScalarType: Sized {
    const SHAPE: FieldShape;
    /// The value that is written in JSON where there is none.
    const ABSENT: Option<&'static str> = None;

    /// Read a value. `None` means that a problem was reported.
    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self>;

    fn json(&self) -> Json;
}

/// The choice that a word stands for, of a closed list. Another word is reported.
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
    let message = format!(
        "{} is not a valid {what}; valid values are {}",
        quote_text(text),
        names.join(", ")
    );
    cx.sink.suggest(at, message, instead);
    None
}

/// Implements the trait for types that are written as one of a few words.
macro_rules! keyword {
    ($($type:ty, $what:literal: $($word:literal = $variant:ident),+;)+) => {$(
        impl $crate::keys::ScalarType for $type {
            const SHAPE: $crate::keys::FieldShape = $crate::keys::FieldShape::Word(&[$($word),+]);
            const ABSENT: Option<&'static str> = Some("");

            fn read(
                value: $crate::tree::SpannedValue,
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

/// The value as a text. A value that is none is reported.
pub(crate) fn text(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<String> {
    as_text(value.kind)
        .or_else(|kind| {
            wrong_type(field.name(cx.syntax), value.span, "a text", &kind, cx).ok_or(())
        })
        .ok()
}

impl ScalarType for String {
    const SHAPE: FieldShape = FieldShape::Text;
    const ABSENT: Option<&'static str> = Some("");

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        text(value, field, cx)
    }

    fn json(&self) -> Json {
        self.as_str().into()
    }
}

impl ScalarType for PathBuf {
    const SHAPE: FieldShape = FieldShape::Text;

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let at = value.span;
        let text = text(value, field, cx)?;
        non_empty(text, (field.name(cx.syntax), field.needs), at, cx).map(Self::from)
    }

    fn json(&self) -> Json {
        self.to_str().into()
    }
}

/// The text, which must not be empty. For the message, there is the key and, where the key is required, the message
/// for a missing one.
pub(super) fn non_empty(
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
        impl ScalarType for $type {
            const SHAPE: FieldShape = FieldShape::Integer;

            fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
                integer(&value, field, cx).and_then(|number| number.try_into().ok())
            }

            fn json(&self) -> Json {
                (*self).into()
            }
        }
    )+};
}
integers! { u8 u16 u32 u64 i8 i32 i64 }

/// The whole number that a value is, within the bounds of its key.
fn integer(value: &SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<i64> {
    let (key, at) = (field.name(cx.syntax), value.span);
    let number = match &value.kind {
        ValueKind::Number(number) => whole(number),
        ValueKind::Text(text) => text.trim().parse().ok(),
        _ => None,
    };
    let Some(number) = number else {
        return wrong_type(key, at, "a whole number", &value.kind, cx);
    };
    let (least, most) = match field.bounds {
        FieldBounds::Whole(least, most) | FieldBounds::NotZero(least, most) => (least, most),
        _ => (i64::MIN, i64::MAX),
    };
    if (least..=most).contains(&number) {
        return Some(number);
    }
    let bounds = if most == MOST && number < least {
        format!("at least {least}")
    } else {
        format!("{least} to {most}")
    };
    cx.error(at, format!("{key} must be {bounds}, not {number}"));
    None
}

/// The number, if it is whole: `8` or `8.0`.
fn whole(number: &serde_json::Number) -> Option<i64> {
    if let Some(number) = number.as_i64() {
        return Some(number);
    }
    let number = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
    format!("{number:.0}").parse().ok()
}

impl ScalarType for bool {
    const SHAPE: FieldShape = FieldShape::Bool;

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        match &value.kind {
            ValueKind::Bool(truth) => Some(*truth),
            ValueKind::Text(text) if text == "true" => Some(true),
            ValueKind::Text(text) if text == "false" => Some(false),
            kind => wrong_type(field.name(cx.syntax), value.span, "true or false", kind, cx),
        }
    }

    fn json(&self) -> Json {
        (*self).into()
    }
}

impl ScalarType for Duration {
    const SHAPE: FieldShape = FieldShape::Duration;

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let (key, at) = (field.name(cx.syntax), value.span);
        let duration = duration(&value, key, cx)?;
        let FieldBounds::Time(least, most) = field.bounds else { return Some(duration) };
        if (least..=most).contains(&duration) {
            return Some(duration);
        }
        let [least, most, given] = [least, most, duration].map(humantime::format_duration);
        // For a job file, the message also has the given value.
        let not = if field.json.is_empty() { String::new() } else { format!(", not {given}") };
        cx.error(at, format!("{key} must be {least} to {most}{not}"));
        None
    }

    /// Nomad's durations are signed. Every duration of a job file fits.
    fn json(&self) -> Json {
        i64::try_from(self.as_nanos()).unwrap_or(i64::MAX).into()
    }
}

fn duration(value: &SpannedValue, key: &str, cx: &mut Context<'_>) -> Option<Duration> {
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
        (kind, _) => return wrong_type(key, at, "a duration such as \"15s\"", kind, cx),
    };
    let error = match parse_duration(&text) {
        Ok(duration) => return Some(duration),
        Err(error) => error,
    };
    let instead = match &error {
        DurationError::NoUnit { seconds } => Some(format!("{seconds:?}")),
        _ => None,
    };
    cx.sink.suggest(at, format!("{key}: {}: {error}", quote_text(&text)), instead.as_deref());
    None
}

/// Any value, as it stands there.
impl ScalarType for SpannedValue {
    const SHAPE: FieldShape = FieldShape::Any;

    fn read(value: SpannedValue, _: &Field, _: &mut Context<'_>) -> Option<Self> {
        Some(value)
    }

    fn json(&self) -> Json {
        self.clone().into_json()
    }
}

/// A list of texts with their places.
impl ScalarType for Vec<(String, Span)> {
    const SHAPE: FieldShape = FieldShape::TextList;

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        texts(value, field, "a list of texts", cx)
    }

    fn json(&self) -> Json {
        self.iter().map(|(text, _)| text.as_str()).collect()
    }
}

fn texts(
    value: SpannedValue,
    field: &Field,
    wanted: &str,
    cx: &mut Context<'_>,
) -> Option<Vec<(String, Span)>> {
    let key = field.name(cx.syntax);
    let ValueKind::List(items) = value.kind else {
        return wrong_type(key, value.span, wanted, &value.kind, cx);
    };
    let text = |item: SpannedValue| match as_text(item.kind) {
        Ok(text) => Some((text, item.span)),
        Err(kind) => wrong_type(key, item.span, wanted, &kind, cx),
    };
    Some(items.into_iter().filter_map(text).collect())
}

/// Lists of arguments.
#[derive(Default)]
pub(crate) struct Arguments(pub Vec<Vec<String>>);

impl ScalarType for Arguments {
    const SHAPE: FieldShape = FieldShape::TextLists;

    fn read(value: SpannedValue, field: &Field, cx: &mut Context<'_>) -> Option<Self> {
        let wanted = "a list of argument lists such as [[\"--query\", \"*\"]]";
        let (key, at) = (field.name(cx.syntax), value.span);
        let ValueKind::List(items) = value.kind else {
            return wrong_type(key, at, wanted, &value.kind, cx);
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

pub(super) fn is_empty_text(value: &SpannedValue) -> bool {
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

/// Report a value of a wrong type. A value that could not be evaluated was reported already.
pub(super) fn wrong_type<T>(
    key: &str,
    at: Span,
    wanted: &str,
    kind: &ValueKind,
    cx: &mut Context<'_>,
) -> Option<T> {
    let shown = match kind {
        ValueKind::Refused => return None,
        ValueKind::Text(text) => quote_text(text),
        other => other.describe().to_owned(),
    };
    cx.error(at, format!("{key} must be {wanted}, not {shown}"));
    None
}
