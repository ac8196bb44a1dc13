//! From a plugin's JSON Schema to Nomad's specification of HCL.
//!
//! ```text
//! object with properties ─► object, and inside another: a block     string, number, integer, boolean ─► attribute
//! list of such objects   ─► blocks, any number                      list of one of those ─► attribute, a list
//! map of texts           ─► a block of attributes                   anything else ─► attribute of any value
//! ```
//! The specification decides how Nomad reads a text. Which values are valid is for the schema
//! alone, which is checked afterwards. So a schema may say more than the specification can.

use std::collections::HashMap;

use serde_json::{Map, Value};

pub(crate) use ostler_plugin::schema::ConfigSchema;

use crate::proto::hclspec::spec::Block as Of;
use crate::proto::hclspec::{Attr, Block, BlockAttrs, BlockList, Object, Spec};
use ostler_model::json::JsonObject;

/// Deepest nesting of objects that is specified. Below it any value is taken.
const DEPTH_MAX: usize = 8;

/// A place in a schema, and the whole schema in which its references are followed.
#[derive(Clone, Copy)]
pub(crate) struct SchemaNode<'a> {
    root: &'a Value,
    here: &'a Value,
}

/// The form of the values at a place, as far as it decides how Nomad reads a text.
pub(crate) enum ValueShape<'a> {
    /// One object with these properties, and the names of those that are required.
    Object(&'a Map<String, Value>, Vec<&'a str>),
    /// A map from any names to texts.
    Texts,
    /// A list of objects of this schema.
    Objects(SchemaNode<'a>),
    /// One value of this type, by its name in HCL.
    Value(&'static str),
    /// Any value.
    Any,
}

impl<'a> SchemaNode<'a> {
    /// The root of a schema.
    pub(crate) const fn from_root(root: &'a Value) -> Self {
        Self { root, here: root }
    }

    /// Another place in the same schema.
    pub(crate) const fn descend(self, here: &'a Value) -> Self {
        Self { here, ..self }
    }

    /// The place that references lead to. At most [`DEPTH_MAX`] references are followed.
    fn resolve_refs(self) -> Self {
        let mut at = self;
        for _ in 0..DEPTH_MAX {
            let to = at.here.get("$ref").and_then(Value::as_str);
            match to.and_then(|to| self.root.pointer(to.strip_prefix('#')?)) {
                Some(here) => at = self.descend(here),
                None => break,
            }
        }
        at
    }

    /// The form of the values that this place of the schema allows.
    pub(crate) fn shape(self) -> ValueShape<'a> {
        let at = self.resolve_refs();
        // An object, or a list of at most one object, is one block.
        if let Some([one, list]) = at.here.get("oneOf").and_then(Value::as_array).map(Vec::as_slice)
            && at.descend(list).here.get("maxItems").and_then(Value::as_u64) == Some(1)
        {
            return at.descend(one).shape();
        }
        match at.here.get("type").and_then(Value::as_str) {
            Some("object") => match at.here.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    let required = at.here.get("required").and_then(Value::as_array);
                    let required = required.into_iter().flatten().filter_map(Value::as_str);
                    ValueShape::Object(properties, required.collect())
                }
                None => match at.here.get("additionalProperties") {
                    Some(of) if at.descend(of).is_text() => ValueShape::Texts,
                    _ => ValueShape::Any,
                },
            },
            Some("array") => {
                let Some(items) = at.here.get("items").map(|items| at.descend(items)) else {
                    return ValueShape::Any;
                };
                match items.shape() {
                    ValueShape::Object(..) => ValueShape::Objects(items.resolve_refs()),
                    ValueShape::Value("string") => ValueShape::Value("list(string)"),
                    ValueShape::Value("number") => ValueShape::Value("list(number)"),
                    ValueShape::Value("bool") => ValueShape::Value("list(bool)"),
                    _ => ValueShape::Any,
                }
            }
            Some("string") => ValueShape::Value("string"),
            Some("integer" | "number") => ValueShape::Value("number"),
            Some("boolean") => ValueShape::Value("bool"),
            _ if at.is_text() => ValueShape::Value("string"),
            _ => ValueShape::Any,
        }
    }

    fn is_text(self) -> bool {
        let at = self.resolve_refs();
        let named = at.here.get("type").and_then(Value::as_str) == Some("string");
        let listed = at.here.get("enum").and_then(Value::as_array);
        named || listed.is_some_and(|values| values.iter().all(Value::is_string))
    }
}

/// The specification for the text of a schema, which was checked before. A schema without
/// properties becomes an empty object. What is in `there` already is not required.
pub(crate) fn spec(text: &str, there: &JsonObject) -> Spec {
    let root: Value = serde_json::from_str(text).unwrap_or_default();
    let attributes = match SchemaNode::from_root(&root).shape() {
        ValueShape::Object(properties, mut required) => {
            required.retain(|name| !there.map().contains_key(*name));
            object(SchemaNode::from_root(&root), properties, &required, 0)
        }
        _ => Object::default(),
    };
    Spec { block: Some(Of::Object(attributes)) }
}

fn object(
    whole: SchemaNode<'_>,
    properties: &Map<String, Value>,
    required: &[&str],
    depth: usize,
) -> Object {
    let each = properties.iter().map(|(name, of)| {
        let needed = required.contains(&name.as_str());
        (name.clone(), property(whole.descend(of), name, needed, depth))
    });
    Object { attributes: each.collect::<HashMap<_, _>>() }
}

fn property(schema: SchemaNode<'_>, name: &str, required: bool, depth: usize) -> Spec {
    let name = name.to_owned();
    let any =
        |r#type: &str| Of::Attr(Attr { name: name.clone(), r#type: r#type.to_owned(), required });
    let nested = |schema: SchemaNode<'_>, properties, required: &[&str]| {
        let inside = object(schema, properties, required, depth + 1);
        Some(Box::new(Spec { block: Some(Of::Object(inside)) }))
    };
    let block = match schema.shape() {
        ValueShape::Value(of) => any(of),
        ValueShape::Object(properties, needed) if depth < DEPTH_MAX => {
            let nested = nested(schema, properties, &needed);
            Of::BlockValue(Box::new(Block { name, required, nested }))
        }
        ValueShape::Objects(items) if depth < DEPTH_MAX => match items.shape() {
            ValueShape::Object(properties, needed) => Of::BlockList(Box::new(BlockList {
                name,
                min_items: u64::from(required),
                max_items: 0,
                nested: nested(items, properties, &needed),
            })),
            _ => any("any"),
        },
        ValueShape::Texts => {
            Of::BlockAttrs(BlockAttrs { name, r#type: "string".to_owned(), required })
        }
        ValueShape::Object(..) | ValueShape::Objects(_) | ValueShape::Any => any("any"),
    };
    Spec { block: Some(block) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec_attributes(schema: &Value) -> HashMap<String, Spec> {
        match spec(&schema.to_string(), &JsonObject::default()).block.unwrap() {
            Of::Object(object) => object.attributes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_schema_of_the_wasm_driver_becomes_attributes_and_blocks() {
        let limits = json!({"type": "object", "properties": {"handles": {"type": "integer"}}});
        let found = spec_attributes(&json!({
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
        assert!(spec_attributes(&looped).contains_key("a"));
        let looped = json!({"$ref": "#"});
        assert!(spec_attributes(&looped).is_empty());
        assert!(matches!(spec("", &JsonObject::default()).block, Some(Of::Object(_))));
    }
}
