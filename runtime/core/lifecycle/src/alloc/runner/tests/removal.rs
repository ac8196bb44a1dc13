//! Removal: whatever the owner is doing, and for good.

use super::*;
use ostler_model::alloc::ClientStatus;
use ostler_state::records::AllocStateKey;
use ostler_state::{KeyPrefix, PutOutcome};
use ostler_testing::fake_driver::{Ending, Script};

fn records(bench: &Bench, handle: &AllocHandle) -> usize {
    bench.store.scan(&KeyPrefix::Alloc(handle.id())).unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_never_ran_can_be_removed() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    assert_eq!(handle.destroy().await, AllocPhase::Destroyed);
    assert!(!bench.node.calls().contains(&"start web".to_owned()));
    assert_eq!(records(&bench, &handle), 0);
}

#[tokio::test(start_paused = true)]
async fn one_restored_as_finished_can_be_removed() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.stop("enough").await;
    handle.wait_done().await;
    let dir = handle.dir();
    handle.shutdown().await;
    let again = super::restoring::restored(&bench, &handle);
    assert_eq!(*again.phase().borrow(), AllocPhase::Done);
    assert_eq!(again.destroy().await, AllocPhase::Destroyed);
    assert!(!dir.exists() && again.dir_is_removed());
    assert_eq!(records(&bench, &again), 0);
}

#[tokio::test(start_paused = true)]
async fn removing_twice_at_once_is_removing_once() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    let ends = tokio::join!(handle.destroy(), handle.destroy(), handle.stop("too"));
    assert_eq!((ends.0, ends.1), (AllocPhase::Destroyed, AllocPhase::Destroyed));
    assert_eq!(handle.destroy().await, AllocPhase::Destroyed);
    assert_eq!(bench.node.calls().iter().filter(|c| *c == "stop web").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removal_while_the_agent_leaves_ends_and_leaves_the_task_alone() {
    let bench = Bench::new();
    bench.node.script("web", [Script { on_stop: Ending::Ignored, ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    let (_, phase) = tokio::join!(handle.shutdown(), handle.destroy());
    assert_eq!(phase, AllocPhase::Left);
    assert_eq!(bench.node.live(), 1);
    assert!(records(&bench, &handle) > 0, "what runs on stays on record");
}

#[tokio::test(start_paused = true)]
async fn no_record_comes_back_after_a_removal_whenever_it_comes() {
    for pause in [0, 1, 5, 40, 1_000, 2_500, 4_000] {
        let bench = Bench::new();
        bench.node.script("web", [Script::ends(2 * SECOND, 1)]);
        let web = Task { restart: fixtures::restart(9, SECOND), ..task("web") };
        let handle = bench.run(vec![web]);
        clock::sleep(Duration::from_millis(pause)).await;
        assert_eq!(handle.destroy().await, AllocPhase::Destroyed);
        assert_eq!(records(&bench, &handle), 0, "{pause} ms");
        // Whoever still holds a state to write.
        let late = SavedAllocState { client_status: ClientStatus::Running, ..Default::default() };
        let put = bench.store.put(&AllocStateKey::of(handle.id()), &late).await.unwrap();
        assert_eq!(put, PutOutcome::Destroyed);
        bench.store.flush().await.unwrap();
        assert_eq!(records(&bench, &handle), 0, "{pause} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn the_total_time_of_a_stop_is_bounded_by_what_its_stages_may_take() {
    let bench = Bench::new();
    let deaf = Script {
        on_stop: Ending::Ignored,
        on_kill: Ending::Ignored,
        host_kill_works: false,
        ..Script::runs()
    };
    let side =
        |name| fixtures::lifecycle(task(name), ostler_model::job::LifecycleHook::Prestart, true);
    for name in ["lead", "main", "side"] {
        bench.node.script(name, [deaf.clone()]);
    }
    let tasks = vec![Task { leader: true, ..task("lead") }, task("main"), side("side")];
    let handle = bench.run(tasks);
    for name in ["lead", "main", "side"] {
        until_running(&handle, name).await;
    }
    let stopwatch = FakeNode::new();
    handle.stop("enough").await;
    // What does not end keeps no later stage from being ended: three of kill_timeout and twice
    // KILL_GRACE.
    let undead = |t: &CowArc<TaskState>| crate::task::events::is_undead(t);
    until(&handle, |s| s.tasks.values().all(undead)).await;
    assert_eq!(stopwatch.age().as_secs(), 3 * (5 + 10 + 10));
    clock::sleep(600 * SECOND).await;
    assert!(!handle.phase().borrow().has_ended(), "it is not over");
    assert_eq!(handle.state().borrow().client_status, ClientStatus::Running);
    bench.node.let_die();
    handle.wait_done().await;
    assert!(stopwatch.age() < 700 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn what_it_showed_stays_when_it_is_removed() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    bench.node.script("last", [Script::ends(SECOND, 3)]);
    let last = fixtures::lifecycle(task("last"), ostler_model::job::LifecycleHook::Poststop, false);
    let handle = bench.run(vec![task("web"), last]);
    let state = handle.wait_done().await;
    handle.destroy().await;
    assert_eq!(*handle.state().borrow(), state);
    assert_eq!(state.tasks["last"].last_exit.as_ref().unwrap().exit_code, 3);
}
