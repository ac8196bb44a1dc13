//! Scaling of task groups: requests, their history, and the policies of autoscalers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::json::JsonObject;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// Nomad's `ScalingRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingRequest {
    /// The new count; none to only record an event.
    pub count: Option<i64>,
    /// What to scale: `Group`, and optionally `Job` and `Namespace`.
    #[serde(deserialize_with = "or_empty")]
    pub target: BTreeMap<String, String>,
    /// The reason, for people.
    #[serde(deserialize_with = "or_empty")]
    pub message: String,
    /// Whether the event reports an error.
    #[serde(deserialize_with = "or_empty")]
    pub error: bool,
    /// Further data to record with the event.
    #[serde(deserialize_with = "or_empty")]
    pub meta: JsonObject,
    /// Ignored: no policy of a job could be overridden.
    #[serde(deserialize_with = "or_empty")]
    pub policy_override: bool,
    /// The index that the job must be at; 0 for any.
    #[serde(deserialize_with = "or_empty")]
    pub job_modify_index: u64,
}

/// Nomad's `JobScaleStatusResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobScaleStatus<'a> {
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The index at which the job was first registered.
    pub job_create_index: u64,
    /// The index of the last change of the job.
    pub job_modify_index: u64,
    /// Whether somebody stopped the job.
    pub job_stopped: bool,
    /// The numbers of each task group, by its name.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: BTreeMap<Text<'a>, GroupScaleStatus>,
}

/// Nomad's `TaskGroupScaleStatus`: the numbers of one task group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupScaleStatus {
    /// The count that the group wants.
    pub desired: u32,
    /// The number of allocations that have not ended.
    pub placed: u32,
    /// The number of allocations that run.
    pub running: u32,
    /// The number of allocations that were judged healthy.
    pub healthy: u32,
    /// The number of allocations that were judged unhealthy.
    pub unhealthy: u32,
    /// The recorded scaling events, newest first; none if there were none.
    pub events: Option<Vec<ScalingEvent>>,
}

/// Nomad's `ScalingEvent`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingEvent {
    /// The time of the event, nanoseconds since 1970.
    pub time: Timestamp,
    /// The new count; none if nothing was changed.
    pub count: Option<u32>,
    /// The count before the event.
    pub previous_count: u32,
    /// The reason, for people.
    pub message: String,
    /// Whether the event reports an error.
    pub error: bool,
    /// Further data that was recorded with the event.
    pub meta: Option<JsonObject>,
    /// The id of the evaluation of the change.
    #[serde(rename = "EvalID")]
    pub eval_id: Option<String>,
    /// The index of the change.
    pub create_index: u64,
}

/// Nomad's `ScalingPolicyListStub`: a policy in a list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingPolicyStub<'a> {
    /// The id of the policy; it stays the same as long as the job exists.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Whether an autoscaler shall follow it.
    pub enabled: bool,
    /// The type, always `horizontal`.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// What the policy scales: `Namespace`, `Job` and `Group`.
    #[serde(deserialize_with = "or_empty")]
    pub target: BTreeMap<Text<'a>, Text<'a>>,
    /// The index at which the job was first registered.
    pub create_index: u64,
    /// The index at which the version of the job was registered.
    pub modify_index: u64,
}

/// Nomad's `ScalingPolicy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireScalingPolicy<'a> {
    /// The fields that lists have too.
    #[serde(flatten)]
    pub stub: ScalingPolicyStub<'a>,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The part of the policy that only an autoscaler reads.
    pub policy: Cow<'a, JsonObject>,
    /// The smallest count.
    pub min: u32,
    /// The largest count.
    pub max: u32,
}
