//! The kinds of values: how each is read, written as JSON and called in the reference.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Map, Value as Json};

use super::items::is_empty;
use super::scalars::{Scalar, as_text, filled, is_empty_text, wrong};
use super::{Bounds, Context, Entry, Form, Keys, Shape, free};
use crate::Syntax;
use crate::diagnostic::{Span, shown};
use crate::tree::{Attribute, Item, Key, Value, ValueKind};
use ostler_model::json::JsonObject;

/// What one member of the keys of a block can be. Its default is what stands where nothing does.
pub(crate) trait Kind: Default {
    const SHAPE: Shape;

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self;

    /// As Nomad's JSON; `None` is null, or zero where that is none.
    fn json(&self) -> Option<Json>;
}

/// One value, perhaps.
#[derive(Clone)]
pub(crate) struct Given<T> {
    /// The value, or the default where there is one.
    pub value: Option<T>,
    /// Where the value stands; of what is absent or unusable: where its block begins.
    pub at: Span,
    /// The name in the syntax of the file, and where it stands.
    pub key: &'static str,
    pub key_at: Span,
    /// Something stands there, usable or not.
    pub was_given: bool,
    /// As in [`Field::needs`](super::Field::needs).
    pub needs: Option<(&'static str, &'static str)>,
}

impl<T> Default for Given<T> {
    fn default() -> Self {
        let (at, key_at) = (Span::default(), Span::default());
        Self { value: None, at, key: "", key_at, was_given: false, needs: None }
    }
}

impl<T> From<T> for Given<T> {
    fn from(value: T) -> Self {
        Self { value: Some(value), ..Self::default() }
    }
}

impl<T> From<Option<T>> for Given<T> {
    fn from(value: Option<T>) -> Self {
        Self { value, ..Self::default() }
    }
}

impl<T> Given<T> {
    /// The same with a default.
    pub(crate) fn or(self, default: impl Into<T>) -> Self {
        Self { value: self.value.or_else(|| Some(default.into())), ..self }
    }

    /// The value and its place.
    pub(crate) fn placed(self) -> Option<(T, Span)> {
        Some((self.value?, self.at))
    }

    /// Where it stands, if it is there to use.
    pub(crate) fn place(&self) -> Option<Span> {
        self.value.is_some().then_some(self.at)
    }

    /// Key and place of a value that is not this one.
    pub(crate) fn other_than<U>(&self, usual: &U) -> Option<(&'static str, Span)>
    where
        T: Borrow<U>,
        U: PartialEq + ?Sized,
    {
        let other = self.value.as_ref().is_some_and(|value| value.borrow() != usual);
        other.then_some((self.key, self.at))
    }
}

impl Given<String> {
    /// A text that must say something.
    pub(crate) fn filled(self, cx: &mut Context<'_>) -> Option<String> {
        filled(self.value?, (self.key, self.needs), self.at, cx)
    }

    /// What the text means.
    pub(crate) fn parsed<T, E: Display>(
        self,
        cx: &mut Context<'_>,
        parse: impl FnOnce(String) -> Result<T, E>,
    ) -> Option<T> {
        let (text, at) = self.placed()?;
        parse(text).map_err(|error| cx.error(at, error.to_string())).ok()
    }
}

impl<T: Default> Given<T> {
    /// The value of a key that has a default.
    pub(crate) fn get(self) -> T {
        self.value.unwrap_or_default()
    }
}

/// A list of texts with their places.
pub(crate) type Texts = Given<Vec<(String, Span)>>;

impl Texts {
    /// Report each text that `wrong` says something about.
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

    /// The texts alone.
    pub(crate) fn plain(self) -> Option<Vec<String>> {
        Some(self.value?.into_iter().map(|(text, _)| text).collect())
    }
}

/// The value a member of the model gets.
pub(crate) trait Over<T> {
    /// The value given, or `base`.
    fn over(self, base: T) -> T;
}

impl<T> Over<T> for Given<T> {
    fn over(self, base: T) -> T {
        self.value.unwrap_or(base)
    }
}

impl<T> Over<Option<T>> for Given<T> {
    fn over(self, base: Option<T>) -> Option<T> {
        self.value.or(base)
    }
}

impl<T: Scalar> Kind for Given<T> {
    const SHAPE: Shape = T::SHAPE;

    fn read(mut entry: Entry, cx: &mut Context<'_>) -> Self {
        let (field, at, was_given) = (entry.field, entry.at, entry.was_given);
        let (key, needs) = (field.name(cx.syntax), field.needs);
        let mut given = Self { value: None, at, key, key_at: at, was_given, needs };
        if let Some(Item::Attribute(Attribute { key, value })) = entry.items.pop() {
            let nothing = match field.bounds {
                Bounds::NotZero(..) => is_empty(&value),
                _ if matches!(T::SHAPE, Shape::Text | Shape::Word(_)) => is_empty_text(&value),
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

impl<B: Keys> Kind for Option<B> {
    const SHAPE: Shape = Shape::Block { schema: B::SCHEMA, form: Form::One };

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
        <Vec<B> as Kind>::read(entry, cx).into_iter().next()
    }

    fn json(&self) -> Option<Json> {
        self.as_ref().map(|block| block.json().into())
    }
}

impl<B: Keys> Kind for Vec<B> {
    const SHAPE: Shape = Shape::Block { schema: B::SCHEMA, form: Form::List };

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
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

/// Blocks with a name each: in JSON an object of objects, by name.
pub(crate) struct ByName<B>(pub Vec<B>);

impl<B> Default for ByName<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B: Keys> Kind for ByName<B> {
    const SHAPE: Shape = Shape::Block { schema: B::SCHEMA, form: Form::ByName };

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
        Self(<Vec<B> as Kind>::read(entry, cx))
    }

    fn json(&self) -> Option<Json> {
        let block = |block: &B| (block.label().name.clone(), Json::Object(block.json()));
        (!self.0.is_empty()).then(|| Json::Object(self.0.iter().map(block).collect()))
    }
}

/// `env` or `meta`: names and texts.
impl Kind for BTreeMap<String, String> {
    const SHAPE: Shape = Shape::TextMap;

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
        let mut map = Self::new();
        for (key, value) in entry.members(cx) {
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
                Err(kind) => wrong(&key.name, at, "a text", &kind, cx).unwrap_or(()),
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
pub(crate) struct TextListMap(pub Vec<(Key, Vec<(String, Span)>)>);

impl Kind for TextListMap {
    const SHAPE: Shape = Shape::TextListMap;

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
        let mut map: Vec<(Key, Vec<(String, Span)>)> = Vec::new();
        for (key, value) in entry.members(cx) {
            let items = match value.kind {
                ValueKind::List(items) => items,
                // As everywhere else, null means: not given.
                ValueKind::Null => continue,
                kind => vec![Value { kind, span: value.span }],
            };
            if map.iter().any(|(known, _)| known.name == key.name) {
                cx.error(key.span, format!("{} is given twice", shown(&key.name)));
                continue;
            }
            let text = |item: Value| match as_text(item.kind) {
                Ok(text) => Some((text, item.span)),
                Err(kind) => wrong(&key.name, item.span, "a list of texts", &kind, cx),
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

/// `config`: anything, and where everything in it stands, by dotted path (`a.b`, `list.0`).
#[derive(Default)]
pub(crate) struct Free {
    pub members: JsonObject,
    pub places: BTreeMap<String, Span>,
    /// Where the whole stands, if it does.
    pub at: Option<Span>,
    pub was_given: bool,
}

impl Kind for Free {
    const SHAPE: Shape = Shape::Free;

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
        let (mut members, mut places) = (Map::new(), BTreeMap::new());
        let (at, was_given) = (entry.items.last().map(|item| item.key().span), entry.was_given);
        for (key, value) in entry.members(cx) {
            if members.contains_key(&key.name) {
                cx.error(key.span, format!("{} is given twice", shown(&key.name)));
            }
            // As everywhere else, null means: not given.
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

/// `policy` of `scaling`: anything; blocks in it are lists, as those who read policies expect.
#[derive(Default)]
pub(crate) struct FreeLists(pub JsonObject);

impl Kind for FreeLists {
    const SHAPE: Shape = Shape::Free;

    fn read(entry: Entry, cx: &mut Context<'_>) -> Self {
        let members = entry.members_of(free::Nested::Lists, cx);
        let given = members.into_iter().filter(|(_, value)| value.kind != ValueKind::Null);
        let members: Map<_, _> = given.map(|(key, value)| (key.name, value.into_json())).collect();
        Self(JsonObject::from(members))
    }

    fn json(&self) -> Option<Json> {
        Some(self.0.map().clone().into())
    }
}

impl Entry {
    /// Report what has to be there and is not; what is unusable was reported.
    fn check_needs(&self, cx: &mut Context<'_>) {
        if let (false, Some((hcl, json))) = (self.was_given, self.field.needs) {
            cx.error(self.at, cx.name(hcl, json));
        }
    }

    /// The members of something that may be written as a block or as an object.
    fn members(self, cx: &mut Context<'_>) -> Vec<(Key, Value)> {
        self.members_of(free::Nested::Objects, cx)
    }

    fn members_of(mut self, nested: free::Nested, cx: &mut Context<'_>) -> Vec<(Key, Value)> {
        match self.items.pop() {
            None => Vec::new(),
            Some(Item::Attribute(Attribute { key, value })) => match value.kind {
                ValueKind::Object(members) => members,
                kind => wrong(&key.name, value.span, "an object", &kind, cx).unwrap_or_default(),
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
