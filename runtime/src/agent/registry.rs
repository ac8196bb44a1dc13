//! Every job and allocation the agent knows, and the index that grows with each visible change.
//!
//! ```text
//!   register, deregister, stop ─┐                     ┌─► index (watch) ─► blocking queries
//!                               ├─► Registry (a lock) ┤
//!   followers of allocations ───┘                     └─► JobView, AllocView (snapshots)
//! ```
//! The index never goes back, over restarts neither: it starts above every index on record and at
//! least at the present time in milliseconds. Changes that are not on record (a task's state) would
//! otherwise be counted a second time with other meanings, and a client that waits for an index
//! above the last one it saw would sleep through them. With less than a thousand changes a second
//! on average the time is always ahead; a clock that is set back is caught by the records alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

use super::ended::Ended;
use super::gc::choice::Candidate;
use super::views::{AllocView, BlockedPlacement, GroupCounts, JobStatus, JobView, PlaceCounts};
use ostler_lifecycle::alloc::AllocHandle;
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::saved::{EndedPlace, EndedPlaces, JobRecord, SavedAllocState};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

/// A job.
pub(super) struct JobEntry {
    /// The newest version.
    pub(super) record: Arc<JobRecord>,
    /// Places that wait to be filled.
    pub(super) blocked: Vec<BlockedPlacement>,
    /// Places that are over, perhaps of an older version.
    pub(super) ended: Ended,
}

impl JobEntry {
    /// Places of this version that are over.
    pub(super) fn ended(&self, record: &JobRecord) -> Option<&Ended> {
        Some(&self.ended).filter(|ended| ended.is_of(record))
    }
}

/// An allocation.
pub(super) struct AllocEntry {
    /// The newest copy of what was asked.
    pub(super) allocation: Arc<Allocation>,
    /// Its owner; absent while its record is on the way to the disk.
    pub(super) handle: Option<AllocHandle>,
    /// It belongs to a registered job, which replaces and stops it. Those of an embedded run do not.
    pub(super) registered: bool,
    /// Tasks dead, post-run hooks done.
    pub(super) over: bool,
    /// Its removal was begun because its job is gone.
    going: bool,
    /// How an allocation of an earlier agent had ended.
    ended: Option<ClientStatus>,
    /// Index of the last visible change.
    pub(super) modify_index: u64,
    /// When that was.
    pub(super) modify_time: Timestamp,
}

impl AllocEntry {
    /// What its owner says; pending before it has one.
    pub(super) fn client_status(&self) -> ClientStatus {
        let said = || self.handle.as_ref().map(|h| h.state().borrow().client_status);
        self.ended.or_else(said).unwrap_or_default()
    }

    /// Some task of it was started.
    fn started(&self) -> bool {
        let begun =
            |task: &TaskState| task.started_at.is_some() || task.status == TaskStatus::Running;
        self.handle.as_ref().is_some_and(|h| h.state().borrow().tasks.values().any(begun))
    }

    /// Of two allocations of one place the later is above the other.
    pub(super) fn age(&self) -> (u64, AllocId) {
        (self.allocation.create_index, self.allocation.id)
    }

    /// What is to be remembered of it when it is over and goes.
    pub(super) fn ended_place(&self) -> EndedPlace {
        let restarts = self.handle.as_ref().map_or(0, |handle| {
            let state = handle.state();
            let state = state.borrow();
            state.tasks.values().fold(0_u64, |sum, task| sum.saturating_add(task.restarts))
        });
        let (alloc, status) = (self.allocation.id, self.client_status());
        EndedPlace { alloc, status, restarts, ended_at: self.ended_at() }
    }

    /// When its last task ended; when it was placed if none did.
    fn ended_at(&self) -> Timestamp {
        let last = self.handle.as_ref().and_then(|handle| {
            let state = handle.state();
            let state = state.borrow();
            state.tasks.values().filter_map(|task| task.finished_at).max()
        });
        last.unwrap_or(self.allocation.created_at)
    }

    fn view(&self) -> Option<AllocView> {
        let handle = self.handle.clone()?;
        let (state, phase) = (handle.state().borrow().clone(), *handle.phase().borrow());
        Some(AllocView {
            allocation: Arc::clone(&self.allocation),
            state,
            phase,
            modify_index: self.modify_index,
            modify_time: self.modify_time,
            handle,
        })
    }
}

/// See the module.
pub(super) struct Registry {
    /// Registered jobs.
    pub(super) jobs: BTreeMap<JobId, JobEntry>,
    allocs: BTreeMap<AllocId, AllocEntry>,
    by_job: BTreeMap<JobId, BTreeSet<AllocId>>,
    index: watch::Sender<u64>,
}

impl Registry {
    /// Empty. `recorded`: the highest index on record.
    pub(super) fn new(recorded: u64, now: Timestamp) -> Self {
        let millis = now.nanos() / 1_000_000;
        let index = watch::Sender::new(recorded.saturating_add(1).max(millis));
        Self { jobs: BTreeMap::new(), allocs: BTreeMap::new(), by_job: BTreeMap::new(), index }
    }

    /// The index of the last visible change.
    pub(super) fn index(&self) -> u64 {
        *self.index.borrow()
    }

    /// Told at every visible change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.index.subscribe()
    }

    /// The index of a change that is visible from now on.
    pub(super) fn next_index(&self) -> u64 {
        let mut next = 0;
        self.index.send_modify(|index| {
            *index = index.saturating_add(1);
            next = *index;
        });
        next
    }

    /// Enter a job, or its next version.
    pub(super) fn put_job(&mut self, record: Arc<JobRecord>) {
        let id = record.job.id.clone();
        let new = || JobEntry {
            record: Arc::clone(&record),
            blocked: Vec::new(),
            ended: Ended::default(),
        };
        self.jobs.entry(id).or_insert_with(new).record = Arc::clone(&record);
    }

    /// Enter places that an earlier agent found over, of the job's present version.
    pub(super) fn restore_ended(&mut self, job: &JobId, group: &GroupName, places: EndedPlaces) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        let record = &entry.record;
        if (places.create_index, places.version) == (record.create_index, record.version) {
            entry.ended.enter(record, group, places.places);
        }
    }

    /// These places of a job wait. A visible change when they differ from those before.
    pub(super) fn block(&mut self, job: &JobId, blocked: Vec<BlockedPlacement>) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        if entry.blocked != blocked {
            entry.blocked = blocked;
            self.next_index();
        }
    }

    /// Jobs with places that wait.
    pub(super) fn blocked(&self) -> Vec<JobId> {
        let waiting = self.jobs.iter().filter(|(_, entry)| !entry.blocked.is_empty());
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// Allocations that are over and that nobody waits for, oldest first.
    pub(super) fn garbage(&self) -> Vec<Candidate> {
        let waited = self.waited_for();
        let over = self.allocs.iter().filter(|(id, entry)| entry.over && !waited.contains(*id));
        let mut over: Vec<_> =
            over.map(|(id, entry)| Candidate { id: *id, ended_at: entry.ended_at() }).collect();
        over.sort_unstable_by_key(|candidate| (candidate.ended_at, candidate.id));
        over
    }

    /// Allocations whose data somebody is still to take.
    fn waited_for(&self) -> BTreeSet<AllocId> {
        // Who takes a place takes the data too, before its first task starts.
        let waits = |entry: &&AllocEntry| {
            !entry.over && entry.allocation.desired == DesiredStatus::Run && !entry.started()
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

    /// How many allocations there are.
    pub(super) fn count(&self) -> usize {
        self.allocs.len()
    }

    /// Those of these allocations that are over and whose jobs are gone, each given out once: nobody
    /// waits for their data, because nothing of such a job is still to start.
    pub(super) fn take_purged(&mut self, among: &[AllocId]) -> Vec<AllocId> {
        let mut purged = Vec::new();
        for id in among {
            let Some(entry) = self.allocs.get_mut(id) else { continue };
            let gone = entry.registered && !self.jobs.contains_key(&entry.allocation.job.id);
            if entry.over && gone && !entry.going {
                entry.going = true;
                purged.push(*id);
            }
        }
        purged
    }

    /// Every allocation of a job.
    pub(super) fn ids_of(&self, job: &JobId) -> Vec<AllocId> {
        self.by_job.get(job).into_iter().flatten().copied().collect()
    }

    /// Every allocation.
    pub(super) fn ids(&self) -> Vec<AllocId> {
        self.allocs.keys().copied().collect()
    }

    /// Is an allocation on its way to be over, or any of them?
    pub(super) fn is_ending(&self, only: Option<AllocId>) -> bool {
        let ending = |entry: &AllocEntry| {
            let stops = entry.allocation.desired == DesiredStatus::Stop;
            !entry.over && (stops || entry.client_status().terminal())
        };
        match only {
            Some(id) => self.allocs.get(&id).is_some_and(ending),
            None => self.allocs.values().any(ending),
        }
    }

    /// An allocation by its id.
    pub(super) fn alloc(&self, id: AllocId) -> Option<&AllocEntry> {
        self.allocs.get(&id)
    }

    /// An allocation by its id, to be changed.
    pub(super) fn alloc_mut(&mut self, id: AllocId) -> Option<&mut AllocEntry> {
        self.allocs.get_mut(&id)
    }

    /// Allocations that may run something and are not told to stop.
    pub(super) fn live(&self) -> Vec<Arc<Allocation>> {
        let live = self.allocs.values().filter(|entry| {
            !entry.over
                && entry.allocation.desired == DesiredStatus::Run
                && !entry.client_status().terminal()
        });
        live.map(|entry| Arc::clone(&entry.allocation)).collect()
    }

    /// Let go of every owner.
    pub(super) fn take_handles(&mut self) -> Vec<AllocHandle> {
        self.allocs.values_mut().filter_map(|entry| entry.handle.take()).collect()
    }

    /// Allocations of a job, whatever their version.
    pub(super) fn allocs_of(&self, job: &JobId) -> impl Iterator<Item = &AllocEntry> {
        let ids = self.by_job.get(job).into_iter().flatten();
        ids.filter_map(|id| self.allocs.get(id))
    }

    /// Enter an allocation, or a newer copy of a known one; what is known beside the copy stays.
    pub(super) fn put_alloc(
        &mut self,
        allocation: Arc<Allocation>,
        registered: bool,
        now: Timestamp,
    ) {
        let (id, index) = (allocation.id, allocation.modify_index);
        self.by_job.entry(allocation.job.id.clone()).or_default().insert(id);
        let entry = self.allocs.entry(id).or_insert_with(|| AllocEntry {
            allocation: Arc::clone(&allocation),
            handle: None,
            registered,
            over: false,
            going: false,
            ended: None,
            modify_index: index,
            modify_time: now,
        });
        entry.allocation = allocation;
        entry.modify_index = index.max(entry.modify_index);
        entry.modify_time = now;
    }

    /// Enter an allocation of an earlier agent.
    pub(super) fn restore_alloc(
        &mut self,
        allocation: &Arc<Allocation>,
        registered: bool,
        saved: Option<&SavedAllocState>,
        now: Timestamp,
    ) {
        self.put_alloc(Arc::clone(allocation), registered, now);
        if let Some(entry) = self.allocs.get_mut(&allocation.id)
            && let Some(saved) = saved.filter(|saved| saved.finished)
        {
            entry.over = true;
            entry.ended = Some(saved.client_status);
        }
    }

    /// An allocation's state or phase changed. `over`: it is over from now on.
    pub(super) fn touch(&mut self, id: AllocId, over: bool, now: Timestamp) {
        if !self.allocs.contains_key(&id) {
            return;
        }
        if let Some(entry) = self.allocs.get_mut(&id) {
            entry.over |= over;
        }
        // Only now: whoever waits for the index sees all of it.
        let index = self.next_index();
        if let Some(entry) = self.allocs.get_mut(&id) {
            entry.modify_index = index;
            entry.modify_time = now;
        }
    }

    /// Forget an allocation.
    pub(super) fn remove_alloc(&mut self, id: AllocId) -> Option<AllocEntry> {
        let entry = self.allocs.remove(&id)?;
        let job = &entry.allocation.job.id;
        if let Some(ids) = self.by_job.get_mut(job) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_job.remove(job);
            }
        }
        self.next_index();
        Some(entry)
    }

    /// A job as it is now.
    pub(super) fn job_view(&self, id: &JobId) -> Option<JobView> {
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
            self.allocs_of(id).filter(|entry| entry.registered).collect();
        allocs.sort_by_key(|e| (e.allocation.create_index, e.allocation.index, e.allocation.id));
        let mut places = PlaceCounts {
            waiting: count(entry.blocked.iter().filter(|blocked| !blocked.soon)),
            ..PlaceCounts::default()
        };
        let ended = entry.ended(&entry.record).into_iter().flat_map(Ended::iter);
        for (group, place) in ended.filter(|(_, place)| !self.allocs.contains_key(&place.alloc)) {
            groups.entry(group.clone()).or_default().add(place.status);
            match place.status {
                ClientStatus::Failed => places.failed = places.failed.saturating_add(1),
                _ => places.complete = places.complete.saturating_add(1),
            }
        }
        let mut live = false;
        for alloc in &allocs {
            let status = alloc.client_status();
            live |= !status.terminal();
            groups.entry(alloc.allocation.group.clone()).or_default().add(status);
        }
        let status = match (live, entry.blocked.is_empty()) {
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
        })
    }

    /// An allocation as it is now; absent too while its record is on the way to the disk.
    pub(super) fn alloc_view(&self, id: AllocId) -> Option<AllocView> {
        self.allocs.get(&id)?.view()
    }

    /// Every allocation that has an owner, by id.
    pub(super) fn alloc_views(&self) -> Vec<AllocView> {
        self.allocs.values().filter_map(AllocEntry::view).collect()
    }
}

fn count<T>(of: impl Iterator<Item = T>) -> u32 {
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
