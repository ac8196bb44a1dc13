//! A place that is over stays so when its allocation is collected.
//!
//! ```text
//!   removal ─► remember ─► Ended (of the job) ─► record of its block, durable
//!                                                                   └─► directory, records of the
//!                                                                       allocation go
//! ```
//! A crash in between leaves both, which say the same. What of the block is over too is written with
//! it, so that the next ones find their record unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AllocEntry, Tables};
use crate::ended::{block_of, indexes_of};
use crate::machine::Write;
use crate::reconcile::{VersionAt, rank};
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::saved::{EndedPlace, EndedPlaces, JobRecord};
use ostler_state::keys::EndedBlock;

/// Is the place of this allocation over, and not to be filled again?
fn ends_its_place(entry: &AllocEntry, record: &JobRecord) -> bool {
    let alloc = &entry.allocation;
    entry.ended
        && entry.registered()
        && alloc.desired == DesiredStatus::Run
        && alloc.job_version == record.version
        && alloc.create_index >= record.create_index
}

impl Tables {
    /// The allocation of this place of the job's version has ended, and is gone. What is to be on record
    /// of that.
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

    /// Enter the place of an allocation among those that are over, with its neighbours that are.
    /// What is to be on record before the allocation goes; `None`: nothing.
    pub(crate) fn remember(&mut self, id: AllocId) -> Option<(Box<EndedBlock>, EndedPlaces)> {
        let entry = self.alloc(id)?;
        let (job, group) = (entry.allocation.job.id.clone(), entry.allocation.group.clone());
        let record = Arc::clone(&self.jobs.get(&job)?.record);
        // A stopped job fills nothing, and when it runs again that is another version.
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
            // An allocation of a later version is left of a change that was taken back.
            let stays = alloc.job_version <= record.version;
            // One that runs beside another one has no place of its own yet.
            let stays = stays && !self.is_canary(alloc);
            if here && stays && alloc.desired == DesiredStatus::Run && entry.registered() {
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
