//! A job of thousands of places: each step looks at each of them a few times at most, or these tests
//! would take minutes.

use super::*;

const PLACES: u32 = 10_000;

fn roomy(allocations: u32) -> Play {
    let mut play = Play::new();
    let (cpu_mhz, memory_mb) = (u64::from(allocations) * 100, u64::from(allocations) * 100);
    play.view.resources = NodeTotals { cpu_mhz, memory_mb };
    play
}

fn placed(play: &mut Play, job: &Job) -> Vec<AllocId> {
    let request = play.register(job);
    play.changed(request).unwrap().placed.iter().map(|alloc| alloc.id).collect()
}

#[test]
fn ten_thousand_places_are_filled_in_one_change_stopped_and_collected() {
    let mut play = roomy(PLACES);
    let job = job("many", PLACES);
    let all = placed(&mut play, &job);
    assert_eq!((all.len(), play.blocked("many")), (PLACES as usize, 0));
    all.iter().for_each(|id| play.report(*id, ClientStatus::Running, false));
    assert_eq!(play.status("many"), Some(JobStatus::Running));
    let request = play.stop("many", false);
    play.changed(request).unwrap();
    play.end_stopped();
    assert_eq!(play.status("many"), Some(JobStatus::Dead));
    let request = play.ask(ControlRequest::Collect(None));
    let Some(ControlAnswer::Collected(Ok(collected))) = play.answers.remove(&request) else {
        panic!("not collected")
    };
    assert_eq!(collected.allocs.len(), PLACES as usize);
    assert!(play.machine.tables().ids().is_empty());
}

#[test]
fn places_beyond_the_room_wait_and_are_filled_when_some_end_by_few_looks() {
    let mut play = roomy(PLACES / 2);
    let first = placed(&mut play, &job("many", PLACES));
    assert_eq!((first.len(), play.blocked("many")), (5_000, 5_000));
    let writes = play.writes;
    for id in &first[..200] {
        play.end(*id);
        play.pass(Duration::from_micros(100));
    }
    play.pass(SECOND);
    assert_eq!(play.blocked("many"), 4_800);
    let looks = play.writes - writes;
    assert!(looks <= 3, "{looks} changes for what 200 ends within 20 ms made free");
}

#[test]
fn what_becomes_free_goes_to_the_job_of_the_highest_priority_and_of_those_to_the_first() {
    let mut play = roomy(1);
    let first = placed(&mut play, &job("first", 1));
    let of = |name: &str, priority| Job { priority, ..job(name, 1) };
    for (name, priority) in [("z", 50), ("a", 50), ("low", 1), ("high", 80)] {
        assert_eq!(placed(&mut play, &of(name, priority)), [], "{name}");
    }
    let mut last = first[0];
    for next in ["high", "z", "a", "low"] {
        play.end(last);
        play.pass(10 * SECOND);
        assert_eq!(play.blocked(next), 0, "{next} has the room");
        last = play.live().into_iter().find(|id| *id != last).unwrap();
    }
}

#[test]
fn an_update_of_ten_thousand_replaces_each_when_the_one_before_has_ended() {
    let mut play = roomy(PLACES);
    let job = job("many", PLACES);
    placed(&mut play, &job);
    let request = play.register(&changed(&job, "new"));
    assert_eq!(play.changed(request).unwrap().copies.len(), PLACES as usize);
    play.end_stopped();
    play.pass(10 * SECOND);
    assert_eq!((play.live().len(), play.blocked("many")), (PLACES as usize, 0));
}
