//! Jobs: the short form of lists, the summary and the full one.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::word;
use ostler_agent::{GroupCounts, JobStatus, JobView, PlaceCounts};
use ostler_jobspec::nomad_json;
use ostler_model::alloc::Allocation;
use ostler_model::ids::GroupName;
use ostler_model::job::Job;
use ostler_model::saved::JobRecord;
use ostler_wire::{EmptyPlaces, GroupSummary, JobFacts, JobStub, JobSummary};

/// The facts about a job that its JSON is made of.
#[derive(Clone, Copy)]
pub(crate) struct JobJsonInput<'a> {
    pub record: &'a JobRecord,
    pub status: JobStatus,
    pub groups: &'a BTreeMap<GroupName, GroupCounts>,
    /// Why some allocation of it waits; empty if none does.
    pub waits_for: &'a str,
    /// The number of places without an allocation.
    pub places: PlaceCounts,
    /// The index of the last change of the job or of one of its allocations.
    pub index: u64,
}

impl<'a> JobJsonInput<'a> {
    /// The facts of an earlier version of the job. `runs` says whether an allocation of that
    /// version runs.
    pub fn with_version(self, record: &'a JobRecord, runs: bool) -> Self {
        let status = if runs { JobStatus::Running } else { JobStatus::Dead };
        Self { record, status, waits_for: "", places: PlaceCounts::default(), ..self }
    }

    pub fn new(view: &'a JobView, waits_for: &'a str) -> Self {
        let JobView { record, status, modify_index, groups, places, .. } = view;
        let (status, places, index) = (*status, *places, *modify_index);
        Self { record, status, groups, waits_for, places, index }
    }
}

/// Why places of the job are empty, in one line; empty if no place is.
pub(crate) fn waits_for(view: &JobView) -> String {
    let Some(first) = view.blocked.first() else { return String::new() };
    let more = match view.blocked.len() {
        1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    format!("group {} waits: {}{more}", first.group, first.refusal.problems())
}

/// Nomad's `JobSummary`.
pub(crate) fn summary(seen: JobJsonInput<'_>) -> JobSummary<'_> {
    let JobJsonInput { record, groups, index, .. } = seen;
    let counts = |counts: &GroupCounts| {
        let GroupCounts { queued, pending, running, complete, failed } = *counts;
        GroupSummary { queued, complete, failed, running, starting: pending, lost: 0 }
    };
    JobSummary {
        job_id: record.job.id.as_str().into(),
        namespace: record.job.namespace().into(),
        summary: groups.iter().map(|(name, all)| (name.as_str().into(), counts(all))).collect(),
        create_index: record.create_index,
        modify_index: index,
        ..JobSummary::default()
    }
}

/// Nomad's `JobListStub`.
pub(crate) fn stub(seen: JobJsonInput<'_>) -> JobStub<'_> {
    let JobJsonInput { record, status, waits_for, .. } = seen;
    let job = &record.job;
    JobStub {
        id: job.id.as_str().into(),
        name: (&job.name).into(),
        namespace: job.namespace().into(),
        datacenters: Cow::Borrowed(&job.datacenters),
        kind: word(job.kind),
        priority: job.priority.into(),
        stop: record.stopped,
        status: word(status),
        status_description: waits_for.into(),
        job_summary: summary(seen),
        create_index: record.create_index,
        modify_index: record.modify_index,
        job_modify_index: record.job_modify_index,
        submit_time: record.submitted_at,
        ..JobStub::default()
    }
}

/// The whole job, with what the agent knows about it.
pub(crate) fn full(seen: JobJsonInput<'_>) -> Value {
    let JobJsonInput { record, status, waits_for, places, .. } = seen;
    let PlaceCounts { waiting, complete, failed } = places;
    let facts = JobFacts {
        stop: record.stopped,
        status: word(status),
        status_description: waits_for.into(),
        stable: record.stable,
        version: record.version,
        submit_time: record.submitted_at,
        create_index: record.create_index,
        modify_index: record.modify_index,
        job_modify_index: record.job_modify_index,
        origin: Some(record.origin.clone()),
        places: EmptyPlaces {
            waiting: waiting.into(),
            complete: complete.into(),
            failed: failed.into(),
        },
    };
    with_facts(nomad_json(&record.job), json!(facts))
}

/// The job as it was when the allocation was placed.
pub(super) fn job_of_alloc(alloc: &Allocation) -> Value {
    with_facts(nomad_json(&alloc.job), unregistered_facts(alloc.job_version))
}

/// A job that was parsed and is not registered.
pub(crate) fn unregistered_job(job: &Job) -> Value {
    let mut facts = unregistered_facts(0);
    if let Value::Object(members) = &mut facts {
        for name in ["SubmitTime", "Migrate", "Reschedule"] {
            members.insert(name.to_owned(), Value::Null);
        }
    }
    with_facts(nomad_json(job), facts)
}

/// The fields that only a registered job has, with empty values.
fn unregistered_facts(version: u64) -> Value {
    json!({
        "Stop": false, "Status": "", "StatusDescription": "", "Stable": false, "Version": version,
        "SubmitTime": 0, "CreateIndex": 0, "ModifyIndex": 0, "JobModifyIndex": 0, "NomadTokenID": "",
    })
}

fn with_facts(job: Value, facts: Value) -> Value {
    let members = |value| match value {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    let mut job = members(job);
    job.extend(members(facts));
    Value::Object(job)
}
