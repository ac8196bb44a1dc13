//! What a message of ours lacks of the recorded ones of its kind, and has beyond. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{bytes, field, map};
use ostler_testing::recorded::{Part, RecordedMessage, values};
use ostler_testing::shapes::{Kind, Shape, is_taken, shape};

/// What differs, by the path of a field.
pub type Differences = BTreeMap<String, &'static str>;

/// A recorded message has it, ours never.
pub const LACKED: &str = "lacked";
/// No recorded message has it.
pub const UNKNOWN: &str = "unknown";
/// Who reads it as stock Nomad does cannot.
pub const MISTYPED: &str = "mistyped";

/// Differences that are as they should be: why, what they are, and of which fields.
pub type Known = (&'static str, &'static str, &'static [&'static str]);

/// What differs without a reason.
pub fn without(found: Differences, known: &[Known]) -> Differences {
    let is_known = |path: &str, what: &str| {
        let mut of_kind = known.iter().filter(|(_, kind, _)| *kind == what);
        of_kind.any(|(_, _, paths)| paths.contains(&path))
    };
    found.into_iter().filter(|(path, what)| !is_known(path, what)).collect()
}

/// The fields of all these messages of one kind: of the header in `head`, of what was said later in `later`.
pub fn fields<'a>(messages: impl IntoIterator<Item = &'a RecordedMessage>) -> Shape {
    let mut all = Shape::new();
    for message in messages {
        for (at, value) in values(message).into_iter().enumerate() {
            let part = match (at, message.part) {
                (0, _) => "head",
                (2.., Part::Request) => "later",
                _ => "",
            };
            let value = map([(part, opened(value))]);
            for (path, kinds) in shape(&value) {
                let path = path.trim_start_matches('.').to_owned();
                all.entry(path).or_default().extend(kinds);
            }
        }
    }
    all
}

/// With what is in a piece, where that is JSON.
fn opened(value: Value) -> Value {
    let json = |payload: &Value| serde_json::from_slice::<serde_json::Value>(bytes(payload)?).ok();
    let Some(json @ serde_json::Value::Object(_)) = field(&value, "Payload").and_then(json) else {
        return value;
    };
    let others = value.as_map().unwrap().iter().filter(|(key, _)| key.as_str() != Some("Payload"));
    Value::Map(others.cloned().chain([("Payload".into(), of_json(&json))]).collect())
}

fn of_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Nil,
        Json::Bool(is) => (*is).into(),
        Json::Number(number) if number.is_f64() => number.as_f64().unwrap().into(),
        Json::Number(number) => number.as_i64().unwrap_or(i64::MAX).into(),
        Json::String(text) => text.as_str().into(),
        Json::Array(list) => Value::Array(list.iter().map(of_json).collect()),
        Json::Object(all) => map(all.iter().map(|(key, value)| (key.as_str(), of_json(value)))),
    }
}

/// What differs. Of what is lacked as a whole, no parts are named.
pub fn differences(ours: &Shape, recorded: &Shape) -> Differences {
    let mut all = Differences::new();
    let parent = |path: &str| path.trim_end_matches("[]").rfind(['.', ']']);
    let missing = |of: &Shape, path: &str| !of.contains_key(path);
    for (path, kinds) in recorded {
        match ours.get(path) {
            Some(given) if !fits(given, kinds) => drop(all.insert(path.clone(), MISTYPED)),
            Some(_) => {}
            None => {
                let whole = parent(path).map(|at| path[..at].to_owned());
                if whole.is_none_or(|whole| !missing(ours, &whole)) {
                    all.insert(path.clone(), LACKED);
                }
            }
        }
    }
    for path in ours.keys().filter(|path| missing(recorded, path)) {
        all.insert(path.clone(), UNKNOWN);
    }
    all
}

fn fits(given: &BTreeSet<Kind>, expected: &BTreeSet<Kind>) -> bool {
    given.iter().all(|given| expected.iter().any(|expected| is_taken(*given, *expected)))
}
