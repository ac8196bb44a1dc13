#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use serde_json::json;

fn version(count: u32, config: &Value, env: &Value) -> Value {
    json!({
        "ID": "web", "Priority": 50, "Datacenters": ["dc1"],
        "TaskGroups": [
            { "Name": "g", "Count": count, "Tasks": [
                { "Name": "t", "Driver": "exec", "Config": config, "Env": env,
                  "Services": [{ "Name": "a", "PortLabel": "http" }] },
                { "Name": "same", "Driver": "exec" },
            ]},
            { "Name": "other", "Count": 1, "Tasks": [] },
        ],
    })
}

fn plan(name: &str) -> Option<GroupPlan> {
    let counts = GroupPlan { place: 1, destructive: 2, ..GroupPlan::default() };
    (name == "g").then_some(counts)
}

#[test]
fn a_new_job_is_added_with_all_it_has() {
    let new = version(2, &json!({"command": "/bin/x"}), &Value::Null);
    let diff = job("web", None, &new, &plan);
    assert_eq!(diff.kind, "Added");
    let names: Vec<_> = diff.fields.iter().flatten().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["Datacenters[0]", "Priority"]);
    let groups = diff.task_groups.unwrap();
    assert_eq!((groups[0].kind.as_str(), groups.len()), ("Added", 2));
    let tasks = groups[0].tasks.as_ref().unwrap();
    assert_eq!(tasks[0].annotations, Some(vec!["forces create".to_owned()]));
    let count = groups[0].fields.as_ref().unwrap().iter().find(|field| field.name == "Count");
    assert_eq!(count.unwrap().annotations, Some(vec!["forces create".to_owned()]));
}

#[test]
fn of_an_edited_job_only_what_differs_is_there_and_what_it_forces() {
    let old = version(2, &json!({"command": "/bin/x", "args": ["a", "b"]}), &json!({"A": "1"}));
    let new = version(1, &json!({"command": "/bin/y", "args": ["a", "c"]}), &json!({"B": "2"}));
    let diff = job("web", Some(&old), &new, &plan);
    assert_eq!((&*diff.kind, diff.fields, diff.objects), ("Edited", None, None));
    let groups = diff.task_groups.unwrap();
    assert_eq!((groups[0].kind.as_str(), groups[1].kind.as_str()), ("Edited", "None"));
    let count = &groups[0].fields.as_ref().unwrap()[0];
    assert_eq!((count.old.as_str(), count.new.as_str()), ("2", "1"));
    assert_eq!(count.annotations, Some(vec!["forces destroy".to_owned()]));
    let updates = groups[0].updates.as_ref().unwrap();
    assert_eq!((updates["create"], updates["create/destroy update"]), (1, 2));
    let tasks = groups[0].tasks.as_ref().unwrap();
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].annotations, Some(vec!["forces create/destroy update".to_owned()]));
    let env: Vec<_> = tasks[0].fields.iter().flatten().map(|f| (&*f.kind, &*f.name)).collect();
    assert_eq!(env, [("Deleted", "Env[A]"), ("Added", "Env[B]")]);
    let config = &tasks[0].objects.as_ref().unwrap()[0];
    assert_eq!((config.kind.as_str(), config.name.as_str()), ("Edited", "Config"));
    let fields: Vec<_> = config.fields.iter().flatten().map(|f| (&*f.name, &*f.new)).collect();
    assert_eq!(fields, [("args[1]", "c"), ("command", "/bin/y")]);
}

#[test]
fn thousands_of_blocks_without_a_name_are_compared_in_no_time() {
    let constraints = |from: u32| -> Vec<Value> {
        (from..from + 15_000)
            .map(|n| json!({"LTarget": format!("${{meta.m{n}}}"), "RTarget": "x"}))
            .collect()
    };
    let (old, new) =
        (json!({"Constraints": constraints(0)}), json!({"Constraints": constraints(1)}));
    let watch = ostler_model::clock::Stopwatch::start();
    let diff = job("web", Some(&old), &new, &plan);
    // One was removed and one added. To compare each with each would take minutes.
    let objects = diff.objects.unwrap();
    let kinds: Vec<_> = objects.iter().map(|object| object.kind.as_str()).collect();
    assert_eq!(kinds, ["Deleted", "Added"]);
    assert!(watch.elapsed().as_secs() < 20, "{:?}", watch.elapsed());
}

#[test]
fn blocks_of_a_list_are_found_by_their_names_and_one_as_it_was_is_not_there() {
    let old =
        json!({"Services": [{"Name": "a", "PortLabel": "x"}, {"Name": "b"}], "TaskGroups": []});
    let new =
        json!({"Services": [{"Name": "b"}, {"Name": "a", "PortLabel": "y"}], "TaskGroups": []});
    let diff = job("web", Some(&old), &new, &plan);
    let objects = diff.objects.unwrap();
    assert_eq!(objects.len(), 1);
    assert_eq!((objects[0].name.as_str(), objects[0].kind.as_str()), ("Service", "Edited"));
    assert_eq!(job("web", Some(&old), &old, &plan).kind, "None");
}
