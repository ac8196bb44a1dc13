//! Finds the allocations that may be collected.

use std::collections::BTreeSet;

use super::{AllocEntry, NodeTables};
use crate::gc::choice::GcCandidate;
use crate::tables::entry::RemovalState;
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::saved::{JobOrigin, JobRecord};

/// Does this allocation belong to a purged job that had the name of the present one?
fn was_purged(alloc: &Allocation, present: &JobRecord) -> bool {
    // A job of `ostler run` may follow another one of its name without a purge; a purge stops all
    // of them.
    let stopped = alloc.desired == DesiredStatus::Stop;
    stopped && present.origin != JobOrigin::Run && alloc.create_index < present.create_index
}

impl NodeTables {
    /// Allocations that are over and that nobody waits for, oldest first. Left out are those whose
    /// end servers do not know yet: it would be lost, and servers would have them run again. Left
    /// out are failed ones of a job that is to be looked at, because they may get a successor. Left
    /// out are also canaries that nobody stopped while their deployment goes on, because it would
    /// place others for them.
    pub(crate) fn garbage(&self, looked_at: &BTreeSet<JobId>) -> Vec<GcCandidate> {
        let waited = self.awaited_allocs();
        let undecided = |entry: &AllocEntry| {
            let alloc = &entry.allocation;
            let failed = entry.client_status() == ClientStatus::Failed;
            alloc.desired == DesiredStatus::Run
                && (failed && looked_at.contains(&alloc.job.id) || self.is_tried(alloc))
        };
        let may_go = |entry: &AllocEntry| entry.ended && !entry.is_owed() && !undecided(entry);
        let ended = self.allocs.iter().filter(|(id, entry)| may_go(entry) && !waited.contains(*id));
        let mut ended: Vec<_> =
            ended.map(|(id, entry)| GcCandidate { id: *id, ended_at: entry.ended_at() }).collect();
        ended.sort_unstable_by_key(|candidate| (candidate.ended_at, candidate.id));
        ended
    }

    /// Is this allocation a canary of a deployment that goes on?
    fn is_tried(&self, alloc: &Allocation) -> bool {
        let of = alloc.deployment.as_ref().filter(|_| self.is_canary(alloc));
        let deployments = self.jobs.get(&alloc.job.id).map(|entry| &entry.history);
        let deployment = of.zip(deployments).and_then(|(of, known)| known.deployment(&of.id));
        deployment.is_some_and(|deployment| deployment.phase.is_active())
    }

    /// Allocations whose data another one is still to take.
    fn awaited_allocs(&self) -> BTreeSet<AllocId> {
        // An allocation takes the data of the one before it before its first task starts.
        let waits = |entry: &&AllocEntry| {
            !entry.ended && entry.allocation.desired == DesiredStatus::Run && !entry.has_started()
        };
        let waiting = self.allocs.values().filter(waits).filter_map(|e| e.allocation.previous);
        let blocked = self.jobs.values().flat_map(|job| &job.blocked).filter_map(|b| b.previous);
        // A failed allocation may get a successor later.
        let later = self.jobs.values().flat_map(|job| job.later.keys().copied());
        let blocked = blocked.chain(later);
        let mut waited = BTreeSet::new();
        for first in waiting.chain(blocked) {
            let mut next = Some(first);
            // An allocation that never started has no data of its own: those before it have it.
            while let Some(id) = next.filter(|id| waited.insert(*id)) {
                let entry = self.allocs.get(&id).filter(|entry| !entry.has_started());
                next = entry.and_then(|entry| entry.allocation.previous);
            }
        }
        waited
    }

    /// Take those of these allocations that have ended and whose jobs were purged; each is returned
    /// only once. An allocation stays for now if one of a new job of the same name is still to take
    /// its place.
    pub(crate) fn take_purged(&mut self, among: &[AllocId]) -> Vec<AllocId> {
        let entries = among.iter().filter_map(|id| Some((*id, self.allocs.get(id)?)));
        let mut purged: Vec<_> = entries
            .filter(|(_, entry)| entry.ended)
            .filter(|(_, entry)| entry.removal == RemovalState::No && entry.is_registered())
            .map(|(id, entry)| (id, &entry.allocation, self.jobs.get(&entry.allocation.job.id)))
            .filter(|(_, alloc, job)| job.is_none_or(|job| was_purged(alloc, &job.record)))
            .map(|(id, _, job)| (id, job.is_some()))
            .collect();
        if purged.iter().any(|(_, named_again)| *named_again) {
            let waited = self.awaited_allocs();
            purged.retain(|(id, _)| !waited.contains(id));
        }
        for (id, _) in &purged {
            if let Some(entry) = self.allocs.get_mut(id) {
                entry.removal = RemovalState::Begun;
            }
        }
        purged.into_iter().map(|(id, _)| id).collect()
    }

    /// An allocation and the earlier ones of its place, newest first.
    pub(crate) fn alloc_and_previous(&self, id: AllocId) -> Vec<AllocId> {
        let previous = |id: &AllocId| self.allocs.get(id)?.allocation.previous;
        // The records may contain a circle.
        std::iter::successors(Some(id), previous).take(self.allocs.len()).collect()
    }

    /// Is this allocation about to end, or, without an id, is any?
    pub(crate) fn is_ending(&self, only: Option<AllocId>) -> bool {
        let ending = |entry: &AllocEntry| {
            let stops = entry.allocation.desired == DesiredStatus::Stop;
            !entry.ended && (stops || entry.client_status().is_terminal())
        };
        match only {
            Some(id) => self.allocs.get(&id).is_some_and(ending),
            None => self.allocs.values().any(ending),
        }
    }

    /// Allocations whose tasks have ended for good, but whose end is not on record yet.
    pub(crate) fn unrecorded_ends(&self, only: Option<AllocId>) -> Vec<AllocId> {
        let terminal = |entry: &AllocEntry| !entry.ended && entry.client_status().is_terminal();
        let all = self.allocs.iter().filter(|(id, _)| only.is_none_or(|only| only == **id));
        all.filter(|(_, entry)| terminal(entry)).map(|(id, _)| *id).collect()
    }
}
