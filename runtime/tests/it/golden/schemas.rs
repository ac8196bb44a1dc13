//! JSON Schemas of what the command line prints with `--json`: made of what commands printed, so a key that comes or
//! goes, or a value of another type, shows as a difference in `docs/schemas/`.
//!
//! Only commands whose values are not the machine's. What was seen is some of what a command prints, so any member may be
//! absent or null, and one that was never seen but as null has no type. What people name (tasks, attributes, …) is
//! `additionalProperties`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ostler_testing::golden::has_text;
use serde_json::{Map, Value, json};

/// Maps whose keys are names that people or plugins give.
const FREE: &[&str] = &[
    "Attributes",
    "AllocatedDevices",
    "Args",
    "Checks",
    "Config",
    "ConstraintFiltered",
    "Details",
    "DimensionExhausted",
    "Env",
    "Meta",
    "NodesAvailable",
    "QueuedAllocations",
    "Summary",
    "TaskLifecycles",
    "TaskResources",
    "TaskStates",
    "Tasks",
    "attributes",
    "calls",
    "config",
    "functions",
    "groups",
    "holders",
    "meta",
    "nested",
    "strikes_by_task",
];
/// Those of whose values a map has one for each task group.
const BY_GROUP: &[&str] = &["TaskGroups", "DesiredTGUpdates"];

/// The schema of a value.
pub fn schema(value: &Value) -> Value {
    match value {
        Value::Null => json!({}),
        Value::Bool(_) => of_type("boolean"),
        Value::Number(number) if number.is_f64() => of_type("number"),
        Value::Number(_) => of_type("integer"),
        Value::String(_) => of_type("string"),
        Value::Array(items) => {
            let mut all = of_type("array");
            if let Some(items) = items.iter().map(schema).reduce(|a, b| merged(&a, &b)) {
                all["items"] = items;
            }
            all
        }
        Value::Object(members) => {
            let one = |(key, value): (&String, &Value)| {
                let free = FREE.contains(&&**key) || BY_GROUP.contains(&&**key);
                let value = match value {
                    Value::Object(members) if free => map(members),
                    other => schema(other),
                };
                (key.clone(), value)
            };
            let properties: Map<String, Value> = members.iter().map(one).collect();
            let mut all = of_type("object");
            all["properties"] = properties.into();
            all
        }
    }
}

fn of_type(name: &str) -> Value {
    json!({ "type": [name, "null"] })
}

/// Of a map whose keys are free.
fn map(members: &Map<String, Value>) -> Value {
    let mut all = of_type("object");
    if let Some(values) = members.values().map(schema).reduce(|a, b| merged(&a, &b)) {
        all["additionalProperties"] = values;
    }
    all
}

/// What both allow.
pub fn merged(one: &Value, other: &Value) -> Value {
    let texts = |value: &Value, key: &str| -> BTreeSet<String> {
        let all = value[key].as_array().into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut types = &texts(one, "type") | &texts(other, "type");
    if types.contains("number") {
        types.remove("integer");
    }
    let mut all = if types.is_empty() { json!({}) } else { json!({ "type": types }) };
    for key in ["items", "additionalProperties"] {
        match (one.get(key), other.get(key)) {
            (Some(one), Some(other)) => all[key] = merged(one, other),
            (Some(only), None) | (None, Some(only)) => all[key] = only.clone(),
            (None, None) => {}
        }
    }
    let (had, has) = (one.get("properties"), other.get("properties"));
    if had.is_some() || has.is_some() {
        let mut properties = Map::new();
        for members in [had, has].into_iter().flatten().filter_map(Value::as_object) {
            for (key, value) in members {
                let value =
                    properties.get(key).map_or_else(|| value.clone(), |known| merged(known, value));
                properties.insert(key.clone(), value);
            }
        }
        properties.sort_keys();
        all["properties"] = properties.into();
    }
    all
}

/// Compare the schemas of commands with those that are checked in, or write them.
pub fn check(seen: &BTreeMap<String, Value>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas");
    let mut other = Vec::new();
    for (command, schema) in seen {
        let mut whole = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": format!("ostler {command} --json"),
        });
        let members = schema.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(members);
        let text = format!("{whole:#}\n");
        let path = dir.join(format!("{}.json", command.replace(' ', "-")));
        if !has_text(&path, &text).unwrap() {
            other.push(format!("{}:\n{text}", path.display()));
        }
    }
    assert!(other.is_empty(), "OSTLER_BLESS=1 writes them anew:\n{}", other.join("\n"));
}

#[test]
fn a_schema_allows_what_was_seen_and_that_any_of_it_is_absent_or_null() {
    let (one, other) = (json!({ "a": 1, "b": null }), json!({ "a": 1.5, "c": ["x"] }));
    let schema = merged(&schema(&one), &schema(&other));
    assert_eq!(schema["properties"]["a"]["type"], json!(["null", "number"]));
    assert_eq!(schema["properties"]["b"], json!({}));
    assert_eq!(schema["properties"]["c"]["items"]["type"], json!(["string", "null"]));
    let allows = jsonschema::validator_for(&schema).unwrap();
    for answer in [&one, &other, &json!({}), &json!({ "c": null }), &json!({ "d": 1 })] {
        assert!(allows.is_valid(answer), "{answer}");
    }
    assert!(!allows.is_valid(&json!({ "c": "x" })));
}

#[test]
fn names_that_people_give_are_no_keys_of_a_schema() {
    let schema = schema(&json!({ "TaskStates": { "web": { "State": "dead" } } }));
    let states = &schema["properties"]["TaskStates"];
    assert_eq!(states["properties"], Value::Null);
    assert_eq!(states["additionalProperties"]["properties"]["State"]["type"][0], "string");
}
