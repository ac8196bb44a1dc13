//! Requests that change something, and the answers to them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::ids::AllocId;
use serde::{Deserialize, Serialize};

use crate::{Absent, AllocMetric, JobDiff, Text, or_empty};

/// Nomad's `JobRegisterRequest`, `JobPlanRequest` and `JobValidateRequest`. `J` is the job. The
/// server reads the job separately, so that errors name the place in the text.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobRequest<J> {
    /// The job to register, plan or validate.
    pub job: J,
    /// Whether the request holds only if the job is at `job_modify_index`; 0 means that there is no
    /// such job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce_index: Option<bool>,
    /// The index that the job must be at; see `enforce_index`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_modify_index: Option<u64>,
    /// Whether groups that the job has already keep their counts, whatever `job` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_counts: Option<bool>,
    /// Ours: whether to create a new version even if nothing of the job changed, so that
    /// allocations that have ended run again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun: Option<bool>,
    /// Whether the answer to a plan has the difference from the present version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<bool>,
    /// The namespace of the job; the one in the query comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The region of the job; there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// Nomad's `JobsParseRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ParseRequest {
    /// The text of a job file in HCL.
    #[serde(rename = "JobHCL")]
    pub job_hcl: String,
    /// Whether to add defaults. The answer always has them.
    #[serde(rename = "Canonicalize", default)]
    pub canonicalize: bool,
    /// The values of variables, in the form of a variables file. Clients from Nomad 1.4 on send it.
    #[serde(rename = "Variables", default)]
    pub variables: Option<String>,
    /// Whether the text is in the old HCL1 syntax, which is refused.
    #[serde(rename = "hclv1", default)]
    pub hcl_v1: bool,
}

/// Nomad's `JobRegisterResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobRegisterResponse {
    /// The id of the evaluation of the registration.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// The index of that evaluation.
    pub eval_create_index: u64,
    /// The index at which the version was registered.
    pub job_modify_index: u64,
    /// Warnings for people in one text; empty if there are none.
    pub warnings: String,
    /// The index of the change.
    pub index: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub last_contact: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub known_leader: bool,
    /// Ours: the version and the allocations that the registration changed.
    pub registered: Effects,
    /// Ours: the warnings that do not follow from the job file alone.
    pub agent_warnings: Option<Vec<String>>,
}

impl JobRegisterResponse {
    /// The warnings for a client that has read the job file itself and has shown the warnings about
    /// its text.
    #[must_use]
    pub fn new_warnings(&self) -> Text<'_> {
        warnings_beyond_text(self.agent_warnings.as_deref(), &self.warnings)
    }

    /// Whether the registration placed, updated and stopped nothing.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        let Effects { version: _, placed, updated, stopped } = &self.registered;
        placed.is_empty() && updated.is_empty() && stopped.is_empty()
    }
}

fn warnings_beyond_text<'a>(agent: Option<&[String]>, all: &'a str) -> Text<'a> {
    agent.map_or(Cow::Borrowed(all), |warnings| Cow::Owned(warnings.join("\n")))
}

/// The version that a registration created, and the allocations that it changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Effects {
    /// The version of the job.
    pub version: u64,
    /// The ids of new allocations.
    pub placed: Vec<AllocId>,
    /// The ids of allocations that were updated without a restart.
    pub updated: Vec<AllocId>,
    /// The ids of allocations that were told to stop.
    pub stopped: Vec<AllocId>,
}

/// Nomad's `JobDeregisterResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobDeregisterResponse {
    /// The id of the evaluation; empty if the client need not wait for one.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// The index of that evaluation.
    pub eval_create_index: u64,
    /// The index of the change.
    pub job_modify_index: u64,
    /// This agent has no CSI volumes: always empty.
    #[serde(rename = "VolumeEvalID")]
    pub volume_eval_id: String,
    /// This agent has no CSI volumes: always 0.
    pub volume_eval_index: u64,
    /// The index of the change.
    pub index: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub last_contact: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub known_leader: bool,
    /// Ours: a warning about a change that was made; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
}

/// Nomad's `AllocStopResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocStopResponse {
    /// The id of the evaluation of the stop.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// The index of the change.
    pub index: u64,
    /// Ours: a warning about a change that was made; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
}

/// Nomad's `GenericResponse`: the request was carried out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GenericResponse {
    /// Always 0: the request changed nothing that has an index.
    pub index: u64,
}

/// Nomad's `JobValidateResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobValidateResponse {
    /// Whether the drivers checked the configurations of the tasks; always true.
    pub driver_config_validated: bool,
    /// The errors of the job; none if there are none.
    pub validation_errors: Option<Vec<String>>,
    /// The same errors in one text, a line for each.
    pub error: String,
    /// Warnings for people in one text; empty if there are none.
    pub warnings: String,
    /// Ours: the errors in the configurations of the tasks, each with its place.
    #[serde(deserialize_with = "or_empty")]
    pub config_problems: Vec<WireConfigProblem>,
    /// Ours: the warnings that do not follow from the job file alone.
    #[serde(deserialize_with = "or_empty")]
    pub agent_warnings: Vec<String>,
}

/// An error in the configuration of a task, or in the choice of its driver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireConfigProblem {
    /// The name of the task group.
    pub group: String,
    /// The name of the task.
    pub task: String,
    /// The dotted path inside `config`; empty for the whole block.
    pub path: String,
    /// What is wrong, in one sentence.
    pub message: String,
    /// A name that may have been meant instead of the last name of the path.
    pub suggestion: Option<String>,
    /// Whether the driver is wrong: there is none of this name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_driver: bool,
}

/// Nomad's `JobPlanResponse`. `L` is a list of device requests, each with every candidate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobPlanResponse<'a, L> {
    /// What a registration would do to each group.
    pub annotations: Annotations<'a>,
    /// What would wait, by group.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: Option<BTreeMap<String, AllocMetric>>,
    /// The index of the present version, for `--check-index`.
    pub job_modify_index: u64,
    /// A plan creates no evaluations: always `null`.
    pub created_evals: Absent,
    /// The difference from the present version, if the request asks for it.
    pub diff: Option<JobDiff<'a>>,
    /// This agent has no periodic jobs: always `null`.
    pub next_periodic_launch: Absent,
    /// Warnings for people in one text; empty if there are none.
    pub warnings: Text<'a>,
    /// The index of the present version of the job.
    pub index: u64,
    /// Ours: the difference, a line for each field.
    #[serde(deserialize_with = "or_empty")]
    pub changes: Cow<'a, [String]>,
    /// Ours: what would wait and why, a sentence for each group.
    #[serde(deserialize_with = "or_empty")]
    pub waiting: Vec<String>,
    /// Ours: each device request of the allocations that would be placed, with every candidate.
    pub devices: L,
    /// Ours: the warnings that do not follow from the job file alone.
    pub agent_warnings: Option<Cow<'a, [String]>>,
}

impl<L> JobPlanResponse<'_, L> {
    /// The warnings for a client that has read the job file itself and has shown the warnings about
    /// its text.
    #[must_use]
    pub fn new_warnings(&self) -> Text<'_> {
        warnings_beyond_text(self.agent_warnings.as_deref(), &self.warnings)
    }
}

/// Nomad's `PlanAnnotations`: what a registration would do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Annotations<'a> {
    /// The number of changes of each kind, by group.
    #[serde(rename = "DesiredTGUpdates", deserialize_with = "or_empty")]
    pub groups: BTreeMap<Text<'a>, DesiredUpdates>,
    /// This agent preempts nothing: always `null`.
    pub preempted_allocs: Absent,
}

/// Nomad's `DesiredUpdates`: how many allocations of a group a registration would change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredUpdates {
    /// Allocations that stay as they are, for now or for good.
    pub ignore: u32,
    /// Allocations that would be placed.
    pub place: u32,
    /// There is no other node to move to: always 0.
    pub migrate: u32,
    /// Allocations that would be stopped.
    pub stop: u32,
    /// Allocations that would be updated without a restart.
    pub in_place_update: u32,
    /// Allocations that would be stopped and replaced.
    pub destructive_update: u32,
    /// Canaries that would be placed beside the old allocations.
    pub canary: u32,
    /// This agent preempts nothing: always 0.
    pub preemptions: u32,
    /// Ours: the allocations in `ignore` that a later step replaces or stops.
    #[serde(skip_serializing_if = "is_none")]
    pub later: u32,
    /// Ours: the allocations in `place` that do not fit now.
    #[serde(skip_serializing_if = "is_none")]
    pub waiting: u32,
}

/// Whether a count is 0. Fields that Nomad does not have are written only if they are not 0.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_none(count: &u32) -> bool {
    *count == 0
}

impl DesiredUpdates {
    /// Whether a registration would change an allocation.
    #[must_use]
    pub const fn has_changes(&self) -> bool {
        self.place > 0
            || self.stop > 0
            || self.in_place_update > 0
            || self.destructive_update > 0
            || self.canary > 0
            || self.later > 0
    }
}

/// Nomad's `AllocationRestartRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RestartRequest<'a> {
    /// The one task to restart; none or empty for all tasks that run.
    pub task_name: Option<Text<'a>>,
    /// Whether to restart every task, including dead and lifecycle tasks.
    pub all_tasks: Option<bool>,
}

/// Nomad's `AllocationSignalRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SignalRequest<'a> {
    /// The one task to signal; none or empty for all tasks that run.
    pub task: Option<Text<'a>>,
    /// The name of the signal; SIGKILL if there is none.
    pub signal: Option<Text<'a>>,
}

/// The body of `PUT /v1/job/ID/evaluate`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvaluateRequest {
    /// The id of the job; it must be that of the path, or empty.
    #[serde(rename = "JobID", deserialize_with = "or_empty")]
    pub job_id: String,
    /// The options of the evaluation.
    pub eval_options: EvalOptions,
}

/// The options of an [`EvaluateRequest`].
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvalOptions {
    /// Whether to place failed allocations again, whatever their reschedule policy says.
    pub force_reschedule: bool,
}
