//! What a registration would do.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Absent;
use super::metric::Metric;
use super::write::warnings_text;
use crate::agent::{DeviceExplanation, GroupPlan, Plan};

/// `JobPlanResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct PlanAnswer<'a> {
    annotations: Annotations<'a>,
    #[serde(rename = "FailedTGAllocs")]
    failed_tg_allocs: Option<BTreeMap<String, Metric>>,
    job_modify_index: u64,
    created_evals: Absent,
    diff: Option<Diff<'a>>,
    next_periodic_launch: Absent,
    warnings: String,
    index: u64,
    /// Ours: what differs, a line for each field.
    changes: &'a [String],
    /// Ours: what would wait, and why, in words.
    waiting: Vec<String>,
    /// Ours: each device request of what would be placed, with every candidate.
    devices: &'a [DeviceExplanation],
    /// Ours: those of the warnings that the job's text alone does not tell.
    agent_warnings: &'a [String],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Annotations<'a> {
    #[serde(rename = "DesiredTGUpdates")]
    desired_tg_updates: BTreeMap<&'a str, GroupUpdates>,
    preempted_allocs: Absent,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct GroupUpdates {
    ignore: u32,
    place: u32,
    migrate: u32,
    stop: u32,
    in_place_update: u32,
    destructive_update: u32,
    canary: u32,
    preemptions: u32,
}

impl From<&GroupPlan> for GroupUpdates {
    fn from(plan: &GroupPlan) -> Self {
        let GroupPlan { place, in_place, destructive, stop, ignore } = *plan;
        Self {
            ignore,
            place,
            migrate: 0,
            stop,
            in_place_update: in_place,
            destructive_update: destructive,
            canary: 0,
            preemptions: 0,
        }
    }
}

/// `JobDiff`: which kind of change, and the lines as fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Diff<'a> {
    #[serde(rename = "Type")]
    kind: &'static str,
    #[serde(rename = "ID")]
    id: &'a str,
    fields: Absent,
    objects: Absent,
    task_groups: Absent,
}

impl<'a> PlanAnswer<'a> {
    /// `datacenter`: the node's. `diff`: it was asked for. `of_job`: what the job's text says that is
    /// not done.
    pub fn new(
        plan: &'a Plan,
        job: &'a str,
        datacenter: &str,
        diff: bool,
        of_job: &[String],
    ) -> Self {
        let Plan { job_modify_index, version: _, groups, waiting, changes, devices, warnings } =
            plan;
        let kind = match (*job_modify_index, changes.is_empty()) {
            (0, _) => "Added",
            (_, true) => "None",
            (_, false) => "Edited",
        };
        Self {
            annotations: Annotations {
                desired_tg_updates: groups
                    .iter()
                    .map(|(name, plan)| (name.as_str(), plan.into()))
                    .collect(),
                preempted_allocs: Absent,
            },
            failed_tg_allocs: Metric::of(waiting, datacenter),
            job_modify_index: *job_modify_index,
            created_evals: Absent,
            diff: diff.then_some(Diff {
                kind,
                id: job,
                fields: Absent,
                objects: Absent,
                task_groups: Absent,
            }),
            next_periodic_launch: Absent,
            warnings: warnings_text(&[of_job, warnings].concat()),
            index: *job_modify_index,
            changes,
            waiting: plan.waits(),
            devices,
            agent_warnings: warnings,
        }
    }
}
