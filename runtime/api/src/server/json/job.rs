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
use ostler_wire::{GroupSummary, JobFacts, JobStub, JobSummary, Places};

/// A job as the shapes need it.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub record: &'a JobRecord,
    pub status: JobStatus,
    pub groups: &'a BTreeMap<GroupName, GroupCounts>,
    /// Why something of it waits; empty when nothing does.
    pub waits_for: &'a str,
    /// Places without an allocation.
    pub places: PlaceCounts,
    /// Index of the last change of the job or an allocation of it.
    pub index: u64,
}

impl<'a> Seen<'a> {
    /// An earlier version of it. `runs`: some allocation of that version does.
    pub fn earlier(self, record: &'a JobRecord, runs: bool) -> Self {
        let status = if runs { JobStatus::Running } else { JobStatus::Dead };
        Self { record, status, waits_for: "", places: PlaceCounts::default(), ..self }
    }

    pub fn new(view: &'a JobView, waits_for: &'a str) -> Self {
        let JobView { record, status, modify_index, groups, places, .. } = view;
        let (status, places, index) = (*status, *places, *modify_index);
        Self { record, status, groups, waits_for, places, index }
    }
}

/// Why places of the job are empty, in one line; empty when none is.
pub(crate) fn waits_for(view: &JobView) -> String {
    let Some(first) = view.blocked.first() else { return String::new() };
    let more = match view.blocked.len() {
        1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    format!("group {} waits: {}{more}", first.group, first.refusal.problems())
}

/// `JobSummary`.
pub(crate) fn summary(seen: Seen<'_>) -> JobSummary<'_> {
    let Seen { record, groups, index, .. } = seen;
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

/// `JobListStub`.
pub(crate) fn stub(seen: Seen<'_>) -> JobStub<'_> {
    let Seen { record, status, waits_for, .. } = seen;
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

/// The whole job with what the agent knows of it.
pub(crate) fn full(seen: Seen<'_>) -> Value {
    let Seen { record, status, waits_for, places, .. } = seen;
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
        places: Places {
            waiting: waiting.into(),
            complete: complete.into(),
            failed: failed.into(),
        },
    };
    with_facts(nomad_json(&record.job), json!(facts))
}

/// The job as an allocation knows it: as it was when placed.
pub(super) fn of_alloc(alloc: &Allocation) -> Value {
    with_facts(nomad_json(&alloc.job), of_no_record(alloc.job_version))
}

/// A job that was read and is registered nowhere.
pub(crate) fn parsed(job: &Job) -> Value {
    let mut facts = of_no_record(0);
    if let Value::Object(members) = &mut facts {
        for name in ["SubmitTime", "Migrate", "Reschedule"] {
            members.insert(name.to_owned(), Value::Null);
        }
    }
    with_facts(nomad_json(job), facts)
}

/// What only a registered job has, empty.
fn of_no_record(version: u64) -> Value {
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
