//! Changes: in turn, as a whole, and told to owners.

use super::*;

#[test]
fn a_registration_is_answered_when_it_is_durable_and_its_owners_are_made_before() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    let request = play.register(&job("web", 3));
    assert_eq!(play.owners.len(), 3, "a task's intent takes the records along");
    assert!(!play.is_answered(request));
    play.disk_answers();
    assert_eq!(play.changed(request).unwrap().placed.len(), 3);
    assert!(play.machine.is_quiet());
}

#[test]
fn a_stop_that_comes_while_a_registration_is_being_written_is_not_lost() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    let first = play.register(&job("web", 50));
    let stop = play.stop("web", false);
    assert!(!play.is_answered(first) && !play.is_answered(stop));
    play.disk_answers();
    play.disk_answers();
    play.changed(first).unwrap();
    play.changed(stop).unwrap();
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
}

#[test]
fn a_drain_that_comes_before_an_owner_is_made_is_told_to_it_when_it_is() {
    let mut play = Play::new();
    let world = |play: &Play| (play.uptime, play.view.clone());
    // The owner is not made yet: its effects are kept back.
    let (uptime, view) = world(&play);
    let rng = Rng::from_seed(3);
    let world = World {
        now: Timestamp::default(),
        uptime,
        node: &view,
        rng: &rng,
        port_in_use: &|_| false,
    };
    let options = RegisterOptions::default();
    let asked = JobAction::Version(Arc::new(job("web", 1)), options);
    let (job, skip_shutdown_delay) = (JobId::new("web").unwrap(), false);
    let ask = ControlRequest::Change { job, asked, skip_shutdown_delay };
    let effects = play.machine.step(&world, ControlEvent::Asked { request: 90, ask });
    let ask = ControlRequest::Drain(SECOND);
    let drained = play.machine.step(&world, ControlEvent::Asked { request: 91, ask });
    let told = |effects: &[ControlEffect]| {
        effects.iter().any(|effect| {
            matches!(effect, ControlEffect::Tell { alloc, .. } if alloc.desired == DesiredStatus::Stop)
        })
    };
    assert!(!told(&drained), "there is nobody to be told");
    let made = effects.iter().find_map(|effect| match effect {
        ControlEffect::Write { own, .. } => own.first().map(|alloc| alloc.id),
        _ => None,
    });
    let owned = ControlEvent::Owned { alloc: made.unwrap(), result: Ok(()) };
    assert!(told(&play.machine.step(&world, owned)));
}

#[test]
fn a_destructive_update_waits_for_the_allocation_whose_place_it_takes() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    let web = job("web", 1);
    play.register(&web);
    let update = play.register(&changed(&web, "b"));
    play.disk_answers();
    play.disk_answers();
    let change = play.changed(update).unwrap();
    let old: Vec<_> = change.stopped_allocs();
    assert_eq!((change.placed.len(), old.len()), (1, 1));
    assert_eq!(change.placed[0].previous, Some(old[0]));
    assert!(play.owners.contains_key(&old[0]), "whom it waits for has an owner");
}

#[test]
fn changes_of_one_job_take_turns_and_others_are_not_held_up() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    let first = play.register(&job("web", 1));
    let second = play.register(&job("web", 2));
    let other = play.register(&job("db", 1));
    assert_eq!(play.owners.len(), 2, "the second one waits, the other job does not");
    play.disk_answers();
    assert!(play.is_answered(first) && play.is_answered(other) && !play.is_answered(second));
    play.disk_answers();
    assert_eq!(play.changed(second).unwrap().placed.len(), 1);
}

#[test]
fn a_change_that_cannot_be_written_leaves_nothing_and_holds_up_no_other_job() {
    let mut play = Play::new();
    play.slow_removals = true;
    play.disk = Disk::Fails;
    let failed = play.register(&job("web", 2));
    assert_eq!(play.removing.len(), 2, "what was placed is removed");
    assert!(!play.is_answered(failed));
    play.disk = Disk::Works;
    let other = play.register(&job("db", 1));
    play.changed(other).unwrap();
    for alloc in play.removing.clone() {
        play.removal(alloc, Ok(()));
    }
    assert!(matches!(play.changed(failed), Err(SubmitError::State(_))));
    assert_eq!((play.machine.tables().count(), play.status("web")), (1, None));
    assert_eq!(play.machine.tables().admission().allocs().len(), 1, "its room is free");
}

#[test]
fn an_update_that_cannot_be_written_leaves_the_version_before() {
    let mut play = Play::new();
    let web = job("web", 2);
    play.register(&web);
    let before = play.machine.tables().job(&web.id).unwrap().record.clone();
    play.disk = Disk::Fails;
    let request = play.register(&job("web", 3));
    assert!(play.changed(request).is_err());
    let after = &play.machine.tables().job(&web.id).unwrap().record;
    assert_eq!((**after).clone(), (*before).clone());
    assert_eq!(play.live().len(), 2);
    assert!(play.owners.values().all(|owner| owner.told == 0), "nobody heard of it");
}

#[test]
fn an_owner_that_cannot_be_made_fails_the_whole_change() {
    let mut play = Play::new();
    // Ids come from the generator: the next one is known by trying.
    let mut trial = Play::new();
    trial.register(&job("web", 2));
    play.no_owner.extend(trial.owners.keys().take(1));
    let request = play.register(&job("web", 2));
    assert!(matches!(play.changed(request), Err(SubmitError::Runner(_))));
    assert_eq!((play.machine.tables().count(), play.owners.len()), (0, 0));
}

#[test]
fn a_stop_is_told_before_it_is_durable_and_a_purge_is_seen_when_it_is() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.disk = Disk::Hangs;
    let purge = play.stop("web", true);
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
    assert!(play.status("web").is_some() && !play.is_answered(purge));
    play.disk_answers();
    assert_eq!(play.status("web"), None);
    play.disk_answers();
    play.changed(purge).unwrap();
}

#[test]
fn a_stop_that_the_disk_refuses_is_acknowledged_with_a_warning_and_written_until_it_is_durable() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.disk = Disk::Fails;
    let stop = play.stop("web", false);
    let change = play.changed(stop).unwrap();
    assert!(change.unwritten.unwrap().contains("is not on record"));
    let on_record = |play: &Play| {
        play.records.values().flatten().all(|alloc| alloc.desired == DesiredStatus::Stop)
    };
    assert!(!on_record(&play));
    play.pass(15 * SECOND);
    assert!(!on_record(&play));
    play.disk = Disk::Works;
    play.pass(15 * SECOND);
    assert!(on_record(&play));
    play.end_stopped();
    let writes = play.writes;
    play.pass(600 * SECOND);
    assert_eq!(play.writes, writes, "once");
}

#[test]
fn a_stop_is_acknowledged_although_the_disk_does_not_answer() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.disk = Disk::Hangs;
    let stop = play.stop("web", false);
    play.pass(29 * SECOND);
    assert!(!play.is_answered(stop));
    play.pass(2 * SECOND);
    let change = play.changed(stop).unwrap();
    assert!(change.unwritten.unwrap().contains("did not answer"));
    play.disk_answers();
    assert!(play.machine.is_quiet());
}

#[test]
fn what_does_not_fit_waits_and_is_placed_when_something_ends() {
    let mut play = Play::new();
    play.register(&job("web", 10));
    let request = play.register(&job("db", 2));
    assert_eq!(play.changed(request).unwrap().blocked.len(), 2);
    assert_eq!((play.blocked("db"), play.status("db")), (2, Some(JobStatus::Pending)));
    play.stop("web", false);
    play.end_stopped();
    play.pass(Duration::ZERO);
    assert_eq!((play.blocked("db"), play.status("db")), (0, Some(JobStatus::Running)));
}

#[test]
fn what_is_to_be_run_whole_is_refused_where_a_part_does_not_fit() {
    let mut play = Play::new();
    let run = |count| {
        let options = RegisterOptions {
            origin: JobOrigin::Run,
            all_or_nothing: true,
            ..RegisterOptions::default()
        };
        JobAction::Version(Arc::new(job("once", count)), options)
    };
    let request = play.change("once", run(11));
    assert!(matches!(play.changed(request), Err(SubmitError::Refused(_))));
    assert_eq!((play.machine.tables().count(), play.status("once")), (0, None));
    let request = play.change("once", run(2));
    play.changed(request).unwrap();
    assert!(!play.records.contains_key("job once"), "it ends with its agent");
    let again = play.change("once", run(2));
    assert!(matches!(play.changed(again), Err(SubmitError::Origin { .. })), "it runs");
    play.live().into_iter().for_each(|alloc| play.end(alloc));
    let again = play.change("once", run(2));
    assert_eq!(play.changed(again).unwrap().placed.len(), 2, "another one of its name");
}

#[test]
fn more_changes_than_the_node_keeps_are_refused() {
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    play.register(&job("web", 1));
    let most = ostler_model::limits::CHANGES_WAITING_MAX;
    for n in 0..most {
        play.register(&job("web", u32::try_from(n % 5).unwrap() + 1));
    }
    let request = play.register(&job("web", 1));
    assert!(matches!(play.changed(request), Err(SubmitError::Busy)));
    let request = play.register(&job("db", 1));
    assert!(matches!(play.changed(request), Err(SubmitError::Busy)));
    let stop = play.stop("web", false);
    assert!(play.owners.values().all(|o| o.newest.desired == DesiredStatus::Stop));
    assert!(!play.is_answered(stop), "it has a place all the same");
    for _ in 0..most {
        play.stop("web", false);
    }
    let stop = play.stop("web", false);
    assert!(matches!(play.changed(stop), Err(SubmitError::Busy)), "those are counted too");
}

#[test]
fn a_second_stop_is_not_acknowledged_as_durable_while_the_first_one_is_not() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    play.disk = Disk::Fails;
    let first = play.stop("web", false);
    assert!(play.changed(first).unwrap().unwritten.is_some());
    let second = play.stop("web", false);
    assert!(play.changed(second).unwrap().unwritten.is_some(), "it changes nothing");
    play.disk = Disk::Works;
    play.pass(15 * SECOND);
    let third = play.stop("web", false);
    assert_eq!(play.changed(third).unwrap().unwritten, None);
}

#[test]
fn places_that_waited_wait_again_when_an_update_is_taken_back() {
    let mut play = Play::new();
    play.register(&job("web", 12));
    assert_eq!(play.blocked("web"), 2);
    play.disk = Disk::Fails;
    let update = play.register(&job("web", 1));
    assert!(play.changed(update).is_err());
    play.disk = Disk::Works;
    play.pass(10 * SECOND);
    assert_eq!((play.blocked("web"), play.live().len()), (2, 10));
}

#[test]
fn what_is_left_to_do_for_a_job_is_done_when_the_disk_takes_it_again() {
    let mut before = Play::new();
    before.register(&job("web", 2));
    let jobs = before.machine.tables().jobs().map(|(_, entry)| Arc::clone(&entry.record));
    let found = RestoredNode { jobs: jobs.collect(), own: true, ..RestoredNode::default() };
    let mut play = Play::new();
    play.disk = Disk::Hangs;
    play.ask(ControlRequest::Restore(Box::new(found)));
    play.disk_answers();
    play.disk = Disk::Fails;
    play.disk_answers();
    assert_eq!(play.live().len(), 0, "they could not be placed");
    play.disk = Disk::Works;
    play.pass(60 * SECOND);
    assert_eq!(play.live().len(), 2);
}

#[test]
fn what_is_said_to_be_as_before_is_written_again_where_a_change_was_taken_back() {
    let mut play = Play::new();
    let web = job("web", 1);
    play.register(&web);
    play.disk = Disk::Fails;
    let update = play.register(&job("web", 2));
    assert!(play.changed(update).is_err());
    // The disk may have the update all the same.
    play.disk = Disk::Hangs;
    let same = play.register(&web);
    assert!(!play.is_answered(same));
    play.disk_answers();
    assert!(play.changed(same).is_ok());
    let again = play.register(&web);
    assert!(play.changed(again).is_ok(), "at once");
}

#[test]
fn a_stop_of_a_job_that_is_stopped_is_written_again_where_a_change_was_taken_back() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let stop = play.stop("web", false);
    assert!(play.changed(stop).is_ok());
    play.disk = Disk::Fails;
    let update = play.register(&job("web", 0));
    assert!(play.changed(update).is_err());
    // The disk may have the update all the same.
    play.disk = Disk::Hangs;
    let again = play.stop("web", false);
    assert!(!play.is_answered(again));
    play.disk_answers();
    assert!(play.changed(again).is_ok_and(|stopped| stopped.unwritten.is_none()));
}

#[test]
fn a_removal_that_hangs_does_not_keep_the_turn_of_a_change_that_is_taken_back() {
    let mut play = Play::new();
    play.slow_removals = true;
    play.disk = Disk::Fails;
    let failed = play.register(&job("web", 1));
    let id = *play.removing.first().unwrap();
    play.disk = Disk::Works;
    // Its tasks have ended; its directory cannot be removed.
    play.end(id);
    assert!(play.changed(failed).is_err());
    let again = play.register(&job("web", 1));
    assert_eq!(play.changed(again).unwrap().placed.len(), 1);
    play.removal(id, Ok(()));
    assert_eq!(play.machine.tables().count(), 1);
}
