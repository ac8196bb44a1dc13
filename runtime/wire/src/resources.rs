//! What allocations are given and nodes have: processor, memory, disk, ports, devices. Nomad tells it in
//! the forms of three of its ages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Absent, Text, or_empty};

/// `AllocatedResources`: the present form.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedResources<'a> {
    /// By task.
    #[serde(deserialize_with = "or_empty")]
    pub tasks: BTreeMap<Text<'a>, TaskResources<'a>>,
    /// When each task runs; none of a main one.
    #[serde(deserialize_with = "or_empty")]
    pub task_lifecycles: BTreeMap<Text<'a>, Option<Lifecycle<'a>>>,
    /// Of all tasks together.
    pub shared: SharedResources<'a>,
}

/// `AllocatedTaskResources`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskResources<'a> {
    /// Processor.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Ports of the task alone; none without one.
    pub networks: Option<Vec<NetworkResource<'a>>>,
    /// Devices; none without one.
    pub devices: Option<Vec<TaskDevices<'a>>>,
}

/// Processor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Cpu {
    /// MHz.
    pub cpu_shares: u64,
    /// Of a node that can reserve cores: all of its.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_cpu_cores: Option<u64>,
    /// Of a node: which it can reserve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reservable_cpu_cores: Vec<u32>,
    /// Of a task: which it has for itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_cores: Vec<u32>,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub mib: u64,
}

/// Disk.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub mib: u64,
}

/// `AllocatedDeviceResource`: devices of one group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskDevices<'a> {
    /// Vendor of the group.
    pub vendor: Text<'a>,
    /// Type of the group.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// Name of the group.
    pub name: Text<'a>,
    /// Which of the group.
    #[serde(rename = "DeviceIDs", deserialize_with = "or_empty")]
    pub ids: std::borrow::Cow<'a, [String]>,
}

/// `TaskLifecycleConfig`: when a task runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lifecycle<'a> {
    /// `prestart` …
    pub hook: Text<'a>,
    /// Beside the main tasks.
    pub sidecar: bool,
}

/// `AllocatedSharedResources`: what the tasks of an allocation share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SharedResources<'a> {
    /// One network with all ports, as soon as there is one port.
    #[serde(deserialize_with = "or_empty")]
    pub networks: Vec<NetworkResource<'a>>,
    /// Disk, MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mib: u64,
    /// Ports.
    #[serde(deserialize_with = "or_empty")]
    pub ports: Vec<PortMapping<'a>>,
}

/// `AllocatedPortMapping`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PortMapping<'a> {
    /// Its name.
    pub label: Text<'a>,
    /// On the host.
    pub value: u16,
    /// Where the task listens; 0 for the same.
    pub to: i32,
    /// The host's address.
    #[serde(rename = "HostIP")]
    pub host_ip: Text<'a>,
}

/// `NetworkResource`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkResource<'a> {
    /// `host`, `bridge` …
    pub mode: Text<'a>,
    /// The interface, of a node.
    pub device: Text<'a>,
    /// The address with its prefix, of a node.
    #[serde(rename = "CIDR")]
    pub cidr: Text<'a>,
    /// The address.
    #[serde(rename = "IP")]
    pub ip: Text<'a>,
    /// The speed, of a node.
    #[serde(rename = "MBits")]
    pub mbits: u32,
    /// How names are resolved, where its job says so.
    #[serde(rename = "DNS")]
    pub dns: Option<crate::Dns<'a>>,
    /// Ports whose number the job names.
    pub reserved_ports: Option<Vec<NetworkPort<'a>>>,
    /// Ports that were drawn.
    pub dynamic_ports: Option<Vec<NetworkPort<'a>>>,
}

/// `Port`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkPort<'a> {
    /// Its name.
    pub label: Text<'a>,
    /// On the host.
    pub value: u16,
    /// Where the task listens; 0 for the same.
    pub to: i32,
    /// `default`.
    pub host_network: Text<'a>,
}

/// `Resources`: the oldest form, of tasks, allocations and nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Resources<'a> {
    /// MHz.
    #[serde(rename = "CPU")]
    pub cpu: u64,
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mib: u64,
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mib: u64,
    /// Not measured.
    #[serde(rename = "IOPS")]
    pub iops: u64,
    /// Networks; none of a task.
    pub networks: Option<Vec<NetworkResource<'a>>>,
    /// Devices are told in the present form alone.
    pub devices: Absent,
}

/// `NodeResources`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeResources<'a> {
    /// Processor.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Free space of the data directory.
    pub disk: Disk,
    /// The one network of the node.
    #[serde(deserialize_with = "or_empty")]
    pub networks: Vec<NetworkResource<'a>>,
    /// The same, as newer clients want it.
    pub node_networks: Option<Vec<NodeNetwork<'a>>>,
    /// Devices, by group.
    #[serde(deserialize_with = "or_empty")]
    pub devices: Vec<NodeDevices<'a>>,
}

/// `NodeNetworkResource`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeNetwork<'a> {
    /// `host`.
    pub mode: Text<'a>,
    /// The interface.
    pub device: Text<'a>,
    /// Not fingerprinted.
    pub mac_address: Text<'a>,
    /// Mbit/s.
    pub speed: u32,
    /// Its addresses that tasks may have.
    #[serde(deserialize_with = "or_empty")]
    pub addresses: Vec<NodeAddress<'a>>,
}

/// `NodeNetworkAddress`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeAddress<'a> {
    /// `ipv4` or `ipv6`.
    pub family: Text<'a>,
    /// Name of the host network.
    pub alias: Text<'a>,
    /// The address.
    pub address: Text<'a>,
    /// None are held back.
    pub reserved_ports: Text<'a>,
    /// Not fingerprinted.
    pub gateway: Text<'a>,
}

/// `NodeDeviceResource`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDevices<'a> {
    /// Vendor of the group.
    pub vendor: Text<'a>,
    /// Type of the group.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// Name of the group.
    pub name: Text<'a>,
    /// The devices.
    #[serde(deserialize_with = "or_empty")]
    pub instances: Vec<NodeDevice<'a>>,
    /// Told in `/v1/ostler/node` alone.
    pub attributes: Absent,
}

/// `NodeDevice`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDevice<'a> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// It can be assigned.
    pub healthy: bool,
    /// Why not.
    pub health_description: Text<'a>,
    /// Where it sits, where that is known.
    pub locality: Option<NodeDeviceLocality<'a>>,
}

/// `NodeDeviceLocality`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDeviceLocality<'a> {
    /// Address on its bus.
    #[serde(rename = "PciBusID")]
    pub pci_bus_id: Text<'a>,
}

/// `NodeReservedResources`: nothing is held back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedResources<'a> {
    /// Processor.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Disk.
    pub disk: Disk,
    /// Ports.
    pub networks: ReservedPorts<'a>,
}

/// `NodeReservedNetworkResources`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedPorts<'a> {
    /// Numbers, with commas between.
    pub reserved_host_ports: Text<'a>,
}
