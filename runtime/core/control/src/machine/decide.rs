//! Decides what a change is, from the tables, and enters it in them at once.
//!
//! A replacement that does not fit beside what it replaces stays a blocked placement of its job
//! until that is over. The same holds for everything else that does not fit, and what it would
//! replace runs on until it fits.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Machine;
use super::alarms::Alarm;
use super::rollout::{Rollout, earlier_version, repeats, set_stable};
use super::types::{DecidedChange, JobAction, World};
use crate::SubmitError;
use crate::admission::AttemptNames;
use crate::deployments::{DeploymentError, History};
use crate::proposal::{
    NewAlloc, Proposal, block_all, find_unfit, may_register, name_attempts, next_version,
    number_record, place_fitting, same_record, stopped_copy, updated_copy,
};
use crate::reconcile::{PlaceAction, reason};
use crate::tables::{NodeTables, PlacedBy, RemovalState};
use ostler_model::alloc::{AllocDeployment, Allocation, DesiredStatus};
use ostler_model::causes::chain;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;

impl Machine {
    /// Decide a change and enter it. A refused change changes nothing.
    pub(super) fn decide(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        asked: JobAction,
    ) -> Result<DecidedChange, SubmitError> {
        let tables = &mut self.tables;
        let before = tables.jobs.get(job).map(|entry| Arc::clone(&entry.record));
        let mut change =
            DecidedChange { job: Some(job.clone()), before, ..DecidedChange::default() };
        let mut entering = PendingChange { now: world.now, index: None, why: None, new: false };
        let whole = matches!(&asked, JobAction::Version(_, options) if options.all_or_nothing);
        let forced = matches!(asked, JobAction::Reschedule);
        let of_deployment = match &asked {
            JobAction::Deployment(id, ask) => Some((id.clone(), ask.clone())),
            _ => None,
        };
        let Some(mut record) = entering.wanted_record(asked, tables, &mut change)? else {
            change.index = entering.index.unwrap_or_else(|| tables.index());
            return Ok(change);
        };
        let mut rollout = Rollout::new(tables, job, entering.new);
        let asked = of_deployment.as_ref().map(|(id, ask)| (&**id, ask));
        rollout.advance(world, tables, asked, &mut record)?;
        let mut proposal = Proposal::new(tables, &record, rollout.history(), world.now, forced);
        let mut blocked = match tables.closed_problem() {
            Some(why) => block_all(&world.node.name, &record, &proposal, &why),
            None if whole => Vec::new(),
            None => find_unfit(world, &tables.holds, &tables.admission, &record, &proposal, None),
        };
        if let Some(first) = blocked.first().filter(|_| whole) {
            return Err(SubmitError::Refused(Box::new((*first.refusal).clone())));
        }
        proposal.hold(&blocked);
        let placed = place_fitting(world, &mut tables.admission, &record, &proposal, whole);
        let (placed, soon) = placed.map_err(|refusal| SubmitError::Refused(Box::new(refusal)))?;
        blocked.extend(soon);
        if !blocked.is_empty() {
            name_attempts(
                &mut blocked,
                &AttemptNames::new(&proposal.unplaced_attempts(job, &placed)),
            );
        }
        rollout.complete(&proposal, &blocked, &mut record);
        let record = entering.enter_record(record, tables, &mut change);
        rollout.begin_version(world, &record, &proposal);
        entering.enter_copies(&record, &proposal, &mut rollout, tables, &mut change);
        entering.accept_canaries(job, rollout.history(), tables, &mut change);
        entering.stop_purged(job, tables, &mut change);
        entering.enter_placed(placed, &mut rollout, tables, &mut change);
        let next = proposal.next.into_iter().chain(rollout.deadline()).min();
        rollout.enter(&mut || entering.index(tables), &mut change);
        if let Some(history) = &change.history {
            tables.put_history(job, history.now.clone());
        }
        tables.block(job, blocked.clone());
        tables.follow_later(job, proposal.later);
        change.blocked = blocked;
        change.index = entering.index.unwrap_or_else(|| tables.index());
        self.set_due_alarm(world, job, next);
        Ok(change)
    }

    /// Look at the job again at this time of day.
    fn set_due_alarm(&mut self, world: &World<'_>, job: &JobId, next: Option<Timestamp>) {
        let alarm = Alarm::Due(job.clone());
        match next {
            None => self.alarms.clear(&alarm),
            Some(next) => {
                let at = world.uptime.saturating_add(next.since(world.now));
                self.alarms.set(alarm, at);
            }
        }
    }
}

/// May a request of this origin stop the job? A stopped job belongs to no origin any more.
pub(super) fn may_stop(known: &JobRecord, origin: &JobOrigin) -> bool {
    known.origin == *origin || known.origin == JobOrigin::Run || known.stopped
}

/// A change that is being entered in the tables.
struct PendingChange {
    now: Timestamp,
    /// The index of the change. It is taken when something changes.
    index: Option<u64>,
    /// The reason given for stopping allocations; `None`: nobody gave one.
    why: Option<String>,
    /// The job is not the earlier one of the same name.
    new: bool,
}

impl PendingChange {
    fn index(&mut self, tables: &mut NodeTables) -> u64 {
        *self.index.get_or_insert_with(|| tables.next_index())
    }

    /// The record that the job is to have, still without its indexes. `None`: nothing is
    /// to be done.
    fn wanted_record(
        &mut self,
        asked: JobAction,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) -> Result<Option<Arc<JobRecord>>, SubmitError> {
        let known = change.before.clone();
        let asked = earlier_version(asked, tables, known.as_deref())?;
        match (asked, known) {
            (JobAction::Version(job, options), known) => {
                let known = self.known_record(&options.origin, tables, known)?;
                may_register(&job, known.as_deref(), &options)?;
                let meant = options.meant;
                let with_counts = match meant.apply_to(&job, known.as_deref()) {
                    Cow::Borrowed(_) => None,
                    Cow::Owned(job) => Some(Arc::new(job)),
                };
                let job = with_counts.unwrap_or(job);
                let kept = known.as_deref().filter(|_| !options.rerun).and_then(|known| {
                    let repeated = !known.stopped && repeats(known, &job, &options, tables);
                    if repeated { Some(known.clone()) } else { same_record(&job, known, meant) }
                });
                let is_as_asked = |known: &JobRecord| {
                    known.origin == options.origin && known.stopped == meant.stopped
                };
                if kept.is_some() && known.as_deref().is_some_and(is_as_asked) {
                    return Ok(change.before.clone());
                }
                // The same job comes from another file, so only its origin changes.
                let next = kept.unwrap_or_else(|| {
                    next_version(&job, known.as_deref(), JobOrigin::default(), self.now)
                });
                let next = JobRecord { origin: options.origin, stopped: meant.stopped, ..next };
                Ok(Some(Arc::new(next)))
            }
            (JobAction::Stop { reason, purge, origin }, Some(known)) => {
                if !may_stop(&known, &origin) {
                    let (job, actual) = (known.job.id.clone(), known.origin.clone());
                    return Err(SubmitError::Origin { job, actual });
                }
                self.why = Some(reason).filter(|reason| !reason.is_empty());
                change.purge = purge;
                let same = known.stopped;
                let stopped = || Arc::new(JobRecord { stopped: true, ..(*known).clone() });
                Ok(Some(if same { Arc::clone(&known) } else { stopped() }))
            }
            (JobAction::Stop { .. }, None) => Ok(None),
            (JobAction::StopAlloc { alloc, reason }, known) => {
                if let Some(entry) = tables.alloc(alloc) {
                    let old = Arc::clone(&entry.allocation);
                    let new = stopped_copy(&old, &reason, self.index(tables));
                    self.enter_copy(new, old, tables, change);
                }
                Ok(known)
            }
            (JobAction::Assign(allocs), _) => {
                for alloc in allocs {
                    if let Err((id, why)) = self.enter_assigned(alloc, tables, change) {
                        change.refused.push((id, why));
                    }
                }
                Ok(None)
            }
            (JobAction::Stable { version, stable }, Some(known)) => {
                Ok(Some(set_stable(&known, version, stable, tables, change)?))
            }
            (JobAction::Deployment(..), None) => {
                Err(SubmitError::Deployment(DeploymentError::Unknown))
            }
            (JobAction::Stable { version, .. } | JobAction::Revert { version, .. }, _) => {
                let job = change.job.clone();
                Err(job.map_or(SubmitError::Busy, |job| SubmitError::Version { job, version }))
            }
            (JobAction::Fill | JobAction::Reschedule | JobAction::Deployment(..), known) => {
                Ok(known)
            }
        }
    }

    /// The record that a job is compared with. A job that was run to its end may be run again, as
    /// another job of its name.
    fn known_record(
        &mut self,
        origin: &JobOrigin,
        tables: &NodeTables,
        known: Option<Arc<JobRecord>>,
    ) -> Result<Option<Arc<JobRecord>>, SubmitError> {
        let run = known.as_ref().filter(|known| known.origin == JobOrigin::Run);
        let Some(run) = run.filter(|_| *origin == JobOrigin::Run) else { return Ok(known) };
        let id = &run.job.id;
        if tables.allocs_of(id).any(|entry| !entry.client_status().is_terminal()) {
            let (job, actual) = (id.clone(), JobOrigin::Run);
            return Err(SubmitError::Origin { job, actual });
        }
        self.new = true;
        Ok(None)
    }

    /// Enter the job's record where it is a new one.
    fn enter_record(
        &mut self,
        record: Arc<JobRecord>,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) -> Arc<JobRecord> {
        if change.before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &record)) {
            return record;
        }
        let index = self.index(tables);
        let before = change.before.as_deref().filter(|_| !self.new);
        let record = Arc::new(number_record(&record, index, before));
        tables.put_job(Arc::clone(&record));
        change.record = Some(Arc::clone(&record));
        record
    }

    /// Enter new copies of allocations that are updated or stopped.
    fn enter_copies(
        &mut self,
        record: &JobRecord,
        proposal: &Proposal,
        rollout: &mut Rollout,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) {
        for action in &proposal.actions {
            let (alloc, reason) = match action {
                PlaceAction::Update(alloc) => (alloc, None),
                PlaceAction::Stop { alloc, reason } => (alloc, Some(*reason)),
                PlaceAction::Place { .. } | PlaceAction::Ignore(_) => continue,
            };
            let Some(old) = proposal.alloc(*alloc) else { continue };
            let index = self.index(tables);
            let new = match reason {
                None => {
                    let deployment = rollout.take_over(old, false, self.now);
                    let new = updated_copy(old, record, index);
                    match deployment {
                        None => new,
                        deployment => Arc::new(Allocation { deployment, ..(*new).clone() }),
                    }
                }
                Some(reason) => stopped_copy(old, self.why.as_deref().unwrap_or(reason), index),
            };
            self.enter_copy(new, Arc::clone(old), tables, change);
        }
    }

    /// Enter copies of accepted canaries: from now on they are no canaries, and offer what the
    /// others offer.
    fn accept_canaries(
        &mut self,
        job: &JobId,
        history: &History,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) {
        let copied: BTreeSet<AllocId> = change.copies.iter().map(|(new, _)| new.id).collect();
        for id in tables.ids_of(job) {
            let Some(old) = tables.alloc(id).map(|entry| Arc::clone(&entry.allocation)) else {
                continue;
            };
            let runs = old.desired == DesiredStatus::Run;
            let canary = old.deployment.as_ref().filter(|of| of.canary && runs);
            let accepted = canary.filter(|of| history.is_promoted(&of.id, &old.group));
            let Some(of) = accepted.filter(|_| !copied.contains(&id)) else { continue };
            let deployment = Some(AllocDeployment { canary: false, ..of.clone() });
            let modify_index = self.index(tables);
            let new = Allocation { deployment, modify_index, ..(*old).clone() };
            self.enter_copy(Arc::new(new), old, tables, change);
        }
    }

    /// Stop also the allocations of a purged job that are over. So an agent that starts when the
    /// job's record is gone knows them as those of a purged job.
    fn stop_purged(&mut self, job: &JobId, tables: &mut NodeTables, change: &mut DecidedChange) {
        if !change.purge {
            return;
        }
        for id in tables.ids_of(job) {
            let Some(entry) = tables.alloc(id) else { continue };
            let old = Arc::clone(&entry.allocation);
            if entry.is_registered() && old.desired == DesiredStatus::Run {
                let index = self.index(tables);
                let why = self.why.as_deref().unwrap_or(reason::JOB_STOPPED);
                let new = stopped_copy(&old, why, index);
                self.enter_copy(new, old, tables, change);
            }
        }
    }

    fn enter_copy(
        &self,
        new: Arc<Allocation>,
        old: Arc<Allocation>,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) {
        tables.put_alloc(Arc::clone(&new), PlacedBy::Job, self.now);
        change.copies.push((new, old));
    }

    /// Enter an allocation of a server, or a newer copy of one. What contradicts an earlier answer
    /// of the server is ignored: a stop stays, and a version is never taken back.
    fn enter_assigned(
        &mut self,
        alloc: Allocation,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) -> Result<(), (AllocId, String)> {
        let id = alloc.id;
        if alloc.desired != DesiredStatus::Run {
            return Ok(());
        }
        let Some(entry) = tables.alloc(id) else {
            tables.admission.adopt(&alloc).map_err(|error| (id, chain(&error)))?;
            let index = self.index(tables);
            let alloc = Arc::new(Allocation { create_index: index, modify_index: index, ..alloc });
            tables.put_alloc(Arc::clone(&alloc), PlacedBy::Server, self.now);
            change.placed.push(alloc);
            return Ok(());
        };
        if entry.placed_by != PlacedBy::Server {
            return Err((id, "this node has an allocation of its own with this id".to_owned()));
        }
        let old = Arc::clone(&entry.allocation);
        let over = entry.ended || entry.removal != RemovalState::No;
        if over || old.desired == DesiredStatus::Stop || alloc.job_version <= old.job_version {
            return Ok(());
        }
        let Allocation { job, job_version, deployment, .. } = alloc;
        let modify_index = self.index(tables);
        let new = Allocation { job, job_version, deployment, modify_index, ..(*old).clone() };
        self.enter_copy(Arc::new(new), old, tables, change);
        Ok(())
    }

    /// Enter the new allocations.
    fn enter_placed(
        &mut self,
        placed: Vec<NewAlloc>,
        rollout: &mut Rollout,
        tables: &mut NodeTables,
        change: &mut DecidedChange,
    ) {
        for NewAlloc { alloc, canary } in placed {
            let index = self.index(tables);
            let (create_index, modify_index) = (index, index);
            let deployment = rollout.deploy(&alloc, canary);
            let alloc = Arc::new(Allocation { create_index, modify_index, deployment, ..alloc });
            tables.put_alloc(Arc::clone(&alloc), PlacedBy::Job, self.now);
            change.placed.push(alloc);
        }
    }
}
