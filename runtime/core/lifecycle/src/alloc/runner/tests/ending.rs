//! Kills: in every state, with every kind of deaf driver, on time.

use super::*;
use crate::task::hooks::{HookError, Preparation};
use ostler_model::alloc::ClientStatus;
use ostler_model::job::LifecycleHook;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_state::records::{TaskLocalKey, TaskStateKey};
use ostler_testing::fake_driver::{Ending, Reply, Script, Spawns};

/// Stop after a while; the last state, and how many virtual seconds the stop took.
async fn stop_after(handle: &AllocHandle, wait: Duration) -> (AllocState, f64) {
    clock::sleep(wait).await;
    let stopwatch = FakeNode::new();
    handle.stop("enough").await;
    let state = handle.wait_done().await;
    (state, stopwatch.age().as_secs_f64())
}

#[tokio::test(start_paused = true)]
async fn a_task_that_obeys_its_stop_signal_is_not_killed() {
    let bench = Bench::new();
    bench.node.script("web", [Script { on_stop: Ending::After(2 * SECOND, 0), ..Script::runs() }]);
    let handle = bench.run(vec![Task { kill_signal: Some("SIGQUIT".to_owned()), ..task("web") }]);
    let (state, took) = stop_after(&handle, SECOND).await;
    assert_eq!(events(&state, "web")[2..], ["Started", "Killing", "Terminated", "Killed"]);
    assert_eq!(
        state.tasks["web"].events[3].message,
        "Sent interrupt. Waiting 5s before force killing"
    );
    assert_eq!(took, 2.0);
    assert!(bench.node.calls().contains(&"stop web SIGQUIT".to_owned()));
    assert!(!bench.node.calls().contains(&"kill web".to_owned()));
    assert_eq!(state.client_status, ClientStatus::Complete, "a stopped task has not failed");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ignores_its_stop_signal_is_killed_after_kill_timeout() {
    let bench = Bench::new();
    bench.node.script("web", [Script { on_stop: Ending::Ignored, ..Script::runs() }]);
    let handle = bench.run(vec![Task { kill_timeout: 7 * SECOND, ..task("web") }]);
    stop_after(&handle, SECOND).await;
    assert_eq!(bench.when("stop web"), 1.0);
    assert_eq!(bench.when("kill web"), 8.0);
}

#[tokio::test(start_paused = true)]
async fn kill_timeout_is_limited_by_the_agent() {
    let bench = Bench::new();
    bench.node.script("web", [Script { on_stop: Ending::Ignored, ..Script::runs() }]);
    let handle = bench.run(vec![Task { kill_timeout: 3_600 * SECOND, ..task("web") }]);
    stop_after(&handle, SECOND).await;
    assert_eq!(bench.when("kill web"), 31.0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_delay_comes_before_the_stop_signal_and_ends_with_the_task() {
    let bench = Bench::new();
    bench.node.script("a", [Script::runs()]);
    bench.node.script("b", [Script::ends(3 * SECOND, 0)]);
    let delay = |name| Task { shutdown_delay: Some(10 * SECOND), ..task(name) };
    let handle = bench.run(vec![delay("a"), delay("b")]);
    let (state, took) = stop_after(&handle, SECOND).await;
    assert_eq!(bench.when("stop a"), 11.0);
    assert!(!bench.node.calls().contains(&"stop b".to_owned()));
    assert!(events(&state, "a").contains(&"Waiting for shutdown delay"));
    assert_eq!(took, 10.0);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_answers_neither_stop_nor_kill_does_not_keep_the_task_alive() {
    let bench = Bench::new();
    let deaf = Ending::Call(Reply::Hang);
    bench.node.script("web", [Script { on_stop: deaf.clone(), on_kill: deaf, ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    let (state, took) = stop_after(&handle, SECOND).await;
    // kill_timeout, then KILL_GRACE, then the host's own kill.
    assert_eq!(took, 15.0);
    assert_eq!(bench.node.live(), 0);
    assert_eq!(events(&state, "web").last(), Some(&"Killed"));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_fails_to_stop_escalates_at_once() {
    let bench = Bench::new();
    let broken = Ending::Call(Reply::Fail(PluginCallError::Fatal("trap".to_owned())));
    bench
        .node
        .script("web", [Script { on_stop: broken.clone(), on_kill: broken, ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    let (state, took) = stop_after(&handle, SECOND).await;
    assert_eq!(took, 0.0);
    assert_eq!(events(&state, "web").iter().filter(|e| **e == "Driver Failure").count(), 2);
    assert_eq!(bench.node.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_workload_nothing_can_kill_is_not_over_until_it_is_and_that_is_said() {
    let bench = Bench::new();
    bench.node.script(
        "web",
        [Script {
            on_stop: Ending::Ignored,
            on_kill: Ending::Ignored,
            host_kill_works: false,
            pid: Some(9),
            ..Script::runs()
        }],
    );
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    handle.stop("enough").await;
    let state = until(&handle, |s| crate::task::events::is_undead(&s.tasks["web"])).await;
    let last = state.tasks["web"].events.last().unwrap();
    assert!(last.details["kill_error"].contains("did not end"), "{last:?}");
    clock::sleep(600 * SECOND).await;
    assert_eq!(handle.state().borrow().client_status, ClientStatus::Running);
    assert_eq!(crate::task::handle::find_leftovers(&bench.store).unwrap()[0].identities[0].pid, 9);
    bench.node.let_die();
    assert_eq!(handle.wait_done().await.client_status, ClientStatus::Complete);
    assert_eq!(crate::task::handle::find_leftovers(&bench.store).unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn drivers_that_never_read_an_exit_or_forget_a_run_hold_up_only_their_bound() {
    let bench = Bench::new();
    bench.node.script(
        "web",
        [Script { exited: Reply::Hang, destroy: Reply::Hang, ..Script::ends(SECOND, 3) }],
    );
    let state = bench.run(vec![task("web")]).wait_done().await;
    assert_eq!(state.tasks["web"].last_exit.as_ref().unwrap().exit_code, 3, "as the host saw it");
    assert!(events(&state, "web").contains(&"Driver Failure"));
    assert_eq!(bench.when("forget_run web"), 31.0);
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_start_is_on_its_way_stops_what_start_brings() {
    let bench = Bench::new();
    bench.node.script("web", [Script { start_takes: 3 * SECOND, ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    let (state, took) = stop_after(&handle, SECOND).await;
    assert_eq!(took, 2.0);
    assert_eq!(bench.node.live(), 0);
    assert_eq!(events(&state, "web").last(), Some(&"Killed"));
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_start_never_answers_ends_after_kill_timeout() {
    let bench = Bench::new();
    bench.node.script("web", [Script { start: Reply::Hang, ..Script::runs() }]);
    let handle = bench.run(vec![task("web")]);
    let (state, took) = stop_after(&handle, SECOND).await;
    assert_eq!(took, 5.0);
    assert_eq!(state.tasks["web"].started_at, None);
    let local: crate::task::handle::LocalState =
        bench.store.get(&TaskLocalKey::of(handle.id(), name("web"))).unwrap().unwrap();
    assert_eq!(local.run, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_start_that_was_given_up_lives_on() {
    for spawns in [Spawns::BeforeAnswer, Spawns::WhenDropped] {
        let bench = Bench::new();
        bench.node.script("web", [Script { start: Reply::Hang, spawns, ..Script::runs() }]);
        let handle = bench.run(vec![task("web")]);
        let (_, took) = stop_after(&handle, SECOND).await;
        assert_eq!(took, 5.0);
        assert_eq!(bench.node.live(), 0, "{spawns:?}: {:?}", bench.node.journal());
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_start_that_failed_lives_on_beside_the_next_one() {
    let bench = Bench::new();
    let failing = Reply::Fail(PluginCallError::Recoverable("lost my way".to_owned()));
    let spawns = Spawns::BeforeAnswer;
    bench.node.script("web", [Script { start: failing, spawns, ..Script::runs() }, Script::runs()]);
    let handle = bench.run(vec![Task { restart: fixtures::restart(1, SECOND), ..task("web") }]);
    until_running(&handle, "web").await;
    assert!(bench.node.started_twice().is_empty());
    assert_eq!(bench.node.live(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_was_given_up_may_no_longer_record_a_process() {
    let bench = Bench::new();
    bench.node.script("web", [Script { start: Reply::Hang, ..Script::runs() }]);
    let seen: Seen<ostler_model::ports::IdentityRecorder> = Arc::default();
    let into = Arc::clone(&seen);
    bench.node.set_probe(Arc::new(move |context, _config| {
        into.lock().unwrap().push(Arc::clone(&context.record_identity));
    }));
    let handle = bench.run(vec![task("web")]);
    stop_after(&handle, SECOND).await;
    let record = Arc::clone(&seen.lock().unwrap()[0]);
    let boot_id = String::new();
    let late = ostler_model::ports::ProcessIdentity {
        pid: 1,
        start_ticks: 1,
        boot_id,
        cgroup: None,
        supervisor: None,
    };
    assert!(record(late).await.unwrap_err().contains("given up"));
    assert!(crate::task::handle::find_leftovers(&bench.store).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_about_an_earlier_run_does_not_touch_the_present_one() {
    let bench = Bench::new();
    bench.node.script(
        "web",
        [
            // Its stop fails by the runner's bound at 15 s, long after the run.
            Script { on_stop: Ending::Call(Reply::Hang), ..Script::runs() },
            Script { on_stop: Ending::After(8 * SECOND, 0), ..Script::runs() },
        ],
    );
    let handle = bench.run(vec![Task { kill_timeout: 10 * SECOND, ..task("web") }]);
    until_running(&handle, "web").await;
    handle.restart(RestartScope::Running, "wanted").await.unwrap();
    let (state, took) = stop_after(&handle, 12 * SECOND).await;
    assert_eq!(bench.when("kill web"), 10.0);
    assert_eq!(took, 8.0, "{:?}", bench.node.journal());
    assert!(!events(&state, "web").contains(&"Driver Failure"));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_never_answers_fails_by_the_runners_own_bound() {
    let bench = Bench::new();
    bench.node.script("web", [Script { start: Reply::Hang, ..Script::runs() }]);
    let state = bench.run(vec![task("web")]).wait_done().await;
    assert_eq!(events(&state, "web")[2..], ["Driver Failure", "Not Restarting"]);
    assert_eq!(state.client_status, ClientStatus::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_kill_during_the_restart_delay_is_at_once() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 1)]);
    let handle =
        bench.run(vec![Task { restart: fixtures::restart(9, 3_600 * SECOND), ..task("web") }]);
    let (state, took) = stop_after(&handle, 5 * SECOND).await;
    assert_eq!(took, 0.0);
    assert_eq!(events(&state, "web").last(), Some(&"Killed"));
    assert_eq!(bench.node.calls().iter().filter(|c| *c == "start web").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_the_driver_is_not_ready_is_at_once() {
    let bench = Bench::new();
    bench.node.set_not_ready(Some("no such kernel module"));
    let handle = bench.run(vec![task("web")]);
    let (state, took) = stop_after(&handle, 100 * SECOND).await;
    assert_eq!(took, 0.0);
    assert_eq!(events(&state, "web"), ["Received", "Task Setup", "Driver", "Killing", "Killed"]);
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_the_gate_is_closed_is_at_once_and_the_task_never_starts() {
    let bench = Bench::new();
    let first = fixtures::lifecycle(task("first"), LifecycleHook::Prestart, false);
    let handle = bench.run(vec![first, task("main")]);
    let (state, took) = stop_after(&handle, SECOND).await;
    assert_eq!(took, 0.0);
    assert_eq!(events(&state, "main"), ["Received", "Killing", "Killed"]);
    assert!(!bench.node.calls().contains(&"start main".to_owned()));
}

struct HangingHook;

impl TaskHook for HangingHook {
    fn name(&self) -> &'static str {
        "hanging"
    }
    fn prestart<'a>(
        &'a self,
        _scope: &'a TaskScope,
        _preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_during_the_prestart_hooks_is_at_once_and_nothing_starts() {
    let mut bench = Bench::new();
    bench.task_hooks.push(Arc::new(HangingHook));
    let handle = bench.run(vec![task("web")]);
    let (state, took) = stop_after(&handle, 10 * SECOND).await;
    assert_eq!(took, 0.0);
    assert_eq!(events(&state, "web").last(), Some(&"Killed"));
    assert!(!bench.node.calls().contains(&"start web".to_owned()));
    assert!(bench.node.calls().contains(&"release web".to_owned()), "stop hooks run in any case");
}

#[tokio::test(start_paused = true)]
async fn a_prestart_hook_that_hangs_fails_the_attempt_by_its_bound() {
    let mut bench = Bench::new();
    bench.task_hooks.push(Arc::new(HangingHook));
    let state = bench.run(vec![task("web")]).wait_done().await;
    assert_eq!(events(&state, "web")[2..], ["Task hook failed", "Not Restarting"]);
}

#[tokio::test(start_paused = true)]
async fn destroy_stops_removes_everything_and_may_be_repeated() {
    let bench = Bench::new();
    let handle = bench.run(vec![task("web")]);
    until_running(&handle, "web").await;
    assert!(handle.dir().is_dir());
    assert_eq!(handle.destroy().await, AllocPhase::Destroyed);
    assert!(!handle.dir().exists());
    assert_eq!(bench.node.live(), 0);
    let key = TaskStateKey::of(handle.id(), name("web"));
    assert_eq!(bench.store.get::<TaskState>(&key).unwrap(), None);
    assert_eq!(handle.destroy().await, AllocPhase::Destroyed);
}
