//! The node.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::moment;
use ostler_model::attribute::Attribute;
use ostler_model::device::{DeviceGroup, HealthState};
use ostler_model::scheduling::{DrainDeadline, NodeDrain, NodeScheduling};
use ostler_node::{DriverView, NodeView};
use ostler_wire::{
    Cpu, Disk, DrainStrategy, DriverInfo, HostVolume, Memory, NEVER, NetworkResource, Node,
    NodeAddress, NodeDevice, NodeDeviceLocality, NodeDevices, NodeEvent, NodeNetwork,
    NodeResources, NodeStub, ReservedResources, Resources, Text,
};

/// Where the node is in its life, as Nomad says it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeStatus<'a> {
    /// `initializing`, `ready` or `down`.
    pub status: &'static str,
    /// A sentence on it.
    pub description: &'a str,
    /// Index of the last change.
    pub index: u64,
    /// Of the first one.
    pub created: u64,
    /// Whether it takes what is new, and how it is emptied.
    pub scheduling: &'a NodeScheduling,
}

impl NodeStatus<'_> {
    const fn eligibility(self) -> &'static str {
        if self.scheduling.ineligible { "ineligible" } else { "eligible" }
    }
}

fn drain(drain: &NodeDrain) -> DrainStrategy<'static> {
    let (deadline, force) = match drain.deadline {
        DrainDeadline::AtOnce => (-1, None),
        DrainDeadline::Never => (0, None),
        DrainDeadline::After { length, at } => {
            (i64::try_from(length.as_nanos()).unwrap_or(i64::MAX), Some(at))
        }
    };
    DrainStrategy {
        deadline,
        ignore_system_jobs: drain.ignore_system,
        force_deadline: force.map_or(NEVER.into(), moment),
        started_at: moment(drain.started_at),
    }
}

fn event(event: &ostler_model::scheduling::NodeEvent) -> NodeEvent<'static> {
    NodeEvent {
        message: event.kind.message().into(),
        subsystem: event.kind.subsystem().into(),
        timestamp: moment(event.at),
        create_index: event.index,
        ..NodeEvent::default()
    }
}

/// `NodeListStub`; `resources`: with what it has.
pub(crate) fn stub<'a>(
    node: &'a NodeView,
    status: NodeStatus<'a>,
    resources: bool,
) -> NodeStub<'a> {
    NodeStub {
        address: node.host_ip.to_string().into(),
        id: node.id.to_string().into(),
        datacenter: (&node.datacenter).into(),
        name: (&node.name).into(),
        version: env!("CARGO_PKG_VERSION").into(),
        drain: status.scheduling.drain.is_some(),
        scheduling_eligibility: status.eligibility().into(),
        status: status.status.into(),
        status_description: status.description.into(),
        drivers: drivers(node),
        host_volumes: host_volumes(node),
        node_resources: resources.then(|| given(node)),
        reserved_resources: resources.then(ReservedResources::default),
        create_index: status.created,
        modify_index: status.index,
        ..NodeStub::default()
    }
}

/// `Node`.
pub(crate) fn full<'a>(node: &'a NodeView, status: NodeStatus<'a>) -> Node<'a> {
    let mut attributes = node.attribute_texts();
    // Nomad's command line reads the version of the node here.
    attributes.insert("nomad.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let node_resources = given(node);
    Node {
        id: node.id.to_string().into(),
        datacenter: (&node.datacenter).into(),
        name: (&node.name).into(),
        attributes,
        resources: Resources {
            cpu: node_resources.cpu.cpu_shares,
            memory_mib: node_resources.memory.mib,
            disk_mib: node_resources.disk.mib,
            networks: Some(node_resources.networks.clone()),
            ..Resources::default()
        },
        reserved: Resources { networks: Some(Vec::new()), ..Resources::default() },
        node_resources,
        meta: Cow::Borrowed(&node.meta),
        drain: status.scheduling.drain.is_some(),
        scheduling_eligibility: status.eligibility().into(),
        status: status.status.into(),
        status_description: status.description.into(),
        drain_strategy: status.scheduling.drain.as_ref().map(drain),
        events: status.scheduling.events.iter().map(event).collect(),
        drivers: drivers(node),
        host_volumes: host_volumes(node),
        create_index: status.created,
        modify_index: status.index,
        ..Node::default()
    }
}

fn drivers(node: &NodeView) -> BTreeMap<Text<'_>, DriverInfo<'_>> {
    node.drivers.iter().map(|(name, view)| (name.as_str().into(), driver(view))).collect()
}

fn host_volumes(node: &NodeView) -> Option<BTreeMap<Text<'_>, HostVolume<'_>>> {
    let volumes = node.host_volumes.iter().map(|(name, volume)| {
        let path = volume.path.to_string_lossy();
        (name.as_str().into(), HostVolume { path, read_only: volume.read_only })
    });
    (!node.host_volumes.is_empty()).then(|| volumes.collect())
}

fn driver(view: &DriverView) -> DriverInfo<'_> {
    let DriverView { health, version, attributes, capabilities: _, gives_cores: _ } = view;
    let text = |(name, value): (_, &Attribute)| (Text::from(name), value.to_string().into());
    let mut attributes: BTreeMap<Text<'_>, Text<'_>> = attributes.iter().map(text).collect();
    attributes.entry("version".into()).or_insert_with(|| version.into());
    DriverInfo {
        attributes,
        detected: health.state != HealthState::Undetected,
        healthy: health.state == HealthState::Healthy,
        health_description: match (health.state, health.reason.as_str()) {
            (HealthState::Healthy, "") => "Healthy".into(),
            (_, reason) => reason.into(),
        },
        update_time: NEVER.into(),
    }
}

fn devices(group: &DeviceGroup) -> NodeDevices<'_> {
    let instances = group.instances.iter().map(|instance| {
        let locality = instance.locality.as_ref().and_then(|place| place.pci_bus_id.as_ref());
        NodeDevice {
            id: (&instance.id).into(),
            healthy: instance.health.state == HealthState::Healthy,
            health_description: (&instance.health.reason).into(),
            locality: locality.map(|at| NodeDeviceLocality { pci_bus_id: at.into() }),
        }
    });
    NodeDevices {
        vendor: (&group.key.vendor).into(),
        kind: (&group.key.kind).into(),
        name: (&group.key.name).into(),
        instances: instances.collect(),
        ..NodeDevices::default()
    }
}

fn node_network<'a>(node: &NodeView, network: &NetworkResource<'a>) -> NodeNetwork<'a> {
    NodeNetwork {
        mode: "host".into(),
        device: network.device.clone(),
        speed: network.mbits,
        addresses: vec![NodeAddress {
            family: if node.host_ip.is_ipv4() { "ipv4" } else { "ipv6" }.into(),
            alias: "default".into(),
            address: network.ip.clone(),
            ..NodeAddress::default()
        }],
        ..NodeNetwork::default()
    }
}

fn given(node: &NodeView) -> NodeResources<'_> {
    let prefix = if node.host_ip.is_ipv4() { 32 } else { 128 };
    let network = NetworkResource {
        mode: "host".into(),
        device: text(node, "unique.network.interface").into(),
        cidr: format!("{}/{prefix}", node.host_ip).into(),
        ip: node.host_ip.to_string().into(),
        mbits: text(node, "unique.network.mbits").parse().unwrap_or(0),
        ..NetworkResource::default()
    };
    let cores = &node.cores.ids;
    // Free space of the data directory; 0 where the fingerprint does not say.
    let free = text(node, "unique.storage.bytesfree").parse::<u64>().unwrap_or(0);
    NodeResources {
        cpu: Cpu {
            cpu_shares: node.resources.cpu_mhz,
            total_cpu_cores: text(node, "cpu.numcores").parse().ok().filter(|_| !cores.is_empty()),
            reservable_cpu_cores: cores.iter().collect(),
            ..Cpu::default()
        },
        memory: Memory { mib: node.resources.memory_mb },
        disk: Disk { mib: free / ostler_model::limits::MIB },
        node_networks: Some(vec![node_network(node, &network)]),
        networks: vec![network],
        devices: node.devices.iter().map(devices).collect(),
    }
}

/// An attribute as text; empty when there is none.
fn text(node: &NodeView, name: &str) -> String {
    node.attributes.get(name).map(ToString::to_string).unwrap_or_default()
}
