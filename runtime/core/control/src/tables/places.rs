//! A place that has ended stays ended when its allocation is collected.
//!
//! ```text
//! removal ─► remember ─► ended places of the job ─► record of the block, durable
//!                                                        └─► directory and records of the
//!                                                            allocation go
//! ```
//! A crash in between leaves both, and they agree. The other ended places of the block are written
//! as well, so that the next removals find their record unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AllocEntry, NodeTables};
use crate::ended_places::{block_of, indexes_of};
use crate::machine::Write;
use crate::reconcile::{VersionAt, rank};
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::saved::{EndedPlace, EndedPlaces, JobRecord};
use ostler_state::keys::EndedBlock;

/// Has the place of this allocation ended, so that it is not to be filled again?
fn ends_its_place(entry: &AllocEntry, record: &JobRecord) -> bool {
    let alloc = &entry.allocation;
    entry.ended
        && entry.is_registered()
        && alloc.desired == DesiredStatus::Run
        && alloc.job_version == record.version
        && alloc.create_index >= record.create_index
}

impl NodeTables {
    /// Enter a place of the job's version whose allocation has ended and is gone. Returns the
    /// record to write.
    pub(crate) fn enter_ended(
        &mut self,
        record: &JobRecord,
        group: &GroupName,
        index: u32,
        place: EndedPlace,
    ) -> Option<Write> {
        let job = record.job.id.clone();
        let ended = &mut self.jobs.get_mut(&job)?.ended;
        ended.enter(record, group, [(index, place)]);
        let (group, block) = (group.clone(), block_of(index));
        let places = ended.block(&group, block);
        Some(Write::Places(Box::new(EndedBlock { job, group, block }), places))
    }

    /// Enter the place of an allocation among the ended ones, with the ended places of its block.
    /// Returns what is to be on record before the allocation goes; `None`: nothing.
    pub(crate) fn remember(&mut self, id: AllocId) -> Option<(Box<EndedBlock>, EndedPlaces)> {
        let entry = self.alloc(id)?;
        let (job, group) = (entry.allocation.job.id.clone(), entry.allocation.group.clone());
        let record = Arc::clone(&self.jobs.get(&job)?.record);
        // A stopped job fills no places. When it runs again, it has another version.
        let canary = self.is_canary(&entry.allocation);
        if record.stopped || canary || !ends_its_place(entry, &record) {
            return None;
        }
        let block = block_of(entry.allocation.index);
        let present = VersionAt::from(&*record);
        let came = |entry: &AllocEntry| {
            let alloc = &*entry.allocation;
            (rank(alloc.into(), present), alloc.id)
        };
        let mut newest: BTreeMap<u32, &AllocEntry> = BTreeMap::new();
        for entry in self.allocs_at(&job, indexes_of(block)) {
            let alloc = &entry.allocation;
            let here = alloc.group == group;
            // An allocation of a later version is left from a change that was taken back.
            let stays = alloc.job_version <= record.version;
            // A canary has no place of its own yet.
            let stays = stays && !self.is_canary(alloc);
            if here && stays && alloc.desired == DesiredStatus::Run && entry.is_registered() {
                let known = newest.entry(alloc.index).or_insert(entry);
                if came(known) < came(entry) {
                    *known = entry;
                }
            }
        }
        let newly = newest.into_iter().filter(|(_, entry)| ends_its_place(entry, &record));
        let newly: Vec<_> = newly.map(|(index, entry)| (index, entry.ended_place())).collect();
        let ended = &mut self.jobs.get_mut(&job)?.ended;
        ended.enter(&record, &group, newly);
        let places = ended.block(&group, block);
        Some((Box::new(EndedBlock { job, group, block }), places))
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
