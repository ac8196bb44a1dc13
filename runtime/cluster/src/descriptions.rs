//! Describes this node and its allocations for the servers. Pure.
//!
//! ```text
//! NodeView ─► node: Node.Register        AcknowledgedState ─► alloc: Node.UpdateAlloc
//! ```

use ostler_model::alloc::ClientStatus;
use ostler_model::attribute::{Attribute, AttributeValue};
use ostler_model::device::{DeviceGroup, HealthState};
use ostler_model::event::TaskEvent;
use ostler_model::ids::{AllocId, NodeId};
use ostler_model::limits::MIB;
use ostler_model::saved::{AcknowledgedState, NetworkStatus};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_model::volume::HostVolume;
use ostler_node::{DriverView, NodeView};

use super::go_time;
use super::msgpack::Value;
use super::rpc::map;

/// The version of Nomad that this node reports. Servers judge by it which calls a node understands
/// on its connection, since 0.8.
const SPOKEN: &str = "1.0.18";

/// Facts for a registration that are not in the view of the node.
#[derive(Clone, Debug)]
pub struct NodeRegistrationFacts {
    /// The secret that only the servers know, by which the node proves that it is the same one.
    pub secret: String,
    /// The class of the node, for constraints; may be empty.
    pub class: String,
    /// The pool of the node, for servers that know pools; none for their default pool.
    pub pool: Option<String>,
    /// The address of its HTTP API; may be empty.
    pub http_address: String,
    /// Whether that API has TLS.
    pub tls: bool,
    /// The time from which the description holds.
    pub now: Timestamp,
}

/// The description for a registration. The node is `initializing`, and becomes ready with its first
/// heartbeat.
#[must_use]
pub fn node(node: &NodeView, facts: &NodeRegistrationFacts) -> Value {
    let mut attributes = node.attribute_texts();
    // By this attribute servers know that a driver accepts tasks.
    for (name, view) in &node.drivers {
        if view.health.state == HealthState::Healthy {
            attributes.insert(format!("driver.{name}"), "1".to_owned());
        }
    }
    attributes.insert("nomad.version".to_owned(), SPOKEN.to_owned());
    attributes.insert("ostler.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let attribute = |name: &str| node.attributes.get(name).map(ToString::to_string);
    let free = attribute("unique.storage.bytesfree").and_then(|bytes| bytes.parse::<u64>().ok());
    let (cpu, memory, disk) =
        (node.resources.cpu_mhz, node.resources.memory_mb, free.unwrap_or_default() / MIB);
    let drivers = node.drivers.iter().map(|(name, view)| (name.as_str(), driver(view, facts.now)));
    // Servers put a node without a pool into their default pool; servers that know no pools ignore
    // it.
    let pool = facts.pool.as_deref().map(|pool| ("NodePool", pool.into()));
    let fields = [
        ("ID", node.id.to_string().into()),
        ("SecretID", facts.secret.as_str().into()),
        ("Name", node.name.as_str().into()),
        ("Datacenter", node.datacenter.as_str().into()),
        ("NodeClass", facts.class.as_str().into()),
        ("HTTPAddr", facts.http_address.as_str().into()),
        ("TLSEnabled", facts.tls.into()),
        ("Attributes", texts(attributes.iter())),
        ("Meta", texts(node.meta.iter())),
        ("NodeResources", resources(node, cpu, memory, disk)),
        ("ReservedResources", empty_reservation()),
        (
            "Resources",
            map([("CPU", cpu.into()), ("MemoryMB", memory.into()), ("DiskMB", disk.into())]),
        ),
        ("Reserved", map([("CPU", 0.into()), ("MemoryMB", 0.into()), ("DiskMB", 0.into())])),
        ("Drivers", map(drivers)),
        ("HostVolumes", map(node.host_volumes.iter().map(host_volume))),
        ("Status", "initializing".into()),
        ("SchedulingEligibility", "eligible".into()),
    ];
    map(fields.into_iter().chain(pool))
}

fn texts<'a>(all: impl Iterator<Item = (&'a String, &'a String)>) -> Value {
    map(all.map(|(name, value)| (name.as_str(), value.as_str().into())))
}

fn host_volume<'a>((name, volume): (&'a String, &'a HostVolume)) -> (&'a str, Value) {
    let path = volume.path.to_string_lossy().into_owned();
    let fields = [
        ("Name", name.as_str().into()),
        ("Path", path.as_str().into()),
        ("ReadOnly", volume.read_only.into()),
    ];
    (name, map(fields))
}

fn empty_reservation() -> Value {
    map([
        ("Cpu", map([("CpuShares", 0.into())])),
        ("Memory", map([("MemoryMB", 0.into())])),
        ("Disk", map([("DiskMB", 0.into())])),
        ("Networks", map([("ReservedHostPorts", "".into())])),
    ])
}

fn resources(node: &NodeView, cpu: u64, memory: u64, disk: u64) -> Value {
    let (prefix, family) = if node.host_ip.is_ipv4() { (32, "ipv4") } else { (128, "ipv6") };
    let attribute = |name: &str| node.attributes.get(name).map(ToString::to_string);
    let device = attribute("unique.network.interface").unwrap_or_default();
    let ip = node.host_ip.to_string();
    let network = map([
        ("Mode", "host".into()),
        ("Device", device.as_str().into()),
        ("CIDR", format!("{ip}/{prefix}").into()),
        ("IP", ip.as_str().into()),
        ("MBits", 1_000.into()),
    ]);
    // Servers place a group only on nodes that list its network mode.
    let own = |(name, value): (&String, &Attribute)| {
        let mode = match name.strip_prefix("network.")? {
            mode @ ("bridge" | "none") => mode.to_owned(),
            other => format!("cni/{}", other.strip_prefix("cni.")?),
        };
        (value.value == AttributeValue::Bool(true)).then(|| map([("Mode", mode.as_str().into())]))
    };
    let networks = [network].into_iter().chain(node.attributes.iter().filter_map(own)).collect();
    let named = node.host_networks.iter().map(|(name, at)| {
        let family = if at.address.is_ipv4() { "ipv4" } else { "ipv6" };
        let reserved: Vec<_> = at.reserved.iter().map(|(a, b)| format!("{a}-{b}")).collect();
        let address = map([
            ("Family", family.into()),
            ("Alias", name.as_str().into()),
            ("Address", at.address.to_string().as_str().into()),
            ("ReservedPorts", reserved.join(",").as_str().into()),
        ]);
        map([
            ("Mode", "host".into()),
            ("Device", at.interface.as_str().into()),
            ("Speed", 1_000.into()),
            ("Addresses", Value::Array(vec![address])),
        ])
    });
    let address = map([
        ("Family", family.into()),
        ("Alias", "default".into()),
        ("Address", ip.as_str().into()),
    ]);
    let of_device = map([
        ("Mode", "host".into()),
        ("Device", device.as_str().into()),
        ("Speed", 1_000.into()),
        ("Addresses", Value::Array(vec![address])),
    ]);
    map([
        ("Cpu", map([("CpuShares", cpu.into())])),
        ("Memory", map([("MemoryMB", memory.into())])),
        ("Disk", map([("DiskMB", disk.into())])),
        ("Networks", Value::Array(networks)),
        ("NodeNetworks", Value::Array([of_device].into_iter().chain(named).collect())),
        ("Devices", Value::Array(node.devices.iter().map(devices).collect())),
    ])
}

fn driver(view: &DriverView, now: Timestamp) -> Value {
    let reason = match (view.health.state, view.health.reason.as_str()) {
        (HealthState::Healthy, "") => "Healthy",
        (_, reason) => reason,
    };
    let attributes = view.attributes.iter();
    map([
        (
            "Attributes",
            map(attributes.map(|(name, value)| (name.as_str(), value.to_string().into()))),
        ),
        ("Detected", (view.health.state != HealthState::Undetected).into()),
        ("Healthy", (view.health.state == HealthState::Healthy).into()),
        ("HealthDescription", reason.into()),
        ("UpdateTime", time(Some(now))),
    ])
}

fn devices(group: &DeviceGroup) -> Value {
    let instances = group.instances.iter().map(|instance| {
        let bus = instance.locality.as_ref().and_then(|place| place.pci_bus_id.as_deref());
        map([
            ("ID", instance.id.as_str().into()),
            ("Healthy", (instance.health.state == HealthState::Healthy).into()),
            ("HealthDescription", instance.health.reason.as_str().into()),
            ("Locality", bus.map_or(Value::Nil, |bus| map([("PciBusID", bus.into())]))),
        ])
    });
    let attributes = group.attributes.iter();
    map([
        ("Vendor", group.key.vendor.as_str().into()),
        ("Type", group.key.kind.as_str().into()),
        ("Name", group.key.name.as_str().into()),
        ("Instances", Value::Array(instances.collect())),
        (
            "Attributes",
            map(attributes.map(|named| (named.name.as_str(), attribute_value(&named.attribute)))),
        ),
    ])
}

fn attribute_value(attribute: &Attribute) -> Value {
    let value = match &attribute.value {
        AttributeValue::Int(value) => ("Int", (*value).into()),
        AttributeValue::Float(value) => ("Float", (*value).into()),
        AttributeValue::Bool(value) => ("Bool", (*value).into()),
        AttributeValue::Text(value) => ("String", value.as_str().into()),
    };
    map([value, ("Unit", attribute.unit.as_deref().unwrap_or_default().into())])
}

/// The description of the state of an allocation of this node.
#[must_use]
pub fn alloc(id: AllocId, of: NodeId, now: &AcknowledgedState) -> Value {
    let status = match now.client_status {
        ClientStatus::Pending => "pending",
        ClientStatus::Running => "running",
        ClientStatus::Complete => "complete",
        ClientStatus::Failed => "failed",
    };
    let tasks = now.tasks.iter().map(|(name, state)| (name.as_str(), task(state)));
    let deployment = now.deployment_status.as_ref().map(|verdict| {
        map([
            ("Healthy", verdict.healthy.map_or(Value::Nil, Value::from)),
            ("Timestamp", time(verdict.changed_at)),
            ("Canary", verdict.canary.into()),
            ("ModifyIndex", verdict.modify_index.into()),
        ])
    });
    let fields = [
        ("ID", id.to_string().into()),
        ("NodeID", of.to_string().into()),
        ("ClientStatus", status.into()),
        ("ClientDescription", now.client_description.as_str().into()),
        ("TaskStates", map(tasks)),
    ];
    let network =
        now.network_status.as_ref().map(|network| ("NetworkStatus", network_status(network)));
    let deployment = deployment.map(|verdict| ("DeploymentStatus", verdict));
    map(fields.into_iter().chain(deployment).chain(network))
}

fn network_status(network: &NetworkStatus) -> Value {
    let texts = |texts: &[String]| Value::Array(texts.iter().map(|t| t.as_str().into()).collect());
    let dns = network.dns.as_ref().map_or(Value::Nil, |dns| {
        map([
            ("Servers", texts(&dns.servers)),
            ("Searches", texts(&dns.searches)),
            ("Options", texts(&dns.options)),
        ])
    });
    map([
        ("InterfaceName", network.interface_name.as_str().into()),
        ("Address", network.address.as_str().into()),
        ("DNS", dns),
    ])
}

fn task(state: &TaskState) -> Value {
    let status = match state.status {
        TaskStatus::Pending => "pending",
        TaskStatus::Running => "running",
        TaskStatus::Dead => "dead",
    };
    map([
        ("State", status.into()),
        ("Failed", state.failed.into()),
        ("Restarts", state.restarts.into()),
        ("LastRestart", time(state.last_restart)),
        ("StartedAt", time(state.started_at)),
        ("FinishedAt", time(state.finished_at)),
        ("Events", Value::Array(state.events.iter().map(event).collect())),
    ])
}

fn event(event: &TaskEvent) -> Value {
    map([
        ("Type", event.kind.as_str().into()),
        ("Time", event.time.nanos().into()),
        ("DisplayMessage", event.message.as_str().into()),
        ("Details", texts(event.details.iter())),
        ("FailsTask", event.fails_task.into()),
    ])
}

fn time(at: Option<Timestamp>) -> Value {
    Value::Binary(go_time::to_bytes(at).to_vec())
}

#[cfg(test)]
#[path = "described_tests.rs"]
mod tests;
