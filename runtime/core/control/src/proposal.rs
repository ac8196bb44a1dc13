//! Decides what is to be done for a job, and whether and where it fits.
//!
//! ```text
//! JobRecord + its allocations ─ reconcile ─► actions
//!   ├─► find_unfit: what does not fit in a copy without what goes. It waits, and what it would
//!   │   replace runs on
//!   └─► place_fitting: what fits now. The rest waits for what goes
//! ```

mod count;
mod trial;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::SubmitError;
use super::admission::{
    Admission, Attempt, AttemptNames, DevicePlan, GroupRefusal, Problem, Refusal,
};
use super::deployments::History;
use super::machine::World;
use super::reconcile::{
    ExistingAlloc, GroupProgress, PlaceAction, PlacementDetails, ReconcilePlan, VersionAt,
    WantedJob, reason, reconcile,
};
use super::tables::{AllocEntry, NodeTables};
use super::unowned_runs::UnownedRuns;
use super::views::{BlockedPlacement, JobOptions, RegisterOptions};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::job::Job;
use ostler_model::rollout::Deployment;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;
use trial::{Jobs, PlacementTrial};

/// The actions for a job, with the allocations they are about.
pub(crate) struct Proposal {
    pub(crate) actions: Vec<PlaceAction>,
    /// The job's allocations, each with its status.
    pub(crate) allocs: BTreeMap<AllocId, (Arc<Allocation>, ClientStatus)>,
    /// Allocations that failed, with the time when each gets its successor.
    pub(crate) later: BTreeMap<AllocId, Timestamp>,
    /// The next time at which something is to be done, where time decides.
    pub(crate) next: Option<Timestamp>,
    /// Allocations that run on for now and go in a later step.
    pub(crate) behind: BTreeSet<AllocId>,
    /// The progress of each group.
    pub(crate) progress: BTreeMap<GroupName, GroupProgress>,
    present: VersionAt,
    /// Allocations whose resources become free.
    going: BTreeSet<AllocId>,
    going_ports: BTreeSet<u16>,
    /// Allocations that run beside what they may replace.
    canaries: BTreeSet<AllocId>,
    drawn: DrawnIds,
}

/// The ids of trial allocations, one for each place. The placed allocation has the same id, so what
/// a trial says of it stays true.
#[derive(Default)]
struct DrawnIds(RefCell<BTreeMap<(GroupName, u32, bool), AllocId>>);

impl DrawnIds {
    fn id(&self, group: &GroupName, index: u32, canary: bool, world: &World<'_>) -> AllocId {
        let mut drawn = self.0.borrow_mut();
        *drawn
            .entry((group.clone(), index, canary))
            .or_insert_with(|| AllocId::new(world.rng.uuid()))
    }
}

/// A place of a group; the flag: for a canary beside another allocation.
type Slot<'a> = (&'a GroupName, u32, bool);

impl Proposal {
    /// What is to be done for `record`, with its deployments and earlier versions. For `forced` see
    /// [`WantedJob::forced`].
    pub(crate) fn new(
        tables: &NodeTables,
        record: &JobRecord,
        history: &History,
        now: Timestamp,
        forced: bool,
    ) -> Self {
        let known = tables.allocs_of(&record.job.id).filter(|entry| entry.is_registered());
        let allocs: Vec<&AllocEntry> = known.collect();
        let deployment = history.deployment_of(record);
        let existing: Vec<ExistingAlloc<'_>> =
            allocs.iter().map(|entry| existing_alloc(entry, history, deployment)).collect();
        let wanted = WantedJob {
            job: &record.job,
            version: record.version,
            create_index: record.create_index,
            stopped: record.stopped,
            ended: tables.jobs.get(&record.job.id).and_then(|entry| entry.ended_places_of(record)),
            now,
            lives_on: record.origin != JobOrigin::Run,
            deployment,
            forced,
        };
        let ReconcilePlan { actions, later, next, groups, behind } = reconcile(&wanted, &existing);
        let stopped = actions.iter().filter_map(|action| match action {
            PlaceAction::Stop { alloc, .. } => Some(*alloc),
            _ => None,
        });
        let on_their_way = allocs.iter().filter(|entry| {
            let stops = entry.allocation.desired == DesiredStatus::Stop;
            !entry.ended && (stops || entry.client_status().is_terminal())
        });
        let going: BTreeSet<AllocId> =
            on_their_way.map(|entry| entry.allocation.id).chain(stopped).collect();
        let gone = allocs.iter().filter(|entry| going.contains(&entry.allocation.id));
        let going_ports =
            gone.flat_map(|entry| entry.allocation.ports.iter().map(|port| port.value)).collect();
        let canaries = existing.iter().filter(|alloc| alloc.canary).map(|alloc| alloc.id).collect();
        let known = |entry: &&AllocEntry| {
            (entry.allocation.id, (Arc::clone(&entry.allocation), entry.client_status()))
        };
        let allocs = allocs.iter().map(known).collect();
        let (progress, drawn, present) = (groups, DrawnIds::default(), record.into());
        Self {
            actions,
            allocs,
            later,
            next,
            behind,
            progress,
            present,
            going,
            going_ports,
            canaries,
            drawn,
        }
    }

    /// All places that are to be filled.
    fn places<'a>(&'a self, record: &'a JobRecord) -> impl Iterator<Item = PlaceToFill<'a>> {
        self.actions.iter().filter_map(move |action| match action {
            PlaceAction::Place { group, index, previous, how, .. } => {
                let like = how.like.and_then(|like| self.alloc(like));
                let (job, version) = match like {
                    Some(like) => (&like.job, like.job_version),
                    None => (&record.job, record.version),
                };
                let (index, previous) = (*index, *previous);
                Some(PlaceToFill { group, index, previous, how, job, version })
            }
            _ => None,
        })
    }

    /// Allocations that go only because others take their places, by place.
    fn replaced_allocs(&self) -> BTreeMap<Slot<'_>, AllocId> {
        let stopped = self.actions.iter().filter_map(|action| match action {
            PlaceAction::Stop { alloc, reason: reason::REPLACED | reason::RESCHEDULED } => {
                self.alloc(*alloc)
            }
            _ => None,
        });
        let slot = |alloc: &Arc<Allocation>| self.canaries.contains(&alloc.id);
        stopped.map(|alloc| ((&alloc.group, alloc.index, slot(alloc)), alloc.id)).collect()
    }

    /// Leave out the places that cannot be filled: what they would replace runs on.
    pub(crate) fn hold(&mut self, unfit: &[BlockedPlacement]) {
        if unfit.is_empty() {
            return;
        }
        let unfit: BTreeSet<Slot<'_>> =
            unfit.iter().map(|place| (&place.group, place.index, place.canary)).collect();
        let replaced = self.replaced_allocs().into_iter();
        let kept: BTreeSet<AllocId> =
            replaced.filter(|(slot, _)| unfit.contains(slot)).map(|(_, id)| id).collect();
        self.actions.retain(|action| match action {
            PlaceAction::Place { group, index, how, .. } => {
                !unfit.contains(&(group, *index, how.canary))
            }
            PlaceAction::Stop { alloc, .. } => !kept.contains(alloc),
            PlaceAction::Update(_) | PlaceAction::Ignore(_) => true,
        });
        self.behind.extend(&kept);
        self.actions.extend(kept.into_iter().map(PlaceAction::Ignore));
    }
}

fn existing_alloc<'a>(
    entry: &'a AllocEntry,
    history: &History,
    deployment: Option<&Deployment>,
) -> ExistingAlloc<'a> {
    let alloc = &entry.allocation;
    let of = alloc.deployment.as_ref();
    ExistingAlloc {
        id: alloc.id,
        job: &alloc.job,
        group: &alloc.group,
        index: alloc.index,
        version: alloc.job_version,
        create_index: alloc.create_index,
        stopping: alloc.desired == DesiredStatus::Stop,
        followed: alloc.desired_description == reason::RESCHEDULED,
        created_at: alloc.created_at,
        status: entry.client_status(),
        ended_at: entry.ended_at(),
        over: entry.ended,
        before: &alloc.reschedules,
        canary: of.is_some_and(|of| of.canary && has_no_place(alloc, &of.id, history)),
        deployed: of.is_some_and(|of| deployment.is_some_and(|known| known.id == of.id)),
        healthy: entry.verdict().map(|verdict| verdict.healthy),
    }
}

/// Has a canary no place of its own? One that was not accepted has none, nor has one that was told
/// to stop before.
fn has_no_place(alloc: &Allocation, deployment: &str, history: &History) -> bool {
    alloc.desired == DesiredStatus::Stop || history.awaits_promotion(deployment, &alloc.group)
}

/// A place to be filled.
#[derive(Clone, Copy)]
struct PlaceToFill<'a> {
    group: &'a GroupName,
    index: u32,
    /// The allocation that had the place last.
    previous: Option<AllocId>,
    how: &'a PlacementDetails,
    /// The version of the job with which it is filled.
    job: &'a Arc<Job>,
    version: u64,
}

impl<'a> PlaceToFill<'a> {
    fn slot(self) -> Slot<'a> {
        (self.group, self.index, self.how.canary)
    }

    fn into_blocked(self, refusal: Arc<Refusal>, soon: bool) -> BlockedPlacement {
        let Self { group, index, previous, .. } = self;
        let canary = self.how.canary;
        BlockedPlacement { group: group.clone(), index, previous, soon, canary, refusal }
    }
}

/// A new allocation of a place.
pub(crate) struct NewAlloc {
    /// Its index and its deployment are set with the change.
    pub(crate) alloc: Allocation,
    /// It runs beside what it may replace.
    pub(crate) canary: bool,
}

/// Block every place that is to be filled, because the node takes no new allocations.
pub(crate) fn block_all(
    node: &str,
    record: &JobRecord,
    proposal: &Proposal,
    why: &Problem,
) -> Vec<BlockedPlacement> {
    let waits = |place: PlaceToFill<'_>| {
        let groups =
            vec![GroupRefusal { group: Some(place.group.clone()), problems: vec![why.clone()] }];
        let (job, node) = (record.job.id.clone(), node.to_owned());
        place.into_blocked(Arc::new(Refusal { job, node, groups, attempts: Vec::new() }), false)
    };
    proposal.places(record).map(waits).collect()
}

/// Find the places that would stay empty even if everything that goes were gone. What such a place
/// would replace does not go for it. `explain`: where to note which devices all would get, and why.
pub(crate) fn find_unfit(
    world: &World<'_>,
    holds: &UnownedRuns,
    admission: &Admission,
    record: &JobRecord,
    proposal: &Proposal,
    explain: Option<&mut DevicePlan>,
) -> Vec<BlockedPlacement> {
    let in_use = |port| !proposal.going_ports.contains(&port) && (world.port_in_use)(port);
    let mut held = holds.withheld_places(record, &world.node.name);
    let mut places = Vec::new();
    for place in proposal.places(record) {
        // A place that an unowned run holds back is not tried.
        match holds.refusal_of_place(record, place.group, place.index, &world.node.name) {
            Some(refusal) => held.push(place.into_blocked(refusal, false)),
            None => places.push(place),
        }
    }
    let mut trial = admission.clone();
    proposal.going.iter().for_each(|alloc| trial.release_alloc(*alloc));
    let drawn = &proposal.drawn;
    let mut trying = PlacementTrial { world, drawn, port_in_use: &in_use, jobs: Jobs::default() };
    if trying.fill_all(&mut trial, &places, explain).is_ok() {
        return held;
    }
    let mut trial = admission.clone();
    let replaced = proposal.replaced_allocs();
    let kept: BTreeSet<AllocId> = replaced.values().copied().collect();
    proposal.going.difference(&kept).for_each(|alloc| trial.release_alloc(*alloc));
    let (_, refused) = trying.fill_one_by_one(&mut trial, &places, &replaced);
    held.extend(refused.into_iter().map(|(place, refusal)| place.into_blocked(refusal, false)));
    held
}

/// Name trial allocations in problems by their names.
pub(crate) fn name_attempts(blocked: &mut [BlockedPlacement], tried: &AttemptNames<'_>) {
    // Places of a group share their reason.
    let mut last: Option<(Arc<Refusal>, Arc<Refusal>)> = None;
    for place in blocked {
        let same = last.as_ref().filter(|(old, _)| Arc::ptr_eq(old, &place.refusal));
        let named = match same {
            Some((_, named)) => Arc::clone(named),
            None => {
                let old = Arc::clone(&place.refusal);
                let named = old.name_attempts(tried).map_or_else(|| Arc::clone(&old), Arc::new);
                last = Some((old, Arc::clone(&named)));
                named
            }
        };
        place.refusal = named;
    }
}

/// Fill the places that can be filled now; the rest is blocked. `whole`: fill all of them or none;
/// they were empty before.
pub(crate) fn place_fitting(
    world: &World<'_>,
    admission: &mut Admission,
    record: &JobRecord,
    proposal: &Proposal,
    whole: bool,
) -> Result<(Vec<NewAlloc>, Vec<BlockedPlacement>), Refusal> {
    let places: Vec<PlaceToFill<'_>> = proposal.places(record).collect();
    let (drawn, port_in_use) = (&proposal.drawn, world.port_in_use);
    let mut trying = PlacementTrial { world, drawn, port_in_use, jobs: Jobs::default() };
    let (mut placed, refused) = match trying.fill_all(admission, &places, None) {
        Ok(placed) => (placed, Vec::new()),
        Err(refusal) if whole => return Err(refusal),
        // What they would replace was told to stop, but still holds its resources.
        Err(_) => trying.fill_one_by_one(admission, &places, &BTreeMap::new()),
    };
    if whole {
        placed.iter_mut().for_each(|placed| placed.alloc.previous = None);
    }
    let blocked = refused.into_iter().map(|(place, refusal)| place.into_blocked(refusal, true));
    Ok((placed, blocked.collect()))
}

impl Proposal {
    /// The trial allocations that are not in `placed`, with their names.
    pub(crate) fn unplaced_attempts(&self, job: &JobId, placed: &[NewAlloc]) -> Vec<Attempt> {
        let placed: BTreeSet<AllocId> = placed.iter().map(|placed| placed.alloc.id).collect();
        let drawn = self.drawn.0.borrow();
        let tried = drawn.iter().filter(|(_, id)| !placed.contains(id));
        let named = tried.map(|((group, index, _), id)| Attempt {
            id: *id,
            name: format!("{job}.{group}[{index}]"),
        });
        named.collect()
    }

    fn group(&self, id: AllocId) -> Option<&GroupName> {
        self.alloc(id).map(|alloc| &alloc.group)
    }

    pub(crate) fn alloc(&self, id: AllocId) -> Option<&Arc<Allocation>> {
        self.allocs.get(&id).map(|(alloc, _)| alloc)
    }
}

/// May the requester register this job, at the index that it expects?
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

/// May the job change from one origin to the other? The jobs directory decides itself which of its
/// files gives a job.
fn may_follow(before: &JobOrigin, now: &JobOrigin) -> bool {
    before == now || matches!((before, now), (JobOrigin::File(_), JobOrigin::File(_)))
}

/// The record of a job that is registered again without a change, or only to be stopped. A stopped
/// job that is to run again gets a new version.
pub(crate) fn same_record(job: &Job, known: &JobRecord, meant: JobOptions) -> Option<JobRecord> {
    let same = *known.job == *job && (meant.stopped || !known.stopped);
    same.then(|| JobRecord { stopped: meant.stopped, ..known.clone() })
}

/// The next record of a job. Its indexes are set with the change.
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
        // The index is not known yet: no existing allocation belongs to this job.
        create_index: known.map_or(u64::MAX, |record| record.create_index),
        modify_index: 0,
        job_modify_index: 0,
        stopped: false,
        origin,
        stable: false,
    }
}

/// The record with the indexes of this change.
pub(crate) fn number_record(
    record: &JobRecord,
    index: u64,
    before: Option<&JobRecord>,
) -> JobRecord {
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
