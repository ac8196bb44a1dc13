//! The node.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::moment;
use ostler_model::scheduling::{DrainDeadline, NodeDrain, NodeScheduling};
use ostler_node::{DriverView, NodeView};
use ostler_wire::{
    Cpu, Disk, DrainStrategy, DriverInfo, HostVolumeInfo, LegacyResources, NEVER, NetworkResource,
    NodeAddress, NodeDevices, NodeNetwork, NodeStub, ReservedResources, Text, WireMemory, WireNode,
    WireNodeEvent, WireNodeResources,
};

/// The status of the node in Nomad's terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeStatusFields<'a> {
    /// The status: `initializing`, `ready` or `down`.
    pub status: &'static str,
    /// One sentence about the status.
    pub description: &'a str,
    /// The index of the last change of the node.
    pub index: u64,
    /// The index at which the node was registered.
    pub created: u64,
    /// Whether the node takes new allocations, and how it is drained.
    pub scheduling: &'a NodeScheduling,
}

impl NodeStatusFields<'_> {
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

fn event(event: &ostler_model::scheduling::NodeEvent) -> WireNodeEvent<'static> {
    WireNodeEvent {
        message: event.kind.message().into(),
        subsystem: event.kind.subsystem().into(),
        timestamp: moment(event.at),
        create_index: event.index,
        ..WireNodeEvent::default()
    }
}

/// Nomad's `NodeListStub`, with the resources of the node if `resources` is set.
pub(crate) fn stub<'a>(
    node: &'a NodeView,
    status: NodeStatusFields<'a>,
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
        node_resources: resources.then(|| node_resources(node)),
        reserved_resources: resources.then(ReservedResources::default),
        create_index: status.created,
        modify_index: status.index,
        ..NodeStub::default()
    }
}

/// Nomad's `Node`.
pub(crate) fn full<'a>(node: &'a NodeView, status: NodeStatusFields<'a>) -> WireNode<'a> {
    let mut attributes = node.attribute_texts();
    // Nomad's command line reads the version of the node here.
    attributes.insert("nomad.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let node_resources = node_resources(node);
    WireNode {
        id: node.id.to_string().into(),
        datacenter: (&node.datacenter).into(),
        name: (&node.name).into(),
        attributes,
        resources: LegacyResources {
            cpu: node_resources.cpu.cpu_shares,
            memory_mib: node_resources.memory.mib,
            disk_mib: node_resources.disk.mib,
            networks: Some(node_resources.networks.clone()),
            ..LegacyResources::default()
        },
        reserved: LegacyResources { networks: Some(Vec::new()), ..LegacyResources::default() },
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
        ..WireNode::default()
    }
}

fn drivers(node: &NodeView) -> BTreeMap<Text<'_>, DriverInfo<'_>> {
    node.drivers.iter().map(|(name, view)| (name.as_str().into(), driver(view))).collect()
}

fn host_volumes(node: &NodeView) -> Option<BTreeMap<Text<'_>, HostVolumeInfo<'_>>> {
    let volumes = node.host_volumes.iter().map(|(name, volume)| (name.into(), volume.into()));
    (!node.host_volumes.is_empty()).then(|| volumes.collect())
}

fn driver(view: &DriverView) -> DriverInfo<'_> {
    let mut driver = DriverInfo::new(&view.health, &view.attributes);
    driver.attributes.entry("version".into()).or_insert_with(|| (&view.version).into());
    driver
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

fn node_resources(node: &NodeView) -> WireNodeResources<'_> {
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
    // The free space of the data directory; 0 if the fingerprint has none.
    let free = text(node, "unique.storage.bytesfree").parse::<u64>().unwrap_or(0);
    WireNodeResources {
        cpu: Cpu {
            cpu_shares: node.resources.cpu_mhz,
            total_cpu_cores: text(node, "cpu.numcores").parse().ok().filter(|_| !cores.is_empty()),
            reservable_cpu_cores: cores.iter().collect(),
            ..Cpu::default()
        },
        memory: WireMemory { mib: node.resources.memory_mb },
        disk: Disk { mib: free / ostler_model::limits::MIB },
        node_networks: Some(vec![node_network(node, &network)]),
        networks: vec![network],
        devices: node.devices.iter().map(NodeDevices::from).collect(),
    }
}

/// An attribute as text; empty if there is none.
fn text(node: &NodeView, name: &str) -> String {
    node.attributes.get(name).map(ToString::to_string).unwrap_or_default()
}
