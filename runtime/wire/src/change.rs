//! Requests that change something, and the answers to them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::ids::AllocId;
use serde::{Deserialize, Serialize};

use crate::{Absent, AllocMetric, JobDiff, Text, or_empty};

/// `JobRegisterRequest`, `JobPlanRequest` and `JobValidateRequest`. `J` is the job; the server reads that
/// apart, with its places.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobRequest<J> {
    /// The job.
    pub job: J,
    /// Only if the job is at `job_modify_index`; 0 means that there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforce_index: Option<bool>,
    /// See `enforce_index`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_modify_index: Option<u64>,
    /// Groups that the job has already keep their counts, whatever `job` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_counts: Option<bool>,
    /// Ours: a new version even if nothing of the job changed, so that what has ended of it runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun: Option<bool>,
    /// Say what differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<bool>,
    /// The namespace; there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The region; there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// `JobsParseRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ParseRequest {
    /// The text of a job.
    #[serde(rename = "JobHCL")]
    pub job_hcl: String,
    /// Accepted; what comes back always has its defaults.
    #[serde(rename = "Canonicalize", default)]
    pub canonicalize: bool,
    /// Values of variables, as in a file of them; clients from 1.4 on send it.
    #[serde(rename = "Variables", default)]
    pub variables: Option<String>,
    /// The text is in the old syntax.
    #[serde(rename = "hclv1", default)]
    pub hcl_v1: bool,
}

/// `JobRegisterResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Registered {
    /// Its evaluation.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// Index of the evaluation.
    pub eval_create_index: u64,
    /// Index of the version.
    pub job_modify_index: u64,
    /// For people.
    pub warnings: String,
    /// Index of the change.
    pub index: u64,
    /// There is no other server.
    pub last_contact: u64,
    /// There is no other server.
    pub known_leader: bool,
    /// Ours: what became of it.
    pub registered: Effects,
    /// Ours: those of the warnings that the job's text alone does not tell.
    pub agent_warnings: Option<Vec<String>>,
}

impl Registered {
    /// What to tell who has read the job already, and was told what its text says.
    #[must_use]
    pub fn told(&self) -> Text<'_> {
        not_of_the_text(self.agent_warnings.as_deref(), &self.warnings)
    }

    /// Nothing was placed, updated or stopped for it.
    #[must_use]
    pub const fn nothing_done(&self) -> bool {
        let Effects { version: _, placed, updated, stopped } = &self.registered;
        placed.is_empty() && updated.is_empty() && stopped.is_empty()
    }
}

fn not_of_the_text<'a>(agent: Option<&[String]>, all: &'a str) -> Text<'a> {
    agent.map_or(Cow::Borrowed(all), |warnings| Cow::Owned(warnings.join("\n")))
}

/// What a registration did to which allocations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Effects {
    /// Version of the job.
    pub version: u64,
    /// New allocations.
    pub placed: Vec<AllocId>,
    /// Changed without a restart.
    pub updated: Vec<AllocId>,
    /// Told to stop.
    pub stopped: Vec<AllocId>,
}

/// `JobDeregisterResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Deregistered {
    /// Its evaluation; empty where nobody is to wait for one.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// Index of the evaluation.
    pub eval_create_index: u64,
    /// Index of the change.
    pub job_modify_index: u64,
    /// There are no volumes.
    #[serde(rename = "VolumeEvalID")]
    pub volume_eval_id: String,
    /// There are no volumes.
    pub volume_eval_index: u64,
    /// Index of the change.
    pub index: u64,
    /// There is no other server.
    pub last_contact: u64,
    /// There is no other server.
    pub known_leader: bool,
    /// Ours: what there is to know beside that it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
}

/// `AllocStopResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Stopped {
    /// Its evaluation.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// Index of the change.
    pub index: u64,
    /// Ours: what there is to know beside that it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
}

/// `GenericResponse`: it was done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Done {
    /// Of no change.
    pub index: u64,
}

/// `JobValidateResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Validated {
    /// The tasks' configurations were checked.
    pub driver_config_validated: bool,
    /// What is wrong; none where nothing is.
    pub validation_errors: Option<Vec<String>>,
    /// The same in one text.
    pub error: String,
    /// For people.
    pub warnings: String,
    /// Ours: what is wrong with the tasks' configurations, with the places in them.
    #[serde(deserialize_with = "or_empty")]
    pub config_problems: Vec<ConfigProblem>,
    /// Ours: those of the warnings that the job's text alone does not tell.
    #[serde(deserialize_with = "or_empty")]
    pub agent_warnings: Vec<String>,
}

/// Something wrong with a task's configuration, or with its driver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ConfigProblem {
    /// The group.
    pub group: String,
    /// The task.
    pub task: String,
    /// Dotted path inside `config`; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What may have been meant instead of the last name of the path.
    pub suggestion: Option<String>,
    /// It is the driver that is wrong: there is none of this name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_driver: bool,
}

/// `JobPlanResponse`. `L` lists device requests with every candidate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Plan<'a, L> {
    /// What would happen.
    pub annotations: Annotations<'a>,
    /// What would wait, by group.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: Option<BTreeMap<String, AllocMetric>>,
    /// For `--check-index`.
    pub job_modify_index: u64,
    /// None are made.
    pub created_evals: Absent,
    /// Which kind of change, where that is asked for.
    pub diff: Option<JobDiff<'a>>,
    /// Jobs are not periodic.
    pub next_periodic_launch: Absent,
    /// For people.
    pub warnings: Text<'a>,
    /// Index of the job's version.
    pub index: u64,
    /// Ours: what differs, a line for each field.
    #[serde(deserialize_with = "or_empty")]
    pub changes: Cow<'a, [String]>,
    /// Ours: what would wait, and why, in words.
    #[serde(deserialize_with = "or_empty")]
    pub waiting: Vec<String>,
    /// Ours: each device request of what would be placed, with every candidate.
    pub devices: L,
    /// Ours: those of the warnings that the job's text alone does not tell.
    pub agent_warnings: Option<Cow<'a, [String]>>,
}

impl<L> Plan<'_, L> {
    /// What to tell who has read the job already, and was told what its text says.
    #[must_use]
    pub fn told(&self) -> Text<'_> {
        not_of_the_text(self.agent_warnings.as_deref(), &self.warnings)
    }
}

/// `PlanAnnotations`: what a registration would do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Annotations<'a> {
    /// By group.
    #[serde(rename = "DesiredTGUpdates", deserialize_with = "or_empty")]
    pub groups: BTreeMap<Text<'a>, DesiredUpdates>,
    /// None ever are.
    pub preempted_allocs: Absent,
}

/// `DesiredUpdates`: what would happen to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredUpdates {
    /// Left as they are, for now or altogether.
    pub ignore: u32,
    /// New.
    pub place: u32,
    /// There is no other node.
    pub migrate: u32,
    /// Stopped.
    pub stop: u32,
    /// Updated without a restart.
    pub in_place_update: u32,
    /// Stopped and replaced.
    pub destructive_update: u32,
    /// New beside old ones, to be accepted or not.
    pub canary: u32,
    /// There are none.
    pub preemptions: u32,
    /// Ours: those of `ignore` that are replaced or stopped in a later step.
    #[serde(skip_serializing_if = "is_none")]
    pub later: u32,
    /// Ours: those of `place` that do not fit now.
    #[serde(skip_serializing_if = "is_none")]
    pub waiting: u32,
}

/// Is there none? What Nomad does not know is said only where there is something to say.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_none(count: &u32) -> bool {
    *count == 0
}

impl DesiredUpdates {
    /// Something would happen.
    #[must_use]
    pub const fn changes(&self) -> bool {
        self.place > 0
            || self.stop > 0
            || self.in_place_update > 0
            || self.destructive_update > 0
            || self.canary > 0
            || self.later > 0
    }
}

/// `AllocationRestartRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RestartRequest<'a> {
    /// One task; none or empty: those that run.
    pub task_name: Option<Text<'a>>,
    /// Every task, dead ones and those of the lifecycle too.
    pub all_tasks: Option<bool>,
}

/// `AllocationSignalRequest`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SignalRequest<'a> {
    /// One task; none or empty: those that run.
    pub task: Option<Text<'a>>,
    /// The signal; SIGKILL unless given.
    pub signal: Option<Text<'a>>,
}

/// Body of `/v1/job/ID/evaluate`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvaluateRequest {
    /// As the path has it.
    #[serde(rename = "JobID", deserialize_with = "or_empty")]
    pub job_id: String,
    /// How.
    pub eval_options: EvalOptions,
}

/// See [`EvaluateRequest`].
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvalOptions {
    /// Allocations that failed are placed again, whatever their policy says.
    pub force_reschedule: bool,
}
