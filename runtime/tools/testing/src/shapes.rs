//! What a message consists of, without what it says: to hold ours against recorded ones.

use std::collections::{BTreeMap, BTreeSet};

use rmpv::Value;

/// What stands in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing.
    Nil,
    /// Yes or no.
    Bool,
    /// A whole number.
    Whole,
    /// Another number.
    Float,
    /// Text or bytes.
    Raw,
    /// The bytes of a time.
    Time,
    /// A list.
    List,
    /// A map.
    Map,
}

/// The fields of a message by their paths, `Node.Drivers.*.Healthy` or `Allocs[].ID`; of each what it was seen
/// to hold.
pub type Shape = BTreeMap<String, BTreeSet<Kind>>;

/// Maps whose keys are names that somebody gave, not fields.
const NAMED: [&str; 19] = [
    "Allocs",
    "Attributes",
    "Config",
    "Details",
    "DeviceStats",
    "Drivers",
    "Env",
    "InstanceStats",
    "Links",
    "Meta",
    "MigrateTokens",
    "Nested",
    "NodeEvents",
    "Options",
    "Pids",
    "TaskLifecycles",
    "TaskResources",
    "TaskStates",
    "Tasks",
];

/// The shape of a value.
#[must_use]
pub fn shape(value: &Value) -> Shape {
    let mut all = Shape::new();
    walk(value, "", &mut all);
    all
}

fn walk(value: &Value, path: &str, all: &mut Shape) {
    all.entry(path.to_owned()).or_default().insert(kind(value));
    match value {
        Value::Array(list) => {
            list.iter().for_each(|one| walk(one, &format!("{path}[]"), all));
        }
        Value::Map(fields) => {
            let last = path.rsplit('.').next().unwrap_or_default();
            let named = NAMED.contains(&last);
            for (key, value) in fields {
                let key = if named { "*" } else { key.as_str().unwrap_or("?") };
                let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                walk(value, &path, all);
            }
        }
        _ => {}
    }
}

fn kind(value: &Value) -> Kind {
    match value {
        Value::Nil => Kind::Nil,
        Value::Boolean(_) => Kind::Bool,
        Value::Integer(_) => Kind::Whole,
        Value::F32(_) | Value::F64(_) => Kind::Float,
        Value::String(text) if is_time(text.as_bytes()) => Kind::Time,
        Value::Binary(bytes) | Value::Ext(_, bytes) if is_time(bytes) => Kind::Time,
        Value::String(_) | Value::Binary(_) | Value::Ext(..) => Kind::Raw,
        Value::Array(_) => Kind::List,
        Value::Map(_) => Kind::Map,
    }
}

/// Fifteen bytes: version 1, seconds, nanoseconds below a second, and a zone of so many minutes.
fn is_time(bytes: &[u8]) -> bool {
    let [1, _, _, _, _, _, _, _, _, a, b, c, d, y, z] = bytes else { return false };
    let zone = i16::from_be_bytes([*y, *z]);
    u32::from_be_bytes([*a, *b, *c, *d]) < 1_000_000_000 && (-1440..=1440).contains(&zone)
}

/// Does a reader of Go that expects `expected` take `given`? A whole number is taken where another one is
/// expected, and nothing anywhere.
#[must_use]
pub fn is_taken(given: Kind, expected: Kind) -> bool {
    given == expected
        || matches!((given, expected), (Kind::Nil, _) | (_, Kind::Nil) | (Kind::Whole, Kind::Float))
}
