//! What this node reports to servers about itself and its allocations, in the types of the API.
//! Pure.
//!
//! ```text
//! NodeView ─► registration: Node.Register        AcknowledgedState ─► alloc_report: Node.UpdateAlloc
//! ```

use std::borrow::Cow;
use std::net::IpAddr;

use ostler_model::attribute::{Attribute, AttributeValue};
use ostler_model::device::{DeviceGroup, HealthState};
use ostler_model::ids::{AllocId, NodeId};
use ostler_model::limits::MIB;
use ostler_model::saved::AcknowledgedState;
use ostler_model::time::Timestamp;
use ostler_model::volume::HostVolume;
use ostler_node::{DriverView, NodeView};
use ostler_wire::{
    Absent, Alloc, AllocHealth, Cpu, Disk, DriverInfo, HostVolumeInfo, LegacyResources,
    NetworkResource, NodeAddress, NodeDevices, NodeNetwork, Text, WireMemory, WireNode,
    WireNodeResources, message, moment,
};

use super::msgpack::Value;

/// The version of Nomad that this node reports. Servers judge by it which calls a node understands
/// on its connection, since 0.8.
const SPOKEN: &str = "1.0.18";
/// The speed that is reported of each network, Mbit/s.
const SPEED: u32 = 1_000;

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

/// The description for a registration. The node is `initializing` until its first heartbeat.
#[must_use]
pub fn registration(node: &NodeView, facts: &NodeRegistrationFacts) -> Value {
    let mut attributes = node.attribute_texts();
    // By this attribute servers know that a driver accepts tasks.
    for (name, view) in &node.drivers {
        if view.health.state == HealthState::Healthy {
            attributes.insert(format!("driver.{name}"), "1".to_owned());
        }
    }
    attributes.insert("nomad.version".to_owned(), SPOKEN.to_owned());
    attributes.insert("ostler.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let resources = resources(node);
    let drivers = node.drivers.iter();
    let drivers = drivers.map(|(name, view)| (name.as_str().into(), driver(view, facts.now)));
    message(&WireNode {
        id: node.id.to_string().into(),
        secret_id: (&facts.secret).into(),
        name: (&node.name).into(),
        datacenter: (&node.datacenter).into(),
        node_class: (&facts.class).into(),
        http_addr: (&facts.http_address).into(),
        tls_enabled: facts.tls,
        attributes,
        meta: Cow::Borrowed(&node.meta),
        resources: LegacyResources {
            cpu: resources.cpu.cpu_shares,
            memory_mib: resources.memory.mib,
            disk_mib: resources.disk.mib,
            ..LegacyResources::default()
        },
        node_resources: resources,
        drivers: drivers.collect(),
        host_volumes: Some(node.host_volumes.iter().map(host_volume).collect()),
        // Servers put a node without a pool into their default pool; servers that know no pools
        // ignore it.
        node_pool: facts.pool.as_ref().map(Text::from),
        status: "initializing".into(),
        scheduling_eligibility: "eligible".into(),
        ..WireNode::default()
    })
}

fn driver(view: &DriverView, now: Timestamp) -> DriverInfo<'_> {
    DriverInfo { update_time: moment(now), ..DriverInfo::new(&view.health, &view.attributes) }
}

fn host_volume<'a>((name, volume): (&'a String, &'a HostVolume)) -> (Text<'a>, HostVolumeInfo<'a>) {
    let name = Text::from(name);
    (name.clone(), HostVolumeInfo { name, ..HostVolumeInfo::from(volume) })
}

fn resources(node: &NodeView) -> WireNodeResources<'_> {
    let attribute = |name: &str| node.attributes.get(name).map(ToString::to_string);
    let free = attribute("unique.storage.bytesfree").and_then(|bytes| bytes.parse::<u64>().ok());
    let device = attribute("unique.network.interface").unwrap_or_default();
    let prefix = if node.host_ip.is_ipv4() { 32 } else { 128 };
    let network = NetworkResource {
        mode: "host".into(),
        device: device.clone().into(),
        cidr: format!("{}/{prefix}", node.host_ip).into(),
        ip: node.host_ip.to_string().into(),
        mbits: SPEED,
        ..NetworkResource::default()
    };
    // Servers place a group only on nodes that list its network mode.
    let own = |(name, value): (&String, &Attribute)| {
        let mode = match name.strip_prefix("network.")? {
            mode @ ("bridge" | "none") => mode.to_owned(),
            other => format!("cni/{}", other.strip_prefix("cni.")?),
        };
        let is_set = value.value == AttributeValue::Bool(true);
        is_set.then(|| NetworkResource { mode: mode.into(), ..NetworkResource::default() })
    };
    let named = node.host_networks.iter().map(|(name, at)| {
        let reserved: Vec<_> = at.reserved.iter().map(|(a, b)| format!("{a}-{b}")).collect();
        node_network((&at.interface).into(), name, at.address, reserved.join(","))
    });
    let default = node_network(device.into(), "default", node.host_ip, String::new());
    WireNodeResources {
        cpu: Cpu { cpu_shares: node.resources.cpu_mhz, ..Cpu::default() },
        memory: WireMemory { mib: node.resources.memory_mb },
        disk: Disk { mib: free.unwrap_or_default() / MIB },
        networks: [network].into_iter().chain(node.attributes.iter().filter_map(own)).collect(),
        node_networks: Some([default].into_iter().chain(named).collect()),
        devices: node.devices.iter().map(devices).collect(),
    }
}

fn node_network<'a>(
    device: Text<'a>,
    alias: &'a str,
    address: IpAddr,
    reserved_ports: String,
) -> NodeNetwork<'a> {
    let address = NodeAddress {
        family: if address.is_ipv4() { "ipv4" } else { "ipv6" }.into(),
        alias: alias.into(),
        address: address.to_string().into(),
        reserved_ports: reserved_ports.into(),
        ..NodeAddress::default()
    };
    NodeNetwork {
        mode: "host".into(),
        device,
        speed: SPEED,
        addresses: vec![address],
        ..NodeNetwork::default()
    }
}

fn devices(group: &DeviceGroup) -> NodeDevices<'_> {
    let attributes = group.attributes.iter();
    let attributes = attributes.map(|named| ((&named.name).into(), (&named.attribute).into()));
    NodeDevices { attributes: Some(attributes.collect()), ..NodeDevices::from(group) }
}

/// The report of the state of an allocation of this node.
#[must_use]
pub fn alloc_report(id: AllocId, of: NodeId, now: &AcknowledgedState) -> Value {
    let tasks = now.tasks.iter().map(|(name, state)| (name.as_str().into(), state.into()));
    message(&Alloc::<Absent> {
        id,
        node_id: of.to_string().into(),
        client_status: now.client_status,
        client_description: (&now.client_description).into(),
        task_states: tasks.collect(),
        deployment_status: now.deployment_status.as_ref().map(AllocHealth::from),
        network_status: now.network_status.as_ref().map(|network| Some(network.into())),
        ..Alloc::default()
    })
}

#[cfg(test)]
#[path = "reports_tests.rs"]
mod tests;
