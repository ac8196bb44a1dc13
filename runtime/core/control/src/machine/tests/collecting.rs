//! Garbage collection and purges, on virtual time.

use super::*;
use crate::AllocError;
use crate::views::CollectOutcome;
use ostler_model::limits::PURGE_PARALLEL;

const FULL: FsUse = FsUse { disk_used: 95, disk_total: 100, inodes_used: 0, inodes_total: 0 };
const ROOMY: FsUse = FsUse { disk_used: 10, disk_total: 100, inodes_used: 0, inodes_total: 0 };

fn policy() -> GcPolicy {
    GcPolicy { interval: 60 * SECOND, ..GcPolicy::default() }
}

/// A node that collects, with so many allocations that are over, oldest first.
fn ended(count: u32, policy: GcPolicy) -> (Play, Vec<AllocId>) {
    let mut play = Play::new();
    play.fs = Some(ROOMY);
    play.slow_removals = true;
    play.ask(ControlRequest::Ready(Some(policy)));
    play.register(&job("web", count));
    let ids = play.live();
    for id in &ids {
        play.pass(SECOND);
        play.end(*id);
    }
    (play, ids)
}

fn collected(play: &mut Play, request: RequestId) -> Result<CollectOutcome, AllocError> {
    match play.answers.remove(&request) {
        Some(ControlAnswer::Collected(result)) => result,
        other => panic!("not collected: {other:?}"),
    }
}

fn failed(why: &str, left: RemovalLeft) -> Result<(), NotRemoved> {
    Err(NotRemoved { why: why.into(), left })
}

#[test]
fn one_is_removed_when_one_is_enough_however_slow_the_removal_is() {
    let (mut play, ids) = ended(5, policy());
    play.fs = Some(FULL);
    play.pass(60 * SECOND);
    assert_eq!(play.removing, BTreeSet::from([ids[0]]), "the oldest one, alone");
    play.pass(200 * SECOND);
    assert_eq!(play.removing.len(), 1, "nothing else goes before it is gone");
    play.fs = Some(ROOMY);
    play.removal(ids[0], Ok(()));
    play.pass(600 * SECOND);
    assert_eq!((play.removed.len(), play.machine.tables().count()), (1, 4));
}

#[test]
fn the_interval_alone_is_enough_to_have_it_looked() {
    let (mut play, _) = ended(1, policy());
    let before = play.measures;
    play.pass(120 * SECOND);
    assert_eq!(play.measures, before + 2);
}

#[test]
fn too_many_go_as_many_at_a_time_as_is_configured_and_no_more_than_too_many() {
    let (mut play, ids) = ended(9, GcPolicy { max_allocs: 4, parallel: 2, ..policy() });
    let mut rounds = Vec::new();
    while !play.removing.is_empty() {
        let now = play.removing.clone();
        rounds.push(now.len());
        now.into_iter().for_each(|id| play.removal(id, Ok(())));
    }
    assert!(rounds.iter().all(|count| *count <= 2), "{rounds:?}");
    let mut gone = play.removed.clone();
    gone.sort_unstable();
    let mut oldest = ids[..5].to_vec();
    oldest.sort_unstable();
    assert_eq!(gone, oldest);
}

#[test]
fn one_that_fails_is_passed_over_and_tried_again_later() {
    let (mut play, ids) = ended(3, GcPolicy { max_allocs: 2, parallel: 1, ..policy() });
    assert_eq!(play.removing, BTreeSet::from([ids[0]]));
    play.removal(ids[0], failed("busy", RemovalLeft::Everything));
    assert_eq!(play.removing, BTreeSet::from([ids[1]]), "the others go on");
    play.removal(ids[1], Ok(()));
    play.fs = Some(FULL);
    play.pass(70 * SECOND);
    assert!(play.removing.contains(&ids[0]), "its time has come");
}

#[test]
fn a_removal_that_hangs_is_given_up_and_nothing_goes_in_its_place_at_once() {
    let (mut play, ids) = ended(4, policy());
    play.fs = Some(FULL);
    play.pass(60 * SECOND);
    play.removal(ids[0], failed("not done within 300 s", RemovalLeft::Unknown));
    assert_eq!(play.removing, BTreeSet::from([ids[0]]), "it may free its room yet");
    play.pass(60 * SECOND);
    assert_eq!(play.removing, BTreeSet::from([ids[0], ids[1]]));
    let again = play.ask(ControlRequest::Collect(Some(ids[0])));
    assert!(matches!(collected(&mut play, again), Err(AllocError::Stays { .. })), "at once");
    play.removal(ids[0], Ok(()));
    assert!(play.machine.tables().alloc(ids[0]).is_none(), "its end is seen when it comes");
}

#[test]
fn a_disk_that_cannot_be_measured_leaves_the_count() {
    let (mut play, _) = ended(3, GcPolicy { max_allocs: 50, ..policy() });
    play.fs = None;
    play.pass(600 * SECOND);
    assert!(play.removing.is_empty());
}

#[test]
fn on_demand_one_goes_or_all_do_and_what_failed_before_is_tried_at_once() {
    let (mut play, ids) = ended(4, policy());
    let one = play.ask(ControlRequest::Collect(Some(ids[2])));
    assert_eq!(play.removing, BTreeSet::from([ids[2]]));
    play.removal(ids[2], failed("busy", RemovalLeft::Everything));
    assert!(matches!(collected(&mut play, one), Err(AllocError::Stays { .. })));
    let all = play.ask(ControlRequest::Collect(None));
    while let Some(id) = play.removing.first().copied() {
        play.removal(
            id,
            if id == ids[0] { failed("busy", RemovalLeft::Everything) } else { Ok(()) },
        );
    }
    let done = collected(&mut play, all).unwrap();
    assert_eq!((done.allocs.len(), done.failed.len()), (3, 1));
    let gone = play.ask(ControlRequest::Collect(Some(ids[1])));
    assert!(matches!(collected(&mut play, gone), Err(AllocError::Unknown { .. })));
}

#[test]
fn what_runs_is_not_collected_and_what_is_about_to_end_gets_a_moment() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let id = play.live()[0];
    let request = play.ask(ControlRequest::Collect(Some(id)));
    assert!(matches!(collected(&mut play, request), Err(AllocError::NotOver { .. })));
    play.stop("web", false);
    let request = play.ask(ControlRequest::Collect(Some(id)));
    assert!(!play.is_answered(request));
    play.end(id);
    assert_eq!(collected(&mut play, request).unwrap().allocs, [id]);
    play.register(&changed(&job("web", 1), "x"));
    play.stop("web", false);
    let request = play.ask(ControlRequest::Collect(None));
    play.pass(4 * SECOND);
    assert!(!play.is_answered(request));
    play.pass(2 * SECOND);
    assert_eq!(collected(&mut play, request).unwrap(), CollectOutcome::default());
}

#[test]
fn what_has_ended_without_a_record_of_it_is_not_passed_over_in_silence() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let id = play.live()[0];
    play.report(id, ClientStatus::Failed, false);
    let (all, one) =
        (play.ask(ControlRequest::Collect(None)), play.ask(ControlRequest::Collect(Some(id))));
    play.pass(6 * SECOND);
    let done = collected(&mut play, all).unwrap();
    let [(stays, why)] = done.failed.as_slice() else { panic!("{done:?}") };
    assert!(done.allocs.is_empty() && *stays == id && why.contains("not on record"), "{done:?}");
    assert!(matches!(collected(&mut play, one), Err(AllocError::Stays { .. })));
}

#[test]
fn the_end_of_each_allocation_of_a_purged_job_starts_the_removal_of_that_one_alone() {
    let mut play = Play::new();
    play.slow_removals = true;
    let many = PURGE_PARALLEL + 2;
    let mut small = job("web", u32::try_from(many).unwrap());
    let resources = &mut small.groups[0].tasks[0].resources;
    (resources.cpu_mhz, resources.memory_mb) = (10, 10);
    play.register(&small);
    play.stop("web", true);
    let ids: Vec<_> = play.owners.keys().copied().collect();
    for (at, id) in ids.iter().enumerate() {
        play.end(*id);
        assert_eq!(
            play.removing.len(),
            (at + 1).min(PURGE_PARALLEL),
            "each once, so many at a time"
        );
    }
    while let Some(id) = play.removing.first().copied() {
        play.removal(id, Ok(()));
    }
    assert_eq!((play.removed.len(), play.machine.tables().count()), (many, 0));
}

#[test]
fn a_removal_waits_until_it_is_on_record_how_the_place_ended() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let id = play.live()[0];
    play.end(id);
    play.disk = Disk::Hangs;
    let request = play.ask(ControlRequest::Collect(Some(id)));
    assert!(play.removed.is_empty());
    play.disk_answers();
    assert_eq!(play.removed, [id]);
    assert_eq!(collected(&mut play, request).unwrap().allocs, [id]);
    play.disk = Disk::Works;
    let request = play.register(&job("web", 1));
    assert_eq!(play.changed(request).unwrap().placed.len(), 0, "it does not run again");
}

#[test]
fn one_whose_directory_stays_is_told_and_known_no_longer() {
    let (mut play, ids) = ended(1, policy());
    let request = play.ask(ControlRequest::Collect(Some(ids[0])));
    play.removal(ids[0], failed("its directory stays", RemovalLeft::Directory));
    assert!(matches!(collected(&mut play, request), Err(AllocError::Stays { .. })));
    assert_eq!(play.machine.tables().count(), 0, "the next start removes it");
}

#[test]
fn records_that_the_disk_does_not_let_go_are_removed_when_it_does() {
    let (mut play, ids) = ended(1, policy());
    let request = play.ask(ControlRequest::Collect(Some(ids[0])));
    play.removal(ids[0], failed("its records stay", RemovalLeft::Records));
    assert!(matches!(collected(&mut play, request), Err(AllocError::Stays { .. })));
    play.records.insert(format!("alloc {}", ids[0]), None);
    play.disk = Disk::Fails;
    play.pass(25 * SECOND);
    assert!(play.records.contains_key(&format!("alloc {}", ids[0])));
    play.disk = Disk::Works;
    play.pass(25 * SECOND);
    assert!(!play.records.contains_key(&format!("alloc {}", ids[0])));
    let writes = play.writes;
    play.pass(600 * SECOND);
    assert_eq!(play.writes, writes);
}

#[test]
fn records_that_stay_while_those_of_others_are_removed_again_are_removed_too() {
    let (mut play, ids) = ended(2, policy());
    let record = |id: AllocId| format!("alloc {id}");
    play.ask(ControlRequest::Collect(None));
    play.removal(ids[0], failed("its records stay", RemovalLeft::Records));
    play.records.insert(record(ids[0]), None);
    play.disk = Disk::Hangs;
    play.pass(15 * SECOND);
    play.removal(ids[1], failed("its records stay", RemovalLeft::Records));
    play.records.insert(record(ids[1]), None);
    play.disk_answers();
    play.disk = Disk::Works;
    play.pass(25 * SECOND);
    assert!(ids.iter().all(|id| !play.records.contains_key(&record(*id))));
}

#[test]
fn a_purged_one_whose_removal_took_long_is_gone_in_the_end() {
    let mut play = Play::new();
    play.slow_removals = true;
    play.register(&job("web", 1));
    play.stop("web", true);
    play.end_stopped();
    let id = *play.removing.first().unwrap();
    play.removal(id, Err(NotRemoved { why: "slow".into(), left: RemovalLeft::Unknown }));
    play.pass(600 * SECOND);
    for id in play.removing.clone() {
        play.removal(id, Ok(()));
    }
    assert_eq!(play.machine.tables().count(), 0);
}

#[test]
fn a_request_that_nobody_waits_for_gives_its_place_to_another_one() {
    let (mut play, ids) = ended(1, policy());
    let most = ostler_model::limits::COLLECT_REQUESTS_MAX;
    let asked: Vec<RequestId> =
        (0..most).map(|_| play.ask(ControlRequest::Collect(None))).collect();
    let refused = play.ask(ControlRequest::Collect(None));
    assert!(matches!(collected(&mut play, refused), Err(AllocError::Busy)));
    play.feed(ControlEvent::AskerGone(asked[0]));
    let last = play.ask(ControlRequest::Collect(None));
    play.removal(ids[0], Ok(()));
    assert_eq!(collected(&mut play, asked[1]).unwrap().allocs, ids);
    assert!(collected(&mut play, last).is_ok() && !play.is_answered(asked[0]));
}
