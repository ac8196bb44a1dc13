//! Records of the state file beside those of allocations and tasks.
//!
//! ```text
//! job          JobRecord   EndedPlaces
//! allocation   SavedAllocState   DeploymentStatus   NetworkStatus   AcknowledgedState
//! plugin       PluginHandle
//! managers     DriverManagerState   DeviceManagerState
//! node         NodeRegistration   NodeBoot   NodeScheduling (in `scheduling`)
//! namespace    NamespaceRecord
//! ```
//!
//! Three records of an allocation exist only where there is something to record:
//! [`DeploymentStatus`] where its health was judged, [`NetworkStatus`] where it has a network of its
//! own, and [`AcknowledgedState`] where a server placed it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::alloc::{AllocState, ClientStatus};
use super::device::{GroupKey, HealthState};
use super::ids::{AllocId, NodeId, PluginName, TaskName};
use super::job::Job;
use super::plugin::PluginKind;
use super::task::TaskState;
use super::time::Timestamp;

/// The state of an allocation as a whole. The states of its tasks have records of their own, so
/// that an event of one task does not write all of them again. This record is derived from those
/// states: it may lag behind them while the allocation lives, and agrees with them once the
/// allocation has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAllocState {
    /// Derived from the task states, or forced.
    pub client_status: ClientStatus,
    /// A sentence on the status.
    pub client_description: String,
    /// The status was set from outside the tasks (run too long, not restored) and stays.
    pub forced: bool,
    /// Every task ended and the post-run hooks ran: nothing is left to clean up.
    pub finished: bool,
}

impl From<&AllocState> for SavedAllocState {
    fn from(state: &AllocState) -> Self {
        Self {
            client_status: state.client_status,
            client_description: state.client_description.clone(),
            forced: false,
            finished: false,
        }
    }
}

/// A job as the agent runs it, kept over restarts of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The newest version.
    pub job: Arc<Job>,
    /// 0 for the first, one more with each change.
    pub version: u64,
    /// When this version was submitted.
    pub submitted_at: Timestamp,
    /// Index at which the job first came.
    pub create_index: u64,
    /// Index of the last change to the record.
    pub modify_index: u64,
    /// Index at which this version came.
    pub job_modify_index: u64,
    /// The job is stopped: none of its allocations is to run.
    pub stopped: bool,
    /// Where the job came from.
    pub origin: JobOrigin,
    /// The whole version was healthy once, so a deployment that fails may go back to it.
    pub stable: bool,
}

/// Indexes of a task group whose allocations have ended, for one version of the job. They are
/// not filled again when those allocations are collected. One record holds a block of
/// neighbouring indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedPlaces {
    /// Index at which the job first came: a job that is purged and comes again is another one.
    pub create_index: u64,
    /// Version of the job that the allocations belonged to. Ends under another version do
    /// not count.
    pub version: u64,
    /// What is remembered of each allocation, by its index in the group.
    pub places: BTreeMap<u32, EndedPlace>,
}

/// What is remembered of the last allocation with an index, once it has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedPlace {
    /// Id of the allocation.
    pub alloc: AllocId,
    /// Status with which the allocation ended.
    pub status: ClientStatus,
    /// Restarts of all its tasks together.
    pub restarts: u64,
    /// When the last of its tasks ended.
    pub ended_at: Timestamp,
}

/// A namespace that was made over the API. The key of the record is its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRecord {
    /// Description for people.
    pub description: String,
    /// Index at which it was made.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

/// Where a job came from, which decides who may change it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobOrigin {
    /// The API, or the command line.
    #[default]
    Api,
    /// A file of the jobs directory: the job follows the file.
    File(PathBuf),
    /// `ostler run`: the job ends with its agent, and is never on record.
    Run,
}

/// The verdict on the health of an allocation in a deployment. It is given once and never
/// taken back, and it must survive a restart: otherwise the allocation would be judged again
/// from the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeploymentStatus {
    /// The verdict; `None` before there is one.
    pub healthy: Option<bool>,
    /// When `healthy` was set.
    pub changed_at: Option<Timestamp>,
    /// One of the first instances of a new version, tried before the others follow.
    pub canary: bool,
    /// Index of the update that last changed it at whoever placed the allocation; 0 when only the
    /// node knows it.
    pub modify_index: u64,
    /// Id of the servers' deployment that the verdict is for; absent where no server asked.
    pub deployment: Option<Box<str>>,
}

impl DeploymentStatus {
    /// Whether the allocation was judged healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy == Some(true)
    }

    /// Whether the allocation was judged unhealthy. An allocation without a verdict is neither.
    #[must_use]
    pub fn is_unhealthy(&self) -> bool {
        self.healthy == Some(false)
    }
}

/// The network of an allocation, as it is shown to people and reported to servers. What the agent
/// needs to take the network down is in a record of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Interface inside the allocation's network.
    pub interface_name: String,
    /// IPv4 address, or the only one; empty when there is none.
    pub address: String,
    /// IPv6 address; empty when there is none.
    pub address_ipv6: String,
    /// Name resolution, when it differs from the node's.
    pub dns: Option<DnsConfig>,
}

/// How names are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsConfig {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Domains tried for names without a dot.
    pub searches: Vec<String>,
    /// Options of the resolver, as in `resolv.conf`.
    pub options: Vec<String>,
}

/// The state of an allocation that the server which placed it confirmed last. An agent that
/// restarts compares with it and sends only what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedState {
    /// Status of the allocation as confirmed.
    pub client_status: ClientStatus,
    /// A sentence on the status.
    pub client_description: String,
    /// The verdict of a deployment, if there was one.
    pub deployment_status: Option<DeploymentStatus>,
    /// The network, if there was one.
    pub network_status: Option<NetworkStatus>,
    /// The state of every task, by its name.
    pub tasks: BTreeMap<TaskName, TaskState>,
}

/// What identifies a plugin, so that a later start notices when another plugin has its name.
/// Handles of tasks are made by one plugin and read by the plugin that has its name then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginHandle {
    /// Name of its block in the configuration; its own name is the record's key.
    pub block: String,
    /// Driver or device plugin.
    pub kind: PluginKind,
    /// Version it gives itself.
    pub version: String,
    /// Version of the contract it was built for.
    pub interface_version: String,
    /// SHA-256 of the component, hex.
    pub digest: String,
    /// Bytes of the component.
    pub size_bytes: u64,
    /// `built-in`, or the file.
    pub source: String,
}

/// Which plugin serves which driver, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverManagerState {
    /// The drivers by the name that jobs use, which is the plugin's own.
    pub drivers: BTreeMap<PluginName, DriverRecord>,
}

/// One driver, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverRecord {
    /// Version of the plugin.
    pub version: String,
    /// SHA-256 of the plugin, hex.
    pub digest: String,
    /// Whether tasks could be given to it.
    pub health: HealthState,
}

/// Which plugin serves which devices, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceManagerState {
    /// The device plugins by their own names.
    pub plugins: BTreeMap<PluginName, DevicePluginRecord>,
}

/// One device plugin, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePluginRecord {
    /// Version of the plugin.
    pub version: String,
    /// SHA-256 of the plugin, hex.
    pub digest: String,
    /// Whether its last fingerprint succeeded.
    pub health: HealthState,
    /// The groups it reported last, in order; kept while it does not answer.
    pub groups: Vec<DeviceGroupRecord>,
}

/// One group of devices, as last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceGroupRecord {
    /// Name of the group.
    pub key: GroupKey,
    /// Ids of the group's instances, in order.
    pub instances: Vec<String>,
}

/// The identity of the node that belongs to this data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRegistration {
    /// Id of the node, which stays the same over restarts.
    pub id: NodeId,
    /// The last name that people saw for the node.
    pub name: String,
    /// When an agent first started with this id and this state file.
    pub registered_at: Timestamp,
}

/// The boot of the machine in which an agent last restored its allocations. After another boot,
/// what their prestart tasks prepared may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBoot {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

#[cfg(test)]
#[path = "saved_tests.rs"]
mod tests;
