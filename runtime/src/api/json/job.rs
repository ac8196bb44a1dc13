//! Jobs: the short form of lists, the summary and the full one.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Absent;
use crate::agent::{GroupCounts, JobStatus, JobView, PlaceCounts};
use ostler_jobspec::nomad_json;
use ostler_model::alloc::Allocation;
use ostler_model::ids::GroupName;
use ostler_model::job::JobKind;
use ostler_model::saved::JobRecord;

/// `JobListStub`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct JobStub<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "ParentID")]
    parent_id: &'static str,
    name: &'a str,
    namespace: &'a str,
    datacenters: &'a [String],
    multiregion: Absent,
    #[serde(rename = "Type")]
    kind: JobKind,
    priority: u8,
    periodic: bool,
    parameterized_job: bool,
    stop: bool,
    status: JobStatus,
    status_description: String,
    job_summary: JobSummary<'a>,
    create_index: u64,
    modify_index: u64,
    job_modify_index: u64,
    submit_time: u64,
}

/// `JobSummary`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct JobSummary<'a> {
    #[serde(rename = "JobID")]
    job_id: &'a str,
    namespace: &'a str,
    summary: BTreeMap<&'a str, GroupSummary>,
    children: Children,
    create_index: u64,
    modify_index: u64,
}

/// `TaskGroupSummary`: allocations by what became of them.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct GroupSummary {
    queued: u32,
    complete: u32,
    failed: u32,
    running: u32,
    starting: u32,
    lost: u32,
}

impl From<&GroupCounts> for GroupSummary {
    fn from(counts: &GroupCounts) -> Self {
        let GroupCounts { queued, pending, running, complete, failed } = *counts;
        Self { queued, complete, failed, running, starting: pending, lost: 0 }
    }
}

/// Jobs made from this one; none are.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Children {
    pending: u32,
    running: u32,
    dead: u32,
}

/// A job as the shapes need it.
#[derive(Clone, Copy)]
pub(in crate::api) struct Seen<'a> {
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
    pub fn new(view: &'a JobView, waits_for: &'a str) -> Self {
        let JobView { record, status, modify_index, groups, places, .. } = view;
        let (status, places, index) = (*status, *places, *modify_index);
        Self { record, status, groups, waits_for, places, index }
    }
}

/// Why places of the job are empty, in one line; empty when none is.
pub(in crate::api) fn waits_for(view: &JobView) -> String {
    let Some(first) = view.blocked.first() else { return String::new() };
    let more = match view.blocked.len() {
        1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    format!("group {} waits: {}{more}", first.group, first.refusal.problems())
}

impl<'a> From<Seen<'a>> for JobSummary<'a> {
    fn from(seen: Seen<'a>) -> Self {
        let Seen { record, groups, index, .. } = seen;
        Self {
            job_id: record.job.id.as_str(),
            namespace: &record.job.namespace,
            summary: groups.iter().map(|(name, counts)| (name.as_str(), counts.into())).collect(),
            children: Children::default(),
            create_index: record.create_index,
            modify_index: index,
        }
    }
}

impl<'a> From<Seen<'a>> for JobStub<'a> {
    fn from(seen: Seen<'a>) -> Self {
        let Seen { record, status, waits_for, .. } = seen;
        let JobRecord {
            job,
            version: _,
            submitted_at,
            create_index,
            modify_index,
            job_modify_index,
            stopped,
            origin: _,
        } = record;
        Self {
            id: job.id.as_str(),
            parent_id: "",
            name: &job.name,
            namespace: &job.namespace,
            datacenters: &job.datacenters,
            multiregion: Absent,
            kind: job.kind,
            priority: job.priority,
            periodic: false,
            parameterized_job: false,
            stop: *stopped,
            status,
            status_description: waits_for.to_owned(),
            job_summary: JobSummary::from(seen),
            create_index: *create_index,
            modify_index: *modify_index,
            job_modify_index: *job_modify_index,
            submit_time: submitted_at.nanos(),
        }
    }
}

/// The whole job with what the agent knows of it.
pub(in crate::api) fn full(seen: Seen<'_>) -> Value {
    let Seen { record, status, waits_for, places, .. } = seen;
    with_facts(
        nomad_json(&record.job),
        [
            ("Stop", json!(record.stopped)),
            ("Status", json!(status)),
            ("StatusDescription", json!(waits_for)),
            ("Stable", json!(false)),
            ("Version", json!(record.version)),
            ("SubmitTime", json!(record.submitted_at.nanos())),
            ("CreateIndex", json!(record.create_index)),
            ("ModifyIndex", json!(record.modify_index)),
            ("JobModifyIndex", json!(record.job_modify_index)),
            // Ours.
            ("Origin", json!(record.origin)),
            ("Places", json!(places)),
        ],
    )
}

/// The job as an allocation knows it: as it was when placed.
pub(super) fn of_alloc(alloc: &Allocation) -> Value {
    let version = ("Version", json!(alloc.job_version));
    with_facts(nomad_json(&alloc.job), [version])
}

fn with_facts<const N: usize>(job: Value, facts: [(&str, Value); N]) -> Value {
    let mut job = match job {
        Value::Object(job) => job,
        _ => Map::new(),
    };
    job.extend(facts.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(job)
}
