use ostler_model::alloc::ClientStatus;
use ostler_model::attribute::NamedAttribute;
use ostler_model::device::{DeviceInstance, GroupKey, Health};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{PluginName, TaskName};
use ostler_model::rng::Rng;
use ostler_model::task::{TaskState, TaskStatus};

use ostler_wire::go_time;

use super::*;
use crate::rpc::{bytes, field, text};

fn facts() -> NodeRegistrationFacts {
    NodeRegistrationFacts {
        secret: "secret".into(),
        class: "gpu".into(),
        pool: Some("big".into()),
        http_address: String::new(),
        tls: false,
        now: Timestamp::from_nanos(1),
    }
}

fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('/').fold(value, |value, name| match name.parse::<usize>() {
        Ok(index) => &value.as_array().unwrap()[index],
        Err(_) => field(value, name).unwrap_or_else(|| panic!("no {name}")),
    })
}

fn health(state: HealthState) -> Health {
    Health { state, reason: String::new() }
}

#[test]
fn a_node_tells_its_drivers_devices_and_units() {
    let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    (view.resources.cpu_mhz, view.resources.memory_mb) = (4_000, 2_000);
    for (name, state) in [("exec", HealthState::Healthy), ("wasm", HealthState::Unhealthy)] {
        let driver = DriverView { health: health(state), ..DriverView::default() };
        view.drivers.insert(PluginName::new(name).unwrap(), driver);
    }
    let memory = Attribute::new(AttributeValue::Int(80), Some("GiB")).unwrap();
    view.devices.push(DeviceGroup {
        key: GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "G1".into() },
        plugin: PluginName::new("acme").unwrap(),
        instances: vec![DeviceInstance {
            id: "g0".into(),
            health: health(HealthState::Healthy),
            locality: None,
        }],
        attributes: vec![NamedAttribute { name: "memory".into(), attribute: memory }],
    });
    let told = registration(&view, &facts());
    assert_eq!(text(at(&told, "Attributes/driver.exec")), Some("1"));
    let unhealthy = field(at(&told, "Attributes"), "driver.wasm").and_then(text);
    assert_ne!(unhealthy, Some("1"), "it takes no tasks");
    assert_eq!(at(&told, "Drivers/wasm/Healthy"), &Value::from(false));
    assert_eq!(at(&told, "NodeResources/Cpu/CpuShares"), &Value::from(4_000));
    assert_eq!(text(at(&told, "NodeClass")), Some("gpu"));
    let group = at(&told, "NodeResources/Devices/0");
    assert_eq!(text(at(group, "Instances/0/ID")), Some("g0"));
    assert_eq!(at(group, "Attributes/memory/Int"), &Value::from(80));
    assert_eq!(text(at(group, "Attributes/memory/Unit")), Some("GiB"));
}

#[test]
fn an_allocation_tells_its_tasks_events_and_times() {
    let mut state = TaskState { status: TaskStatus::Dead, failed: true, ..TaskState::default() };
    state.finished_at = Some(Timestamp::from_nanos(7));
    let event = TaskEvent::new(EventKind::Received, Timestamp::from_nanos(5), "it came");
    state.push_event(event);
    let now = AcknowledgedState {
        client_status: ClientStatus::Failed,
        client_description: "no".into(),
        tasks: [(TaskName::new("t").unwrap(), state)].into(),
        ..AcknowledgedState::default()
    };
    let rng = Rng::from_seed(1);
    let told = alloc_report(AllocId::new(rng.uuid()), NodeId::new(rng.uuid()), &now);
    assert_eq!(text(at(&told, "ClientStatus")), Some("failed"));
    assert_eq!(field(&told, "DeploymentStatus"), None, "there is no verdict");
    let task = at(&told, "TaskStates/t");
    assert_eq!(text(at(task, "Events/0/Type")), Some("Received"));
    assert_eq!(at(task, "Events/0/Time"), &Value::from(5));
    let read = |name| go_time::from_bytes(bytes(at(task, name)).unwrap());
    assert_eq!((read("FinishedAt"), read("StartedAt")), (Some(Timestamp::from_nanos(7)), None));
}
