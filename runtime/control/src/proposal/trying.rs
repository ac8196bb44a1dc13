//! Places that are tried: all of them together, or one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Drawn, Place, Placed, Slot};
use crate::admission::{Admission, DevicePlan, Indexes, Placing, Refusal, Sought, looks};
use crate::machine::World;
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::Job;
use ostler_node::NodeView;

/// What places are tried with. What all places of a job have in common is looked at once.
pub(super) struct Trying<'t, 'a> {
    pub(super) world: &'t World<'t>,
    pub(super) drawn: &'t Drawn,
    /// Does a program that is not ours, and that stays, listen on this port?
    pub(super) port_in_use: &'t dyn Fn(u16) -> bool,
    pub(super) jobs: Jobs<'a>,
}

/// The jobs of places, each looked at once.
#[derive(Default)]
pub(super) struct Jobs<'a>(BTreeMap<*const Job, Sought<'a>>);

impl<'a> Jobs<'a> {
    fn sought(&mut self, job: &'a Arc<Job>, node: &NodeView) -> &Sought<'a> {
        self.0.entry(Arc::as_ptr(job)).or_insert_with(|| Sought::new(job, node))
    }
}

impl<'a> Trying<'_, 'a> {
    /// Fill these places, or none.
    pub(super) fn all(
        &mut self,
        admission: &mut Admission,
        places: &[Place<'a>],
        mut explain: Option<&mut DevicePlan>,
    ) -> Result<Vec<Placed>, Refusal> {
        // Those of one version and one kind have different places.
        let mut alike: BTreeMap<(bool, u64), Vec<Place<'a>>> = BTreeMap::new();
        for place in places {
            alike.entry((place.how.canary, place.version)).or_default().push(*place);
        }
        let before = (alike.len() > 1).then(|| admission.clone());
        let mut placed = Vec::with_capacity(places.len());
        for ((canary, version), places) in alike {
            let explain = explain.as_deref_mut();
            let by_slot: BTreeMap<Slot<'_>, &Place<'_>> =
                places.iter().map(|place| (place.slot(), place)).collect();
            match self.alike(admission, &places, explain) {
                Ok(allocs) => placed.extend(allocs.into_iter().map(|alloc| {
                    let here = (&alloc.group, alloc.index, canary);
                    let place = by_slot.get(&here);
                    let previous = place.and_then(|place| place.previous);
                    let reschedules = place.map(|place| place.how.reschedules.clone());
                    let reschedules = reschedules.unwrap_or_default();
                    let alloc = Allocation { previous, reschedules, job_version: version, ..alloc };
                    Placed { alloc, canary }
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

    fn alike(
        &mut self,
        admission: &mut Admission,
        places: &[Place<'a>],
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
        let sought = self.jobs.sought(first.job, world.node);
        admission.place_sought(sought, &indexes, world.node, &mut placing)
    }

    /// Fill places one after the other. `replaced`: what makes room for its place alone.
    pub(super) fn one_by_one(
        &mut self,
        admission: &mut Admission,
        places: &[Place<'a>],
        replaced: &BTreeMap<Slot<'_>, AllocId>,
    ) -> (Vec<Placed>, Vec<(Place<'a>, Arc<Refusal>)>) {
        let (mut placed, mut refused) = (Vec::new(), Vec::new());
        // Why a group fits no more: its other places are alike, and room only shrinks.
        let mut full: BTreeMap<(&GroupName, u64), Arc<Refusal>> = BTreeMap::new();
        for place in places {
            let goes = replaced.get(&place.slot());
            let alike = (place.group, place.version);
            if let Some(refusal) = full.get(&alike).filter(|_| goes.is_none()) {
                refused.push((*place, Arc::clone(refusal)));
                continue;
            }
            let taken = goes.map(|goes| admission.take_alloc(*goes));
            match self.all(admission, std::slice::from_ref(place), None) {
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
