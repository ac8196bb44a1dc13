//! What ends an allocation from outside its tasks: its time, its disk. And the verdict on it.

use super::*;
use ostler_model::alloc::ClientStatus;
use ostler_model::job::{HealthCheck, HealthPolicy, LifecycleHook, TaskGroup};
use ostler_model::limits::{DISK_MEASURE_INTERVAL, MIB};
use ostler_model::saved::DeploymentStatus;
use ostler_state::records::{AllocStateKey, DeploymentStatusKey};
use ostler_testing::fake_driver::{Ending, Script};

fn with_group(bench: &Bench, tasks: Vec<Task>, change: impl FnOnce(&mut TaskGroup)) -> AllocHandle {
    let mut allocation = fixtures::allocation(bench.kind, tasks, &Rng::from_seed(7)).unwrap();
    let mut job = allocation.job.as_ref().clone();
    change(&mut job.groups[0]);
    allocation.job = Arc::new(job);
    allocation.created_at = Timestamp::from_nanos(1_000_000_000);
    bench.run_allocation(allocation)
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_ran_as_long_as_it_may_is_complete_and_its_poststop_does_not_run() {
    let bench = Bench::new();
    bench.node.script("web", [Script { on_stop: Ending::After(SECOND, 1), ..Script::runs() }]);
    let last = fixtures::lifecycle(task("last"), LifecycleHook::Poststop, false);
    let handle =
        with_group(&bench, vec![task("web"), last], |g| g.max_run_duration = Some(30 * SECOND));
    let state = handle.wait_done().await;
    assert_eq!(bench.when("stop web"), 30.0);
    assert_eq!(state.client_status, ClientStatus::Complete);
    assert_eq!(state.client_description, "Allocation ran as long as it may: 30s");
    assert!(!bench.node.calls().contains(&"start last".to_owned()));
    let saved: SavedAllocState = bench.store.get(&AllocStateKey::of(handle.id())).unwrap().unwrap();
    assert!(saved.forced && saved.finished);
}

#[tokio::test(start_paused = true)]
async fn an_update_of_how_long_it_may_run_counts_from_the_beginning() {
    for before in [None, Some(30 * SECOND)] {
        let bench = Bench::new();
        let handle = with_group(&bench, vec![task("web")], |g| g.max_run_duration = before);
        until_running(&handle, "web").await;
        let longer = |g: &mut TaskGroup| g.max_run_duration = Some(100 * SECOND);
        handle.update(super::updates::changed(&handle, 2, longer));
        handle.wait_done().await;
        assert_eq!(bench.when("stop web"), 100.0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_fills_its_disk_is_killed_as_failed_and_says_why() {
    let bench = Bench::new();
    bench.node.script("web", [Script::runs()]);
    let handle = with_group(&bench, vec![task("web")], |g| {
        g.ephemeral_disk.size_mb = 1;
        g.ephemeral_disk.size_stated = true;
    });
    until_running(&handle, "web").await;
    let bytes = vec![1_u8; usize::try_from(2 * MIB).unwrap()];
    std::fs::write(handle.dir().join("web/local/big"), bytes).unwrap();
    let state = handle.wait_done().await;
    assert_eq!(bench.when("stop web"), DISK_MEASURE_INTERVAL.as_secs_f64());
    assert_eq!(state.client_status, ClientStatus::Failed);
    assert!(state.client_description.contains("allows 1 MiB"), "{}", state.client_description);
    let web = &state.tasks["web"];
    assert!(web.failed);
    assert!(events(&state, "web").contains(&"Disk Resources Exceeded"));
}

fn judged(g: &mut TaskGroup) {
    g.health = Some(HealthPolicy {
        check: HealthCheck::TaskStates,
        min_healthy_time: 10 * SECOND,
        healthy_deadline: 60 * SECOND,
    });
}

fn verdict(bench: &Bench, handle: &AllocHandle) -> DeploymentStatus {
    bench.store.get(&DeploymentStatusKey::of(handle.id())).unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_a_verdict_that_is_durable_and_names_the_task() {
    let bench = Bench::new();
    bench.node.script("bad", [Script::ends(SECOND, 1)]);
    let handle = with_group(&bench, vec![task("bad"), task("web")], judged);
    let state = until(&handle, |s| s.health.is_some()).await;
    assert!(state.health.as_ref().unwrap().is_unhealthy());
    assert_eq!(verdict(&bench, &handle), state.health.unwrap());
    let end = handle.wait_done().await;
    assert!(events(&end, "bad").contains(&"Alloc Unhealthy"), "{end:?}");
    assert!(!events(&end, "web").contains(&"Alloc Unhealthy"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_no_verdict() {
    let bench = Bench::new();
    bench.node.script("web", [Script::runs()]);
    let handle = with_group(&bench, vec![task("web")], judged);
    until_running(&handle, "web").await;
    handle.stop("enough").await;
    assert_eq!(handle.wait_done().await.health, None);
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_runs_long_enough_is_healthy_and_stays_so() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(1_000 * SECOND, 1)]);
    let handle = with_group(&bench, vec![task("web")], judged);
    until_running(&handle, "web").await;
    bench.clock.advance(11 * SECOND);
    let state = until(&handle, |s| s.health.is_some()).await;
    assert!(state.health.as_ref().unwrap().is_healthy());
    let end = handle.wait_done().await;
    assert_eq!(end.client_status, ClientStatus::Failed);
    assert!(end.health.unwrap().is_healthy(), "a failure later does not change the verdict");
    assert!(verdict(&bench, &handle).is_healthy());
}
