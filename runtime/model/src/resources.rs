//! Resources asked for and resources given.

use serde::{Deserialize, Serialize};

use super::ids::TaskName;
use super::job::{Affinity, Constraint, PortSpec};

/// What a task asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// MHz of processor time; Nomad's default is 100.
    pub cpu_mhz: u32,
    /// MiB reserved; Nomad's default is 300.
    pub memory_mb: u32,
    /// MiB the task may grow to; absent: `memory_mb`.
    pub memory_max_mb: Option<u32>,
    /// MiB that its `secrets` directory may hold; absent: [`crate::limits::SECRETS_MB_DEFAULT`].
    pub secrets_mb: Option<u32>,
    /// Devices, one request after the other.
    pub devices: Vec<DeviceRequest>,
    /// Ports that it alone asks for, at the node's address.
    pub ports: Vec<PortSpec>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu_mhz: 100,
            memory_mb: 300,
            memory_max_mb: None,
            secrets_mb: None,
            devices: Vec::new(),
            ports: Vec::new(),
        }
    }
}

impl Resources {
    /// Largest memory in bytes the task may use.
    #[must_use]
    pub fn memory_limit_bytes(&self) -> u64 {
        let mb = self.memory_max_mb.unwrap_or(0).max(self.memory_mb);
        u64::from(mb) * crate::limits::MIB
    }
}

/// A `device` block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// `type`, `vendor/type` or `vendor/type/name`.
    pub name: String,
    /// Instances, all of one group; at least 1.
    pub count: u32,
    /// All must hold for the group.
    pub constraints: Vec<Constraint>,
    /// Prefer groups for which these hold.
    pub affinities: Vec<Affinity>,
}

/// A port assigned to an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedPort {
    /// Name in `NOMAD_PORT_<label>`.
    pub label: String,
    /// Port on the node.
    pub value: u16,
    /// `to` of the job file, else the port itself.
    pub to: u16,
    /// Address on the node.
    pub host_ip: String,
    /// The task that asked for it; absent: the group.
    pub task: Option<TaskName>,
}

/// Device instances assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedDevice {
    /// The group they are of.
    pub group: super::device::GroupKey,
    /// Instance ids.
    pub ids: Vec<String>,
}
