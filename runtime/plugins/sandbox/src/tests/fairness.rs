//! Busy guests neither hold up other guests nor the control runtime; idle ones cost nothing.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use ostler_model::clock::Stopwatch;

#[tokio::test]
async fn spinning_guests_on_every_thread_hold_up_neither_calls_nor_timers() {
    let bench = Bench::new();
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let idle = least_timer().await;
    let spinners: Vec<_> = (0..bench.sandbox.guest_threads() * 2)
        .map(|_| {
            let guest =
                run_export(&bench.sandbox, Arc::clone(&spin), StoreLimits::default(), |_| {});
            bench.sandbox.spawn(guest)
        })
        .collect();
    for _ in 0..5 {
        let call = bench.call(&plain(NOTHING), StoreLimits::default(), PATIENCE).await;
        assert!(call.result.is_ok(), "{:?}", call.result);
    }
    // On a shared runtime each is half a second late.
    let timer = least_timer().await;
    assert!(timer < 20 * idle, "a timer took {timer:?}, and {idle:?} before");
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

#[tokio::test]
async fn tasks_that_compute_at_the_same_time_get_processor_time_by_their_weight() {
    let bench = Bench::new();
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let threads = u32::try_from(bench.sandbox.guest_threads()).unwrap();
    // Two to a place and more, none so heavy that one place is too little for it.
    let weights: Vec<u32> = (0..2 * threads).map(|n| if n % 2 == 0 { 100 } else { 200 }).collect();
    let tasks: Vec<_> = weights
        .iter()
        .map(|weight| {
            let code = Arc::clone(&spin);
            let guest = run_export(&bench.sandbox, code, StoreLimits::default(), |_| {});
            bench.sandbox.spawn_task(guest, *weight)
        })
        .collect();
    // Counted in processor time, so that it does not matter what else the machine does.
    let had = |task: &GuestTask<Vec<Val>>| task.cpu().total().as_secs_f64();
    let counted = async {
        while tasks.iter().map(had).sum::<f64>() < 1.5 * f64::from(threads) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("they compute");
    let each: Vec<f64> = tasks.iter().map(had).collect();
    let by_weight = each.iter().zip(&weights).map(|(had, weight)| had / f64::from(*weight));
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    by_weight.for_each(|share| (least, most) = (least.min(share), most.max(share)));
    println!("weights {weights:?}: {each:.3?} s; per weight {:.3} apart", most / least);
    assert!(most / least < 1.2, "{each:?} for {weights:?}");
    tasks.iter().for_each(GuestTask::abort);
}

#[tokio::test]
async fn a_heavy_task_leaves_the_light_ones_their_share_and_they_leave_it_its_own() {
    let bench = Bench::new();
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let start = |weight| {
        let guest = run_export(&bench.sandbox, Arc::clone(&spin), StoreLimits::default(), |_| {});
        bench.sandbox.spawn_task(guest, weight)
    };
    // As many light ones as make one heavy task's share exactly one thread's.
    let threads = u32::try_from(bench.sandbox.guest_threads()).unwrap();
    let heavy = start(1_000 * threads);
    let light: Vec<_> = (0..4 * threads).map(|_| start(250 * (threads - 1))).collect();
    let had = |task: &GuestTask<Vec<Val>>| task.cpu().total().as_secs_f64();
    let all = || (had(&heavy), light.iter().map(had).sum::<f64>());
    let wanted = 1.0 / f64::from(threads);
    let fair = |(heavy, light)| (wanted * 0.8..wanted * 1.2).contains(&(heavy / (heavy + light)));
    // What else the machine does takes time from one of the threads; in the long run from each.
    let counted = async {
        while had(&heavy) < 1.0 || !fair(all()) && had(&heavy) < 5.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.expect("it computes");
    let (heavy, light) = all();
    let share = heavy / (heavy + light);
    println!("the heavy task had {share:.3} of all; its weight is 1/{threads} of all");
    assert!(fair((heavy, light)), "{share} of {heavy} + {light}");
}

#[tokio::test]
async fn a_call_that_spins_leaves_the_threads_of_short_calls_within_a_tick() {
    let bench = Bench::new();
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let spinners: Vec<_> = (0..12)
        .map(|_| {
            let code = Arc::clone(&spin);
            let guest = run_export(&bench.sandbox, code, StoreLimits::default(), |_| {});
            bench.sandbox.spawn(guest)
        })
        .collect();
    let left = async {
        while bench.sandbox.calls_alive() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, left).await.expect("they go on among the busy");
    let computing = async {
        while spinners.iter().any(|task| task.cpu().total() < 10 * ostler_model::limits::EPOCH_TICK)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, computing).await.expect("they still compute");
    let call = bench.call(&plain(NOTHING), StoreLimits::default(), PATIENCE).await;
    assert!(call.result.is_ok(), "{:?}", call.result);
    for mut spinner in spinners {
        spinner.abort();
        assert!(matches!(spinner.join().await, Err(CallError::Cancelled)));
    }
}

/// A host function that holds its thread, as one does that fills all memory or waits for a disk.
async fn holds_its_thread(yields: Arc<AtomicU32>) -> Result<(), CallError> {
    loop {
        let watch = Stopwatch::start();
        while watch.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        yields.fetch_add(1, Ordering::SeqCst);
        yield_once().await;
    }
}

#[tokio::test]
async fn a_task_goes_on_beside_as_many_that_hold_their_threads_as_there_are_places() {
    const TURNS: u32 = 200;
    let (bench, yields) = (Bench::new(), Arc::new(AtomicU32::new(0)));
    let holders: Vec<_> = (0..bench.sandbox.guest_threads())
        .map(|_| bench.sandbox.spawn_task(holds_its_thread(Arc::clone(&yields)), 100))
        .collect();
    let mut honest = bench.sandbox.spawn_task(
        async {
            for _ in 0..TURNS {
                yield_once().await;
            }
            Ok(())
        },
        100,
    );
    honest.join().await.unwrap();
    // With a place only when one of them yields there would be a yield for each turn.
    let yields = yields.load(Ordering::SeqCst);
    assert!(yields < TURNS / 2, "{yields} yields");
    drop(holders);
}
