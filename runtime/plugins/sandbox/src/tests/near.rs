//! Guests that begin on their caller's thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use ostler_model::clock::Stopwatch;
use ostler_model::limits::{INLINE_REST, INLINE_TRIAL_CALLS};

/// The pace of a plugin whose calls were quick so far.
fn quick() -> CallPace {
    let pace = CallPace::default();
    (0..INLINE_TRIAL_CALLS).for_each(|_| pace.record_end(Duration::ZERO));
    pace
}

fn spawn<T, F>(bench: &Bench, pace: &CallPace, guest: F) -> GuestTask<T>
where
    F: Future<Output = Result<T, CallError>> + Send + 'static,
    T: Send + 'static,
{
    bench.sandbox.spawn_near(pace, guest, CpuMeter::default(), PATIENCE, HostBlocking::Maybe)
}

/// The thread on which a guest begins.
async fn here() -> Result<std::thread::ThreadId, CallError> {
    Ok(std::thread::current().id())
}

#[tokio::test]
async fn a_quick_guest_begins_and_ends_on_its_callers_thread_after_one_that_did_not() {
    let (bench, me) = (Bench::new(), std::thread::current().id());
    let pace = CallPace::default();
    let mut first = spawn(&bench, &pace, here());
    assert!(first.take_inline_result().is_none());
    assert_ne!(first.join().await.unwrap(), me);
    pace.record_end(first.cpu().total());
    let near = spawn(&bench, &quick(), here()).take_inline_result();
    assert_eq!(near.unwrap().unwrap(), me);
}

#[tokio::test]
async fn a_guest_that_spins_leaves_its_callers_thread_and_ends_at_its_deadline() {
    let bench = Bench::new();
    let code = bench.load(&plain(SPIN)).await.unwrap();
    let (gone, dropped) = tokio::sync::oneshot::channel();
    let (began, me) = (Arc::new(AtomicUsize::new(0)), std::thread::current().id());
    let counted = Arc::clone(&began);
    let guest = run_export(&bench.sandbox, code, StoreLimits::default(), move |state| {
        state.gone = Some(gone);
        counted.fetch_add(usize::from(std::thread::current().id() == me), Ordering::SeqCst);
    });
    // Returns: the tick made the guest yield.
    let mut task = spawn(&bench, &quick(), guest);
    assert_eq!(began.load(Ordering::SeqCst), 1, "it began here");
    assert!(task.cpu().total() > Duration::ZERO, "its time here is counted");
    assert!(task.take_inline_result().is_none());
    let answer = ostler_model::clock::timeout(Duration::from_millis(50), task.join()).await;
    assert!(answer.is_none(), "{answer:?}");
    task.abort();
    assert!(matches!(task.join().await, Err(CallError::Cancelled)));
    tokio::time::timeout(PATIENCE, dropped).await.expect("the store is dropped").unwrap();
}

#[tokio::test]
async fn of_many_spinning_guests_hardly_more_than_one_hold_their_caller_in_each_rest() {
    let bench = Bench::with_instances(64);
    let code = bench.load(&plain(SPIN)).await.unwrap();
    let (near, me) = (Arc::new(AtomicUsize::new(0)), std::thread::current().id());
    let idle = least_timer().await;
    let watch = Stopwatch::start();
    // Each of a plugin of its own, so that only what all share can stop them.
    let spinners: Vec<_> = (0..64)
        .map(|_| {
            let near = Arc::clone(&near);
            let limits = StoreLimits::default();
            let guest = run_export(&bench.sandbox, Arc::clone(&code), limits, move |_| {
                near.fetch_add(usize::from(std::thread::current().id() == me), Ordering::SeqCst);
            });
            spawn(&bench, &quick(), guest)
        })
        .collect();
    let took = watch.elapsed();
    let (near, rests) = (near.load(Ordering::SeqCst), took.div_duration_f64(INLINE_REST) as usize);
    // A guest that began just before a tick held its caller for such a short time that no rest
    // followed: one in ten. Three in a row are not counted.
    assert!(near >= 1 && near <= 1 + rests + 3, "{near} in {took:?}");
    // And the agent's timers go on, however many spin.
    let timer = least_timer().await;
    assert!(timer < 20 * idle, "a timer took {timer:?}, and {idle:?} before");
    for mut spinner in spinners {
        spinner.abort();
        assert!(matches!(spinner.join().await, Err(CallError::Cancelled)));
    }
}

#[tokio::test]
async fn a_guest_that_waits_goes_on_on_a_guest_thread() {
    let (bench, me) = (Bench::new(), std::thread::current().id());
    let mut task = spawn(&bench, &quick(), async move {
        assert_eq!(std::thread::current().id(), me);
        tokio::time::sleep(Duration::from_millis(1)).await;
        here().await
    });
    assert!(task.take_inline_result().is_none());
    assert_ne!(task.join().await.unwrap(), me);
}

#[tokio::test]
async fn what_may_block_is_done_on_a_guest_thread_and_what_ran_there_before_did_not_move() {
    let (bench, me) = (Bench::new(), std::thread::current().id());
    let mut task = spawn(&bench, &quick(), async move {
        assert_eq!(std::thread::current().id(), me);
        crate::leave_caller().await;
        let there = here().await?;
        crate::leave_caller().await;
        assert_eq!(there, here().await?, "it is not sent away twice");
        Ok(there)
    });
    assert!(task.take_inline_result().is_none());
    assert_ne!(task.join().await.unwrap(), me);
}

#[tokio::test]
async fn a_host_function_that_panics_ends_only_its_call_there_too() {
    let bench = Bench::new();
    let mut task = spawn(&bench, &quick(), async { panic!("host fell over") as Result<(), _> });
    match task.take_inline_result() {
        Some(Err(CallError::HostPanic { message })) => assert_eq!(message, "host fell over"),
        other => panic!("{other:?}"),
    }
}
