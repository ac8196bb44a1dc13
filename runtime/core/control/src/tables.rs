//! The tables of everything the node knows: jobs, allocations, their resources, and the index that
//! grows with each visible change. Plain data; [`crate::machine`] changes it.
//!
//! The index never goes back, not even over restarts: it starts above every index on record, and at
//! least at the present time in milliseconds. Otherwise changes that are not on record (a task's
//! state) would be counted a second time with other meanings, and a client that waits for an index
//! above the last one it saw would miss them. With less than a thousand changes a second on average
//! the time is always ahead. Where the clock was set back, the records alone keep the index
//! growing.

mod entry;
mod garbage;
mod job_copy;
mod places;
mod view;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;
use std::sync::Arc;

use super::admission::{Admission, Problem};
use super::change_log::{ChangeSubject, NotedChange};
use super::deployments::History;
use super::ended_places::EndedPlaceIndex;
use super::unowned_runs::UnownedRuns;
use super::views::{AgentStage, BlockedPlacement};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::rollout::Deployment;
use ostler_model::saved::{EndedPlaces, JobRecord, SavedAllocState};
use ostler_model::scheduling::{NodeEvent, NodeEventKind, NodeScheduling};
use ostler_model::time::Timestamp;
use uuid::Uuid;

pub use entry::{AllocEntry, AllocReport, AllocVerdict, PlacedBy};
pub(crate) use entry::{Ownership, RemovalState, RestoredReport};

/// A registered job, with what is known of it.
#[derive(Clone, Debug)]
pub struct JobEntry {
    /// The record of its newest version.
    pub record: Arc<JobRecord>,
    /// Places that wait to be filled.
    pub blocked: Vec<BlockedPlacement>,
    /// Places that have ended, perhaps of an older version.
    pub ended: EndedPlaceIndex,
    /// Earlier versions, and deployments.
    pub history: History,
    /// Allocations that failed, with the time when each gets its successor.
    pub later: BTreeMap<AllocId, Timestamp>,
}

impl JobEntry {
    /// The ended places of this version of the job.
    pub(crate) fn ended_places_of(&self, record: &JobRecord) -> Option<&EndedPlaceIndex> {
        Some(&self.ended).filter(|ended| ended.is_of(record))
    }
}

/// The tables of the node. See the module.
#[derive(Clone, Debug)]
pub struct NodeTables {
    /// Registered jobs.
    pub(crate) jobs: BTreeMap<JobId, JobEntry>,
    allocs: BTreeMap<AllocId, AllocEntry>,
    /// Allocations by job, and by index in their groups, so that those of a place are found among
    /// ten thousand.
    by_job: BTreeMap<JobId, BTreeSet<(u32, AllocId)>>,
    /// The resources of the node that are assigned, and their holders.
    pub(crate) admission: Admission,
    /// Runs that live and that nobody owns, and what waits for their ends.
    pub(crate) holds: UnownedRuns,
    /// The stage of the agent.
    pub(crate) stage: AgentStage,
    /// Whether the node takes new allocations, and its drain.
    scheduling: NodeScheduling,
    index: u64,
    /// The index at which an allocation was forgotten last; 0: none was.
    forgot: u64,
    /// The visible changes since they were taken last. What is restored does not count.
    noted: Vec<NotedChange>,
}

/// The time in milliseconds, as an index: so indexes grow over restarts.
const fn millis(at: Timestamp) -> u64 {
    at.nanos() / 1_000_000
}

impl NodeTables {
    /// Empty tables. `recorded`: the highest index on record.
    #[must_use]
    pub fn new(recorded: u64, now: Timestamp, holds: UnownedRuns) -> Self {
        Self {
            jobs: BTreeMap::new(),
            allocs: BTreeMap::new(),
            by_job: BTreeMap::new(),
            admission: Admission::default(),
            holds,
            stage: AgentStage::Starting,
            scheduling: NodeScheduling::default(),
            index: recorded.saturating_add(1).max(millis(now)),
            forgot: 0,
            noted: Vec::new(),
        }
    }

    /// Take the visible changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<NotedChange> {
        std::mem::take(&mut self.noted)
    }

    fn note(&mut self, index: u64, of: ChangeSubject) {
        if self.stage.is_restored() {
            self.noted.push(NotedChange { index, of });
        }
    }

    /// Remove a job. That is visible from now on.
    pub(crate) fn remove_job(&mut self, job: &JobId) -> u64 {
        self.jobs.remove(job);
        let index = self.next_index();
        self.note(index, ChangeSubject::Job(job.clone(), true));
        index
    }

    /// The index of the last visible change.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// The index at which an allocation was forgotten last; 0: none was. A list of allocations from
    /// before that index may name one that is gone.
    #[must_use]
    pub const fn last_forget_index(&self) -> u64 {
        self.forgot
    }

    /// The stage of the agent.
    #[must_use]
    pub const fn stage(&self) -> AgentStage {
        self.stage
    }

    /// Whether the node takes new allocations, and its drain.
    #[must_use]
    pub const fn scheduling(&self) -> &NodeScheduling {
        &self.scheduling
    }

    /// Set the state that an earlier agent left, or the one before a change that is taken back.
    pub(crate) fn restore_scheduling(&mut self, scheduling: NodeScheduling) {
        self.scheduling = scheduling;
    }

    /// Change the node's scheduling, with an event. That is visible from now on.
    pub(crate) fn schedule(
        &mut self,
        kind: NodeEventKind,
        now: Timestamp,
        change: impl FnOnce(&mut NodeScheduling),
    ) {
        let index = self.next_index();
        change(&mut self.scheduling);
        self.scheduling.note(NodeEvent { at: now, index, kind });
        self.note(index, ChangeSubject::Node(kind));
    }

    /// The problem of every new placement, where the node takes no new allocations.
    pub(crate) fn closed_problem(&self) -> Option<Problem> {
        let closed = self.scheduling.ineligible;
        closed.then(|| Problem::Closed { draining: self.scheduling.drain.is_some() })
    }

    /// The resources of the node that are assigned, and their holders.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Runs that live and that nobody owns.
    #[must_use]
    pub const fn holds(&self) -> &UnownedRuns {
        &self.holds
    }

    /// Every job, by id.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobId, &JobEntry)> {
        self.jobs.iter()
    }

    /// A job by its id.
    #[must_use]
    pub fn job(&self, id: &JobId) -> Option<&JobEntry> {
        self.jobs.get(id)
    }

    /// Take the next index, for a change that is visible from now on.
    pub(crate) const fn next_index(&mut self) -> u64 {
        self.index = self.index.saturating_add(1);
        self.index
    }

    /// Enter a job, or its next version.
    pub(crate) fn put_job(&mut self, record: Arc<JobRecord>) {
        let id = record.job.id.clone();
        let new = || JobEntry {
            record: Arc::clone(&record),
            blocked: Vec::new(),
            ended: EndedPlaceIndex::default(),
            history: History::default(),
            later: BTreeMap::new(),
        };
        self.jobs.entry(id).or_insert_with(new).record = Arc::clone(&record);
        let of = ChangeSubject::Job(record.job.id.clone(), record.stopped);
        self.note(record.modify_index, of);
    }

    /// Enter the ended places that an earlier agent recorded, where they are of the
    /// job's present version.
    pub(crate) fn restore_ended(&mut self, job: &JobId, group: &GroupName, places: EndedPlaces) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        let record = &entry.record;
        if (places.create_index, places.version) == (record.create_index, record.version) {
            entry.ended.enter(record, group, places.places);
        }
    }

    /// Set the waiting places of a job. It is a visible change when they differ from those before.
    pub(crate) fn block(&mut self, job: &JobId, blocked: Vec<BlockedPlacement>) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        if entry.blocked != blocked {
            entry.blocked = blocked;
            let of = ChangeSubject::Job(job.clone(), entry.record.stopped);
            let index = self.next_index();
            self.note(index, of);
        }
    }

    /// Set the allocations of a job that get successors later. It is a visible change
    /// when they differ.
    pub(crate) fn follow_later(&mut self, job: &JobId, later: BTreeMap<AllocId, Timestamp>) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        if entry.later != later {
            entry.later = later;
            self.next_index();
        }
    }

    /// Earlier versions and deployments of a job; empty where there is no such job.
    pub(crate) fn history(&self, job: &JobId) -> History {
        self.jobs.get(job).map(|entry| entry.history.clone()).unwrap_or_default()
    }

    /// Set the earlier versions and deployments of a job.
    pub(crate) fn put_history(&mut self, job: &JobId, history: History) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        let known = std::mem::replace(&mut entry.history, history).deployments;
        let is_new = |one: &&Arc<Deployment>| !known.contains(one);
        let changed: Vec<_> = entry.history.deployments.iter().filter(is_new).cloned().collect();
        for deployment in changed {
            let of = ChangeSubject::Deployment(job.clone(), deployment.id.clone());
            self.note(deployment.modify_index, of);
        }
    }

    /// Was it placed as a canary, whether it was accepted since or not?
    fn came_as_canary(&self, alloc: &Allocation) -> bool {
        let Some(of) = &alloc.deployment else { return false };
        let history = self.jobs.get(&alloc.job.id).map(|entry| &entry.history);
        let deployment = history.and_then(|history| history.deployment(&of.id));
        let group = deployment.and_then(|known| known.groups.get(&alloc.group));
        of.canary || group.is_some_and(|group| group.canaries.contains(&alloc.id))
    }

    /// Is this allocation a canary of its version that nobody has accepted yet?
    pub(crate) fn is_canary(&self, alloc: &Allocation) -> bool {
        let deployment = alloc.deployment.as_ref().filter(|deployment| deployment.canary);
        let entry = self.jobs.get(&alloc.job.id).filter(|_| deployment.is_some());
        deployment.zip(entry).is_some_and(|(deployment, entry)| {
            entry.history.awaits_promotion(&deployment.id, &alloc.group)
        })
    }

    /// Jobs with places that wait to be filled.
    pub(crate) fn blocked_jobs(&self) -> Vec<JobId> {
        let waiting = self.jobs.iter().filter(|(_, entry)| !entry.blocked.is_empty());
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// The rank of a job: of two jobs the one with the lower rank gets room first.
    pub(crate) fn rank(&self, job: &JobId) -> (Reverse<u8>, u64) {
        let record = self.jobs.get(job).map(|entry| &entry.record);
        record.map_or((Reverse(0), u64::MAX), |record| {
            (Reverse(record.job.priority), record.create_index)
        })
    }

    /// The number of waiting places of all jobs.
    pub(crate) fn places_waiting(&self) -> usize {
        self.jobs.values().map(|entry| entry.blocked.len()).sum()
    }

    /// The ids of all allocations of a job.
    pub(crate) fn ids_of(&self, job: &JobId) -> Vec<AllocId> {
        self.by_job.get(job).into_iter().flatten().map(|(_, id)| *id).collect()
    }

    /// The ids of all allocations.
    #[must_use]
    pub fn ids(&self) -> Vec<AllocId> {
        self.allocs.keys().copied().collect()
    }

    /// Every allocation, by id.
    pub fn allocs(&self) -> impl Iterator<Item = &AllocEntry> {
        self.allocs.values()
    }

    /// The number of allocations.
    #[must_use]
    pub fn count(&self) -> usize {
        self.allocs.len()
    }

    /// An allocation by its id.
    #[must_use]
    pub fn alloc(&self, id: AllocId) -> Option<&AllocEntry> {
        self.allocs.get(&id)
    }

    pub(crate) fn alloc_mut(&mut self, id: AllocId) -> Option<&mut AllocEntry> {
        self.allocs.get_mut(&id)
    }

    /// Allocations that may still run something.
    pub(crate) fn unended_allocs(&self) -> impl Iterator<Item = &AllocEntry> {
        self.allocs.values().filter(|entry| !entry.ended)
    }

    /// Allocations of a job, whatever their version.
    pub fn allocs_of(&self, job: &JobId) -> impl Iterator<Item = &AllocEntry> {
        self.allocs_at(job, ..)
    }

    /// Allocations of a job whose index in their group is in this range.
    pub(crate) fn allocs_at(
        &self,
        job: &JobId,
        indexes: impl RangeBounds<u32>,
    ) -> impl Iterator<Item = &AllocEntry> {
        const LEAST: AllocId = AllocId::new(Uuid::nil());
        const MOST: AllocId = AllocId::new(Uuid::max());
        let first = indexes.start_bound().map(|index| (*index, LEAST));
        let last = indexes.end_bound().map(|index| (*index, MOST));
        let ids = self.by_job.get(job).map(|ids| ids.range((first, last)));
        ids.into_iter().flatten().filter_map(|(_, id)| self.allocs.get(id))
    }

    /// Earlier allocations of the same place that are not over, newest first. The one
    /// directly before is not enough: it may never have started and be over, while an earlier
    /// one still runs.
    pub(crate) fn earlier_allocs(&self, allocation: &Allocation) -> Vec<AllocId> {
        // The first allocation of a place waits for no other.
        let Some(previous) = allocation.previous else { return Vec::new() };
        let entry = |id| self.allocs.get(&id);
        let by_server = |entry: &AllocEntry| entry.placed_by == PlacedBy::Server;
        if self.came_as_canary(allocation) || entry(allocation.id).is_some_and(by_server) {
            // There may be two in one place: a canary runs beside what it may replace.
            return entry(previous)
                .filter(|entry| !entry.ended)
                .map(|_| previous)
                .into_iter()
                .collect();
        }
        let here = |of: &Allocation| {
            let same = of.group == allocation.group && of.index == allocation.index;
            same && (of.id == previous || !self.is_canary(of))
        };
        let age = (allocation.create_index, allocation.id);
        let index = allocation.index;
        let all = self.allocs_at(&allocation.job.id, index..=index).filter(|entry| !entry.ended);
        let earlier = all.filter(|e| here(&e.allocation) && e.age() < age);
        let mut earlier: Vec<_> = earlier.map(AllocEntry::age).collect();
        earlier.sort_unstable_by(|a, b| b.cmp(a));
        earlier.into_iter().map(|(_, id)| id).collect()
    }

    /// Enter an allocation, or a newer copy of a known one. What is known beside the copy stays.
    pub(crate) fn put_alloc(
        &mut self,
        allocation: Arc<Allocation>,
        placed_by: PlacedBy,
        now: Timestamp,
    ) {
        let (id, index) = (allocation.id, allocation.modify_index);
        self.by_job.entry(allocation.job.id.clone()).or_default().insert((allocation.index, id));
        let new = || AllocEntry::new(Arc::clone(&allocation), placed_by, now);
        let entry = self.allocs.entry(id).or_insert_with(new);
        entry.allocation = allocation;
        entry.modify_index = index.max(entry.modify_index);
        entry.modify_time = now;
        self.note(index, ChangeSubject::Alloc(id));
    }

    /// Enter an allocation of an earlier agent.
    pub(crate) fn restore_alloc(
        &mut self,
        allocation: &Arc<Allocation>,
        placed_by: PlacedBy,
        saved: Option<&SavedAllocState>,
        now: Timestamp,
    ) {
        self.put_alloc(Arc::clone(allocation), placed_by, now);
        let Some(entry) = self.allocs.get_mut(&allocation.id) else { return };
        // Servers are told of states by the index, and must be told each state at least once.
        if placed_by != PlacedBy::Server {
            entry.known_again = RestoredReport::No;
            entry.modify_time = allocation.created_at;
        }
        if let Some(saved) = saved.filter(|saved| saved.finished) {
            entry.ended = true;
            entry.ended_before = Some(saved.client_status);
        }
    }

    /// Take the report of an allocation's owner. What an earlier agent knew already is no change:
    /// from the same records follow the same index and time, whichever agent reads them.
    pub(crate) fn report(&mut self, id: AllocId, report: AllocReport, now: Timestamp) {
        let index = self.index;
        let Some(entry) = self.allocs.get_mut(&id) else { return };
        let as_before = match entry.known_again {
            RestoredReport::No => true,
            RestoredReport::AsBefore => {
                // A moment later its owner finds again that it is over.
                let ended = entry.ended_before.is_some() || entry.report.ended == report.ended;
                ended && AllocReport { ended: report.ended, ..entry.report.clone() } == report
            }
            RestoredReport::Yes => false,
        };
        entry.report = report;
        if !as_before {
            entry.known_again = RestoredReport::Yes;
            self.touch(id, now);
            return;
        }
        if let (RestoredReport::No, Some(at)) = (entry.known_again, entry.report.changed_at) {
            entry.modify_index = millis(at).max(entry.modify_index).min(index);
            entry.modify_time = at.max(entry.modify_time);
        }
        entry.known_again = RestoredReport::AsBefore;
        // Whoever has read it before reads it again.
        self.index = index.saturating_add(1);
    }

    /// An allocation's state or phase changed. That is visible from now on.
    fn touch(&mut self, id: AllocId, now: Timestamp) {
        let Some(entry) = self.allocs.get_mut(&id) else { return };
        let at = entry.report.changed_at.unwrap_or(now).min(now).max(entry.modify_time);
        let index = self.index.saturating_add(1).max(millis(at));
        (entry.modify_index, entry.modify_time) = (index, at);
        self.index = index;
        self.note(index, ChangeSubject::Alloc(id));
    }

    /// Forget an allocation.
    pub(crate) fn remove_alloc(&mut self, id: AllocId) -> Option<AllocEntry> {
        let entry = self.allocs.remove(&id)?;
        let job = &entry.allocation.job.id;
        if let Some(ids) = self.by_job.get_mut(job) {
            ids.remove(&(entry.allocation.index, id));
            if ids.is_empty() {
                self.by_job.remove(job);
            }
        }
        self.forgot = self.next_index();
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
