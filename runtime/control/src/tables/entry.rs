//! What is known of one allocation.

use std::sync::Arc;

use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::ids::AllocId;
use ostler_model::saved::EndedPlace;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;

/// What its owner says of an allocation, as far as the node decides by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocReport {
    /// What became of it.
    pub status: ClientStatus,
    /// Some task of it was started.
    pub started: bool,
    /// Restarts of all its tasks together.
    pub restarts: u64,
    /// When the last of its tasks ended.
    pub ended_at: Option<Timestamp>,
    /// Nothing of it runs or will run, and that is durable.
    pub ended: bool,
    /// The verdict on its health.
    pub verdict: Option<AllocVerdict>,
    /// The time of the newest thing in it, but that an agent is back; absent: nothing happened yet.
    pub changed_at: Option<Timestamp>,
}

/// The verdict on the health of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocVerdict {
    /// It is healthy.
    pub healthy: bool,
    /// When it was given.
    pub at: Timestamp,
    /// The deployment that it was given for.
    pub deployment: Option<Box<str>>,
}

impl AllocReport {
    /// Read off a state. `ended`: see the field.
    #[must_use]
    pub fn of(state: &AllocState, ended: bool) -> Self {
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

/// Who placed an allocation here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedBy {
    /// A job that is registered here, which replaces and stops it.
    Job,
    /// A server, which alone says what becomes of it.
    Server,
    /// Nobody who still has a say: an agent that ran one job, or a change that was taken back.
    Nobody,
}

/// Who runs an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Nobody: a run of it, or in its place, lives and is not owned.
    Withheld,
    /// Its owner is about to be made.
    Making,
    /// It has one.
    Made,
}

/// How far the removal of an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Nobody asked for it.
    No,
    /// It waits for its turn or is under way.
    Begun,
    /// It is under way and takes long: nobody waits for it.
    Slow,
}

/// An allocation.
#[derive(Clone, Debug)]
pub struct AllocEntry {
    /// The newest copy of what was asked.
    pub allocation: Arc<Allocation>,
    /// Who placed it.
    pub placed_by: PlacedBy,
    /// Tasks dead, post-run hooks done.
    pub ended: bool,
    /// Servers know how it ended, where one placed it.
    pub(crate) end_told: bool,
    pub(crate) owner: Ownership,
    /// Index of the newest copy that its owner knows, or will know when it is made.
    pub(crate) told: u64,
    pub(crate) removal: Removal,
    /// Its owner is to leave delays out when it hears of the stop.
    pub(crate) skip_shutdown_delay: bool,
    pub(crate) report: AllocReport,
    /// How an allocation of an earlier agent had ended.
    pub ended_before: Option<ClientStatus>,
    /// Index of the last visible change.
    pub modify_index: u64,
    /// When that was.
    pub modify_time: Timestamp,
    /// How far it is known again, of one of an earlier agent.
    pub(crate) known_again: KnownAgain,
}

/// What its owner has said of an allocation of an earlier agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownAgain {
    /// Nothing yet.
    No,
    /// What was on record.
    AsBefore,
    /// Something new; or there was no earlier agent.
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
            removal: Removal::No,
            skip_shutdown_delay: false,
            report: AllocReport::default(),
            ended_before: None,
            modify_index: allocation.modify_index,
            modify_time: now,
            known_again: KnownAgain::Yes,
            allocation,
        }
    }

    /// Somebody is still to hear how it ended: nobody else knows.
    pub(crate) fn is_owed(&self) -> bool {
        self.placed_by == PlacedBy::Server && !self.end_told
    }

    /// It belongs to a registered job.
    #[must_use]
    pub fn registered(&self) -> bool {
        self.placed_by == PlacedBy::Job
    }

    /// What its owner said last; pending before it has one.
    #[must_use]
    pub fn client_status(&self) -> ClientStatus {
        self.ended_before.unwrap_or(self.report.status)
    }

    /// The verdict on its health, as far as it is for the deployment that it belongs to now.
    #[must_use]
    pub fn verdict(&self) -> Option<&AllocVerdict> {
        let of_now = |verdict: &&AllocVerdict| {
            verdict.deployment.as_deref() == self.allocation.deployment_id()
        };
        self.report.verdict.as_ref().filter(of_now)
    }

    /// Its owner is about to be made, with the newest copy.
    pub(crate) fn make_owner(&mut self) -> Arc<Allocation> {
        self.owner = Ownership::Making;
        self.told = self.allocation.modify_index;
        Arc::clone(&self.allocation)
    }

    /// Some task of it was started.
    pub(crate) const fn started(&self) -> bool {
        self.report.started
    }

    /// Of two allocations of one place the later is above the other.
    pub(crate) fn age(&self) -> (u64, AllocId) {
        (self.allocation.create_index, self.allocation.id)
    }

    /// What is to be remembered of it when it is over and goes.
    pub(crate) fn ended_place(&self) -> EndedPlace {
        EndedPlace {
            alloc: self.allocation.id,
            status: self.client_status(),
            restarts: self.report.restarts,
            ended_at: self.ended_at(),
        }
    }

    /// When its last task ended; when it was placed if none did.
    pub(crate) fn ended_at(&self) -> Timestamp {
        self.report.ended_at.unwrap_or(self.allocation.created_at)
    }
}
