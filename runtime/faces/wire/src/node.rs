//! The node, and the requests that change it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::attribute::Attribute;
use ostler_model::device::{Health, HealthState};
use ostler_model::volume::HostVolume;
use serde::{Deserialize, Serialize};

use crate::message::{json_only, time};
use crate::{Absent, LegacyResources, NEVER, ReservedResources, Text, WireNodeResources, or_empty};

/// Nomad's `NodeListStub`: a node in a list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeStub<'a> {
    /// The IP address that is assigned together with ports.
    pub address: Text<'a>,
    /// The id of the node, a UUID.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The data center of the node.
    pub datacenter: Text<'a>,
    /// The name of the node.
    pub name: Text<'a>,
    /// This agent has no node classes: always empty.
    pub node_class: Text<'a>,
    /// The version of the agent.
    pub version: Text<'a>,
    /// Whether the node is being drained.
    pub drain: bool,
    /// Whether the node takes new allocations: `eligible` or `ineligible`.
    pub scheduling_eligibility: Text<'a>,
    /// The status: `initializing`, `ready` or `down`.
    pub status: Text<'a>,
    /// One sentence about the status.
    pub status_description: Text<'a>,
    /// The drivers of the node, by name.
    #[serde(deserialize_with = "or_empty")]
    pub drivers: BTreeMap<Text<'a>, DriverInfo<'a>>,
    /// The directories that jobs may mount, by name; `null` if there are none.
    pub host_volumes: Option<BTreeMap<Text<'a>, HostVolumeInfo<'a>>>,
    /// The resources of the node, if the request asks for them.
    pub node_resources: Option<WireNodeResources<'a>>,
    /// The resources that are held back, if the request asks for them.
    pub reserved_resources: Option<ReservedResources<'a>>,
    /// The index at which the node was registered.
    pub create_index: u64,
    /// The index of the last change of the node.
    pub modify_index: u64,
}

/// Nomad's `DriverInfo`: a driver of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverInfo<'a> {
    /// The attributes that the driver reports.
    #[serde(deserialize_with = "or_empty")]
    pub attributes: BTreeMap<Text<'a>, Text<'a>>,
    /// Whether the driver found on this machine what it needs.
    pub detected: bool,
    /// Whether the driver is healthy and gets tasks.
    pub healthy: bool,
    /// `Healthy`, or why the driver is not healthy.
    pub health_description: Text<'a>,
    /// The time of the last change. Always [`NEVER`] in JSON: the agent does not record it.
    #[serde(serialize_with = "time")]
    pub update_time: Text<'a>,
}

impl<'a> DriverInfo<'a> {
    /// The driver with this health and these attributes.
    #[must_use]
    pub fn new(health: &'a Health, attributes: &'a BTreeMap<String, Attribute>) -> Self {
        let text =
            |(name, value): (&'a String, &Attribute)| (name.into(), value.to_string().into());
        Self {
            attributes: attributes.iter().map(text).collect(),
            detected: health.state != HealthState::Undetected,
            healthy: health.state == HealthState::Healthy,
            health_description: match (health.state, health.reason.as_str()) {
                (HealthState::Healthy, "") => "Healthy".into(),
                (_, reason) => reason.into(),
            },
            update_time: NEVER.into(),
        }
    }
}

/// Nomad's `HostVolumeInfo`: a directory of the node that jobs may mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HostVolumeInfo<'a> {
    /// The name of the directory. Only servers are told it here.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: Text<'a>,
    /// The path of the directory on the node.
    pub path: Text<'a>,
    /// Whether tasks may only read it.
    pub read_only: bool,
}

impl<'a> From<&'a HostVolume> for HostVolumeInfo<'a> {
    fn from(volume: &'a HostVolume) -> Self {
        let (path, read_only) = (volume.path.to_string_lossy(), volume.read_only);
        Self { name: Text::default(), path, read_only }
    }
}

/// Nomad's `Node`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireNode<'a> {
    /// The id of the node, a UUID.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The secret of the node. Always empty: it is never shown.
    #[serde(rename = "SecretID")]
    pub secret_id: Text<'a>,
    /// The data center of the node.
    pub datacenter: Text<'a>,
    /// The name of the node.
    pub name: Text<'a>,
    /// The address of the node's HTTP API. Always empty: it is on a socket.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: Text<'a>,
    /// Whether that API has TLS. Always false: it is on a socket.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
    /// The attributes that constraints can refer to.
    #[serde(deserialize_with = "or_empty")]
    pub attributes: BTreeMap<String, String>,
    /// The resources of the node.
    pub node_resources: WireNodeResources<'a>,
    /// The resources that are held back.
    pub reserved_resources: ReservedResources<'a>,
    /// The resources of the node, in Nomad's oldest form.
    pub resources: LegacyResources<'a>,
    /// The resources that are held back, in Nomad's oldest form.
    pub reserved: LegacyResources<'a>,
    /// The agent has no links: always `null`.
    pub links: Absent,
    /// The configured metadata of the node.
    #[serde(deserialize_with = "or_empty")]
    pub meta: Cow<'a, BTreeMap<String, String>>,
    /// This agent has no node classes: always empty.
    pub node_class: Text<'a>,
    /// This agent has no node classes: always empty.
    #[serde(serialize_with = "json_only")]
    pub computed_class: Text<'a>,
    /// Whether the node is being drained.
    #[serde(serialize_with = "json_only")]
    pub drain: bool,
    /// How the node is drained; `null` while it is not.
    #[serde(serialize_with = "json_only")]
    pub drain_strategy: Option<DrainStrategy<'a>>,
    /// Whether the node takes new allocations: `eligible` or `ineligible`.
    pub scheduling_eligibility: Text<'a>,
    /// The status: `initializing`, `ready` or `down`.
    pub status: Text<'a>,
    /// One sentence about the status.
    #[serde(serialize_with = "json_only")]
    pub status_description: Text<'a>,
    /// The time of the last change of the status. Always 0: it is not recorded.
    #[serde(serialize_with = "json_only")]
    pub status_updated_at: i64,
    /// The last events of the node, the oldest first.
    #[serde(deserialize_with = "or_empty", serialize_with = "json_only")]
    pub events: Vec<WireNodeEvent<'a>>,
    /// The drivers of the node, by name.
    #[serde(deserialize_with = "or_empty")]
    pub drivers: BTreeMap<Text<'a>, DriverInfo<'a>>,
    /// This agent has no CSI plugins: always `null`.
    #[serde(rename = "CSIControllerPlugins")]
    pub csi_controller_plugins: Absent,
    /// This agent has no CSI plugins: always `null`.
    #[serde(rename = "CSINodePlugins")]
    pub csi_node_plugins: Absent,
    /// The directories that jobs may mount, by name; `null` if there are none.
    pub host_volumes: Option<BTreeMap<Text<'a>, HostVolumeInfo<'a>>>,
    /// The pool of the node. Only servers are told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<Text<'a>>,
    /// The index at which the node was registered.
    #[serde(serialize_with = "json_only")]
    pub create_index: u64,
    /// The index of the last change of the node.
    #[serde(serialize_with = "json_only")]
    pub modify_index: u64,
}

/// Nomad's `DrainStrategy`: how a node is drained.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainStrategy<'a> {
    /// The time allocations have to end, nanoseconds; 0 for no limit, below 0 for at once.
    pub deadline: i64,
    /// Whether allocations of system jobs keep running.
    pub ignore_system_jobs: bool,
    /// The time at which the remaining allocations are stopped at once.
    pub force_deadline: Text<'a>,
    /// The time at which the drain began.
    pub started_at: Text<'a>,
}

/// Nomad's `NodeEvent`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireNodeEvent<'a> {
    /// What happened, in one sentence.
    pub message: Text<'a>,
    /// The part of the cluster that the event is about.
    pub subsystem: Text<'a>,
    /// The facts of the event. Only servers are told them.
    #[serde(skip_deserializing)]
    pub details: Option<BTreeMap<Text<'a>, Text<'a>>>,
    /// The time of the event, RFC 3339.
    #[serde(serialize_with = "time")]
    pub timestamp: Text<'a>,
    /// The index from which the event is visible.
    #[serde(serialize_with = "json_only")]
    pub create_index: u64,
}

/// Nomad's `NodeUpdateDrainRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainRequest {
    /// The id of the node; it must be that of the path, or empty.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// How to drain the node; `null` ends a drain.
    pub drain_spec: Option<DrainSpec>,
    /// Whether the node takes new allocations after the end of a drain.
    pub mark_eligible: bool,
}

/// Nomad's `DrainSpec`: how to drain a node.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainSpec {
    /// The time allocations have to end, nanoseconds; 0 for no limit, below 0 for at once.
    pub deadline: i64,
    /// Whether allocations of system jobs keep running.
    pub ignore_system_jobs: bool,
}

/// Nomad's `NodeUpdateEligibilityRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EligibilityRequest {
    /// The id of the node; it must be that of the path, or empty.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Whether the node shall take new allocations: `eligible` or `ineligible`.
    pub eligibility: String,
}

/// Nomad's `NodeDrainUpdateResponse`, `NodeEligibilityUpdateResponse` and `NodeUpdateResponse`, as
/// far as they apply to a single node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeUpdateResponse {
    /// The index of the change of the node.
    pub node_modify_index: u64,
    /// No evaluation has to be waited for: always `null`.
    #[serde(rename = "EvalIDs")]
    pub eval_ids: Absent,
    /// The index of those evaluations: always 0.
    pub eval_create_index: u64,
    /// The index of the change.
    pub index: u64,
}
