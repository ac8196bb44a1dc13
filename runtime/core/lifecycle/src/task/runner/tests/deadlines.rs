//! How long calls of a driver are waited for, and what becomes of those that never answer.

use super::*;
use ostler_testing::fake_driver::{Ending, Reply};

const LONG: Duration = Duration::from_secs(60);

fn hangs_in_stop(poll: Option<Duration>) -> Script {
    let on_stop = Ending::Call(Reply::Hang);
    Script { poll, on_stop, ..Script::runs() }
}

#[tokio::test(start_paused = true)]
async fn a_driver_with_a_longer_deadline_of_its_own_is_waited_for_as_long() {
    for (wall, bound) in [(5 * SECOND, 15 * SECOND), (LONG, 2 * LONG + 5 * SECOND)] {
        let task = Task { kill_timeout: 10 * LONG, ..web() };
        let bench = Bench::of(JobKind::Service, task);
        bench.node.set_call_wall(wall);
        bench.node.script("web", [hangs_in_stop(None)]);
        let handle = bench.spawn();
        until_running(&handle).await;
        let before = bench.node.age();
        handle.kill(None, "wanted").await;
        handle.wait_gone().await;
        // The task may be over before.
        ostler_model::clock::sleep(3 * LONG).await;
        let given_up = bench.node.when("given up: stop web").expect("it counts");
        let waited = given_up - before;
        assert!(waited >= bound && waited < bound + SECOND, "{waited:?}, not {bound:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_hangs_counts_also_when_the_task_is_over_before_it_is_given_up() {
    let task = Task { kill_timeout: SECOND, ..web() };
    let bench = Bench::of(JobKind::Service, task);
    bench.node.script("web", [hangs_in_stop(None)]);
    let handle = bench.spawn();
    until_running(&handle).await;
    handle.kill(None, "wanted").await;
    handle.wait_gone().await;
    assert_eq!(bench.count("given up: stop web"), 0, "not yet");
    ostler_model::clock::sleep(LONG).await;
    assert_eq!(bench.count("given up: stop web"), 1);
}
