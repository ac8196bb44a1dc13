//! Counts what is to be done, for a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Proposal;
use crate::reconcile::{PlaceAction, PlacementDetails, rank, reason};
use crate::views::GroupPlan;
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::JobKind;

impl Proposal {
    /// Count the actions by group.
    pub(crate) fn count(&self, groups: &mut BTreeMap<GroupName, GroupPlan>) {
        let one_more = |count: &mut u32| *count = count.saturating_add(1);
        let over = self.past_allocs();
        for action in &self.actions {
            let (group, field): (_, fn(&mut GroupPlan) -> &mut u32) = match action {
                PlaceAction::Place {
                    group, how: PlacementDetails { canary: true, .. }, ..
                } => (Some(group), |g| &mut g.canary),
                PlaceAction::Place { group, replaces: true, .. } => {
                    (Some(group), |g| &mut g.destructive)
                }
                PlaceAction::Place { group, .. } => (Some(group), |g| &mut g.place),
                PlaceAction::Update(alloc) => (self.group(*alloc), |g| &mut g.in_place),
                // It is counted as a replacement.
                PlaceAction::Stop { reason: reason::REPLACED | reason::RESCHEDULED, .. } => {
                    continue;
                }
                PlaceAction::Stop { alloc, .. } => (self.group(*alloc), |g| &mut g.stop),
                PlaceAction::Ignore(alloc) if over.contains(alloc) => continue,
                PlaceAction::Ignore(alloc) if self.behind.contains(alloc) => {
                    (self.group(*alloc), |g| &mut g.later)
                }
                PlaceAction::Ignore(alloc) => (self.group(*alloc), |g| &mut g.ignore),
            };
            if let Some(group) = group {
                one_more(field(groups.entry(group.clone()).or_default()));
            }
        }
    }

    /// Allocations that do not count as present. They are on their way out. Or they are over and
    /// have a successor, did everything that was asked of a service, or were canaries, which have
    /// no place of their own. What a batch job completed is its result, and so is a failure without
    /// a successor.
    fn past_allocs(&self) -> BTreeSet<AllocId> {
        let filled: BTreeSet<(&GroupName, u32)> = self
            .actions
            .iter()
            .filter_map(|action| match action {
                PlaceAction::Place {
                    group,
                    index,
                    how: PlacementDetails { canary: false, .. },
                    ..
                } => Some((group, *index)),
                _ => None,
            })
            .collect();
        let mut newest: BTreeMap<(&GroupName, u32), _> = BTreeMap::new();
        let is_canary = |alloc: &Allocation| self.canaries.contains(&alloc.id);
        for (alloc, _) in self.allocs.values().filter(|(alloc, _)| !is_canary(alloc)) {
            let came = (rank((&**alloc).into(), self.present), alloc.id);
            let known = newest.entry((&alloc.group, alloc.index)).or_insert(came);
            *known = (*known).max(came);
        }
        let is_past = |(alloc, status): &&(Arc<Allocation>, ClientStatus)| {
            let slot = (&alloc.group, alloc.index);
            let last = newest.get(&slot).is_some_and(|(_, id)| *id == alloc.id);
            let succeeded = filled.contains(&slot) || !last;
            let did_all = *status == ClientStatus::Complete && alloc.job.kind != JobKind::Batch;
            let over = succeeded || did_all || is_canary(alloc);
            alloc.desired == DesiredStatus::Stop || status.is_terminal() && over
        };
        self.allocs.values().filter(is_past).map(|(alloc, _)| alloc.id).collect()
    }
}
