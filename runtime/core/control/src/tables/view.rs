//! Views of the tables, for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AllocEntry, NodeTables};
use crate::ended_places::EndedPlaceIndex;
use crate::views::{GroupCounts, JobStatus, JobView, PlaceCounts};
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::JobId;

impl NodeTables {
    /// A view of a job. `status` gives the newest known status of an allocation.
    #[must_use]
    pub fn job_view(
        &self,
        id: &JobId,
        status: &dyn Fn(&AllocEntry) -> ClientStatus,
    ) -> Option<JobView> {
        let entry = self.jobs.get(id)?;
        let mut groups: BTreeMap<_, GroupCounts> = BTreeMap::new();
        for group in &entry.record.job.groups {
            groups.entry(group.name.clone()).or_default();
        }
        for blocked in &entry.blocked {
            let counts = groups.entry(blocked.group.clone()).or_default();
            counts.queued = counts.queued.saturating_add(1);
        }
        let mut allocs: Vec<&AllocEntry> =
            self.allocs_of(id).filter(|entry| entry.is_registered()).collect();
        allocs.sort_by_key(|e| (e.allocation.create_index, e.allocation.index, e.allocation.id));
        let mut places = PlaceCounts {
            waiting: count(entry.blocked.iter().filter(|blocked| !blocked.soon)),
            ..PlaceCounts::default()
        };
        let ended =
            entry.ended_places_of(&entry.record).into_iter().flat_map(EndedPlaceIndex::iter);
        for (group, place) in ended.filter(|(_, place)| !self.allocs.contains_key(&place.alloc)) {
            groups.entry(group.clone()).or_default().add(place.status);
            match place.status {
                ClientStatus::Failed => places.failed = places.failed.saturating_add(1),
                _ => places.complete = places.complete.saturating_add(1),
            }
        }
        let mut live = false;
        for alloc in &allocs {
            let status = status(alloc);
            live |= !status.is_terminal();
            groups.entry(alloc.allocation.group.clone()).or_default().add(status);
        }
        let idle = entry.blocked.is_empty() && entry.later.is_empty();
        let status = match (live, idle) {
            (true, _) => JobStatus::Running,
            (false, false) => JobStatus::Pending,
            (false, true) => JobStatus::Dead,
        };
        Some(JobView {
            record: Arc::clone(&entry.record),
            status,
            modify_index: allocs
                .iter()
                .map(|alloc| alloc.modify_index)
                .fold(entry.record.modify_index, u64::max),
            allocs: allocs.iter().map(|entry| entry.allocation.id).collect(),
            groups,
            blocked: entry.blocked.clone(),
            places,
            later: entry.later.clone(),
            deployment: entry.history.deployments.last().cloned(),
        })
    }
}

fn count<T>(of: impl Iterator<Item = T>) -> u32 {
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}
