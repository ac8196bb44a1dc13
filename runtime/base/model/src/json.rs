//! JSON objects inside the model.

use std::sync::OnceLock;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A JSON object. It is written as itself in JSON, and as text in the state file, whose codec is
/// not self-describing. It never changes once it is made, so its text is made only once, although
/// the record of an allocation is encoded again and again.
#[derive(Clone, Default)]
pub struct JsonObject {
    map: Map<String, Value>,
    text: OnceLock<Box<str>>,
}

impl JsonObject {
    /// The members of the object by name.
    #[must_use]
    pub fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// The members of the object, to be changed.
    #[must_use]
    pub fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// The object as compact text.
    #[must_use]
    pub fn text(&self) -> &str {
        // A map with text keys always serialises.
        self.text.get_or_init(|| serde_json::to_string(&self.map).unwrap_or_default().into())
    }
}

impl From<Map<String, Value>> for JsonObject {
    fn from(map: Map<String, Value>) -> Self {
        Self { map, text: OnceLock::new() }
    }
}

impl PartialEq for JsonObject {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl std::fmt::Debug for JsonObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.map.fmt(f)
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            self.map.serialize(serializer)
        } else {
            serializer.serialize_str(self.text())
        }
    }
}

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            Map::deserialize(deserializer).map(Self::from)
        } else {
            let text = String::deserialize(deserializer)?;
            let map = serde_json::from_str(&text).map_err(D::Error::custom)?;
            Ok(Self { map, text: OnceLock::from(text.into_boxed_str()) })
        }
    }
}
