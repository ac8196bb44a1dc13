//! An allocation: the static part ([`Allocation`]) and the dynamic part ([`AllocState`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cores::CoreSet;
use super::cow_arc::CowArc;
use super::ids::{AllocId, GroupName, TaskName};
use super::job::{Job, Task, TaskGroup};
use super::resources::{AllocatedCores, AllocatedDevice, AllocatedPort};
use super::rollout::RescheduleEvent;
use super::saved::{DeploymentStatus, NetworkStatus};
use super::task::TaskState;
use super::time::Timestamp;

/// What the operator wants of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DesiredStatus {
    /// The allocation is to run.
    #[default]
    Run,
    /// The allocation is to stop and to stay stopped.
    Stop,
}

/// What this node is asked to run: one instance of a task group with its resources. Whoever placed
/// it changes it only by sending a newer copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// Unique for ever.
    pub id: AllocId,
    /// `<job>.<group>[<index>]`.
    pub name: String,
    /// The job as it was when the allocation was placed.
    pub job: Arc<Job>,
    /// Name of the task group in the job.
    pub group: GroupName,
    /// Index of the allocation in its group, from 0 to count − 1.
    pub index: u32,
    /// When it was placed.
    pub created_at: Timestamp,
    /// Run or stop.
    pub desired: DesiredStatus,
    /// Ports assigned to it.
    pub ports: Vec<AllocatedPort>,
    /// Devices assigned to its tasks.
    pub devices: BTreeMap<TaskName, Vec<AllocatedDevice>>,
    /// Cores assigned to those of its tasks that asked for some.
    pub cores: BTreeMap<TaskName, AllocatedCores>,
    /// Grows with each update; a lower one is stale.
    pub modify_index: u64,
    /// Index when it was placed.
    pub create_index: u64,
    /// Which version of the job `job` is.
    pub job_version: u64,
    /// The allocation whose place this one takes. Its end is waited for before anything starts, and
    /// its data is moved here.
    pub previous: Option<AllocId>,
    /// Why `desired` is what it is; empty for an allocation that is to run.
    pub desired_description: String,
    /// The deployment for which the health of the allocation is judged.
    pub deployment: Option<AllocDeployment>,
    /// The failed allocations that had this place before, oldest first, as far as they still count.
    pub reschedules: Vec<RescheduleEvent>,
}

/// A deployment, of servers or of this node, and since when an allocation belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDeployment {
    /// Id of the deployment.
    pub id: Box<str>,
    /// When the allocation joined the deployment. Deadlines count from here.
    pub since: Timestamp,
    /// The allocation is one of the first of a new version, which run beside the old ones.
    pub canary: bool,
}

impl Allocation {
    /// Id of the deployment that a verdict on the allocation's health is for.
    #[must_use]
    pub fn deployment_id(&self) -> Option<&str> {
        self.deployment.as_ref().map(|deployment| &*deployment.id)
    }

    /// MHz of processor time that a task of the allocation has: those that it asked for, or those
    /// of its cores.
    #[must_use]
    pub fn cpu_mhz(&self, task: &Task) -> u32 {
        self.cores.get(&task.name).map_or(task.resources.cpu_mhz, |cores| cores.cpu_mhz)
    }

    /// Cores that a task has for itself. Empty where the task shares the cores that nobody has.
    #[must_use]
    pub fn cores_of(&self, task: &TaskName) -> CoreSet {
        self.cores.get(task).map(|assigned| assigned.cores.clone()).unwrap_or_default()
    }

    /// The task group this is an instance of.
    #[must_use]
    pub fn task_group(&self) -> Option<&TaskGroup> {
        self.job.group(&self.group)
    }
}

/// The state of an allocation on this node. Texts as Nomad's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientStatus {
    /// No task has started.
    #[default]
    Pending,
    /// A task runs.
    Running,
    /// All tasks ended without a failure.
    Complete,
    /// A task failed, or the allocation could not run.
    Failed,
}

impl ClientStatus {
    /// Whether the status is complete or failed. Some tasks of the allocation may still run then,
    /// until they are stopped.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed)
    }
}

impl std::fmt::Display for ClientStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
        })
    }
}

/// A snapshot of everything that changes while an allocation lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocState {
    /// Derived from the task states, or forced.
    pub client_status: ClientStatus,
    /// A sentence on the status, such as "Tasks are running".
    pub client_description: String,
    /// State of every task of the group. Copies of this snapshot share it.
    pub tasks: Arc<BTreeMap<TaskName, CowArc<TaskState>>>,
    /// The verdict on the allocation's health, where a job or a server asked for one.
    pub health: Option<DeploymentStatus>,
    /// The allocation's own network, where it has one that is made already.
    pub network: Option<Arc<NetworkStatus>>,
}
