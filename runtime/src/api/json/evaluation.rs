//! Evaluations.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Absent;
use super::metric::Metric;
use crate::api::evaluations::Evaluation;
use ostler_model::job::JobKind;

/// What an evaluation was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::api) enum Trigger {
    /// A job came, or another version of it.
    #[serde(rename = "job-register")]
    Register,
    /// A job was stopped.
    #[serde(rename = "job-deregister")]
    Deregister,
    /// An allocation was stopped.
    AllocStop,
    /// Something did not fit.
    QueuedAllocs,
}

/// `Evaluation`. Nothing is left to do when it can be seen: it is complete, or stands for what waits.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct EvaluationJson<'a> {
    #[serde(rename = "ID")]
    id: String,
    priority: u8,
    #[serde(rename = "Type")]
    kind: JobKind,
    triggered_by: Trigger,
    namespace: &'a str,
    #[serde(rename = "JobID")]
    job_id: &'a str,
    job_modify_index: u64,
    #[serde(rename = "NodeID")]
    node_id: &'static str,
    node_modify_index: u64,
    #[serde(rename = "DeploymentID")]
    deployment_id: &'static str,
    status: &'static str,
    status_description: &'static str,
    /// Nanoseconds; nothing waits.
    wait: u64,
    next_eval: &'static str,
    previous_eval: &'a str,
    blocked_eval: &'a str,
    /// What waits; the agent places it by itself when it fits.
    #[serde(rename = "FailedTGAllocs")]
    failed_tg_allocs: Option<&'a BTreeMap<String, Metric>>,
    class_eligibility: Absent,
    escaped_computed_class: bool,
    quota_limit_reached: &'static str,
    annotate_plan: bool,
    queued_allocations: &'a BTreeMap<String, u32>,
    snapshot_index: u64,
    create_index: u64,
    modify_index: u64,
    create_time: u64,
    modify_time: u64,
}

impl<'a> EvaluationJson<'a> {
    pub fn new(of: &'a Evaluation, id: String) -> Self {
        Self {
            id,
            priority: of.job.priority,
            kind: of.job.kind,
            triggered_by: of.trigger,
            namespace: &of.job.namespace,
            job_id: of.job.id.as_str(),
            job_modify_index: of.index,
            node_id: "",
            node_modify_index: 0,
            deployment_id: "",
            status: if of.trigger == Trigger::QueuedAllocs { "blocked" } else { "complete" },
            status_description: "",
            wait: 0,
            next_eval: "",
            previous_eval: &of.previous,
            blocked_eval: &of.blocked,
            failed_tg_allocs: of.failed.as_ref(),
            class_eligibility: Absent,
            escaped_computed_class: false,
            quota_limit_reached: "",
            annotate_plan: false,
            queued_allocations: &of.queued,
            snapshot_index: of.index,
            create_index: of.index,
            modify_index: of.index,
            create_time: of.created_at.nanos(),
            modify_time: of.created_at.nanos(),
        }
    }
}
