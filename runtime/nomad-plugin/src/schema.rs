//! From a plugin's JSON Schema to Nomad's specification of HCL.
//!
//! ```text
//! object with properties ─► object, and inside another: a block     string, number, integer, boolean ─► attribute
//! list of such objects   ─► blocks, any number                      list of one of those ─► attribute, a list
//! map of texts           ─► a block of attributes                   anything else ─► attribute of any value
//! ```
//! The specification decides how Nomad reads a text; what it may be is the schema's alone, which is
//! checked after. So a schema that says more than the other can is no hindrance.

use std::collections::HashMap;

use serde_json::{Map, Value};

pub(crate) use ostler_plugin::schema::ConfigSchema;

use crate::proto::hclspec::spec::Block as Of;
use crate::proto::hclspec::{Attr, Block, BlockAttrs, BlockList, Object, Spec};
use ostler_model::json::JsonObject;

/// Objects within objects: below that anything may stand.
const DEPTH_MAX: usize = 8;

/// A schema in which references are followed.
#[derive(Clone, Copy)]
pub(crate) struct Schema<'a> {
    root: &'a Value,
    here: &'a Value,
}

/// What may stand at a place, as far as it decides how a text is read.
pub(crate) enum Shape<'a> {
    /// One object with these properties.
    Object(&'a Map<String, Value>, Vec<&'a str>),
    /// A map of texts by any name.
    Texts,
    /// Objects, one after the other.
    Objects(Schema<'a>),
    /// One value of this type, in HCL's words.
    Value(&'static str),
    /// Whatever it is.
    Any,
}

impl<'a> Schema<'a> {
    /// A whole one.
    pub(crate) const fn whole(root: &'a Value) -> Self {
        Self { root, here: root }
    }

    /// Of a property.
    pub(crate) const fn at(self, here: &'a Value) -> Self {
        Self { here, ..self }
    }

    /// Where it leads; not followed further than a few references.
    fn resolved(self) -> Self {
        let mut at = self;
        for _ in 0..DEPTH_MAX {
            let to = at.here.get("$ref").and_then(Value::as_str);
            match to.and_then(|to| self.root.pointer(to.strip_prefix('#')?)) {
                Some(here) => at = self.at(here),
                None => break,
            }
        }
        at
    }

    /// Its shape.
    pub(crate) fn shape(self) -> Shape<'a> {
        let at = self.resolved();
        // One block, however often it could be written: an object, or a list of one at most.
        if let Some([one, list]) = at.here.get("oneOf").and_then(Value::as_array).map(Vec::as_slice)
            && at.at(list).here.get("maxItems").and_then(Value::as_u64) == Some(1)
        {
            return at.at(one).shape();
        }
        match at.here.get("type").and_then(Value::as_str) {
            Some("object") => match at.here.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    let required = at.here.get("required").and_then(Value::as_array);
                    let required = required.into_iter().flatten().filter_map(Value::as_str);
                    Shape::Object(properties, required.collect())
                }
                None => match at.here.get("additionalProperties") {
                    Some(of) if at.at(of).is_text() => Shape::Texts,
                    _ => Shape::Any,
                },
            },
            Some("array") => {
                let Some(items) = at.here.get("items").map(|items| at.at(items)) else {
                    return Shape::Any;
                };
                match items.shape() {
                    Shape::Object(..) => Shape::Objects(items.resolved()),
                    Shape::Value("string") => Shape::Value("list(string)"),
                    Shape::Value("number") => Shape::Value("list(number)"),
                    Shape::Value("bool") => Shape::Value("list(bool)"),
                    _ => Shape::Any,
                }
            }
            Some("string") => Shape::Value("string"),
            Some("integer" | "number") => Shape::Value("number"),
            Some("boolean") => Shape::Value("bool"),
            _ if at.is_text() => Shape::Value("string"),
            _ => Shape::Any,
        }
    }

    fn is_text(self) -> bool {
        let at = self.resolved();
        let named = at.here.get("type").and_then(Value::as_str) == Some("string");
        let listed = at.here.get("enum").and_then(Value::as_array);
        named || listed.is_some_and(|values| values.iter().all(Value::is_string))
    }
}

/// The specification of a schema's text, which was checked to be one. Without properties: an empty object.
/// What is `there` already need not be given.
pub(crate) fn spec(text: &str, there: &JsonObject) -> Spec {
    let root: Value = serde_json::from_str(text).unwrap_or_default();
    let attributes = match Schema::whole(&root).shape() {
        Shape::Object(properties, mut required) => {
            required.retain(|name| !there.map().contains_key(*name));
            object(Schema::whole(&root), properties, &required, 0)
        }
        _ => Object::default(),
    };
    Spec { block: Some(Of::Object(attributes)) }
}

fn object(
    whole: Schema<'_>,
    properties: &Map<String, Value>,
    required: &[&str],
    depth: usize,
) -> Object {
    let each = properties.iter().map(|(name, of)| {
        let needed = required.contains(&name.as_str());
        (name.clone(), property(whole.at(of), name, needed, depth))
    });
    Object { attributes: each.collect::<HashMap<_, _>>() }
}

fn property(schema: Schema<'_>, name: &str, required: bool, depth: usize) -> Spec {
    let name = name.to_owned();
    let any =
        |r#type: &str| Of::Attr(Attr { name: name.clone(), r#type: r#type.to_owned(), required });
    let nested = |schema: Schema<'_>, properties, required: &[&str]| {
        let inside = object(schema, properties, required, depth + 1);
        Some(Box::new(Spec { block: Some(Of::Object(inside)) }))
    };
    let block = match schema.shape() {
        Shape::Value(of) => any(of),
        Shape::Object(properties, needed) if depth < DEPTH_MAX => {
            let nested = nested(schema, properties, &needed);
            Of::BlockValue(Box::new(Block { name, required, nested }))
        }
        Shape::Objects(items) if depth < DEPTH_MAX => match items.shape() {
            Shape::Object(properties, needed) => Of::BlockList(Box::new(BlockList {
                name,
                min_items: u64::from(required),
                max_items: 0,
                nested: nested(items, properties, &needed),
            })),
            _ => any("any"),
        },
        Shape::Texts => Of::BlockAttrs(BlockAttrs { name, r#type: "string".to_owned(), required }),
        Shape::Object(..) | Shape::Objects(_) | Shape::Any => any("any"),
    };
    Spec { block: Some(block) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(schema: &Value) -> HashMap<String, Spec> {
        match spec(&schema.to_string(), &JsonObject::default()).block.unwrap() {
            Of::Object(object) => object.attributes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_schema_of_the_wasm_driver_becomes_attributes_and_blocks() {
        let limits = json!({"type": "object", "properties": {"handles": {"type": "integer"}}});
        let found = of(&json!({
            "type": "object",
            "required": ["module"],
            "properties": {
                "module": {"type": "string", "minLength": 1},
                "args": {"type": "array", "items": {"type": "string"}},
                "mode": {"enum": ["host", "none"]},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "mounts": {"type": "array", "items": {"type": "object", "required": ["source"],
                    "properties": {"source": {"type": "string"}}}},
                "limits": {"oneOf": [{"$ref": "#/$defs/limits"},
                    {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/limits"}}]},
                "either": {"type": ["string", "integer"]}
            },
            "$defs": {"limits": limits}
        }));
        let attr = |name: &str| match found[name].block.clone().unwrap() {
            Of::Attr(attr) => (attr.r#type, attr.required),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(attr("module"), ("string".to_owned(), true));
        assert_eq!(attr("args"), ("list(string)".to_owned(), false));
        assert_eq!(attr("mode"), ("string".to_owned(), false));
        assert_eq!(attr("either"), ("any".to_owned(), false));
        assert!(matches!(found["labels"].block, Some(Of::BlockAttrs(_))));
        assert!(matches!(found["mounts"].block, Some(Of::BlockList(_))));
        let Some(Of::BlockValue(limits)) = &found["limits"].block else { panic!("{found:?}") };
        let Some(Of::Object(inside)) = &limits.nested.as_ref().unwrap().block else { panic!() };
        assert!(inside.attributes.contains_key("handles"));
    }

    #[test]
    fn what_the_operator_configured_elsewhere_need_not_be_given() {
        let schema = json!({"type": "object", "required": ["dir", "name"],
            "properties": {"dir": {"type": "string"}, "name": {"type": "string"}}});
        let there = JsonObject::from(json!({"dir": "/x"}).as_object().unwrap().clone());
        let Some(Of::Object(object)) = spec(&schema.to_string(), &there).block else { panic!() };
        let required = |name: &str| match &object.attributes[name].block {
            Some(Of::Attr(attr)) => attr.required,
            other => panic!("{other:?}"),
        };
        assert_eq!((required("dir"), required("name")), (false, true));
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let looped = json!({"type": "object", "properties": {"a": {"$ref": "#"}}});
        assert!(of(&looped).contains_key("a"));
        let looped = json!({"$ref": "#"});
        assert!(of(&looped).is_empty());
        assert!(matches!(spec("", &JsonObject::default()).block, Some(Of::Object(_))));
    }
}
