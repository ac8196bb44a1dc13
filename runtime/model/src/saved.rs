//! What is written to the state file beside allocations and tasks, by the name of its record.
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
//! Written by the agent: [`SavedAllocState`], [`EndedPlaces`], [`PluginHandle`], [`DriverManagerState`],
//! [`DeviceManagerState`], [`NodeRegistration`], [`NodeBoot`]. Not written yet, because the agent places jobs
//! itself and gives no network to an allocation: [`DeploymentStatus`], [`NetworkStatus`],
//! [`AcknowledgedState`]; their layout is fixed so that an agent that writes them needs no new
//! schema.

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

/// What became of an allocation, as a whole. The states of its tasks have records of their own, so
/// that one task's event does not write all of them again. Derived from those states: may lag behind
/// them while the allocation lives, and agrees with them once it is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAllocState {
    /// Derived from the task states, or forced.
    pub client_status: ClientStatus,
    /// A sentence on it.
    pub client_description: String,
    /// The status was given from outside the tasks (run too long, not restored) and stays.
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

/// A job as the agent runs it, under its own key: what is to be there after a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The newest version.
    pub job: Arc<Job>,
    /// 0 for the first, one more with each change.
    pub version: u64,
    /// When this version came.
    pub submitted_at: Timestamp,
    /// Index at which the job first came.
    pub create_index: u64,
    /// Index of the last change to the record.
    pub modify_index: u64,
    /// Index at which this version came.
    pub job_modify_index: u64,
    /// Nothing of it is to run.
    pub stopped: bool,
    /// Who gave it.
    pub origin: JobOrigin,
    /// All of it was healthy once: what a deployment that fails may go back to.
    pub stable: bool,
}

/// Places of a task group whose allocations are over, so that nobody fills them again when those are
/// collected: a block of neighbouring indexes, for one version of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedPlaces {
    /// Index at which the job first came: a job that is purged and comes again is another one.
    pub create_index: u64,
    /// Version of the job that the allocations were of. Those of another are of no interest.
    pub version: u64,
    /// By index in the group.
    pub places: BTreeMap<u32, EndedPlace>,
}

/// What is remembered of a place when the allocation that had it last is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedPlace {
    /// That allocation.
    pub alloc: AllocId,
    /// How it ended.
    pub status: ClientStatus,
    /// Restarts of all its tasks together.
    pub restarts: u64,
    /// When the last of its tasks ended.
    pub ended_at: Timestamp,
}

/// A namespace that was made over the API, under its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRecord {
    /// What people say of it.
    pub description: String,
    /// Index at which it was made.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

/// Where a job came from; who may change it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobOrigin {
    /// The API, or the command line.
    #[default]
    Api,
    /// A file of the jobs directory: the job follows the file.
    File(PathBuf),
    /// `ostler run`: it ends with its agent, and is never on record.
    Run,
}

/// The verdict on an allocation that belongs to a deployment. Given once for each, never taken back: it must
/// survive a restart, or the allocation would be judged a second time from a fresh clock.
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
    /// The servers' deployment that it is for; absent where no server asked.
    pub deployment: Option<Box<str>>,
}

impl DeploymentStatus {
    /// Judged healthy.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy == Some(true)
    }

    /// Judged unhealthy. An allocation without a verdict is neither.
    #[must_use]
    pub fn is_unhealthy(&self) -> bool {
        self.healthy == Some(false)
    }
}

/// The network an allocation was given when it was set up: needed again after a restart, for tasks
/// that start anew and for taking the network down.
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

/// What whoever placed the allocation has last confirmed to know of it. An agent that restarts
/// compares with it and sends only what differs, instead of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedState {
    /// Status.
    pub client_status: ClientStatus,
    /// A sentence on it.
    pub client_description: String,
    /// The verdict of a deployment, if there was one.
    pub deployment_status: Option<DeploymentStatus>,
    /// The network, if there was one.
    pub network_status: Option<NetworkStatus>,
    /// Every task.
    pub tasks: BTreeMap<TaskName, TaskState>,
}

/// What must be known of a plugin to recognise, at a later start, that another one goes by its
/// name: handles of tasks are made by one plugin and read by the one that has its name then.
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
    /// By the name jobs use, which is the plugin's own.
    pub drivers: BTreeMap<PluginName, SeenDriver>,
}

/// One driver, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDriver {
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
    /// By the plugin's own name.
    pub plugins: BTreeMap<PluginName, SeenDevicePlugin>,
}

/// One device plugin, as last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDevicePlugin {
    /// Version of the plugin.
    pub version: String,
    /// SHA-256 of the plugin, hex.
    pub digest: String,
    /// Whether its last fingerprint succeeded.
    pub health: HealthState,
    /// The groups it reported last, in order; kept while it does not answer.
    pub groups: Vec<SeenDeviceGroup>,
}

/// One group of devices, as last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDeviceGroup {
    /// Its name.
    pub key: GroupKey,
    /// Ids of its instances, in order.
    pub instances: Vec<String>,
}

/// The node, as it made itself known in this data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRegistration {
    /// Its id.
    pub id: NodeId,
    /// The name people see; the last one it had.
    pub name: String,
    /// First start with this id and this state file.
    pub registered_at: Timestamp,
}

/// The boot of the machine in which an agent last restored its allocations: in another one, what
/// their prestart tasks prepared may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBoot {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

#[cfg(test)]
#[path = "saved_tests.rs"]
mod tests;
