//! Drain, leave, and what an earlier agent left.

use super::*;
use crate::unowned_runs::{HeldPlace, UnownedRun};
use ostler_model::device::GroupKey;
use ostler_model::resources::AllocatedDevice;
use ostler_model::saved::SavedAllocState;

#[test]
fn a_drain_stops_every_allocation_and_is_over_when_all_are() {
    let mut play = Play::new();
    play.register(&job("web", 3));
    let drain = play.ask(ControlRequest::Drain(60 * SECOND));
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
    let refused = play.register(&job("db", 1));
    assert!(matches!(play.changed(refused), Err(SubmitError::Leaving)));
    let ids: Vec<_> = play.owners.keys().copied().collect();
    play.end(ids[0]);
    play.end(ids[1]);
    assert!(!play.is_answered(drain));
    play.end(ids[2]);
    assert!(play.is_answered(drain));
    assert!(play.status("web").is_some(), "the job stays");
    assert!(play.live().is_empty(), "and nothing is placed");
}

#[test]
fn what_does_not_end_by_the_deadline_of_a_drain_is_killed_and_waited_for_a_little() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let drain = play.ask(ControlRequest::Drain(5 * SECOND));
    play.pass(6 * SECOND);
    assert!(play.killed > 0 && play.owners.values().all(|owner| owner.hurried));
    assert!(!play.is_answered(drain));
    play.pass(11 * SECOND);
    assert!(play.is_answered(drain));
}

#[test]
fn who_leaves_waits_for_changes_under_way_but_not_for_ever() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    let change = play.register(&job("web", 1));
    let waits = play.register(&job("web", 2));
    let leave = play.ask(ControlRequest::Leave);
    assert!(matches!(play.changed(waits), Err(SubmitError::Leaving)));
    assert!(!play.is_answered(leave));
    play.disk_answers();
    play.changed(change).unwrap();
    assert!(play.is_answered(leave));
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    play.register(&job("web", 1));
    let leave = play.ask(ControlRequest::Leave);
    play.pass(21 * SECOND);
    assert!(play.is_answered(leave));
}

/// A node that holds this place back: a run of it lives, called 9, and nobody owns it.
fn holding_back(alloc: &Allocation) -> Play {
    let problem = crate::admission::Problem::HeldBack {
        run: String::new(),
        reason: String::new(),
        end_with: String::new(),
    };
    let (job_id, group, index) = (alloc.job.id.clone(), alloc.group.clone(), alloc.index);
    let place = Some(HeldPlace { alloc: alloc.id, job: job_id, group, index });
    let holds =
        UnownedRuns::new(vec![UnownedRun { name: "9".into(), place, problem }], BTreeSet::new());
    let mut play = Play::new();
    play.machine = Machine::new(NodeTables::new(0, Timestamp::default(), holds));
    play
}

/// What an agent left that ran this job: its records.
fn left(play: &Play) -> RestoredNode {
    let jobs: Vec<_> =
        play.machine.tables().jobs().map(|(_, entry)| Arc::clone(&entry.record)).collect();
    let ended = |id| play.owners.get(&id).is_some_and(|owner: &FakeOwner| owner.ended);
    let saved = |id| SavedAllocState {
        client_status: if ended(id) { ClientStatus::Complete } else { ClientStatus::Running },
        finished: ended(id),
        ..SavedAllocState::default()
    };
    let allocs = play.records.values().flatten();
    let allocs = allocs.map(|alloc| (Arc::clone(alloc), Some(saved(alloc.id)))).collect();
    RestoredNode { jobs, allocs, own: true, ..RestoredNode::default() }
}

#[test]
fn what_an_earlier_agent_left_gets_its_owners_and_what_is_missing_is_placed() {
    let mut before = Play::new();
    before.register(&job("web", 3));
    let ids = before.live();
    before.end(ids[0]);
    let stopped = ids[1];
    let (job_id, reason) = (JobId::new("web").unwrap(), "gone".to_owned());
    let asked = JobAction::StopAlloc { alloc: stopped, reason };
    // Its place is filled by another one, which the crash takes away.
    before.ask(ControlRequest::Change { job: job_id, asked, skip_shutdown_delay: false });
    let mut found = left(&before);
    found.allocs.retain(|(alloc, _)| ids.contains(&alloc.id));

    let mut play = Play::another();
    let restore = play.ask(ControlRequest::Restore(Box::new(found)));
    assert!(matches!(play.answers.get(&restore), Some(ControlAnswer::Written(Ok(())))));
    assert_eq!(play.owners.len(), 4, "three of before and one new");
    let new = play.owners.values().find(|owner| !ids.contains(&owner.newest.id)).unwrap();
    assert_eq!(new.newest.previous, Some(stopped));
}

#[test]
fn a_place_whose_run_lives_unowned_is_filled_when_that_has_ended() {
    let mut before = Play::new();
    before.register(&job("web", 2));
    let mut found = left(&before);
    let (lost, _) = found.allocs.pop().unwrap();
    let problem = crate::admission::Problem::HeldBack {
        run: "supervisor 7".into(),
        reason: "the state file does not know it".into(),
        end_with: "ostler state end-run 7".into(),
    };
    let (job_id, group, index) = (lost.job.id.clone(), lost.group.clone(), lost.index);
    let place = Some(HeldPlace { alloc: lost.id, job: job_id, group, index });
    let holds =
        UnownedRuns::new(vec![UnownedRun { name: "7".into(), place, problem }], BTreeSet::new());
    let mut play = Play::new();
    play.machine = Machine::new(NodeTables::new(0, Timestamp::default(), holds));
    play.ask(ControlRequest::Restore(Box::new(found)));
    play.ask(ControlRequest::Ready(None));
    assert_eq!((play.owners.len(), play.blocked("web")), (1, 1));
    play.pass(60 * SECOND);
    assert_eq!(play.owners.len(), 1);
    play.feed(ControlEvent::RunEnded { name: "7".into() });
    play.pass(Duration::ZERO);
    assert_eq!((play.owners.len(), play.blocked("web")), (2, 0));
}

#[test]
fn an_allocation_with_a_run_that_lives_unowned_gets_its_owner_when_that_has_ended() {
    let mut before = Play::new();
    before.register(&job("web", 1));
    let found = left(&before);
    let alloc = found.allocs[0].0.clone();
    let mut play = holding_back(&alloc);
    play.ask(ControlRequest::Restore(Box::new(found)));
    assert!(play.owners.is_empty() && play.blocked("web") == 1);
    play.feed(ControlEvent::RunEnded { name: "9".into() });
    play.pass(Duration::ZERO);
    assert_eq!(play.owners.keys().copied().collect::<Vec<_>>(), [alloc.id]);
    assert_eq!(play.blocked("web"), 0);
}

#[test]
fn places_that_wait_are_not_looked_at_without_end_while_a_restore_is_being_written() {
    let mut before = Play::new();
    before.register(&job("web", 12));
    let found = left(&before);
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    play.ask(ControlRequest::Restore(Box::new(found)));
    // Jobs are changed by nobody meanwhile, and what waits is looked at now and then.
    play.feed(ControlEvent::NodeChanged);
    play.pass(60 * SECOND);
    let looks = play.writes;
    play.disk = Disk::Works;
    play.disk_answers();
    play.pass(Duration::ZERO);
    assert!(looks < 10, "{looks}");
    assert_eq!(play.blocked("web"), 2);
}

#[test]
fn a_drain_waits_for_what_is_stopping_already() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.stop("web", false);
    let drain = play.ask(ControlRequest::Drain(5 * SECOND));
    assert!(!play.is_answered(drain), "its tasks still run");
    play.pass(6 * SECOND);
    assert!(play.killed > 0);
    play.end_stopped();
    assert!(play.is_answered(drain));
}

#[test]
fn a_drain_waits_for_what_has_failed_and_is_not_over() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let id = play.live()[0];
    play.report(id, ClientStatus::Failed, false);
    let drain = play.ask(ControlRequest::Drain(5 * SECOND));
    assert!(!play.is_answered(drain), "its tasks still run");
}

#[test]
fn a_drain_stops_what_an_update_under_way_replaces() {
    let mut play = Play::new();
    let web = job("web", 1);
    play.register(&web);
    let old = play.live()[0];
    play.disk = Disk::Hangs;
    play.register(&changed(&web, "b"));
    let drain = play.ask(ControlRequest::Drain(60 * SECOND));
    assert_eq!(play.owners[&old].newest.desired, DesiredStatus::Stop, "told");
    let new: Vec<_> = play.owners.keys().copied().filter(|id| *id != old).collect();
    play.end(new[0]);
    assert!(!play.is_answered(drain));
    play.end(old);
    assert!(play.is_answered(drain));
}

#[test]
fn what_a_drain_stopped_is_not_said_to_run_when_an_update_is_taken_back() {
    let mut play = Play::new();
    let web = job("web", 1);
    play.register(&web);
    let old = play.live()[0];
    play.disk = Disk::Hangs;
    play.register(&changed(&web, "b"));
    play.ask(ControlRequest::Drain(60 * SECOND));
    play.disk = Disk::Fails;
    play.disk_answers();
    let entry = play.machine.tables().alloc(old).unwrap();
    assert_eq!(entry.allocation.desired, DesiredStatus::Stop);
}

#[test]
fn a_drain_is_newer_than_an_update_under_way() {
    let mut play = Play::new();
    let web = job("web", 1);
    play.register(&web);
    play.disk = Disk::Hangs;
    let mut other = web;
    other.groups[0].count = 2;
    play.register(&other);
    play.ask(ControlRequest::Drain(60 * SECOND));
    play.disk_answers();
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
}

#[test]
fn a_drain_does_not_wait_for_what_a_change_that_failed_has_placed() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    play.register(&job("web", 1));
    let drain = play.ask(ControlRequest::Drain(60 * SECOND));
    assert!(!play.is_answered(drain));
    play.disk = Disk::Fails;
    play.disk_answers();
    assert!(play.owners.is_empty() && play.is_answered(drain));
}

#[test]
fn a_drain_does_not_wait_for_a_run_that_nobody_owns() {
    let mut before = Play::new();
    before.register(&job("web", 1));
    let found = left(&before);
    let alloc = found.allocs[0].0.clone();
    let mut play = holding_back(&alloc);
    play.ask(ControlRequest::Restore(Box::new(found)));
    let drain = play.ask(ControlRequest::Drain(60 * SECOND));
    assert!(play.is_answered(drain));
}

#[test]
fn what_runs_goes_on_where_an_agent_was_killed_before_an_update_was_taken_back_whole() {
    let mut before = Play::new();
    before.slow_removals = true;
    let web = job("web", 2);
    before.register(&web);
    let ids = before.live();
    ids.iter().for_each(|id| before.report(*id, ClientStatus::Running, false));
    let known = left(&before);
    // The disk has what was placed, and the job and its allocations as they were.
    before.register(&changed(&web, "b"));
    let placed = left(&before).allocs.into_iter().filter(|(alloc, _)| !ids.contains(&alloc.id));
    let mut found = known;
    found.allocs.extend(placed);
    assert_eq!(found.allocs.len(), 4);

    let mut play = Play::new();
    play.ask(ControlRequest::Restore(Box::new(found)));
    assert_eq!(play.live(), ids, "nothing is restarted, and what was placed for the update ends");
    play.end_stopped();
    play.pass(60 * SECOND);
    assert_eq!((play.live(), play.owners.len()), (ids, 4));
}

#[test]
fn an_allocation_whose_device_another_one_has_by_the_records_is_stopped() {
    let mut before = Play::new();
    before.register(&job("web", 2));
    let mut found = left(&before);
    let group = GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "a".into() };
    for (alloc, _) in &mut found.allocs {
        let task = alloc.job.groups[0].tasks[0].name.clone();
        let devices = vec![AllocatedDevice { group: group.clone(), ids: vec!["0".into()] }];
        Arc::make_mut(alloc).devices.insert(task, devices);
    }
    let (first, second) = (found.allocs[0].0.id, found.allocs[1].0.id);

    let mut play = Play::another();
    play.ask(ControlRequest::Restore(Box::new(found)));
    let desired = |id| play.machine.tables.alloc(id).unwrap().allocation.desired;
    assert_eq!((desired(first), desired(second)), (DesiredStatus::Run, DesiredStatus::Stop));
}
