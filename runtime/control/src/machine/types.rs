//! What happens to the node, and what follows from it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::deployments::{DeploymentAsk, History};
use crate::gc::choice::{FsUse, GcPolicy};
use crate::node_drain::{NodeAsk, NodeAskError};
use crate::tables::AllocReport;
use crate::views::{BlockedPlacement, Collected, RegisterOptions};
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

/// What a step sees of the world beside its event.
pub struct World<'a> {
    /// Time of day.
    pub now: Timestamp,
    /// Time since the machine was made; never goes back.
    pub uptime: Duration,
    /// The node as it is.
    pub node: &'a NodeView,
    /// For ids and dynamic ports.
    pub rng: &'a Rng,
    /// Does a program that is not ours listen on this port?
    pub port_in_use: &'a dyn Fn(u16) -> bool,
}

/// A request that is answered with [`ControlEffect::Answer`].
pub type RequestId = u64;

/// Records that are written together.
pub type BatchId = u64;

/// What is asked of a job.
#[derive(Clone, Debug)]
pub enum JobAction {
    /// This is the job now. What does not fit waits. Only what is left to do is done when it is the
    /// present version.
    Version(Arc<Job>, RegisterOptions),
    /// Nothing of it is to run.
    Stop {
        /// Who asks.
        origin: JobOrigin,
        /// Why, for people.
        reason: String,
        /// Forget it.
        purge: bool,
    },
    /// This allocation is to stop.
    StopAlloc {
        /// Which.
        alloc: AllocId,
        /// Why, for people.
        reason: String,
    },
    /// A server wants these allocations of the job to run here: new ones, and newer copies of known ones.
    /// No registered job replaces or stops them; [`JobAction::StopAlloc`] does.
    Assign(Vec<Allocation>),
    /// Go back to an earlier version: it is the job's newest one then.
    Revert {
        /// Which.
        version: u64,
        /// Only when the present version is this one.
        enforce: Option<u64>,
        /// Who asks.
        origin: JobOrigin,
    },
    /// A version is stable, or is not.
    Stable {
        /// Which.
        version: u64,
        /// Is it?
        stable: bool,
    },
    /// Something of a deployment of the job.
    Deployment(Box<str>, DeploymentAsk),
    /// What failed gets a successor now, whatever its policy says.
    Reschedule,
    /// Do what is left to do.
    Fill,
}

impl JobAction {
    /// It ends tasks: that needs no record first.
    pub(super) const fn stops(&self) -> bool {
        matches!(self, Self::Stop { .. } | Self::StopAlloc { .. })
    }
}

/// A request.
#[derive(Debug)]
pub enum Ask {
    /// Change a job.
    Change {
        /// Which.
        job: JobId,
        /// How.
        asked: JobAction,
        /// Stopped allocations leave their delays out.
        skip_shutdown_delay: bool,
    },
    /// Collect one allocation, or all that are over.
    Collect(Option<AllocId>),
    /// A plugin is about to be asked for these devices: see that their entry is durable.
    KeepDevices(InstanceHolder),
    /// Take over what an earlier agent left. Once, and before any change.
    Restore(Box<RestoredNode>),
    /// Changes are taken from now on; with a policy, allocations are collected.
    Ready(Option<GcPolicy>),
    /// Collect by this from now on, where allocations are collected.
    CollectBy(GcPolicy),
    /// Nothing: who asks wants to know that requests are answered.
    Probe,
    /// Whether the node takes what is new, and whether it is emptied.
    Schedule(NodeAsk),
    /// The agent ends: stop every allocation; kill what is left after this time.
    Drain(Duration),
    /// Take no more changes, and end those under way.
    Leave,
}

/// The answer to an [`Ask`].
#[derive(Debug)]
pub enum Answer {
    /// To [`Ask::Change`].
    Changed(Result<Change, SubmitError>),
    /// To [`Ask::Collect`].
    Collected(Result<Collected, AllocError>),
    /// To [`Ask::KeepDevices`] and [`Ask::Restore`].
    Written(Result<(), StateError>),
    /// To [`Ask::Schedule`]: the index of the change.
    Scheduled(Result<u64, NodeAskError>),
    /// To the others.
    Done,
}

/// What an earlier agent left.
#[derive(Debug, Default)]
pub struct RestoredNode {
    /// Jobs.
    pub jobs: Vec<Arc<JobRecord>>,
    /// Their deployments and their earlier versions.
    pub deployments: Vec<(JobId, JobDeployments)>,
    /// See above.
    pub versions: Vec<(JobId, JobVersions)>,
    /// Those of them whose records are to be written anew.
    pub rebuilt: BTreeSet<JobId>,
    /// Places whose allocations had ended when they were collected.
    pub ended: Vec<(EndedBlock, EndedPlaces)>,
    /// Allocations, oldest first, with their states as saved last.
    pub allocs: Vec<(Arc<Allocation>, Option<SavedAllocState>)>,
    /// Those of them that a server placed.
    pub assigned: BTreeSet<AllocId>,
    /// Who held which device; absent where it is not readable.
    pub ledger: Option<DeviceLedger>,
    /// Whether the node takes what is new, and how it is emptied.
    pub scheduling: NodeScheduling,
    /// The allocations are this agent's to run. Otherwise what they hold is only counted.
    pub own: bool,
}

/// What happens.
#[derive(Debug)]
pub enum ControlEvent {
    /// Somebody asks for something.
    Asked {
        /// To be answered.
        request: RequestId,
        /// What.
        ask: Ask,
    },
    /// Whoever asked does not wait for the answer any more.
    AskerGone(RequestId),
    /// The node is another one.
    NodeChanged,
    /// A batch is durable, or is not.
    Written {
        /// Which.
        batch: BatchId,
        /// How it went.
        result: Result<(), StateError>,
    },
    /// The owner of an allocation was made, or could not be.
    Owned {
        /// Which.
        alloc: AllocId,
        /// Why it could not be.
        result: Result<(), String>,
    },
    /// An allocation is where its owner says.
    Reported {
        /// Which.
        alloc: AllocId,
        /// Where.
        report: AllocReport,
    },
    /// An allocation was removed, or could not be.
    Removed {
        /// Which.
        alloc: AllocId,
        /// Why it could not be.
        result: Result<(), NotRemoved>,
    },
    /// The devices of an ended allocation are being released; of these tasks that is not done yet.
    DevicesOwed {
        /// Which.
        alloc: AllocId,
        /// Its tasks.
        owing: BTreeSet<TaskName>,
    },
    /// The plugins know that this task has ended.
    DevicesReleased(InstanceHolder),
    /// How full the file system is; `None`: nobody can tell.
    Measured(Option<FsUse>),
    /// A run that nobody owned has ended.
    RunEnded {
        /// By what it was named.
        name: String,
    },
    /// Servers know how these have ended, or will have.
    EndsTold(Vec<AllocId>),
    /// The time of [`super::Machine::next_alarm`] has come.
    Alarm,
}

/// Why an allocation was not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRemoved {
    /// For people.
    pub why: String,
    /// How far its removal is.
    pub left: RemovalLeft,
}

/// What is left of an allocation that was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalLeft {
    /// All of it.
    Everything,
    /// Its directory: its records are gone, and the next start of the agent removes it.
    Directory,
    /// Its records, which the disk does not let go: that is tried again.
    Records,
    /// It is not known: the removal takes long, and tells its end when it has one.
    Unknown,
}

/// One change of the records.
#[derive(Clone, Debug)]
pub enum Write {
    /// A job's record.
    Job(Arc<JobRecord>),
    /// An allocation as it was asked for.
    Alloc(Arc<Allocation>),
    /// A server placed this allocation, and knows nothing of it yet.
    Assigned(AllocId),
    /// Who holds which device towards the plugins.
    Ledger(DeviceLedger),
    /// Whether the node takes what is new, and how it is emptied.
    Scheduling(Box<NodeScheduling>),
    /// Places that have ended.
    Places(Box<EndedBlock>, EndedPlaces),
    /// The deployments of a job.
    Deployments(JobId, JobDeployments),
    /// Its earlier versions.
    Versions(JobId, JobVersions),
    /// None of its deployments is kept any more.
    ForgetDeployments(JobId),
    /// None of its versions but the newest is kept any more.
    ForgetVersions(JobId),
    /// The job is gone.
    ForgetJob(JobId),
    /// The places, versions and deployments of a job that is gone.
    ForgetPlaces(JobId),
    /// All records of an allocation.
    ForgetAlloc(AllocId),
}

/// How long a batch waits for its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it may lag.
    No,
    /// Until it is durable; a commit that comes within this time takes it along.
    Commit {
        /// See above.
        linger: Duration,
    },
}

/// What is to be done. In order: a batch is queued before the next one, and before its owners are made.
#[derive(Debug)]
pub enum ControlEffect {
    /// Answer a request.
    Answer {
        /// Which.
        request: RequestId,
        /// The answer.
        answer: Box<Answer>,
    },
    /// Queue records, then make owners of allocations ([`ControlEvent::Owned`] for each), then wait
    /// ([`ControlEvent::Written`]).
    Write {
        /// Its number.
        batch: BatchId,
        /// The records.
        writes: Vec<Write>,
        /// Allocations that get their owners.
        own: Vec<Arc<Allocation>>,
        /// Until when.
        wait: Wait,
    },
    /// Tell an owner of a newer copy.
    Tell {
        /// The copy.
        alloc: Arc<Allocation>,
        /// Leave delays out.
        skip_shutdown_delay: bool,
    },
    /// Tell an owner once more to stop: it gives up delays and poststop tasks.
    Hurry {
        /// Which.
        alloc: AllocId,
        /// Why, for people.
        reason: &'static str,
    },
    /// Release the devices of an allocation that is over ([`ControlEvent::DevicesOwed`]).
    ReleaseDevices(AllocId),
    /// A task of an earlier agent holds these devices.
    RestoreClaim(InstanceHolder, Vec<AllocatedDevice>),
    /// Remove an allocation with its directory and records ([`ControlEvent::Removed`]).
    Remove(AllocId),
    /// Tell how full the file system is ([`ControlEvent::Measured`]).
    Measure {
        /// What was removed just now should be seen.
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

/// A change that was decided and is in the tables.
#[derive(Clone, Debug, Default)]
pub struct Change {
    pub(crate) job: Option<JobId>,
    /// The job's new record.
    pub record: Option<Arc<JobRecord>>,
    /// The one before.
    pub before: Option<Arc<JobRecord>>,
    pub(crate) purge: bool,
    /// Allocations whose records go with those of a job that is purged.
    pub(crate) forgotten: BTreeSet<AllocId>,
    /// Index of the change.
    pub index: u64,
    /// New allocations.
    pub placed: Vec<Arc<Allocation>>,
    /// Its earlier versions and its deployments, where they are other ones than before.
    pub(crate) history: Option<Box<HistoryChange>>,
    /// New copies of known allocations, with the old ones.
    pub(crate) copies: Vec<(Arc<Allocation>, Arc<Allocation>)>,
    /// Places that wait.
    pub blocked: Vec<BlockedPlacement>,
    /// Allocations of a server that cannot be entered, and why, for people.
    pub refused: Vec<(AllocId, String)>,
    /// Why its records are not durable, of a change that ends tasks; for people.
    pub unwritten: Option<String>,
}

impl Change {
    pub(super) fn is_empty(&self) -> bool {
        !self.of_job() && self.history.is_none() && self.placed.is_empty() && self.copies.is_empty()
    }

    /// The job's record is another one, or to go.
    pub(super) const fn of_job(&self) -> bool {
        self.record.is_some() || self.purge
    }

    /// Allocations that run on with the change.
    #[must_use]
    pub fn updated(&self) -> Vec<AllocId> {
        self.ids(DesiredStatus::Run)
    }

    /// Allocations told to stop.
    #[must_use]
    pub fn stopped(&self) -> Vec<AllocId> {
        self.ids(DesiredStatus::Stop)
    }

    /// The index of the change, when there was something to do.
    #[must_use]
    pub fn done_at(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.index)
    }

    fn ids(&self, desired: DesiredStatus) -> Vec<AllocId> {
        let copies = self.copies.iter().filter(|(new, _)| new.desired == desired);
        copies.map(|(new, _)| new.id).collect()
    }
}
