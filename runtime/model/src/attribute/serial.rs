//! How a value is written: as itself in JSON (`2`, `"amd64"`), with its kind in the state file,
//! whose codec is not self-describing.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Scalar;

#[derive(Serialize, Deserialize)]
#[serde(rename = "Scalar")]
enum Tagged<T> {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(T),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Plain {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            let tagged = match self {
                Self::Int(number) => Tagged::Int(*number),
                Self::Float(number) => Tagged::Float(*number),
                Self::Bool(truth) => Tagged::Bool(*truth),
                Self::Text(text) => Tagged::Text(text.as_str()),
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

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Ok(match Tagged::<String>::deserialize(deserializer)? {
                Tagged::Int(number) => Self::Int(number),
                Tagged::Float(number) => Self::Float(number),
                Tagged::Bool(truth) => Self::Bool(truth),
                Tagged::Text(text) => Self::Text(text),
            });
        }
        Ok(match Plain::deserialize(deserializer)? {
            Plain::Bool(truth) => Self::Bool(truth),
            Plain::Int(number) => Self::Int(number),
            Plain::Float(number) => Self::Float(number),
            Plain::Text(text) => Self::Text(text),
        })
    }
}
