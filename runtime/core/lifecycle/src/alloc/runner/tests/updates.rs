//! Updates: the newest wins, a stop is one of them, rules change without a restart.

use super::*;
use crate::alloc::hooks::HookResult;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::job::{LifecycleHook, TaskGroup};
use ostler_testing::fake_driver::{Ending, Script};

/// Notes the index of each copy the update hooks see.
struct Indices(Seen<u64>);

impl AllocHook for Indices {
    fn name(&self) -> &'static str {
        "indices"
    }
    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.0.lock().unwrap().push(scope.allocation.modify_index);
        Box::pin(async {
            clock::sleep(SECOND).await;
            Ok(())
        })
    }
}

/// The newest copy, changed.
pub(super) fn changed(
    handle: &AllocHandle,
    modify_index: u64,
    change: impl FnOnce(&mut TaskGroup),
) -> Arc<Allocation> {
    let mut newer = handle.allocation().as_ref().clone();
    let mut job = newer.job.as_ref().clone();
    change(&mut job.groups[0]);
    newer.job = Arc::new(job);
    newer.modify_index = modify_index;
    Arc::new(newer)
}

fn stopped(handle: &AllocHandle, modify_index: u64) -> Arc<Allocation> {
    let mut newer = changed(handle, modify_index, |_| {}).as_ref().clone();
    newer.desired = DesiredStatus::Stop;
    newer.desired_description = "alloc not needed due to job update".to_owned();
    Arc::new(newer)
}

fn noting() -> (Bench, Seen<u64>) {
    let mut bench = Bench::new();
    let seen: Seen<u64> = Arc::default();
    bench.alloc_hooks.push(Arc::new(Indices(Arc::clone(&seen))));
    bench.node.script("web", [Script::runs()]);
    (bench, seen)
}

#[tokio::test(start_paused = true)]
async fn of_several_updates_the_newest_wins_and_old_ones_are_ignored() {
    let (bench, seen) = noting();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    for index in [2, 9, 4, 9, 1] {
        handle.update(changed(&handle, index, |_| {}));
    }
    assert_eq!(handle.allocation().modify_index, 9);
    clock::sleep(5 * SECOND).await;
    handle.update(changed(&handle, 8, |_| {}));
    let other = Allocation {
        id: ostler_model::ids::AllocId::new(Rng::from_seed(3).uuid()),
        modify_index: 99,
        ..handle.allocation().as_ref().clone()
    };
    handle.update(Arc::new(other));
    clock::sleep(5 * SECOND).await;
    assert_eq!(*seen.lock().unwrap(), [9]);
}

#[tokio::test(start_paused = true)]
async fn updates_while_update_hooks_run_are_one_more_call_with_the_newest() {
    let (bench, seen) = noting();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    for index in [2, 3, 4] {
        handle.update(changed(&handle, index, |_| {}));
        clock::sleep(SECOND / 4).await;
    }
    clock::sleep(5 * SECOND).await;
    assert_eq!(*seen.lock().unwrap(), [2, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_update_to_stop_stops_and_runs_no_update_hooks() {
    let (bench, seen) = noting();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.update(stopped(&handle, 2));
    let state = handle.wait_done().await;
    assert_eq!(state.client_status, ClientStatus::Complete);
    let killing = state.tasks["web"].events.iter().find(|e| e.kind.as_str() == "Killing").unwrap();
    assert_eq!(killing.details["kill_reason"], "alloc not needed due to job update");
    handle.update(changed(&handle, 3, |_| {}));
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_update_to_stop_before_anything_ran_ends_it_without_a_start() {
    let (bench, _) = noting();
    let handle = bench.run(vec![task("web")]);
    handle.update(stopped(&handle, 2));
    handle.wait_done().await;
    assert!(!bench.node.calls().contains(&"start web".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_is_to_stop_from_the_beginning_starts_nothing() {
    let bench = Bench::new();
    let allocation =
        fixtures::allocation(bench.kind, vec![task("web")], &Rng::from_seed(7)).unwrap();
    let handle = bench.run_allocation(Allocation { desired: DesiredStatus::Stop, ..allocation });
    handle.wait_done().await;
    assert!(!bench.node.calls().contains(&"start web".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_leader_and_a_delay_given_by_an_update_count_for_the_next_stop() {
    let bench = Bench::new();
    for task in ["a", "b"] {
        bench.node.script(task, [Script { on_stop: Ending::After(SECOND, 0), ..Script::runs() }]);
    }
    let handle = bench.run(vec![task("a"), task("b")]);
    until_running(&handle, "a").await;
    until_running(&handle, "b").await;
    handle.update(changed(&handle, 2, |group| {
        group.shutdown_delay = Some(3 * SECOND);
        group.tasks[1].leader = true;
    }));
    clock::sleep(SECOND).await;
    handle.stop("enough").await;
    handle.wait_done().await;
    assert_eq!((bench.when("stop b"), bench.when("stop a")), (4.0, 5.0));
}

#[tokio::test(start_paused = true)]
async fn a_second_update_to_stop_is_not_a_second_stop() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("a")]);
    until_running(&handle, "a").await;
    handle.update(changed(&handle, 2, |group| group.shutdown_delay = Some(10 * SECOND)));
    clock::sleep(SECOND).await;
    handle.update(stopped(&handle, 3));
    clock::sleep(SECOND).await;
    handle.update(stopped(&handle, 4));
    handle.wait_done().await;
    assert_eq!(bench.when("stop a"), 11.0, "the delay was not cut short");
}

#[tokio::test(start_paused = true)]
async fn a_late_listener_is_primed_and_listeners_end_with_the_owner() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let handle = bench.run(vec![task("web")]);
    let mut early = handle.state();
    handle.wait_done().await;
    assert_eq!(handle.state().borrow().client_status, ClientStatus::Complete);
    // However many there were: one look, the newest.
    assert!(early.borrow().has_changed());
    assert_eq!(early.borrow_and_update().client_status, ClientStatus::Complete);
    handle.shutdown().await;
    assert!(early.changed().await.is_err());
    let mut late = handle.phase();
    assert_eq!(*late.borrow_and_update(), AllocPhase::Done);
    assert!(late.changed().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stop_and_the_copy_that_says_so_are_one_stop() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("a")]);
    until_running(&handle, "a").await;
    handle.update(changed(&handle, 2, |group| group.shutdown_delay = Some(10 * SECOND)));
    clock::sleep(SECOND).await;
    handle.stop("enough").await;
    handle.update(stopped(&handle, 3));
    handle.wait_done().await;
    assert_eq!(bench.when("stop a"), 11.0, "the delay was not cut short");
}

#[tokio::test(start_paused = true)]
async fn a_stop_by_its_copy_is_one_stop_and_the_newest_copy_says_it() {
    for (skip, at) in [(false, 11.0), (true, 1.0)] {
        let bench = Bench::new();
        bench.node.script("after", [Script::ends(SECOND, 0)]);
        let after = fixtures::lifecycle(task("after"), LifecycleHook::Poststop, false);
        let handle = bench.run(vec![task("a"), after]);
        until_running(&handle, "a").await;
        handle.update(changed(&handle, 2, |group| group.shutdown_delay = Some(10 * SECOND)));
        clock::sleep(SECOND).await;
        handle.stop_as(stopped(&handle, 3), skip).await;
        assert_eq!(handle.allocation().desired, DesiredStatus::Stop);
        let state = handle.wait_done().await;
        assert_eq!(bench.when("stop a"), at, "skip {skip}");
        // A second stop would have given it up.
        assert!(events(&state, "after").contains(&"Started"), "{:?}", events(&state, "after"));
        assert!(!state.tasks["after"].failed);
        let events = &state.tasks["a"].events;
        let killing = events.iter().find(|e| e.kind.as_str() == "Killing").unwrap();
        assert_eq!(killing.details["kill_reason"], "alloc not needed due to job update");
    }
}
