//! Devices of the node: groups of interchangeable instances.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::attribute::NamedAttribute;

/// Name of a device group: vendor, type and model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupKey {
    /// For example `nvidia`.
    pub vendor: String,
    /// For example `gpu`.
    #[serde(rename = "type")]
    pub kind: String,
    /// For example `H100 PCIe`; may contain slashes.
    pub name: String,
}

impl GroupKey {
    /// Whether a request `type`, `vendor/type` or `vendor/type/name` means this group.
    #[must_use]
    pub fn matches(&self, request: &str) -> bool {
        let mut parts = request.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(kind), None, None) => kind == self.kind,
            (Some(vendor), Some(kind), None) => vendor == self.vendor && kind == self.kind,
            (Some(vendor), Some(kind), Some(name)) => {
                vendor == self.vendor && kind == self.kind && name == self.name
            }
            _ => false,
        }
    }
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// Health of a driver or a device instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// It was not found on this node.
    #[default]
    Undetected,
    /// It is on this node but not usable now.
    Unhealthy,
    /// It is usable, and may be assigned to tasks.
    Healthy,
}

/// Health with a reason for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether the driver or device can be used now.
    pub state: HealthState,
    /// One sentence that explains the state; may be empty when healthy.
    pub reason: String,
}

/// Where an instance sits in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locality {
    /// For example `0000:3b:00.0`.
    pub pci_bus_id: Option<String>,
    /// NUMA node number.
    pub numa_node: Option<u32>,
}

/// A single device of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInstance {
    /// Unique in its group.
    pub id: String,
    /// Only healthy instances are assigned.
    pub health: Health,
    /// Where the device sits in the machine.
    pub locality: Option<Locality>,
}

/// Interchangeable devices that one plugin found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceGroup {
    /// Name of the group.
    pub key: GroupKey,
    /// The plugin that found it and answers `reserve`.
    pub plugin: super::ids::PluginName,
    /// The devices of the group, which are interchangeable.
    pub instances: Vec<DeviceInstance>,
    /// Attributes that constraints may refer to, sorted by name.
    pub attributes: Vec<NamedAttribute>,
}

/// How a task uses reserved devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Environment variables for the task.
    pub env: Vec<(String, String)>,
    /// Directories and files shown to the task.
    pub mounts: Vec<Mount>,
    /// Device nodes assigned to the task.
    pub device_nodes: Vec<DeviceNode>,
}

/// A directory or file of the node shown to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path on the node.
    pub host_path: String,
    /// Absolute path in the task.
    pub task_path: String,
    /// The task may not write to it.
    pub read_only: bool,
}

/// A device node assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Absolute path on the node.
    pub host_path: String,
    /// Absolute path in the task.
    pub task_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}
