//! Takes back changes that could not be made durable.
//!
//! ```text
//! a change: records as they were ─► what was placed is removed ─► its records go ─► refused
//! a stop:   what was placed is removed ─► acknowledged with a warning ─► written again until it
//!           is durable                     ▲
//!           disk does not answer in time ──┘ (its records stay in the queue of the store)
//! ```
//! Ending a task needs no record first: when a task fills the disk, its end must not need room on
//! the disk. A purge that is not on record counts as a stop.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::alarms::Alarm;
use super::change::{LINGER, history_writes, is_on_record};
use super::turn::{ChangePhase, WaitingChange};
use super::types::{ControlEffect, DecidedChange, World, Write, WriteWait};
use super::{AfterWrite, Machine};
use crate::SubmitError;
use crate::tables::{AllocEntry, Ownership, PlacedBy, RemovalState};
use ostler_model::causes::chain;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::{STATE_LATER_RETRY_WALL_MAX, STATE_WRITE_WALL_MAX};
use ostler_state::StateError;

/// The records of a stop that are to be written again, each as it is then.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewrite {
    of_job: bool,
    allocs: BTreeSet<AllocId>,
}

impl Machine {
    /// Take a change back. The job keeps its turn until that is done.
    pub(super) fn revert(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        error: SubmitError,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        let (change, own) = (turn.change.clone(), turn.request.is_none());
        let removed = std::mem::take(&mut turn.removed);
        turn.change.index = self.tables.index();
        if change.before.is_some() {
            // Places that the version before still had to fill are decided again.
            self.unfilled.insert(job.clone());
            self.reverted.insert(job.clone());
        }
        if own {
            self.delay_fill(world);
        }
        let mut writes = Vec::new();
        for (new, old) in &change.copies {
            // An allocation keeps the new copy when it was stopped meanwhile, or when its owner
            // knows the copy.
            let untold = |entry: &AllocEntry| {
                entry.allocation.modify_index == new.modify_index && entry.told < new.modify_index
            };
            if self.tables.alloc(new.id).is_some_and(untold) {
                self.tables.put_alloc(Arc::clone(old), PlacedBy::Job, world.now);
                writes.push(Write::Alloc(Arc::clone(old)));
            }
        }
        if let Some(before) = change.before.as_ref().filter(|_| change.changes_job()) {
            self.tables.put_job(Arc::clone(before));
            if is_on_record(before) {
                writes.push(Write::Job(Arc::clone(before)));
            }
            for (group, index, _, place) in
                removed.into_iter().filter(|(_, _, version, _)| *version == before.version)
            {
                writes.extend(self.tables.enter_ended(before, &group, index, place));
            }
        } else if change.changes_job() {
            self.tables.jobs.remove(job);
        }
        if let Some(history) = change.history.as_ref().filter(|_| change.before.is_some()) {
            self.tables.put_history(job, history.before.clone());
            writes.extend(history_writes(job, history, true));
        }
        self.write(AfterWrite::Nothing, writes, Vec::new(), WriteWait::No, out);
        self.unplace(world, job, Some(error), out);
    }

    /// Remove what the change placed, then go on.
    fn unplace(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        error: Option<SubmitError>,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        turn.phase = ChangePhase::Unplacing { error };
        for alloc in turn.change.placed.clone() {
            match self.tables.alloc_mut(alloc.id) {
                Some(entry) if entry.owner == Ownership::Made => {
                    entry.placed_by = PlacedBy::Nobody;
                    // An allocation that is being removed already is not removed twice.
                    if entry.removal == RemovalState::No {
                        entry.removal = RemovalState::Begun;
                        out.push(ControlEffect::Remove(alloc.id));
                    }
                }
                _ => self.forget_live(world, alloc.id, out),
            }
        }
        self.finish_unplace(job, out);
    }

    /// Go on with a change that is taken back, when nothing of what it placed runs any more. Only
    /// directories are left then, and their removal may take any time.
    pub(super) fn finish_unplace(&mut self, job: &JobId, out: &mut Vec<ControlEffect>) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        let ChangePhase::Unplacing { error } = &mut turn.phase else { return };
        let runs = |id| self.tables.alloc(id).is_some_and(|entry| !entry.ended);
        if turn.change.placed.iter().any(|alloc| runs(alloc.id)) {
            return;
        }
        let error = error.take();
        let new = error.is_some() && turn.change.changes_job() && turn.change.before.is_none();
        // It is written also where nothing was written before: a write under way is ordered before
        // this removal.
        let placed = std::mem::take(&mut turn.change.placed);
        let gone: BTreeSet<AllocId> = placed.iter().map(|alloc| alloc.id).collect();
        let mut writes: Vec<Write> = gone.iter().map(|id| Write::ForgetAlloc(*id)).collect();
        turn.phase = ChangePhase::Reverted { error, gone };
        if new {
            writes.extend([Write::ForgetJob(job.clone()), Write::ForgetPlaces(job.clone())]);
        }
        writes.extend(self.ledger_write());
        self.write(AfterWrite::Change(job.clone()), writes, Vec::new(), WriteWait::No, out);
    }

    /// A change that ends tasks could not be written. Its owners know of it already.
    pub(super) fn handle_stop_failure(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        error: SubmitError,
        out: &mut Vec<ControlEffect>,
    ) {
        if matches!(error, SubmitError::State(StateError::Closed { .. })) {
            return self.end_turn(world, job, Err(error), out);
        }
        self.note_unrecorded(world, job, &chain(&error));
        // An allocation must not run without a record.
        self.unplace(world, job, None, out);
    }

    /// The disk does not answer in time whether the stop of the present turn is on record.
    pub(super) fn answer_unwritten_stop(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        out: &mut Vec<ControlEffect>,
    ) {
        // Its batch waits in the queue of the store, and so do the records of what was placed.
        let batch = self.written.iter().find(|(_, then)| **then == AfterWrite::Change(job.clone()));
        if let Some(batch) = batch.map(|(batch, _)| *batch) {
            self.written.remove(&batch);
        }
        let why = format!("the disk did not answer within {STATE_WRITE_WALL_MAX:?}");
        self.note_unrecorded(world, job, &why);
        // The queue may lose its records. What was placed stays, so its records are written again
        // as well.
        if let (Some(turn), Some(rewrite)) = (self.turns.get_mut(job), self.rewrites.get_mut(job)) {
            rewrite.allocs.extend(turn.change.placed.iter().map(|alloc| alloc.id));
        }
        self.end_turn(world, job, Ok(()), out);
    }

    /// Log that the stop is not on record, and write it again later.
    fn note_unrecorded(&mut self, world: &World<'_>, job: &JobId, why: &str) {
        tracing::error!(%job, error = why, "a stop is not on record; what it ends is ended all the same");
        let Some(turn) = self.turns.get_mut(job) else { return };
        turn.change.unwritten = Some(unrecorded_text(why));
        let rewrite = self.rewrites.entry(job.clone()).or_default();
        rewrite.of_job |= turn.change.changes_job();
        rewrite.allocs.extend(turn.change.copies.iter().map(|(new, _)| new.id));
        self.rewrite_later(world, job);
    }

    /// The records of an earlier stop that are not on disk and not part of this change. They are
    /// written along, so that the change is durable as a whole.
    pub(super) fn unwritten_records(&self, job: &JobId, change: &DecidedChange) -> Vec<Write> {
        let Some(rewrite) = self.rewrites.get(job) else { return Vec::new() };
        let record = self.tables.jobs.get(job).map(|entry| Arc::clone(&entry.record));
        let record = record
            .filter(|record| rewrite.of_job && change.record.is_none() && is_on_record(record));
        let copied = |id: &AllocId| change.copies.iter().any(|(new, _)| new.id == *id);
        let known = rewrite.allocs.iter().filter(|id| !copied(id));
        let known = known.filter_map(|id| self.tables.alloc(*id));
        let allocs = known.map(|entry| Write::Alloc(Arc::clone(&entry.allocation)));
        record.map(Write::Job).into_iter().chain(allocs).collect()
    }

    /// Write a stop again that could not be written, when the job's turn is free.
    pub(super) fn rewrite(&mut self, world: &World<'_>, job: &JobId, out: &mut Vec<ControlEffect>) {
        if !self.rewrites.contains_key(job) {
            return;
        }
        if !self.turns.is_free(job) {
            return self.rewrite_later(world, job);
        }
        let writes = self.unwritten_records(job, &DecidedChange::default());
        self.hold_turn(job, ChangePhase::Rewriting);
        let wait = WriteWait::Commit { linger: LINGER };
        self.write(AfterWrite::Change(job.clone()), writes, Vec::new(), wait, out);
    }

    fn rewrite_later(&mut self, world: &World<'_>, job: &JobId) {
        let at = world.uptime.saturating_add(STATE_LATER_RETRY_WALL_MAX);
        self.alarms.set(Alarm::Rewrite(job.clone()), at);
    }

    pub(super) fn finish_rewrite(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        result: Result<(), StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        match result {
            Ok(()) => {
                tracing::info!(%job, "the stop is on record now");
                self.rewrites.remove(job);
                // The places of the job are filled next.
                if self.begin_change(world, job, WaitingChange::fill(), out) {
                    return;
                }
            }
            Err(StateError::Closed { .. }) => drop(self.rewrites.remove(job)),
            Err(error) => {
                tracing::warn!(%job, %error, "the stop is not on record yet");
                self.rewrite_later(world, job);
            }
        }
        self.end_turn(world, job, Ok(()), out);
    }
}

/// The warning about a stop that is not on record.
pub(super) fn unrecorded_text(why: &str) -> String {
    format!(
        "the stop is not on record ({why}); the tasks are ended all the same, but an agent that starts \
         before it can be written runs them again; it is tried again until then"
    )
}
