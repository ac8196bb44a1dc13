//! Several tasks: leader, siblings, sidecars, poststop, and the order of a stop.

use super::*;
use ostler_model::alloc::ClientStatus;
use ostler_model::job::LifecycleHook;
use ostler_testing::fake_driver::{Ending, Script};

fn slow_to_stop(seconds: u32) -> [Script; 1] {
    [Script { on_stop: Ending::After(seconds * SECOND, 0), ..Script::runs() }]
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_leader_then_the_mains_then_the_sidecars() {
    let bench = Bench::new();
    for name in ["lead", "one", "two", "side"] {
        bench.node.script(name, slow_to_stop(2));
    }
    let side = fixtures::lifecycle(task("side"), LifecycleHook::Prestart, true);
    let lead = Task { leader: true, ..task("lead") };
    let handle = bench.run(vec![side, task("one"), lead, task("two")]);
    for name in ["lead", "one", "two", "side"] {
        until_running(&handle, name).await;
    }
    handle.stop("enough").await;
    handle.wait_done().await;
    assert_eq!(bench.when("stop lead"), 0.0);
    assert_eq!((bench.when("stop one"), bench.when("stop two")), (2.0, 2.0));
    assert_eq!(bench.when("stop side"), 4.0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_leader_ends_the_others() {
    let bench = Bench::new();
    bench.node.script("lead", [Script::ends(3 * SECOND, 0)]);
    let lead = Task { leader: true, ..task("lead") };
    let state = bench.run(vec![lead, task("other")]).wait_done().await;
    assert_eq!(bench.when("stop other"), 3.0);
    assert_eq!(
        events(&state, "other")[3..],
        ["Leader Task Dead", "Killing", "Terminated", "Killed"]
    );
    assert_eq!(state.client_status, ClientStatus::Complete);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_for_good_ends_its_siblings() {
    let bench = Bench::new();
    bench.node.script("bad", [Script::ends(3 * SECOND, 1)]);
    let handle = bench.run(vec![task("bad"), task("good")]);
    let state = handle.wait_done().await;
    assert_eq!(
        events(&state, "good")[3..],
        ["Sibling Task Failed", "Killing", "Terminated", "Killed"]
    );
    assert!(!state.tasks["good"].failed, "only the one that failed has failed");
    assert_eq!(state.client_status, ClientStatus::Failed);
    assert_eq!(state.client_description, "Failed tasks");
}

#[tokio::test(start_paused = true)]
async fn prestart_main_poststart_and_poststop_run_in_turn_and_the_sidecar_beside() {
    let bench = Bench::new();
    let script = |name: &str, seconds| bench.node.script(name, [Script::ends(seconds * SECOND, 0)]);
    script("pre", 1);
    script("main", 10);
    script("poststart", 2);
    script("poststop", 1);
    let state = bench
        .run(vec![
            fixtures::lifecycle(task("poststop"), LifecycleHook::Poststop, false),
            task("main"),
            fixtures::lifecycle(task("side"), LifecycleHook::Prestart, true),
            fixtures::lifecycle(task("poststart"), LifecycleHook::Poststart, false),
            fixtures::lifecycle(task("pre"), LifecycleHook::Prestart, false),
        ])
        .wait_done()
        .await;
    assert_eq!((bench.when("start pre"), bench.when("start side")), (0.0, 0.0));
    assert_eq!(bench.when("start main"), 1.0);
    assert_eq!(bench.when("start poststart"), 1.0);
    assert_eq!(bench.when("stop side"), 11.0);
    assert_eq!(bench.when("start poststop"), 11.0);
    assert!(events(&state, "side").contains(&"Main Tasks Dead"));
    assert_eq!(state.client_status, ClientStatus::Complete);
}

#[tokio::test(start_paused = true)]
async fn poststop_runs_after_a_stop_and_a_second_stop_ends_it_too() {
    let bench = Bench::new();
    let last = fixtures::lifecycle(task("last"), LifecycleHook::Poststop, false);
    let handle = bench.run(vec![task("main"), last]);
    until_running(&handle, "main").await;
    handle.stop("enough").await;
    until_running(&handle, "last").await;
    handle.stop("really").await;
    let state = handle.wait_done().await;
    assert_eq!(events(&state, "last").last(), Some(&"Killed"));
}

#[tokio::test(start_paused = true)]
async fn a_prestart_task_that_fails_keeps_the_mains_from_starting() {
    let bench = Bench::new();
    bench.node.script("pre", [Script::ends(SECOND, 1)]);
    let pre = fixtures::lifecycle(task("pre"), LifecycleHook::Prestart, false);
    let state = bench.run(vec![pre, task("main")]).wait_done().await;
    assert!(!bench.node.calls().contains(&"start main".to_owned()));
    assert_eq!(events(&state, "main")[1], "Sibling Task Failed");
    assert_eq!(state.client_status, ClientStatus::Failed);
}

#[tokio::test(start_paused = true)]
async fn the_groups_shutdown_delay_comes_before_the_first_stop() {
    let bench = Bench::new();
    let mut allocation =
        fixtures::allocation(JobKind::Service, vec![task("web")], &Rng::from_seed(7)).unwrap();
    let mut job = (*allocation.job).clone();
    job.groups[0].shutdown_delay = Some(4 * SECOND);
    allocation.job = Arc::new(job);
    let handle = bench.run_allocation(allocation);
    until_running(&handle, "web").await;
    handle.stop("enough").await;
    handle.wait_done().await;
    assert_eq!(bench.when("stop web"), 4.0);
}

#[tokio::test(start_paused = true)]
async fn fifty_tasks_end_and_none_is_started_twice() {
    let bench = Bench::new();
    let tasks: Vec<Task> = (0..50).map(|n| task(&format!("t{n}"))).collect();
    for n in 0..50_u32 {
        bench.node.script(&format!("t{n}"), [Script::ends((n % 7) * SECOND, 0)]);
    }
    let state = bench.run(tasks).wait_done().await;
    assert_eq!(state.client_status, ClientStatus::Complete);
    assert!(bench.node.started_twice().is_empty());
    assert_eq!(bench.node.live(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_real_threads_and_real_time_it_is_the_same() {
    let bench = Bench::new();
    let names: Vec<String> = (0..30).map(|n| format!("t{n}")).collect();
    let tasks = names
        .iter()
        .map(|n| Task { restart: fixtures::restart(2, Duration::from_millis(1)), ..task(n) });
    for (index, name) in (0_u32..).zip(&names) {
        let fails = Script::ends(Duration::from_millis(u64::from(index % 3)), 1);
        let ends = Script::ends(Duration::from_millis(u64::from(index % 5)), 0);
        bench.node.script(name, if index % 2 == 0 { vec![ends] } else { vec![fails, ends] });
    }
    let state = bench.run(tasks.collect()).wait_done().await;
    assert_eq!(state.client_status, ClientStatus::Complete);
    assert!(bench.node.started_twice().is_empty());
    assert_eq!(bench.node.live(), 0);
}
