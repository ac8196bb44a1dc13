//! What is stopped, drained or fails while canaries wait to be accepted.

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Just;

use super::deploying::{canaries, parallel, service, three};
use super::node_drain::drain;
use super::*;
use crate::deployments::{DeploymentAsk, DeploymentError, description};
use crate::node_drain::NodeAsk;
use crate::reconcile::reason;
use ostler_model::ids::GroupName;
use ostler_model::rollout::{DelayFunction, DeploymentPhase, ReschedulePolicy, UpdatePolicy};

/// A service whose first version is stable, and what fails of it gets a successor after five seconds.
fn settled(count: u32, update: UpdatePolicy) -> (Play, Job) {
    let mut play = Play::new();
    let mut first = service("a", count, update);
    first.groups[0].reschedule = ReschedulePolicy {
        delay: Duration::from_secs(5),
        delay_function: DelayFunction::Constant,
        unlimited: true,
        ..ReschedulePolicy::NEVER
    };
    play.register(&first);
    play.settle();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    (play, first)
}

impl Play {
    /// Of this version and index, and to run.
    fn at(&self, version: u64, index: u32) -> AllocId {
        let here = self.of_version(version).into_iter();
        let here = here.filter(|id| self.alloc(*id).index == index);
        let here: Vec<_> = here.collect();
        assert_eq!(here.len(), 1, "{here:?}");
        here[0]
    }

    fn stop_one(&mut self, alloc: AllocId) {
        let request = self.change("a", JobAction::StopAlloc { alloc, reason: "asked".into() });
        self.changed(request).unwrap();
        self.end_stopped();
        self.pass(Duration::from_millis(1));
    }

    /// The canaries that wait become healthy, wait for a long time and are accepted, and the
    /// deployment ends well.
    fn accepts_healthy_canaries(&mut self) {
        self.all_healthy();
        self.pass(2_000 * SECOND);
        self.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
        self.settle();
        assert_eq!(self.phase("a"), DeploymentPhase::Successful);
    }

    fn only_canary(&self) -> AllocId {
        let all = self.of_version(1);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0]
    }
}

#[test]
fn an_accepted_canary_stays_and_what_was_placed_again_beside_it_meanwhile_goes() {
    for (fails, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut play, first) = settled(3, canaries(1));
        play.register(&changed(&first, "1"));
        let canary = play.only_canary();
        play.all_healthy();
        let index = play.alloc(canary).index;
        let old = play.at(0, index);
        if fails {
            play.report(old, ClientStatus::Failed, true);
            play.pass(6 * SECOND);
        } else {
            play.stop_one(old);
        }
        let successor = play.at(0, index);
        assert_ne!(successor, old);
        assert!(play.alloc(successor).create_index > play.alloc(canary).create_index);
        if restarts {
            play.restart();
        }
        play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
        assert!(play.live().contains(&canary), "it is healthy, and has the place");
        assert_eq!(play.alloc(successor).desired_description, reason::NOT_NEEDED);
        assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (0, 3));
        play.settle();
        assert_eq!((play.phase("a"), play.live().len()), (DeploymentPhase::Successful, 3));
        // It had the place last: its data goes on.
        play.stop_one(canary);
        assert_eq!(play.alloc(play.at(1, index)).previous, Some(canary));
    }
}

#[test]
fn canaries_of_a_higher_count_have_places_that_stay_when_they_are_accepted() {
    let (mut play, first) = settled(1, canaries(2));
    let mut second = changed(&first, "1");
    second.groups[0].count = 3;
    play.register(&second);
    let new = play.of_version(1);
    let indexes: BTreeSet<u32> = new.iter().map(|id| play.alloc(*id).index).collect();
    assert_eq!(indexes, BTreeSet::from([0, 1]));
    play.all_healthy();
    play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
    play.settle();
    assert_eq!((play.phase("a"), play.live().len()), (DeploymentPhase::Successful, 3));
    assert!(new.iter().all(|canary| play.live().contains(canary)));
}

#[test]
fn a_canary_that_somebody_stops_is_replaced_and_the_next_one_has_the_whole_time() {
    for becomes_healthy in [true, false] {
        let (mut play, first) = three(canaries(1));
        play.register(&changed(&first, "1"));
        let canary = play.only_canary();
        play.all_healthy();
        play.pass(2_000 * SECOND);
        play.stop_one(canary);
        let next = play.only_canary();
        assert_ne!(next, canary);
        assert_eq!((play.phase("a"), play.of_version(0).len()), (DeploymentPhase::Running, 3));
        let early = play.ask_of("a", DeploymentAsk::Promote(None)).unwrap_err();
        let early = matches!(
            early,
            SubmitError::Deployment(DeploymentError::Unhealthy { healthy: 0, wanted: 1, .. })
        );
        assert!(early, "the one that is healthy is not there any more");
        play.restart();
        play.pass(590 * SECOND);
        assert_eq!(play.phase("a"), DeploymentPhase::Running);
        if !becomes_healthy {
            play.pass(20 * SECOND);
            assert_eq!(play.phase("a"), DeploymentPhase::Failed);
            assert_eq!(play.newest("a").description, description::DEADLINE);
            continue;
        }
        play.accepts_healthy_canaries();
        assert!(play.live().contains(&next));
    }
}

#[test]
fn a_drain_however_long_fails_no_deployment_whose_canary_waits() {
    for healthy in [true, false] {
        let (mut play, first) = three(canaries(1));
        play.register(&changed(&first, "1"));
        if healthy {
            play.all_healthy();
            play.pass(2_000 * SECOND);
        }
        play.schedule(drain(None, false)).unwrap();
        for _ in 0..10 {
            play.end_stopped();
            play.pass(SECOND);
        }
        assert_eq!((play.live(), play.draining()), (Vec::new(), false));
        play.restart();
        play.pass(2_000 * SECOND);
        assert_eq!(play.phase("a"), DeploymentPhase::Running);
        play.schedule(NodeAsk::Eligible(true)).unwrap();
        play.pass(590 * SECOND);
        assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (3, 1));
        assert_eq!(play.phase("a"), DeploymentPhase::Running);
        play.all_healthy();
        play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
        play.settle();
        assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    }
}

#[test]
fn canaries_that_fail_one_after_the_other_get_no_more_time() {
    let (mut play, first) = settled(3, canaries(1));
    play.register(&changed(&first, "1"));
    let began = play.uptime;
    let mut tried = BTreeSet::new();
    while play.uptime < began + 580 * SECOND {
        for canary in play.of_version(1) {
            tried.insert(canary);
            play.report(canary, ClientStatus::Failed, true);
        }
        play.pass(6 * SECOND);
        assert_eq!(play.phase("a"), DeploymentPhase::Running);
    }
    assert!(tried.len() > 50, "{}", tried.len());
    play.pass(20 * SECOND);
    assert_eq!(play.phase("a"), DeploymentPhase::Failed);
    assert_eq!(play.newest("a").description, description::DEADLINE);
    assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (3, 0));
}

#[test]
fn a_group_that_had_all_it_wants_has_the_whole_time_when_it_loses_something() {
    for becomes_healthy in [true, false] {
        let mut play = Play::new();
        let mut first = service("a", 1, canaries(1));
        let other = GroupName::new("other").unwrap();
        first.groups.push(TaskGroup { name: other.clone(), ..first.groups[0].clone() });
        play.register(&first);
        play.settle();
        // The canary of the first group waits beside the other group, which is healthy.
        play.register(&changed(&first, "1"));
        play.all_healthy();
        play.pass(2_000 * SECOND);
        assert_eq!(play.phase("a"), DeploymentPhase::Running);
        let of_other = play.live().into_iter().find(|id| play.alloc(*id).group == other).unwrap();
        play.stop_one(of_other);
        play.restart();
        play.pass(590 * SECOND);
        assert_eq!((play.phase("a"), play.live().len()), (DeploymentPhase::Running, 3));
        if !becomes_healthy {
            play.pass(20 * SECOND);
            assert_eq!(play.phase("a"), DeploymentPhase::Failed);
            continue;
        }
        play.accepts_healthy_canaries();
    }
}

#[test]
fn an_accepted_version_has_the_data_of_what_ran_in_a_place_not_of_a_canary_that_was_stopped() {
    let (mut play, first) = settled(3, canaries(1));
    play.register(&changed(&first, "1"));
    let canary = play.only_canary();
    play.all_healthy();
    let index = play.alloc(canary).index;
    play.report(play.at(0, index), ClientStatus::Failed, true);
    // The next canary is beside another place: here there is nothing to be replaced for five seconds.
    play.stop_one(canary);
    assert_ne!(play.alloc(play.only_canary()).index, index);
    play.pass(6 * SECOND);
    let successor = play.at(0, index);
    play.all_healthy();
    play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
    play.settle();
    assert_eq!(play.alloc(play.at(1, index)).previous, Some(successor));
}

/// Two of a service, the first of which was replaced. The new one is not healthy yet.
fn half_replaced() -> (Play, Job) {
    let (mut play, first) = settled(2, parallel(1));
    let mut second = changed(&first, "1");
    play.register(&second);
    play.end_stopped();
    assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (1, 1));
    second.groups[0].update = Some(canaries(2));
    (play, second)
}

#[test]
fn an_accepted_canary_stays_also_beside_what_the_new_version_would_not_replace() {
    let (mut play, third) = half_replaced();
    let failed = play.at(1, 0);
    play.report(failed, ClientStatus::Failed, true);
    play.register(&third);
    let accepted = [play.at(2, 0), play.at(2, 1)];
    play.pass(6 * SECOND);
    let successor = play.at(1, 0);
    play.settle();
    assert_eq!(play.at(1, 0), successor, "the canary has its place later");
    play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
    play.settle();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    assert_eq!(BTreeSet::from_iter(play.live()), BTreeSet::from(accepted));
}

#[test]
fn nothing_of_the_new_version_is_placed_beside_a_canary_while_nobody_accepts_it() {
    let (mut play, third) = half_replaced();
    play.register(&third);
    // It runs on with the new version, so the canaries are beside the other place and beyond.
    play.stop_one(play.at(2, 0));
    play.stop_one(play.at(2, 2));
    let accepted = [play.at(2, 0), play.at(2, 1)];
    play.ask_of("a", DeploymentAsk::Pause).unwrap();
    assert_eq!(BTreeSet::from_iter(play.of_version(2)), BTreeSet::from(accepted));
    play.ask_of("a", DeploymentAsk::Resume).unwrap();
    play.settle();
    play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
    play.settle();
    assert_eq!(BTreeSet::from_iter(play.live()), BTreeSet::from(accepted));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    StopOld(prop::sample::Index),
    FailOld(prop::sample::Index),
    StopCanary(prop::sample::Index),
    Restart,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let index = || any::<prop::sample::Index>();
    prop_oneof![
        3 => index().prop_map(Step::StopOld),
        2 => index().prop_map(Step::FailOld),
        2 => index().prop_map(Step::StopCanary),
        1 => Just(Step::Restart),
        3 => (1..2_000_u16).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(100))]

    #[test]
    fn whatever_ends_meanwhile_healthy_canaries_wait_are_accepted_and_stay(
        steps in prop::collection::vec(step(), 0..12),
        counts in (1..5_u32, 1..5_u32),
        canary in 1..3_u32,
        max_parallel in 1..3_u32,
    ) {
        let (mut play, first) = settled(counts.0, UpdatePolicy { max_parallel, ..canaries(canary) });
        let mut second = changed(&first, "1");
        second.groups[0].count = counts.1;
        play.register(&second);
        play.all_healthy();
        for step in steps {
            let (old, new) = (play.of_version(0), play.of_version(1));
            match step {
                Step::StopOld(at) if !old.is_empty() => play.stop_one(*at.get(&old)),
                Step::StopCanary(at) if !new.is_empty() => play.stop_one(*at.get(&new)),
                Step::FailOld(at) if !old.is_empty() => {
                    play.report(*at.get(&old), ClientStatus::Failed, true);
                }
                Step::Restart => play.restart(),
                Step::Pass(secs) => play.pass(SECOND * u32::from(secs)),
                _ => {}
            }
            play.all_healthy();
            prop_assert_eq!(play.phase("a"), DeploymentPhase::Running, "after {:?}", step);
            prop_assert_eq!(play.of_version(1).len(), usize::try_from(canary).unwrap());
        }
        let accepted = play.of_version(1).into_iter();
        let accepted: Vec<_> = accepted.filter(|id| play.alloc(*id).index < counts.1).collect();
        prop_assert_eq!(accepted.len(), usize::try_from(canary.min(counts.1)).unwrap());
        play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
        play.settle();
        prop_assert_eq!(play.phase("a"), DeploymentPhase::Successful);
        let live = play.live();
        prop_assert!(accepted.iter().all(|id| live.contains(id)), "{accepted:?} {live:?}");
        prop_assert_eq!(live.len(), usize::try_from(counts.1).unwrap());
    }
}
