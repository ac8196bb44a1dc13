//! The node.

use std::collections::BTreeMap;

use serde::Serialize;

use super::given::{Cpu, Memory};
use super::{Absent, Moment};
use ostler_model::attribute::Attribute;
use ostler_model::device::{DeviceGroup, HealthState};
use ostler_node::{DriverView, NodeView};

/// `NodeListStub`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct NodeStub<'a> {
    address: String,
    #[serde(rename = "ID")]
    id: String,
    datacenter: &'a str,
    name: &'a str,
    node_class: &'static str,
    version: &'static str,
    drain: bool,
    scheduling_eligibility: &'static str,
    status: &'static str,
    status_description: &'a str,
    drivers: BTreeMap<&'a str, DriverJson>,
    host_volumes: Absent,
    node_resources: Option<NodeResources<'a>>,
    reserved_resources: Option<ReservedResources>,
    create_index: u64,
    modify_index: u64,
}

/// `DriverInfo`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct DriverJson {
    attributes: BTreeMap<String, String>,
    detected: bool,
    healthy: bool,
    health_description: String,
    update_time: &'static str,
}

impl From<&DriverView> for DriverJson {
    fn from(driver: &DriverView) -> Self {
        let DriverView { health, version, attributes, capabilities: _ } = driver;
        let mut attributes = texts(attributes);
        attributes.entry("version".to_owned()).or_insert_with(|| version.clone());
        Self {
            attributes,
            detected: health.state != HealthState::Undetected,
            healthy: health.state == HealthState::Healthy,
            health_description: match (health.state, health.reason.as_str()) {
                (HealthState::Healthy, "") => "Healthy".to_owned(),
                (_, reason) => reason.to_owned(),
            },
            update_time: Moment::NEVER,
        }
    }
}

fn texts(attributes: &BTreeMap<String, Attribute>) -> BTreeMap<String, String> {
    attributes.iter().map(|(name, value)| (name.clone(), value.to_string())).collect()
}

/// `NodeResources`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct NodeResources<'a> {
    cpu: Cpu,
    memory: Memory,
    disk: Disk,
    networks: Vec<NodeNetwork>,
    node_networks: Absent,
    devices: Vec<DevicesJson<'a>>,
}

#[derive(Debug, Serialize)]
struct Disk {
    #[serde(rename = "DiskMB")]
    disk_mb: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct NodeNetwork {
    mode: &'static str,
    device: String,
    #[serde(rename = "CIDR")]
    cidr: String,
    #[serde(rename = "IP")]
    ip: String,
    #[serde(rename = "MBits")]
    mbits: u32,
    #[serde(rename = "DNS")]
    dns: Absent,
    reserved_ports: Absent,
    dynamic_ports: Absent,
}

/// `NodeDeviceResource`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct DevicesJson<'a> {
    vendor: &'a str,
    #[serde(rename = "Type")]
    kind: &'a str,
    name: &'a str,
    instances: Vec<InstanceJson<'a>>,
    attributes: Absent,
}

/// `NodeDevice`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct InstanceJson<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    healthy: bool,
    health_description: &'a str,
    locality: Option<LocalityJson<'a>>,
}

#[derive(Debug, Serialize)]
struct LocalityJson<'a> {
    #[serde(rename = "PciBusID")]
    pci_bus_id: &'a str,
}

impl<'a> From<&'a DeviceGroup> for DevicesJson<'a> {
    fn from(group: &'a DeviceGroup) -> Self {
        let DeviceGroup { key, plugin: _, instances, attributes: _ } = group;
        let instances = instances.iter().map(|instance| InstanceJson {
            id: &instance.id,
            healthy: instance.health.state == HealthState::Healthy,
            health_description: &instance.health.reason,
            locality: instance
                .locality
                .as_ref()
                .and_then(|locality| locality.pci_bus_id.as_deref())
                .map(|pci_bus_id| LocalityJson { pci_bus_id }),
        });
        Self {
            vendor: &key.vendor,
            kind: &key.kind,
            name: &key.name,
            instances: instances.collect(),
            attributes: Absent,
        }
    }
}

/// `NodeReservedResources`: nothing is held back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReservedResources {
    cpu: Cpu,
    memory: Memory,
    disk: Disk,
    networks: ReservedPorts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReservedPorts {
    reserved_host_ports: &'static str,
}

const NOTHING_RESERVED: ReservedResources = ReservedResources {
    cpu: Cpu { cpu_shares: 0 },
    memory: Memory { memory_mb: 0 },
    disk: Disk { disk_mb: 0 },
    networks: ReservedPorts { reserved_host_ports: "" },
};

/// Where the node is in its life, as Nomad says it.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct NodeStatus<'a> {
    /// `initializing`, `ready` or `down`.
    pub status: &'static str,
    /// A sentence on it.
    pub description: &'a str,
    /// Index of the last change.
    pub index: u64,
    /// Of the first one.
    pub created: u64,
}

impl<'a> NodeStub<'a> {
    pub fn new(node: &'a NodeView, status: NodeStatus<'a>, resources: bool) -> Self {
        Self {
            address: node.host_ip.to_string(),
            id: node.id.to_string(),
            datacenter: &node.datacenter,
            name: &node.name,
            node_class: "",
            version: env!("CARGO_PKG_VERSION"),
            drain: false,
            scheduling_eligibility: "eligible",
            status: status.status,
            status_description: status.description,
            drivers: drivers(node),
            host_volumes: Absent,
            node_resources: resources.then(|| given(node)),
            reserved_resources: resources.then_some(NOTHING_RESERVED),
            create_index: status.created,
            modify_index: status.index,
        }
    }
}

fn drivers(node: &NodeView) -> BTreeMap<&str, DriverJson> {
    node.drivers.iter().map(|(name, driver)| (name.as_str(), driver.into())).collect()
}

fn given(node: &NodeView) -> NodeResources<'_> {
    let prefix = if node.host_ip.is_ipv4() { 32 } else { 128 };
    NodeResources {
        cpu: Cpu { cpu_shares: node.resources.cpu_mhz },
        memory: Memory { memory_mb: node.resources.memory_mb },
        disk: Disk { disk_mb: disk_mb(node) },
        networks: vec![NodeNetwork {
            mode: "host",
            device: text(node, "unique.network.interface"),
            cidr: format!("{}/{prefix}", node.host_ip),
            ip: node.host_ip.to_string(),
            mbits: text(node, "unique.network.mbits").parse().unwrap_or(0),
            dns: Absent,
            reserved_ports: Absent,
            dynamic_ports: Absent,
        }],
        node_networks: Absent,
        devices: node.devices.iter().map(DevicesJson::from).collect(),
    }
}

/// An attribute as text; empty when there is none.
fn text(node: &NodeView, name: &str) -> String {
    node.attributes.get(name).map(ToString::to_string).unwrap_or_default()
}

/// Free space of the data directory, MiB; 0 where the fingerprint does not say.
fn disk_mb(node: &NodeView) -> u64 {
    let free = node.attributes.get("unique.storage.bytesfree").map(ToString::to_string);
    free.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) / ostler_model::limits::MIB
}

/// `Resources`: the oldest form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct OldResources {
    #[serde(rename = "CPU")]
    cpu: u64,
    #[serde(rename = "MemoryMB")]
    memory_mb: u64,
    #[serde(rename = "DiskMB")]
    disk_mb: u64,
    #[serde(rename = "IOPS")]
    iops: u64,
    networks: Vec<NodeNetwork>,
    devices: Absent,
}

/// `Node`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct NodeJson<'a> {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "SecretID")]
    secret_id: &'static str,
    datacenter: &'a str,
    name: &'a str,
    #[serde(rename = "HTTPAddr")]
    http_addr: &'static str,
    #[serde(rename = "TLSEnabled")]
    tls_enabled: bool,
    attributes: BTreeMap<String, String>,
    node_resources: NodeResources<'a>,
    reserved_resources: ReservedResources,
    resources: OldResources,
    reserved: OldResources,
    links: Absent,
    meta: &'a BTreeMap<String, String>,
    node_class: &'static str,
    computed_class: &'static str,
    drain: bool,
    drain_strategy: Absent,
    scheduling_eligibility: &'static str,
    status: &'static str,
    status_description: &'a str,
    /// Seconds since the epoch.
    status_updated_at: u64,
    events: Vec<()>,
    drivers: BTreeMap<&'a str, DriverJson>,
    #[serde(rename = "CSIControllerPlugins")]
    csi_controller_plugins: Absent,
    #[serde(rename = "CSINodePlugins")]
    csi_node_plugins: Absent,
    host_volumes: Absent,
    create_index: u64,
    modify_index: u64,
}

impl<'a> NodeJson<'a> {
    pub fn new(node: &'a NodeView, status: NodeStatus<'a>) -> Self {
        let given = given(node);
        let resources = OldResources {
            cpu: node.resources.cpu_mhz,
            memory_mb: node.resources.memory_mb,
            disk_mb: disk_mb(node),
            iops: 0,
            networks: self::given(node).networks,
            devices: Absent,
        };
        let reserved = OldResources {
            cpu: 0,
            memory_mb: 0,
            disk_mb: 0,
            iops: 0,
            networks: Vec::new(),
            devices: Absent,
        };
        let mut attributes = node.attribute_texts();
        // Nomad's command line reads the version of the node here.
        attributes.insert("nomad.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self {
            id: node.id.to_string(),
            secret_id: "",
            datacenter: &node.datacenter,
            name: &node.name,
            http_addr: "",
            tls_enabled: false,
            attributes,
            node_resources: given,
            reserved_resources: NOTHING_RESERVED,
            resources,
            reserved,
            links: Absent,
            meta: &node.meta,
            node_class: "",
            computed_class: "",
            drain: false,
            drain_strategy: Absent,
            scheduling_eligibility: "eligible",
            status: status.status,
            status_description: status.description,
            status_updated_at: 0,
            events: Vec::new(),
            drivers: drivers(node),
            csi_controller_plugins: Absent,
            csi_node_plugins: Absent,
            host_volumes: Absent,
            create_index: status.created,
            modify_index: status.index,
        }
    }
}
