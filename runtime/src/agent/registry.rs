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

use super::views::{AllocView, BlockedPlacement, GroupCounts, JobStatus, JobView};
use crate::alloc::AllocHandle;
use crate::model::alloc::{Allocation, ClientStatus};
use crate::model::ids::{AllocId, JobId};
use crate::model::saved::JobRecord;
use crate::model::time::Timestamp;

/// A job.
pub(super) struct JobEntry {
    /// The newest version.
    pub(super) record: Arc<JobRecord>,
    /// Places that wait to be filled.
    pub(super) blocked: Vec<BlockedPlacement>,
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
    /// Index of the last visible change.
    pub(super) modify_index: u64,
    /// When that was.
    pub(super) modify_time: Timestamp,
}

impl AllocEntry {
    /// What its owner says; pending before it has one.
    pub(super) fn client_status(&self) -> ClientStatus {
        self.handle.as_ref().map(|h| h.state().borrow().client_status).unwrap_or_default()
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
        let entry = JobEntry { record: Arc::clone(&record), blocked: Vec::new() };
        self.jobs.entry(id).or_insert(entry).record = record;
    }

    /// An allocation by its id, to be changed.
    pub(super) fn alloc_mut(&mut self, id: AllocId) -> Option<&mut AllocEntry> {
        self.allocs.get_mut(&id)
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
            modify_index: index,
            modify_time: now,
        });
        entry.allocation = allocation;
        entry.modify_index = index.max(entry.modify_index);
        entry.modify_time = now;
    }

    /// An allocation's state or phase changed.
    pub(super) fn touch(&mut self, id: AllocId, now: Timestamp) {
        if !self.allocs.contains_key(&id) {
            return;
        }
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
            allocs: allocs.iter().map(|entry| entry.allocation.id).collect(),
            groups,
            blocked: entry.blocked.clone(),
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
