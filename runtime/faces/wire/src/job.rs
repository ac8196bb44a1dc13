//! Jobs: the short form of lists, the summary, and the full form.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::saved::JobOrigin;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Absent, JobDiff, Text, or_empty};

/// Nomad's `JobListStub`: a job in a list.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobStub<'a> {
    /// The id of the job, unique in its namespace.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// This agent derives no job from another: always empty.
    #[serde(rename = "ParentID")]
    pub parent_id: Text<'a>,
    /// The name of the job; often the same as its id.
    pub name: Text<'a>,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The data centers in which it may run.
    #[serde(deserialize_with = "or_empty")]
    pub datacenters: Cow<'a, [String]>,
    /// A job is in one region: always `null`.
    pub multiregion: Absent,
    /// The type of the job: `service`, `batch`, `system` or `sysbatch`.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The priority of the job, 1 to 100.
    pub priority: u32,
    /// This agent has no periodic jobs: always false.
    pub periodic: bool,
    /// This agent has no parameterized jobs: always false.
    pub parameterized_job: bool,
    /// Whether somebody stopped the job.
    pub stop: bool,
    /// The status of the job: `pending`, `running` or `dead`.
    pub status: Text<'a>,
    /// What the job waits for, in one sentence; empty if for nothing.
    pub status_description: Text<'a>,
    /// The number of its allocations, by group and state.
    pub job_summary: JobSummary<'a>,
    /// The index at which the job was first registered.
    pub create_index: u64,
    /// The index of the last change of the job.
    pub modify_index: u64,
    /// The index at which this version was registered.
    pub job_modify_index: u64,
    /// The time at which this version was registered, nanoseconds since 1970.
    pub submit_time: Timestamp,
}

/// Nomad's `JobSummary`: the number of allocations of a job, by group and state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobSummary<'a> {
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The numbers of each task group, by its name.
    #[serde(deserialize_with = "or_empty")]
    pub summary: BTreeMap<Text<'a>, GroupSummary>,
    /// The jobs derived from this one; there are none.
    #[serde(deserialize_with = "or_empty")]
    pub children: JobChildren,
    /// The index at which the job was first registered.
    pub create_index: u64,
    /// The index of the last change of the job or of one of its allocations.
    pub modify_index: u64,
}

/// Nomad's `TaskGroupSummary`: the number of allocations of a group, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupSummary {
    /// Allocations that cannot be placed now.
    pub queued: u32,
    /// Allocations that completed.
    pub complete: u32,
    /// Allocations that failed.
    pub failed: u32,
    /// Allocations that run.
    pub running: u32,
    /// Allocations that are placed and do not run yet.
    pub starting: u32,
    /// Allocations whose node is gone.
    pub lost: u32,
}

impl JobSummary<'_> {
    /// The numbers of all groups added up.
    #[must_use]
    pub fn total(&self) -> GroupSummary {
        self.summary.values().fold(GroupSummary::default(), |sum, group| GroupSummary {
            queued: sum.queued.saturating_add(group.queued),
            complete: sum.complete.saturating_add(group.complete),
            failed: sum.failed.saturating_add(group.failed),
            running: sum.running.saturating_add(group.running),
            starting: sum.starting.saturating_add(group.starting),
            lost: sum.lost.saturating_add(group.lost),
        })
    }
}

/// Nomad's `JobChildrenSummary`: the number of jobs derived from a job, by status.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobChildren {
    /// Jobs that wait for an allocation.
    pub pending: u64,
    /// Jobs that run.
    pub running: u64,
    /// Jobs that have ended.
    pub dead: u64,
}

/// Nomad's `Job`, as far as the command line reads it. The server writes the job in Nomad's form
/// (`ostler_jobspec`) and adds the [`JobFacts`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireJob<'a> {
    /// The id of the job, unique in its namespace.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The name of the job; often the same as its id.
    pub name: Text<'a>,
    /// The type of the job: `service`, `batch`, `system` or `sysbatch`.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The priority of the job, 1 to 100.
    pub priority: u32,
    /// The data centers in which it may run.
    #[serde(deserialize_with = "or_empty")]
    pub datacenters: Vec<Text<'a>>,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The task groups of the job.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: Vec<WireTaskGroup>,
    /// What the agent knows about the job.
    #[serde(flatten)]
    pub facts: JobFacts<'a>,
}

/// A task group of a job, as far as the command line reads it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireTaskGroup {
    /// The number of allocations that the group wants.
    pub count: u32,
}

/// What the agent knows about a job in addition to its specification.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobFacts<'a> {
    /// Whether somebody stopped the job.
    pub stop: bool,
    /// The status of the job: `pending`, `running` or `dead`.
    pub status: Text<'a>,
    /// What the job waits for, in one sentence; empty if for nothing.
    pub status_description: Text<'a>,
    /// Whether all allocations of this version were healthy.
    pub stable: bool,
    /// The number of this version; the first one is 0.
    pub version: u64,
    /// The time at which this version was registered, nanoseconds since 1970.
    pub submit_time: Timestamp,
    /// The index at which the job was first registered.
    pub create_index: u64,
    /// The index of the last change of the job.
    pub modify_index: u64,
    /// The index at which this version was registered, for `--check-index`.
    pub job_modify_index: u64,
    /// Ours: where the job came from.
    pub origin: Option<JobOrigin>,
    /// Ours: the places of the job that have no allocation.
    pub places: EmptyPlaces,
}

/// The number of places of a job that have no allocation, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EmptyPlaces {
    /// Places that wait until something becomes free that another job uses.
    pub waiting: u64,
    /// Places whose allocations completed and were collected.
    pub complete: u64,
    /// Places whose allocations failed and were collected.
    pub failed: u64,
}

/// Nomad's `JobVersionsResponse`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobVersionsResponse<J> {
    /// The versions, newest first, each in the form `J`.
    pub versions: Vec<J>,
    /// The difference of each version from the one before it, if the request asks for it.
    pub diffs: Option<Vec<JobDiff<'static>>>,
    /// The index of the last change of the job.
    pub index: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub last_contact: u64,
    /// The agent is its own server; clients of Nomad read this field.
    pub known_leader: bool,
}
