//! Resources that tasks ask for and resources that allocations get.

use serde::{Deserialize, Serialize};

use super::cores::CoreSet;
use super::ids::TaskName;
use super::job::{Affinity, Constraint, PortSpec};

/// Resources that a task asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// MHz of processor time; Nomad's default is 100. It has no meaning beside `cores`.
    pub cpu_mhz: u32,
    /// Whole cores that the task has for itself, in place of `cpu_mhz`.
    pub cores: Option<CoreRequest>,
    /// MiB of memory that are reserved; Nomad's default is 300.
    pub memory_mb: u32,
    /// Most memory of the task, MiB; absent: `memory_mb`.
    pub memory_max_mb: Option<u32>,
    /// MiB that the task's `secrets` directory may hold; absent:
    /// [`crate::limits::SECRETS_MB_DEFAULT`].
    pub secrets_mb: Option<u32>,
    /// Requests for devices, in order.
    pub devices: Vec<DeviceRequest>,
    /// Ports of this task alone, at the node's address.
    pub ports: Vec<PortSpec>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu_mhz: 100,
            cores: None,
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

/// Cores that a task asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreRequest {
    /// Number of cores, at least 1.
    pub count: u32,
    /// Whether all cores must be of one NUMA node.
    pub numa: NumaAffinity,
}

/// Whether the resources of a task should belong to one NUMA node. Texts as Nomad's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaAffinity {
    /// It does not matter.
    #[default]
    None,
    /// One NUMA node is tried first.
    Prefer,
    /// All must be of one NUMA node, or the job is refused.
    Require,
}

/// Cores assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedCores {
    /// The cores, which no other task has.
    pub cores: CoreSet,
    /// MHz of all these cores together.
    pub cpu_mhz: u32,
}

/// A `device` block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// `type`, `vendor/type` or `vendor/type/name`.
    pub name: String,
    /// Number of instances, all of one group; at least 1.
    pub count: u32,
    /// Constraints that must all hold for the group.
    pub constraints: Vec<Constraint>,
    /// Preferences among the groups.
    pub affinities: Vec<Affinity>,
}

/// A port assigned to an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedPort {
    /// Name in `NOMAD_PORT_<label>`.
    pub label: String,
    /// Port on the node.
    pub value: u16,
    /// Port inside the task: `to` of the job file, or else the port itself.
    pub to: u16,
    /// Address of the node at which the port is.
    pub host_ip: String,
    /// The task that asked for the port; absent for a port of the group.
    pub task: Option<TaskName>,
}

/// Device instances assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedDevice {
    /// Name of the group that the instances belong to.
    pub group: super::device::GroupKey,
    /// Ids of the assigned instances.
    pub ids: Vec<String>,
}
