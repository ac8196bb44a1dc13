//! The two forms of these types: JSON, and the MessagePack of Nomad's servers. What differs between
//! them is said here, and at each field that it concerns.
//!
//! | | JSON | MessagePack |
//! | --- | --- | --- |
//! | a time of day | a text of RFC 3339, or `null` | the bytes of [`go_time`], of Go's zero time for `null` |
//! | a field for readers of the API alone, and [`Absent`](crate::Absent) | written | left out |
//! | a field that most often is empty | written | left out while it is empty |
//!
//! Names and their order are the same in both forms, and so are numbers: durations are nanoseconds.
//! Servers take a field that is left out as empty.

use ostler_model::time::Timestamp;
use rmp_serde::MSGPACK_EXT_STRUCT_NAME;
use rmpv::Value;
use serde::{Serialize, Serializer};

use crate::{Text, go_time};

/// The value in the form that Nomad's servers read.
#[must_use]
pub fn message(of: &impl Serialize) -> Value {
    // Writing to memory does not fail, and neither does reading what was written.
    let bytes = rmp_serde::to_vec_named(of).unwrap_or_default();
    let mut value = rmpv::decode::read_value(&mut bytes.as_slice()).unwrap_or(Value::Nil);
    remove_omitted_fields(&mut value);
    value
}

fn remove_omitted_fields(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(remove_omitted_fields),
        Value::Map(fields) => {
            fields.retain(|(_, value)| !matches!(value, Value::Ext(..)));
            fields.iter_mut().for_each(|(_, value)| remove_omitted_fields(value));
        }
        _ => {}
    }
}

/// Stands in MessagePack for the value of a field that is left out, until [`message`] removes the
/// field. Nothing else is written as an extension of MessagePack.
struct OmittedField;

impl Serialize for OmittedField {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_newtype_struct(MSGPACK_EXT_STRUCT_NAME, &(0_i8, NoBytes))
    }
}

struct NoBytes;

impl Serialize for NoBytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&[])
    }
}

/// Writes a field for readers of the API alone.
pub(crate) fn json_only<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    if to.is_human_readable() { value.serialize(to) } else { OmittedField.serialize(to) }
}

/// Writes a field that servers are told only if it is not empty.
pub(crate) fn json_or_not_empty<T, S>(value: &T, to: S) -> Result<S::Ok, S::Error>
where
    T: Serialize + Default + PartialEq,
    S: Serializer,
{
    if *value == T::default() { json_only(value, to) } else { value.serialize(to) }
}

/// Writes a time of day, which is a text of RFC 3339.
pub(crate) fn time<S: Serializer>(text: &Text<'_>, to: S) -> Result<S::Ok, S::Error> {
    if to.is_human_readable() {
        return to.serialize_str(text);
    }
    to.serialize_bytes(&go_time::to_bytes(Timestamp::parse(text)))
}

/// Writes a time of day that may be missing.
pub(crate) fn time_if_any<S: Serializer>(
    text: &Option<Text<'_>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    if text.is_none() && to.is_human_readable() {
        return to.serialize_none();
    }
    time(text.as_ref().unwrap_or(&Text::default()), to)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Absent, WireNodeEvent};

    #[test]
    fn a_message_has_the_fields_and_times_that_servers_read() {
        let event = WireNodeEvent {
            message: "it is hot".into(),
            timestamp: "1970-01-01T00:00:01Z".into(),
            create_index: 7,
            ..WireNodeEvent::default()
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["CreateIndex"], 7);
        assert_eq!(json["Timestamp"], "1970-01-01T00:00:01Z");
        let message = message(&event);
        let fields = message.as_map().unwrap();
        let names: Vec<_> = fields.iter().filter_map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Message", "Subsystem", "Details", "Timestamp"]);
        let second = Timestamp::from_nanos(1_000_000_000);
        assert_eq!(fields.last().unwrap().1.as_slice().and_then(go_time::from_bytes), Some(second));
    }

    #[test]
    fn what_is_absent_or_empty_is_in_json_alone() {
        #[derive(Default, Serialize)]
        struct Shape {
            none: Absent,
            #[serde(serialize_with = "json_or_not_empty")]
            count: u32,
            #[serde(serialize_with = "time_if_any")]
            at: Option<Text<'static>>,
        }
        let names = |shape: &Shape| message(shape).as_map().unwrap().len();
        assert_eq!(names(&Shape::default()), 1, "the time is Go's zero time");
        assert_eq!(names(&Shape { count: 1, ..Shape::default() }), 2);
        let json = serde_json::to_string(&Shape::default()).unwrap();
        assert_eq!(json, r#"{"none":null,"count":0,"at":null}"#);
    }
}
