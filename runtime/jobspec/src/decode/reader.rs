//! Takes typed values out of one block.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::super::Format;
use super::super::diagnostic::{Span, shown};
use super::super::schema::{Schema, Shape};
use super::super::tree::{Attribute, Block, Body, Item, Key, Value, ValueKind};
use super::super::units;
use super::{Context, form, free};
use ostler_model::json::JsonObject;

/// The checked content of one block, by name.
pub(super) struct Reader {
    fields: BTreeMap<&'static str, Vec<Item>>,
    /// Names that stand in the block, usable or not.
    given: BTreeSet<&'static str>,
}

impl Reader {
    /// Check `body` against its table. Unknown keys, unsupported ones, blocks in place of
    /// attributes or the reverse, and repetitions are reported and left out.
    pub(super) fn new(body: Body, schema: &'static Schema, cx: &mut Context<'_>) -> Self {
        let mut fields: BTreeMap<&'static str, Vec<Item>> = BTreeMap::new();
        let mut given = BTreeSet::new();
        for item in body.items {
            let key = item.key();
            let Some(field) = schema.field(&key.name) else {
                form::unknown(key, schema, cx);
                continue;
            };
            let name = field.hcl;
            let absent = matches!(&item, Item::Attribute(a) if a.value.kind == ValueKind::Null);
            if !absent {
                given.insert(name);
            }
            let Some(item) = form::checked(item, field.shape, cx) else {
                continue;
            };
            let place = fields.entry(name).or_default();
            let repeatable = matches!(field.shape, Shape::Block { many: true, .. });
            if !repeatable && !place.is_empty() {
                let key = item.key();
                cx.error(key.span, format!("{} is given twice", key.written()));
                continue;
            }
            place.push(item);
        }
        Self { fields, given }
    }

    /// Something stands at this name, so that its absence need not be reported even if it could
    /// not be used.
    pub(super) fn was_given(&self, name: &'static str) -> bool {
        self.given.contains(name)
    }

    /// Where something usable stands.
    pub(super) fn place(&self, name: &'static str) -> Option<Span> {
        self.fields.get(name)?.last().map(|item| item.key().span)
    }

    /// The value of an attribute, of whatever type.
    pub(super) fn value(&mut self, name: &'static str) -> Option<(Key, Value)> {
        match self.fields.remove(name)?.pop()? {
            Item::Attribute(Attribute { key, value }) => Some((key, value)),
            Item::Block(_) => None,
        }
    }

    /// The blocks of this name, in file order.
    pub(super) fn blocks(&mut self, name: &'static str) -> Vec<Block> {
        let items = self.fields.remove(name).unwrap_or_default();
        let block = |item| match item {
            Item::Block(block) => Some(block),
            Item::Attribute(_) => None,
        };
        items.into_iter().filter_map(block).collect()
    }

    /// The block of this name.
    pub(super) fn block(&mut self, name: &'static str) -> Option<Block> {
        self.blocks(name).into_iter().next()
    }

    /// A text; numbers and truth values become texts. The empty text is none.
    pub(super) fn text(
        &mut self,
        name: &'static str,
        cx: &mut Context<'_>,
    ) -> Option<(String, Span)> {
        let (key, value) = self.value(name)?;
        let at = value.span;
        match as_text(value.kind) {
            Ok(text) if text.is_empty() && cx.format == Format::Json => {
                self.given.remove(name);
                None
            }
            Ok(text) => Some((text, at)),
            Err(kind) => wrong(&key, at, "a text", &kind, cx),
        }
    }

    /// A whole number within `range`.
    pub(super) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
        cx: &mut Context<'_>,
    ) -> Option<(i64, Span)> {
        let (key, value) = self.value(name)?;
        let at = value.span;
        let number = match &value.kind {
            ValueKind::Number(number) => whole(number),
            ValueKind::Text(text) => text.trim().parse().ok(),
            _ => None,
        };
        let Some(number) = number else {
            return wrong(&key, at, "a whole number", &value.kind, cx);
        };
        if !range.contains(&number) {
            let (least, most) = (range.start(), range.end());
            let key = key.written();
            let bounds = match *most == i64::from(u32::MAX) && number < *least {
                true => format!("at least {least}"),
                false => format!("{least} to {most}"),
            };
            cx.error(at, format!("{key} must be {bounds}, not {number}"));
            return None;
        }
        Some((number, at))
    }

    /// The same, as the type the model has.
    pub(super) fn number<T: TryFrom<i64>>(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
        cx: &mut Context<'_>,
    ) -> Option<T> {
        let (number, _) = self.integer(name, range, cx)?;
        T::try_from(number).ok()
    }

    /// A truth value.
    pub(super) fn boolean(&mut self, name: &'static str, cx: &mut Context<'_>) -> Option<bool> {
        let (key, value) = self.value(name)?;
        match &value.kind {
            ValueKind::Bool(truth) => Some(*truth),
            ValueKind::Text(text) if text == "true" => Some(true),
            ValueKind::Text(text) if text == "false" => Some(false),
            kind => wrong(&key, value.span, "true or false", kind, cx),
        }
    }

    /// A duration.
    pub(super) fn duration(
        &mut self,
        name: &'static str,
        cx: &mut Context<'_>,
    ) -> Option<(Duration, Span)> {
        let (key, value) = self.value(name)?;
        let at = value.span;
        let text = match (&value.kind, cx.format) {
            (ValueKind::Text(text), _) => text.clone(),
            (ValueKind::Number(number), Format::Hcl) => number.to_string(),
            (ValueKind::Number(number), Format::Json) => match number.as_u64() {
                Some(nanos) if i64::try_from(nanos).is_ok() => {
                    return Some((Duration::from_nanos(nanos), at));
                }
                _ => {
                    let key = key.written();
                    cx.error(at, format!("{key} must be nanoseconds from 0 to {}", i64::MAX));
                    return None;
                }
            },
            (kind, _) => return wrong(&key, at, "a duration such as \"15s\"", kind, cx),
        };
        match units::parse_duration(&text) {
            Ok(duration) => Some((duration, at)),
            Err(error) => {
                let instead = match &error {
                    units::DurationError::NoUnit { seconds } => Some(format!("{seconds:?}")),
                    _ => None,
                };
                let message = format!("{}: {}: {error}", key.written(), shown(&text));
                cx.sink.suggest(at, message, instead.as_deref());
                None
            }
        }
    }

    /// A list of texts with their places.
    pub(super) fn texts(
        &mut self,
        name: &'static str,
        cx: &mut Context<'_>,
    ) -> Option<(Vec<(String, Span)>, Span)> {
        let (key, value) = self.value(name)?;
        let at = value.span;
        let items = match value.kind {
            ValueKind::List(items) => items,
            kind => return wrong(&key, at, "a list of texts", &kind, cx),
        };
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match as_text(item.kind) {
                Ok(text) => texts.push((text, item.span)),
                Err(kind) => wrong(&key, item.span, "a list of texts", &kind, cx).unwrap_or(()),
            }
        }
        Some((texts, at))
    }

    /// `env` or `meta`: names and texts.
    pub(super) fn text_map(
        &mut self,
        name: &'static str,
        cx: &mut Context<'_>,
    ) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        for (key, value) in self.members(name, cx) {
            let at = value.span;
            if key.name.is_empty() || key.name.contains(['=', '\0']) {
                cx.error(key.span, format!("{} is no name for a variable", shown(&key.name)));
                continue;
            }
            match as_text(value.kind) {
                Ok(text) if text.contains('\0') => {
                    cx.error(at, "a text here must not contain the character NUL");
                }
                Ok(text) => {
                    if map.insert(key.name.clone(), text).is_some() {
                        cx.error(key.span, format!("{} is given twice", shown(&key.name)));
                    }
                }
                // As everywhere else, null means: not given.
                Err(ValueKind::Null) => {}
                Err(kind) => wrong(&key, at, "a text", &kind, cx).unwrap_or(()),
            }
        }
        map
    }

    /// `config`: anything, and where everything in it stands, by dotted path (`a.b`, `list.0`).
    pub(super) fn free_with_places(
        &mut self,
        name: &'static str,
        cx: &mut Context<'_>,
    ) -> (JsonObject, BTreeMap<String, Span>) {
        let mut map = serde_json::Map::new();
        let mut places = BTreeMap::new();
        for (key, value) in self.members(name, cx) {
            if map.contains_key(&key.name) {
                cx.error(key.span, format!("{} is given twice", shown(&key.name)));
            }
            free::places(&key.name, key.span, &value, &mut places);
            map.insert(key.name, value.into_json());
        }
        (JsonObject::from(map), places)
    }

    /// The members of something that may be written as a block or as an object.
    fn members(&mut self, name: &'static str, cx: &mut Context<'_>) -> Vec<(Key, Value)> {
        match self.fields.remove(name).and_then(|mut items| items.pop()) {
            None => Vec::new(),
            Some(Item::Attribute(Attribute { key, value })) => match value.kind {
                ValueKind::Object(members) => members,
                kind => wrong(&key, value.span, "an object", &kind, cx).unwrap_or_default(),
            },
            Some(Item::Block(block)) => {
                if let Some(label) = block.labels.first() {
                    cx.error(label.span, format!("{} takes no label", block.key.written()));
                }
                free::members(block.body, cx)
            }
        }
    }

    /// Every value of the table was asked for.
    pub(super) fn finish(self) {
        debug_assert!(self.fields.is_empty(), "never read: {:?}", self.fields.keys());
    }
}

pub(super) fn as_text(kind: ValueKind) -> Result<String, ValueKind> {
    match kind {
        ValueKind::Text(text) => Ok(text),
        ValueKind::Number(number) => Ok(number.to_string()),
        ValueKind::Bool(truth) => Ok(truth.to_string()),
        other => Err(other),
    }
}

/// The number if it is whole: `8` and `8.0`.
fn whole(number: &serde_json::Number) -> Option<i64> {
    if let Some(number) = number.as_i64() {
        return Some(number);
    }
    let number = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15)?;
    format!("{number:.0}").parse().ok()
}

/// Report a value of a wrong type.
pub(super) fn wrong<T>(
    key: &Key,
    at: Span,
    wanted: &str,
    kind: &ValueKind,
    cx: &mut Context<'_>,
) -> Option<T> {
    let shown = match kind {
        ValueKind::Text(text) => shown(text),
        other => other.describe().to_owned(),
    };
    cx.error(at, format!("{} must be {wanted}, not {shown}", key.written()));
    None
}
