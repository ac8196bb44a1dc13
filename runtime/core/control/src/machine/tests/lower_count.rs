//! A new version with a lower count that has to be accepted first.

use super::deploying::{canaries, service};
use super::node_drain::drain;
use super::*;
use crate::deployments::DeploymentAsk;
use crate::node_drain::NodeAsk;
use ostler_model::rollout::{DeploymentPhase, ReschedulePolicy};

/// So many of a service with canaries run, and what fails of it gets successors.
fn rescheduled(count: u32) -> (Play, Job) {
    let mut play = Play::new();
    let mut first = service("a", count, canaries(2));
    first.groups[0].reschedule = ReschedulePolicy {
        delay: Duration::from_secs(5),
        unlimited: true,
        ..ReschedulePolicy::NEVER
    };
    play.register(&first);
    play.settle();
    (play, first)
}

/// Six of the first version, and two canaries of one that wants four.
fn six_to_four() -> (Play, Vec<AllocId>) {
    let (mut play, first) = rescheduled(6);
    let old = play.of_version(0);
    assert_eq!(old.len(), 6);
    let mut second = changed(&first, "1");
    second.groups[0].count = 4;
    play.register(&second);
    play.end_stopped();
    assert_eq!(play.of_version(1).len(), 2, "canaries");
    (play, old)
}

#[test]
fn what_is_too_many_runs_on_until_the_canaries_are_accepted() {
    let (mut play, old) = six_to_four();
    play.pass(60 * SECOND);
    assert_eq!(play.of_version(0), old);
    play.ask_of("a", DeploymentAsk::Pause).unwrap();
    play.restart();
    play.pass(60 * SECOND);
    assert_eq!(play.of_version(0), old, "nobody accepts what is paused");
    play.ask_of("a", DeploymentAsk::Resume).unwrap();
    play.all_healthy();
    assert_eq!(play.of_version(0), old);
    play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
    let left = play.of_version(0).into_iter().map(|id| play.alloc(id).index);
    assert!(left.clone().all(|index| index < 4), "{:?}", left.collect::<Vec<_>>());
    // What was given up for an accepted version does not come back while that is halted.
    play.ask_of("a", DeploymentAsk::Pause).unwrap();
    play.end_stopped();
    play.pass(60 * SECOND);
    let beyond = play.live().into_iter().filter(|id| play.alloc(*id).index >= 4);
    assert_eq!(beyond.count(), 0);
    play.ask_of("a", DeploymentAsk::Resume).unwrap();
    play.settle();
    assert_eq!(play.phase("a"), DeploymentPhase::Successful);
    assert_eq!((play.of_version(0).len(), play.of_version(1).len()), (0, 4));
}

#[test]
fn what_is_too_many_runs_on_when_the_canaries_are_given_up() {
    for by_somebody in [true, false] {
        let (mut play, old) = six_to_four();
        if by_somebody {
            drop(play.ask_of("a", DeploymentAsk::Fail).unwrap());
        } else {
            play.pass(700 * SECOND);
        }
        play.end_stopped();
        play.pass(60 * SECOND);
        assert_eq!(play.phase("a"), DeploymentPhase::Failed);
        assert_eq!((play.of_version(0), play.of_version(1)), (old, Vec::new()));
        let mut third = (*play.record("a").job).clone();
        third.groups[0].update = Some(super::deploying::parallel(2));
        play.register(&changed(&third, "2"));
        play.settle();
        assert_eq!((play.of_version(2).len(), play.live().len()), (4, 4), "a version accepted");
    }
}

#[test]
fn what_is_too_many_comes_again_after_the_node_was_drained() {
    let (mut play, old) = six_to_four();
    play.ask_of("a", DeploymentAsk::Fail).unwrap();
    play.end_stopped();
    play.schedule(drain(None, false)).unwrap();
    for _ in 0..20 {
        play.end_stopped();
        play.pass(SECOND);
    }
    assert_eq!((play.live(), play.draining()), (Vec::new(), false));
    play.schedule(NodeAsk::Eligible(true)).unwrap();
    play.pass(SECOND);
    assert_eq!(play.of_version(0).len(), old.len());
}

#[test]
fn what_fails_of_what_is_too_many_gets_successors_while_canaries_wait() {
    let (mut play, old) = six_to_four();
    let at = |index: u32| old.iter().copied().find(|id| play.alloc(*id).index == index).unwrap();
    let (failed, stopped) = (at(5), at(4));
    play.report(failed, ClientStatus::Failed, true);
    play.change("a", JobAction::StopAlloc { alloc: stopped, reason: "asked".into() });
    play.end_stopped();
    play.pass(6 * SECOND);
    let now = play.of_version(0);
    assert_eq!(now.len(), 6, "of their own version");
    assert!(!now.contains(&failed) && !now.contains(&stopped));
    assert_eq!(play.of_version(1).len(), 2);
}

#[test]
fn what_a_version_gave_up_does_not_come_back_beside_the_canaries_of_the_next_one() {
    for (fails, count) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let (mut play, first) = rescheduled(3);
        let mut second = first.clone();
        second.groups[0].count = 1;
        let beyond: Vec<_> =
            play.live().into_iter().filter(|id| play.alloc(*id).index > 0).collect();
        if fails {
            beyond.iter().for_each(|id| play.report(*id, ClientStatus::Failed, true));
        }
        play.register(&second);
        assert_eq!(play.of_version(1), play.live());
        assert_eq!(play.live().len(), 1);
        let mut third = changed(&second, "1");
        third.groups[0].count = count;
        play.register(&third);
        play.end_stopped();
        play.pass(60 * SECOND);
        let now = [0, 1, 2].map(|version| play.of_version(version).len());
        assert_eq!(now, [0, 1, 2], "nothing of the first version");
        play.all_healthy();
        play.ask_of("a", DeploymentAsk::Promote(None)).unwrap();
        play.settle();
        assert_eq!(play.phase("a"), DeploymentPhase::Successful);
        assert_eq!(play.live().len(), usize::try_from(count).unwrap());
    }
}
