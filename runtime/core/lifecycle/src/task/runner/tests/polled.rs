//! Workloads that only their driver can reach: what its answers to `stop`, `kill` and `recover` mean.

use super::*;
use ostler_model::limits::KILL_GRACE;
use ostler_model::ports::PluginCallError;
use ostler_state::testing::ErrorBackend;
use ostler_testing::fake_driver::{Ending, Reply};

const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Asked after so rarely that what ends sooner ended by an answer.
fn polled(on_stop: Ending, on_kill: Ending) -> Script {
    Script { poll: Some(600 * SECOND), on_stop, on_kill, ..Script::default() }
}

fn not_found() -> Ending {
    Ending::Call(Reply::Fail(PluginCallError::NotFound("it ended".to_owned())))
}

fn no() -> Ending {
    Ending::Call(Reply::Fail(PluginCallError::Fatal("no".to_owned())))
}

fn bench(script: Script) -> Bench {
    let task = Task { restart: fixtures::restart(0, SECOND), kill_timeout: KILL_TIMEOUT, ..web() };
    let bench = Bench::of(JobKind::Service, task);
    bench.node.script("web", [script]);
    bench
}

/// Kill it: its last state, and how long that took.
async fn killed(bench: &Bench) -> (CowArc<TaskState>, Duration) {
    let handle = bench.spawn();
    until_running(&handle).await;
    let before = bench.node.age();
    handle.kill(None, "wanted").await;
    let state = until(&handle, |s| s.status == TaskStatus::Dead).await;
    let took = bench.node.age() - before;
    handle.wait_gone().await;
    (state, took)
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_finds_nothing_is_the_end_of_the_task() {
    let bench = bench(polled(not_found(), no()));
    let (state, took) = killed(&bench).await;
    assert!(took < SECOND, "{took:?}");
    assert!(!state.failed && has(&state, "Killed"), "{state:#?}");
    let exit = state.last_exit.clone().unwrap();
    assert!(!exit.is_successful() && exit.error.unwrap().contains("it ended"));
    assert_eq!(bench.count("kill web"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_works_is_the_end_of_the_task() {
    for on_kill in [Ending::Ignored, not_found()] {
        let bench = bench(polled(Ending::Ignored, on_kill.clone()));
        let (state, took) = killed(&bench).await;
        assert!(took >= KILL_TIMEOUT && took < KILL_TIMEOUT + SECOND, "{took:?}");
        assert!(!state.failed && has(&state, "Killed"), "{state:#?}");
        let exit = state.last_exit.clone().unwrap();
        assert_eq!(exit.signal, if on_kill == Ending::Ignored { 9 } else { 0 });
        assert!(!exit.is_successful());
        assert_eq!(bench.count("destroy web"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_ends_nothing_is_not_waited_for_without_end() {
    let bench = bench(polled(Ending::Ignored, no()));
    let (state, took) = killed(&bench).await;
    assert!(took <= KILL_TIMEOUT + KILL_GRACE + SECOND, "{took:?}");
    let last = state.events.last().unwrap();
    assert!(last.message.contains("did not end after it was killed"), "{state:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_begins_another_run_when_the_first_is_gone() {
    for script in [polled(not_found(), no()), polled(Ending::Ignored, Ending::Ignored)] {
        let bench = bench(script);
        let handle = bench.spawn();
        until_running(&handle).await;
        handle.restart("asked").await.unwrap();
        until(&handle, |s| s.restarts == 1).await;
        let state = until_running(&handle).await;
        assert!(!state.failed, "{state:#?}");
        // What was asked of the first run is not heard by the second.
        bench.pass(60 * SECOND).await;
        assert_eq!(handle.state().status, TaskStatus::Running);
        assert_eq!(bench.count("start web"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_its_driver_does_not_take_back_is_dead_before_another_begins() {
    for (on_kill, restarts) in [(Ending::After(Duration::ZERO, 0), true), (no(), false)] {
        let mut bench = bench(polled(Ending::Ignored, on_kill));
        let task = Task { restart: fixtures::restart(3, SECOND), ..web() };
        bench.allocation = bench.changed(|t| *t = task, 1);
        let handle = bench.spawn();
        until_running(&handle).await;
        bench.node.set_recover(Reply::Fail(PluginCallError::Fatal("another format".to_owned())));
        let handle = bench.next_agent(&handle).await;
        bench.pass(60 * SECOND).await;
        let state = handle.state();
        assert_eq!(has(&state, "Failed Restoring Task"), restarts, "{state:#?}");
        assert_eq!(bench.count("start web"), if restarts { 2 } else { 1 }, "{state:#?}");
        assert!(bench.node.started_twice().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_cannot_be_recorded_leaves_nothing_running() {
    let mut bench = bench(polled(Ending::Ignored, Ending::After(Duration::ZERO, 0)));
    let disk = ErrorBackend::new_healed();
    bench.store = store(Arc::clone(&disk) as _);
    // The intent is on record; the handle cannot be written.
    bench.node.set_probe(Arc::new(move |_, _| disk.fail()));
    let handle = bench.spawn();
    let state = until(&handle, |s| s.status == TaskStatus::Dead).await;
    assert!(has(&state, "Driver Failure"), "{state:#?}");
    bench.pass(SECOND).await;
    assert_eq!((bench.node.live(), bench.count("kill web")), (0, 1));
}
