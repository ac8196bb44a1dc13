//! Deployments, and the requests that change them and the versions of a job.

use std::collections::BTreeMap;

use ostler_model::ids::AllocId;
use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// Nomad's `Deployment`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireDeployment<'a> {
    /// The id of the deployment, a UUID.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// The version of the job that it rolls out.
    pub job_version: u64,
    /// The index of the job when the deployment began.
    pub job_modify_index: u64,
    /// The index at which that version was registered.
    pub job_spec_modify_index: u64,
    /// The index at which the job was first registered.
    pub job_create_index: u64,
    /// A deployment is in one region: always false.
    pub is_multiregion: bool,
    /// The state of each task group, by its name.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: BTreeMap<Text<'a>, DeploymentState<'a>>,
    /// The status: `running`, `paused`, `successful`, `failed` or `cancelled`.
    pub status: Text<'a>,
    /// One sentence about the status.
    pub status_description: Text<'a>,
    /// The index at which the deployment began.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// Nomad's `DeploymentState`: one task group of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentState<'a> {
    /// Whether the last stable version comes back when the deployment fails.
    pub auto_revert: bool,
    /// Whether the canaries are promoted as soon as all of them are healthy.
    pub auto_promote: bool,
    /// The time within which an allocation must become healthy, nanoseconds; 0 for no limit.
    pub progress_deadline: u64,
    /// The time by which an allocation must become healthy, RFC 3339; otherwise the deployment
    /// fails.
    pub require_progress_by: Text<'a>,
    /// Whether the canaries were promoted.
    pub promoted: bool,
    /// The ids of the canaries that were placed.
    #[serde(deserialize_with = "or_empty")]
    pub placed_canaries: Vec<AllocId>,
    /// The number of canaries that the group wants.
    pub desired_canaries: u32,
    /// The number of allocations that the group wants.
    pub desired_total: u32,
    /// The number of allocations that were placed.
    pub placed_allocs: u32,
    /// The number of allocations that are healthy.
    pub healthy_allocs: u32,
    /// The number of allocations that are unhealthy for good.
    pub unhealthy_allocs: u32,
}

/// Nomad's `DeploymentUpdateResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentUpdateResponse {
    /// The id of the evaluation of what follows.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// The index of that evaluation.
    pub eval_create_index: u64,
    /// The index of the change of the deployment.
    pub deployment_modify_index: u64,
    /// The version that came back; none if none did.
    pub reverted_job_version: Option<u64>,
    /// The index of the change.
    pub index: u64,
}

/// Nomad's `DeploymentPromoteRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PromoteRequest {
    /// The id of the deployment; it must be that of the path, or empty.
    #[serde(rename = "DeploymentID", deserialize_with = "or_empty")]
    pub deployment_id: String,
    /// Whether to promote the canaries of every group.
    pub all: bool,
    /// The groups whose canaries are promoted, if not all.
    #[serde(deserialize_with = "or_empty")]
    pub groups: Vec<String>,
}

/// Nomad's `DeploymentPauseRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PauseRequest {
    /// The id of the deployment; it must be that of the path, or empty.
    #[serde(rename = "DeploymentID", deserialize_with = "or_empty")]
    pub deployment_id: String,
    /// Whether to pause the deployment; otherwise it is resumed.
    pub pause: bool,
}

/// Nomad's `DeploymentAllocHealthRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocHealthRequest {
    /// The id of the deployment; it must be that of the path, or empty.
    #[serde(rename = "DeploymentID", deserialize_with = "or_empty")]
    pub deployment_id: String,
    /// The ids of allocations that are healthy.
    #[serde(rename = "HealthyAllocationIDs", deserialize_with = "or_empty")]
    pub healthy: Vec<String>,
    /// The ids of allocations that are unhealthy.
    #[serde(rename = "UnhealthyAllocationIDs", deserialize_with = "or_empty")]
    pub unhealthy: Vec<String>,
}

/// Nomad's `JobRevertRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RevertRequest {
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The version to go back to.
    pub job_version: u64,
    /// The version that the job must be at; none for any.
    pub enforce_prior_version: Option<u64>,
}

/// Nomad's `JobStabilityRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StableRequest {
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The version that is marked.
    pub job_version: u64,
    /// Whether that version is stable.
    pub stable: bool,
}

/// Nomad's `JobStabilityResponse`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobStabilityResponse {
    /// The index of the change.
    pub job_modify_index: u64,
    /// The index of the change again, under the name that all answers have.
    pub index: u64,
}

/// Nomad's `RescheduleTracker`: the failed allocations that an allocation follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleTracker {
    /// The events, the oldest first.
    #[serde(deserialize_with = "or_empty")]
    pub events: Vec<WireRescheduleEvent>,
}

/// Nomad's `RescheduleEvent`: one failed allocation and its replacement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireRescheduleEvent {
    /// The time at which the successor was placed, nanoseconds since 1970.
    pub reschedule_time: u64,
    /// The id of the allocation that failed.
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: AllocId,
    /// The id of the node of that allocation.
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// How long the scheduler waited before it placed the successor, nanoseconds.
    pub delay: u64,
}
