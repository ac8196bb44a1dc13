//! The kinds of values: how each one is read, written as JSON, and named in the reference.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Map, Value as Json};

use super::items::is_empty;
use super::scalars::{ScalarType, as_text, is_empty_text, non_empty, wrong_type};
use super::{BlockForm, Context, FieldBounds, FieldShape, KeyEntry, Keys, free};
use crate::Syntax;
use crate::diagnostic::{Span, quote_text};
use crate::tree::{AttributeItem, Item, SpannedKey, SpannedValue, ValueKind};
use ostler_model::json::JsonObject;

/// The type of a member of the keys of a block. Its default is the value where nothing stands at the key.
pub(crate) trait FieldKind: Default {
    const SHAPE: FieldShape;

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self;

    /// The value in Nomad's JSON. `None` is written as null, or as zero where zero counts as not given.
    fn json(&self) -> Option<Json>;
}

/// The value of one key, if it has one, with its place.
#[derive(Clone)]
pub(crate) struct Setting<T> {
    /// The given value, or the default where the key has one.
    pub value: Option<T>,
    /// The place of the value. Where it is absent or unusable: the place where its block begins.
    pub at: Span,
    /// The name of the key in the syntax of the file.
    pub key: &'static str,
    /// The place of the name; of an absent key: the place where its block begins.
    pub key_at: Span,
    /// Whether something stands at the key, usable or not.
    pub was_given: bool,
    /// The message for a missing key, as in [`Field::needs`](super::Field::needs).
    pub needs: Option<(&'static str, &'static str)>,
}

impl<T> Default for Setting<T> {
    fn default() -> Self {
        let (at, key_at) = (Span::default(), Span::default());
        Self { value: None, at, key: "", key_at, was_given: false, needs: None }
    }
}

impl<T> From<T> for Setting<T> {
    fn from(value: T) -> Self {
        Self { value: Some(value), ..Self::default() }
    }
}

impl<T> From<Option<T>> for Setting<T> {
    fn from(value: Option<T>) -> Self {
        Self { value, ..Self::default() }
    }
}

impl<T> Setting<T> {
    /// The same with a default, which is the value where none was given.
    pub(crate) fn or(self, default: impl Into<T>) -> Self {
        Self { value: self.value.or_else(|| Some(default.into())), ..self }
    }

    /// The value with its place, if there is a value.
    pub(crate) fn with_place(self) -> Option<(T, Span)> {
        Some((self.value?, self.at))
    }

    /// The place of the value, if there is a value.
    pub(crate) fn place(&self) -> Option<Span> {
        self.value.is_some().then_some(self.at)
    }

    /// The key and the place of a value that differs from this one.
    pub(crate) fn other_than<U>(&self, usual: &U) -> Option<(&'static str, Span)>
    where
        T: Borrow<U>,
        U: PartialEq + ?Sized,
    {
        let other = self.value.as_ref().is_some_and(|value| value.borrow() != usual);
        other.then_some((self.key, self.at))
    }
}

impl Setting<String> {
    /// The text, which must not be empty.
    pub(crate) fn non_empty(self, cx: &mut Context<'_>) -> Option<String> {
        non_empty(self.value?, (self.key, self.needs), self.at, cx)
    }

    /// The text as another type; a text that cannot be parsed is reported.
    pub(crate) fn parse_with<T, E: Display>(
        self,
        cx: &mut Context<'_>,
        parse: impl FnOnce(String) -> Result<T, E>,
    ) -> Option<T> {
        let (text, at) = self.with_place()?;
        parse(text).map_err(|error| cx.error(at, error.to_string())).ok()
    }
}

impl<T: Default> Setting<T> {
    /// The value of a key that has a default.
    pub(crate) fn get(self) -> T {
        self.value.unwrap_or_default()
    }
}

/// A list of texts with their places.
pub(crate) type Texts = Setting<Vec<(String, Span)>>;

impl Texts {
    /// Report each text for which `wrong` gives a message.
    pub(crate) fn check<M: Into<String>>(
        &self,
        cx: &mut Context<'_>,
        wrong: impl Fn(&str) -> Option<M>,
    ) {
        for (text, at) in self.value.iter().flatten() {
            if let Some(message) = wrong(text) {
                cx.error(*at, message);
            }
        }
    }

    /// The texts without their places.
    pub(crate) fn plain(self) -> Option<Vec<String>> {
        Some(self.value?.into_iter().map(|(text, _)| text).collect())
    }
}

/// Replaces a value of the model by a given one.
pub(crate) trait ValueOr<T> {
    /// The given value, or `base` where none was given.
    fn value_or(self, base: T) -> T;
}

impl<T> ValueOr<T> for Setting<T> {
    fn value_or(self, base: T) -> T {
        self.value.unwrap_or(base)
    }
}

impl<T> ValueOr<Option<T>> for Setting<T> {
    fn value_or(self, base: Option<T>) -> Option<T> {
        self.value.or(base)
    }
}

impl<T: ScalarType> FieldKind for Setting<T> {
    const SHAPE: FieldShape = T::SHAPE;

    fn read(mut entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        let (field, at, was_given) = (entry.field, entry.at, entry.was_given);
        let (key, needs) = (field.name(cx.syntax), field.needs);
        let mut given = Self { value: None, at, key, key_at: at, was_given, needs };
        if let Some(Item::Attribute(AttributeItem { key, value })) = entry.items.pop() {
            let nothing = match field.bounds {
                FieldBounds::NotZero(..) => is_empty(&value),
                _ if matches!(T::SHAPE, FieldShape::Text | FieldShape::Word(_)) => {
                    is_empty_text(&value)
                }
                _ => false,
            };
            if nothing && cx.syntax == Syntax::Json {
                given.was_given = false;
            } else {
                let at = value.span;
                given.value = T::read(value, field, cx);
                given.at = if given.value.is_some() { at } else { entry.at };
                given.key_at = key.span;
            }
        }
        entry.was_given = given.was_given;
        entry.check_needs(cx);
        given
    }

    fn json(&self) -> Option<Json> {
        self.value.as_ref().map(T::json).or_else(|| T::ABSENT.map(Json::from))
    }
}

impl<B: Keys> FieldKind for Option<B> {
    const SHAPE: FieldShape = FieldShape::Block { schema: B::SCHEMA, form: BlockForm::One };

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        <Vec<B> as FieldKind>::read(entry, cx).into_iter().next()
    }

    fn json(&self) -> Option<Json> {
        self.as_ref().map(|block| block.json().into())
    }
}

impl<B: Keys> FieldKind for Vec<B> {
    const SHAPE: FieldShape = FieldShape::Block { schema: B::SCHEMA, form: BlockForm::List };

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        entry.check_needs(cx);
        let block = |item| match item {
            Item::Block(block) => Some(B::read(block, cx)),
            Item::Attribute(_) => None,
        };
        entry.items.into_iter().filter_map(block).collect()
    }

    fn json(&self) -> Option<Json> {
        let list = || self.iter().map(|block| Json::Object(block.json())).collect();
        (!self.is_empty()).then(list)
    }
}

/// Blocks that each have a name: in JSON an object of objects, by name.
pub(crate) struct ByName<B>(pub Vec<B>);

impl<B> Default for ByName<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B: Keys> FieldKind for ByName<B> {
    const SHAPE: FieldShape = FieldShape::Block { schema: B::SCHEMA, form: BlockForm::ByName };

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        Self(<Vec<B> as FieldKind>::read(entry, cx))
    }

    fn json(&self) -> Option<Json> {
        let block = |block: &B| (block.label().name.clone(), Json::Object(block.json()));
        (!self.0.is_empty()).then(|| Json::Object(self.0.iter().map(block).collect()))
    }
}

/// `env` or `meta`: names and texts.
impl FieldKind for BTreeMap<String, String> {
    const SHAPE: FieldShape = FieldShape::TextMap;

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        let mut map = Self::new();
        for (key, value) in entry.members(cx) {
            let at = value.span;
            if key.name.is_empty() || key.name.contains(['=', '\0']) {
                cx.error(
                    key.span,
                    format!("{} is not a valid name of a variable", quote_text(&key.name)),
                );
                continue;
            }
            match as_text(value.kind) {
                Ok(text) if text.contains('\0') => {
                    cx.error(at, "a text here must not contain the character NUL");
                }
                Ok(text) => {
                    if map.insert(key.name.clone(), text).is_some() {
                        cx.error(key.span, format!("{} is given twice", quote_text(&key.name)));
                    }
                }
                // As at any key, null means that there is no value.
                Err(ValueKind::Null) => {}
                Err(kind) => wrong_type(&key.name, at, "a text", &kind, cx).unwrap_or(()),
            }
        }
        map
    }

    fn json(&self) -> Option<Json> {
        let object = || self.iter().map(|(name, text)| (name.clone(), text.clone().into()));
        (!self.is_empty()).then(|| Json::Object(object().collect()))
    }
}

/// `header`: names and lists of texts, with their places.
#[derive(Clone, Default)]
pub(crate) struct TextListMap(pub Vec<(SpannedKey, Vec<(String, Span)>)>);

impl FieldKind for TextListMap {
    const SHAPE: FieldShape = FieldShape::TextListMap;

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        let mut map: Vec<(SpannedKey, Vec<(String, Span)>)> = Vec::new();
        for (key, value) in entry.members(cx) {
            let items = match value.kind {
                ValueKind::List(items) => items,
                // As at any key, null means that there is no value.
                ValueKind::Null => continue,
                kind => vec![SpannedValue { kind, span: value.span }],
            };
            if map.iter().any(|(known, _)| known.name == key.name) {
                cx.error(key.span, format!("{} is given twice", quote_text(&key.name)));
                continue;
            }
            let text = |item: SpannedValue| match as_text(item.kind) {
                Ok(text) => Some((text, item.span)),
                Err(kind) => wrong_type(&key.name, item.span, "a list of texts", &kind, cx),
            };
            let texts = items.into_iter().filter_map(text).collect();
            map.push((key, texts));
        }
        Self(map)
    }

    fn json(&self) -> Option<Json> {
        let texts = |texts: &Vec<(String, Span)>| texts.iter().map(|(text, _)| &**text).collect();
        let object = || self.0.iter().map(|(key, of)| (key.name.clone(), texts(of)));
        (!self.0.is_empty()).then(|| Json::Object(object().collect()))
    }
}

/// `config`: anything, with the places of all its parts by dotted path (`a.b`, `list.0`).
#[derive(Default)]
pub(crate) struct FreeForm {
    pub members: JsonObject,
    pub places: BTreeMap<String, Span>,
    /// The place of the whole, if it is given.
    pub at: Option<Span>,
    /// Whether something stands at the key, usable or not.
    pub was_given: bool,
}

impl FieldKind for FreeForm {
    const SHAPE: FieldShape = FieldShape::Free;

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        let (mut members, mut places) = (Map::new(), BTreeMap::new());
        let (at, was_given) = (entry.items.last().map(|item| item.key().span), entry.was_given);
        for (key, value) in entry.members(cx) {
            if members.contains_key(&key.name) {
                cx.error(key.span, format!("{} is given twice", quote_text(&key.name)));
            }
            // As at any key, null means that there is no value.
            if value.kind == ValueKind::Null {
                continue;
            }
            free::places(&key.name, key.span, &value, &mut places);
            members.insert(key.name, value.into_json());
        }
        Self { members: JsonObject::from(members), places, at, was_given }
    }

    fn json(&self) -> Option<Json> {
        Some(self.members.map().clone().into())
    }
}

/// `policy` of `scaling`: anything. Blocks inside of it become lists, as autoscalers expect.
#[derive(Default)]
pub(crate) struct FreeLists(pub JsonObject);

impl FieldKind for FreeLists {
    const SHAPE: FieldShape = FieldShape::Free;

    fn read(entry: KeyEntry, cx: &mut Context<'_>) -> Self {
        let members = entry.members_of(free::NestedForm::Lists, cx);
        let given = members.into_iter().filter(|(_, value)| value.kind != ValueKind::Null);
        let members: Map<_, _> = given.map(|(key, value)| (key.name, value.into_json())).collect();
        Self(JsonObject::from(members))
    }

    fn json(&self) -> Option<Json> {
        Some(self.0.map().clone().into())
    }
}

impl KeyEntry {
    /// Report a required key that is missing. An unusable value was reported already.
    fn check_needs(&self, cx: &mut Context<'_>) {
        if let (false, Some((hcl, json))) = (self.was_given, self.field.needs) {
            cx.error(self.at, cx.name(hcl, json));
        }
    }

    /// The members of a value that may be written as a block or as an object.
    fn members(self, cx: &mut Context<'_>) -> Vec<(SpannedKey, SpannedValue)> {
        self.members_of(free::NestedForm::Objects, cx)
    }

    fn members_of(
        mut self,
        nested: free::NestedForm,
        cx: &mut Context<'_>,
    ) -> Vec<(SpannedKey, SpannedValue)> {
        match self.items.pop() {
            None => Vec::new(),
            Some(Item::Attribute(AttributeItem { key, value })) => match value.kind {
                ValueKind::Object(members) => members,
                kind => {
                    wrong_type(&key.name, value.span, "an object", &kind, cx).unwrap_or_default()
                }
            },
            Some(Item::Block(block)) => {
                if let Some(label) = block.labels.first() {
                    cx.error(label.span, format!("{} takes no label", block.key.name));
                }
                free::members(block.body, nested, cx)
            }
        }
    }
}
