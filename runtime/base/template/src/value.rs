//! The values that a template computes with.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limits::TEMPLATE_VALUE_NESTING_MAX;

use crate::error::TemplateProblem;

/// A value. Clones share what is large, and none is nested deeper than
/// [`TEMPLATE_VALUE_NESTING_MAX`], so that walking one is bounded.
#[derive(Clone, Debug)]
pub enum Value {
    /// The absence of a value: a field of nothing is nothing.
    Nothing,
    /// Nothing at a place that can hold a value: a null of JSON, a key that a map lacks.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that is not negative.
    Uint(u64),
    /// A number with a fraction; every number of JSON.
    Float(f64),
    /// Bytes, nearly always UTF-8.
    Text(Arc<[u8]>),
    /// Several values, in order.
    List(Arc<ValueList>),
    /// Several values, by name.
    Map(Arc<ValueMap>),
    /// A text that has fields.
    TextWithFields(Arc<TextWithFields>),
    /// The whole numbers from the first one up to, and without, the second one.
    Loop(i64, i64),
    /// The scratch: values that the template stores by name while it is rendered.
    Scratch,
}

/// Several values.
#[derive(Debug)]
pub struct ValueList {
    items: Vec<Value>,
    depth: usize,
    /// The list was made of texts alone, so that all its items are known to be texts.
    texts: bool,
}

/// The kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Any values; a missing key is null.
    Any,
    /// Texts; a missing key is an empty text.
    Texts,
    /// A fixed set of fields; a missing key is a mistake of the template.
    Record,
}

/// Values by name.
#[derive(Debug)]
pub struct ValueMap {
    entries: BTreeMap<String, Value>,
    /// Fields that are not among the values of the map: a loop does not visit them.
    beside: BTreeMap<String, Value>,
    kind: MapKind,
    depth: usize,
}

/// A text that has fields. It is printed as the text.
#[derive(Debug)]
pub struct TextWithFields {
    text: Arc<[u8]>,
    fields: BTreeMap<String, Value>,
    data: Value,
    depth: usize,
}

impl TextWithFields {
    /// The text that is printed, as bytes.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The fields of the text, by name.
    #[must_use]
    pub fn fields(&self) -> &BTreeMap<String, Value> {
        &self.fields
    }

    /// The value that is written in its place in JSON, YAML and TOML.
    #[must_use]
    pub fn data(&self) -> &Value {
        &self.data
    }
}

impl ValueList {
    /// The values of the list, in order.
    #[must_use]
    pub fn items(&self) -> &[Value] {
        &self.items
    }

    /// Whether the list was made of texts alone.
    pub(crate) fn has_only_texts(&self) -> bool {
        self.texts
    }
}

impl ValueMap {
    /// The fields that are not among the values of the map, by name.
    #[must_use]
    pub fn extra_fields(&self) -> &BTreeMap<String, Value> {
        &self.beside
    }

    /// The values of the map, by name.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<String, Value> {
        &self.entries
    }

    /// The kind of the map, which says what a missing key is.
    #[must_use]
    pub fn kind(&self) -> MapKind {
        self.kind
    }
}

fn nested_depth<'a>(values: impl Iterator<Item = &'a Value>) -> Result<usize, TemplateProblem> {
    let depth = values.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > TEMPLATE_VALUE_NESTING_MAX {
        return Err(TemplateProblem::too_deep(TEMPLATE_VALUE_NESTING_MAX));
    }
    Ok(depth)
}

impl Value {
    /// A text.
    #[must_use]
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(Arc::from(text.as_ref()))
    }

    /// Several values.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn list(items: Vec<Self>) -> Result<Self, TemplateProblem> {
        let depth = nested_depth(items.iter())?;
        Ok(Self::List(Arc::new(ValueList { items, depth, texts: false })))
    }

    /// Several texts.
    #[must_use]
    pub fn texts<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(Self::text).collect();
        Self::List(Arc::new(ValueList { items, depth: 1, texts: true }))
    }

    /// Values by name.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn map(entries: BTreeMap<String, Self>) -> Result<Self, TemplateProblem> {
        Self::map_of(MapKind::Any, entries)
    }

    /// Values by name, of a kind.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn map_of(kind: MapKind, entries: BTreeMap<String, Self>) -> Result<Self, TemplateProblem> {
        Self::map_with_fields(kind, entries, BTreeMap::new())
    }

    /// Values by name, of a kind, and fields that are none of these values.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn map_with_fields(
        kind: MapKind,
        entries: BTreeMap<String, Self>,
        beside: BTreeMap<String, Self>,
    ) -> Result<Self, TemplateProblem> {
        let depth = nested_depth(entries.values().chain(beside.values()))?;
        Ok(Self::Map(Arc::new(ValueMap { entries, beside, kind, depth })))
    }

    /// A text that has fields; `data` is the value that is written in its place in JSON.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn text_with_fields(
        text: impl AsRef<[u8]>,
        fields: BTreeMap<String, Self>,
        data: Self,
    ) -> Result<Self, TemplateProblem> {
        let depth = nested_depth(fields.values().chain([&data]))?;
        Ok(Self::TextWithFields(Arc::new(TextWithFields {
            text: Arc::from(text.as_ref()),
            fields,
            data,
            depth,
        })))
    }

    /// The number of levels of lists and maps in the value.
    fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::TextWithFields(told) => told.depth,
            _ => 0,
        }
    }

    /// Whether the value is nothing or null.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing | Self::Null)
    }

    /// The bytes of the value, if it is a text.
    pub(crate) fn as_text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            Self::TextWithFields(told) => Some(told.text()),
            _ => None,
        }
    }

    /// The value as a condition of `if` and `and`: nothing, zero and empty values are false.
    pub(crate) fn truth(&self) -> bool {
        match self {
            Self::Nothing | Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Uint(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => map.kind == MapKind::Record || !map.entries.is_empty(),
            Self::Loop(..) | Self::Scratch | Self::TextWithFields(_) => true,
        }
    }

    /// The kind of the value, in words for errors.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Nothing | Self::Null => "nothing",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::Uint(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Text(_) | Self::TextWithFields(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Loop(..) => "a loop",
            Self::Scratch => "a scratch",
        }
    }

    /// The name of its type, as `%T` and the errors of `printf` have it.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Nothing | Self::Null => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Text(_) | Self::TextWithFields(_) => "string",
            Self::List(list) if list.texts => "[]string",
            Self::List(_) => "[]interface {}",
            Self::Map(map) if map.kind == MapKind::Texts => "map[string]string",
            Self::Map(_) => "map[string]interface {}",
            Self::Loop(..) => "<-chan int64",
            Self::Scratch => "*template.Scratch",
        }
    }

    /// The bytes that the value takes itself, without those that it shares with other values.
    pub(crate) fn weight(&self) -> usize {
        const EACH: usize = 48;
        match self {
            Self::Text(text) => text.len(),
            Self::TextWithFields(told) => {
                told.text.len().saturating_add(told.fields.len() * 2 * EACH)
            }
            Self::List(list) => list.items.len().saturating_mul(EACH),
            Self::Map(map) => {
                map.entries.keys().map(|key| key.len().saturating_add(2 * EACH)).sum()
            }
            _ => 0,
        }
    }
}

/// A text as characters; bytes that are no UTF-8 become replacement characters.
pub(crate) fn lossy(text: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(text)
}
