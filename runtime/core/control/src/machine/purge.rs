//! A purge is acknowledged when no record is left from which its job could come back.
//!
//! ```text
//!   purge ─► allocations on record as stopped, or without records ─► the job's record gone
//!              └─ removals begun meanwhile: their records go too ───┴─► the job is gone ─► answered
//! ```
//! A job whose record is lost is rebuilt from its allocations that are to run. So a job without a
//! record must not leave such an allocation: neither one whose records the disk did not remove, nor
//! one that is being removed, for which the store takes no newer copy.

use std::collections::BTreeSet;

use super::change::LINGER;
use super::turn::ChangePhase;
use super::types::{ControlEffect, DecidedChange, Write, WriteWait};
use super::{AfterWrite, Machine};
use crate::tables::RemovalState;
use ostler_model::ids::{AllocId, JobId};

impl Machine {
    /// Allocations of a job for which the store takes no newer copy, and whose records may exist.
    fn beyond_copies(&self, job: &JobId) -> BTreeSet<AllocId> {
        let removed = |entry: &&crate::AllocEntry| entry.ended && entry.removal != RemovalState::No;
        let removed = self.tables.allocs_of(job).filter(removed).map(|entry| entry.allocation.id);
        removed.chain(self.removals.unforgotten_allocs(job)).collect()
    }

    /// The removals that a purge writes, the job's record last.
    pub(super) fn purge_writes(&self, change: &mut DecidedChange) -> Vec<Write> {
        let Some(job) = change.job.clone().filter(|_| change.purge) else { return Vec::new() };
        change.forgotten = self.beyond_copies(&job);
        let forgotten = change.forgotten.iter().map(|id| Write::ForgetAlloc(*id));
        forgotten.chain([Write::ForgetJob(job)]).collect()
    }

    /// The records of a purge are durable. The job is gone once no record leads to it.
    pub(super) fn finish_purge(&mut self, job: &JobId, out: &mut Vec<ControlEffect>) {
        let beyond = self.beyond_copies(job);
        let Some(turn) = self.turns.get_mut(job) else { return };
        let left: Vec<AllocId> = beyond.difference(&turn.change.forgotten).copied().collect();
        if !left.is_empty() {
            turn.change.forgotten.extend(&left);
            let writes = left.into_iter().map(Write::ForgetAlloc).collect();
            let wait = WriteWait::Commit { linger: LINGER };
            self.write(AfterWrite::Change(job.clone()), writes, Vec::new(), wait, out);
            return;
        }
        self.removals.forget_job(job);
        let index = self.tables.remove_job(job);
        let purged = self.tables.ids_of(job);
        self.remove_all_purged(&purged, out);
        if let Some(turn) = self.turns.get_mut(job) {
            turn.change.index = index;
            turn.phase = ChangePhase::Forgetting;
        }
        let places = vec![Write::ForgetPlaces(job.clone())];
        self.write(AfterWrite::Change(job.clone()), places, Vec::new(), WriteWait::No, out);
    }
}
