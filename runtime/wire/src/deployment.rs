//! Deployments, and what is asked of them and of the versions of a job.

use std::collections::BTreeMap;

use ostler_model::ids::AllocId;
use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// `Deployment`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Deployment<'a> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// That of the job.
    pub namespace: Text<'a>,
    /// Its job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// The version it brings.
    pub job_version: u64,
    /// Index of the job's record when it began.
    pub job_modify_index: u64,
    /// Index at which the version came.
    pub job_spec_modify_index: u64,
    /// Index at which the job first came.
    pub job_create_index: u64,
    /// It is of one region.
    pub is_multiregion: bool,
    /// Its groups.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: BTreeMap<Text<'a>, DeploymentState<'a>>,
    /// `running`, `paused`, `successful`, `failed`, `cancelled`.
    pub status: Text<'a>,
    /// A sentence on it.
    pub status_description: Text<'a>,
    /// Index when it began.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

/// `DeploymentState`: one group of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentState<'a> {
    /// When it fails, the last stable version comes back.
    pub auto_revert: bool,
    /// Its canaries are promoted as soon as all are healthy.
    pub auto_promote: bool,
    /// Nanoseconds; 0: none.
    pub progress_deadline: u64,
    /// Fails when nothing has become healthy by then.
    pub require_progress_by: Text<'a>,
    /// The canaries were accepted.
    pub promoted: bool,
    /// Canaries that were placed.
    #[serde(deserialize_with = "or_empty")]
    pub placed_canaries: Vec<AllocId>,
    /// Canaries it wants.
    pub desired_canaries: u32,
    /// Allocations it wants.
    pub desired_total: u32,
    /// Those it has.
    pub placed_allocs: u32,
    /// Healthy ones.
    pub healthy_allocs: u32,
    /// Those that are not, and will not be.
    pub unhealthy_allocs: u32,
}

/// `DeploymentUpdateResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentChanged {
    /// The evaluation of what follows.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// Its index.
    pub eval_create_index: u64,
    /// Index of the change.
    pub deployment_modify_index: u64,
    /// The version that came back.
    pub reverted_job_version: Option<u64>,
    /// Index of the change.
    pub index: u64,
}

/// `DeploymentPromoteRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PromoteRequest {
    /// As the path has it.
    #[serde(rename = "DeploymentID", deserialize_with = "or_empty")]
    pub deployment_id: String,
    /// Of every group.
    pub all: bool,
    /// Of these groups.
    #[serde(deserialize_with = "or_empty")]
    pub groups: Vec<String>,
}

/// `DeploymentPauseRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PauseRequest {
    /// As the path has it.
    #[serde(rename = "DeploymentID", deserialize_with = "or_empty")]
    pub deployment_id: String,
    /// Halt it; otherwise go on.
    pub pause: bool,
}

/// `DeploymentAllocHealthRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocHealthRequest {
    /// As the path has it.
    #[serde(rename = "DeploymentID", deserialize_with = "or_empty")]
    pub deployment_id: String,
    /// These are healthy.
    #[serde(rename = "HealthyAllocationIDs", deserialize_with = "or_empty")]
    pub healthy: Vec<String>,
    /// These are not.
    #[serde(rename = "UnhealthyAllocationIDs", deserialize_with = "or_empty")]
    pub unhealthy: Vec<String>,
}

/// `JobRevertRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RevertRequest {
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The version that comes back.
    pub job_version: u64,
    /// Only when the present version is this one.
    pub enforce_prior_version: Option<u64>,
}

/// `JobStabilityRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StableRequest {
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Which version of it.
    pub job_version: u64,
    /// Is it stable?
    pub stable: bool,
}

/// `JobStabilityResponse`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StableSet {
    /// Index of the change.
    pub job_modify_index: u64,
    /// The same.
    pub index: u64,
}

/// `RescheduleTracker`: allocations before one that had failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleTracker {
    /// Oldest first.
    #[serde(deserialize_with = "or_empty")]
    pub events: Vec<RescheduleEvent>,
}

/// `RescheduleEvent`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleEvent {
    /// When the successor was placed, nanoseconds since the epoch.
    pub reschedule_time: u64,
    /// The allocation that had failed.
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: AllocId,
    /// Its node.
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// How long was waited, nanoseconds.
    pub delay: u64,
}
