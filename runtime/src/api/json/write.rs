//! Answers to requests that change something, and what those requests bring.

use serde::{Deserialize, Serialize};

use crate::agent::{ConfigProblem, Registered};
use ostler_model::ids::AllocId;
use ostler_model::words::counted;

/// What stands beside `Job` in a registration or plan. The job itself is read by
/// [`ostler_jobspec`], which also says what is unknown here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::api) struct Envelope {
    pub enforce_index: Option<bool>,
    pub job_modify_index: Option<u64>,
    pub diff: Option<bool>,
    pub namespace: Option<String>,
}

/// `JobRegisterResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct RegisterAnswer {
    #[serde(rename = "EvalID")]
    eval_id: String,
    eval_create_index: u64,
    job_modify_index: u64,
    warnings: String,
    index: u64,
    last_contact: u64,
    known_leader: bool,
    /// Ours: what became of it.
    registered: RegisteredJson,
    /// Ours: those of the warnings that the job's text alone does not tell.
    agent_warnings: Vec<String>,
}

/// What a registration did to which allocations.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct RegisteredJson {
    version: u64,
    placed: Vec<AllocId>,
    updated: Vec<AllocId>,
    stopped: Vec<AllocId>,
}

impl RegisterAnswer {
    /// `index`, `eval_id`: those of what the registration did; `of_job`: what the job's text says
    /// that is not done.
    pub fn new(
        registered: Registered,
        index: u64,
        eval_id: String,
        mut of_job: Vec<String>,
    ) -> Self {
        let Registered { job_modify_index, version, index: _, placed, updated, stopped, warnings } =
            registered;
        of_job.extend_from_slice(&warnings);
        Self {
            eval_id,
            eval_create_index: index,
            job_modify_index,
            warnings: warnings_text(&of_job),
            index,
            last_contact: 0,
            known_leader: true,
            registered: RegisteredJson { version, placed, updated, stopped },
            agent_warnings: warnings,
        }
    }
}

/// Warnings in the one text that clients print: how many there are, and a line for each.
pub(in crate::api) fn warnings_text(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let lines: String = warnings.iter().map(|warning| format!("\n* {warning}")).collect();
    format!("{}:\n{lines}", counted(warnings.len(), "warning"))
}

/// `JobDeregisterResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct DeregisterAnswer {
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub eval_create_index: u64,
    pub job_modify_index: u64,
    #[serde(rename = "VolumeEvalID")]
    pub volume_eval_id: &'static str,
    pub volume_eval_index: u64,
    pub index: u64,
    pub last_contact: u64,
    pub known_leader: bool,
    /// Not in Nomad's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
}

impl DeregisterAnswer {
    /// Without an evaluation (an empty `eval_id`) Nomad's command line waits for none.
    pub const fn new(index: u64, eval_id: String, warnings: Option<String>) -> Self {
        Self {
            warnings,
            eval_create_index: if eval_id.is_empty() { 0 } else { index },
            eval_id,
            job_modify_index: index,
            volume_eval_id: "",
            volume_eval_index: 0,
            index,
            last_contact: 0,
            known_leader: true,
        }
    }
}

/// `JobValidateResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct ValidateAnswer {
    pub driver_config_validated: bool,
    pub validation_errors: Option<Vec<String>>,
    pub error: String,
    pub warnings: String,
    /// Ours: what is wrong with the tasks' configurations, with the places in them.
    pub config_problems: Vec<ConfigProblemJson>,
    /// Ours: those of the warnings that the job's text alone does not tell.
    pub agent_warnings: Vec<String>,
}

/// Something wrong with a task's configuration.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct ConfigProblemJson {
    group: String,
    task: String,
    path: String,
    message: String,
    suggestion: Option<String>,
}

impl From<ConfigProblem> for ConfigProblemJson {
    fn from(problem: ConfigProblem) -> Self {
        let ConfigProblem { group, task, path, message, suggestion } = problem;
        Self { group, task, path, message, suggestion }
    }
}

/// `JobsParseRequest`.
#[derive(Debug, Deserialize)]
pub(in crate::api) struct ParseRequest {
    #[serde(rename = "JobHCL")]
    pub job_hcl: String,
    /// Accepted; what comes back always has its defaults.
    #[serde(rename = "Canonicalize", default)]
    pub _canonicalize: bool,
}

/// `AllocStopResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct StopAnswer {
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    pub index: u64,
    /// Not in Nomad's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<String>,
}

/// `GenericResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct DoneAnswer {
    pub index: u64,
}

/// `AllocationRestartRequest`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::api) struct RestartRequest {
    pub task_name: Option<String>,
    /// Every task, dead ones and those of the lifecycle too.
    pub all_tasks: Option<bool>,
}

/// `AllocationSignalRequest`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::api) struct SignalRequest {
    pub task: Option<String>,
    pub signal: Option<String>,
}
