//! Requests about jobs and allocations, and views of them: plain data, snapshots.
//!
//! ```text
//! register(Job, RegisterOptions) ─► RegisterOutcome     jobs()   ─► JobView
//! plan(Job, JobOptions)           ─► JobPlan             allocs() ─► AllocView
//! deregister(JobId, StopOptions)  ─► StopOutcome         stage()  ─► AgentStage
//! ```
//! A view is what was true at one moment. Its `modify_index` says which moment, and
//! [`super::ControlHandle::changes`] tells when there is a newer one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

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
    /// The origin of the job. A job that came from a file changes only with that file, and a job
    /// that came by the API only by the API.
    pub origin: JobOrigin,
    /// Either the whole job is placed now, or nothing is changed.
    pub all_or_nothing: bool,
    /// How the text of the job is meant.
    pub meant: JobOptions,
    /// A job that is the same as before becomes a new version all the same: its ended allocations
    /// are placed again, and running ones go on.
    pub rerun: bool,
    /// The trace of its new allocations. It decides nothing.
    pub trace: Option<TraceContext>,
}

/// How the text of a job is meant, beyond what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobOptions {
    /// The job is stopped, or stays stopped.
    pub stopped: bool,
    /// Groups that the job has already keep their counts, whatever the text says.
    pub keeps_counts: bool,
}

impl JobOptions {
    /// The job that is meant: where groups keep their counts, it has the present counts.
    #[must_use]
    pub fn apply_to<'a>(self, job: &'a Job, known: Option<&JobRecord>) -> Cow<'a, Job> {
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

/// The result of a registration, which is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RegisterOutcome {
    /// Index at which this version of the job came. It is that of the present version when the job
    /// is the same as before.
    pub job_modify_index: u64,
    /// Version of the job, 0 for the first.
    pub version: u64,
    /// Index of the change; absent when there was nothing to do.
    pub index: Option<u64>,
    /// New allocations. What does not fit now comes later: see [`JobView::blocked`].
    pub placed: Vec<AllocId>,
    /// Allocations that take the change without a restart of their tasks.
    pub updated: Vec<AllocId>,
    /// Allocations told to stop.
    pub stopped: Vec<AllocId>,
    /// Warnings for the caller, as sentences.
    pub warnings: Vec<String>,
}

impl RegisterOutcome {
    /// The index for an answer: that of the change, or of the version that was as asked already.
    #[must_use]
    pub fn answer_index(&self) -> u64 {
        self.index.unwrap_or(self.job_modify_index)
    }
}

/// How a job is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOptions {
    /// Remove the job at once. Its allocations are collected as soon as they are over.
    pub purge: bool,
    /// Do not wait for the `shutdown_delay` of group and tasks.
    pub skip_shutdown_delay: bool,
    /// The reason in the events of the tasks; empty: a default text.
    pub reason: String,
}

/// The result of a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutcome {
    /// Index of the change.
    pub index: u64,
    /// Why the stop is not on record, for people: the disk refuses it. The tasks are ended
    /// all the same.
    pub unwritten: Option<String>,
}

/// The result of a request to a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeploymentOutcome {
    /// Index of the change.
    pub index: u64,
    /// The version that came back, where the deployment failed.
    pub reverted: Option<u64>,
}

/// The result of a request to run allocations that a server placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignOutcome {
    /// Ids of allocations that are new here.
    pub placed: Vec<AllocId>,
    /// Ids of allocations that have a newer copy now.
    pub updated: Vec<AllocId>,
    /// Allocations that cannot be entered, each with the reason, for people. What they need may
    /// become free.
    pub refused: Vec<(AllocId, String)>,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobStatus {
    /// Nothing of it runs yet, and something waits to be placed.
    #[default]
    Pending,
    /// Some allocation of it is not over.
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

/// Numbers of one group's allocations, by client status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupCounts {
    /// Places that wait to be filled; they are not allocations yet.
    pub queued: u32,
    /// Allocations that are [`ClientStatus::Pending`].
    pub pending: u32,
    /// Allocations that are [`ClientStatus::Running`].
    pub running: u32,
    /// Allocations that are [`ClientStatus::Complete`].
    pub complete: u32,
    /// Allocations that are [`ClientStatus::Failed`].
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

/// An empty place of a job that cannot be filled now. It is filled as soon as possible.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockedPlacement {
    /// Name of the task group.
    pub group: GroupName,
    /// Index of the place in its group, 0 to count − 1.
    pub index: u32,
    /// The allocation that had the place last.
    pub previous: Option<AllocId>,
    /// A canary is to be placed there, beside another allocation.
    pub canary: bool,
    /// It fits when what gives way to it is over. Otherwise something else must become free.
    pub soon: bool,
    /// The problems that keep the place empty.
    pub refusal: Arc<Refusal>,
}

/// Numbers of places of a job's present version that have no allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PlaceCounts {
    /// Places that wait for something to become free that the job itself does not have.
    pub waiting: u32,
    /// Places whose allocations completed and were collected.
    pub complete: u32,
    /// Places whose allocations failed and were collected.
    pub failed: u32,
}

/// A view of a job.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The newest version of the job, its origin and its time.
    pub record: Arc<JobRecord>,
    /// The state of the job, derived from its allocations.
    pub status: JobStatus,
    /// Index of the last change of the record or of an allocation of the job.
    pub modify_index: u64,
    /// Known allocations, oldest first. Collected ones are not among them.
    pub allocs: Vec<AllocId>,
    /// Numbers by group, also for groups of older versions that still have allocations. They
    /// include the collected allocations of the present version.
    pub groups: BTreeMap<GroupName, GroupCounts>,
    /// Places that wait to be filled.
    pub blocked: Vec<BlockedPlacement>,
    /// Numbers of places without an allocation.
    pub places: PlaceCounts,
    /// Allocations that failed, with the time when each gets its successor.
    pub later: BTreeMap<AllocId, Timestamp>,
    /// The newest deployment of the job.
    pub deployment: Option<Arc<Deployment>>,
}

/// A view of an allocation.
#[derive(Clone)]
pub struct AllocView {
    /// The newest copy of the allocation.
    pub allocation: Arc<Allocation>,
    /// The state of its tasks, as its owner reports it.
    pub state: AllocState,
    /// The phase that its owner is in.
    pub phase: AllocPhase,
    /// The time when its successor is placed, if it failed and gets one.
    pub successor_at: Option<Timestamp>,
    /// It is a canary that nobody has accepted yet.
    pub canary: bool,
    /// Index of the last change of `allocation`, `state` or `phase`.
    pub modify_index: u64,
    /// The time of that change.
    pub modify_time: Timestamp,
    /// The handle of its owner.
    pub handle: AllocHandle,
}

/// An allocation whose state is read only when it is asked for. So thousands can be found without
/// copying a state.
#[derive(Clone)]
pub struct AllocRef {
    /// The newest copy of the allocation.
    pub allocation: Arc<Allocation>,
    /// See [`AllocView::successor_at`].
    pub successor_at: Option<Timestamp>,
    /// See [`AllocView::canary`].
    pub canary: bool,
    /// Index of the last change of the allocation.
    pub modify_index: u64,
    /// The time of that change.
    pub modify_time: Timestamp,
    /// The handle of its owner.
    pub handle: AllocHandle,
}

impl AllocRef {
    /// Read the state, and make a view of it.
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

/// What a registration would do to one group, in numbers of allocations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupPlan {
    /// New ones in empty places.
    pub place: u32,
    /// Updated ones, without a restart of their tasks.
    pub in_place: u32,
    /// Ones that are stopped and replaced.
    pub destructive: u32,
    /// New canaries beside old ones, to try the new version.
    pub canary: u32,
    /// Ones that are stopped and not replaced.
    pub stop: u32,
    /// Ones left as they are for now. They are replaced or stopped in a later step, or as soon as
    /// their replacement fits.
    pub later: u32,
    /// Ones that are not placed, because they do not fit.
    pub waiting: u32,
    /// Ones that stay as they are.
    pub ignore: u32,
}

/// What a registration would do to a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobPlan {
    /// `job_modify_index` of the present version; 0 when there is no such job. For
    /// [`RegisterOptions::enforce_job_modify_index`].
    pub job_modify_index: u64,
    /// The version that the job would have.
    pub version: u64,
    /// Numbers for every group, those of the old version included.
    pub groups: BTreeMap<GroupName, GroupPlan>,
    /// Places that would wait for something to become free, each with the reason.
    pub waiting: Vec<BlockedPlacement>,
    /// Differences from the present version, for people: `group "web" count: 1 -> 3`.
    pub changes: Vec<String>,
    /// The record of the present version; `None`: there is no such job.
    #[serde(skip)]
    pub known: Option<Arc<JobRecord>>,
    /// The device requests of what would be placed, each with every candidate, the reasons and the
    /// choice. At most [`ostler_model::limits::PLAN_DEVICE_REQUESTS_MAX`].
    pub devices: Vec<DeviceExplanation>,
    /// Warnings for the caller, as sentences.
    pub warnings: Vec<String>,
}

/// The result of a requested collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectOutcome {
    /// Allocations that were removed, with their directories and records.
    pub allocs: Vec<AllocId>,
    /// Allocations of which something is left, each with the reason.
    pub failed: Vec<(AllocId, String)>,
}

/// The stage that the agent is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "stage")]
pub enum AgentStage {
    /// The agent opens its state and describes the node.
    #[default]
    Starting,
    /// Allocations of earlier agents get their owners back.
    Restoring {
        /// Number of allocations that have their owners.
        done: usize,
        /// Number of all allocations that get owners.
        total: usize,
    },
    /// Jobs are accepted. A job waits for plugins that are not loaded yet.
    Ready,
    /// The agent is ending.
    Leaving,
}

impl AgentStage {
    /// Are jobs and allocations known completely, so that jobs can be changed?
    #[must_use]
    pub const fn is_restored(self) -> bool {
        matches!(self, Self::Ready | Self::Leaving)
    }
}
