//! A place that is over stays so when its allocation is collected.
//!
//! ```text
//!   destroy_alloc ─► remember_place ─► Ended (in the registry) ─► record of its block, durable
//!                                                                   └─► directory, records of the
//!                                                                       allocation go
//! ```
//! A crash in between leaves both, which say the same. What of the block is over too is written with
//! it, so that the next ones find their record unchanged.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::AgentHandle;
use super::ended::block_of;
use super::registry::{AllocEntry, Registry};
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::saved::{EndedPlaces, JobRecord};
use ostler_state::keys::EndedBlock;
use ostler_state::{Key, Prefix, Put, Record, StateError};

/// Is the place of this allocation over, and not to be filled again?
fn ends_its_place(entry: &AllocEntry, record: &JobRecord) -> bool {
    let alloc = &entry.allocation;
    entry.over
        && entry.registered
        && alloc.desired == DesiredStatus::Run
        && alloc.job_version == record.version
        && alloc.create_index >= record.create_index
}

impl Registry {
    /// Enter the place of an allocation among those that are over, with its neighbours that are.
    /// What is to be on record before the allocation goes; `None`: nothing.
    pub(super) fn remember(&mut self, id: AllocId) -> Option<(Key, EndedPlaces)> {
        let entry = self.alloc(id)?;
        let (job, group) = (entry.allocation.job.id.clone(), entry.allocation.group.clone());
        let record = Arc::clone(&self.jobs.get(&job)?.record);
        // A stopped job fills nothing, and when it runs again that is another version.
        if record.stopped || !ends_its_place(entry, &record) {
            return None;
        }
        let block = block_of(entry.allocation.index);
        let mut newest: BTreeMap<u32, &AllocEntry> = BTreeMap::new();
        for entry in self.allocs_of(&job) {
            let alloc = &entry.allocation;
            let here = alloc.group == group && block_of(alloc.index) == block;
            if here && alloc.desired == DesiredStatus::Run && entry.registered {
                let known = newest.entry(alloc.index).or_insert(entry);
                if known.age() < entry.age() {
                    *known = entry;
                }
            }
        }
        let over = newest.into_iter().filter(|(_, entry)| ends_its_place(entry, &record));
        let over: Vec<_> = over.map(|(index, entry)| (index, entry.ended_place())).collect();
        let ended = &mut self.jobs.get_mut(&job)?.ended;
        ended.enter(&record, &group, over);
        let places = ended.block(&group, block);
        Some((Key::EndedPlaces(Box::new(EndedBlock { job, group, block })), places))
    }
}

impl AgentHandle {
    /// Before an allocation that is over is removed: what is to be known of its place without it.
    /// `false`: the store takes nothing any more, and the allocation must stay.
    pub(super) async fn remember_place(&self, id: AllocId) -> bool {
        let put = {
            let _places = self.0.places.lock().await;
            let Some((key, places)) = self.registry().remember(id) else { return true };
            self.0.state.put_later(&key, &places).await
        };
        let durable = match put {
            Ok(Put::Unchanged) => return true,
            Ok(_) => self.0.state.flush().await,
            Err(error) => Err(error),
        };
        match durable {
            Ok(()) => true,
            Err(StateError::Closed { .. }) => false,
            Err(error) => {
                // It is written again, and before the removal of the allocation's records. The
                // directory goes: on a full disk nothing else makes room.
                tracing::warn!(alloc = %id, %error, "how the allocation ended is not on record yet");
                true
            }
        }
    }

    /// Remove what is on record of the places of a job that is gone.
    pub(super) async fn forget_places(&self, job: &JobId) {
        let _places = self.0.places.lock().await;
        let stale = |places: &EndedPlaces| {
            let registry = self.registry();
            let known = registry.jobs.get(job).map(|entry| &entry.record);
            known.is_none_or(|record| {
                (record.create_index, record.version) != (places.create_index, places.version)
            })
        };
        let found = self.0.state.scan(&Prefix::EndedPlaces(job.clone()));
        let keys = found.map(|records| {
            let stale = |record: &Record| record.decode().as_ref().is_ok_and(stale);
            records.into_iter().filter(stale).map(|record| record.key).collect::<Vec<_>>()
        });
        let removed = match keys {
            Ok(keys) => self.delete_all(keys).await,
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            // The next start removes them.
            tracing::warn!(%job, %error, "records of the job's ended places stay for now");
        }
    }

    async fn delete_all(&self, keys: Vec<Key>) -> Result<(), StateError> {
        let mut deletions = JoinSet::new();
        for key in keys {
            let state = self.0.state.clone();
            deletions.spawn(async move { state.delete(&key).await });
        }
        while let Some(deleted) = deletions.join_next().await {
            deleted.unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "remember_tests.rs"]
mod tests;
