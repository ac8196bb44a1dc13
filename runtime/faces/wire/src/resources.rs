//! The resources of allocations and nodes: processor, memory, disk, ports, devices. Nomad writes
//! them in three forms, from three of its ages.

use std::collections::BTreeMap;

use ostler_model::attribute::{Attribute, AttributeValue};
use ostler_model::device::{DeviceGroup, DeviceInstance, HealthState};
use serde::{Deserialize, Serialize};

use crate::message::{json_only, json_or_not_empty};
use crate::{Absent, Text, or_empty};

/// Nomad's `AllocatedResources`: the resources of an allocation in the present form.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedResources<'a> {
    /// The resources of each task, by its name.
    #[serde(deserialize_with = "or_empty")]
    pub tasks: BTreeMap<Text<'a>, TaskResources<'a>>,
    /// When each task runs, by its name; none for a main task.
    #[serde(deserialize_with = "or_empty")]
    pub task_lifecycles: BTreeMap<Text<'a>, Option<TaskLifecycleConfig<'a>>>,
    /// The resources that all tasks share.
    pub shared: SharedResources<'a>,
}

/// Nomad's `AllocatedTaskResources`: the resources of one task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskResources<'a> {
    /// The processor time and cores of the task.
    pub cpu: Cpu,
    /// The memory of the task.
    pub memory: WireMemory,
    /// The ports of the task alone; none if it has none.
    pub networks: Option<Vec<NetworkResource<'a>>>,
    /// The devices of the task; none if it has none.
    pub devices: Option<Vec<TaskDevices<'a>>>,
}

/// An amount of processor time, and cores.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Cpu {
    /// The share of the processor, MHz.
    pub cpu_shares: u64,
    /// The number of all cores, on a node that can reserve cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_cpu_cores: Option<u64>,
    /// The numbers of the cores that a node can reserve.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub reservable_cpu_cores: Vec<u32>,
    /// The numbers of the cores that a task has for itself.
    #[serde(deserialize_with = "or_empty", skip_serializing_if = "Vec::is_empty")]
    pub reserved_cores: Vec<u32>,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WireMemory {
    /// The memory, MiB.
    #[serde(rename = "MemoryMB")]
    pub mib: u64,
}

/// An amount of disk space.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// The disk space, MiB.
    #[serde(rename = "DiskMB")]
    pub mib: u64,
}

/// Nomad's `AllocatedDeviceResource`: the devices that a task has of one group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskDevices<'a> {
    /// The vendor of the device group.
    pub vendor: Text<'a>,
    /// The type of the device group.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The name of the device group.
    pub name: Text<'a>,
    /// The ids of the devices.
    #[serde(rename = "DeviceIDs", deserialize_with = "or_empty")]
    pub ids: std::borrow::Cow<'a, [String]>,
}

/// Nomad's `TaskLifecycleConfig`: when a task runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskLifecycleConfig<'a> {
    /// The phase in which the task starts: `prestart`, `poststart` or `poststop`.
    pub hook: Text<'a>,
    /// Whether the task runs beside the main tasks.
    pub sidecar: bool,
}

/// Nomad's `AllocatedSharedResources`: what the tasks of an allocation share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SharedResources<'a> {
    /// The network with all ports of the group; empty if there are no ports.
    #[serde(deserialize_with = "or_empty")]
    pub networks: Vec<NetworkResource<'a>>,
    /// The disk space, MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mib: u64,
    /// The ports of the group.
    #[serde(deserialize_with = "or_empty")]
    pub ports: Vec<AllocatedPortMapping<'a>>,
}

/// Nomad's `AllocatedPortMapping`: a port of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedPortMapping<'a> {
    /// The label of the port in the job file.
    pub label: Text<'a>,
    /// The number of the port on the host.
    pub value: u16,
    /// The number of the port on which the task listens; 0 for the same.
    pub to: i32,
    /// The address of the host on which the port is open.
    #[serde(rename = "HostIP")]
    pub host_ip: Text<'a>,
}

/// Nomad's `NetworkResource`: a network with its ports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkResource<'a> {
    /// The mode of the network, such as `host` or `bridge`.
    pub mode: Text<'a>,
    /// The name of the interface; empty for an allocation.
    #[serde(serialize_with = "json_or_not_empty")]
    pub device: Text<'a>,
    /// The address with its prefix length; empty for an allocation.
    #[serde(rename = "CIDR", serialize_with = "json_or_not_empty")]
    pub cidr: Text<'a>,
    /// The IP address of the host.
    #[serde(rename = "IP", serialize_with = "json_or_not_empty")]
    pub ip: Text<'a>,
    /// The speed, Mbit/s; 0 for an allocation.
    #[serde(rename = "MBits", serialize_with = "json_or_not_empty")]
    pub mbits: u32,
    /// How the tasks resolve names, if the job configures it.
    #[serde(rename = "DNS", serialize_with = "json_only")]
    pub dns: Option<crate::Dns<'a>>,
    /// The ports whose numbers the job names.
    #[serde(serialize_with = "json_only")]
    pub reserved_ports: Option<Vec<NetworkPort<'a>>>,
    /// The ports whose numbers the agent chose.
    #[serde(serialize_with = "json_only")]
    pub dynamic_ports: Option<Vec<NetworkPort<'a>>>,
}

/// Nomad's `Port`: a port of a network.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkPort<'a> {
    /// The label of the port in the job file.
    pub label: Text<'a>,
    /// The number of the port on the host.
    pub value: u16,
    /// The number of the port on which the task listens; 0 for the same.
    pub to: i32,
    /// The name of the host network, `default` if the job names none.
    pub host_network: Text<'a>,
}

/// Nomad's `Resources`: the oldest form, for tasks, allocations and nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LegacyResources<'a> {
    /// The share of the processor, MHz.
    #[serde(rename = "CPU")]
    pub cpu: u64,
    /// The memory, MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mib: u64,
    /// The disk space, MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mib: u64,
    /// Always 0: the agent does not count disk operations.
    #[serde(rename = "IOPS", serialize_with = "json_only")]
    pub iops: u64,
    /// The networks; none for a task.
    #[serde(serialize_with = "json_only")]
    pub networks: Option<Vec<NetworkResource<'a>>>,
    /// Only the present form has devices: always `null`.
    pub devices: Absent,
}

/// Nomad's `NodeResources`: the resources of a node in the present form.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireNodeResources<'a> {
    /// The processor of the node.
    pub cpu: Cpu,
    /// The memory of the node.
    pub memory: WireMemory,
    /// The free disk space of the data directory.
    pub disk: Disk,
    /// The networks of the node; this agent has one.
    #[serde(deserialize_with = "or_empty")]
    pub networks: Vec<NetworkResource<'a>>,
    /// The same networks in the form that newer clients read.
    pub node_networks: Option<Vec<NodeNetwork<'a>>>,
    /// The devices, by group.
    #[serde(deserialize_with = "or_empty")]
    pub devices: Vec<NodeDevices<'a>>,
}

/// Nomad's `NodeNetworkResource`: an interface of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeNetwork<'a> {
    /// The mode of the network, always `host`.
    pub mode: Text<'a>,
    /// The name of the interface.
    pub device: Text<'a>,
    /// The hardware address. Always empty: it is not fingerprinted.
    #[serde(serialize_with = "json_only")]
    pub mac_address: Text<'a>,
    /// The speed, Mbit/s.
    pub speed: u32,
    /// The addresses that tasks may use.
    #[serde(deserialize_with = "or_empty")]
    pub addresses: Vec<NodeAddress<'a>>,
}

/// Nomad's `NodeNetworkAddress`: an address of an interface.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeAddress<'a> {
    /// The family of the address: `ipv4` or `ipv6`.
    pub family: Text<'a>,
    /// The name of the host network that the address is in.
    pub alias: Text<'a>,
    /// The IP address.
    pub address: Text<'a>,
    /// The ports that are held back. Always empty: there are none.
    #[serde(serialize_with = "json_or_not_empty")]
    pub reserved_ports: Text<'a>,
    /// The gateway. Always empty: it is not fingerprinted.
    #[serde(serialize_with = "json_only")]
    pub gateway: Text<'a>,
}

/// Nomad's `NodeDeviceResource`: a device group of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDevices<'a> {
    /// The vendor of the device group.
    pub vendor: Text<'a>,
    /// The type of the device group.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The name of the device group.
    pub name: Text<'a>,
    /// The devices of the group.
    #[serde(deserialize_with = "or_empty")]
    pub instances: Vec<NodeDevice<'a>>,
    /// The attributes of the group. In JSON `null`: only `/v1/ostler/node` has them.
    #[serde(skip_deserializing)]
    pub attributes: Option<BTreeMap<Text<'a>, DeviceAttribute<'a>>>,
}

impl<'a> From<&'a DeviceGroup> for NodeDevices<'a> {
    fn from(group: &'a DeviceGroup) -> Self {
        Self {
            vendor: (&group.key.vendor).into(),
            kind: (&group.key.kind).into(),
            name: (&group.key.name).into(),
            instances: group.instances.iter().map(NodeDevice::from).collect(),
            attributes: None,
        }
    }
}

/// Nomad's `Attribute`: the value of an attribute, and its unit.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct DeviceAttribute<'a> {
    /// A whole number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int: Option<i64>,
    /// A number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float: Option<f64>,
    /// A truth value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bool: Option<bool>,
    /// A text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string: Option<Text<'a>>,
    /// The unit of the number; empty if it has none.
    pub unit: Text<'a>,
}

impl<'a> From<&'a Attribute> for DeviceAttribute<'a> {
    fn from(attribute: &'a Attribute) -> Self {
        let unit = attribute.unit.as_deref().unwrap_or_default().into();
        let none = Self { unit, ..Self::default() };
        match &attribute.value {
            AttributeValue::Int(value) => Self { int: Some(*value), ..none },
            AttributeValue::Float(value) => Self { float: Some(*value), ..none },
            AttributeValue::Bool(value) => Self { bool: Some(*value), ..none },
            AttributeValue::Text(value) => Self { string: Some(value.into()), ..none },
        }
    }
}

/// Nomad's `NodeDevice`: a device of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDevice<'a> {
    /// The id of the device, unique in its group.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Whether the device is healthy and can be assigned.
    pub healthy: bool,
    /// Why the device is not healthy; empty if it is.
    pub health_description: Text<'a>,
    /// Where the device is connected, if that is known.
    pub locality: Option<NodeDeviceLocality<'a>>,
}

impl<'a> From<&'a DeviceInstance> for NodeDevice<'a> {
    fn from(instance: &'a DeviceInstance) -> Self {
        let bus = instance.locality.as_ref().and_then(|place| place.pci_bus_id.as_ref());
        Self {
            id: (&instance.id).into(),
            healthy: instance.health.state == HealthState::Healthy,
            health_description: (&instance.health.reason).into(),
            locality: bus.map(|bus| NodeDeviceLocality { pci_bus_id: bus.into() }),
        }
    }
}

/// Nomad's `NodeDeviceLocality`: where a device is connected.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDeviceLocality<'a> {
    /// The address of the device on the PCI bus.
    #[serde(rename = "PciBusID")]
    pub pci_bus_id: Text<'a>,
}

/// Nomad's `NodeReservedResources`: the resources of a node that are held back. The agent holds
/// back nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedResources<'a> {
    /// The processor time that is held back.
    pub cpu: Cpu,
    /// The memory that is held back.
    pub memory: WireMemory,
    /// The disk space that is held back.
    pub disk: Disk,
    /// The ports that are held back.
    pub networks: ReservedPorts<'a>,
}

/// Nomad's `NodeReservedNetworkResources`: the ports of a node that are held back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedPorts<'a> {
    /// The numbers of the ports, separated by commas.
    pub reserved_host_ports: Text<'a>,
}
