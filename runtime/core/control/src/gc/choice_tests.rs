#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;

fn id(number: u64) -> AllocId {
    format!("dddddddd-0000-4000-8000-{number:012x}").parse().unwrap()
}

fn candidate(number: u64, ended: u64) -> GcCandidate {
    GcCandidate { id: id(number), ended_at: Timestamp::from_nanos(ended) }
}

/// A disk of a hundred units, so that units are percents.
fn disk(used: u64) -> Option<FsUse> {
    Some(FsUse { disk_used: used, disk_total: 100, inodes_used: 1, inodes_total: 100 })
}

fn inodes(used: u64) -> Option<FsUse> {
    Some(FsUse { disk_used: 1, disk_total: 100, inodes_used: used, inodes_total: 100 })
}

fn ids(step: &GcStep) -> Vec<AllocId> {
    match step {
        GcStep::Destroy { ids, .. } => ids.clone(),
        GcStep::Done { .. } => Vec::new(),
    }
}

const NOTHING: GcStep = GcStep::Done { excess: None };

#[test]
fn the_defaults_are_nomads() {
    let GcPolicy { interval, disk_usage_percent, inode_usage_percent, max_allocs, parallel } =
        GcPolicy::default();
    assert_eq!(interval, Duration::from_secs(60));
    assert_eq!((disk_usage_percent, inode_usage_percent, max_allocs, parallel), (80, 70, 50, 16));
}

#[test]
fn ten_are_over_and_one_is_enough_so_one_goes() {
    let policy = GcPolicy::default();
    let mut terminal: Vec<GcCandidate> = (0..10).map(|i| candidate(i, 100 - i)).collect();
    let mut state = GcState::default();
    let step = state.next_step(&policy, disk(81), &terminal, 0);
    let reason = GcReason::Disk { used: 81, threshold: 80 };
    assert_eq!(step, GcStep::Destroy { ids: vec![id(9)], reason }, "the oldest");
    state.record_destroyed(id(9));
    terminal.pop();
    assert_eq!(state.next_step(&policy, disk(80), &terminal, 0), NOTHING);
}

#[test]
fn disk_comes_before_inodes_and_inodes_before_the_count() {
    let policy = GcPolicy { max_allocs: 1, ..GcPolicy::default() };
    let terminal = [candidate(1, 1), candidate(2, 2), candidate(3, 3)];
    let both = FsUse { disk_used: 99, disk_total: 100, inodes_used: 99, inodes_total: 100 };
    let reason = |measured| match GcState::default().next_step(&policy, measured, &terminal, 0) {
        GcStep::Destroy { ids, reason } => (ids.len(), reason),
        done @ GcStep::Done { .. } => panic!("{done:?}"),
    };
    assert_eq!(reason(Some(both)), (1, GcReason::Disk { used: 99, threshold: 80 }));
    assert_eq!(reason(inodes(71)), (1, GcReason::Inodes { used: 71, threshold: 70 }));
    assert_eq!(reason(disk(80)), (2, GcReason::Count { have: 3, max: 1 }));
    assert_eq!(reason(None), (2, GcReason::Count { have: 3, max: 1 }), "not measured");
}

#[test]
fn exactly_at_a_threshold_nothing_goes_and_no_rounding_decides() {
    let policy = GcPolicy { disk_usage_percent: 80, ..GcPolicy::default() };
    let terminal = [candidate(1, 1)];
    let next = |used, total| {
        let fs = FsUse { disk_used: used, disk_total: total, ..FsUse::default() };
        ids(&GcState::default().next_step(&policy, Some(fs), &terminal, 0)).len()
    };
    assert_eq!(next(800, 1000), 0);
    assert_eq!(next(801, 1000), 1);
    assert_eq!(next(u64::MAX, u64::MAX), 1);
    assert_eq!(next(0, 0), 0);
    assert_eq!(next(5, 0), 0, "a file system that does not count");
}

#[test]
fn of_too_many_exactly_the_excess_goes_and_no_more_than_parallel_at_once() {
    let terminal: Vec<GcCandidate> = (0..10).map(|i| candidate(i, i)).collect();
    let next = |max_allocs, live, parallel| {
        let policy = GcPolicy { max_allocs, parallel, ..GcPolicy::default() };
        ids(&GcState::default().next_step(&policy, disk(1), &terminal, live))
    };
    assert_eq!(next(10, 0, 2), []);
    assert_eq!(next(9, 0, 2), [id(0)]);
    assert_eq!(next(10, 5, 2), [id(0), id(1)]);
    assert_eq!(next(8, 1, 5), [id(0), id(1), id(2)]);
    assert_eq!(next(0, 0, 0), [id(0)], "a parallelism of nothing is one");
}

#[test]
fn ties_go_by_id() {
    let policy = GcPolicy { max_allocs: 0, parallel: 9, ..GcPolicy::default() };
    let terminal = [candidate(3, 7), candidate(1, 7), candidate(2, 6)];
    let step = GcState::default().next_step(&policy, None, &terminal, 0);
    assert_eq!(ids(&step), [id(2), id(1), id(3)]);
}

#[test]
fn live_allocations_alone_above_the_maximum_are_told_and_stay() {
    let policy = GcPolicy { max_allocs: 5, ..GcPolicy::default() };
    let excess = |live| match GcState::default().next_step(&policy, disk(99), &[], live) {
        GcStep::Done { excess } => excess,
        step @ GcStep::Destroy { .. } => panic!("{step:?}"),
    };
    assert_eq!(excess(5), None);
    assert_eq!(excess(6), Some(TooManyAllocs { have: 6, max: 5 }));
    assert!(!excess(10).unwrap().is_great() && excess(11).unwrap().is_great());
}

#[test]
fn one_that_cannot_be_removed_is_left_alone_for_longer_each_time_and_the_next_goes() {
    let policy = GcPolicy::default();
    let terminal = [candidate(1, 1), candidate(2, 2)];
    let mut state = GcState::default();
    let chosen = |state: &mut GcState| ids(&state.next_step(&policy, disk(99), &terminal, 0));
    let mut waits = Vec::new();
    for _ in 0..9 {
        assert_eq!(chosen(&mut state), [id(1)]);
        state.record_failure(id(1));
        assert_eq!(chosen(&mut state), [id(2)], "the next one, at once");
        let mut ticks = 0;
        while chosen(&mut state) != [id(1)] {
            state.tick();
            ticks += 1;
        }
        waits.push(ticks);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    for _ in 0..1000 {
        state.record_failure(id(1));
    }
    state.record_destroyed(id(1));
    assert_eq!(chosen(&mut state), [id(2)], "one that is gone but still listed does not go twice");
}

#[test]
fn while_a_removal_hangs_none_goes_for_room_in_its_place_but_the_count_is_kept() {
    let policy = GcPolicy { max_allocs: 2, ..GcPolicy::default() };
    let terminal = [candidate(1, 1), candidate(2, 2), candidate(3, 3)];
    let mut state = GcState::default();
    assert_eq!(ids(&state.next_step(&policy, disk(99), &terminal, 0)), [id(1)]);
    state.record_hang(id(1));
    let reason = GcReason::Count { have: 3, max: 2 };
    let step = state.next_step(&policy, disk(99), &terminal, 0);
    assert_eq!(step, GcStep::Destroy { ids: vec![id(2)], reason });
    state.record_destroyed(id(2));
    assert_eq!(state.next_step(&policy, disk(99), &terminal, 0), NOTHING);
    state.tick();
    assert_eq!(ids(&state.next_step(&policy, disk(99), &terminal, 0)), [id(1)]);
}

#[test]
fn what_is_gone_and_still_listed_does_not_count() {
    let policy = GcPolicy { max_allocs: 2, parallel: 1, ..GcPolicy::default() };
    let terminal = [candidate(1, 1), candidate(2, 2), candidate(3, 3)];
    let mut state = GcState::default();
    assert_eq!(ids(&state.next_step(&policy, None, &terminal, 0)), [id(1)]);
    state.record_destroyed(id(1));
    assert_eq!(state.next_step(&policy, None, &terminal, 0), NOTHING);
    // An id that is no longer listed is forgotten.
    state.next_step(&policy, None, &terminal[1..], 0);
    assert!(state.gone.is_empty());
}

#[test]
fn reasons_are_sentences() {
    let texts = [
        (
            GcReason::Disk { used: 91, threshold: 80 },
            "91 % of the disk is in use, above the threshold of 80 %",
        ),
        (
            GcReason::Inodes { used: 71, threshold: 70 },
            "71 % of inodes are in use, above the threshold of 70 %",
        ),
        (
            GcReason::Count { have: 51, max: 50 },
            "there are 51 allocations, above the maximum of 50",
        ),
    ];
    for (reason, text) in texts {
        assert_eq!(reason.to_string(), text);
    }
}

/// An allocation of the model world.
#[derive(Clone, Copy, Debug)]
struct Body {
    ended: u64,
    disk: u64,
    inodes: u64,
    /// Its removal fails.
    stuck: bool,
}

/// A node with a file system of a thousand blocks and inodes.
#[derive(Clone, Debug)]
struct World {
    terminal: BTreeMap<AllocId, Body>,
    live: usize,
    other_disk: u64,
    other_inodes: u64,
}

impl World {
    fn measure(&self) -> FsUse {
        let of = |part: fn(&Body) -> u64| self.terminal.values().map(part).sum::<u64>();
        FsUse {
            disk_used: self.other_disk + of(|body| body.disk),
            disk_total: 1_000,
            inodes_used: self.other_inodes + of(|body| body.inodes),
            inodes_total: 1_000,
        }
    }

    fn listed(&self) -> Vec<GcCandidate> {
        let listed = |(id, body): (&AllocId, &Body)| GcCandidate {
            id: *id,
            ended_at: Timestamp::from_nanos(body.ended),
        };
        self.terminal.iter().map(listed).collect()
    }

    /// By the words of the policy, not by its code.
    fn is_over(&self, policy: &GcPolicy) -> bool {
        let fs = self.measure();
        let share = |used: u64| used * 100;
        share(fs.disk_used) > u64::from(policy.disk_usage_percent) * fs.disk_total
            || share(fs.inodes_used) > u64::from(policy.inode_usage_percent) * fs.inodes_total
            || self.terminal.len() + self.live > policy.max_allocs as usize
    }
}

/// The reference: while something is over its threshold, the oldest that can go does, alone.
fn reference(mut world: World, policy: &GcPolicy) -> Vec<AllocId> {
    let mut order: Vec<(u64, AllocId)> =
        world.terminal.iter().map(|(id, body)| (body.ended, *id)).collect();
    order.sort_unstable();
    let mut gone = Vec::new();
    for (_, id) in order {
        if !world.is_over(policy) {
            break;
        }
        if !world.terminal[&id].stuck {
            world.terminal.remove(&id);
            gone.push(id);
        }
    }
    gone
}

fn body() -> impl Strategy<Value = Body> {
    (0..20_u64, 0..150_u64, 0..150_u64, prop::bool::weighted(0.2))
        .prop_map(|(ended, disk, inodes, stuck)| Body { ended, disk, inodes, stuck })
}

fn world() -> impl Strategy<Value = World> {
    (prop::collection::vec(body(), 0..20), 0..15_usize, 0..900_u64, 0..900_u64).prop_map(
        |(bodies, live, other_disk, other_inodes)| World {
            terminal: (0..).map(id).zip(bodies).collect(),
            live,
            other_disk,
            other_inodes,
        },
    )
}

fn policy() -> impl Strategy<Value = GcPolicy> {
    (50..=100_u8, 50..=100_u8, 0..30_u32, 0..5_u32).prop_map(|(disk, inode, max, parallel)| {
        GcPolicy {
            disk_usage_percent: disk,
            inode_usage_percent: inode,
            max_allocs: max,
            parallel,
            ..GcPolicy::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn as_many_go_as_the_reference_removes_and_in_its_order(
        start in world(),
        policy in policy(),
        lists_late in any::<bool>(),
    ) {
        let (mut world, mut state) = (start.clone(), GcState::default());
        let mut gone = Vec::new();
        let mut asked = 0;
        loop {
            asked += 1;
            prop_assert!(asked <= start.terminal.len() + 1, "it comes to an end");
            // A registry may take its time to forget.
            let terminal = if lists_late { start.listed() } else { world.listed() };
            let (chosen, reason) =
                match state.next_step(&policy, Some(world.measure()), &terminal, world.live) {
                    GcStep::Done { excess } => {
                        let too_many = world.terminal.len() + world.live > policy.max_allocs as usize;
                        prop_assert_eq!(excess.is_some(), too_many);
                        break;
                    }
                    GcStep::Destroy { ids, reason } => (ids, reason),
                };
            prop_assert!(!chosen.is_empty());
            let counted = matches!(reason, GcReason::Count { .. });
            let most = if counted { policy.parallel.max(1) as usize } else { 1 };
            prop_assert!(chosen.len() <= most);
            for id in chosen {
                let body = world.terminal.get(&id).copied();
                prop_assert!(body.is_some(), "only one that is over and still there");
                if body.unwrap().stuck {
                    state.record_failure(id);
                } else {
                    prop_assert!(world.is_over(&policy), "no more than needed");
                    world.terminal.remove(&id);
                    state.record_destroyed(id);
                    gone.push(id);
                }
            }
        }
        let expected = reference(start, &policy);
        prop_assert_eq!(gone, expected);
        let can_go = world.terminal.values().any(|body| !body.stuck);
        prop_assert!(!world.is_over(&policy) || !can_go, "as many as needed");
    }
}
