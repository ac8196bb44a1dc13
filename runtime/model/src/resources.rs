//! Resources asked for and resources given.

use serde::{Deserialize, Serialize};

use super::cores::CoreSet;
use super::ids::TaskName;
use super::job::{Affinity, Constraint, PortSpec};

/// What a task asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// MHz of processor time; Nomad's default is 100. Of no meaning beside `cores`.
    pub cpu_mhz: u32,
    /// Whole cores, of which each is its own alone, instead of `cpu_mhz`.
    pub cores: Option<CoreRequest>,
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
    /// How many; at least 1.
    pub count: u32,
    /// Whether all are of one NUMA node.
    pub numa: NumaAffinity,
}

/// How much it matters that what a task gets belongs to one NUMA node. Texts as Nomad's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaAffinity {
    /// Not at all.
    #[default]
    None,
    /// One node is tried first.
    Prefer,
    /// One node, or the job is refused.
    Require,
}

/// Cores assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedCores {
    /// Which. Nobody else has one of them.
    pub cores: CoreSet,
    /// MHz that they are together.
    pub cpu_mhz: u32,
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
