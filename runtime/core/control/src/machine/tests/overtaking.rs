//! Stops that come while their job is being changed.

use super::*;

#[test]
fn a_stop_that_is_being_written_again_holds_up_no_other_stop() {
    let mut play = Play::new();
    play.register(&job("web", 2));
    let ids = play.live();
    play.disk = Disk::Hangs;
    let asked = JobAction::StopAlloc { alloc: ids[0], reason: "one".into() };
    let first = play.change("web", asked);
    play.pass(31 * SECOND);
    assert!(play.is_answered(first));
    play.pass(11 * SECOND);
    let second = play.stop("web", false);
    play.pass(31 * SECOND);
    assert!(play.is_answered(second));
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
}

#[test]
fn a_stop_does_not_wait_for_a_registration_on_a_disk_that_hangs() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.disk = Disk::Hangs;
    let update = play.register(&job("web", 2));
    let stop = play.stop("web", false);
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
    play.pass(31 * SECOND);
    assert!(matches!(play.changed(update), Err(SubmitError::Unanswered { .. })));
    assert!(play.changed(stop).unwrap().unwritten.is_some());
    play.end_stopped();
    play.disk = Disk::Works;
    play.disk_answers();
    assert_eq!(play.status("web"), Some(JobStatus::Dead));
    play.pass(60 * SECOND);
    assert_eq!(play.status("web"), Some(JobStatus::Dead));
}

#[test]
fn a_stop_that_overtook_is_acknowledged_when_it_is_durable_and_told_once() {
    let mut play = Play::new();
    let web = job("web", 2);
    play.register(&web);
    let ids = play.live();
    play.disk = Disk::Hangs;
    let update = play.register(&changed(&web, "b"));
    let asked = JobAction::StopAlloc { alloc: ids[0], reason: "one".into() };
    let stop = play.change("web", asked);
    assert_eq!(play.owners[&ids[0]].newest.desired, DesiredStatus::Stop);
    assert!(!play.is_answered(stop));
    play.disk_answers();
    play.changed(update).unwrap();
    assert!(!play.is_answered(stop), "its own record is on its way");
    play.disk_answers();
    assert_eq!(play.changed(stop).unwrap().unwritten, None);
    assert_eq!(play.owners[&ids[0]].told, 1, "a second stop would end its delays");
    play.disk = Disk::Works;
    play.end_stopped();
    play.pass(SECOND);
    assert_eq!(play.live().len(), 2);
    assert!(play.machine.is_quiet());
}

#[test]
fn a_stop_ends_what_a_change_that_fails_leaves_running() {
    let mut play = Play::new();
    let web = job("web", 2);
    play.register(&web);
    play.disk = Disk::Hangs;
    let update = play.register(&changed(&web, "b"));
    let stop = play.stop("web", false);
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
    play.disk = Disk::Fails;
    play.disk_answers();
    assert!(play.changed(update).is_err());
    assert!(play.changed(stop).unwrap().unwritten.is_some());
    play.disk = Disk::Works;
    play.end_stopped();
    play.pass(60 * SECOND);
    assert_eq!((play.status("web"), play.live().len()), (Some(JobStatus::Dead), 0));
}

#[test]
fn a_registration_that_the_disk_does_not_take_is_answered_in_time_and_goes_on() {
    let mut play = Play::new();
    let web = job("web", 1);
    play.disk = Disk::Hangs;
    let first = play.register(&web);
    play.pass(10 * SECOND);
    let second = play.register(&job("web", 2));
    play.pass(19 * SECOND);
    assert!(!play.is_answered(first));
    play.pass(2 * SECOND);
    assert!(matches!(play.changed(first), Err(SubmitError::Unanswered { .. })));
    assert!(!play.is_answered(second), "it waits for 21 s only");
    play.pass(10 * SECOND);
    assert!(matches!(play.changed(second), Err(SubmitError::Waited { .. })));
    assert_eq!(play.machine.next_alarm(), None, "nobody waits any more");
    play.disk = Disk::Works;
    play.disk_answers();
    assert_eq!((play.status("web"), play.live().len()), (Some(JobStatus::Running), 1));
    let again = play.register(&web);
    assert!(play.changed(again).unwrap().placed.is_empty());
}

#[test]
fn a_registration_that_the_disk_refuses_after_its_time_is_taken_back() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    let late = play.register(&job("web", 1));
    play.pass(31 * SECOND);
    assert!(play.changed(late).is_err());
    play.disk = Disk::Fails;
    play.disk_answers();
    play.disk = Disk::Works;
    play.pass(60 * SECOND);
    assert_eq!((play.status("web"), play.machine.tables().count()), (None, 0));
    assert!(play.machine.is_quiet());
}

#[test]
fn what_was_placed_with_a_stop_that_the_disk_did_not_take_in_time_comes_on_record() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let old = play.live()[0];
    play.disk = Disk::Hangs;
    let asked = JobAction::StopAlloc { alloc: old, reason: "one".into() };
    let stop = play.change("web", asked);
    play.pass(31 * SECOND);
    assert!(play.changed(stop).unwrap().unwritten.is_some());
    let new = play.live()[0];
    assert!(new != old && play.owners.contains_key(&new));
    play.disk = Disk::Fails;
    play.disk_answers();
    play.disk = Disk::Works;
    play.pass(60 * SECOND);
    assert_eq!(play.live(), [new]);
    assert!(play.records.contains_key(&format!("alloc {new}")), "or it is ended by the next agent");
}
