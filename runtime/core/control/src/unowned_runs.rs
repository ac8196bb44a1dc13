//! Runs that live and that nobody owns, as far as they keep places from being filled. Pure.
//!
//! Until such a run has ended, its place is not filled and its allocation gets no owner. What runs
//! may be what is wanted, and only a person can tell.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::admission::{GroupRefusal, Problem, Refusal};
use super::views::BlockedPlacement;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::saved::JobRecord;

/// The place that a run belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPlace {
    /// Id of the run's allocation.
    pub alloc: AllocId,
    /// Id of the job.
    pub job: JobId,
    /// Name of the task group.
    pub group: GroupName,
    /// Index of the place in its group.
    pub index: u32,
}

/// A run that lives and that nobody owns.
#[derive(Clone, Debug, PartialEq)]
pub struct UnownedRun {
    /// The name by which commands refer to it.
    pub name: String,
    /// The place that it belongs to. `None`: that is not known, so any place may be its place.
    pub place: Option<HeldPlace>,
    /// The reason given for each place that it keeps from being filled.
    pub problem: Problem,
}

/// An allocation that gets its owner when no run holds it back any more.
#[derive(Clone, Debug)]
struct WithheldAlloc {
    allocation: Arc<Allocation>,
    ended: bool,
}

/// The runs that nobody owns, and the allocations that wait for their ends.
#[derive(Clone, Debug, Default)]
pub struct UnownedRuns {
    runs: Vec<UnownedRun>,
    /// Allocations with a run that has an owner again.
    owned: BTreeSet<AllocId>,
    waiting: Vec<WithheldAlloc>,
}

impl UnownedRuns {
    /// Hold these runs back. `owned`: allocations with a run that has an owner again.
    #[must_use]
    pub const fn new(runs: Vec<UnownedRun>, owned: BTreeSet<AllocId>) -> Self {
        Self { runs, owned, waiting: Vec::new() }
    }

    /// Names of all runs that nobody owns.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().map(|run| run.name.as_str())
    }

    /// The run that keeps a recorded allocation from getting its owner: its own run, or, where the
    /// owner would start its tasks, one of the same place.
    fn run_of_alloc(&self, alloc: &Allocation, ended: bool) -> Option<&UnownedRun> {
        let own = |run: &&UnownedRun| run.place.as_ref().is_some_and(|at| at.alloc == alloc.id);
        let starts =
            alloc.desired == DesiredStatus::Run && !ended && !self.owned.contains(&alloc.id);
        self.runs.iter().find(own).or_else(|| {
            starts.then(|| self.run_of_place(&alloc.job.id, &alloc.group, alloc.index)).flatten()
        })
    }

    fn run_of_place(&self, job: &JobId, group: &GroupName, index: u32) -> Option<&UnownedRun> {
        self.runs.iter().find(|run| {
            run.place
                .as_ref()
                .is_none_or(|at| at.job == *job && at.group == *group && at.index == index)
        })
    }

    /// Keep an allocation without an owner while a run holds it back. `false`: no run does.
    pub(crate) fn withhold(&mut self, allocation: &Arc<Allocation>, ended: bool) -> bool {
        if self.run_of_alloc(allocation, ended).is_none() {
            return false;
        }
        self.waiting.push(WithheldAlloc { allocation: Arc::clone(allocation), ended });
        true
    }

    /// A run has ended. Returns the allocations that get their owners now. `None`: the run held
    /// nothing back.
    pub(crate) fn lift(&mut self, name: &str) -> Option<Vec<AllocId>> {
        let before = self.runs.len();
        self.runs.retain(|held| held.name != name);
        if self.runs.len() == before {
            return None;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (free, kept): (Vec<_>, _) = waiting
            .into_iter()
            .partition(|one| self.run_of_alloc(&one.allocation, one.ended).is_none());
        self.waiting = kept;
        Some(free.into_iter().map(|one| one.allocation.id).collect())
    }

    /// The refusal for a place that an unowned run keeps from being filled.
    pub(crate) fn refusal_of_place(
        &self,
        record: &JobRecord,
        group: &GroupName,
        index: u32,
        node: &str,
    ) -> Option<Arc<Refusal>> {
        let held = self.run_of_place(&record.job.id, group, index)?;
        Some(held_refusal(record, group, held, node))
    }

    /// Places of a job that allocations without an owner have.
    pub(crate) fn withheld_places(&self, record: &JobRecord, node: &str) -> Vec<BlockedPlacement> {
        let ours = self.waiting.iter().filter(|one| one.allocation.job.id == record.job.id);
        let blocked = ours.filter_map(|WithheldAlloc { allocation, ended }| {
            let held = self.run_of_alloc(allocation, *ended)?;
            Some(BlockedPlacement {
                group: allocation.group.clone(),
                index: allocation.index,
                previous: Some(allocation.id),
                soon: false,
                canary: false,
                refusal: held_refusal(record, &allocation.group, held, node),
            })
        });
        blocked.collect()
    }
}

/// The refusal for a place, because of this run.
fn held_refusal(
    record: &JobRecord,
    group: &GroupName,
    held: &UnownedRun,
    node: &str,
) -> Arc<Refusal> {
    let problems = vec![held.problem.clone()];
    Arc::new(Refusal {
        job: record.job.id.clone(),
        node: node.to_owned(),
        groups: vec![GroupRefusal { group: Some(group.clone()), problems }],
        attempts: Vec::new(),
    })
}
