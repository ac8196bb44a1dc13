//! Restart delays and attempts over a restart of the agent.

use super::*;

fn failing(attempts: u32, delay: Duration) -> Task {
    Task { restart: fixtures::restart(attempts, delay), ..web() }
}

/// A task that failed once and waits for its restart; the end of that wait.
async fn delayed() -> (Bench, TaskHandle, Timestamp) {
    let bench = Bench::new(failing(3, 100 * SECOND));
    bench.node.script("web", [native(Script::ends(SECOND, 1)), native(Script::runs())]);
    let handle = bench.spawn();
    until(&handle, |s| s.restarts == 1).await;
    // The wait begins when the run is forgotten.
    while bench.recorded().local.is_none_or(|local| local.run.is_some()) {
        clock::sleep(Duration::from_millis(1)).await;
    }
    let until = bench.recorded().local.unwrap().delayed_until.unwrap();
    (bench, handle, until)
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_restart_delay_is_waited_for_after_a_restart_of_the_agent() {
    let (mut bench, handle, until) = delayed().await;
    bench.pass(60 * SECOND).await;
    let handle = bench.next_agent(&handle).await;
    let rest = until.since(bench.clock.now());
    assert!(rest > 39 * SECOND && rest < 66 * SECOND, "{rest:?}");
    let before = bench.node.age();
    until_running(&handle).await;
    let waited = bench.node.age() - before;
    assert!(waited >= rest && waited < rest + SECOND, "{waited:?}, not {rest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_delay_that_ended_while_no_agent_was_there_is_not_waited_for_again() {
    let (mut bench, handle, _) = delayed().await;
    handle.shutdown().await;
    handle.wait_gone().await;
    bench.clock.advance(200 * SECOND);
    bench.reopen();
    let before = bench.node.age();
    let handle = bench.restore(bench.recorded());
    until_running(&handle).await;
    assert!(bench.node.age() - before < SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_makes_no_delay_longer_than_the_policy_allows() {
    for with_run in [false, true] {
        let (mut bench, handle, _) = delayed().await;
        handle.shutdown().await;
        handle.wait_gone().await;
        bench.reopen();
        let mut restored = bench.recorded();
        let local = restored.local.as_mut().unwrap();
        local.delayed_until = Some(Timestamp::from_nanos(u64::MAX));
        if with_run {
            local.run =
                Some(RunRecord { id: bench.run_id(), identities: Vec::new(), started: None });
        }
        let before = bench.node.age();
        let handle = bench.restore(restored);
        until_running(&handle).await;
        let waited = bench.node.age() - before;
        assert!(waited <= 3_601 * SECOND, "with a run {with_run}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_agent_gives_no_fresh_attempts() {
    let mut bench = Bench::new(failing(2, SECOND));
    bench.node.script("web", [native(Script::ends(SECOND, 1))]);
    let mut handle = bench.spawn();
    for restarts in 1..=2 {
        until(&handle, |s| s.restarts == restarts).await;
        handle = bench.next_agent(&handle).await;
    }
    handle.wait_gone().await;
    let state = handle.state();
    assert!(state.failed && has(&state, "Not Restarting"), "{state:?}");
    assert_eq!(bench.count("start web"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_started_from_again_when_the_agent_leaves_twice() {
    let (mut bench, mut handle, until) = delayed().await;
    let before = bench.node.age();
    let rest = until.since(bench.clock.now());
    for _ in 0..2 {
        bench.pass(10 * SECOND).await;
        handle = bench.next_agent(&handle).await;
        assert_eq!(bench.recorded().local.unwrap().delayed_until, Some(until));
    }
    until_running(&handle).await;
    let waited = bench.node.age() - before;
    assert!(waited >= rest && waited < rest + 2 * SECOND, "{waited:?}, not {rest:?}");
}
