//! Reads configurations as Nomad hands them over: MessagePack with every name of the specification.
//!
//! Nomad writes null for a value that was not given, and an empty list for blocks that are not
//! there. Both are taken as absent.

use serde_json::{Map, Number, Value as Json};

use crate::schema::{SchemaNode, ValueShape};
use ostler_cluster::msgpack::{MsgpackError, Value, ValueReader};
use ostler_model::json::JsonObject;
use ostler_model::limits::NOMAD_CONFIG_BYTES_MAX;

/// Why bytes are not a configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValuesError {
    /// The bytes are not MessagePack, or too many.
    #[error("the configuration is not readable: {0}")]
    Msgpack(#[from] MsgpackError),
    /// The value is not an object.
    #[error("the configuration is not an object")]
    NoObject,
}

/// The configuration in these bytes, as a plugin with this schema expects it.
pub(crate) fn configuration(bytes: &[u8], schema: &str) -> Result<JsonObject, ValuesError> {
    if bytes.is_empty() {
        return Ok(JsonObject::default());
    }
    let mut reader = ValueReader::new(NOMAD_CONFIG_BYTES_MAX);
    reader.extend(bytes);
    let value = reader.take_next()?.ok_or(MsgpackError::Malformed)?;
    let root: Json = serde_json::from_str(schema).unwrap_or_default();
    match to_json(value) {
        Json::Object(map) => match fit_value(Json::Object(map), Some(SchemaNode::from_root(&root)))
        {
            Json::Object(map) => Ok(JsonObject::from(map)),
            _ => Err(ValuesError::NoObject),
        },
        Json::Null => Ok(JsonObject::default()),
        _ => Err(ValuesError::NoObject),
    }
}

fn to_json(value: Value) -> Json {
    match value {
        Value::Nil | Value::Ext(..) => Json::Null,
        Value::Boolean(value) => Json::Bool(value),
        Value::Integer(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (None, number) => number.unwrap_or_default().into(),
        },
        Value::F32(number) => float(f64::from(number)),
        Value::F64(number) => float(number),
        Value::String(text) => Json::String(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        Value::Binary(bytes) => Json::String(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Array(values) => Json::Array(values.into_iter().map(to_json).collect()),
        Value::Map(entries) => {
            let named = entries.into_iter().map(|(key, value)| {
                let key = match to_json(key) {
                    Json::String(text) => text,
                    other => other.to_string(),
                };
                (key, to_json(value))
            });
            Json::Object(named.collect())
        }
    }
}

/// A number of HCL, which has one kind of number. A whole number becomes an integer.
fn float(number: f64) -> Json {
    /// Whole numbers up to here are the same in both forms.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= WHOLE_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and in range")]
        return Json::Number(Number::from(number as i64));
    }
    Number::from_f64(number).map_or(Json::Null, Json::Number)
}

/// Remove the values that stand for absence, and put the object in place of a list of one block.
fn fit_value(value: Json, schema: Option<SchemaNode<'_>>) -> Json {
    match (value, schema.map(|schema| (schema, schema.shape()))) {
        (Json::Object(map), Some((schema, ValueShape::Object(properties, _)))) => {
            let kept = map.into_iter().filter_map(|(name, value)| {
                let of = properties.get(&name).map(|of| schema.descend(of));
                let value = fit_value(value, of);
                let absent = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                (!absent).then_some((name, value))
            });
            Json::Object(kept.collect::<Map<_, _>>())
        }
        (Json::Array(mut items), Some((schema, ValueShape::Object(..)))) => match items.pop() {
            Some(one) if items.is_empty() => fit_value(one, Some(schema)),
            Some(last) => {
                items.push(last);
                Json::Array(items)
            }
            None => Json::Null,
        },
        (Json::Array(items), Some((_, ValueShape::Objects(of)))) => {
            Json::Array(items.into_iter().map(|item| fit_value(item, Some(of))).collect())
        }
        (Json::Object(map), _) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Json::Object(kept.map(|(name, value)| (name, fit_value(value, None))).collect())
        }
        (value, _) => value,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use ostler_cluster::msgpack;

    fn map(entries: Vec<(&str, Value)>) -> Value {
        Value::Map(entries.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    #[test]
    fn what_was_not_given_is_absent_and_a_block_is_one_object() {
        let schema = json!({
            "type": "object",
            "properties": {
                "module": {"type": "string"},
                "memory": {"type": "integer"},
                "limits": {"type": "object", "properties": {"handles": {"type": "integer"}}},
                "mounts": {"type": "array", "items": {"type": "object", "properties": {"a": {}}}}
            }
        });
        let given = map(vec![
            ("module", "local/a.wasm".into()),
            ("memory", Value::F64(12.0)),
            ("args", Value::Nil),
            ("limits", Value::Array(vec![map(vec![("handles", 9.into()), ("x", Value::Nil)])])),
            ("mounts", Value::Array(Vec::new())),
        ]);
        let mut bytes = Vec::new();
        msgpack::write(&mut bytes, &given);
        let read = configuration(&bytes, &schema.to_string()).unwrap();
        let expected = json!({"module": "local/a.wasm", "memory": 12, "limits": {"handles": 9}});
        assert_eq!(Json::Object(read.into_map()), expected);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert!(configuration(&[], "").unwrap().map().is_empty());
        assert!(configuration(&[0xc0], "").unwrap().map().is_empty());
        assert!(matches!(configuration(&[0x01], ""), Err(ValuesError::NoObject)));
        assert!(matches!(configuration(&[0xc1], ""), Err(ValuesError::Msgpack(_))));
        assert!(matches!(configuration(&[0x81], ""), Err(ValuesError::Msgpack(_))));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_configuration_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let schema = json!({"type": "object", "properties": {"a": {"$ref": "#"}}});
            let _either = configuration(&bytes, &schema.to_string());
        }
    }
}
