//! Runs that live and that nobody owns, as far as they keep places from being filled. Pure.
//!
//! A place of such a run is not filled, and an allocation with such a run gets no owner, until the run
//! has ended: what runs may be what is wanted, and only a person can tell.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::admission::{GroupRefusal, Problem, Refusal};
use super::views::BlockedPlacement;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::saved::JobRecord;

/// Where a run belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPlace {
    /// The allocation.
    pub alloc: AllocId,
    /// The job.
    pub job: JobId,
    /// The group.
    pub group: GroupName,
    /// Index in the group.
    pub index: u32,
}

/// A run that lives and that nobody owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// By what it is named in commands.
    pub name: String,
    /// Where it belongs; `None`: nothing says so, so any place may be its.
    pub place: Option<HeldPlace>,
    /// What is said of a place that it keeps from being filled.
    pub problem: Problem,
}

/// An allocation that gets its owner when nothing of it is held back any more.
#[derive(Clone, Debug)]
struct Waiting {
    allocation: Arc<Allocation>,
    ended: bool,
}

/// What is held back.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    runs: Vec<Held>,
    /// Allocations with a run that is owned again.
    owned: BTreeSet<AllocId>,
    waiting: Vec<Waiting>,
}

impl Holds {
    /// These runs are held back. `owned`: allocations with a run that is owned again.
    #[must_use]
    pub const fn new(runs: Vec<Held>, owned: BTreeSet<AllocId>) -> Self {
        Self { runs, owned, waiting: Vec::new() }
    }

    /// Names of all runs that are held back.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().map(|run| run.name.as_str())
    }

    /// What keeps an allocation on record from getting its owner: a run of itself, or, where the
    /// owner would start its tasks, one of the same place.
    fn of_alloc(&self, alloc: &Allocation, ended: bool) -> Option<&Held> {
        let own = |run: &&Held| run.place.as_ref().is_some_and(|at| at.alloc == alloc.id);
        let starts =
            alloc.desired == DesiredStatus::Run && !ended && !self.owned.contains(&alloc.id);
        self.runs.iter().find(own).or_else(|| {
            starts.then(|| self.of_place(&alloc.job.id, &alloc.group, alloc.index)).flatten()
        })
    }

    fn of_place(&self, job: &JobId, group: &GroupName, index: u32) -> Option<&Held> {
        self.runs.iter().find(|run| {
            run.place
                .as_ref()
                .is_none_or(|at| at.job == *job && at.group == *group && at.index == index)
        })
    }

    /// Keep an allocation without an owner while a run of it is held back. `false`: none is.
    pub(crate) fn withhold(&mut self, allocation: &Arc<Allocation>, ended: bool) -> bool {
        if self.of_alloc(allocation, ended).is_none() {
            return false;
        }
        self.waiting.push(Waiting { allocation: Arc::clone(allocation), ended });
        true
    }

    /// A run has ended. Allocations that get their owners now; `None`: it was not held back.
    pub(crate) fn lift(&mut self, name: &str) -> Option<Vec<AllocId>> {
        let before = self.runs.len();
        self.runs.retain(|held| held.name != name);
        if self.runs.len() == before {
            return None;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (free, kept): (Vec<_>, _) = waiting
            .into_iter()
            .partition(|one| self.of_alloc(&one.allocation, one.ended).is_none());
        self.waiting = kept;
        Some(free.into_iter().map(|one| one.allocation.id).collect())
    }

    /// What keeps a place of a job from being filled.
    pub(crate) fn refuses(
        &self,
        record: &JobRecord,
        group: &GroupName,
        index: u32,
        node: &str,
    ) -> Option<Arc<Refusal>> {
        let held = self.of_place(&record.job.id, group, index)?;
        Some(refusal(record, group, held, node))
    }

    /// Places of a job that are taken by allocations without an owner.
    pub(crate) fn withheld(&self, record: &JobRecord, node: &str) -> Vec<BlockedPlacement> {
        let ours = self.waiting.iter().filter(|one| one.allocation.job.id == record.job.id);
        let blocked = ours.filter_map(|Waiting { allocation, ended }| {
            let held = self.of_alloc(allocation, *ended)?;
            Some(BlockedPlacement {
                group: allocation.group.clone(),
                index: allocation.index,
                previous: Some(allocation.id),
                soon: false,
                canary: false,
                refusal: refusal(record, &allocation.group, held, node),
            })
        });
        blocked.collect()
    }
}

/// A place that is held back, as a refusal.
fn refusal(record: &JobRecord, group: &GroupName, held: &Held, node: &str) -> Arc<Refusal> {
    let problems = vec![held.problem.clone()];
    Arc::new(Refusal {
        job: record.job.id.clone(),
        node: node.to_owned(),
        groups: vec![GroupRefusal { group: Some(group.clone()), problems }],
        attempts: Vec::new(),
    })
}
