//! Scaling of groups: what is asked, what came of it, and the policies.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::json::JsonObject;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Text, or_empty};

/// `ScalingRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingRequest {
    /// The new count; none: only an event is noted.
    pub count: Option<i64>,
    /// `Group`, and perhaps `Job` and `Namespace`.
    #[serde(deserialize_with = "or_empty")]
    pub target: BTreeMap<String, String>,
    /// Why, for people.
    #[serde(deserialize_with = "or_empty")]
    pub message: String,
    /// The event is one of something that went wrong.
    #[serde(deserialize_with = "or_empty")]
    pub error: bool,
    /// What else is to be noted.
    #[serde(deserialize_with = "or_empty")]
    pub meta: JsonObject,
    /// There are no policies on jobs that could be overridden.
    #[serde(deserialize_with = "or_empty")]
    pub policy_override: bool,
    /// Only if the job is at this index; 0: at any.
    #[serde(deserialize_with = "or_empty")]
    pub job_modify_index: u64,
}

/// `JobScaleStatusResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobScaleStatus<'a> {
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// Its namespace.
    pub namespace: Text<'a>,
    /// Index of the first version.
    pub job_create_index: u64,
    /// Index of the last change.
    pub job_modify_index: u64,
    /// Somebody stopped it.
    pub job_stopped: bool,
    /// By group.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: BTreeMap<Text<'a>, GroupScaleStatus>,
}

/// `TaskGroupScaleStatus`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupScaleStatus {
    /// The count.
    pub desired: u32,
    /// Allocations that are not over.
    pub placed: u32,
    /// Those of them that run.
    pub running: u32,
    /// Those that were judged healthy.
    pub healthy: u32,
    /// Those that were judged unhealthy.
    pub unhealthy: u32,
    /// What was asked, newest first; none: never anything.
    pub events: Option<Vec<ScalingEvent>>,
}

/// `ScalingEvent`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingEvent {
    /// When.
    pub time: Timestamp,
    /// The new count; none: nothing was changed.
    pub count: Option<u32>,
    /// The count before.
    pub previous_count: u32,
    /// Why, for people.
    pub message: String,
    /// Something went wrong.
    pub error: bool,
    /// What else was noted.
    pub meta: Option<JsonObject>,
    /// The evaluation of the change.
    #[serde(rename = "EvalID")]
    pub eval_id: Option<String>,
    /// Index of the change.
    pub create_index: u64,
}

/// `ScalingPolicyListStub`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingPolicyStub<'a> {
    /// Its id, as long as its job is there.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// An autoscaler is to look at it.
    pub enabled: bool,
    /// `horizontal`.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// `Namespace`, `Job`, `Group`.
    #[serde(deserialize_with = "or_empty")]
    pub target: BTreeMap<Text<'a>, Text<'a>>,
    /// Index of the job's first version.
    pub create_index: u64,
    /// Index of the job's version.
    pub modify_index: u64,
}

/// `ScalingPolicy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ScalingPolicy<'a> {
    /// What the list has of it.
    #[serde(flatten)]
    pub stub: ScalingPolicyStub<'a>,
    /// Its job's namespace.
    pub namespace: Text<'a>,
    /// What an autoscaler is told.
    pub policy: Cow<'a, JsonObject>,
    /// Least count.
    pub min: u32,
    /// Largest count.
    pub max: u32,
}
