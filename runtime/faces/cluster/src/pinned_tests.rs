//! Compares the reports about this node, its allocations and its events with the bytes in
//! `fixtures/`, so that no change of a type of the API changes what servers are sent.

use ostler_model::alloc::ClientStatus;
use ostler_model::attribute::{Attribute, AttributeValue, NamedAttribute};
use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health, HealthState, Locality};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, NodeId, PluginName, TaskName};
use ostler_model::rng::Rng;
use ostler_model::saved::{AcknowledgedState, DeploymentStatus, DnsConfig, NetworkStatus};
use ostler_model::task::{ExitResult, TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_model::volume::HostVolume;
use ostler_node::{DriverView, HostNetworkView, NodeView};
use ostler_wire::message;

use crate::msgpack::{self, Value};
use crate::node_events::events_between;
use crate::reports::{NodeRegistrationFacts, alloc_report, registration};

const NODE: &[u8] = include_bytes!("../fixtures/report-node.bin");
const ALLOCS: &[u8] = include_bytes!("../fixtures/report-allocs.bin");
const EVENTS: &[u8] = include_bytes!("../fixtures/report-events.bin");

fn to_bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    msgpack::write(&mut bytes, value);
    bytes
}

/// Compare with the file of this name. With `OSTLER_BLESS` the file is written.
fn compare(name: &str, pinned: &[u8], value: &Value) {
    let bytes = to_bytes(value);
    if std::env::var_os("OSTLER_BLESS").is_some() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        std::fs::write(path, &bytes).unwrap();
        return;
    }
    assert!(bytes == pinned, "{name} differs: {value}");
}

fn health(state: HealthState, reason: &str) -> Health {
    Health { state, reason: reason.to_owned() }
}

fn attribute(value: AttributeValue, unit: Option<&str>) -> Attribute {
    Attribute::new(value, unit).unwrap()
}

fn view() -> NodeView {
    let text = |text: &str| attribute(AttributeValue::Text(text.into()), None);
    let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    (view.resources.cpu_mhz, view.resources.memory_mb) = (4_000, 2_000);
    view.meta.insert("rack".into(), "r1".into());
    let yes = || attribute(AttributeValue::Bool(true), None);
    for (name, value) in [
        ("kernel.name", text("linux")),
        ("network.bridge", yes()),
        ("network.cni.calico", yes()),
        ("network.none", attribute(AttributeValue::Bool(false), None)),
        ("unique.network.interface", text("eth0")),
        ("unique.storage.bytesfree", attribute(AttributeValue::Int(70_000 << 20), None)),
    ] {
        view.attributes.insert(name.into(), value);
    }
    let volume = HostVolume { path: "/srv/data".into(), read_only: true };
    view.host_volumes.insert("data".into(), volume);
    let network = HostNetworkView {
        address: "fd00::7".parse().unwrap(),
        interface: "eth1".into(),
        reserved: vec![(80, 80), (8_000, 8_010)],
    };
    view.host_networks.insert("private".into(), network);
    for (name, health) in [
        ("exec", health(HealthState::Healthy, "")),
        ("java", health(HealthState::Undetected, "there is no java")),
        ("wasm", health(HealthState::Unhealthy, "it trapped")),
    ] {
        let mut driver = DriverView { health, version: "0.1.0".into(), ..DriverView::default() };
        driver.attributes.insert("driver.kind".into(), text(name));
        view.drivers.insert(PluginName::new(name).unwrap(), driver);
    }
    let named = |name: &str, value, unit| NamedAttribute {
        name: name.into(),
        attribute: attribute(value, unit),
    };
    let place = Locality { pci_bus_id: Some("0000:01:00.0".into()), numa_node: Some(1) };
    let instance = |id: &str, health, locality| DeviceInstance { id: id.into(), health, locality };
    view.devices.push(DeviceGroup {
        key: GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "G1".into() },
        plugin: PluginName::new("acme").unwrap(),
        instances: vec![
            instance("g0", health(HealthState::Healthy, ""), Some(place)),
            instance("g1", health(HealthState::Unhealthy, "too hot"), None),
        ],
        attributes: vec![
            named("fast", AttributeValue::Bool(true), None),
            named("load", AttributeValue::Float(0.5), None),
            named("memory", AttributeValue::Int(80), Some("GiB")),
            named("model", AttributeValue::Text("x".repeat(40)), None),
        ],
    });
    view
}

/// The registration, with its fields in the order of their names: nobody depends on their order.
fn sorted_registration(view: &NodeView) -> Value {
    let facts = NodeRegistrationFacts {
        secret: "secret".into(),
        class: "gpu".into(),
        pool: Some("big".into()),
        http_address: "10.0.0.1:4646".into(),
        tls: true,
        now: Timestamp::from_nanos(1_795_493_531_162_338_411),
    };
    let Value::Map(mut fields) = registration(view, &facts) else { panic!("no map") };
    fields.sort_by_key(|(name, _)| name.to_string());
    for (_, value) in &mut fields {
        let Value::Map(attributes) = value else { continue };
        let own = attributes.iter_mut().filter(|(n, _)| n.as_str() == Some("ostler.version"));
        own.for_each(|(_, version)| *version = "0".into());
    }
    Value::Map(fields)
}

#[test]
fn a_registration_has_the_bytes_that_servers_know() {
    compare("report-node.bin", NODE, &sorted_registration(&view()));
}

fn states() -> [AcknowledgedState; 2] {
    let at = Timestamp::from_nanos;
    let mut state = TaskState {
        status: TaskStatus::Dead,
        failed: true,
        restarts: 300,
        last_restart: Some(at(1_795_493_531_162_338_411)),
        started_at: Some(at(1_795_493_530_000_000_001)),
        last_exit: Some(ExitResult { exit_code: 3, signal: 9, ..ExitResult::default() }),
        ..TaskState::default()
    };
    let event =
        TaskEvent::new(EventKind::Killing, at(1_795_493_532_000_000_000), "Sent interrupt.");
    let event = event.detail("kill_timeout", "1.5s").detail("message", "asked").with_task_failure();
    state.push_event(event.detail("exit_code", -1).detail("long", "x".repeat(300)));
    let network = NetworkStatus {
        interface_name: "eth0".into(),
        address: "172.26.64.3".into(),
        address_ipv6: "fd00::3".into(),
        dns: Some(DnsConfig {
            servers: vec!["1.1.1.1".into()],
            searches: Vec::new(),
            options: vec!["ndots:2".into()],
        }),
    };
    let verdict = DeploymentStatus {
        healthy: Some(true),
        changed_at: Some(at(1_795_493_533_000_000_000)),
        canary: true,
        modify_index: 7,
        deployment: Some("d".into()),
    };
    let full = AcknowledgedState {
        client_status: ClientStatus::Failed,
        client_description: "Failed tasks".into(),
        deployment_status: Some(verdict),
        network_status: Some(network),
        tasks: [(TaskName::new("t").unwrap(), state)].into(),
    };
    let bare = AcknowledgedState {
        client_status: ClientStatus::Running,
        network_status: Some(NetworkStatus::default()),
        deployment_status: Some(DeploymentStatus::default()),
        tasks: [(TaskName::new("u").unwrap(), TaskState::default())].into(),
        ..AcknowledgedState::default()
    };
    [full, bare]
}

#[test]
fn the_report_of_an_allocation_has_the_bytes_that_servers_know() {
    let rng = Rng::from_seed(1);
    let (id, node) = (AllocId::new(rng.uuid()), NodeId::new(rng.uuid()));
    let mut all: Vec<_> = states().iter().map(|now| alloc_report(id, node, now)).collect();
    all.push(alloc_report(id, node, &AcknowledgedState::default()));
    compare("report-allocs.bin", ALLOCS, &Value::Array(all));
}

#[test]
fn an_event_of_the_node_has_the_bytes_that_servers_know() {
    let before = view();
    let mut now = view();
    now.drivers.values_mut().for_each(|driver| driver.health = health(HealthState::Healthy, ""));
    now.devices[0].instances.pop();
    let events = events_between(&before, &now, Timestamp::from_nanos(1_795_493_531_162_338_411));
    let all: Vec<_> = events.iter().map(message).collect();
    assert_eq!(all.len(), 3);
    compare("report-events.bin", EVENTS, &Value::Array(all));
}
