//! Requests in every state: what they do, and what they must not do.

use super::*;
use ostler_model::device::GroupKey;
use ostler_model::resources::AllocatedDevice;
use ostler_testing::fake_driver::{Ending, Reply};

fn bench(scripts: impl Into<Vec<Script>>) -> Bench {
    let mut bench = Bench::new(Task { restart: fixtures::restart(0, SECOND), ..web() });
    bench.restartable = true;
    bench.node.script("web", scripts);
    bench
}

/// Dead and kept: the run is forgotten, the owner is there.
async fn idle(bench: &Bench, handle: &TaskHandle) -> CowArc<TaskState> {
    let state = until(handle, |s| s.status == TaskStatus::Dead).await;
    bench.pass(5 * SECOND).await;
    assert!(!handle.is_gone());
    state
}

#[tokio::test(start_paused = true)]
async fn a_dead_task_starts_again_as_new_but_for_its_history() {
    for code in [0, 1] {
        let bench = bench([Script::ends(SECOND, code), Script::runs()]);
        let handle = bench.spawn();
        let dead = idle(&bench, &handle).await;
        assert_eq!((dead.failed, dead.finished_at.is_some()), (code != 0, true));
        handle.force_restart("asked").await.unwrap();
        let state = until_running(&handle).await;
        assert!(!state.failed && state.finished_at.is_none(), "{state:?}");
        assert_eq!((state.restarts, bench.count("start web")), (1, 2));
        assert!(has(&state, "Terminated") && has(&state, "Restart Signaled"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_task_starts_again_only_when_the_gate_opens() {
    let bench = bench([Script::ends(SECOND, 0), Script::runs()]);
    let handle = bench.spawn();
    idle(&bench, &handle).await;
    bench.gate.send_replace(TaskGate::Closed);
    handle.force_restart("asked").await.unwrap();
    bench.pass(60 * SECOND).await;
    assert_eq!(handle.state().status, TaskStatus::Pending);
    bench.gate.send_replace(TaskGate::Open);
    until_running(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waited_dead_is_still_dead_after_a_restart_of_the_agent_and_can_be_started() {
    let mut bench = bench([native(Script::ends(SECOND, 1)), native(Script::runs())]);
    let handle = bench.spawn();
    let dead = idle(&bench, &handle).await;
    let handle = bench.next_agent(&handle).await;
    bench.pass(60 * SECOND).await;
    assert_eq!(handle.state(), dead);
    assert_eq!(bench.count("start web"), 1);
    handle.force_restart("asked").await.unwrap();
    assert!(!until_running(&handle).await.failed);
}

#[tokio::test(start_paused = true)]
async fn a_restart_delay_is_not_waited_for_when_a_start_is_forced() {
    let mut bench = bench([Script::ends(SECOND, 1), Script::runs()]);
    let task = Task { restart: fixtures::restart(3, 600 * SECOND), ..web() };
    bench.allocation = bench.changed(|t| *t = task, 1);
    let handle = bench.spawn();
    until(&handle, |s| s.restarts == 1).await;
    bench.pass(5 * SECOND).await;
    let before = bench.node.age();
    handle.force_restart("asked").await.unwrap();
    until_running(&handle).await;
    assert!(bench.node.age() - before < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_live_run_is_ended_before_the_forced_one_and_no_attempt_is_used() {
    let bench = bench([Script::runs()]);
    let handle = bench.spawn();
    until_running(&handle).await;
    handle.force_restart("asked").await.unwrap();
    until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
    assert_eq!((bench.count("stop web"), bench.node.live()), (1, 1));
    assert!(bench.node.started_twice().is_empty());
    bench.pass(SECOND).await;
    assert_eq!(bench.recorded().local.unwrap().tracker.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_being_killed_is_not_started_again() {
    let bench = bench([Script { on_stop: Ending::Ignored, ..Script::runs() }]);
    let handle = bench.spawn();
    until_running(&handle).await;
    handle.kill(None, "wanted").await;
    handle.force_restart("asked").await.unwrap();
    handle.wait_gone().await;
    assert_eq!(bench.count("start web"), 1);
    assert!(!has(&handle.state(), "Restart Signaled"));
}

/// A run that ended and is being forgotten, which takes its driver long.
async fn forgetting(code: i32) -> (Bench, TaskHandle) {
    let slow = Script { destroy: Reply::Hang, ..Script::ends(SECOND, code) };
    let bench = bench([slow, Script::runs()]);
    let handle = bench.spawn();
    until(&handle, |s| s.status == TaskStatus::Dead).await;
    while bench.count("destroy web") == 0 {
        clock::sleep(Duration::from_millis(1)).await;
    }
    (bench, handle)
}

#[tokio::test(start_paused = true)]
async fn a_start_forced_while_a_dead_run_is_being_forgotten_comes_after_that() {
    for code in [0, 1] {
        let (bench, handle) = forgetting(code).await;
        handle.force_restart("asked").await.unwrap();
        assert!(!until_running(&handle).await.failed);
        assert_eq!(bench.count("start web"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_finish_or_kill_while_a_dead_run_is_being_forgotten_is_not_forgotten() {
    for kill in [false, true] {
        let (bench, handle) = forgetting(0).await;
        handle.force_restart("asked").await.unwrap();
        if kill {
            handle.kill(None, "wanted").await;
        } else {
            handle.finish().await;
        }
        handle.wait_gone().await;
        assert_eq!(bench.count("start web"), 1);
        assert!(handle.state().is_successful());
        assert!(!has(&handle.state(), "Killing") && !has(&handle.state(), "Killed"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_task_ends_by_finish_or_kill_without_being_shown_as_killed() {
    for kill in [false, true] {
        let bench = bench([Script::ends(SECOND, 0)]);
        let handle = bench.spawn();
        let dead = idle(&bench, &handle).await;
        if kill {
            handle.kill(None, "wanted").await;
        } else {
            handle.finish().await;
        }
        handle.wait_gone().await;
        assert_eq!(handle.state(), dead);
        bench.store.flush().await.unwrap();
        assert!(bench.recorded().local.unwrap().run_complete);
    }
}

#[tokio::test(start_paused = true)]
async fn a_finish_leaves_a_live_task_alone_and_holds_when_it_ends() {
    let bench = bench([Script::ends(60 * SECOND, 0)]);
    let handle = bench.spawn();
    until_running(&handle).await;
    handle.finish().await;
    bench.pass(30 * SECOND).await;
    assert_eq!(bench.node.live(), 1);
    handle.wait_gone().await;
    assert!(handle.state().is_successful());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_is_started_again_when_it_has() {
    let undead = Script {
        on_stop: Ending::Ignored,
        on_kill: Ending::Ignored,
        host_kill_works: false,
        ..native(Script::runs())
    };
    let bench = bench([undead]);
    let handle = bench.spawn();
    until_running(&handle).await;
    handle.restart("asked").await.unwrap();
    bench.pass(300 * SECOND).await;
    handle.force_restart("asked").await.unwrap();
    bench.pass(300 * SECOND).await;
    assert_eq!(handle.state().status, TaskStatus::Running);
    assert_eq!((bench.count("start web"), bench.node.live()), (1, 1));
    assert!(bench.recorded().local.unwrap().run.is_some());
    bench.node.let_die();
    until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
    assert_eq!((bench.count("start web"), bench.node.live()), (2, 1));
    assert!(bench.node.started_twice().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_over_takes_no_request() {
    let bench = bench([Script::ends(SECOND, 0)]);
    let handle = bench.spawn();
    idle(&bench, &handle).await;
    handle.finish().await;
    handle.wait_gone().await;
    let before = (handle.state(), bench.node.calls());
    assert_eq!(handle.force_restart("asked").await, Err(RequestError::Gone));
    assert_eq!(handle.restart("asked").await, Err(RequestError::Gone));
    assert_eq!(handle.signal("SIGHUP").await, Err(RequestError::Gone));
    handle.kill(None, "wanted").await;
    bench.pass(60 * SECOND).await;
    assert_eq!((handle.state(), bench.node.calls()), before);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_run_says_so_to_signals_and_restarts() {
    let bench = bench([Script::ends(SECOND, 0)]);
    bench.gate.send_replace(TaskGate::Closed);
    let handle = bench.spawn();
    let refused = || Err(RequestError::NotRunning { task: name("web") });
    assert_eq!(handle.restart("asked").await, refused());
    assert_eq!(handle.signal("SIGHUP").await, refused());
    bench.gate.send_replace(TaskGate::Open);
    idle(&bench, &handle).await;
    assert_eq!(handle.restart("asked").await, refused());
    assert_eq!(handle.signal("SIGHUP").await, refused());
    assert_eq!(bench.count("start web"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_the_hooks_run_starts_nothing() {
    let mut bench = bench([Script::runs()]);
    let mut allocation = (*bench.allocation).clone();
    let group = GroupKey { vendor: "v".into(), kind: "t".into(), name: "n".into() };
    let assigned = AllocatedDevice { group, ids: vec!["0".to_owned()] };
    allocation.devices.insert(name("web"), vec![assigned]);
    bench.allocation = Arc::new(allocation);
    bench.node.set_reserve(Reply::Hang, ostler_model::device::Reservation::default());
    let handle = bench.spawn();
    while bench.count("reserve web") == 0 {
        clock::sleep(Duration::from_millis(1)).await;
    }
    handle.kill(None, "wanted").await;
    handle.wait_gone().await;
    assert_eq!(bench.count("start web"), 0);
    assert_eq!(bench.count("release web"), 1, "the stop hooks ran");
}
