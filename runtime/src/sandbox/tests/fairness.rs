//! Busy guests neither hold up other guests nor the control runtime; idle ones cost nothing.

use super::*;
use crate::clock::Stopwatch;

#[tokio::test]
async fn spinning_guests_on_every_thread_hold_up_neither_calls_nor_timers() {
    let bench = Bench::new();
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let spinners: Vec<_> = (0..bench.sandbox.guest_threads() * 2)
        .map(|_| {
            let guest =
                run_export(&bench.sandbox, Arc::clone(&spin), StoreLimits::default(), |_| {});
            bench.sandbox.spawn(guest)
        })
        .collect();
    let mut timer = Duration::MAX;
    for _ in 0..5 {
        let call = bench.call(&plain(NOTHING), StoreLimits::default(), PATIENCE).await;
        assert!(call.result.is_ok(), "{:?}", call.result);
        let watch = Stopwatch::start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        timer = timer.min(watch.elapsed());
    }
    // The best of five, since the machine may be busy. On a shared runtime each is half a second late.
    assert!(timer < Duration::from_millis(400), "a timer of 20 ms took {timer:?}");
    for mut spinner in spinners {
        assert!(spinner.cpu().total() > Duration::ZERO);
        spinner.abort();
        assert!(matches!(spinner.join().await, Err(CallError::Cancelled)));
    }
}

#[tokio::test]
async fn processor_time_is_counted_while_a_guest_runs_and_not_while_it_waits() {
    let bench = Bench::new();
    let mut waiting = bench.sandbox.spawn(async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    });
    waiting.join().await.unwrap();
    assert!(waiting.cpu().total() < Duration::from_millis(100), "{:?}", waiting.cpu());

    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let spinner =
        bench.sandbox.spawn(run_export(&bench.sandbox, spin, StoreLimits::default(), |_| {}));
    let counted = async {
        while spinner.cpu().total() < Duration::from_millis(50) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("its time is counted while it runs");
}

#[tokio::test]
async fn the_ticker_sleeps_when_no_guest_runs_and_wakes_for_the_next() {
    let bench = Bench::new();
    let asleep = async {
        while !bench.sandbox.ticker_asleep() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asleep).await.expect("the ticker falls asleep");
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let mut spinner =
        bench.sandbox.spawn(run_export(&bench.sandbox, spin, StoreLimits::default(), |_| {}));
    let counted = async {
        while spinner.cpu().total() == Duration::ZERO {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Time is added when a poll ends, and only a tick ends this one.
    tokio::time::timeout(PATIENCE, counted).await.expect("the spinning guest yields");
    spinner.abort();
    assert!(matches!(spinner.join().await, Err(CallError::Cancelled)));
}

#[tokio::test]
async fn a_sandbox_may_be_dropped_inside_asynchronous_code_with_guests_running() {
    let bench = Bench::new();
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let (gone, dropped) = tokio::sync::oneshot::channel();
    let guest = run_export(&bench.sandbox, spin, StoreLimits::default(), |state| {
        state.gone = Some(gone);
    });
    let mut task = bench.sandbox.spawn(guest);
    let counted = async {
        while task.cpu().total() == Duration::ZERO {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("the guest runs");
    drop(bench);
    assert!(matches!(task.join().await, Err(CallError::Cancelled)));
    tokio::time::timeout(PATIENCE, dropped).await.expect("the store is dropped").unwrap();
}
