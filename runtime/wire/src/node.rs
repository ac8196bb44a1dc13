//! The node.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Absent, NodeResources, ReservedResources, Resources, Text, or_empty};

/// `NodeListStub`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeStub<'a> {
    /// Address assigned with ports.
    pub address: Text<'a>,
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Its data center.
    pub datacenter: Text<'a>,
    /// Its name.
    pub name: Text<'a>,
    /// It has none.
    pub node_class: Text<'a>,
    /// Version of the agent.
    pub version: Text<'a>,
    /// It is being drained.
    pub drain: bool,
    /// `eligible` or `ineligible`.
    pub scheduling_eligibility: Text<'a>,
    /// `initializing`, `ready` or `down`.
    pub status: Text<'a>,
    /// A sentence on it.
    pub status_description: Text<'a>,
    /// Its drivers.
    #[serde(deserialize_with = "or_empty")]
    pub drivers: BTreeMap<Text<'a>, DriverInfo<'a>>,
    /// Directories that jobs may mount; null without any.
    pub host_volumes: Option<BTreeMap<Text<'a>, HostVolume<'a>>>,
    /// What it has, where that is asked for.
    pub node_resources: Option<NodeResources<'a>>,
    /// What is held back, where that is asked for.
    pub reserved_resources: Option<ReservedResources<'a>>,
    /// Index of the first change.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
}

/// `DriverInfo`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverInfo<'a> {
    /// What it says of itself.
    #[serde(deserialize_with = "or_empty")]
    pub attributes: BTreeMap<Text<'a>, Text<'a>>,
    /// It works on this machine.
    pub detected: bool,
    /// It gets tasks.
    pub healthy: bool,
    /// Why not.
    pub health_description: Text<'a>,
    /// Not told: [`NEVER`](crate::NEVER).
    pub update_time: Text<'a>,
}

/// `HostVolumeInfo`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostVolume<'a> {
    /// Path on the node.
    pub path: Text<'a>,
    /// Nobody writes to it.
    pub read_only: bool,
}

/// `Node`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node<'a> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Never told.
    #[serde(rename = "SecretID")]
    pub secret_id: Text<'a>,
    /// Its data center.
    pub datacenter: Text<'a>,
    /// Its name.
    pub name: Text<'a>,
    /// The API is on a socket.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: Text<'a>,
    /// The API is on a socket.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
    /// What constraints can ask about.
    #[serde(deserialize_with = "or_empty")]
    pub attributes: BTreeMap<String, String>,
    /// What it has.
    pub node_resources: NodeResources<'a>,
    /// What is held back.
    pub reserved_resources: ReservedResources<'a>,
    /// What it has, in the oldest form.
    pub resources: Resources<'a>,
    /// What is held back, in the oldest form.
    pub reserved: Resources<'a>,
    /// There are none.
    pub links: Absent,
    /// Configured pairs.
    #[serde(deserialize_with = "or_empty")]
    pub meta: Cow<'a, BTreeMap<String, String>>,
    /// It has none.
    pub node_class: Text<'a>,
    /// It has none.
    pub computed_class: Text<'a>,
    /// It is being drained.
    pub drain: bool,
    /// How; null while it is not.
    pub drain_strategy: Option<DrainStrategy<'a>>,
    /// `eligible` or `ineligible`.
    pub scheduling_eligibility: Text<'a>,
    /// `initializing`, `ready` or `down`.
    pub status: Text<'a>,
    /// A sentence on it.
    pub status_description: Text<'a>,
    /// Not kept.
    pub status_updated_at: i64,
    /// The last ones, oldest first.
    #[serde(deserialize_with = "or_empty")]
    pub events: Vec<NodeEvent<'a>>,
    /// Its drivers.
    #[serde(deserialize_with = "or_empty")]
    pub drivers: BTreeMap<Text<'a>, DriverInfo<'a>>,
    /// There are none.
    #[serde(rename = "CSIControllerPlugins")]
    pub csi_controller_plugins: Absent,
    /// There are none.
    #[serde(rename = "CSINodePlugins")]
    pub csi_node_plugins: Absent,
    /// Directories that jobs may mount; null without any.
    pub host_volumes: Option<BTreeMap<Text<'a>, HostVolume<'a>>>,
    /// Index of the first change.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
}

/// `DrainStrategy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainStrategy<'a> {
    /// Nanoseconds; 0: none, below 0: at once.
    pub deadline: i64,
    /// Allocations of system jobs run on.
    pub ignore_system_jobs: bool,
    /// When what is left is stopped at once.
    pub force_deadline: Text<'a>,
    /// When it began.
    pub started_at: Text<'a>,
}

/// `NodeEvent`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeEvent<'a> {
    /// What happened.
    pub message: Text<'a>,
    /// Of what part of the cluster it is.
    pub subsystem: Text<'a>,
    /// Never any.
    pub details: Absent,
    /// When.
    pub timestamp: Text<'a>,
    /// Index from which it is visible.
    pub create_index: u64,
}

/// `NodeUpdateDrainRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainRequest {
    /// As the path has it.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// How it is to be drained; null: no further.
    pub drain_spec: Option<DrainSpec>,
    /// Without a drain: new allocations are taken.
    pub mark_eligible: bool,
}

/// `DrainSpec`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainSpec {
    /// Nanoseconds; 0: none, below 0: at once.
    pub deadline: i64,
    /// Allocations of system jobs run on.
    pub ignore_system_jobs: bool,
}

/// `NodeUpdateEligibilityRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EligibilityRequest {
    /// As the path has it.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// `eligible` or `ineligible`.
    pub eligibility: String,
}

/// `NodeDrainUpdateResponse`, `NodeEligibilityUpdateResponse` and `NodeUpdateResponse`, as far as one node has
/// them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeChanged {
    /// Index of the change.
    pub node_modify_index: u64,
    /// Nothing is to be waited for.
    #[serde(rename = "EvalIDs")]
    pub eval_ids: Absent,
    /// None.
    pub eval_create_index: u64,
    /// Index of the change.
    pub index: u64,
}
