//! How a value is written: as itself in JSON (`2`, `"amd64"`), with its kind in the state file,
//! whose codec is not self-describing.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::AttributeValue;

#[derive(Serialize, Deserialize)]
#[serde(rename = "Scalar")]
enum TaggedValue<T> {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(T),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PlainValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl Serialize for AttributeValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            let tagged = match self {
                Self::Int(number) => TaggedValue::Int(*number),
                Self::Float(number) => TaggedValue::Float(*number),
                Self::Bool(truth) => TaggedValue::Bool(*truth),
                Self::Text(text) => TaggedValue::Text(text.as_str()),
            };
            return tagged.serialize(serializer);
        }
        match self {
            Self::Int(number) => serializer.serialize_i64(*number),
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Bool(truth) => serializer.serialize_bool(*truth),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for AttributeValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Ok(match TaggedValue::<String>::deserialize(deserializer)? {
                TaggedValue::Int(number) => Self::Int(number),
                TaggedValue::Float(number) => Self::Float(number),
                TaggedValue::Bool(truth) => Self::Bool(truth),
                TaggedValue::Text(text) => Self::Text(text),
            });
        }
        Ok(match PlainValue::deserialize(deserializer)? {
            PlainValue::Bool(truth) => Self::Bool(truth),
            PlainValue::Int(number) => Self::Int(number),
            PlainValue::Float(number) => Self::Float(number),
            PlainValue::Text(text) => Self::Text(text),
        })
    }
}
