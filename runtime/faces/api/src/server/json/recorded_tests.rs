//! Compares our shapes with those of a real Nomad.
//!
//! `recorded.json` has, by answer, the shape of what a single-node Nomad 1.0.18 answered to its own
//! command line: every key with the types of its value. `""` is the type of an object itself, `"*"`
//! stands for every key of a map, and a list is its type and that of its items. Values are not
//! recorded. Jobs inside other answers belong to [`ostler_jobspec`] and are compared there.
//!
//! Every recorded key must be in our answer with one of its types. Keys that we leave out or write
//! in another form are listed here with the reason.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::alloc::{AllocJsonInput, full, stub};
use super::node::NodeStatusFields;
use super::{agent, change, job, metric, node, stats};
use ostler_agent::{GroupCounts, GroupPlan, JobPlan, JobStatus, PlaceCounts, RegisterOutcome};
use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::attribute::Attribute;
use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health, HealthState, Locality};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, GroupName, NodeId, PluginName};
use ostler_model::job::{JobKind, NetworkSpec, PortSpec};
use ostler_model::resources::{AllocatedDevice, AllocatedPort};
use ostler_model::rng::Rng;
use ostler_model::saved::{DeploymentStatus, JobOrigin, JobRecord};
use ostler_model::scheduling::{NodeEvent, NodeEventKind, NodeScheduling};
use ostler_model::task::{ExitResult, TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_node::{DriverView, NodeView};
use ostler_testing::fixtures;
use ostler_wire::{
    AllocStopResponse, AllocUsage, GenericResponse, JobDiff, JobValidateResponse, TaskUsage,
};

/// Keys we do not write as Nomad does, by the end of their path, and why.
const OTHERWISE: &[(&str, &str)] = &[
    ("Diff.Fields", "what differs is told as lines, in Changes"),
    ("Diff.Objects", "as Fields"),
    ("Diff.TaskGroups", "as Fields"),
    ("HostVolumes", "there are none"),
];

fn recorded(name: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("recorded.json")).unwrap();
    all.get(name).unwrap_or_else(|| panic!("{name} is recorded")).clone()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Every key of `shape` that is missing from `ours` or has another type there.
fn differences(path: &str, shape: &Value, ours: Option<&Value>, found: &mut Vec<String>) {
    if OTHERWISE.iter().any(|(key, _)| path.ends_with(key)) && ours.is_some() {
        return;
    }
    let own = match shape {
        Value::String(own) => own.as_str(),
        Value::Array(parts) => parts[0].as_str().unwrap(),
        Value::Object(fields) => fields[""].as_str().unwrap(),
        _ => panic!("{path}: not a shape"),
    };
    let Some(ours) = ours else {
        found.push(format!("{path} is missing"));
        return;
    };
    let own_type = type_of(ours);
    // An empty list or map for null and the other way round: Go's clients take either.
    let empty = |types: &str| {
        let containers = types.contains("array") || types.contains("object");
        own_type == "null" && containers
            || types == "null" && matches!(own_type, "array" | "object")
    };
    // Recorded only as null: any type may have been meant.
    if own != "null" && !own.split('|').any(|one| one == own_type) && !empty(own) {
        found.push(format!("{path} is {own_type}, recorded as {own}"));
        return;
    }
    match (shape, ours) {
        (Value::Array(parts), Value::Array(items)) => {
            for item in items {
                differences(&format!("{path}[]"), &parts[1], Some(item), found);
            }
        }
        (Value::Object(fields), Value::Object(members)) => {
            for (key, field) in fields.iter().filter(|(key, _)| !key.is_empty()) {
                if key == "*" {
                    for (name, value) in members {
                        differences(&format!("{path}.{name}"), field, Some(value), found);
                    }
                } else {
                    differences(&format!("{path}.{key}"), field, members.get(key), found);
                }
            }
        }
        _ => {}
    }
}

#[track_caller]
fn compare(name: &str, ours: &Value) {
    let mut found = Vec::new();
    differences(name, &recorded(name), Some(ours), &mut found);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn the_comparison_finds_what_is_missing_or_of_another_type() {
    let mut ours = json!({ "Index": "1" });
    let mut found = Vec::new();
    differences("done", &recorded("done"), Some(&ours), &mut found);
    assert_eq!(found, ["done.Index is string, recorded as number"]);
    ours = json!([{ "ID": "x" }]);
    found.clear();
    differences("job stub list", &recorded("job stub list"), Some(&ours), &mut found);
    assert!(found.contains(&"job stub list[].JobSummary is missing".to_owned()), "{found:?}");
}

fn node() -> NodeView {
    let mut node = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "edge");
    node.attributes.insert("cpu.arch".to_owned(), Attribute::from("amd64"));
    node.meta.insert("rack".to_owned(), "r1".to_owned());
    let health = Health { state: HealthState::Healthy, reason: String::new() };
    let driver =
        DriverView { health: health.clone(), version: "1.0.0".into(), ..Default::default() };
    node.drivers.insert(PluginName::new("fake").unwrap(), driver);
    let locality = Some(Locality { pci_bus_id: Some("0000:3b:00.0".into()), numa_node: None });
    node.devices.push(DeviceGroup {
        key: key(),
        plugin: PluginName::new("pci").unwrap(),
        instances: vec![DeviceInstance { id: "gpu0".into(), health, locality }],
        attributes: Vec::new(),
    });
    node
}

fn key() -> GroupKey {
    GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "a/b".into() }
}

/// An allocation with every field set.
fn allocation() -> (Allocation, AllocState) {
    let rng = Rng::from_seed(2);
    let mut alloc =
        fixtures::allocation(JobKind::Batch, vec![fixtures::task("web").unwrap()], &rng).unwrap();
    let web = alloc.task_group().unwrap().tasks[0].name.clone();
    let mut job = (*alloc.job).clone();
    let port = |label: &str, fixed| PortSpec {
        label: label.to_owned(),
        fixed,
        to: None,
        host_network: None,
    };
    job.groups[0].network = Some(NetworkSpec {
        ports: vec![port("http", Some(80)), port("db", None)],
        ..NetworkSpec::default()
    });
    alloc.job = Arc::new(job);
    let assigned = |label: &str, value, to| AllocatedPort {
        label: label.to_owned(),
        value,
        to,
        host_ip: "127.0.0.1".to_owned(),
        task: None,
    };
    alloc.ports = vec![assigned("http", 80, 80), assigned("db", 25_000, 6_379)];
    let ids = vec!["gpu0".to_owned()];
    alloc.devices.insert(web.clone(), vec![AllocatedDevice { group: key(), ids }]);
    (alloc.create_index, alloc.modify_index, alloc.job_version) = (11, 12, 3);
    alloc.previous = Some(AllocId::new(rng.uuid()));
    alloc.desired_description = "asked".to_owned();
    let at = Some(Timestamp::from_nanos(1_795_188_014_000_000_001));
    let mut task = TaskState {
        status: TaskStatus::Running,
        last_restart: at,
        started_at: at,
        finished_at: at,
        last_exit: Some(ExitResult::default()),
        ..TaskState::default()
    };
    task.push_event(TaskEvent::new(EventKind::Started, Timestamp::from_nanos(9), "Task started"));
    let health = DeploymentStatus {
        healthy: Some(true),
        changed_at: at,
        canary: false,
        modify_index: 4,
        deployment: None,
    };
    let state = AllocState {
        client_status: ClientStatus::Running,
        client_description: "Tasks are running".to_owned(),
        tasks: BTreeMap::from([(web, task.into())]).into(),
        health: Some(health),
        network: Some(std::sync::Arc::default()),
    };
    (alloc, state)
}

fn seen<'a>(of: &'a (Allocation, AllocState), node: &'a NodeView) -> AllocJsonInput<'a> {
    let modify_time = Timestamp::from_nanos(8);
    let (next, followup, canary) = (None, String::new(), false);
    AllocJsonInput {
        allocation: &of.0,
        state: &of.1,
        modify_index: 13,
        modify_time,
        node,
        next,
        followup,
        canary,
    }
}

fn value(of: impl serde::Serialize) -> Value {
    serde_json::to_value(of).unwrap()
}

#[test]
fn allocations_have_nomads_shapes() {
    let (node, alloc) = (node(), allocation());
    let seen = seen(&alloc, &node);
    for resources in [false, true] {
        compare("alloc stub list", &json!([value(stub(seen.clone(), resources))]));
    }
    compare("alloc", &value(full(seen.clone())));
    compare("alloc list of node", &json!([value(full(seen))]));
}

#[test]
fn every_field_of_an_allocation_is_told() {
    let (node, alloc) = (node(), allocation());
    let full = value(full(seen(&alloc, &node)));
    let ours = &alloc.0;
    for (path, expected) in [
        ("/ID", json!(ours.id)),
        ("/Name", json!("job.group[0]")),
        ("/NodeID", json!(node.id)),
        ("/NodeName", json!("edge")),
        ("/JobID", json!("job")),
        ("/TaskGroup", json!("group")),
        ("/DesiredStatus", json!("run")),
        ("/DesiredDescription", json!("asked")),
        ("/ClientStatus", json!("running")),
        ("/ClientDescription", json!("Tasks are running")),
        ("/PreviousAllocation", json!(ours.previous)),
        ("/CreateIndex", json!(11)),
        ("/AllocModifyIndex", json!(12)),
        ("/ModifyIndex", json!(13)),
        ("/CreateTime", json!(1)),
        ("/ModifyTime", json!(8)),
        ("/Job/Version", json!(3)),
        ("/DeploymentStatus/Healthy", json!(true)),
        ("/DeploymentStatus/ModifyIndex", json!(4)),
        ("/AllocatedResources/Tasks/web/Cpu/CpuShares", json!(100)),
        ("/AllocatedResources/Tasks/web/Memory/MemoryMB", json!(300)),
        ("/AllocatedResources/Tasks/web/Devices/0/Name", json!("a/b")),
        ("/AllocatedResources/Tasks/web/Devices/0/DeviceIDs/0", json!("gpu0")),
        ("/AllocatedResources/Shared/DiskMB", json!(300)),
        ("/AllocatedResources/Shared/Ports/1/To", json!(6_379)),
        ("/Resources/Networks/0/ReservedPorts/0/Label", json!("http")),
        ("/Resources/Networks/0/DynamicPorts/0/Value", json!(25_000)),
        ("/TaskStates/web/StartedAt", json!("2026-11-20T15:20:14.000000001Z")),
    ] {
        assert_eq!(full.pointer(path), Some(&expected), "{path}");
    }
    let stub = value(stub(seen(&alloc, &node), false));
    assert_eq!((&stub["JobVersion"], &stub["JobType"]), (&json!(3), &json!("batch")));
}

#[test]
fn jobs_have_nomads_shapes_and_every_field_is_told() {
    let record = JobRecord {
        job: allocation().0.job,
        version: 1,
        submitted_at: Timestamp::from_nanos(2),
        create_index: 3,
        modify_index: 5,
        job_modify_index: 4,
        stopped: true,
        origin: JobOrigin::File("/jobs/a.hcl".into()),
        stable: false,
    };
    let counts = GroupCounts { queued: 1, pending: 2, running: 3, complete: 4, failed: 5 };
    let groups = BTreeMap::from([(GroupName::new("group").unwrap(), counts)]);
    let status = JobStatus::Pending;
    let places = PlaceCounts { waiting: 1, complete: 2, failed: 3 };
    let (groups, waits_for) = (&groups, "room");
    let seen = job::JobJsonInput { record: &record, status, groups, waits_for, places, index: 6 };
    let stub = value(job::stub(seen));
    compare("job stub list", &json!([stub]));
    compare("job summary", &value(job::summary(seen)));
    let summary = json!({
        "Queued": 1, "Starting": 2, "Running": 3, "Complete": 4, "Failed": 5, "Lost": 0
    });
    assert_eq!(stub["JobSummary"]["Summary"]["group"], summary);
    assert_eq!(stub["JobSummary"]["ModifyIndex"], 6);
    let full = job::full(seen);
    compare("job", &full);
    for shown in [&stub, &full] {
        assert_eq!(shown["Stop"], true);
        assert_eq!(shown["Status"], "pending");
        assert_eq!(shown["StatusDescription"], "room");
        assert_eq!(shown["SubmitTime"], 2);
        assert_eq!(shown["CreateIndex"], 3);
        assert_eq!(shown["JobModifyIndex"], 4);
        assert_eq!(shown["ModifyIndex"], 5);
    }
    assert_eq!(full["Version"], 1);
    assert_eq!(full["Origin"], json!({ "file": "/jobs/a.hcl" }));
    assert_eq!(full["Places"], json!({ "Waiting": 1, "Complete": 2, "Failed": 3 }));
}

#[test]
fn the_node_has_nomads_shapes() {
    let at = Timestamp::from_nanos(3);
    let mut scheduling = NodeScheduling::default();
    scheduling.note(NodeEvent { at, index: 3, kind: NodeEventKind::Registered });
    let view = node();
    let status = NodeStatusFields {
        status: "ready",
        description: "",
        index: 9,
        created: 7,
        scheduling: &scheduling,
    };
    for resources in [false, true] {
        compare("node stub list", &json!([value(node::stub(&view, status, resources))]));
    }
    let full = value(node::full(&view, status));
    let mut shape = recorded("node");
    // Names of attributes and pairs are the node's own.
    for map in ["Attributes", "Meta"] {
        assert_eq!(shape[map]["*"], "string");
        shape[map] = json!("object");
    }
    let mut found = Vec::new();
    differences("node", &shape, Some(&full), &mut found);
    assert_eq!(found, Vec::<String>::new());
    assert_eq!(full["Drivers"]["fake"]["Healthy"], true);
    assert_eq!(full["NodeResources"]["Devices"][0]["Instances"][0]["ID"], "gpu0");
}

#[test]
fn answers_to_changes_have_nomads_shapes() {
    let placed = vec![allocation().0.id];
    let registered = RegisterOutcome {
        job_modify_index: 4,
        version: 1,
        index: Some(6),
        placed: placed.clone(),
        updated: Vec::new(),
        stopped: Vec::new(),
        warnings: vec!["careful".to_owned()],
    };
    let register = value(change::register_response(
        registered,
        6,
        "e".to_owned(),
        vec!["priority has no effect yet".to_owned()],
    ));
    compare("register", &register);
    assert_eq!(
        (&register["JobModifyIndex"], &register["Warnings"]),
        (&json!(4), &json!("2 warnings:\n\n* priority has no effect yet\n* careful"))
    );
    assert_eq!(register["AgentWarnings"], json!(["careful"]));
    assert_eq!(register["EvalCreateIndex"], 6);
    let ours = json!({ "Version": 1, "Placed": placed, "Updated": [], "Stopped": [] });
    assert_eq!(register["Registered"], ours);
    compare("deregister", &value(change::deregister_response(5, String::new(), None)));
    let stop = AllocStopResponse { eval_id: "e".to_owned(), index: 6, warnings: None };
    compare("alloc stop", &value(stop));
    compare("done", &value(GenericResponse::default()));
    let validate =
        JobValidateResponse { driver_config_validated: true, ..JobValidateResponse::default() };
    compare("validate", &value(validate));
}

#[test]
fn a_plan_has_nomads_shape_and_every_count() {
    let counts = GroupPlan {
        place: 1,
        in_place: 2,
        destructive: 3,
        canary: 6,
        stop: 4,
        ignore: 5,
        ..GroupPlan::default()
    };
    let plan = JobPlan {
        devices: Vec::new(),
        job_modify_index: 7,
        version: 2,
        groups: BTreeMap::from([(GroupName::new("web").unwrap(), counts)]),
        waiting: Vec::new(),
        changes: vec!["group \"web\" count: 1 -> 3".to_owned()],
        known: None,
        warnings: vec!["careful".to_owned()],
    };
    let shown = value(change::plan(
        &plan,
        "dc1",
        Some(JobDiff { kind: "Edited".into(), id: "shop".into(), ..JobDiff::default() }),
        &[],
    ));
    compare("plan", &shown);
    let updates = json!({
        "Place": 1, "InPlaceUpdate": 2, "DestructiveUpdate": 3, "Stop": 4, "Ignore": 5,
        "Migrate": 0, "Canary": 6, "Preemptions": 0
    });
    assert_eq!(shown["Annotations"]["DesiredTGUpdates"]["web"], updates);
    assert_eq!(shown["JobModifyIndex"], 7);
    assert_eq!(shown["Warnings"], "1 warning:\n\n* careful");
    assert_eq!(shown["Changes"], json!(["group \"web\" count: 1 -> 3"]));
    assert_eq!(shown["Diff"]["Type"], "Edited");
}

#[test]
fn what_does_not_fit_is_told_by_group_with_what_there_is_not_enough_of() {
    use ostler_agent::BlockedPlacement;
    use ostler_control::admission::{GroupRefusal, Problem, Refusal, Resource};

    let record = allocation().0;
    let group = GroupName::new("web").unwrap();
    let memory = Problem::Resource {
        resource: Resource::Memory,
        index: 0,
        wanted: 9_000,
        total: 100,
        assigned: 0,
        holders: 0,
    };
    let task = ostler_model::ids::TaskName::new("t").unwrap();
    let driver = ostler_model::ids::PluginName::new("docker").unwrap();
    let (loaded, refused) = (Vec::new(), BTreeMap::new());
    let unknown = Problem::UnknownDriver { task, driver, nearest: None, loaded, refused };
    let blocked = |index, soon, problem: &Problem| BlockedPlacement {
        group: group.clone(),
        index,
        previous: None,
        soon,
        canary: false,
        refusal: std::sync::Arc::new(Refusal {
            job: record.job.id.clone(),
            node: "n".to_owned(),
            groups: vec![GroupRefusal { group: None, problems: vec![problem.clone()] }],
            attempts: Vec::new(),
        }),
    };
    let soon = [blocked(0, true, &memory)];
    assert!(metric::failed_placements(&soon, "dc1").is_none(), "that is only a matter of time");
    let full = [blocked(0, true, &memory), blocked(1, false, &memory), blocked(2, false, &memory)];
    let shown = serde_json::to_value(metric::failed_placements(&full, "dc1")).unwrap();
    let web = &shown["web"];
    assert_eq!(web["DimensionExhausted"], json!({ "memory": 1 }), "{shown}");
    assert_eq!((&web["NodesExhausted"], &web["NodesFiltered"]), (&json!(1), &json!(0)));
    assert_eq!((&web["NodesEvaluated"], &web["CoalescedFailures"]), (&json!(1), &json!(1)));
    assert_eq!(web["NodesAvailable"], json!({ "dc1": 1 }));
    let never =
        serde_json::to_value(metric::failed_placements(&[blocked(0, false, &unknown)], "dc1"));
    let web = &never.unwrap()["web"];
    assert_eq!((&web["NodesExhausted"], &web["NodesFiltered"]), (&json!(0), &json!(1)));
    let why = web["ConstraintFiltered"].as_object().unwrap().keys().next().unwrap();
    assert!(why.contains("no driver docker"), "{why}");
}

#[test]
fn usage_and_health_have_nomads_shapes() {
    let resource_usage = stats::usage(Some(1), Some(2.0), 3.0);
    let task = TaskUsage { resource_usage: resource_usage.clone(), ..TaskUsage::default() };
    let tasks = BTreeMap::from([("web".into(), task)]);
    let usage = AllocUsage { resource_usage, tasks, ..AllocUsage::default() };
    compare("alloc usage", &value(usage));
    compare("health", &value(agent::health(true, "ok")));
}
