//! Tests of writes that may lag, of flushing, and of the counts kept in the file.

use super::*;
use crate::backend::Backend as _;
use crate::testing::Fault;
use crate::{KeyPrefix, PutOutcome, StateError, Stats};
use ostler_model::limits::{STATE_BATCH_MAX, STATE_COUNTERS_COMMITS, STATE_QUEUE_MAX};
use tokio::task::JoinSet;

fn text(store: &StateStore, key: &RecordKey) -> Option<String> {
    store.get(key).unwrap()
}

/// Delay commits with one write of `DeviceLedger` in flight, so that later writes wait.
async fn busy(
    store: &StateStore,
    backend: &Arc<FaultyBackend>,
) -> (crate::testing::CommitHold, JoinSet<Result<PutOutcome, StateError>>) {
    let (held, commits) = (backend.hold(), backend.commits());
    let mut tasks = JoinSet::new();
    let writer = store.clone();
    tasks.spawn(async move { writer.put(&RecordKey::DeviceLedger, "busy").await });
    until(|| backend.commits() == commits + 1).await;
    (held, tasks)
}

#[tokio::test]
async fn a_write_that_may_lag_does_not_wait_and_is_durable_soon() {
    let (store, backend) = faulty_store();
    let key = RecordKey::Alloc(id(1));
    let held = backend.hold();
    assert_eq!(store.put_later(&key, "x").await.unwrap(), PutOutcome::Queued);
    assert_eq!(text(&store, &key), None);
    drop(held);
    until(|| text(&store, &key).is_some()).await;
    assert_eq!(store.put_later(&key, "x").await.unwrap(), PutOutcome::Unchanged);
    assert_eq!(store.put(&key, "x").await.unwrap(), PutOutcome::Unchanged);
}

#[tokio::test]
async fn a_durable_write_takes_everything_queued_before_it_along() {
    let (store, backend) = faulty_store();
    for n in 0..10 {
        assert_eq!(
            store.put_later(&RecordKey::Alloc(id(n)), "x").await.unwrap(),
            PutOutcome::Queued
        );
    }
    store.put(&RecordKey::DeviceLedger, "now").await.unwrap();
    for n in 0..10 {
        assert_eq!(text(&store, &RecordKey::Alloc(id(n))), Some("x".to_owned()));
    }
    // The first may have started the clock and gone alone on a slow machine, but they never go one
    // by one.
    assert!(backend.commits() <= 2, "{} commits", backend.commits());
}

/// Longer than any test.
const LONG: std::time::Duration = std::time::Duration::from_secs(3_600);

#[tokio::test]
async fn what_is_before_a_mark_goes_with_the_next_commit_and_draws_nothing_after_it_along() {
    let (store, backend) = faulty_store();
    store.put_later(&RecordKey::Alloc(id(1)), "x").await.unwrap();
    let mark = store.mark();
    let (waiter, writer) = (store.clone(), store.clone());
    let waiting = tokio::spawn(async move { waiter.wait_durable_to(mark, LONG).await });
    writer.put(&RecordKey::DeviceLedger, "now").await.unwrap();
    waiting.await.unwrap().unwrap();
    let held = backend.hold();
    store.put_later(&RecordKey::Alloc(id(2)), "y").await.unwrap();
    store.wait_durable_to(mark, LONG).await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(2))), None);
    drop(held);
}

#[tokio::test]
async fn what_is_before_a_mark_gets_a_commit_of_its_own_when_nobody_else_asks_for_one() {
    let (store, _backend) = faulty_store();
    store.put_later(&RecordKey::Alloc(id(1)), "x").await.unwrap();
    store.wait_durable_to(store.mark(), std::time::Duration::ZERO).await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))), Some("x".to_owned()));
}

#[tokio::test]
async fn a_mark_behind_a_failed_commit_is_reached_when_what_was_put_back_is_durable() {
    let (store, backend) = faulty_store();
    backend.plan([Some(Fault::Before)]);
    store.put_later(&RecordKey::Alloc(id(1)), "x").await.unwrap();
    let mark = store.mark();
    store.put(&RecordKey::DeviceLedger, "now").await.unwrap_err();
    store.wait_durable_to(mark, LONG).await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))), Some("x".to_owned()));
}

#[tokio::test]
async fn a_write_waits_for_those_that_are_expected_and_shares_their_commit() {
    let (store, backend) = faulty_store();
    let before = backend.commits();
    let coming = store.expect();
    let (early, late) = (store.clone(), store.clone());
    let first =
        tokio::spawn(
            async move { early.put_with_expected(&RecordKey::Alloc(id(1)), "x", LONG).await },
        );
    until(|| store.stats().later == 1).await;
    drop(coming);
    late.put_with_expected(&RecordKey::Alloc(id(2)), "y", LONG).await.unwrap();
    first.await.unwrap().unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))), Some("x".to_owned()));
    assert_eq!(backend.commits() - before, 1);
}

#[tokio::test]
async fn a_write_does_not_wait_longer_for_one_that_is_expected_than_it_said() {
    let (store, _backend) = faulty_store();
    let _never = store.expect();
    let linger = std::time::Duration::from_millis(1);
    store.put_with_expected(&RecordKey::Alloc(id(1)), "x", linger).await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))), Some("x".to_owned()));
}

#[tokio::test]
async fn flushing_waits_for_what_may_lag_and_writes_nothing_else() {
    let (store, backend) = faulty_store();
    store.flush().await.unwrap();
    assert_eq!(backend.commits(), 0);
    store.put_later(&RecordKey::DeviceLedger, "x").await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(text(&store, &RecordKey::DeviceLedger), Some("x".to_owned()));
    assert_eq!(backend.commits(), 1);
}

#[tokio::test]
async fn a_flush_fails_with_the_commit_it_waited_for() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    backend.plan([None, Some(Fault::Before)]);
    store.put_later(&RecordKey::Alloc(id(1)), "x").await.unwrap();
    let flusher = store.clone();
    let flush = tokio::spawn(async move { flusher.flush().await });
    until(|| store.stats().queued == 2).await;
    drop(held);
    assert!(matches!(flush.await.unwrap(), Err(StateError::Commit { .. })));
    tasks.join_next().await.unwrap().unwrap().unwrap();
    store.flush().await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))), Some("x".to_owned()));
}

#[tokio::test]
async fn a_newer_value_takes_the_place_of_one_that_still_waits() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    let key = RecordKey::Alloc(id(1));
    for n in 0..100 {
        assert_eq!(store.put_later(&key, &n.to_string()).await.unwrap(), PutOutcome::Queued);
    }
    assert_eq!(store.stats().queued, 1);
    assert_eq!(
        store.put_later(&key, "99").await.unwrap(),
        PutOutcome::Queued,
        "the same waits already"
    );
    drop(held);
    tasks.join_next().await.unwrap().unwrap().unwrap();
    store.flush().await.unwrap();
    assert_eq!(text(&store, &key), Some("99".to_owned()));
    let stats = store.stats();
    assert_eq!((stats.writes, stats.replaced, stats.later), (2, 100, 101));
    assert_eq!(store.put(&key, "99").await.unwrap(), PutOutcome::Unchanged);
}

#[tokio::test]
async fn a_value_never_takes_the_place_of_one_with_a_change_of_its_key_behind_it() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    let key = RecordKey::TaskState(id(1), task("web"));
    store.put_later(&key, "1").await.unwrap();
    let (putter, of) = (store.clone(), key.clone());
    tasks.spawn(async move { putter.put(&of, "2").await });
    until(|| store.stats().queued == 2).await;
    store.put_later(&key, "3").await.unwrap();
    assert_eq!(store.stats().queued, 3, "the third comes after the second");
    let (deleter, of) = (store.clone(), key.clone());
    let deleted = tokio::spawn(async move { deleter.delete(&of).await });
    until(|| store.stats().queued == 4).await;
    drop(held);
    deleted.await.unwrap().unwrap();
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    assert_eq!(text(&store, &key), None);
}

#[tokio::test]
async fn destroy_beats_a_write_that_lags() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    let key = RecordKey::TaskState(id(1), task("web"));
    store.put_later(&key, "1").await.unwrap();
    let destroyer = store.clone();
    let destroyed = tokio::spawn(async move { destroyer.destroy_alloc(id(1)).await });
    until(|| store.stats().queued == 2).await;
    assert_eq!(store.put_later(&key, "2").await.unwrap(), PutOutcome::Destroyed);
    drop(held);
    destroyed.await.unwrap().unwrap();
    tasks.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(text(&store, &key), None);
}

#[tokio::test]
async fn what_may_lag_is_tried_again_after_a_failed_commit() {
    for fault in [Fault::Before, Fault::After, Fault::Panic] {
        let (store, backend) = faulty_store();
        backend.plan([Some(fault), Some(fault)]);
        let key = RecordKey::Alloc(id(1));
        store.put_later(&key, "x").await.unwrap();
        until(|| store.stats().commits == 1).await;
        assert_eq!(text(&store, &key), Some("x".to_owned()));
        let stats = store.stats();
        assert_eq!((stats.commits_failed, stats.later_retried, stats.later_lost), (2, 2, 0));
        assert_eq!(store.put(&key, "x").await.unwrap(), PutOutcome::Unchanged);
    }
}

#[tokio::test]
async fn after_a_failed_commit_an_older_value_never_overtakes_a_newer_one() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    let (durable_after, later_after) = (RecordKey::Alloc(id(1)), RecordKey::Alloc(id(2)));
    backend.plan([None, Some(Fault::After)]);
    store.put_later(&durable_after, "old").await.unwrap();
    store.put_later(&later_after, "old").await.unwrap();
    let (putter, of) = (store.clone(), durable_after.clone());
    let put = tokio::spawn(async move { putter.put(&of, "new").await });
    until(|| store.stats().queued == 3).await;
    drop(held);
    assert!(matches!(put.await.unwrap(), Err(StateError::Commit { .. })));
    tasks.join_next().await.unwrap().unwrap().unwrap();
    store.put_later(&later_after, "new").await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(text(&store, &durable_after), Some("new".to_owned()), "not undone by the retry");
    assert_eq!(text(&store, &later_after), Some("new".to_owned()));
}

#[tokio::test]
async fn what_may_lag_and_finds_no_room_after_a_failed_commit_is_written_next_time() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    backend.plan([None, Some(Fault::Before)]);
    let lagging = RecordKey::Alloc(id(1));
    store.put_later(&lagging, "x").await.unwrap();
    // As many writes wait for room as take the places that the failed batch leaves.
    for n in 0..STATE_QUEUE_MAX + STATE_BATCH_MAX {
        let (writer, key) = (store.clone(), RecordKey::Alloc(id(100 + n as u128)));
        tasks.spawn(async move { writer.put(&key, "x").await });
    }
    until(|| store.stats().queued == STATE_QUEUE_MAX as u64).await;
    drop(held);
    tasks.join_all().await;
    let stats = store.stats();
    assert_eq!(stats.later_lost + stats.later_retried, 1);
    store.put(&lagging, "x").await.unwrap();
    assert_eq!(text(&store, &lagging), Some("x".to_owned()));
}

#[tokio::test]
async fn closing_writes_what_lags_and_then_takes_no_more() {
    let (store, backend) = faulty_store();
    store.put_later(&RecordKey::Alloc(id(1)), "x").await.unwrap();
    store.close().await;
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))), Some("x".to_owned()));
    let late = store.put_later(&RecordKey::Alloc(id(2)), "x").await;
    assert!(matches!(late, Err(StateError::Closed { .. })), "{late:?}");
    assert!(matches!(store.flush().await, Err(StateError::Closed { .. })));
    drop((store, backend));
}

#[tokio::test]
async fn without_deduplication_every_put_is_a_write() {
    let memory = Arc::new(MemBackend::default());
    let options = crate::StoreOptions { deduplicate: false, ..Default::default() };
    let store = StateStore::with_backend_and(Path::new("(test)"), memory, options).unwrap();
    for _ in 0..3 {
        assert_eq!(store.put(&RecordKey::DeviceLedger, "x").await.unwrap(), PutOutcome::Written);
    }
    assert_eq!(store.stats().commits, 3);
}

#[tokio::test]
async fn counts_are_kept_in_the_file_and_add_up() {
    let memory = Arc::new(MemBackend::default());
    let kept = || {
        let key = RecordKey::Counters;
        let record = memory.get(&key.encode()).unwrap()?;
        crate::codec::decode::<Stats>(key.kind(), &record).ok()
    };
    for opening in 1..=3u64 {
        let store = StateStore::with_backend(Path::new("(test)"), memory.clone()).unwrap();
        store.put(&RecordKey::DeviceLedger, &opening).await.unwrap();
        store.put(&RecordKey::DeviceLedger, &opening).await.unwrap();
        assert_eq!(
            store.open_report().records,
            opening.min(2) - 1,
            "counts are no record of the agent"
        );
        drop(store);
        let kept = kept().unwrap();
        assert_eq!((kept.puts, kept.unchanged, kept.commits), (2 * opening, opening, opening));
    }
    let store = StateStore::with_backend(Path::new("(test)"), memory.clone()).unwrap();
    let before = kept().unwrap().commits;
    for n in 0..STATE_COUNTERS_COMMITS {
        store.put(&RecordKey::DeviceLedger, &(100 + n)).await.unwrap();
    }
    assert_eq!(kept().unwrap().commits, before + STATE_COUNTERS_COMMITS - 1, "while it is open");
}

#[tokio::test]
async fn what_goes_ahead_without_waiting_takes_the_next_commit_or_is_told_that_there_is_no_room() {
    let (store, backend) = faulty_store();
    let (held, mut tasks) = busy(&store, &backend).await;
    let ahead = store.try_put_ahead(&RecordKey::Alloc(id(1)), "intent").unwrap().unwrap();
    let same = store.try_put_ahead(&RecordKey::Alloc(id(1)), "intent").unwrap().unwrap();
    store.put_later(&RecordKey::Alloc(id(2)), "x").await.unwrap();
    let before = backend.commits();
    drop(held);
    assert_eq!(ahead.wait_durable().await.unwrap(), PutOutcome::Written);
    assert_eq!(same.wait_durable().await.unwrap(), PutOutcome::Written);
    assert_eq!(text(&store, &RecordKey::Alloc(id(1))).as_deref(), Some("intent"));
    assert_eq!(backend.commits(), before + 1, "all of it in one commit");
    while tasks.join_next().await.is_some() {}

    let held = backend.hold();
    let mut full = 0_u128;
    // The writes that the writer took for the delayed commit are no longer in the queue.
    let most = 2 * u128::try_from(STATE_QUEUE_MAX).unwrap();
    while store.try_put_ahead(&RecordKey::Alloc(id(100 + full)), "x").unwrap().is_some() {
        full += 1;
        assert!(full <= most, "the queue is bounded");
    }
    drop(held);
    while tasks.join_next().await.is_some() {}
    store.close().await;
    assert!(
        store.try_put_ahead(&RecordKey::Alloc(id(1)), "later").is_err(),
        "a closed store takes nothing"
    );
}

#[tokio::test]
async fn a_group_is_removed_with_what_is_queued_of_it_and_is_written_again_afterwards() {
    let (store, backend) = faulty_store();
    let (web, db) = (JobId::new("web").unwrap(), JobId::new("db").unwrap());
    let (of_web, of_db) = (RecordKey::JobVersions(web.clone()), RecordKey::JobVersions(db));
    store.put(&of_db, "kept").await.unwrap();
    // None of these is on disk when they are removed.
    let (held, mut tasks) = busy(&store, &backend).await;
    store.put_later(&of_web, "queued").await.unwrap();
    let (remover, group) = (store.clone(), KeyPrefix::BesideJob(web));
    let removed = tokio::spawn(async move { remover.delete_all(&group).await });
    until(|| store.stats().queued == 2).await;
    drop(held);
    tasks.join_next().await.unwrap().unwrap().unwrap();
    removed.await.unwrap().unwrap();
    assert_eq!((text(&store, &of_web), text(&store, &of_db)), (None, Some("kept".to_owned())));
    assert_eq!(store.put(&of_web, "queued").await.unwrap(), PutOutcome::Written);
    assert_eq!(text(&store, &of_web), Some("queued".to_owned()));
}
