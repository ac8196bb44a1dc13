//! The entry of one allocation in the tables.

use std::sync::Arc;

use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::ids::AllocId;
use ostler_model::saved::EndedPlace;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;

/// The report of an allocation's owner, as far as the node decides by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocReport {
    /// The client status of the allocation.
    pub status: ClientStatus,
    /// Some task of it has been started.
    pub started: bool,
    /// Number of restarts of all its tasks together.
    pub restarts: u64,
    /// The time when the last of its tasks ended.
    pub ended_at: Option<Timestamp>,
    /// Nothing of it runs or will run, and that is durable.
    pub ended: bool,
    /// The verdict on its health; `None`: there is none yet.
    pub verdict: Option<AllocVerdict>,
    /// The time of the newest event in it, restarts of agents left out; absent:
    /// nothing happened yet.
    pub changed_at: Option<Timestamp>,
}

/// The verdict on the health of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocVerdict {
    /// The allocation was judged healthy.
    pub healthy: bool,
    /// The time of the verdict.
    pub at: Timestamp,
    /// Id of the deployment for which it was judged.
    pub deployment: Option<Box<str>>,
}

impl AllocReport {
    /// The report about a state. For `ended` see the field.
    #[must_use]
    pub fn from_state(state: &AllocState, ended: bool) -> Self {
        let tasks = || state.tasks.values();
        let of_tasks = tasks().flat_map(|task| {
            let happened = task.events.iter().rev().find(|event| !event.is_of_restart());
            let last = happened.map(|event| event.time);
            [last, task.started_at, task.finished_at, task.last_restart]
        });
        let of_health = state.health.as_ref().and_then(|status| status.changed_at);
        Self {
            changed_at: of_tasks.chain([of_health]).flatten().max(),
            status: state.client_status,
            started: tasks()
                .any(|task| task.started_at.is_some() || task.status == TaskStatus::Running),
            restarts: tasks().fold(0_u64, |sum, task| sum.saturating_add(task.restarts)),
            ended_at: tasks().filter_map(|task| task.finished_at).max(),
            ended,
            verdict: state.health.as_ref().and_then(|status| {
                Some(AllocVerdict {
                    healthy: status.healthy?,
                    at: status.changed_at.unwrap_or_default(),
                    deployment: status.deployment.clone(),
                })
            }),
        }
    }
}

/// The one who placed an allocation here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedBy {
    /// A job that is registered here, which replaces and stops it.
    Job,
    /// A server, which alone decides about it.
    Server,
    /// Nobody who still decides about it: an agent that ran one job, or a change that
    /// was taken back.
    Nobody,
}

/// Whether an allocation has an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// It has none: a run of it, or of its place, lives and is not owned.
    Withheld,
    /// Its owner is about to be made.
    Making,
    /// It has an owner.
    Made,
}

/// The progress of an allocation's removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalState {
    /// The removal was not asked for.
    No,
    /// The removal waits for its turn or is under way.
    Begun,
    /// The removal takes long, and nobody waits for it.
    Slow,
}

/// An allocation, with what is known of it.
#[derive(Clone, Debug)]
pub struct AllocEntry {
    /// The newest copy of the allocation.
    pub allocation: Arc<Allocation>,
    /// The one who placed it.
    pub placed_by: PlacedBy,
    /// Its tasks are dead, and its post-run hooks are done.
    pub ended: bool,
    /// The servers that placed it know how it ended.
    pub(crate) end_told: bool,
    pub(crate) owner: Ownership,
    /// Index of the newest copy that its owner knows, or will know when it is made.
    pub(crate) told: u64,
    pub(crate) removal: RemovalState,
    /// Its owner is to leave delays out when it is told to stop.
    pub(crate) skip_shutdown_delay: bool,
    pub(crate) report: AllocReport,
    /// The status in which an allocation of an earlier agent had ended.
    pub ended_before: Option<ClientStatus>,
    /// Index of the last visible change.
    pub modify_index: u64,
    /// The time of the last visible change.
    pub modify_time: Timestamp,
    /// What its owner has reported since an earlier agent was replaced.
    pub(crate) known_again: RestoredReport,
}

/// What the owner of an earlier agent's allocation has reported so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestoredReport {
    /// The owner has reported nothing yet.
    No,
    /// The owner has reported what was on record.
    AsBefore,
    /// The owner has reported something new, or there was no earlier agent.
    Yes,
}

impl AllocEntry {
    pub(super) fn new(allocation: Arc<Allocation>, placed_by: PlacedBy, now: Timestamp) -> Self {
        Self {
            placed_by,
            ended: false,
            end_told: false,
            owner: Ownership::Withheld,
            told: 0,
            removal: RemovalState::No,
            skip_shutdown_delay: false,
            report: AllocReport::default(),
            ended_before: None,
            modify_index: allocation.modify_index,
            modify_time: now,
            known_again: RestoredReport::Yes,
            allocation,
        }
    }

    /// Must somebody still be told how it ended, because nobody else knows?
    pub(crate) fn is_owed(&self) -> bool {
        self.placed_by == PlacedBy::Server && !self.end_told
    }

    /// Does it belong to a registered job?
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.placed_by == PlacedBy::Job
    }

    /// The status that its owner reported last; pending before it has an owner.
    #[must_use]
    pub fn client_status(&self) -> ClientStatus {
        self.ended_before.unwrap_or(self.report.status)
    }

    /// The verdict on its health, if it was given for its present deployment.
    #[must_use]
    pub fn verdict(&self) -> Option<&AllocVerdict> {
        let of_now = |verdict: &&AllocVerdict| {
            verdict.deployment.as_deref() == self.allocation.deployment_id()
        };
        self.report.verdict.as_ref().filter(of_now)
    }

    /// Note that its owner is about to be made, with the newest copy.
    pub(crate) fn make_owner(&mut self) -> Arc<Allocation> {
        self.owner = Ownership::Making;
        self.told = self.allocation.modify_index;
        Arc::clone(&self.allocation)
    }

    /// Has some task of it been started?
    pub(crate) const fn has_started(&self) -> bool {
        self.report.started
    }

    /// The age of an allocation among those of its place: a later one is greater.
    pub(crate) fn age(&self) -> (u64, AllocId) {
        (self.allocation.create_index, self.allocation.id)
    }

    /// What is kept of it when it is over and removed.
    pub(crate) fn ended_place(&self) -> EndedPlace {
        EndedPlace {
            alloc: self.allocation.id,
            status: self.client_status(),
            restarts: self.report.restarts,
            ended_at: self.ended_at(),
        }
    }

    /// The time when its last task ended; the time of its placement if none did.
    pub(crate) fn ended_at(&self) -> Timestamp {
        self.report.ended_at.unwrap_or(self.allocation.created_at)
    }
}
