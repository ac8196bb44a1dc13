//! YAML to values, from the events of its reader: nothing calls itself, and an alias shares what it names.

use std::collections::BTreeMap;

use ostler_model::limits::TEMPLATE_VALUE_NESTING_MAX;
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use crate::error::TemplateProblem;
use crate::print;
use crate::sink::Sink;
use crate::value::{MapKind, Value, lossy};
use crate::values::yaml_words::{Word, resolve};

/// Longest key that is made of a value that is no text.
const KEY_BYTES_MAX: usize = 256;

/// What is being read.
enum Open {
    List { anchor: usize, items: Vec<Value> },
    Map { anchor: usize, entries: BTreeMap<String, Value>, key: Option<Value>, merged: Vec<Value> },
}

#[derive(Default)]
struct Reader {
    open: Vec<Open>,
    anchors: BTreeMap<usize, Value>,
    done: Option<Value>,
}

/// Read the first document of a text.
pub(super) fn read(text: &str) -> Result<Value, TemplateProblem> {
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, _) = event
            .map_err(|error| TemplateProblem::Value(format!("the text is no YAML: {error}")))?;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        reader.event(event)?;
    }
    Ok(reader.done.unwrap_or(Value::Null))
}

impl Reader {
    fn event(&mut self, event: Event<'_>) -> Result<(), TemplateProblem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.value(anchor, scalar(&text, style, tag.as_deref()))
            }
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let value = known
                    .ok_or_else(|| TemplateProblem::value("the YAML has an alias of itself"))?;
                self.value(0, value)
            }
            Event::SequenceStart(anchor, _) => {
                self.opened(Open::List { anchor, items: Vec::new() })
            }
            Event::MappingStart(anchor, _) => {
                let (entries, merged) = (BTreeMap::new(), Vec::new());
                self.opened(Open::Map { anchor, entries, key: None, merged })
            }
            Event::SequenceEnd | Event::MappingEnd => self.closed(),
            _ => Ok(()),
        }
    }

    fn opened(&mut self, open: Open) -> Result<(), TemplateProblem> {
        if self.open.len() >= TEMPLATE_VALUE_NESTING_MAX {
            return Err(TemplateProblem::too_deep(TEMPLATE_VALUE_NESTING_MAX));
        }
        self.open.push(open);
        Ok(())
    }

    fn closed(&mut self) -> Result<(), TemplateProblem> {
        match self.open.pop() {
            Some(Open::List { anchor, items }) => {
                let list = Value::list(items)?;
                self.value(anchor, list)
            }
            Some(Open::Map { anchor, mut entries, merged, .. }) => {
                for value in merged {
                    merge(&mut entries, &value)?;
                }
                let map = Value::map(entries)?;
                self.value(anchor, map)
            }
            None => Ok(()),
        }
    }

    /// A value that is complete goes where it belongs.
    fn value(&mut self, anchor: usize, value: Value) -> Result<(), TemplateProblem> {
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None => {
                self.done.get_or_insert(value);
            }
            Some(Open::List { items, .. }) => items.push(value),
            Some(Open::Map { entries, key, merged, .. }) => match key.take() {
                None => *key = Some(value),
                Some(Value::Text(text)) if text.as_ref() == b"<<" => merged.push(value),
                Some(known) => {
                    entries.insert(name(&known)?, value);
                }
            },
        }
        Ok(())
    }
}

/// The keys of another map that are not there yet.
fn merge(entries: &mut BTreeMap<String, Value>, value: &Value) -> Result<(), TemplateProblem> {
    let wrong = || TemplateProblem::value("what << merges is a map, or a list of maps");
    match value {
        Value::Map(map) if map.kind() == MapKind::Any => {
            for (key, value) in map.entries() {
                entries.entry(key.clone()).or_insert_with(|| value.clone());
            }
            Ok(())
        }
        Value::List(list) => {
            for item in list.items() {
                let Value::Map(_) = item else { return Err(wrong()) };
                merge(entries, item)?;
            }
            Ok(())
        }
        _ => Err(wrong()),
    }
}

/// A key as a text.
fn name(key: &Value) -> Result<String, TemplateProblem> {
    if let Value::Text(text) = key {
        return Ok(lossy(text).into_owned());
    }
    let mut sink = Sink::made(KEY_BYTES_MAX);
    print::plain(key, &mut sink)?;
    Ok(lossy(&sink.into_bytes()).into_owned())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return Value::text(text);
    }
    match resolve(text) {
        Word::Null => Value::Null,
        Word::Bool(value) => Value::Bool(value),
        Word::Int(number) => Value::Int(number),
        Word::Float(number) => Value::Float(number),
        Word::Text => Value::text(text),
    }
}
