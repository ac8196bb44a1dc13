//! What the agent tells and is told about jobs and allocations: plain data, snapshots.
//!
//! ```text
//! register(Job, RegisterOptions) ─► Registered        jobs()   ─► JobView
//! plan(Job, JobOptions)               ─► Plan              allocs() ─► AllocView
//! deregister(JobId, StopOptions) ─► Stopped            readiness() ─► Readiness
//! ```
//! A view is what was true at one moment; its `modify_index` says which one, and
//! [`super::ControlHandle::changes`] tells when there is a newer one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::admission::{DeviceExplanation, Refusal};
use ostler_lifecycle::alloc::{AllocHandle, AllocPhase};
use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::{Job, TaskGroup};
use ostler_model::rollout::Deployment;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;
use ostler_trace::TraceContext;

/// How a job is registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// Only when the job's `job_modify_index` is this one; 0: only when there is no such job.
    pub enforce_job_modify_index: Option<u64>,
    /// Who gives the job. A job that came from a file changes only with that file, and a job that
    /// came by the API only by the API.
    pub origin: JobOrigin,
    /// Everything of it is placed now, or nothing is changed.
    pub all_or_nothing: bool,
    /// How its text is meant.
    pub meant: JobOptions,
    /// A job that is the same as before becomes a new version all the same: what has ended of it is placed
    /// again, what runs goes on.
    pub rerun: bool,
    /// Where its allocations belong in a trace; decides nothing.
    pub trace: Option<TraceContext>,
}

/// How the text of a job is meant beside what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobOptions {
    /// It is stopped, or stays so.
    pub stopped: bool,
    /// Groups that the job has already keep their counts, whatever the text says.
    pub keeps_counts: bool,
}

impl JobOptions {
    /// The job that is meant: with the counts that its groups have where they keep them.
    #[must_use]
    pub fn of<'a>(self, job: &'a Job, known: Option<&JobRecord>) -> Cow<'a, Job> {
        let Some(known) = known.filter(|_| self.keeps_counts) else { return Cow::Borrowed(job) };
        let kept = |group: &TaskGroup| known.job.group(&group.name).map(|known| known.count);
        if job.groups.iter().all(|group| kept(group).is_none_or(|count| count == group.count)) {
            return Cow::Borrowed(job);
        }
        let mut job = job.clone();
        for group in &mut job.groups {
            group.count = kept(group).unwrap_or(group.count);
        }
        Cow::Owned(job)
    }
}

/// What a registration did. Durable when it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Registered {
    /// Index at which this version of the job came. That of the present version when the job is
    /// the same as before.
    pub job_modify_index: u64,
    /// Version of the job, 0 for the first.
    pub version: u64,
    /// Index of the change; absent when there was nothing to do.
    pub index: Option<u64>,
    /// New allocations. What does not fit now comes later: see [`JobView::blocked`].
    pub placed: Vec<AllocId>,
    /// Allocations that take the change without a restart.
    pub updated: Vec<AllocId>,
    /// Allocations told to stop.
    pub stopped: Vec<AllocId>,
    /// What the caller should hear, as sentences.
    pub warnings: Vec<String>,
}

impl Registered {
    /// The index that an answer names: that of the change, or of the version that is as asked already.
    #[must_use]
    pub fn answer_index(&self) -> u64 {
        self.index.unwrap_or(self.job_modify_index)
    }
}

/// How a job is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOptions {
    /// Forget the job at once; its allocations are collected as soon as they are over.
    pub purge: bool,
    /// Do not wait for the `shutdown_delay` of group and tasks.
    pub skip_shutdown_delay: bool,
    /// Told in the events of the tasks; empty: a default text.
    pub reason: String,
}

/// What a stop did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Index of the change.
    pub index: u64,
    /// Why it is not on record, for people: the disk refuses it. What it ends is ended all the same.
    pub unwritten: Option<String>,
}

/// What came of a request to a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deployed {
    /// Index of the change.
    pub index: u64,
    /// The version that came back, where it failed.
    pub reverted: Option<u64>,
}

/// What became of allocations that a server placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// New ones.
    pub placed: Vec<AllocId>,
    /// Those that have a newer copy now.
    pub updated: Vec<AllocId>,
    /// Those that cannot be entered, and why, for people. What they need may become free.
    pub refused: Vec<(AllocId, String)>,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStatus {
    /// Nothing of it runs yet, and something waits to be placed.
    #[default]
    Pending,
    /// An allocation of it is not over.
    Running,
    /// Nothing of it runs or will run.
    Dead,
}

impl std::fmt::Display for JobStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Dead => "dead",
        })
    }
}

/// Allocations of one group by client status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupCounts {
    /// Wait to be placed; not allocations yet.
    pub queued: u32,
    /// [`ClientStatus::Pending`]
    pub pending: u32,
    /// [`ClientStatus::Running`]
    pub running: u32,
    /// [`ClientStatus::Complete`]
    pub complete: u32,
    /// [`ClientStatus::Failed`]
    pub failed: u32,
}

impl GroupCounts {
    /// Count one allocation.
    pub fn add(&mut self, status: ClientStatus) {
        let count = match status {
            ClientStatus::Pending => &mut self.pending,
            ClientStatus::Running => &mut self.running,
            ClientStatus::Complete => &mut self.complete,
            ClientStatus::Failed => &mut self.failed,
        };
        *count = count.saturating_add(1);
    }
}

/// A place of a job that is empty and cannot be filled now. It is filled as soon as it can be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockedPlacement {
    /// The group.
    pub group: GroupName,
    /// 0 to count − 1.
    pub index: u32,
    /// The allocation that had the place last.
    pub previous: Option<AllocId>,
    /// It is one beside another allocation, to try a new version.
    pub canary: bool,
    /// It fits when what goes for it is over. Otherwise something else must become free.
    pub soon: bool,
    /// What stands in the way.
    pub refusal: Arc<Refusal>,
}

/// Places of the present version of a job that have no allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PlaceCounts {
    /// They wait for something to become free that is not the job's own.
    pub waiting: u32,
    /// Their allocations completed and were collected.
    pub complete: u32,
    /// Their allocations failed and were collected.
    pub failed: u32,
}

/// A job as it is now.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The newest version, and who gave it when.
    pub record: Arc<JobRecord>,
    /// Derived from the allocations.
    pub status: JobStatus,
    /// Index of the last change of the record or of an allocation of the job.
    pub modify_index: u64,
    /// Allocations that are known, oldest first. Those collected are not.
    pub allocs: Vec<AllocId>,
    /// By group, also groups of older versions that still have allocations. Of the present version
    /// with those that were collected.
    pub groups: BTreeMap<GroupName, GroupCounts>,
    /// Places that wait to be filled.
    pub blocked: Vec<BlockedPlacement>,
    /// Places without an allocation.
    pub places: PlaceCounts,
    /// Allocations that failed, and when each gets its successor.
    pub later: BTreeMap<AllocId, Timestamp>,
    /// Its newest deployment.
    pub deployment: Option<Arc<Deployment>>,
}

/// An allocation as it is now.
#[derive(Clone)]
pub struct AllocView {
    /// What was asked, the newest copy.
    pub allocation: Arc<Allocation>,
    /// What became of it.
    pub state: AllocState,
    /// Where its owner is.
    pub phase: AllocPhase,
    /// It failed, and gets a successor then.
    pub successor_at: Option<Timestamp>,
    /// It runs beside what it may replace, and nobody has accepted it yet.
    pub canary: bool,
    /// Index of the last change of `allocation`, `state` or `phase`.
    pub modify_index: u64,
    /// When that was.
    pub modify_time: Timestamp,
    /// The way to its owner.
    pub handle: AllocHandle,
}

/// An allocation whose state is read when it is asked for: thousands are found without a copy of any
/// state.
#[derive(Clone)]
pub struct AllocRef {
    /// What was asked, the newest copy.
    pub allocation: Arc<Allocation>,
    /// See [`AllocView::successor_at`].
    pub successor_at: Option<Timestamp>,
    /// See [`AllocView::canary`].
    pub canary: bool,
    /// Index of its last change.
    pub modify_index: u64,
    /// When that was.
    pub modify_time: Timestamp,
    /// The way to its owner.
    pub handle: AllocHandle,
}

impl AllocRef {
    /// As it is now.
    #[must_use]
    pub fn view(self) -> AllocView {
        let Self { allocation, successor_at, canary, modify_index, modify_time, handle } = self;
        let (state, phase) = (handle.state().borrow().clone(), *handle.phase().borrow());
        AllocView {
            allocation,
            state,
            phase,
            successor_at,
            canary,
            modify_index,
            modify_time,
            handle,
        }
    }
}

/// What a registration would do to one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupPlan {
    /// New allocations in empty places.
    pub place: u32,
    /// Updated without a restart.
    pub in_place: u32,
    /// Stopped and replaced.
    pub destructive: u32,
    /// Placed beside old ones, to try the new version.
    pub canary: u32,
    /// Stopped.
    pub stop: u32,
    /// Left as they are for now: replaced or stopped in a later step, or as soon as what replaces them fits.
    pub later: u32,
    /// Not placed, because they do not fit.
    pub waiting: u32,
    /// Left as they are.
    pub ignore: u32,
}

/// What a registration would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// `job_modify_index` of the present version; 0 when there is no such job. For
    /// [`RegisterOptions::enforce_job_modify_index`].
    pub job_modify_index: u64,
    /// The version it would be.
    pub version: u64,
    /// Every group, of the old version too.
    pub groups: BTreeMap<GroupName, GroupPlan>,
    /// Places that would wait for something to become free, and why.
    pub waiting: Vec<BlockedPlacement>,
    /// What differs from the present version, for people: `group "web" count: 1 -> 3`.
    pub changes: Vec<String>,
    /// The present version.
    #[serde(skip)]
    pub known: Option<Arc<JobRecord>>,
    /// Each device request of what would be placed: every candidate, why it fits or not, and the
    /// choice. At most [`ostler_model::limits::PLAN_DEVICE_REQUESTS_MAX`].
    pub devices: Vec<DeviceExplanation>,
    /// What the caller should hear, as sentences.
    pub warnings: Vec<String>,
}

/// What was collected on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Allocations that are gone, with their directories and records.
    pub allocs: Vec<AllocId>,
    /// Those of which something is still there, and why.
    pub failed: Vec<(AllocId, String)>,
}

/// How far the agent is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "stage")]
pub enum Stage {
    /// State and node.
    #[default]
    Starting,
    /// Allocations of earlier agents get their owners back.
    Restoring {
        /// Those that have one.
        done: usize,
        /// All.
        total: usize,
    },
    /// Jobs are taken. Those of plugins that are not there yet wait.
    Ready,
    /// The agent ends.
    Leaving,
}

impl Stage {
    /// What is known of jobs and allocations is complete, and jobs can be changed.
    #[must_use]
    pub const fn restored(self) -> bool {
        matches!(self, Self::Ready | Self::Leaving)
    }
}
