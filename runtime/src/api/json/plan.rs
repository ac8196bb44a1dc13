//! What a registration would do.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Absent;
use super::write::warnings_text;
use crate::agent::{DeviceExplanation, GroupPlan, Plan};

/// `JobPlanResponse`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct PlanAnswer<'a> {
    annotations: Annotations<'a>,
    #[serde(rename = "FailedTGAllocs")]
    failed_tg_allocs: Option<BTreeMap<&'a str, Failed>>,
    job_modify_index: u64,
    created_evals: Absent,
    diff: Option<Diff<'a>>,
    next_periodic_launch: Absent,
    warnings: String,
    index: u64,
    /// Ours: what differs, a line for each field.
    changes: &'a [String],
    /// Ours: why it would be refused, in words.
    refusals: Vec<String>,
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

/// `AllocationMetric` of a group that would not be placed: only what Nomad's command line shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    nodes_evaluated: u32,
    nodes_filtered: u32,
    nodes_available: Absent,
    nodes_exhausted: u32,
    /// Texts with how many nodes each kept away; the one node here.
    constraint_filtered: BTreeMap<String, u32>,
    coalesced_failures: u32,
}

impl Default for Failed {
    /// The one node was looked at and does not do.
    fn default() -> Self {
        Self {
            nodes_evaluated: 1,
            nodes_filtered: 1,
            nodes_available: Absent,
            nodes_exhausted: 0,
            constraint_filtered: BTreeMap::new(),
            coalesced_failures: 0,
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
    /// `diff`: it was asked for; `of_job`: what the job's text says that is not done.
    pub fn new(plan: &'a Plan, job: &'a str, index: u64, diff: bool, of_job: &[String]) -> Self {
        let Plan { job_modify_index, version: _, groups, refusals, changes, devices, warnings } =
            plan;
        let kind = match (*job_modify_index, changes.is_empty()) {
            (0, _) => "Added",
            (_, true) => "None",
            (_, false) => "Edited",
        };
        let mut failed: BTreeMap<&str, Failed> = BTreeMap::new();
        for refusal in refusals.iter().flat_map(|refusal| &refusal.groups) {
            // What is wrong with the job as a whole stands under the job's name.
            let name = refusal.group.as_ref().map_or(job, |group| group.as_str());
            let group = failed.entry(name).or_default();
            for problem in &refusal.problems {
                group.constraint_filtered.insert(problem.to_string(), 1);
            }
        }
        Self {
            annotations: Annotations {
                desired_tg_updates: groups
                    .iter()
                    .map(|(name, plan)| (name.as_str(), plan.into()))
                    .collect(),
                preempted_allocs: Absent,
            },
            failed_tg_allocs: (!failed.is_empty()).then_some(failed),
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
            index,
            changes,
            refusals: refusals.iter().map(ToString::to_string).collect(),
            devices,
            agent_warnings: warnings,
        }
    }
}
