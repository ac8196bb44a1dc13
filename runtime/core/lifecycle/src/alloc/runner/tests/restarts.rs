//! Restarts and signals: who may be asked when, and what the asker hears.

use super::*;
use crate::task::RequestError;
use ostler_model::job::LifecycleHook;
use ostler_model::ports::PluginCallError;
use ostler_testing::fake_driver::{Ending, Reply, Script};

const ONE: fn(&str) -> RestartScope = |task| RestartScope::Task(name(task));

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_run_or_is_unknown_is_not_restarted() {
    let bench = Bench::new();
    bench.node.script("done", [Script::ends(SECOND, 0)]);
    let handle = bench.run(vec![task("done"), task("web")]);
    until(&handle, |s| s.tasks["done"].status == TaskStatus::Dead).await;
    until_running(&handle, "web").await;
    let not_running = RequestError::NotRunning { task: name("done") };
    let dead = handle.restart(ONE("done"), "wanted").await;
    assert!(dead == Err(not_running) || dead == Err(RequestError::Gone), "{dead:?}");
    let unknown = RequestError::UnknownTask { task: name("who") };
    assert_eq!(handle.restart(ONE("who"), "wanted").await, Err(unknown.clone()));
    assert_eq!(handle.signal(Some(&name("who")), "SIGHUP").await, Err(unknown));
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_ended_or_ends_is_not_restarted_and_nothing_of_it_runs_again() {
    let bench = Bench::new();
    let slow = Script { on_stop: Ending::After(3 * SECOND, 0), ..Script::runs() };
    bench.node.script("web", [slow]);
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.stop("enough").await;
    let scopes = || [RestartScope::Running, RestartScope::All, ONE("web")];
    for scope in scopes() {
        assert_eq!(handle.restart(scope, "wanted").await, Err(RequestError::Stopping));
    }
    handle.wait_done().await;
    for scope in scopes() {
        assert_eq!(handle.restart(scope, "wanted").await, Err(RequestError::Gone));
    }
    assert_eq!(handle.signal(None, "SIGHUP").await, Err(RequestError::NothingRunning));
    clock::sleep(60 * SECOND).await;
    assert_eq!(bench.node.calls().iter().filter(|c| *c == "start web").count(), 1);
    assert_eq!(*handle.phase().borrow(), AllocPhase::Done);
    handle.shutdown().await;
    assert_eq!(handle.restart(RestartScope::All, "wanted").await, Err(RequestError::Gone));
}

#[tokio::test(start_paused = true)]
async fn when_nothing_runs_a_signal_or_restart_of_what_runs_says_so() {
    let bench = Bench::new();
    bench.node.set_not_ready(Some("later"));
    let handle = bench.run(vec![task("web")]);
    clock::sleep(SECOND).await;
    assert_eq!(handle.signal(None, "SIGHUP").await, Err(RequestError::NothingRunning));
    let running = handle.restart(RestartScope::Running, "wanted").await;
    assert_eq!(running, Err(RequestError::NothingRunning));
}

#[tokio::test(start_paused = true)]
async fn the_errors_of_all_tasks_are_told_together() {
    let bench = Bench::new();
    bench.node.set_signal(Reply::Fail(PluginCallError::Fatal("no such signal".to_owned())));
    let handle = bench.run(vec![task("a"), task("b")]);
    until_running(&handle, "a").await;
    until_running(&handle, "b").await;
    let Err(RequestError::Several(errors)) = handle.signal(None, "SIGNONE").await else {
        panic!("one error")
    };
    assert_eq!(errors.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_all_begins_with_the_prestart_tasks_that_had_ended() {
    let bench = Bench::new();
    bench.node.script("first", [Script::ends(SECOND, 0)]);
    let first = fixtures::lifecycle(task("first"), LifecycleHook::Prestart, false);
    let handle = bench.run(vec![first, task("web")]);
    until_running(&handle, "web").await;
    handle.restart(RestartScope::All, "wanted").await.unwrap();
    until(&handle, |s| s.tasks["web"].restarts == 1).await;
    until_running(&handle, "web").await;
    let starts: Vec<_> =
        bench.node.calls().into_iter().filter(|c| c.starts_with("start")).collect();
    assert_eq!(starts, ["start first", "start web", "start first", "start web"]);
    assert!(bench.node.started_twice().is_empty());
    handle.stop("enough").await;
    handle.wait_done().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_without_delays_ends_the_delay_of_a_task() {
    let bench = Bench::new();
    let handle = bench.run(vec![Task { shutdown_delay: Some(100 * SECOND), ..task("web") }]);
    until_running(&handle, "web").await;
    handle.stop("enough").await;
    clock::sleep(3 * SECOND).await;
    handle.stop_with("now", true).await;
    handle.wait_done().await;
    assert_eq!(bench.when("stop web"), 3.0);
}
