//! The allocation before: waited for, and what it left taken over.

use super::*;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::ids::AllocId;
use ostler_model::job::EphemeralDisk;
use ostler_state::records::AllocKey;
use ostler_testing::fake_driver::{Ending, Script};

fn successor(bench: &Bench, of: &AllocHandle, disk: EphemeralDisk) -> AllocStart {
    let mut next = of.allocation().as_ref().clone();
    next.id = AllocId::new(Rng::from_seed(8).uuid());
    next.previous = Some(of.id());
    let mut job = next.job.as_ref().clone();
    job.groups[0].ephemeral_disk = disk;
    next.job = Arc::new(job);
    bench.start_after(vec![PreviousAlloc::from_handle(of)], next)
}

/// Another allocation of the same kind.
fn nth(mut start: AllocStart, seed: u64) -> AllocStart {
    let mut allocation = start.allocation.as_ref().clone();
    allocation.id = AllocId::new(Rng::from_seed(seed).uuid());
    allocation.desired = DesiredStatus::Run;
    start.allocation = Arc::new(allocation);
    start
}

fn sticky() -> EphemeralDisk {
    EphemeralDisk { sticky: true, ..EphemeralDisk::default() }
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_until_the_previous_allocation_runs_nothing_and_people_see_why() {
    let bench = Bench::new();
    let slow = Script { on_stop: Ending::After(4 * SECOND, 0), ..Script::runs() };
    bench.node.script("web", [slow, Script::runs()]);
    let first = bench.run(vec![task("web")]);
    until_running(&first, "web").await;
    let second = AllocRunner::spawn(successor(&bench, &first, EphemeralDisk::default())).unwrap();
    let text = format!("waiting for previous allocation {}", first.id());
    let state = until(&second, |s| s.client_description == text).await;
    assert_eq!(state.client_status, ClientStatus::Pending);
    until(&second, |s| s.tasks["web"].events.iter().any(|e| e.message == text)).await;
    clock::sleep(600 * SECOND).await;
    assert_eq!(
        bench.node.calls().iter().filter(|c| *c == "start web").count(),
        1,
        "no hook's bound counts"
    );
    first.stop("replaced").await;
    until_running(&second, "web").await;
    assert!(first.phase().borrow().has_ended());
    assert!(bench.node.started_twice().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_ended_before_anybody_looked_is_not_waited_for() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    // Its owner is gone altogether.
    let config = successor(&bench, &first, EphemeralDisk::default());
    first.shutdown().await;
    drop(first);
    let second = AllocRunner::spawn(config).unwrap();
    let state = until(&second, |s| s.tasks["web"].status == TaskStatus::Running).await;
    assert!(!events(&state, "web").contains(&"Task hook message"));
}

/// The first runs and takes four seconds to stop; the second waits for it.
async fn two() -> (Bench, AllocHandle, AllocHandle) {
    let bench = Bench::new();
    let slow = Script { on_stop: Ending::After(4 * SECOND, 0), ..Script::runs() };
    bench.node.script("web", [slow, Script::runs()]);
    let first = bench.run(vec![task("web")]);
    until_running(&first, "web").await;
    let second = AllocRunner::spawn(successor(&bench, &first, EphemeralDisk::default())).unwrap();
    until(&second, |s| s.client_description.starts_with("waiting for")).await;
    (bench, first, second)
}

/// Told to stop by a newer copy, as the node does.
async fn replace(alloc: &AllocHandle) {
    let old = alloc.allocation();
    let copy = Allocation {
        desired: DesiredStatus::Stop,
        desired_description: "replaced".to_owned(),
        modify_index: old.modify_index + 1,
        ..old.as_ref().clone()
    };
    alloc.stop_as(Arc::new(copy), false).await;
}

fn starts(bench: &Bench) -> usize {
    bench.node.calls().iter().filter(|c| *c == "start web").count()
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stopped_while_it_waits_is_over_with_the_one_it_waits_for() {
    let (bench, first, second) = two().await;
    replace(&first).await;
    second.stop("not needed").await;
    // Its own tasks are at their end at once, and nobody is kept from seeing it.
    until(&second, |s| s.client_status == ClientStatus::Complete).await;
    clock::sleep(2 * SECOND).await;
    assert_eq!(*second.phase().borrow(), AllocPhase::Cleaning, "its place is not free");
    second.wait_done().await;
    assert!(first.phase().borrow().has_ended());
    assert_eq!((starts(&bench), bench.node.live()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stopped_does_not_wait_for_one_that_is_to_run_on() {
    // The change that replaced the first was taken back.
    let (bench, first, second) = two().await;
    second.stop("not needed").await;
    let done = clock::timeout(SECOND, second.wait_done()).await;
    assert_eq!(done.map(|state| state.client_status), Some(ClientStatus::Complete));
    // Another change replaces it after all: whoever has the place next waits for both.
    let before = [&second, &first].map(PreviousAlloc::from_handle).to_vec();
    let config = nth(successor(&bench, &second, EphemeralDisk::default()), 9);
    replace(&first).await;
    let context = AllocContext { previous: before, ..AllocContext::default() };
    let third = AllocRunner::spawn(AllocStart { context, ..config }).unwrap();
    until_running(&third, "web").await;
    assert!(first.phase().borrow().has_ended());
    assert_eq!((starts(&bench), bench.node.live()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn one_that_an_earlier_agent_left_stopped_does_not_wait_for_one_that_is_to_run_on() {
    let (bench, first, second) = two().await;
    second.shutdown().await;
    let known = super::restoring::stored(&bench, &second);
    let desired = DesiredStatus::Stop;
    let allocation = Allocation { desired, ..second.allocation().as_ref().clone() };
    let previous = vec![PreviousAlloc::from_handle(&first)];
    let again = AllocRunner::restore(bench.start_after(previous, allocation), known).unwrap();
    assert!(clock::timeout(SECOND, again.wait_done()).await.is_some());
    assert_eq!((starts(&bench), bench.node.live()), (1, 1), "the first runs on");
}

#[tokio::test(start_paused = true)]
async fn the_third_of_a_place_starts_when_the_first_is_over_though_the_second_never_started() {
    let (bench, first, second) = two().await;
    replace(&first).await;
    replace(&second).await;
    let third =
        AllocRunner::spawn(nth(successor(&bench, &second, EphemeralDisk::default()), 9)).unwrap();
    until_running(&third, "web").await;
    assert!(first.phase().borrow().has_ended() && second.phase().borrow().has_ended());
    assert_eq!((starts(&bench), bench.node.live()), (2, 1));
    assert!(bench.when("exited web") >= 4.0, "{:?}", bench.node.journal());
}

#[tokio::test(start_paused = true)]
async fn one_that_an_earlier_agent_left_stopped_and_waiting_waits_on() {
    let (bench, first, second) = two().await;
    replace(&first).await;
    replace(&second).await;
    until(&second, |s| s.client_status == ClientStatus::Complete).await;
    second.shutdown().await;
    assert_eq!(*second.phase().borrow(), AllocPhase::Left, "not over, and the agent can leave");
    let known = super::restoring::stored(&bench, &second);
    assert!(!known.saved.clone().unwrap_or_default().finished);
    let desired = DesiredStatus::Stop;
    let allocation = Allocation { desired, ..second.allocation().as_ref().clone() };
    let previous = vec![PreviousAlloc::from_handle(&first)];
    let again = AllocRunner::restore(bench.start_after(previous, allocation), known).unwrap();
    let third =
        AllocRunner::spawn(nth(successor(&bench, &again, EphemeralDisk::default()), 9)).unwrap();
    clock::sleep(2 * SECOND).await;
    assert_eq!(starts(&bench), 1);
    until_running(&third, "web").await;
    assert!(first.phase().borrow().has_ended() && again.phase().borrow().has_ended());
    assert_eq!((starts(&bench), bench.node.live()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_removed_while_it_waits_is_gone_at_once() {
    let (bench, first, second) = two().await;
    assert_eq!(second.destroy().await, AllocPhase::Destroyed);
    assert!(!second.dir().exists());
    assert_eq!((starts(&bench), bench.node.live()), (1, 1));
    // As well when it was stopped before, and waits to be over.
    replace(&first).await;
    let config = nth(successor(&bench, &first, EphemeralDisk::default()), 9);
    let third = AllocRunner::spawn(config).unwrap();
    third.stop("not needed").await;
    until(&third, |s| s.client_status == ClientStatus::Complete).await;
    let mut phase = third.phase();
    phase.wait_for(|phase| *phase == AllocPhase::Cleaning).await.unwrap();
    assert_eq!(third.destroy().await, AllocPhase::Destroyed);
}

#[tokio::test(start_paused = true)]
async fn one_whose_agent_leaves_is_waited_for_since_its_tasks_run_on() {
    let bench = Bench::new();
    let first = bench.run(vec![task("web")]);
    until_running(&first, "web").await;
    let second = AllocRunner::spawn(successor(&bench, &first, EphemeralDisk::default())).unwrap();
    clock::sleep(SECOND).await;
    first.shutdown().await;
    clock::sleep(60 * SECOND).await;
    assert_eq!(second.state().borrow().client_status, ClientStatus::Pending);
    second.shutdown().await;
    assert_eq!(*second.phase().borrow(), AllocPhase::Left);
}

/// A first allocation that left `alloc/data/kept`, and its successor's end.
async fn moved(disk: EphemeralDisk) -> (Bench, AllocHandle, AllocHandle) {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    std::fs::write(first.dir().join("alloc/data/kept"), "data").unwrap();
    std::fs::write(first.dir().join("web/local/mine"), "data").unwrap();
    let second = AllocRunner::spawn(successor(&bench, &first, disk)).unwrap();
    until_running(&second, "web").await;
    (bench, first, second)
}

#[tokio::test(start_paused = true)]
async fn a_sticky_disk_is_taken_over_and_the_logs_stay_where_they_were() {
    for disk in [sticky(), EphemeralDisk { migrate: true, ..EphemeralDisk::default() }] {
        let (_bench, first, second) = moved(disk).await;
        assert!(second.dir().join("alloc/data/kept").exists());
        assert!(second.dir().join("web/local/mine").exists());
        assert!(!first.dir().join("alloc/data/kept").exists());
        assert!(first.dir().join("alloc/logs").is_dir());
        let state = second.state().borrow().clone();
        let said =
            state.tasks["web"].events.iter().any(|e| e.message.starts_with("took over from"));
        assert!(said, "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_disk_is_not_taken_over() {
    let (_bench, first, second) = moved(EphemeralDisk::default()).await;
    assert!(!second.dir().join("alloc/data/kept").exists());
    assert!(first.dir().join("alloc/data/kept").exists());
}

#[tokio::test(start_paused = true)]
async fn data_that_cannot_be_taken_over_is_said_and_the_allocation_runs_without() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    // A link in the place of the data.
    std::fs::remove_dir(first.dir().join("alloc/data")).unwrap();
    std::os::unix::fs::symlink("/etc", first.dir().join("alloc/data")).unwrap();
    let second = AllocRunner::spawn(successor(&bench, &first, sticky())).unwrap();
    let state = until(&second, |s| s.tasks["web"].status == TaskStatus::Running).await;
    let said = state.tasks["web"].events.iter().any(|e| e.message.contains("was not taken over"));
    assert!(said, "{state:?}");
    assert!(second.dir().join("alloc/data").is_dir());
}

/// A first one with data, a second one that ends as `second` says without ever starting, and a third one.
async fn third_of(disk: EphemeralDisk, moved: bool) -> (Bench, AllocHandle, AllocHandle) {
    let (bench, first, second) = two().await;
    std::fs::write(first.dir().join("alloc/data/kept"), "data").unwrap();
    // As the agent does before it starts an owner.
    for alloc in [&first, &second] {
        let allocation = alloc.allocation();
        let previous = (alloc.id() == second.id()).then(|| first.id());
        let allocation = Allocation { previous, ..allocation.as_ref().clone() };
        bench.store.put(&AllocKey::of(alloc.id()), &allocation).await.unwrap();
    }
    replace(&first).await;
    if moved {
        // It was about to start.
        let tasks = [name("web")];
        crate::alloc::migrate::move_data(bench.root.path(), first.id(), second.id(), &tasks)
            .unwrap();
    }
    replace(&second).await;
    let third = AllocRunner::spawn(nth(successor(&bench, &second, disk), 9)).unwrap();
    until_running(&third, "web").await;
    (bench, second, third)
}

#[tokio::test(start_paused = true)]
async fn data_is_inherited_past_one_that_never_started() {
    for moved in [false, true] {
        let (_bench, second, third) = third_of(sticky(), moved).await;
        assert!(third.dir().join("alloc/data/kept").exists(), "{moved}");
        assert!(!second.dir().join("alloc/data/kept").exists(), "{moved}");
        let state = third.state().borrow().clone();
        let said = state.tasks["web"].events.iter().any(|e| e.message.starts_with("took over"));
        assert!(said, "{state:?}");
    }
    let (_bench, _, third) = third_of(EphemeralDisk::default(), false).await;
    assert!(!third.dir().join("alloc/data/kept").exists(), "only where the group says so");
}

#[tokio::test(start_paused = true)]
async fn what_one_that_started_left_behind_is_not_looked_for_further_back() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    std::fs::write(first.dir().join("alloc/data/kept"), "data").unwrap();
    // The second does not keep data, and threw away what it might have had.
    let second = AllocRunner::spawn(successor(&bench, &first, EphemeralDisk::default())).unwrap();
    second.wait_done().await;
    for alloc in [&first, &second] {
        let key = AllocKey::of(alloc.id());
        bench.store.put(&key, alloc.allocation().as_ref()).await.unwrap();
    }
    let third = AllocRunner::spawn(nth(successor(&bench, &second, sticky()), 9)).unwrap();
    until_running(&third, "web").await;
    assert!(!third.dir().join("alloc/data/kept").exists());
}
