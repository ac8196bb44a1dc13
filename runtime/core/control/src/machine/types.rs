//! The events and effects of the machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::deployments::{DeploymentAsk, History};
use crate::gc::choice::{FsUse, GcPolicy};
use crate::node_drain::{NodeAsk, NodeAskError};
use crate::tables::AllocReport;
use crate::views::{BlockedPlacement, CollectOutcome, RegisterOptions};
use crate::{AllocError, SubmitError};
use ostler_device::ledger::{DeviceLedger, InstanceHolder};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId, TaskName};
use ostler_model::job::Job;
use ostler_model::resources::AllocatedDevice;
use ostler_model::rng::Rng;
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::{EndedPlaces, JobOrigin, JobRecord, SavedAllocState};
use ostler_model::scheduling::NodeScheduling;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;
use ostler_state::StateError;
use ostler_state::keys::EndedBlock;

/// What a step reads of the world beside its event.
pub struct World<'a> {
    /// The time of day.
    pub now: Timestamp,
    /// Time since the machine was made. It never goes back.
    pub uptime: Duration,
    /// The present view of the node.
    pub node: &'a NodeView,
    /// Source of ids and dynamic ports.
    pub rng: &'a Rng,
    /// Does a program that is not ours listen on this port?
    pub port_in_use: &'a dyn Fn(u16) -> bool,
}

/// Number of a request that is answered with [`ControlEffect::Answer`].
pub type RequestId = u64;

/// Number of a batch of records that are written together.
pub type BatchId = u64;

/// A change of a job that is asked for.
#[derive(Clone, Debug)]
pub enum JobAction {
    /// Register this job. What does not fit waits. Where it equals the present version, only what
    /// is left to do is done.
    Version(Arc<Job>, RegisterOptions),
    /// Stop the job: nothing of it is to run.
    Stop {
        /// The origin of the request.
        origin: JobOrigin,
        /// The reason, for people.
        reason: String,
        /// Remove the job from the tables and the disk as well.
        purge: bool,
    },
    /// Stop one allocation of the job.
    StopAlloc {
        /// Id of the allocation.
        alloc: AllocId,
        /// The reason, for people.
        reason: String,
    },
    /// Run these allocations of the job, which a server placed: new ones, and newer copies of known
    /// ones. No registered job replaces or stops them; [`JobAction::StopAlloc`] does.
    Assign(Vec<Allocation>),
    /// Go back to an earlier version, as the newest version of the job.
    Revert {
        /// Number of the version.
        version: u64,
        /// The present version that the caller expects, where one is given.
        enforce: Option<u64>,
        /// The origin of the request.
        origin: JobOrigin,
    },
    /// Mark a version as stable or not.
    Stable {
        /// Number of the version.
        version: u64,
        /// Whether it is stable.
        stable: bool,
    },
    /// Send a request to a deployment of the job, given by its id.
    Deployment(Box<str>, DeploymentAsk),
    /// Give failed allocations a successor now, whatever their policy says.
    Reschedule,
    /// Do what is left to do for the job.
    Fill,
}

impl JobAction {
    /// Does it end tasks? That needs no record first.
    pub(super) const fn stops(&self) -> bool {
        matches!(self, Self::Stop { .. } | Self::StopAlloc { .. })
    }
}

/// A request to the machine.
#[derive(Debug)]
pub enum ControlRequest {
    /// Change a job in the way that `asked` says.
    Change {
        /// Id of the job.
        job: JobId,
        /// The change that is asked for.
        asked: JobAction,
        /// Allocations stop without their shutdown delays.
        skip_shutdown_delay: bool,
    },
    /// Collect one allocation, or all that are over.
    Collect(Option<AllocId>),
    /// Make sure that the device entry of this holder is durable, because a plugin is about to be
    /// asked for it.
    KeepDevices(InstanceHolder),
    /// Take over what an earlier agent left: once, before any change.
    Restore(Box<RestoredNode>),
    /// Accept changes from now on; with a policy, collect allocations.
    Ready(Option<GcPolicy>),
    /// Change the policy of collection, where allocations are collected.
    SetGcPolicy(GcPolicy),
    /// Answer, and do nothing else: the requester checks that requests are answered.
    Probe,
    /// Change whether the node takes new allocations, or drain it.
    Schedule(NodeAsk),
    /// Stop every allocation, since the agent ends; kill what is left after this time.
    Drain(Duration),
    /// Accept no more changes, and end those under way.
    Leave,
}

/// The answer to a request ([`ControlRequest`]).
#[derive(Debug)]
pub enum ControlAnswer {
    /// The answer to [`ControlRequest::Change`].
    Changed(Result<DecidedChange, SubmitError>),
    /// The answer to [`ControlRequest::Collect`].
    Collected(Result<CollectOutcome, AllocError>),
    /// The answer to [`ControlRequest::KeepDevices`] and [`ControlRequest::Restore`].
    Written(Result<(), StateError>),
    /// The answer to [`ControlRequest::Schedule`]: the index of the change.
    Scheduled(Result<u64, NodeAskError>),
    /// The answer to every other request.
    Done,
}

/// The records that an earlier agent left.
#[derive(Debug, Default)]
pub struct RestoredNode {
    /// The newest version of each job.
    pub jobs: Vec<Arc<JobRecord>>,
    /// The deployments of the jobs.
    pub deployments: Vec<(JobId, JobDeployments)>,
    /// The earlier versions of the jobs.
    pub versions: Vec<(JobId, JobVersions)>,
    /// Jobs whose records are to be written anew.
    pub rebuilt: BTreeSet<JobId>,
    /// Places whose allocations had ended when they were collected.
    pub ended: Vec<(EndedBlock, EndedPlaces)>,
    /// Allocations, oldest first, with their states as saved last.
    pub allocs: Vec<(Arc<Allocation>, Option<SavedAllocState>)>,
    /// Allocations that a server placed.
    pub assigned: BTreeSet<AllocId>,
    /// Who held which device; absent where it is not readable.
    pub ledger: Option<DeviceLedger>,
    /// Whether the node takes new allocations, and its drain.
    pub scheduling: NodeScheduling,
    /// The allocations are this agent's to run. Otherwise what they hold is only counted.
    pub own: bool,
}

/// An event for the machine.
#[derive(Debug)]
pub enum ControlEvent {
    /// A request came.
    Asked {
        /// Number of the request, for its answer.
        request: RequestId,
        /// The request itself.
        ask: ControlRequest,
    },
    /// The requester does not wait for the answer any more.
    AskerGone(RequestId),
    /// The view of the node has changed.
    NodeChanged,
    /// A batch is durable, or could not be written.
    Written {
        /// Number of the batch.
        batch: BatchId,
        /// The result of the write.
        result: Result<(), StateError>,
    },
    /// The owner of an allocation was made, or could not be made.
    Owned {
        /// Id of the allocation.
        alloc: AllocId,
        /// The reason why it could not be made.
        result: Result<(), String>,
    },
    /// An allocation's owner reports its state.
    Reported {
        /// Id of the allocation.
        alloc: AllocId,
        /// The state that the owner reports.
        report: AllocReport,
    },
    /// An allocation was removed, or could not be removed.
    Removed {
        /// Id of the allocation.
        alloc: AllocId,
        /// The reason why it could not be removed.
        result: Result<(), NotRemoved>,
    },
    /// The devices of an ended allocation are being released.
    DevicesOwed {
        /// Id of the allocation.
        alloc: AllocId,
        /// Tasks of the allocation whose release is not done yet.
        owing: BTreeSet<TaskName>,
    },
    /// The plugins know that this task has ended.
    DevicesReleased(InstanceHolder),
    /// How full the file system is; `None`: it could not be measured.
    Measured(Option<FsUse>),
    /// A run that nobody owned has ended.
    RunEnded {
        /// The name of the run in commands.
        name: String,
    },
    /// Servers know how these allocations have ended, or will know it.
    EndsTold(Vec<AllocId>),
    /// The time of [`super::Machine::next_alarm`] has come.
    Alarm,
}

/// Why an allocation was not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRemoved {
    /// The reason, for people.
    pub why: String,
    /// What is left of the allocation.
    pub left: RemovalLeft,
}

/// What is left of an allocation that was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalLeft {
    /// All of it is left.
    Everything,
    /// Its directory is left. Its records are gone, and the next start of the agent
    /// removes the directory.
    Directory,
    /// Its records are left, because the disk did not remove them: that is tried again.
    Records,
    /// It is not known, because the removal takes long. It reports its end later.
    Unknown,
}

/// One record to be written or removed.
#[derive(Clone, Debug)]
pub enum Write {
    /// The record of a job.
    Job(Arc<JobRecord>),
    /// The newest copy of an allocation.
    Alloc(Arc<Allocation>),
    /// A mark that a server placed this allocation, and has acknowledged nothing of it yet.
    Assigned(AllocId),
    /// Who holds which device towards the plugins.
    Ledger(DeviceLedger),
    /// Whether the node takes new allocations, and its drain.
    Scheduling(Box<NodeScheduling>),
    /// A block of places that have ended.
    Places(Box<EndedBlock>, EndedPlaces),
    /// The deployments of a job.
    Deployments(JobId, JobDeployments),
    /// The earlier versions of a job.
    Versions(JobId, JobVersions),
    /// The removal of a job's deployments: none is kept any more.
    ForgetDeployments(JobId),
    /// The removal of a job's earlier versions: none is kept any more.
    ForgetVersions(JobId),
    /// The removal of a job's record.
    ForgetJob(JobId),
    /// The removal of the places, versions and deployments of a job that is gone.
    ForgetPlaces(JobId),
    /// The removal of all records of an allocation.
    ForgetAlloc(AllocId),
}

/// How long a batch waits for its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteWait {
    /// It does not wait: the batch may lag.
    No,
    /// Until it is durable. A commit of something else within the linger time takes it along.
    Commit {
        /// How long it waits for such a commit before it asks for one itself.
        linger: Duration,
    },
}

/// What is to be done. Effects are carried out in order: a batch is queued before the next one, and
/// before its owners are made.
#[derive(Debug)]
pub enum ControlEffect {
    /// Answer a request.
    Answer {
        /// Number of the request.
        request: RequestId,
        /// The answer to the request.
        answer: Box<ControlAnswer>,
    },
    /// Queue records, then make owners of allocations ([`ControlEvent::Owned`] for each), then wait
    /// ([`ControlEvent::Written`]).
    Write {
        /// Number of the batch.
        batch: BatchId,
        /// The records to write, in this order.
        writes: Vec<Write>,
        /// Allocations that get their owners.
        own: Vec<Arc<Allocation>>,
        /// How long to wait for the commit.
        wait: WriteWait,
    },
    /// Give an owner a newer copy of its allocation.
    Tell {
        /// The newer copy of the allocation.
        alloc: Arc<Allocation>,
        /// Stop without the shutdown delays.
        skip_shutdown_delay: bool,
    },
    /// Tell an owner once more to stop, so that it skips delays and poststop tasks.
    Hurry {
        /// Id of the allocation.
        alloc: AllocId,
        /// The reason, for people.
        reason: &'static str,
    },
    /// Release the devices of an allocation that is over ([`ControlEvent::DevicesOwed`]).
    ReleaseDevices(AllocId),
    /// Restore the claim of a task of an earlier agent on these devices.
    RestoreClaim(InstanceHolder, Vec<AllocatedDevice>),
    /// Remove an allocation with its directory and records ([`ControlEvent::Removed`]).
    Remove(AllocId),
    /// Measure how full the file system is ([`ControlEvent::Measured`]).
    Measure {
        /// Something was removed just now, and the freed room should count.
        sync: bool,
    },
    /// Kill every task of the node.
    KillTasks,
}

/// Versions and deployments of a job before and after a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct HistoryChange {
    pub(crate) before: History,
    pub(crate) now: History,
}

/// A change that was decided and is entered in the tables.
#[derive(Clone, Debug, Default)]
pub struct DecidedChange {
    pub(crate) job: Option<JobId>,
    /// The new record of the job; `None`: it stays as it is.
    pub record: Option<Arc<JobRecord>>,
    /// The record before the change; `None`: the job is new.
    pub before: Option<Arc<JobRecord>>,
    pub(crate) purge: bool,
    /// Allocations whose records are removed with those of a purged job.
    pub(crate) forgotten: BTreeSet<AllocId>,
    /// Index of the change.
    pub index: u64,
    /// New allocations.
    pub placed: Vec<Arc<Allocation>>,
    /// Its versions and deployments, where they differ from those before.
    pub(crate) history: Option<Box<HistoryChange>>,
    /// New copies of known allocations, each with the old copy.
    pub(crate) copies: Vec<(Arc<Allocation>, Arc<Allocation>)>,
    /// Places of the job that wait to be filled.
    pub blocked: Vec<BlockedPlacement>,
    /// Allocations of a server that cannot be entered, each with the reason, for people.
    pub refused: Vec<(AllocId, String)>,
    /// Why the records of a stop are not durable, for people.
    pub unwritten: Option<String>,
}

impl DecidedChange {
    pub(super) fn is_empty(&self) -> bool {
        !self.changes_job()
            && self.history.is_none()
            && self.placed.is_empty()
            && self.copies.is_empty()
    }

    /// Does the job's record change, or is it to be removed?
    pub(super) const fn changes_job(&self) -> bool {
        self.record.is_some() || self.purge
    }

    /// Allocations that run on with the change.
    #[must_use]
    pub fn updated_allocs(&self) -> Vec<AllocId> {
        self.ids(DesiredStatus::Run)
    }

    /// Allocations told to stop.
    #[must_use]
    pub fn stopped_allocs(&self) -> Vec<AllocId> {
        self.ids(DesiredStatus::Stop)
    }

    /// The index of the change; `None`: there was nothing to do.
    #[must_use]
    pub fn done_index(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.index)
    }

    fn ids(&self, desired: DesiredStatus) -> Vec<AllocId> {
        let copies = self.copies.iter().filter(|(new, _)| new.desired == desired);
        copies.map(|(new, _)| new.id).collect()
    }
}
