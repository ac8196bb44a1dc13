//! A purge is acknowledged when no record is left from which the job could come back.

use super::*;

/// No record says that something of a job is to run: an agent that starts now knows it no more.
fn nothing_is_to_run_by_the_records(play: &Play) -> bool {
    play.records.values().flatten().all(|alloc| alloc.desired == DesiredStatus::Stop)
}

fn not_removed(left: RemovalLeft) -> NotRemoved {
    NotRemoved { why: "the disk is full".into(), left }
}

/// A job of two allocations, of which one has ended and is being collected.
fn collecting() -> (Play, AllocId) {
    let mut play = Play::new();
    play.register(&job("web", 2));
    let ended = play.live()[0];
    play.end(ended);
    play.slow_removals = true;
    play.ask(ControlRequest::Collect(Some(ended)));
    assert!(play.removing.contains(&ended));
    (play, ended)
}

#[test]
fn a_purge_takes_records_along_that_the_disk_did_not_let_go() {
    let (mut play, ended) = collecting();
    play.disk = Disk::Fails;
    play.removal(ended, Err(not_removed(RemovalLeft::Records)));
    assert!(play.machine.tables().alloc(ended).is_none());
    play.disk = Disk::Works;
    let purge = play.stop("web", true);
    assert_eq!(play.changed(purge).unwrap().unwritten, None);
    assert!(nothing_is_to_run_by_the_records(&play));
}

#[test]
fn a_purge_takes_records_along_whose_removal_is_being_tried_again() {
    let (mut play, ended) = collecting();
    play.disk = Disk::Fails;
    play.removal(ended, Err(not_removed(RemovalLeft::Records)));
    play.disk = Disk::Hangs;
    play.pass(15 * SECOND);
    let purge = play.stop("web", true);
    play.disk = Disk::Fails;
    // Only what was tried again; the purge is written when the disk works.
    play.disk_answers_first();
    play.disk = Disk::Works;
    play.disk_answers();
    play.disk_answers();
    assert_eq!(play.changed(purge).unwrap().unwritten, None);
    assert!(nothing_is_to_run_by_the_records(&play));
}

#[test]
fn a_purge_takes_records_along_that_are_being_removed() {
    let (mut play, ended) = collecting();
    let purge = play.stop("web", true);
    assert_eq!(play.changed(purge).unwrap().unwritten, None);
    assert!(nothing_is_to_run_by_the_records(&play));
    play.removal(ended, Ok(()));
    play.end_stopped();
    assert_eq!(play.status("web"), None);
}

#[test]
fn a_purge_takes_a_stop_along_that_is_not_on_record() {
    let mut play = Play::new();
    play.register(&job("web", 2));
    play.disk = Disk::Fails;
    let first = play.stop("web", true);
    assert!(play.changed(first).unwrap().unwritten.is_some());
    play.disk = Disk::Works;
    let second = play.stop("web", true);
    assert_eq!(play.changed(second).unwrap().unwritten, None);
    assert!(nothing_is_to_run_by_the_records(&play));
    let writes = play.writes;
    play.pass(600 * SECOND);
    assert_eq!(play.writes, writes, "nothing is left to be written again");
}

#[test]
fn a_purge_that_the_disk_refuses_leaves_what_it_takes_along_to_be_tried_again() {
    let (mut play, ended) = collecting();
    play.disk = Disk::Fails;
    play.removal(ended, Err(not_removed(RemovalLeft::Records)));
    let purge = play.stop("web", true);
    assert!(play.changed(purge).unwrap().unwritten.is_some());
    assert!(!nothing_is_to_run_by_the_records(&play));
    play.disk = Disk::Works;
    play.pass(60 * SECOND);
    assert!(nothing_is_to_run_by_the_records(&play));
}

#[test]
fn a_new_job_of_a_purged_ones_name_does_not_keep_the_allocations_of_the_purged_one() {
    let mut play = Play::new();
    let web = job("web", 2);
    play.register(&web);
    let old = play.live();
    let old: [AllocId; 2] = [old[0], old[1]];
    old.iter().for_each(|id| play.report(*id, ClientStatus::Running, false));
    play.stop("web", true);
    // One has ended before the new job comes, the other one ends later.
    play.end(old[0]);
    assert_eq!(play.removed, [old[0]]);
    play.register(&web);
    play.end(old[1]);
    let new = play.live();
    assert_eq!((new.len(), play.removed.len()), (2, 1), "one may take the data of the other");
    new.iter().for_each(|id| play.report(*id, ClientStatus::Running, false));
    assert_eq!(play.removed, old, "gone once their places are taken");
    new.iter().for_each(|id| play.end(*id));
    play.pass(600 * SECOND);
    assert_eq!(play.removed, old, "those of the new job stay until they are collected");
}

#[test]
fn allocations_of_a_purged_job_go_when_the_new_job_of_its_name_is_taken_back() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let old = play.live()[0];
    play.stop("web", true);
    play.disk = Disk::Hangs;
    let again = play.register(&job("web", 1));
    play.end(old);
    play.disk = Disk::Fails;
    play.disk_answers();
    assert!(play.changed(again).is_err());
    assert!(play.removed.contains(&old) && play.machine.tables().count() == 0);
}
