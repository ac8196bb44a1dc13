//! Jobs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::saved::JobOrigin;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Absent, JobDiff, Text, or_empty};

/// `JobListStub`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobStub<'a> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// It is made from no other.
    #[serde(rename = "ParentID")]
    pub parent_id: Text<'a>,
    /// Its name.
    pub name: Text<'a>,
    /// Its namespace.
    pub namespace: Text<'a>,
    /// Where it may run.
    #[serde(deserialize_with = "or_empty")]
    pub datacenters: Cow<'a, [String]>,
    /// It is in one region.
    pub multiregion: Absent,
    /// `service`, `batch` …
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// 1 to 100.
    pub priority: u32,
    /// It is not.
    pub periodic: bool,
    /// It is not.
    pub parameterized_job: bool,
    /// Somebody stopped it.
    pub stop: bool,
    /// `pending`, `running`, `dead`.
    pub status: Text<'a>,
    /// What it waits for.
    pub status_description: Text<'a>,
    /// Allocations by group.
    pub job_summary: JobSummary<'a>,
    /// Index of the first version.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
    /// Index of this version.
    pub job_modify_index: u64,
    /// When this version came.
    pub submit_time: Timestamp,
}

/// `JobSummary`: allocations of a job by group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobSummary<'a> {
    /// Its job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// Its namespace.
    pub namespace: Text<'a>,
    /// By group.
    #[serde(deserialize_with = "or_empty")]
    pub summary: BTreeMap<Text<'a>, GroupSummary>,
    /// Jobs made from this one; there are none.
    #[serde(deserialize_with = "or_empty")]
    pub children: JobChildren,
    /// Index of the first version.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
}

/// `TaskGroupSummary`: allocations of a group by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupSummary {
    /// Places that cannot be filled now.
    pub queued: u32,
    /// Ended well.
    pub complete: u32,
    /// Failed.
    pub failed: u32,
    /// Running.
    pub running: u32,
    /// Not running yet.
    pub starting: u32,
    /// Of nodes that are gone.
    pub lost: u32,
}

impl JobSummary<'_> {
    /// All groups together.
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

/// `JobChildrenSummary`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobChildren {
    /// Waiting.
    pub pending: u64,
    /// Running.
    pub running: u64,
    /// Over.
    pub dead: u64,
}

/// `Job`, as far as it is read. The server writes its text in Nomad's form (`ostler_jobspec`) and the
/// [`JobFacts`] after it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Job<'a> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// Its name, when it has another.
    pub name: Text<'a>,
    /// `service`, `batch` …
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// 1 to 100.
    pub priority: u32,
    /// Where it may run.
    #[serde(deserialize_with = "or_empty")]
    pub datacenters: Vec<Text<'a>>,
    /// Its namespace.
    pub namespace: Text<'a>,
    /// Its groups.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: Vec<TaskGroup>,
    /// What the agent knows of it.
    #[serde(flatten)]
    pub facts: JobFacts<'a>,
}

/// A group of a job, as far as it is read.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskGroup {
    /// How many allocations it wants.
    pub count: u32,
}

/// What the agent knows of a job beside its text.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobFacts<'a> {
    /// Somebody stopped it.
    pub stop: bool,
    /// `pending`, `running`, `dead`.
    pub status: Text<'a>,
    /// What it waits for.
    pub status_description: Text<'a>,
    /// All of this version was healthy.
    pub stable: bool,
    /// 0 for the first.
    pub version: u64,
    /// When this version came.
    pub submit_time: Timestamp,
    /// Index of the first version.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
    /// Index of this version, for `--check-index`.
    pub job_modify_index: u64,
    /// Ours: who gave it.
    pub origin: Option<JobOrigin>,
    /// Ours: its places without an allocation.
    pub places: Places,
}

/// Places of a job without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Places {
    /// They wait for something to become free that is not the job's own.
    pub waiting: u64,
    /// Their allocations completed and were collected.
    pub complete: u64,
    /// Their allocations failed and were collected.
    pub failed: u64,
}

/// `JobVersionsResponse`: newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobVersions<J> {
    /// The versions, `J` each.
    pub versions: Vec<J>,
    /// What differs between each and the one before it, where that is asked for.
    pub diffs: Option<Vec<JobDiff<'static>>>,
    /// Index of the newest.
    pub index: u64,
    /// There is no other server.
    pub last_contact: u64,
    /// There is no other server.
    pub known_leader: bool,
}
