//! What the agent says about itself: configuration, health, metrics and namespaces.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Absent, Text, or_empty};

/// The answer of `/v1/agent/self`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSelf<'a> {
    /// The configuration of the agent.
    pub config: AgentSelfConfig<'a>,
    /// The agent as a member of a cluster.
    pub member: AgentMember<'a>,
    /// Names and values by topic. Nomad's command line prints them.
    #[serde(deserialize_with = "or_empty")]
    pub stats: BTreeMap<Text<'a>, BTreeMap<Text<'a>, String>>,
}

/// The configuration in [`AgentSelf`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentSelfConfig<'a> {
    /// The region, always `global`.
    pub region: Text<'a>,
    /// The data center of the node.
    pub datacenter: Text<'a>,
    /// The name of the node.
    pub node_name: Text<'a>,
    /// The path of the data directory.
    pub data_dir: Text<'a>,
    /// The client part: the agent runs allocations.
    pub client: AgentPart<'a>,
    /// The server part: not enabled.
    pub server: AgentPart<'a>,
    /// The version of the agent.
    pub version: AgentVersion<'a>,
}

/// One part of the agent, client or server, in its configuration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentPart<'a> {
    /// Whether the agent has this part.
    pub enabled: bool,
    /// The configured metadata of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<Cow<'a, BTreeMap<String, String>>>,
}

/// The version in the configuration of the agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentVersion<'a> {
    /// The version number, such as `1.2.3`.
    pub version: Text<'a>,
}

/// The agent as a member of a cluster, in [`AgentSelf`] and [`AgentMembers`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentMember<'a> {
    /// The name of the node.
    pub name: Text<'a>,
    /// The IP address of the node.
    pub addr: Text<'a>,
    /// The port for gossip between servers; 0 if there is none.
    pub port: u16,
    /// The tags that servers send to each other.
    #[serde(deserialize_with = "or_empty")]
    pub tags: BTreeMap<Text<'a>, Text<'a>>,
    /// The status, always `alive`.
    pub status: Text<'a>,
    /// The oldest gossip protocol that the agent speaks. Always 0: it speaks to no other server.
    pub protocol_min: u8,
    /// Always 0, as `protocol_min`.
    pub protocol_max: u8,
    /// Always 0, as `protocol_min`.
    pub protocol_cur: u8,
    /// Always 0, as `protocol_min`.
    pub delegate_min: u8,
    /// Always 0, as `protocol_min`.
    pub delegate_max: u8,
    /// Always 0, as `protocol_min`.
    pub delegate_cur: u8,
}

/// The answer of `/v1/agent/members`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentMembers<'a> {
    /// The name of the server that answers.
    pub server_name: Text<'a>,
    /// The region, always `global`.
    pub server_region: Text<'a>,
    /// The data center of that server.
    #[serde(rename = "ServerDC")]
    pub server_dc: Text<'a>,
    /// The members of the cluster: the agent alone.
    pub members: Vec<AgentMember<'a>>,
}

/// The answer of `/v1/agent/health`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentHealth<'a> {
    /// The health of the client part, which runs allocations.
    pub client: PartHealth<'a>,
    /// The health of the server part, which takes jobs.
    pub server: PartHealth<'a>,
}

/// The health of one part of the agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartHealth<'a> {
    /// Whether this part works.
    pub ok: bool,
    /// `ok`, or why this part does not work.
    pub message: Text<'a>,
}

/// The answer of `/v1/metrics`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MetricsSummary<'a> {
    /// The time at which the numbers were read.
    pub timestamp: Text<'a>,
    /// All numbers; the same name may occur with different labels.
    pub gauges: Vec<MetricGauge<'a>>,
    /// The agent has no counters in this form: always empty.
    pub counters: Vec<Absent>,
    /// The agent has no points: always empty.
    pub points: Vec<Absent>,
    /// The agent has no samples: always empty.
    pub samples: Vec<Absent>,
}

/// One number of [`MetricsSummary`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MetricGauge<'a> {
    /// The name, such as `ostler.<object>.<member>`.
    pub name: Text<'a>,
    /// The value of the number.
    pub value: f64,
    /// The labels of the number; often none.
    #[serde(deserialize_with = "or_empty")]
    pub labels: BTreeMap<Text<'a>, Text<'a>>,
}

/// Nomad's `Namespace`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireNamespace<'a> {
    /// The name of the namespace.
    pub name: Text<'a>,
    /// A description for people.
    pub description: Text<'a>,
    /// The name of a quota. Always empty: there are no quotas.
    pub quota: Text<'a>,
    /// The index at which the namespace was created.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
    /// Ours: whether it stands in the agent's configuration and can only be changed there.
    pub configured: bool,
}

/// A request to create or change a namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NamespaceRequest {
    /// The name of the namespace; empty for that of the path.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// The name of a quota of Nomad Enterprise. It is refused unless it is empty.
    pub quota: String,
}
