//! The agent about itself.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Absent, Text, or_empty};

/// What `/v1/agent/self` answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSelf<'a> {
    /// Its configuration.
    pub config: AgentConfig<'a>,
    /// Itself as a member of a cluster.
    pub member: AgentMember<'a>,
    /// Texts by topic, which Nomad's command line prints.
    #[serde(deserialize_with = "or_empty")]
    pub stats: BTreeMap<Text<'a>, BTreeMap<Text<'a>, String>>,
}

/// See [`AgentSelf`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentConfig<'a> {
    /// `global`.
    pub region: Text<'a>,
    /// Its data center.
    pub datacenter: Text<'a>,
    /// Name of its node.
    pub node_name: Text<'a>,
    /// Its data directory.
    pub data_dir: Text<'a>,
    /// It runs allocations.
    pub client: AgentPart<'a>,
    /// It is no server.
    pub server: AgentPart<'a>,
    /// Its version.
    pub version: AgentVersion<'a>,
}

/// See [`AgentConfig`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentPart<'a> {
    /// It is this.
    pub enabled: bool,
    /// Configured pairs of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta: Option<Cow<'a, BTreeMap<String, String>>>,
}

/// See [`AgentConfig`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentVersion<'a> {
    /// `1.2.3`.
    pub version: Text<'a>,
}

/// See [`AgentSelf`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentMember<'a> {
    /// Name of its node.
    pub name: Text<'a>,
    /// Address of its node.
    pub addr: Text<'a>,
    /// It has none.
    pub port: u16,
    /// What servers tell each other.
    #[serde(deserialize_with = "or_empty")]
    pub tags: BTreeMap<Text<'a>, Text<'a>>,
    /// `alive`.
    pub status: Text<'a>,
    /// It speaks to no other server.
    pub protocol_min: u8,
    /// As `protocol_min`.
    pub protocol_max: u8,
    /// As `protocol_min`.
    pub protocol_cur: u8,
    /// As `protocol_min`.
    pub delegate_min: u8,
    /// As `protocol_min`.
    pub delegate_max: u8,
    /// As `protocol_min`.
    pub delegate_cur: u8,
}

/// What `/v1/agent/members` answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AgentMembers<'a> {
    /// Who answers.
    pub server_name: Text<'a>,
    /// `global`.
    pub server_region: Text<'a>,
    /// Its data center.
    #[serde(rename = "ServerDC")]
    pub server_dc: Text<'a>,
    /// Itself alone.
    pub members: Vec<AgentMember<'a>>,
}

/// What `/v1/agent/health` answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentHealth<'a> {
    /// It runs allocations.
    pub client: PartHealth<'a>,
    /// It takes jobs.
    pub server: PartHealth<'a>,
}

/// See [`AgentHealth`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartHealth<'a> {
    /// It does.
    pub ok: bool,
    /// Why not.
    pub message: Text<'a>,
}

/// What `/v1/metrics` answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Metrics<'a> {
    /// When they were taken.
    pub timestamp: Text<'a>,
    /// Numbers by name.
    pub gauges: Vec<Gauge<'a>>,
    /// None.
    pub counters: Vec<Absent>,
    /// None.
    pub points: Vec<Absent>,
    /// None.
    pub samples: Vec<Absent>,
}

/// See [`Metrics`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Gauge<'a> {
    /// `ostler.<object>.<member>`.
    pub name: Text<'a>,
    /// The number.
    pub value: f64,
    /// None.
    #[serde(deserialize_with = "or_empty")]
    pub labels: BTreeMap<Text<'a>, Text<'a>>,
}

/// `Namespace`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Namespace<'a> {
    /// Its name.
    pub name: Text<'a>,
    /// For people.
    pub description: Text<'a>,
    /// It has none.
    pub quota: Text<'a>,
    /// Index of the first change.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
    /// Ours: it is in the agent's configuration, which alone changes it.
    pub configured: bool,
}

/// A namespace that is to be made or changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NamespaceRequest {
    /// Its name; that of the path unless given.
    pub name: String,
    /// What people say of it.
    pub description: String,
    /// Of Nomad Enterprise.
    pub quota: String,
}
