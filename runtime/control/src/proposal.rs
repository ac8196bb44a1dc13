//! What is to be done for a job, and whether and where it fits.
//!
//! ```text
//!   JobRecord + its allocations ─ reconcile ─► actions ─► unfit: what does not fit in a copy without
//!                                                 │       what goes: waits, and what it would replace
//!                                                 │       runs on
//!                                                 └─────► place: what fits now; the rest waits for
//!                                                         what goes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::SubmitError;
use super::admission::{Admission, DevicePlan, Placing, Refusal};
use super::held::Holds;
use super::machine::World;
use super::reconcile::{Existing, PlaceAction, WantedJob, reason, reconcile};
use super::tables::Tables;
use super::views::{BlockedPlacement, GroupPlan, RegisterOptions};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::{Job, TaskGroup};
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;

/// What reconciling says, with what it is about.
pub(crate) struct Proposal {
    pub(crate) actions: Vec<PlaceAction>,
    /// The job's allocations.
    pub(crate) allocs: BTreeMap<AllocId, (Arc<Allocation>, ClientStatus)>,
    /// Allocations that give their resources back.
    going: BTreeSet<AllocId>,
    going_ports: BTreeSet<u16>,
}

impl Proposal {
    /// What is to be done for `record`.
    pub(crate) fn new(tables: &Tables, record: &JobRecord) -> Self {
        let known = tables.allocs_of(&record.job.id).filter(|entry| entry.registered());
        let allocs: Vec<_> =
            known.map(|e| (Arc::clone(&e.allocation), e.client_status(), e.ended)).collect();
        let existing: Vec<Existing<'_>> = allocs
            .iter()
            .map(|(alloc, status, _)| Existing {
                id: alloc.id,
                job: &alloc.job,
                group: &alloc.group,
                index: alloc.index,
                version: alloc.job_version,
                create_index: alloc.create_index,
                stopping: alloc.desired == DesiredStatus::Stop,
                status: *status,
            })
            .collect();
        let wanted = WantedJob {
            job: &record.job,
            version: record.version,
            create_index: record.create_index,
            stopped: record.stopped,
            ended: tables.jobs.get(&record.job.id).and_then(|entry| entry.ended(record)),
        };
        let actions = reconcile(&wanted, &existing);
        let stopped = actions.iter().filter_map(|action| match action {
            PlaceAction::Stop { alloc, .. } => Some(*alloc),
            _ => None,
        });
        let on_their_way = allocs.iter().filter(|(alloc, status, ended)| {
            !ended && (alloc.desired == DesiredStatus::Stop || status.terminal())
        });
        let going: BTreeSet<AllocId> =
            on_their_way.map(|(alloc, ..)| alloc.id).chain(stopped).collect();
        let going_ports = allocs
            .iter()
            .filter(|(alloc, ..)| going.contains(&alloc.id))
            .flat_map(|(alloc, ..)| alloc.ports.iter().map(|port| port.value))
            .collect();
        let allocs = allocs.into_iter().map(|(alloc, status, _)| (alloc.id, (alloc, status)));
        let allocs = allocs.collect();
        Self { actions, allocs, going, going_ports }
    }

    /// Every place to be filled.
    fn places(&self) -> impl Iterator<Item = Place<'_>> {
        self.actions.iter().filter_map(|action| match action {
            PlaceAction::Place { group, index, previous, .. } => {
                Some(Place { group, index: *index, previous: *previous })
            }
            _ => None,
        })
    }

    /// Allocations that go only because others take their places, by place.
    fn replaced(&self) -> BTreeMap<(&GroupName, u32), AllocId> {
        let stopped = self.actions.iter().filter_map(|action| match action {
            PlaceAction::Stop { alloc, reason: reason::REPLACED } => self.alloc(*alloc),
            _ => None,
        });
        stopped.map(|alloc| ((&alloc.group, alloc.index), alloc.id)).collect()
    }

    /// These places cannot be filled: what they would replace runs on.
    pub(crate) fn hold(&mut self, unfit: &[BlockedPlacement]) {
        if unfit.is_empty() {
            return;
        }
        let unfit: BTreeSet<_> = unfit.iter().map(|place| (&place.group, place.index)).collect();
        let held = |group: &GroupName, index: u32| unfit.contains(&(group, index));
        let replaced = self.replaced().into_iter();
        let kept: BTreeSet<AllocId> =
            replaced.filter(|((group, index), _)| held(group, *index)).map(|(_, id)| id).collect();
        self.actions.retain(|action| match action {
            PlaceAction::Place { group, index, .. } => !held(group, *index),
            PlaceAction::Stop { alloc, .. } => !kept.contains(alloc),
            PlaceAction::Update(_) | PlaceAction::Ignore(_) => true,
        });
        self.actions.extend(kept.into_iter().map(PlaceAction::Ignore));
    }
}

/// A place to be filled.
#[derive(Clone, Copy)]
struct Place<'a> {
    group: &'a GroupName,
    index: u32,
    /// The allocation that had it last.
    previous: Option<AllocId>,
}

impl Place<'_> {
    fn waits(self, refusal: Arc<Refusal>, soon: bool) -> BlockedPlacement {
        let Self { group, index, previous, .. } = self;
        BlockedPlacement { group: group.clone(), index, previous, soon, refusal }
    }
}

/// Places that would stay empty even if what goes were gone: what such a place would replace
/// does not go for it. `explain`: where to note what devices all would get, and why.
pub(crate) fn unfit(
    world: &World<'_>,
    holds: &Holds,
    admission: &Admission,
    record: &JobRecord,
    proposal: &Proposal,
    explain: Option<&mut DevicePlan>,
) -> Vec<BlockedPlacement> {
    let in_use = |port| !proposal.going_ports.contains(&port) && (world.port_in_use)(port);
    let mut held = holds.withheld(record, &world.node.name);
    let mut places = Vec::new();
    for place in proposal.places() {
        // A place that is held back is not tried.
        match holds.refuses(record, place.group, place.index, &world.node.name) {
            Some(refusal) => held.push(place.waits(refusal, false)),
            None => places.push(place),
        }
    }
    let mut trial = admission.clone();
    proposal.going.iter().for_each(|alloc| trial.release_alloc(*alloc));
    if try_place(world, &mut trial, record, &places, &in_use, explain).is_ok() {
        return held;
    }
    let mut trial = admission.clone();
    let replaced = proposal.replaced();
    let kept: BTreeSet<AllocId> = replaced.values().copied().collect();
    proposal.going.difference(&kept).for_each(|alloc| trial.release_alloc(*alloc));
    let (_, refused) = one_by_one(world, &mut trial, record, &places, &replaced, &in_use);
    held.extend(refused.into_iter().map(|(place, refusal)| place.waits(refusal, false)));
    held
}

/// Fill what can be filled now; the rest is blocked. `whole`: every place, or none; nothing was in them
/// before.
pub(crate) fn place(
    world: &World<'_>,
    admission: &mut Admission,
    record: &JobRecord,
    proposal: &Proposal,
    whole: bool,
) -> Result<(Vec<Allocation>, Vec<BlockedPlacement>), Refusal> {
    let places: Vec<Place<'_>> = proposal.places().collect();
    let in_use = world.port_in_use;
    let (placed, refused) = match try_place(world, admission, record, &places, in_use, None) {
        Ok(placed) => (placed, Vec::new()),
        Err(refusal) if whole => return Err(refusal),
        // What they replace was told to stop, and still holds its resources.
        Err(_) => one_by_one(world, admission, record, &places, &BTreeMap::new(), in_use),
    };
    let last = places.iter().map(|place| ((place.group, place.index), place.previous));
    let last: BTreeMap<_, _> = last.filter(|_| !whole).collect();
    let after = |alloc: Allocation| {
        let previous = last.get(&(&alloc.group, alloc.index)).copied().flatten();
        Allocation { previous, ..alloc }
    };
    let blocked = refused.into_iter().map(|(place, refusal)| place.waits(refusal, true));
    Ok((placed.into_iter().map(after).collect(), blocked.collect()))
}

/// Fill these places, or none.
fn try_place(
    world: &World<'_>,
    admission: &mut Admission,
    record: &JobRecord,
    places: &[Place<'_>],
    port_in_use: &dyn Fn(u16) -> bool,
    explain: Option<&mut DevicePlan>,
) -> Result<Vec<Allocation>, Refusal> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let indexes = |group: &TaskGroup| {
        let places = places.iter().filter(|place| *place.group == group.name);
        places.map(|place| place.index).collect()
    };
    let mut new_id = || AllocId::new(world.rng.uuid());
    let mut placing =
        Placing { new_id: &mut new_id, now: world.now, rng: world.rng, port_in_use, explain };
    admission.place_some(&record.job, &indexes, world.node, &mut placing)
}

/// Fill places one after the other. `replaced`: what makes room for its place alone.
fn one_by_one<'a>(
    world: &World<'_>,
    admission: &mut Admission,
    record: &JobRecord,
    places: &[Place<'a>],
    replaced: &BTreeMap<(&GroupName, u32), AllocId>,
    port_in_use: &dyn Fn(u16) -> bool,
) -> (Vec<Allocation>, Vec<(Place<'a>, Arc<Refusal>)>) {
    let (mut placed, mut refused) = (Vec::new(), Vec::new());
    // Why a group fits no more: its other places are alike, and room only shrinks.
    let mut full: BTreeMap<&GroupName, Arc<Refusal>> = BTreeMap::new();
    for place in places {
        let goes = replaced.get(&(place.group, place.index));
        if let Some(refusal) = full.get(place.group).filter(|_| goes.is_none()) {
            refused.push((*place, Arc::clone(refusal)));
            continue;
        }
        let before = goes.map(|goes| {
            let before = admission.clone();
            admission.release_alloc(*goes);
            before
        });
        let one = std::slice::from_ref(place);
        match try_place(world, admission, record, one, port_in_use, None) {
            Ok(fits) => placed.extend(fits),
            Err(refusal) => {
                let refusal = Arc::new(refusal);
                match before {
                    Some(before) => *admission = before,
                    None => drop(full.insert(place.group, Arc::clone(&refusal))),
                }
                refused.push((*place, refusal));
            }
        }
    }
    (placed, refused)
}

impl Proposal {
    /// Count what is to be done, by group.
    pub(crate) fn count(&self, groups: &mut BTreeMap<GroupName, GroupPlan>) {
        let one_more = |count: &mut u32| *count = count.saturating_add(1);
        for action in &self.actions {
            let (group, field): (_, fn(&mut GroupPlan) -> &mut u32) = match action {
                PlaceAction::Place { group, replaces: true, .. } => {
                    (Some(group), |g| &mut g.destructive)
                }
                PlaceAction::Place { group, .. } => (Some(group), |g| &mut g.place),
                PlaceAction::Update(alloc) => (self.group(*alloc), |g| &mut g.in_place),
                // Counted where it is replaced.
                PlaceAction::Stop { reason: reason::REPLACED, .. } => continue,
                PlaceAction::Stop { alloc, .. } => (self.group(*alloc), |g| &mut g.stop),
                PlaceAction::Ignore(alloc) => (self.group(*alloc), |g| &mut g.ignore),
            };
            if let Some(group) = group {
                one_more(field(groups.entry(group.clone()).or_default()));
            }
        }
    }

    fn group(&self, id: AllocId) -> Option<&GroupName> {
        self.alloc(id).map(|alloc| &alloc.group)
    }

    pub(crate) fn alloc(&self, id: AllocId) -> Option<&Arc<Allocation>> {
        self.allocs.get(&id).map(|(alloc, _)| alloc)
    }
}

/// May this job be registered by whoever asks, at the index they expect?
pub(crate) fn may_register(
    job: &Job,
    known: Option<&JobRecord>,
    options: &RegisterOptions,
) -> Result<(), SubmitError> {
    if let Some(known) = known
        && !may_follow(&known.origin, &options.origin)
        && !known.stopped
    {
        return Err(SubmitError::Origin { job: job.id.clone(), actual: known.origin.clone() });
    }
    let actual = known.map_or(0, |record| record.job_modify_index);
    match options.enforce_job_modify_index {
        Some(expected) if expected != actual => {
            Err(SubmitError::Index { job: job.id.clone(), expected, actual })
        }
        _ => Ok(()),
    }
}

/// Among the files of the jobs directory, that decides itself which one gives a job.
fn may_follow(before: &JobOrigin, now: &JobOrigin) -> bool {
    before == now || matches!((before, now), (JobOrigin::File(_), JobOrigin::File(_)))
}

/// The next record of a job; its indexes are given with the change.
pub(crate) fn next_version(
    job: &Arc<Job>,
    known: Option<&JobRecord>,
    origin: JobOrigin,
    now: Timestamp,
) -> JobRecord {
    JobRecord {
        job: Arc::clone(job),
        version: known.map_or(0, |record| record.version.saturating_add(1)),
        submitted_at: now,
        // Until it has one: no allocation that exists is of this job.
        create_index: known.map_or(u64::MAX, |record| record.create_index),
        modify_index: 0,
        job_modify_index: 0,
        stopped: false,
        origin,
    }
}

/// The record with the indexes of this change.
pub(crate) fn numbered(record: &JobRecord, index: u64, before: Option<&JobRecord>) -> JobRecord {
    let mut record = record.clone();
    record.modify_index = index;
    record.create_index = before.map_or(index, |known| known.create_index);
    record.job_modify_index = match before {
        Some(known) if known.version == record.version => known.job_modify_index,
        _ => index,
    };
    record
}

pub(crate) fn updated_copy(old: &Allocation, record: &JobRecord, index: u64) -> Arc<Allocation> {
    Arc::new(Allocation {
        job: Arc::clone(&record.job),
        job_version: record.version,
        modify_index: index,
        ..old.clone()
    })
}

pub(crate) fn stopped_copy(old: &Allocation, reason: &str, index: u64) -> Arc<Allocation> {
    Arc::new(Allocation {
        desired: DesiredStatus::Stop,
        desired_description: reason.to_owned(),
        modify_index: index,
        ..old.clone()
    })
}
