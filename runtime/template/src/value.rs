//! What a template computes with.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_model::limits::TEMPLATE_VALUE_NESTING_MAX;

use crate::error::TemplateProblem;

/// A value. Clones share what is large, and none is nested deeper than
/// [`TEMPLATE_VALUE_NESTING_MAX`], so that walking one is bounded.
#[derive(Clone, Debug)]
pub enum Value {
    /// There is nothing: a field of nothing is nothing.
    Nothing,
    /// Nothing, where something may be: a null of JSON, a key that a map lacks.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A whole number that is not negative.
    Uint(u64),
    /// A number with a fraction; every number of JSON.
    Float(f64),
    /// Bytes, nearly always UTF-8.
    Text(Arc<[u8]>),
    /// Several.
    List(Arc<List>),
    /// By name.
    Map(Arc<Map>),
    /// A text that has fields.
    Told(Arc<Told>),
    /// The numbers from the first to before the second.
    Loop(i64, i64),
    /// What the template keeps by name while it is rendered.
    Scratch,
}

/// Several values.
#[derive(Debug)]
pub struct List {
    items: Vec<Value>,
    depth: usize,
    /// All are texts, and that is known beforehand.
    texts: bool,
}

/// What kind of map it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Any values; a key that is not there is null.
    Any,
    /// Texts; a key that is not there is an empty text.
    Texts,
    /// Fixed fields; another one is a mistake of the template.
    Record,
}

/// Values by name.
#[derive(Debug)]
pub struct Map {
    entries: BTreeMap<String, Value>,
    /// Fields that are none of its values: a loop does not see them.
    beside: BTreeMap<String, Value>,
    kind: MapKind,
    depth: usize,
}

/// A text that has fields: printed as the text.
#[derive(Debug)]
pub struct Told {
    text: Arc<[u8]>,
    fields: BTreeMap<String, Value>,
    data: Value,
    depth: usize,
}

impl Told {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The fields.
    #[must_use]
    pub fn fields(&self) -> &BTreeMap<String, Value> {
        &self.fields
    }

    /// What it is as JSON, YAML and TOML.
    #[must_use]
    pub fn data(&self) -> &Value {
        &self.data
    }
}

impl List {
    /// The values.
    #[must_use]
    pub fn items(&self) -> &[Value] {
        &self.items
    }

    /// Made of texts.
    pub(crate) fn of_texts(&self) -> bool {
        self.texts
    }
}

impl Map {
    /// Fields that are none of its values.
    #[must_use]
    pub fn beside(&self) -> &BTreeMap<String, Value> {
        &self.beside
    }

    /// The values by name.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<String, Value> {
        &self.entries
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> MapKind {
        self.kind
    }
}

fn deeper<'a>(values: impl Iterator<Item = &'a Value>) -> Result<usize, TemplateProblem> {
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
        let depth = deeper(items.iter())?;
        Ok(Self::List(Arc::new(List { items, depth, texts: false })))
    }

    /// Several texts.
    #[must_use]
    pub fn texts<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(Self::text).collect();
        Self::List(Arc::new(List { items, depth: 1, texts: true }))
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
        Self::map_beside(kind, entries, BTreeMap::new())
    }

    /// Values by name, of a kind, and fields that are none of these values.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn map_beside(
        kind: MapKind,
        entries: BTreeMap<String, Self>,
        beside: BTreeMap<String, Self>,
    ) -> Result<Self, TemplateProblem> {
        let depth = deeper(entries.values().chain(beside.values()))?;
        Ok(Self::Map(Arc::new(Map { entries, beside, kind, depth })))
    }

    /// A text that has fields; `data` is what it is as JSON.
    ///
    /// # Errors
    /// When they are nested too deeply.
    pub fn told(
        text: impl AsRef<[u8]>,
        fields: BTreeMap<String, Self>,
        data: Self,
    ) -> Result<Self, TemplateProblem> {
        let depth = deeper(fields.values().chain([&data]))?;
        Ok(Self::Told(Arc::new(Told { text: Arc::from(text.as_ref()), fields, data, depth })))
    }

    /// Levels of lists and maps.
    fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::Told(told) => told.depth,
            _ => 0,
        }
    }

    /// Is there nothing?
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing | Self::Null)
    }

    /// The text that it is.
    pub(crate) fn as_text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            Self::Told(told) => Some(told.text()),
            _ => None,
        }
    }

    /// What `if` and `and` make of it: nothing, zero and what is empty are false.
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
            Self::Loop(..) | Self::Scratch | Self::Told(_) => true,
        }
    }

    /// What it is, for errors.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Nothing | Self::Null => "nothing",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::Uint(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Text(_) | Self::Told(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Loop(..) => "a loop",
            Self::Scratch => "a scratch",
        }
    }

    /// Its type as `%T` and the errors of `printf` name it.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Nothing | Self::Null => "<nil>",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint64",
            Self::Float(_) => "float64",
            Self::Text(_) | Self::Told(_) => "string",
            Self::List(list) if list.texts => "[]string",
            Self::List(_) => "[]interface {}",
            Self::Map(map) if map.kind == MapKind::Texts => "map[string]string",
            Self::Map(_) => "map[string]interface {}",
            Self::Loop(..) => "<-chan int64",
            Self::Scratch => "*template.Scratch",
        }
    }

    /// Bytes that it takes, those that it shares with others left aside.
    pub(crate) fn weight(&self) -> usize {
        const EACH: usize = 48;
        match self {
            Self::Text(text) => text.len(),
            Self::Told(told) => told.text.len().saturating_add(told.fields.len() * 2 * EACH),
            Self::List(list) => list.items.len().saturating_mul(EACH),
            Self::Map(map) => {
                map.entries.keys().map(|key| key.len().saturating_add(2 * EACH)).sum()
            }
            _ => 0,
        }
    }
}

/// A text as characters; what is no UTF-8 is shown as such.
pub(crate) fn lossy(text: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(text)
}
