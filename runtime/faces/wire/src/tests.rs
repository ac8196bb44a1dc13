#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::*;

/// A value of a recorded shape; see `recorded_tests.rs` beside `recorded.json`. It has `null`
/// wherever the recording has seen one.
fn value(name: &str, shape: &Value) -> Value {
    let of_type = |types: &str| match types.split('|').next_back().unwrap() {
        _ if types.contains("null") => Value::Null,
        "string" => match name {
            "ID" => "0f01c0de-0000-4000-8000-000000000000".into(),
            "DesiredStatus" => "run".into(),
            "ClientStatus" | "State" => "running".into(),
            _ => NEVER.into(),
        },
        "number" => 7.into(),
        "bool" => true.into(),
        "array" => json!([]),
        _ => json!({}),
    };
    match shape {
        Value::Array(parts) if !parts[0].as_str().unwrap().contains("null") => {
            json!([value(name, &parts[1])])
        }
        Value::Object(fields) if !fields[""].as_str().unwrap().contains("null") => {
            let members = fields.iter().filter(|(key, _)| !key.is_empty());
            let one = |(key, shape): (&String, &Value)| (key.replace('*', "x"), value(key, shape));
            Value::Object(Map::from_iter(members.map(one)))
        }
        Value::String(types) => of_type(types),
        _ => Value::Null,
    }
}

#[track_caller]
fn read<T: DeserializeOwned>(name: &str) -> T {
    let recorded = include_str!("../../api/src/server/json/recorded.json");
    let recorded: Value = serde_json::from_str(recorded).unwrap();
    let answer = value("", &recorded[name]);
    serde_json::from_value(answer.clone())
        .unwrap_or_else(|error| panic!("{name}: {error}: {answer:#}"))
}

#[test]
fn every_recorded_answer_of_a_nomad_can_be_read() {
    assert_eq!(read::<Vec<JobStub>>("job stub list")[0].priority, 7);
    assert!(read::<WireJob>("job").facts.stop);
    assert_eq!(read::<JobSummary>("job summary").total().running, 7);
    assert_eq!(read::<Vec<Alloc>>("alloc stub list")[0].version(), 7);
    let alloc = read::<Alloc>("alloc");
    assert_eq!(alloc.id.short(), "0f01c0de");
    assert_eq!(alloc.allocated_resources.unwrap().shared.ports[0].value, 7);
    assert_eq!(read::<Vec<Alloc>>("alloc list of node").len(), 1);
    assert_eq!(read::<AllocUsage>("alloc usage").resource_usage.memory_stats.rss, 7);
    assert_eq!(read::<Vec<NodeStub>>("node stub list").len(), 1);
    assert_eq!(read::<WireNode>("node").modify_index, 7);
    assert_eq!(read::<JobRegisterResponse>("register").job_modify_index, 7);
    assert_eq!(read::<JobDeregisterResponse>("deregister").index, 7);
    assert_eq!(read::<AllocStopResponse>("alloc stop").index, 7);
    assert_eq!(read::<GenericResponse>("done").index, 7);
    assert_eq!(read::<JobPlanResponse<Vec<Absent>>>("plan").annotations.groups["x"].place, 7);
    assert!(read::<JobValidateResponse>("validate").driver_config_validated);
    assert!(read::<AgentHealth>("health").client.ok);
}

#[test]
fn an_empty_answer_is_one_of_empty_values() {
    fn empty<T: DeserializeOwned>() -> T {
        serde_json::from_value(json!({})).unwrap()
    }
    assert_eq!(empty::<Alloc>().version(), 0);
    assert!(empty::<WireJob>().task_groups.is_empty());
    assert!(empty::<HostStats>().cpu.is_empty() && empty::<FileInfo>().name.is_empty());
    assert_eq!(empty::<JobRegisterResponse>().new_warnings(), "");
    assert_eq!(empty::<Frame>().data, "");
}
