//! Reads YAML into values, from the events of the parser. Nothing is recursive, and an alias shares the value
//! that it names.

use std::collections::BTreeMap;

use ostler_model::limits::TEMPLATE_VALUE_NESTING_MAX;
use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use crate::error::TemplateProblem;
use crate::print;
use crate::sink::BoundedBuffer;
use crate::value::{MapKind, Value, lossy};
use crate::values::yaml_words::{YamlWord, resolve};

/// The longest key that is made from a value that is no text, in bytes.
const KEY_BYTES_MAX: usize = 256;

/// A list or a map whose end was not read yet.
enum OpenNode {
    List { anchor: usize, items: Vec<Value> },
    Map { anchor: usize, entries: BTreeMap<String, Value>, key: Option<Value>, merged: Vec<Value> },
}

#[derive(Default)]
struct YamlReader {
    open: Vec<OpenNode>,
    anchors: BTreeMap<usize, Value>,
    done: Option<Value>,
}

/// Read the first document of a text.
pub(super) fn read(text: &str) -> Result<Value, TemplateProblem> {
    let mut reader = YamlReader::default();
    for event in Parser::new_from_str(text) {
        let (event, _) = event
            .map_err(|error| TemplateProblem::Value(format!("the text is not YAML: {error}")))?;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        reader.event(event)?;
    }
    Ok(reader.done.unwrap_or(Value::Null))
}

impl YamlReader {
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
                self.open_node(OpenNode::List { anchor, items: Vec::new() })
            }
            Event::MappingStart(anchor, _) => {
                let (entries, merged) = (BTreeMap::new(), Vec::new());
                self.open_node(OpenNode::Map { anchor, entries, key: None, merged })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close_node(),
            _ => Ok(()),
        }
    }

    fn open_node(&mut self, open: OpenNode) -> Result<(), TemplateProblem> {
        if self.open.len() >= TEMPLATE_VALUE_NESTING_MAX {
            return Err(TemplateProblem::too_deep(TEMPLATE_VALUE_NESTING_MAX));
        }
        self.open.push(open);
        Ok(())
    }

    fn close_node(&mut self) -> Result<(), TemplateProblem> {
        match self.open.pop() {
            Some(OpenNode::List { anchor, items }) => {
                let list = Value::list(items)?;
                self.value(anchor, list)
            }
            Some(OpenNode::Map { anchor, mut entries, merged, .. }) => {
                for value in merged {
                    merge(&mut entries, &value)?;
                }
                let map = Value::map(entries)?;
                self.value(anchor, map)
            }
            None => Ok(()),
        }
    }

    /// Put a complete value where it belongs.
    fn value(&mut self, anchor: usize, value: Value) -> Result<(), TemplateProblem> {
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None => {
                self.done.get_or_insert(value);
            }
            Some(OpenNode::List { items, .. }) => items.push(value),
            Some(OpenNode::Map { entries, key, merged, .. }) => match key.take() {
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

/// Add the entries of another map whose keys are missing.
fn merge(entries: &mut BTreeMap<String, Value>, value: &Value) -> Result<(), TemplateProblem> {
    let wrong = || TemplateProblem::value("what << merges must be a map or a list of maps");
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

/// The text of a key.
fn name(key: &Value) -> Result<String, TemplateProblem> {
    if let Value::Text(text) = key {
        return Ok(lossy(text).into_owned());
    }
    let mut sink = BoundedBuffer::for_value(KEY_BYTES_MAX);
    print::plain(key, &mut sink)?;
    Ok(lossy(&sink.into_bytes()).into_owned())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| tag.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return Value::text(text);
    }
    match resolve(text) {
        YamlWord::Null => Value::Null,
        YamlWord::Bool(value) => Value::Bool(value),
        YamlWord::Int(number) => Value::Int(number),
        YamlWord::Float(number) => Value::Float(number),
        YamlWord::Text => Value::text(text),
    }
}
