//! What a driver says reaches its own task, in order, and no task that is over.

use super::*;
use ostler_model::limits::DRIVER_EVENTS_QUEUE_MAX;

/// What the driver said, as the task tells it.
fn said(handle: &TaskHandle) -> Vec<String> {
    let events = handle.state().events.clone();
    events.into_iter().filter(|e| e.kind.as_str() == "Driver").map(|e| e.message).collect()
}

fn heard(state: &TaskState, message: &str) -> bool {
    state.events.iter().any(|event| event.message == message)
}

#[tokio::test(start_paused = true)]
async fn what_a_driver_says_reaches_its_own_task_in_order_and_no_task_that_is_over() {
    let (first, second) = (Bench::new(web()), Bench::new(web()));
    for bench in [&first, &second] {
        bench.node.script("web", [Script::runs()]);
    }
    let (one, other) = (first.spawn(), second.spawn());
    until_running(&one).await;
    until_running(&other).await;
    let of = |bench: &Bench| Arc::clone(&bench.node.contexts()[0].events);
    let (to_one, to_other) = (of(&first), of(&second));
    for number in 0..10 {
        to_one(format!("one {number}"), Vec::new());
        to_other(format!("other {number}"), Vec::new());
    }
    until(&one, |state| heard(state, "one 9")).await;
    until(&other, |state| heard(state, "other 9")).await;
    let expected = |who: &str| (0..10).map(|n| format!("{who} {n}")).collect::<Vec<_>>();
    assert_eq!(said(&one), expected("one"));
    assert_eq!(said(&other), expected("other"));

    one.kill(None, "wanted").await;
    one.wait_gone().await;
    let before = one.state().events.len();
    to_one("too late".to_owned(), Vec::new());
    to_other("still here".to_owned(), Vec::new());
    until(&other, |state| heard(state, "still here")).await;
    assert_eq!(one.state().events.len(), before, "{:?}", one.state().events);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_says_more_than_is_read_does_not_wait_and_the_task_says_how_much_is_lost() {
    let bench = Bench::new(web());
    bench.node.script("web", [Script::runs()]);
    let handle = bench.spawn();
    until_running(&handle).await;
    let say = Arc::clone(&bench.node.contexts()[0].events);
    // Nothing else runs meanwhile: the owner reads none of it.
    for number in 0..DRIVER_EVENTS_QUEUE_MAX + 7 {
        say(number.to_string(), Vec::new());
    }
    let last = (DRIVER_EVENTS_QUEUE_MAX - 1).to_string();
    until(&handle, |state| heard(state, &last)).await;
    say("next".to_owned(), Vec::new());
    let state = until(&handle, |state| heard(state, "next")).await;
    let next = state.events.iter().find(|event| event.message == "next").unwrap();
    assert_eq!(next.details[crate::task::notes::LOST], "7");
}
