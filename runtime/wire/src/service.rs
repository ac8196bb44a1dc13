//! Services and what their checks say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// `ServiceRegistrationListStub`: the services of one namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceNamespace<'a> {
    /// The namespace.
    pub namespace: Text<'a>,
    /// By name.
    #[serde(deserialize_with = "or_empty")]
    pub services: Vec<ServiceStub<'a>>,
}

/// `ServiceRegistrationStub`: all that have one name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceStub<'a> {
    /// The name.
    pub service_name: Text<'a>,
    /// The tags of any of them.
    #[serde(deserialize_with = "or_empty")]
    pub tags: Vec<Text<'a>>,
}

/// `ServiceRegistration`: one that can be used.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceRegistration<'a> {
    /// Unique on the node.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Its name.
    pub service_name: Text<'a>,
    /// The namespace of its job.
    pub namespace: Text<'a>,
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: Text<'a>,
    /// The node's data center.
    pub datacenter: Text<'a>,
    /// Its job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// Its allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: Text<'a>,
    /// Its tags.
    #[serde(deserialize_with = "or_empty")]
    pub tags: Vec<Text<'a>>,
    /// Ours: its meta.
    #[serde(deserialize_with = "or_empty")]
    pub meta: BTreeMap<Text<'a>, Text<'a>>,
    /// Where it is reached.
    pub address: Text<'a>,
    /// And at which port; 0: at none.
    pub port: u16,
    /// Index of the list when it came.
    pub create_index: u64,
    /// Index of the list when it changed last.
    pub modify_index: u64,
}

/// `CheckQueryResult`: what one check says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckStatus<'a> {
    /// Which, on this node.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// `healthiness`, or `readiness` where a deployment does not ask for it.
    pub mode: Text<'a>,
    /// `success`, `failure` or `pending`; ours: `warning`.
    pub status: Text<'a>,
    /// The status of an HTTP answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// What the last answer said.
    pub output: Text<'a>,
    /// Seconds since 1970 of the last answer; 0: there is none.
    pub timestamp: u64,
    /// The allocation's name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub group: Text<'a>,
    /// The task whose service it is of; absent: the group.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub task: Text<'a>,
    /// The service.
    pub service: Text<'a>,
    /// Its name.
    pub check: Text<'a>,
}
