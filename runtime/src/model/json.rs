//! JSON inside the model.

use std::cell::RefCell;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A text buffer above this is given back, bytes.
const TEXT_KEEP: usize = 64 * 1024;

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
            with_text(&self.0, |text| serializer.serialize_str(text))
        }
    }
}

thread_local! {
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Hand the object's text to `work`. The buffer is kept: an allocation's record is encoded again and
/// again, and must not allocate each time.
fn with_text<S, E: serde::ser::Error>(
    object: &Map<String, Value>,
    work: impl FnOnce(&str) -> Result<S, E>,
) -> Result<S, E> {
    let mut buffer = TEXT.take();
    buffer.clear();
    let result = serde_json::to_writer(&mut buffer, object)
        .map_err(E::custom)
        .and_then(|()| work(str::from_utf8(&buffer).map_err(E::custom)?));
    if buffer.capacity() <= TEXT_KEEP {
        TEXT.replace(buffer);
    }
    result
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
