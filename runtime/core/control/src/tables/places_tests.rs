//! Whatever is collected, and whenever the agent starts anew: what is over does not run again.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::{Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::deployments::History;
use crate::ended_places::EndedPlaceIndex;
use crate::proposal::{Proposal, stopped_copy, updated_copy};
use crate::reconcile::PlaceAction;
use crate::tables::PlacedBy;
use crate::unowned_runs::UnownedRuns;
use ostler_model::alloc::{Allocation, ClientStatus};
use ostler_model::ids::GroupName;
use ostler_model::job::{Job, JobKind, TaskGroup};
use ostler_model::rng::Rng;
use ostler_model::saved::{JobOrigin, SavedAllocState};
use ostler_model::time::Timestamp;
use ostler_testing::fixtures;

const NOW: Timestamp = Timestamp::from_nanos(1_000);

/// An agent as far as places go: what it knows, and what is on its disk.
struct World {
    tables: NodeTables,
    record: Arc<JobRecord>,
    base: Allocation,
    allocs: BTreeMap<AllocId, (Arc<Allocation>, Option<ClientStatus>)>,
    disk: BTreeMap<EndedBlock, EndedPlaces>,
    next: u64,
    /// How often each place of each version was filled, and how often an allocation of it was
    /// stopped: only after that it is filled again.
    filled: BTreeMap<(GroupName, u32, u64), (u32, u32)>,
}

fn place(alloc: &Allocation) -> (GroupName, u32, u64) {
    (alloc.group.clone(), alloc.index, alloc.job_version)
}

impl World {
    fn new(counts: [u32; 2]) -> Self {
        let task = || fixtures::task("t").unwrap();
        let base = fixtures::allocation(JobKind::Batch, vec![task()], &Rng::from_seed(1)).unwrap();
        let group =
            |name, count| TaskGroup { count, ..fixtures::group(name, vec![task()]).unwrap() };
        let groups = vec![group("a", counts[0]), group("b", counts[1])];
        let record = Arc::new(JobRecord {
            job: Arc::new(Job { groups, ..(*base.job).clone() }),
            version: 0,
            submitted_at: NOW,
            create_index: 1,
            modify_index: 1,
            job_modify_index: 1,
            stopped: false,
            origin: JobOrigin::Api,
            stable: false,
        });
        let mut tables = NodeTables::new(1, NOW, UnownedRuns::default());
        tables.put_job(Arc::clone(&record));
        let (allocs, disk, filled) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { tables, record, base, allocs, disk, next: 1, filled }
    }

    fn put(&mut self, alloc: Arc<Allocation>, ended: Option<ClientStatus>) {
        let saved = ended.map(|client_status| SavedAllocState {
            client_status,
            client_description: String::new(),
            forced: false,
            finished: true,
        });
        self.tables.restore_alloc(&alloc, PlacedBy::Job, saved.as_ref(), NOW);
        self.allocs.insert(alloc.id, (alloc, ended));
    }

    /// Do what is to be done; how much that was.
    fn fill(&mut self) -> usize {
        let proposal = Proposal::new(
            &self.tables,
            &self.record,
            &History::default(),
            Timestamp::default(),
            false,
        );
        let mut done = 0;
        for action in &proposal.actions {
            self.next += 1;
            done += usize::from(!matches!(action, PlaceAction::Ignore(_)));
            match action {
                PlaceAction::Place { group, index, previous, .. } => {
                    let alloc = Arc::new(Allocation {
                        id: AllocId::new(uuid::Uuid::from_u128(u128::from(self.next))),
                        job: Arc::clone(&self.record.job),
                        group: group.clone(),
                        index: *index,
                        previous: *previous,
                        job_version: self.record.version,
                        create_index: self.next,
                        modify_index: self.next,
                        ..self.base.clone()
                    });
                    self.filled.entry(place(&alloc)).or_default().0 += 1;
                    self.put(alloc, None);
                }
                PlaceAction::Update(id) => {
                    let (old, ended) = self.allocs[id].clone();
                    let new = updated_copy(&old, &self.record, self.next);
                    // Filled already, by what it was before.
                    self.filled.entry(place(&new)).or_default().0 += 1;
                    self.put(new, ended);
                }
                PlaceAction::Stop { alloc, .. } => self.stop(*alloc),
                PlaceAction::Ignore(_) => {}
            }
        }
        done
    }

    fn stop(&mut self, id: AllocId) {
        let (old, ended) = self.allocs[&id].clone();
        if ended.is_none() && old.desired == DesiredStatus::Run {
            self.filled.entry(place(&old)).or_default().1 += 1;
            self.put(stopped_copy(&old, "", self.next), None);
        }
    }

    fn ids(&self, wanted: impl Fn(Option<ClientStatus>) -> bool) -> Vec<AllocId> {
        let ids = self.allocs.iter().filter(|(_, (_, ended))| wanted(*ended));
        ids.map(|(id, _)| *id).collect()
    }

    fn collect(&mut self, id: AllocId) {
        let found = self.tables.remember(id);
        self.disk.extend(found.map(|(block, places)| (*block, places)));
        self.tables.remove_alloc(id);
        self.allocs.remove(&id);
    }

    /// Another agent on the same disk.
    fn restart(&mut self) {
        self.tables = NodeTables::new(self.next, NOW, UnownedRuns::default());
        self.tables.put_job(Arc::clone(&self.record));
        for (of, places) in &self.disk {
            self.tables.restore_ended(&of.job, &of.group, places.clone());
        }
        for (alloc, ended) in self.allocs.clone().into_values() {
            self.put(alloc, ended);
        }
    }

    fn next_version(&mut self) {
        self.next += 1;
        let (version, modify_index) = (self.record.version + 1, self.next);
        self.record = Arc::new(JobRecord {
            version,
            modify_index,
            job_modify_index: modify_index,
            ..(*self.record).clone()
        });
        self.tables.put_job(Arc::clone(&self.record));
    }

    fn ended(&self) -> &EndedPlaceIndex {
        &self.tables.jobs[&self.record.job.id].ended
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    End(prop::sample::Index, ClientStatus),
    Stop(prop::sample::Index),
    Collect(u64),
    NextVersion,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let index = || proptest::prelude::any::<prop::sample::Index>();
    let status = prop::sample::select(vec![ClientStatus::Complete, ClientStatus::Failed]);
    prop_oneof![
        6 => (index(), status).prop_map(|(at, status)| Step::End(at, status)),
        1 => index().prop_map(Step::Stop),
        3 => proptest::prelude::any::<u64>().prop_map(Step::Collect),
        1 => proptest::strategy::Just(Step::NextVersion),
        2 => proptest::strategy::Just(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn whatever_is_collected_of_what_is_over_nothing_of_it_is_placed_again(
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let mut world = World::new([3, 2]);
        world.fill();
        for step in steps {
            match step {
                Step::End(at, status) => {
                    let live = world.ids(|ended| ended.is_none());
                    if !live.is_empty() {
                        let (alloc, _) = world.allocs[at.get(&live)].clone();
                        world.put(alloc, Some(status));
                    }
                }
                Step::Stop(at) => {
                    let live = world.ids(|ended| ended.is_none());
                    if !live.is_empty() {
                        world.stop(*at.get(&live));
                    }
                }
                Step::Collect(subset) => {
                    let ended = world.ids(|ended| ended.is_some());
                    for (at, id) in ended.into_iter().enumerate() {
                        if subset >> (at % 64) & 1 == 1 {
                            world.collect(id);
                        }
                    }
                    prop_assert_eq!(world.fill(), 0, "after a collection");
                }
                Step::NextVersion => world.next_version(),
                Step::Restart => world.restart(),
            }
            world.fill();
            prop_assert_eq!(world.fill(), 0, "once it is done");
        }
        for (place, (filled, stopped)) in &world.filled {
            prop_assert!(*filled <= stopped + 1, "{place:?}: {filled} times, {stopped} stopped");
        }
    }
}

#[test]
fn a_large_group_that_is_over_is_collected_with_a_record_per_block() {
    let mut world = World::new([200, 1]);
    world.fill();
    for id in world.ids(|_| true) {
        let (alloc, _) = world.allocs[&id].clone();
        world.put(alloc, Some(ClientStatus::Complete));
    }
    let mut written = 0;
    for id in world.ids(|ended| ended.is_some()) {
        let before = world.disk.clone();
        world.collect(id);
        written += usize::from(world.disk != before);
    }
    assert_eq!((world.disk.len(), written), (5, 5), "the neighbours are in it");
    assert_eq!(world.ended().iter().count(), 201);
    world.restart();
    assert_eq!(world.fill(), 0);
}

#[test]
fn of_a_stopped_job_and_a_stopped_allocation_nothing_is_remembered() {
    let mut world = World::new([2, 1]);
    world.fill();
    let first = world.ids(|_| true)[0];
    world.stop(first);
    world.fill();
    let (alloc, _) = world.allocs[&first].clone();
    world.put(alloc, Some(ClientStatus::Complete));
    assert_eq!(world.tables.remember(first), None);
    let second = world.ids(|ended| ended.is_none())[0];
    let (alloc, _) = world.allocs[&second].clone();
    world.put(alloc, Some(ClientStatus::Failed));
    let (_, places) = world.tables.remember(second).unwrap();
    assert_eq!(places.places.values().next().unwrap().status, ClientStatus::Failed);
    let stopped = JobRecord { stopped: true, ..(*world.record).clone() };
    world.tables.put_job(Arc::new(stopped));
    assert_eq!(world.tables.remember(second), None);
}

#[test]
fn what_a_place_that_cannot_be_filled_would_replace_is_kept_whichever_had_it_last() {
    use crate::admission::Refusal;
    use crate::views::BlockedPlacement;

    let mut world = World::new([2, 1]);
    world.fill();
    let (old, _) = world.allocs.values().find(|(a, _)| a.group.as_str() == "a").unwrap().clone();
    // A newer one of its place is told to stop and runs still.
    world.next += 1;
    let stopping = Allocation {
        id: AllocId::new(uuid::Uuid::from_u128(u128::from(world.next))),
        desired: DesiredStatus::Stop,
        create_index: world.next,
        ..(*old).clone()
    };
    world.put(Arc::new(stopping.clone()), None);
    let mut groups = world.record.job.groups.clone();
    groups[0].tasks[0].env.insert("A".into(), "b".into());
    let job = Arc::new(Job { groups, ..(*world.record.job).clone() });
    world.record = Arc::new(JobRecord { job, ..(*world.record).clone() });
    world.next_version();

    let mut proposal = Proposal::new(
        &world.tables,
        &world.record,
        &History::default(),
        Timestamp::default(),
        false,
    );
    let stops = |proposal: &Proposal, id| {
        proposal
            .actions
            .iter()
            .any(|a| matches!(a, PlaceAction::Stop { alloc, .. } if *alloc == id))
    };
    assert!(stops(&proposal, old.id));
    let (job, node) = (world.record.job.id.clone(), "n".to_owned());
    let refusal = Refusal { job, node, groups: Vec::new(), attempts: Vec::new() };
    let unfit = BlockedPlacement {
        group: old.group.clone(),
        index: old.index,
        previous: Some(stopping.id),
        soon: false,
        canary: false,
        refusal: Arc::new(refusal),
    };
    proposal.hold(&[unfit]);
    assert!(!stops(&proposal, old.id), "it runs on");
    let here = |action: &PlaceAction| match action {
        PlaceAction::Place { group, index, .. } => *group == old.group && *index == old.index,
        _ => false,
    };
    assert!(!proposal.actions.iter().any(here));
    let others = proposal.actions.iter().filter(|a| matches!(a, PlaceAction::Place { .. })).count();
    assert_eq!(others, 1, "the other place of the group is replaced");
}

#[test]
fn a_place_that_ended_is_remembered_beside_what_a_version_that_was_taken_back_put_there() {
    let mut world = World::new([1, 1]);
    world.fill();
    let first = world.ids(|_| true)[0];
    let (alloc, _) = world.allocs[&first].clone();
    world.put(Arc::clone(&alloc), Some(ClientStatus::Failed));
    world.next += 1;
    let later = Allocation {
        id: AllocId::new(uuid::Uuid::from_u128(u128::from(world.next))),
        job_version: world.record.version + 1,
        create_index: world.next,
        ..(*alloc).clone()
    };
    world.put(Arc::new(later), Some(ClientStatus::Failed));
    let (_, places) = world.tables.remember(first).unwrap();
    assert!(places.places.contains_key(&alloc.index));
}
