//! Rules that change in place, kills and restarts that wait, and how long a kill may take.

use super::*;
use ostler_model::limits::{DRIVER_CALL_WALL_MAX, KILL_GRACE};
use ostler_testing::fake_driver::{Ending, Reply};

const DELAY: Duration = Duration::from_secs(60);

fn deaf() -> Script {
    Script { on_stop: Ending::Ignored, ..Script::runs() }
}

async fn running(bench: &Bench) -> TaskHandle {
    let handle = bench.spawn();
    until_running(&handle).await;
    handle
}

/// Seconds of virtual time from here to the end of the owner.
async fn seconds_to_the_end(bench: &Bench, handle: &TaskHandle) -> u64 {
    let before = bench.node.age();
    handle.wait_gone().await;
    (bench.node.age() - before).as_secs()
}

fn delayed() -> Bench {
    Bench::new(Task { shutdown_delay: Some(DELAY), ..web() })
}

#[tokio::test(start_paused = true)]
async fn a_kill_right_after_an_update_goes_by_the_new_rules() {
    let bench = Bench::new(web());
    bench.node.script("web", [deaf()]);
    let handle = running(&bench).await;
    let change = |signal: &str, seconds: u64| {
        let (signal, timeout) = (Some(signal.to_owned()), Duration::from_secs(seconds));
        move |task: &mut Task| (task.kill_signal, task.kill_timeout) = (signal, timeout)
    };
    handle.update(bench.changed(change("SIGQUIT", 2), 5));
    // Older ones, and the same again, are no news.
    handle.update(bench.changed(change("SIGHUP", 3), 4));
    handle.update(bench.changed(change("SIGUSR1", 3), 5));
    handle.kill(None, "wanted").await;
    assert_eq!(seconds_to_the_end(&bench, &handle).await, 2);
    assert_eq!(bench.count("stop web SIGQUIT"), 1);
    let killing = handle.state().events.clone().into_iter().find(|e| e.kind.as_str() == "Killing");
    assert_eq!(killing.unwrap().details["kill_timeout"], "2s");
    assert_eq!(bench.count("start web"), 1, "nothing was restarted");
}

#[tokio::test(start_paused = true)]
async fn a_new_restart_policy_decides_about_the_run_under_way() {
    for (before, after, starts) in [(3, 0, 1), (0, 1, 2)] {
        let bench = Bench::new(Task { restart: fixtures::restart(before, SECOND), ..web() });
        bench.node.script("web", [Script::ends(10 * SECOND, 1)]);
        let handle = running(&bench).await;
        let policy = fixtures::restart(after, SECOND);
        handle.update(bench.changed(|task| task.restart = policy, 5));
        handle.wait_gone().await;
        assert_eq!(bench.count("start web"), starts, "{before} then {after} attempts");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_reads_running_while_its_kill_waits() {
    let bench = delayed();
    let handle = running(&bench).await;
    handle.kill(None, "wanted").await;
    bench.pass(DELAY / 2).await;
    assert_eq!((handle.state().status, bench.node.live()), (TaskStatus::Running, 1));
    assert_eq!(kinds(&handle.state())[3..], ["Killing", "Waiting for shutdown delay"]);
    assert_eq!(seconds_to_the_end(&bench, &handle).await, 30);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_delay_changes_while_it_runs_and_counts_from_the_kill() {
    // Ten seconds after the kill it becomes this; so many seconds are left.
    for (changed, left) in [(None, 0), (Some(5), 0), (Some(30), 20), (Some(60), 50), (Some(90), 80)]
    {
        let bench = delayed();
        let handle = running(&bench).await;
        handle.kill(None, "wanted").await;
        until(&handle, |s| has(s, "Waiting for shutdown delay")).await;
        bench.pass(10 * SECOND).await;
        let delay = changed.map(Duration::from_secs);
        handle.update(bench.changed(|task| task.shutdown_delay = delay, 5));
        assert_eq!(seconds_to_the_end(&bench, &handle).await, left, "{changed:?}");
        assert_eq!(bench.count("stop web"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_delay_is_skipped_on_request_before_and_while_it_runs() {
    for first_skips in [true, false] {
        let bench = delayed();
        let handle = running(&bench).await;
        handle.kill_with(kill(first_skips)).await;
        handle.kill_with(kill(true)).await;
        assert_eq!(seconds_to_the_end(&bench, &handle).await, 0, "{first_skips}");
        let state = handle.state();
        assert_eq!(kinds(&state).iter().filter(|k| **k == "Skipping shutdown delay").count(), 1);
        assert_eq!(bench.count("stop web"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_that_skips_the_delay_does_so_also_when_the_start_was_on_its_way() {
    for skips_later in [true, false] {
        let bench = delayed();
        let slow = Script { start_takes: 3 * SECOND, ..Script::runs() };
        bench.node.script("web", [slow]);
        let handle = bench.spawn();
        while bench.count("start web") == 0 {
            clock::sleep(Duration::from_millis(1)).await;
        }
        handle.kill_with(kill(!skips_later)).await;
        if skips_later {
            handle.kill_with(kill(true)).await;
        }
        assert!(seconds_to_the_end(&bench, &handle).await <= 3);
        assert_eq!(bench.count("stop web"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_is_over_in_bounded_time_when_the_driver_never_answers_but_not_before_the_task() {
    for host_kill_works in [true, false] {
        let bench = delayed();
        let silent = Script {
            on_stop: Ending::Call(Reply::Hang),
            on_kill: Ending::Call(Reply::Hang),
            exited: Reply::Hang,
            destroy: Reply::Hang,
            host_kill_works,
            ..Script::runs()
        };
        bench.node.script("web", [silent]);
        let handle = running(&bench).await;
        handle.kill(None, "wanted").await;
        if !host_kill_works {
            bench.pass(600 * SECOND).await;
            assert_eq!(handle.state().status, TaskStatus::Running, "it is not over");
            bench.node.let_die();
        }
        let took = seconds_to_the_end(&bench, &handle).await;
        let bound = DELAY + 5 * SECOND + 2 * KILL_GRACE + 2 * DRIVER_CALL_WALL_MAX;
        assert!(took <= bound.as_secs(), "{took} s with {host_kill_works}");
        assert_eq!(handle.state().status, TaskStatus::Dead);
        assert!(bench.count("kill_run web") > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_wait_for_the_driver_either() {
    let bench = Bench::new(web());
    let silent = Script { on_stop: Ending::Call(Reply::Hang), ..Script::runs() };
    bench.node.script("web", [silent, Script::runs()]);
    let handle = running(&bench).await;
    let before = bench.node.age();
    handle.restart("asked").await.unwrap();
    assert!(bench.node.age() - before < SECOND, "accepted at once");
    until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
    assert_eq!((bench.node.age() - before).as_secs(), 5, "the kill timeout");
}

#[tokio::test(start_paused = true)]
async fn a_restart_waits_for_the_shutdown_delay_whoever_asks_for_it() {
    for asked in ["somebody", "a check", "all"] {
        let restart = fixtures::restart(3, SECOND);
        let bench = Bench::new(Task { shutdown_delay: Some(DELAY), restart, ..web() });
        let handle = running(&bench).await;
        let before = bench.node.age();
        match asked {
            "somebody" => handle.restart("asked").await.unwrap(),
            "a check" => handle.restart_unhealthy("asked").await.unwrap(),
            _ => handle.force_restart("asked").await.unwrap(),
        }
        assert!(bench.node.age() - before < SECOND, "accepted at once");
        bench.pass(DELAY / 2).await;
        assert_eq!((handle.state().status, bench.node.live()), (TaskStatus::Running, 1));
        assert_eq!(kinds(&handle.state())[3..], ["Restart Signaled", "Waiting for shutdown delay"]);
        assert_eq!(bench.count("stop web"), 0);
        until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
        let took = (bench.node.age() - before).as_secs();
        assert!((60..63).contains(&took), "{took} s for {asked}");
        assert_eq!((bench.count("stop web"), bench.count("start web")), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_while_a_restart_waits_ends_the_task_when_the_wait_is_over_or_at_once() {
    for (skips, left) in [(false, 40), (true, 0)] {
        let bench = delayed();
        let handle = running(&bench).await;
        handle.restart("asked").await.unwrap();
        bench.pass(20 * SECOND).await;
        handle.kill_with(kill(skips)).await;
        assert_eq!(seconds_to_the_end(&bench, &handle).await, left);
        assert_eq!((bench.count("stop web"), bench.count("start web")), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_goes_while_a_restart_waits_leaves_it_to_the_next_one() {
    for killed in [false, true] {
        let mut bench = delayed();
        bench.node.script("web", vec![native(Script::runs()); 2]);
        let handle = running(&bench).await;
        handle.restart("asked").await.unwrap();
        bench.pass(20 * SECOND).await;
        let before = bench.node.age();
        if killed {
            handle.owner.abort();
        } else {
            handle.shutdown().await;
        }
        handle.wait_gone().await;
        assert!(bench.node.age() - before < SECOND, "it does not wait");
        bench.reopen();
        let handle = bench.restore(bench.recorded());
        until(&handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
        assert_eq!((bench.count("stop web"), bench.count("start web")), (1, 2));
        handle.kill_with(kill(true)).await;
        handle.wait_gone().await;
    }
}
