//! Makes values of YAML. An alias shares the value that it names.

use std::collections::BTreeMap;

use ostler_text::yaml::{self, YamlError, YamlOptions, YamlValues};

use crate::error::TemplateProblem;
use crate::limits::TEMPLATE_VALUE_NESTING_MAX;
use crate::print;
use crate::sink::BoundedBuffer;
use crate::value::{MapKind, Value, lossy};
use crate::values::yaml_words::{YamlWord, resolve};

/// The longest key that is made from a value that is no text, in bytes.
const KEY_BYTES_MAX: usize = 256;

/// Read the first document of a text.
pub(super) fn read(text: &str) -> Result<Value, TemplateProblem> {
    let options = YamlOptions { depth_max: TEMPLATE_VALUE_NESTING_MAX, first_document_only: true };
    let read = yaml::read(text, options, &mut TemplateValues).map_err(|error| match error {
        YamlError::Syntax(why) => TemplateProblem::Value(format!("the text is not YAML: {why}")),
        YamlError::TooDeep => TemplateProblem::too_deep(TEMPLATE_VALUE_NESTING_MAX),
        YamlError::SelfReference => TemplateProblem::value("the YAML has an alias of itself"),
        YamlError::Merge => {
            TemplateProblem::value("what << merges must be a map or a list of maps")
        }
        YamlError::SecondDocument => TemplateProblem::value("the YAML has a second document"),
        YamlError::Value(problem) => problem,
    })?;
    Ok(read.unwrap_or(Value::Null))
}

struct TemplateValues;

impl YamlValues for TemplateValues {
    type Value = Value;
    type Error = TemplateProblem;

    fn make_scalar(&mut self, text: &str, is_plain: bool) -> Value {
        match resolve(text) {
            _ if !is_plain => Value::text(text),
            YamlWord::Null => Value::Null,
            YamlWord::Bool(value) => Value::Bool(value),
            YamlWord::Int(number) => Value::Int(number),
            YamlWord::Float(number) => Value::Float(number),
            YamlWord::Text => Value::text(text),
        }
    }

    fn make_list(&mut self, items: Vec<Value>) -> Result<Value, TemplateProblem> {
        Value::list(items)
    }

    fn make_map(&mut self, entries: BTreeMap<String, Value>) -> Result<Value, TemplateProblem> {
        Value::map(entries)
    }

    fn key_text(&mut self, key: Value) -> Result<String, TemplateProblem> {
        if let Value::Text(text) = &key {
            return Ok(lossy(text).into_owned());
        }
        let mut sink = BoundedBuffer::for_value(KEY_BYTES_MAX);
        print::plain(&key, &mut sink)?;
        Ok(lossy(&sink.into_bytes()).into_owned())
    }

    fn copy_value(&mut self, value: &Value) -> Result<Value, TemplateProblem> {
        Ok(value.clone())
    }

    fn merge_entries(&mut self, into: &mut BTreeMap<String, Value>, from: Value) -> bool {
        let maps = match &from {
            Value::List(list) => list.items(),
            map => std::slice::from_ref(map),
        };
        maps.iter().all(|map| {
            let Value::Map(map) = map else { return false };
            for (key, value) in map.entries() {
                into.entry(key.clone()).or_insert_with(|| value.clone());
            }
            map.kind() == MapKind::Any
        })
    }
}
