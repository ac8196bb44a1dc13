//! Tries to fill places: all of them together, or one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{DrawnIds, NewAlloc, PlaceToFill, Slot};
use crate::admission::{Admission, DevicePlan, Indexes, JobCheck, Placing, Refusal, looks};
use crate::machine::World;
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::Job;
use ostler_node::NodeView;

/// What places are tried with. The common part of a job's places is checked once.
pub(super) struct PlacementTrial<'t, 'a> {
    pub(super) world: &'t World<'t>,
    pub(super) drawn: &'t DrawnIds,
    /// Does a program that is not ours, and that stays, listen on this port?
    pub(super) port_in_use: &'t dyn Fn(u16) -> bool,
    pub(super) jobs: Jobs<'a>,
}

/// The checks of the places' jobs, one for each job.
#[derive(Default)]
pub(super) struct Jobs<'a>(BTreeMap<*const Job, JobCheck<'a>>);

impl<'a> Jobs<'a> {
    fn check_job(&mut self, job: &'a Arc<Job>, node: &NodeView) -> &JobCheck<'a> {
        self.0.entry(Arc::as_ptr(job)).or_insert_with(|| JobCheck::new(job, node))
    }
}

impl<'a> PlacementTrial<'_, 'a> {
    /// Fill all of these places, or none.
    pub(super) fn fill_all(
        &mut self,
        admission: &mut Admission,
        places: &[PlaceToFill<'a>],
        mut explain: Option<&mut DevicePlan>,
    ) -> Result<Vec<NewAlloc>, Refusal> {
        // Places of one version and one kind are all different.
        let mut alike: BTreeMap<(bool, u64), Vec<PlaceToFill<'a>>> = BTreeMap::new();
        for place in places {
            alike.entry((place.how.canary, place.version)).or_default().push(*place);
        }
        let before = (alike.len() > 1).then(|| admission.clone());
        let mut placed = Vec::with_capacity(places.len());
        for ((canary, version), places) in alike {
            let explain = explain.as_deref_mut();
            let by_slot: BTreeMap<Slot<'_>, &PlaceToFill<'_>> =
                places.iter().map(|place| (place.slot(), place)).collect();
            match self.fill_alike(admission, &places, explain) {
                Ok(allocs) => placed.extend(allocs.into_iter().map(|alloc| {
                    let here = (&alloc.group, alloc.index, canary);
                    let place = by_slot.get(&here);
                    let previous = place.and_then(|place| place.previous);
                    let reschedules = place.map(|place| place.how.reschedules.clone());
                    let reschedules = reschedules.unwrap_or_default();
                    let alloc = Allocation { previous, reschedules, job_version: version, ..alloc };
                    NewAlloc { alloc, canary }
                })),
                Err(refusal) => {
                    if let Some(before) = before {
                        *admission = before;
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(placed)
    }

    fn fill_alike(
        &mut self,
        admission: &mut Admission,
        places: &[PlaceToFill<'a>],
        explain: Option<&mut DevicePlan>,
    ) -> Result<Vec<Allocation>, Refusal> {
        let Some(first) = places.first() else { return Ok(Vec::new()) };
        looks::note(places.len());
        let mut indexes = Indexes::new();
        for place in places {
            indexes.entry(place.group).or_default().push(place.index);
        }
        let (world, drawn, canary) = (self.world, self.drawn, first.how.canary);
        let mut new_id = |group: &GroupName, index| drawn.id(group, index, canary, world);
        let mut placing = Placing {
            new_id: &mut new_id,
            now: world.now,
            rng: world.rng,
            port_in_use: self.port_in_use,
            explain,
        };
        let sought = self.jobs.check_job(first.job, world.node);
        admission.place_indexes(sought, &indexes, world.node, &mut placing)
    }

    /// Fill places one after the other. `replaced`: the allocations that make room only for their
    /// own place.
    pub(super) fn fill_one_by_one(
        &mut self,
        admission: &mut Admission,
        places: &[PlaceToFill<'a>],
        replaced: &BTreeMap<Slot<'_>, AllocId>,
    ) -> (Vec<NewAlloc>, Vec<(PlaceToFill<'a>, Arc<Refusal>)>) {
        let (mut placed, mut refused) = (Vec::new(), Vec::new());
        // The reason why a group is full: its other places are alike, and room only shrinks.
        let mut full: BTreeMap<(&GroupName, u64), Arc<Refusal>> = BTreeMap::new();
        for place in places {
            let goes = replaced.get(&place.slot());
            let alike = (place.group, place.version);
            if let Some(refusal) = full.get(&alike).filter(|_| goes.is_none()) {
                refused.push((*place, Arc::clone(refusal)));
                continue;
            }
            let taken = goes.map(|goes| admission.take_alloc(*goes));
            match self.fill_all(admission, std::slice::from_ref(place), None) {
                Ok(fits) => placed.extend(fits),
                Err(refusal) => {
                    let refusal = Arc::new(refusal);
                    match taken {
                        Some(taken) => admission.put_back(taken),
                        None => drop(full.insert(alike, Arc::clone(&refusal))),
                    }
                    refused.push((*place, refusal));
                }
            }
        }
        (placed, refused)
    }
}
