//! JSON inside the model.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A JSON object. Shown as itself in JSON and kept as text in the state file, whose codec is not
/// self-describing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonObject(pub Map<String, Value>);

impl JsonObject {
    /// The object as compact text.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            self.0.serialize(serializer)
        } else {
            serializer.serialize_str(&self.to_text())
        }
    }
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Map::deserialize(deserializer).map(Self)
        } else {
            let text = String::deserialize(deserializer)?;
            serde_json::from_str(&text).map(Self).map_err(D::Error::custom)
        }
    }
}
