//! An allocation: the static part ([`Allocation`]) and the dynamic part ([`AllocState`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cores::CoreSet;
use super::held_once::HeldOnce;
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
    /// Run.
    #[default]
    Run,
    /// Stop and stay stopped.
    Stop,
}

/// What is asked of this node: one instance of a task group with its resources. Never changes
/// but by a newer copy from whoever asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// Unique for ever.
    pub id: AllocId,
    /// `<job>.<group>[<index>]`.
    pub name: String,
    /// The job as it was when placed.
    pub job: Arc<Job>,
    /// Which group of it.
    pub group: GroupName,
    /// 0 to count − 1.
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
    /// Whose place it takes: waited for before anything starts, and its data is moved here.
    pub previous: Option<AllocId>,
    /// Why `desired` is what it is; empty for an allocation that is to run.
    pub desired_description: String,
    /// The deployment that it is judged for.
    pub deployment: Option<AllocDeployment>,
    /// Those before it in its place that had failed, oldest first, as far as they count for the next.
    pub reschedules: Vec<RescheduleEvent>,
}

/// A deployment, of servers or of this node, and since when an allocation belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocDeployment {
    /// Its id.
    pub id: Box<str>,
    /// Its deadlines count from here.
    pub since: Timestamp,
    /// One of the first of a new version, which run beside the old ones.
    pub canary: bool,
}

impl Allocation {
    /// The deployment that a verdict on its health is for.
    #[must_use]
    pub fn deployment_id(&self) -> Option<&str> {
        self.deployment.as_ref().map(|deployment| &*deployment.id)
    }

    /// MHz of processor time that a task of it has: what it asked for, or what its cores are.
    #[must_use]
    pub fn cpu_mhz(&self, task: &Task) -> u32 {
        self.cores.get(&task.name).map_or(task.resources.cpu_mhz, |cores| cores.cpu_mhz)
    }

    /// Cores that are a task's own; none where it shares those that are nobody's.
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

/// What became of an allocation on this node. Texts as Nomad's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientStatus {
    /// Nothing has started.
    #[default]
    Pending,
    /// Something runs.
    Running,
    /// All ended well.
    Complete,
    /// Something failed.
    Failed,
}

impl ClientStatus {
    /// Complete or failed. Does not mean that nothing runs any more: siblings may still be on
    /// their way out.
    #[must_use]
    pub fn terminal(self) -> bool {
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

/// What is: a snapshot of everything that changes while an allocation lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocState {
    /// Derived from the task states, or forced.
    pub client_status: ClientStatus,
    /// A sentence on it: "Tasks are running".
    pub client_description: String,
    /// Every task of the group. HeldOnce by all who hold this state of the allocation.
    pub tasks: Arc<BTreeMap<TaskName, HeldOnce<TaskState>>>,
    /// The verdict on its health, where somebody asked for one.
    pub health: Option<DeploymentStatus>,
    /// Its network, where it has one of its own and that is made.
    pub network: Option<Arc<NetworkStatus>>,
}
