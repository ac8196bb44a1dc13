//! Which allocations may be collected.

use std::collections::BTreeSet;

use super::{AllocEntry, Tables};
use crate::gc::choice::GcCandidate;
use crate::tables::entry::Removal;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::AllocId;

impl Tables {
    /// Allocations that are over and that nobody waits for, oldest first.
    pub(crate) fn garbage(&self) -> Vec<GcCandidate> {
        let waited = self.waited_for();
        let ended = self.allocs.iter().filter(|(id, entry)| entry.ended && !waited.contains(*id));
        let mut ended: Vec<_> =
            ended.map(|(id, entry)| GcCandidate { id: *id, ended_at: entry.ended_at() }).collect();
        ended.sort_unstable_by_key(|candidate| (candidate.ended_at, candidate.id));
        ended
    }

    /// Allocations whose data somebody is still to take.
    fn waited_for(&self) -> BTreeSet<AllocId> {
        // Who takes a place takes the data too, before its first task starts.
        let waits = |entry: &&AllocEntry| {
            !entry.ended && entry.allocation.desired == DesiredStatus::Run && !entry.started()
        };
        let waiting = self.allocs.values().filter(waits).filter_map(|e| e.allocation.previous);
        let blocked = self.jobs.values().flat_map(|job| &job.blocked).filter_map(|b| b.previous);
        let mut waited = BTreeSet::new();
        for first in waiting.chain(blocked) {
            let mut next = Some(first);
            // One that never started has nothing of its own: the data is with those before it.
            while let Some(id) = next.filter(|id| waited.insert(*id)) {
                let entry = self.allocs.get(&id).filter(|entry| !entry.started());
                next = entry.and_then(|entry| entry.allocation.previous);
            }
        }
        waited
    }

    /// Those of these allocations that are over and whose jobs are gone, each given out once: nobody
    /// waits for their data, because nothing of such a job is still to start.
    pub(crate) fn take_purged(&mut self, among: &[AllocId]) -> Vec<AllocId> {
        let mut purged = Vec::new();
        for id in among {
            let Some(entry) = self.allocs.get_mut(id) else { continue };
            let gone = entry.registered && !self.jobs.contains_key(&entry.allocation.job.id);
            if entry.ended && gone && entry.removal == Removal::No {
                entry.removal = Removal::Begun;
                purged.push(*id);
            }
        }
        purged
    }

    /// Is an allocation on its way to be over, or any of them?
    pub(crate) fn is_ending(&self, only: Option<AllocId>) -> bool {
        let ending = |entry: &AllocEntry| {
            let stops = entry.allocation.desired == DesiredStatus::Stop;
            !entry.ended && (stops || entry.client_status().terminal())
        };
        match only {
            Some(id) => self.allocs.get(&id).is_some_and(ending),
            None => self.allocs.values().any(ending),
        }
    }
}
