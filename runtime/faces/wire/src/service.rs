//! Services and the results of their checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// Nomad's `ServiceRegistrationListStub`: the services of one namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceNamespace<'a> {
    /// The name of the namespace.
    pub namespace: Text<'a>,
    /// The services, in the order of their names.
    #[serde(deserialize_with = "or_empty")]
    pub services: Vec<ServiceStub<'a>>,
}

/// Nomad's `ServiceRegistrationStub`: all services of one name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceStub<'a> {
    /// The name of the service.
    pub service_name: Text<'a>,
    /// The tags that any of these services has.
    #[serde(deserialize_with = "or_empty")]
    pub tags: Vec<Text<'a>>,
}

/// Nomad's `ServiceRegistration`: one instance of a service.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceRegistration<'a> {
    /// The id of the instance, unique on the node.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The name of the service.
    pub service_name: Text<'a>,
    /// The namespace of its job.
    pub namespace: Text<'a>,
    /// The id of the node.
    #[serde(rename = "NodeID")]
    pub node_id: Text<'a>,
    /// The data center of the node.
    pub datacenter: Text<'a>,
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// The id of the allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: Text<'a>,
    /// The tags of the instance.
    #[serde(deserialize_with = "or_empty")]
    pub tags: Vec<Text<'a>>,
    /// Ours: the metadata of the instance.
    #[serde(deserialize_with = "or_empty")]
    pub meta: BTreeMap<Text<'a>, Text<'a>>,
    /// The address at which the instance is reached.
    pub address: Text<'a>,
    /// The port at which it is reached; 0 for none.
    pub port: u16,
    /// The index of the list of services when the instance was registered.
    pub create_index: u64,
    /// The index of the list of services when the instance last changed.
    pub modify_index: u64,
}

/// Nomad's `CheckQueryResult`: the result of one check.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckQueryResult<'a> {
    /// The id of the check, unique on the node.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// What the check is for: `healthiness`, or `readiness` if deployments ignore it.
    pub mode: Text<'a>,
    /// The status: `success`, `failure` or `pending`; ours: `warning`.
    pub status: Text<'a>,
    /// The status code of the HTTP answer; absent for other checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// The output of the last run of the check.
    pub output: Text<'a>,
    /// The time of the last result, seconds since 1970; 0 if there is none.
    pub timestamp: u64,
    /// The name of the allocation.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub group: Text<'a>,
    /// The task whose service is checked; absent for a service of the group.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub task: Text<'a>,
    /// The name of the service.
    pub service: Text<'a>,
    /// The name of the check.
    pub check: Text<'a>,
}
