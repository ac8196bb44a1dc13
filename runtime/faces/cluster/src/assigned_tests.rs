use proptest::prelude::{any, prop, proptest};

use super::*;
use crate::msgpack::ValueReader;
use crate::rpc::map;

/// A recorded answer of a server (v1.0.18) to `Alloc.GetAllocs`.
const RECORDED: &[u8] = include_bytes!("../fixtures/get-allocs.bin");

fn recorded() -> Value {
    let mut reader = ValueReader::new(1 << 20);
    reader.extend(RECORDED);
    let answer = reader.take_next().unwrap().unwrap();
    field(&answer, "Allocs").unwrap()[0].clone()
}

/// Replace the value at the end of a path of fields; a number in the path is an index of a list.
fn with(value: &mut Value, path: &[&str], new: Value) {
    let Some((first, rest)) = path.split_first() else {
        *value = new;
        return;
    };
    match value {
        Value::Array(list) => with(&mut list[first.parse::<usize>().unwrap()], rest, new),
        Value::Map(fields) => {
            if !fields.iter().any(|(key, _)| text(key) == Some(*first)) {
                fields.push(((*first).into(), Value::Nil));
            }
            let found = fields.iter_mut().find(|(key, _)| text(key) == Some(*first));
            with(&mut found.unwrap().1, rest, new);
        }
        _ => panic!("nothing at {first}"),
    }
}

fn changed(path: &[&str], new: Value) -> Value {
    let mut alloc = recorded();
    with(&mut alloc, path, new);
    alloc
}

#[test]
fn what_is_nil_was_not_sent() {
    let alloc = allocation(&changed(&["AllocatedResources", "Shared"], Value::Nil)).unwrap();
    assert!(alloc.ports.is_empty());
    let alloc = allocation(&changed(&["AllocatedResources"], Value::Nil)).unwrap();
    assert!(alloc.ports.is_empty() && alloc.devices.is_empty());
}

#[test]
fn what_a_server_sent_becomes_an_allocation() {
    let alloc = allocation(&recorded()).unwrap();
    assert_eq!((alloc.name.as_str(), alloc.index), ("rec.g[0]", 0));
    assert_eq!((alloc.job.id.as_str(), alloc.job.namespace()), ("rec", "default"));
    let [port] = &alloc.ports[..] else { panic!("one port") };
    assert_eq!(port.label, "http");
    assert_eq!(port.to, port.value, "nothing else was asked for");
    assert!(port.value >= 20_000, "a dynamic one");
    let group = alloc.task_group().unwrap();
    assert_eq!(group.count, 1);
    assert!(group.health.is_some(), "a deployment asks for it");
    let task = &group.tasks[0];
    assert_eq!(task.driver.as_str(), "raw_exec");
    assert_eq!((task.resources.cpu_mhz, task.resources.memory_mb), (50, 32));
    assert!(format!("{:?}", task.config).contains("sleep 600"));
    assert!(alloc.devices.is_empty());
    assert_eq!((alloc.desired, alloc.previous), (DesiredStatus::Run, None));
}

#[test]
fn what_is_the_servers_is_not_asked_of_the_node() {
    let constraint = map([
        ("LTarget", "".into()),
        ("RTarget", "true".into()),
        ("Operand", "distinct_hosts".into()),
    ]);
    let mut alloc = changed(&["Job", "Constraints"], Value::Array(vec![constraint]));
    with(&mut alloc, &["Job", "TaskGroups", "0", "Count"], 100_000.into());
    with(&mut alloc, &["Job", "TaskGroups", "0", "Update", "Canary"], 2.into());
    with(&mut alloc, &["Job", "Namespace"], "team".into());
    with(&mut alloc, &["DeploymentID"], "".into());
    let alloc = allocation(&alloc).unwrap();
    assert_eq!(alloc.job.namespace(), "team");
    assert!(alloc.job.constraints.is_empty());
    assert!(alloc.task_group().unwrap().health.is_none(), "nobody asks for it");
}

#[test]
fn what_the_node_does_not_do_is_an_error_that_names_it() {
    let artifact = map([("GetterSource", "git::https://example.com/x".into())]);
    let path = ["Job", "TaskGroups", "0", "Tasks", "0", "Artifacts"];
    let error = allocation(&changed(&path, Value::Array(vec![artifact]))).unwrap_err();
    assert!(
        error.to_string().contains("Artifacts") && error.to_string().contains("git"),
        "{error}"
    );
    let unknown = changed(&["Job", "TaskGroups", "0", "Tasks", "0", "Novelty"], true.into());
    let error = allocation(&unknown).unwrap_err().to_string();
    assert!(error.contains("Novelty"), "{error}");
}

#[test]
fn devices_and_ports_are_those_the_server_assigned() {
    let device = map([
        ("Vendor", "acme".into()),
        ("Type", "fpga".into()),
        ("Name", "a/b 1".into()),
        ("DeviceIDs", Value::Array(vec!["x0".into(), "x1".into()])),
    ]);
    let path = ["AllocatedResources", "Tasks", "t", "Devices"];
    let mut alloc = changed(&path, Value::Array(vec![device]));
    with(&mut alloc, &["AllocatedResources", "Shared", "Ports", "0", "To"], 80.into());
    let alloc = allocation(&alloc).unwrap();
    let of_task = &alloc.devices[&"t".parse::<TaskName>().unwrap()];
    assert_eq!(of_task[0].group.to_string(), "acme/fpga/a/b 1");
    assert_eq!(of_task[0].ids, ["x0", "x1"]);
    assert_eq!(alloc.ports[0].to, 80);
}

#[test]
fn every_type_of_job_is_read_and_an_id_that_is_no_name_here_is_named() {
    for kind in ["service", "batch", "system", "sysbatch"] {
        let mut alloc = changed(&["Job", "Type"], kind.into());
        with(&mut alloc, &["DeploymentID"], "".into());
        with(&mut alloc, &["Job", "TaskGroups", "0", "Update"], Value::Nil);
        allocation(&alloc).unwrap();
    }
    let id = "rec/periodic-1795493560";
    let mut alloc = changed(&["Job", "ID"], id.into());
    with(&mut alloc, &["Job", "ParentID"], "rec".into());
    let job = allocation(&alloc).unwrap().job;
    assert_eq!((job.id.as_str(), job.parent.as_ref().unwrap().as_str()), (id, "rec"));
    with(&mut alloc, &["Job", "ID"], "re c".into());
    let error = allocation(&alloc).unwrap_err().to_string();
    assert!(error.contains("re c"), "{error}");
}

#[test]
fn stops_evictions_and_predecessors_are_read() {
    let before = "00000000-0000-4000-8000-000000000001";
    let mut alloc = changed(&["PreviousAllocation"], before.into());
    for status in ["stop", "evict"] {
        with(&mut alloc, &["DesiredStatus"], status.into());
        let read = allocation(&alloc).unwrap();
        assert_eq!(read.desired, DesiredStatus::Stop);
        assert_eq!(read.previous, Some(before.parse().unwrap()));
    }
}

#[test]
fn what_a_server_says_to_people_hides_nothing_from_them_and_ends() {
    let said = format!("moved\u{1b}[2J{}", "x".repeat(100_000));
    let alloc = changed(&["DesiredDescription"], said.as_str().into());
    let told = allocation(&alloc).unwrap().desired_description;
    assert!(told.starts_with("moved\\u{1b}[2Jx"), "{told}");
    assert!(told.len() < 2 * CLUSTER_TEXT_BYTES_MAX, "{}", told.len());
    let unknown = changed(&["Job", "TaskGroups", "0", "Tasks", "0", &said], true.into());
    let error = allocation(&unknown).unwrap_err().to_string();
    assert!(!error.contains('\u{1b}') && error.len() < 2 * CLUSTER_TEXT_BYTES_MAX, "{error}");
}

#[test]
fn a_field_that_cannot_be_read_is_named() {
    for path in
        [&["ID"][..], &["Name"], &["TaskGroup"], &["Job"], &["DesiredStatus"], &["CreateTime"]]
    {
        let name = path[0];
        let error = allocation(&changed(path, true.into())).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    let error = allocation(&changed(&["TaskGroup"], "other".into())).unwrap_err();
    assert_eq!(error, AssignedError::Group("other".parse().unwrap()));
}

proptest! {
    #[test]
    fn whatever_stands_anywhere_is_read_or_refused(at in any::<prop::sample::Index>(), new in 0_usize..6) {
        let mut paths = Vec::new();
        collect(&recorded(), &mut Vec::new(), &mut paths);
        let path: Vec<_> = at.get(&paths).iter().map(String::as_str).collect();
        let new = [
            Value::Nil, "\u{0}x".into(), u64::MAX.into(), (-1).into(),
            Value::Array(vec![Value::Nil]), Value::Map(vec![(Value::Nil, Value::Nil)]),
        ][new].clone();
        let _read = allocation(&changed(&path, new));
    }
}

fn collect(value: &Value, path: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    all.push(path.clone());
    let inner: Vec<(String, &Value)> = match value {
        Value::Array(list) => {
            list.iter().enumerate().map(|(at, one)| (at.to_string(), one)).collect()
        }
        Value::Map(fields) => {
            fields.iter().filter_map(|(key, one)| Some((text(key)?.to_owned(), one))).collect()
        }
        _ => return,
    };
    for (name, one) in inner {
        path.push(name);
        collect(one, path, all);
        path.pop();
    }
}

#[test]
fn what_a_job_was_dispatched_with_goes_to_the_file_that_a_task_names() {
    let packed = |bytes: &[u8]| snap::raw::Encoder::new().compress_vec(bytes).unwrap();
    let with_payload = |file: &str, packed: Vec<u8>| {
        let wanted = map([("File", file.into())]);
        let mut alloc =
            changed(&["Job", "TaskGroups", "0", "Tasks", "0", "DispatchPayload"], wanted);
        with(&mut alloc, &["Job", "Payload"], Value::Binary(packed));
        with(&mut alloc, &["Job", "ID"], "import/dispatch-1-2".into());
        with(&mut alloc, &["Job", "ParentID"], "import".into());
        with(&mut alloc, &["Job", "Dispatched"], true.into());
        allocation(&alloc)
    };
    let alloc = with_payload("in/data.json", packed(b"{}")).unwrap();
    assert_eq!(alloc.job.id.as_str(), "import/dispatch-1-2");
    let payload = alloc.task_group().unwrap().tasks[0].payload.clone().unwrap();
    assert_eq!((payload.file.as_str(), payload.bytes.as_slice()), ("in/data.json", &b"{}"[..]));
    let wrong = |file: &str, bytes| with_payload(file, bytes).unwrap_err().to_string();
    assert!(wrong("../x", packed(b"{}")).contains("outside"));
    assert!(wrong("/etc/x", packed(b"{}")).contains("outside"));
    assert!(wrong("x", vec![0xff; 9]).contains("not as servers pack it"));
    assert!(wrong("x", packed(&[0; 20_000])).contains("longer"));
}
