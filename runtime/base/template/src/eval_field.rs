//! Fields of values, and the few fields that are functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fault, Renderer};
use crate::error::TemplateProblem;
use crate::tree::{Operand, PipeCommand};
use crate::value::{MapKind, Value, lossy};

fn no_field(name: &str, known: &[&str]) -> TemplateProblem {
    let known = known.join(", ");
    TemplateProblem::Value(format!("there is no field {name}; the fields are: {known}"))
}

impl Renderer<'_> {
    /// Evaluate a command whose first word is a value. Only a field that is a function takes arguments.
    pub(super) fn fields(
        &mut self,
        receiver: Value,
        command: &PipeCommand,
        dot: &Value,
        last: Option<Value>,
    ) -> Result<Value, Fault> {
        let mut arguments = Vec::with_capacity(command.arguments.len() + 1);
        for argument in &command.arguments {
            arguments.push(self.operand(argument, dot)?);
        }
        arguments.extend(last);
        self.follow(receiver, &command.first, &command.first.fields, &arguments)
    }

    /// Follow the fields of a word. The arguments go to the last field.
    pub(super) fn follow(
        &mut self,
        mut value: Value,
        operand: &Operand,
        fields: &[Arc<str>],
        arguments: &[Value],
    ) -> Result<Value, Fault> {
        let placed = |problem| (operand.at, problem);
        let Some((last, before)) = fields.split_last() else {
            if arguments.is_empty() {
                return Ok(value);
            }
            let what = value.describe();
            let text = format!("{what} is not a function and takes no arguments");
            return Err(placed(TemplateProblem::Value(text)));
        };
        for field in before {
            value = self.field(&value, field, &[]).map_err(placed)?;
        }
        let value = self.field(&value, last, arguments).map_err(placed)?;
        self.charge_bytes(0).map_err(placed)?;
        Ok(value)
    }

    fn field(
        &mut self,
        value: &Value,
        name: &str,
        arguments: &[Value],
    ) -> Result<Value, TemplateProblem> {
        let called = match value {
            Value::Scratch => Some(self.scratch_call(name, arguments)?),
            Value::List(list) if name == "Contains" => {
                let [Value::Text(wanted)] = arguments else {
                    return Err(TemplateProblem::value("Contains takes one string"));
                };
                let same = |item: &Value| matches!(item, Value::Text(text) if text == wanted);
                Some(Value::Bool(list.items().iter().any(same)))
            }
            _ => None,
        };
        if let Some(called) = called {
            return Ok(called);
        }
        if !arguments.is_empty() {
            return Err(TemplateProblem::Value(format!(
                "{name} is not a function and takes no arguments"
            )));
        }
        let strict = self.options.error_on_missing_key;
        match value {
            Value::Nothing if strict => Err(TemplateProblem::Value(format!(
                "there is no {name:?}: the value before it is nothing"
            ))),
            Value::Nothing => Ok(Value::Nothing),
            Value::TextWithFields(told) => told.fields().get(name).cloned().ok_or_else(|| {
                let known: Vec<_> = told.fields().keys().map(String::as_str).collect();
                no_field(name, &known)
            }),
            Value::Map(map) if map.extra_fields().contains_key(name) => {
                Ok(map.extra_fields().get(name).cloned().unwrap_or(Value::Null))
            }
            Value::Map(map) => match (map.entries().get(name), map.kind()) {
                (Some(value), _) => Ok(value.clone()),
                (None, MapKind::Record) => {
                    let known: Vec<_> = map.entries().keys().map(String::as_str).collect();
                    Err(no_field(name, &known))
                }
                (None, _) if strict => {
                    Err(TemplateProblem::Value(format!("the map has no key {name:?}")))
                }
                (None, MapKind::Texts) => Ok(Value::text("")),
                (None, MapKind::Any) => Ok(Value::Null),
            },
            other => {
                Err(TemplateProblem::Value(format!("{} has no field {name}", other.describe())))
            }
        }
    }

    fn scratch_call(&mut self, name: &str, arguments: &[Value]) -> Result<Value, TemplateProblem> {
        let keys: Vec<String> = arguments
            .iter()
            .map_while(|argument| match argument {
                Value::Text(text) => Some(lossy(text).into_owned()),
                _ => None,
            })
            .collect();
        self.charge_bytes(keys.iter().map(String::len).sum())?;
        let nothing = Value::text("");
        match (name, keys.as_slice(), arguments) {
            ("Key", [key], [_]) => Ok(Value::Bool(self.scratch().contains_key(key))),
            ("Get", [key], [_]) => Ok(self.scratch().get(key).cloned().unwrap_or(Value::Null)),
            ("Set", [key, ..], [_, value]) => {
                self.scratch().insert(key.clone(), value.clone());
                Ok(nothing)
            }
            ("SetX", [key, ..], [_, value]) => {
                self.scratch().entry(key.clone()).or_insert_with(|| value.clone());
                Ok(nothing)
            }
            ("MapSet" | "MapSetX", [key, inner, ..], [_, _, value]) => {
                self.map_set(key, inner, value, name == "MapSet")?;
                Ok(nothing)
            }
            ("MapValues", [key], [_]) => match self.scratch().get(key) {
                Some(Value::Map(map)) => {
                    let values: Vec<Value> = map.entries().values().cloned().collect();
                    self.charge_bytes(values.len().saturating_mul(16))?;
                    Value::list(values)
                }
                _ => Ok(Value::Null),
            },
            ("Key" | "Get" | "Set" | "SetX" | "MapSet" | "MapSetX" | "MapValues", _, _) => {
                Err(TemplateProblem::Value(format!(
                    "{name} of the scratch does not take these arguments"
                )))
            }
            _ => Err(TemplateProblem::Value(format!("the scratch has no function {name}"))),
        }
    }

    fn map_set(
        &mut self,
        key: &str,
        inner: &str,
        value: &Value,
        replaces: bool,
    ) -> Result<(), TemplateProblem> {
        let mut entries: BTreeMap<String, Value> = match self.scratch().get(key) {
            None => BTreeMap::new(),
            Some(Value::Map(map)) => map.entries().clone(),
            Some(_) => {
                return Err(TemplateProblem::Value(format!("{key:?} of the scratch is not a map")));
            }
        };
        // The map is copied, because values that were read from it before must not change.
        self.charge_bytes(entries.len().saturating_mul(48))?;
        if replaces || !entries.contains_key(inner) {
            entries.insert(inner.to_owned(), value.clone());
        }
        let map = Value::map(entries)?;
        self.scratch().insert(key.to_owned(), map);
        Ok(())
    }
}
