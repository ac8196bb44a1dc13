//! One change of a job or its allocations: decided, written, done.
//!
//! ```text
//!  decide (both locks) ─► queue (in the order of decisions) ─► owners of new allocations start
//!     ▲ reconcile            job, allocations, ledger                 │  first durable write of a
//!     │                                                               │  task takes all of it along
//!     │                                  ┌─ failed ─► revert ◄─┐      ▼
//!  asked: version, stop, fill            └──────────────────── durable ─► owners of changed ones hear
//!                                                                  └────► acknowledged
//! ```
//! Records are queued before an owner starts, so nothing runs whose allocation is not durable: a
//! task's intent is a durable write, and those keep their order. So the start of a task alone costs
//! no commit for its allocation; many changes at the same time share one.
//!
//! Changes of one job take turns, from the decision to the acknowledgement or the end of taking it
//! back. The lock of the order is held for less: until the records are queued and the owners of new
//! allocations are there. So whoever decides next finds an owner to every allocation it sees, to tell
//! it of a newer copy and to wait for its end; and an owner is not made after the agent began to leave.
//!
//! A replacement that does not fit beside what it replaces stays a blocked placement of its job
//! until that is over; [`super::keeper`] asks again then. So does whatever does not fit at all, and
//! what it would replace runs on until it does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::MutexGuard;

use super::proposal::{Proposal, may_register, next_version, numbered, stopped_copy, updated_copy};
use super::reconcile::{Action, reason};
use super::registry::Registry;
use super::views::{BlockedPlacement, RegisterOptions, Stage};
use super::{AgentHandle, SubmitError};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::job::Job;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;
use ostler_state::{Key, Mark, StateError};

/// How long a change waits for a durable write of somebody else to take its records along (a task's
/// intent, another change), before it asks for a commit itself.
const LINGER: Duration = Duration::from_millis(2);

/// What is asked of a job.
pub(super) enum Asked {
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
    /// Do what is left to do.
    Fill,
}

/// A change that was decided and is in the registry.
#[derive(Default)]
pub(super) struct Change {
    pub(super) job: Option<JobId>,
    /// The job's new record, and the one before.
    pub(super) record: Option<Arc<JobRecord>>,
    pub(super) before: Option<Arc<JobRecord>>,
    purge: bool,
    /// Index of the change.
    pub(super) index: u64,
    /// New allocations.
    pub(super) placed: Vec<Arc<Allocation>>,
    /// New copies of known allocations, with the old ones.
    pub(super) copies: Vec<(Arc<Allocation>, Arc<Allocation>)>,
    blocked: Vec<BlockedPlacement>,
    /// Why its records are not durable, of a change that ends tasks; for people.
    pub(super) unwritten: Option<String>,
}

impl Change {
    fn is_empty(&self) -> bool {
        !self.of_job() && self.placed.is_empty() && self.copies.is_empty()
    }

    /// The job's record is another one, or to go.
    pub(super) fn of_job(&self) -> bool {
        self.record.is_some() || self.purge
    }

    /// Allocations that run on with the change.
    pub(super) fn updated(&self) -> Vec<AllocId> {
        self.ids(DesiredStatus::Run)
    }

    /// Allocations told to stop.
    pub(super) fn stopped(&self) -> Vec<AllocId> {
        self.ids(DesiredStatus::Stop)
    }

    /// Places that wait.
    pub(super) fn blocked(&self) -> &[BlockedPlacement] {
        &self.blocked
    }

    /// The index of the change, when there was something to do.
    pub(super) fn done_at(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.index)
    }

    fn ids(&self, desired: DesiredStatus) -> Vec<AllocId> {
        let copies = self.copies.iter().filter(|(new, _)| new.desired == desired);
        copies.map(|(new, _)| new.id).collect()
    }
}

impl AgentHandle {
    /// Decide a change and enter it. Nothing is changed when it is refused.
    fn decide(&self, job: &JobId, asked: Asked) -> Result<Change, SubmitError> {
        let registry = &mut *self.registry();
        let before = registry.jobs.get(job).map(|entry| Arc::clone(&entry.record));
        let mut change = Change { job: Some(job.clone()), before, ..Change::default() };
        let mut entering = Entering { now: self.0.clock.now(), index: None, why: None };
        let Some(record) = entering.wanted(asked, registry, &mut change)? else {
            change.index = entering.index.unwrap_or_else(|| registry.index());
            return Ok(change);
        };
        let mut proposal = Proposal::new(registry, &record);
        let mut admission = self.admission();
        let mut blocked = self.unfit(&admission, &record, &proposal, None);
        proposal.hold(&blocked);
        let record = entering.record(record, registry, &mut change);
        entering.copies(&record, &proposal, registry, &mut change);
        entering.purged(job, registry, &mut change);
        let (placed, soon) = self.place_now(&mut admission, &record, &proposal);
        drop(admission);
        entering.placed(&record, placed, registry, &mut change);
        blocked.extend(soon);
        registry.block(job, blocked.clone());
        change.blocked = blocked;
        change.index = entering.index.unwrap_or_else(|| registry.index());
        Ok(change)
    }

    /// Hand the records to the store, in the order of decisions. The mark behind them.
    pub(super) async fn queue(&self, change: &Change) -> Result<Mark, StateError> {
        let state = &self.0.state;
        // Of a purge too: until its job's record is gone, it is a stop.
        if let Some(record) = &change.record {
            state.put_later(&Key::Job(record.job.id.clone()), &**record).await?;
        }
        let copies = change.copies.iter().map(|(new, _)| new);
        for alloc in copies.chain(&change.placed) {
            state.put_later(&Key::Alloc(alloc.id), &**alloc).await?;
        }
        self.put_ledger().await?;
        Ok(state.mark())
    }

    /// Decide, write and do. When this returns, the change is durable, or nothing is left of it.
    pub(super) async fn change(&self, job: &JobId, asked: Asked) -> Result<Change, SubmitError> {
        self.change_with(job, asked, false).await
    }

    /// As [`Self::change`]; stopped allocations may leave their delays out.
    pub(super) async fn change_with(
        &self,
        job: &JobId,
        asked: Asked,
        skip_shutdown_delay: bool,
    ) -> Result<Change, SubmitError> {
        let turn = tokio::select! {
            turn = self.0.turns.take(job) => turn,
            () = self.0.ended.cancelled() => return Err(SubmitError::Leaving),
        };
        let changed = self.change_in_turn(job, asked, skip_shutdown_delay).await;
        drop(turn);
        if changed.as_ref().is_ok_and(|change| !change.blocked.is_empty()) {
            // Something may have become free meanwhile that nobody looked at.
            self.0.wake.notify_one();
        }
        changed
    }

    /// Fill places that wait, unless the job is being changed: whoever does that fills them too.
    pub(super) async fn fill_in_turn(&self, job: &JobId) -> Result<Option<Change>, SubmitError> {
        let Some(_turn) = self.0.turns.try_take(job) else { return Ok(None) };
        self.change_in_turn(job, Asked::Fill, false).await.map(Some)
    }

    pub(super) async fn change_in_turn(
        &self,
        job: &JobId,
        asked: Asked,
        skip_shutdown_delay: bool,
    ) -> Result<Change, SubmitError> {
        let stops = matches!(asked, Asked::Stop { .. } | Asked::StopAlloc { .. });
        let order = self.in_order().await?;
        let mut change = self.decide(job, asked)?;
        if change.is_empty() {
            return Ok(change);
        }
        let begun = self.begin_placed(&change).await;
        drop(order);
        if stops {
            // At once: a disk that is full or does not answer keeps nobody from ending a task.
            self.tell_owners(&change, skip_shutdown_delay);
            if !self.stop_recorded(&mut change, begun).await? {
                return Ok(change);
            }
        } else {
            let done = match begun {
                Ok(mark) => self.durable(&change, mark).await,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                self.revert(&change).await;
                return Err(error);
            }
            self.tell_owners(&change, skip_shutdown_delay);
        }
        if change.purge {
            self.forget(&mut change);
            self.forget_places(job).await;
        }
        if let Some(gc) = self.0.gc.get().filter(|_| !change.placed.is_empty()) {
            gc.poke();
        }
        Ok(change)
    }

    /// The lock of the order, unless the agent leaves.
    pub(super) async fn in_order(&self) -> Result<MutexGuard<'_, ()>, SubmitError> {
        let order = self.0.order.lock().await;
        // Looked at under the lock: who leaves takes it once after having said so, and finds the
        // owners of all that was decided before.
        if *self.0.stage.borrow() == Stage::Leaving || self.0.ended.is_cancelled() {
            return Err(SubmitError::Leaving);
        }
        Ok(order)
    }

    /// Queue the records and start the owners of new allocations. The mark behind the records.
    async fn begin_placed(&self, change: &Change) -> Result<Mark, SubmitError> {
        let mark = self.queue(change).await.map_err(SubmitError::State)?;
        for alloc in &change.placed {
            self.run(Arc::clone(alloc))?;
        }
        Ok(mark)
    }

    /// A job that is purged is gone once that is durable.
    fn forget(&self, change: &mut Change) {
        let Some(job) = &change.job else { return };
        {
            let mut registry = self.registry();
            registry.jobs.remove(job);
            change.index = registry.next_index();
        }
        self.collect_purged(|registry| registry.ids_of(job));
    }

    /// Enter allocations that belong to no registered job.
    pub(super) fn enter(&self, placed: Vec<Allocation>) -> Change {
        let now = self.0.clock.now();
        let mut registry = self.registry();
        let mut change = Change { index: registry.next_index(), ..Change::default() };
        for alloc in placed {
            let index = change.index;
            let alloc = Arc::new(Allocation { create_index: index, modify_index: index, ..alloc });
            registry.put_alloc(Arc::clone(&alloc), false, now);
            change.placed.push(alloc);
        }
        change
    }

    /// Wait until a change that was queued is durable.
    pub(super) async fn durable(&self, change: &Change, mark: Mark) -> Result<(), SubmitError> {
        let durable = match (&change.job, change.purge) {
            (Some(job), true) => self.0.state.delete(&Key::Job(job.clone())).await,
            _ => self.0.state.durable_to(mark, LINGER).await,
        };
        durable.map_err(SubmitError::State)
    }

    fn tell_owners(&self, change: &Change, skip_shutdown_delay: bool) {
        for (new, _) in &change.copies {
            self.tell_owner(new, skip_shutdown_delay);
        }
    }

    /// The owner hears of a new copy; never waits.
    pub(super) fn tell_owner(&self, allocation: &Arc<Allocation>, skip_shutdown_delay: bool) {
        let owner = self.registry().alloc(allocation.id).and_then(|entry| entry.handle.clone());
        let Some(owner) = owner else { return };
        if allocation.desired == DesiredStatus::Run {
            owner.update(Arc::clone(allocation));
            return;
        }
        let stopped = Arc::clone(allocation);
        self.beside(async move { owner.stop_as(stopped, skip_shutdown_delay).await });
    }
}

/// A change on its way into the registry.
struct Entering {
    now: Timestamp,
    /// The index of the change, once it is known that something changes.
    index: Option<u64>,
    /// Why allocations are stopped, where somebody said so.
    why: Option<String>,
}

impl Entering {
    fn index(&mut self, registry: &Registry) -> u64 {
        *self.index.get_or_insert_with(|| registry.next_index())
    }

    /// The job as it is to be, as yet without its indexes. `None`: nothing is to be done.
    fn wanted(
        &mut self,
        asked: Asked,
        registry: &mut Registry,
        change: &mut Change,
    ) -> Result<Option<Arc<JobRecord>>, SubmitError> {
        let known = change.before.clone();
        match (asked, known) {
            (Asked::Version(job, options), known) => {
                may_register(&job, known.as_deref(), &options)?;
                let same = known.as_deref().filter(|known| known.job == job && !known.stopped);
                if same.is_some_and(|known| known.origin == options.origin) {
                    return Ok(change.before.clone());
                }
                let next = match same {
                    // Another file gives the same job.
                    Some(known) => JobRecord { origin: options.origin, ..known.clone() },
                    None => next_version(&job, known.as_deref(), options.origin, self.now),
                };
                Ok(Some(Arc::new(next)))
            }
            (Asked::Stop { reason, purge, origin }, Some(known)) => {
                // Nothing gives a job any more that is stopped.
                if known.origin != origin && !known.stopped {
                    let (job, actual) = (known.job.id.clone(), known.origin.clone());
                    return Err(SubmitError::Origin { job, actual });
                }
                self.why = Some(reason).filter(|reason| !reason.is_empty());
                change.purge = purge;
                let same = known.stopped;
                let stopped = || Arc::new(JobRecord { stopped: true, ..(*known).clone() });
                Ok(Some(if same { Arc::clone(&known) } else { stopped() }))
            }
            (Asked::Stop { .. }, None) => Ok(None),
            (Asked::StopAlloc { alloc, reason }, known) => {
                if let Some(entry) = registry.alloc(alloc) {
                    let old = Arc::clone(&entry.allocation);
                    let new = stopped_copy(&old, &reason, self.index(registry));
                    self.copy(new, old, registry, change);
                }
                Ok(known)
            }
            (Asked::Fill, known) => Ok(known),
        }
    }

    /// Enter the job's record when it is a new one.
    fn record(
        &mut self,
        record: Arc<JobRecord>,
        registry: &mut Registry,
        change: &mut Change,
    ) -> Arc<JobRecord> {
        if change.before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &record)) {
            return record;
        }
        let index = self.index(registry);
        let record = Arc::new(numbered(&record, index, change.before.as_deref()));
        registry.put_job(Arc::clone(&record));
        change.record = Some(Arc::clone(&record));
        record
    }

    /// Enter new copies of allocations that are updated or stopped.
    fn copies(
        &mut self,
        record: &JobRecord,
        proposal: &Proposal,
        registry: &mut Registry,
        change: &mut Change,
    ) {
        for action in &proposal.actions {
            let (alloc, reason) = match action {
                Action::Update(alloc) => (alloc, None),
                Action::Stop { alloc, reason } => (alloc, Some(*reason)),
                Action::Place { .. } | Action::Ignore(_) => continue,
            };
            let Some(old) = proposal.alloc(*alloc) else { continue };
            let index = self.index(registry);
            let new = match reason {
                None => updated_copy(old, record, index),
                Some(reason) => stopped_copy(old, self.why.as_deref().unwrap_or(reason), index),
            };
            self.copy(new, Arc::clone(old), registry, change);
        }
    }

    /// What is over of a job that is to be forgotten is told to stop as well: so an agent that starts
    /// when the job's record is gone knows these allocations as those of a purged job.
    fn purged(&mut self, job: &JobId, registry: &mut Registry, change: &mut Change) {
        if !change.purge {
            return;
        }
        for id in registry.ids_of(job) {
            let Some(entry) = registry.alloc(id) else { continue };
            let old = Arc::clone(&entry.allocation);
            if entry.registered && old.desired == DesiredStatus::Run {
                let why = self.why.as_deref().unwrap_or(reason::JOB_STOPPED);
                let new = stopped_copy(
                    &old,
                    why,
                    *self.index.get_or_insert_with(|| registry.next_index()),
                );
                self.copy(new, old, registry, change);
            }
        }
    }

    fn copy(
        &self,
        new: Arc<Allocation>,
        old: Arc<Allocation>,
        registry: &mut Registry,
        change: &mut Change,
    ) {
        registry.put_alloc(Arc::clone(&new), true, self.now);
        change.copies.push((new, old));
    }

    /// Enter new allocations.
    fn placed(
        &mut self,
        record: &JobRecord,
        placed: Vec<Allocation>,
        registry: &mut Registry,
        change: &mut Change,
    ) {
        for alloc in placed {
            let index = self.index(registry);
            let (create_index, modify_index, job_version) = (index, index, record.version);
            let alloc = Allocation { create_index, modify_index, job_version, ..alloc };
            let alloc = Arc::new(alloc);
            registry.put_alloc(Arc::clone(&alloc), true, self.now);
            change.placed.push(alloc);
        }
    }
}
