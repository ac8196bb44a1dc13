//! Everything the node knows: jobs, allocations, what is assigned to them, and the index that grows with
//! each visible change. Plain data; [`crate::machine`] changes it.
//!
//! The index never goes back, over restarts neither: it starts above every index on record and at
//! least at the present time in milliseconds. Changes that are not on record (a task's state) would
//! otherwise be counted a second time with other meanings, and a client that waits for an index
//! above the last one it saw would sleep through them. With less than a thousand changes a second
//! on average the time is always ahead; a clock that is set back is caught by the records alone.

mod about;
mod entry;
mod garbage;
mod places;
mod view;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;
use std::sync::Arc;

use super::admission::{Admission, Problem};
use super::change_log::{ChangeOf, NotedChange};
use super::deployments::History;
use super::ended::Ended;
use super::held::Holds;
use super::views::{BlockedPlacement, Stage};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::rollout::Deployment;
use ostler_model::saved::{EndedPlaces, JobRecord, SavedAllocState};
use ostler_model::scheduling::{NodeEvent, NodeEventKind, NodeScheduling};
use ostler_model::time::Timestamp;
use uuid::Uuid;

pub use entry::{AllocEntry, AllocReport, AllocVerdict, PlacedBy};
pub(crate) use entry::{KnownAgain, Ownership, Removal};

/// A job.
#[derive(Clone, Debug)]
pub struct JobEntry {
    /// The newest version.
    pub record: Arc<JobRecord>,
    /// Places that wait to be filled.
    pub blocked: Vec<BlockedPlacement>,
    /// Places that have ended, perhaps of an older version.
    pub ended: Ended,
    /// Earlier versions, and deployments.
    pub history: History,
    /// Allocations that failed, and when each gets its successor.
    pub later: BTreeMap<AllocId, Timestamp>,
}

impl JobEntry {
    /// Places of this version that have ended.
    pub(crate) fn ended(&self, record: &JobRecord) -> Option<&Ended> {
        Some(&self.ended).filter(|ended| ended.is_of(record))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Registered jobs.
    pub(crate) jobs: BTreeMap<JobId, JobEntry>,
    allocs: BTreeMap<AllocId, AllocEntry>,
    /// By index in their groups, so that those of a place are found among ten thousand.
    by_job: BTreeMap<JobId, BTreeSet<(u32, AllocId)>>,
    /// What of the node is assigned to whom.
    pub(crate) admission: Admission,
    /// Runs that live and that nobody owns, and what waits for their ends.
    pub(crate) holds: Holds,
    /// How far the agent is.
    pub(crate) stage: Stage,
    /// Whether the node takes what is new, and how it is emptied.
    scheduling: NodeScheduling,
    index: u64,
    /// The index at which an allocation was forgotten last.
    forgot: u64,
    /// What changed visibly since the last look; nothing of what is restored.
    noted: Vec<NotedChange>,
}

/// Indexes begin where the time of day is, in milliseconds: so they grow over restarts.
const fn millis(at: Timestamp) -> u64 {
    at.nanos() / 1_000_000
}

impl Tables {
    /// Empty. `recorded`: the highest index on record.
    #[must_use]
    pub fn new(recorded: u64, now: Timestamp, holds: Holds) -> Self {
        Self {
            jobs: BTreeMap::new(),
            allocs: BTreeMap::new(),
            by_job: BTreeMap::new(),
            admission: Admission::default(),
            holds,
            stage: Stage::Starting,
            scheduling: NodeScheduling::default(),
            index: recorded.saturating_add(1).max(millis(now)),
            forgot: 0,
            noted: Vec::new(),
        }
    }

    /// What changed visibly since this was asked last.
    pub(crate) fn take_noted(&mut self) -> Vec<NotedChange> {
        std::mem::take(&mut self.noted)
    }

    fn note(&mut self, index: u64, of: ChangeOf) {
        if self.stage.restored() {
            self.noted.push(NotedChange { index, of });
        }
    }

    /// A job is gone, which is visible from now on.
    pub(crate) fn remove_job(&mut self, job: &JobId) -> u64 {
        self.jobs.remove(job);
        let index = self.next_index();
        self.note(index, ChangeOf::Job(job.clone(), true));
        index
    }

    /// The index of the last visible change.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// The index at which an allocation was forgotten last: a list of them from before then may name one that is
    /// gone. 0: none was.
    #[must_use]
    pub const fn forgot(&self) -> u64 {
        self.forgot
    }

    /// How far the agent is.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether the node takes what is new, and how it is emptied.
    #[must_use]
    pub const fn scheduling(&self) -> &NodeScheduling {
        &self.scheduling
    }

    /// As an earlier agent left it, or as it was before a change that is taken back.
    pub(crate) fn restore_scheduling(&mut self, scheduling: NodeScheduling) {
        self.scheduling = scheduling;
    }

    /// Something happened to the node, which is visible from now on.
    pub(crate) fn schedule(
        &mut self,
        kind: NodeEventKind,
        now: Timestamp,
        change: impl FnOnce(&mut NodeScheduling),
    ) {
        let index = self.next_index();
        change(&mut self.scheduling);
        self.scheduling.note(NodeEvent { at: now, index, kind });
        self.note(index, ChangeOf::Node(kind));
    }

    /// Why nothing new is placed, where that is so.
    pub(crate) fn closed(&self) -> Option<Problem> {
        let closed = self.scheduling.ineligible;
        closed.then(|| Problem::Closed { draining: self.scheduling.drain.is_some() })
    }

    /// What of the node is assigned to whom.
    #[must_use]
    pub const fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Runs that live and that nobody owns.
    #[must_use]
    pub const fn holds(&self) -> &Holds {
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

    /// The index of a change that is visible from now on.
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
            ended: Ended::default(),
            history: History::default(),
            later: BTreeMap::new(),
        };
        self.jobs.entry(id).or_insert_with(new).record = Arc::clone(&record);
        let of = ChangeOf::Job(record.job.id.clone(), record.stopped);
        self.note(record.modify_index, of);
    }

    /// Enter places that an earlier agent found ended, of the job's present version.
    pub(crate) fn restore_ended(&mut self, job: &JobId, group: &GroupName, places: EndedPlaces) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        let record = &entry.record;
        if (places.create_index, places.version) == (record.create_index, record.version) {
            entry.ended.enter(record, group, places.places);
        }
    }

    /// These places of a job wait. A visible change when they differ from those before.
    pub(crate) fn block(&mut self, job: &JobId, blocked: Vec<BlockedPlacement>) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        if entry.blocked != blocked {
            entry.blocked = blocked;
            let of = ChangeOf::Job(job.clone(), entry.record.stopped);
            let index = self.next_index();
            self.note(index, of);
        }
    }

    /// These allocations of a job get successors later. A visible change when it is another one.
    pub(crate) fn follow_later(&mut self, job: &JobId, later: BTreeMap<AllocId, Timestamp>) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        if entry.later != later {
            entry.later = later;
            self.next_index();
        }
    }

    /// Earlier versions and deployments of a job; none of one that is not there.
    pub(crate) fn history(&self, job: &JobId) -> History {
        self.jobs.get(job).map(|entry| entry.history.clone()).unwrap_or_default()
    }

    /// These are the earlier versions and deployments of a job.
    pub(crate) fn put_history(&mut self, job: &JobId, history: History) {
        let Some(entry) = self.jobs.get_mut(job) else { return };
        let known = std::mem::replace(&mut entry.history, history).deployments;
        let is_new = |one: &&Arc<Deployment>| !known.contains(one);
        let changed: Vec<_> = entry.history.deployments.iter().filter(is_new).cloned().collect();
        for deployment in changed {
            let of = ChangeOf::Deployment(job.clone(), deployment.id.clone());
            self.note(deployment.modify_index, of);
        }
    }

    /// Was it placed beside what it may replace, accepted since or not?
    fn came_as_canary(&self, alloc: &Allocation) -> bool {
        let Some(of) = &alloc.deployment else { return false };
        let history = self.jobs.get(&alloc.job.id).map(|entry| &entry.history);
        let deployment = history.and_then(|history| history.deployment(&of.id));
        let group = deployment.and_then(|known| known.groups.get(&alloc.group));
        of.canary || group.is_some_and(|group| group.canaries.contains(&alloc.id))
    }

    /// Is this allocation one of the first of its version, which nobody has accepted yet?
    pub(crate) fn is_canary(&self, alloc: &Allocation) -> bool {
        let deployment = alloc.deployment.as_ref().filter(|deployment| deployment.canary);
        let entry = self.jobs.get(&alloc.job.id).filter(|_| deployment.is_some());
        deployment.zip(entry).is_some_and(|(deployment, entry)| {
            entry.history.awaits_promotion(&deployment.id, &alloc.group)
        })
    }

    /// Jobs with places that wait.
    pub(crate) fn blocked(&self) -> Vec<JobId> {
        let waiting = self.jobs.iter().filter(|(_, entry)| !entry.blocked.is_empty());
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// What decides which of two jobs gets room first: the lower has it.
    pub(crate) fn rank(&self, job: &JobId) -> (Reverse<u8>, u64) {
        let record = self.jobs.get(job).map(|entry| &entry.record);
        record.map_or((Reverse(0), u64::MAX), |record| {
            (Reverse(record.job.priority), record.create_index)
        })
    }

    /// How many places wait, of all jobs.
    pub(crate) fn places_waiting(&self) -> usize {
        self.jobs.values().map(|entry| entry.blocked.len()).sum()
    }

    /// Every allocation of a job.
    pub(crate) fn ids_of(&self, job: &JobId) -> Vec<AllocId> {
        self.by_job.get(job).into_iter().flatten().map(|(_, id)| *id).collect()
    }

    /// Every allocation.
    #[must_use]
    pub fn ids(&self) -> Vec<AllocId> {
        self.allocs.keys().copied().collect()
    }

    /// Every allocation, by id.
    pub fn allocs(&self) -> impl Iterator<Item = &AllocEntry> {
        self.allocs.values()
    }

    /// How many allocations there are.
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

    /// Allocations that may run something.
    pub(crate) fn not_ended(&self) -> impl Iterator<Item = &AllocEntry> {
        self.allocs.values().filter(|entry| !entry.ended)
    }

    /// Allocations of a job, whatever their version.
    pub fn allocs_of(&self, job: &JobId) -> impl Iterator<Item = &AllocEntry> {
        self.allocs_at(job, ..)
    }

    /// Those of a job whose index in their group is one of these.
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

    /// Earlier allocations of this one's place that are not over, newest first. Not only the one before it: that
    /// one may never have started, and be over although an earlier one runs.
    pub(crate) fn before(&self, allocation: &Allocation) -> Vec<AllocId> {
        // The first allocation of a place waits for none.
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

    /// Enter an allocation, or a newer copy of a known one; what is known beside the copy stays.
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
        self.note(index, ChangeOf::Alloc(id));
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
        // Who tells servers goes by the index: they are told each state at least once.
        if placed_by != PlacedBy::Server {
            entry.known_again = KnownAgain::No;
            entry.modify_time = allocation.created_at;
        }
        if let Some(saved) = saved.filter(|saved| saved.finished) {
            entry.ended = true;
            entry.ended_before = Some(saved.client_status);
        }
    }

    /// The owner of an allocation says how it is. What an earlier agent knew already is no change: the same
    /// index and time follow from the same records, whatever agent reads them.
    pub(crate) fn report(&mut self, id: AllocId, report: AllocReport, now: Timestamp) {
        let index = self.index;
        let Some(entry) = self.allocs.get_mut(&id) else { return };
        let as_before = match entry.known_again {
            KnownAgain::No => true,
            KnownAgain::AsBefore => {
                // Its owner finds again, a moment later, that it is over.
                let ended = entry.ended_before.is_some() || entry.report.ended == report.ended;
                ended && AllocReport { ended: report.ended, ..entry.report.clone() } == report
            }
            KnownAgain::Yes => false,
        };
        entry.report = report;
        if !as_before {
            entry.known_again = KnownAgain::Yes;
            self.touch(id, now);
            return;
        }
        if let (KnownAgain::No, Some(at)) = (entry.known_again, entry.report.changed_at) {
            entry.modify_index = millis(at).max(entry.modify_index).min(index);
            entry.modify_time = at.max(entry.modify_time);
        }
        entry.known_again = KnownAgain::AsBefore;
        // Whoever looked before looks again.
        self.index = index.saturating_add(1);
    }

    /// An allocation's state or phase changed, which is visible from now on.
    fn touch(&mut self, id: AllocId, now: Timestamp) {
        let Some(entry) = self.allocs.get_mut(&id) else { return };
        let at = entry.report.changed_at.unwrap_or(now).min(now).max(entry.modify_time);
        let index = self.index.saturating_add(1).max(millis(at));
        (entry.modify_index, entry.modify_time) = (index, at);
        self.index = index;
        self.note(index, ChangeOf::Alloc(id));
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
