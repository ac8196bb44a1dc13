//! Tests of acknowledgement, deduplication, grouping, failure, destroy and shutdown.

use super::*;
use crate::testing::Fault;
use crate::testing::decode_any;
use crate::{BackendError, KeyPrefix, PutOutcome, StateError};
use ostler_model::alloc::AllocState;
use ostler_model::limits::{STATE_BATCH_MAX, STATE_QUEUE_MAX, STATE_VALUE_BYTES_MAX};
use tokio::task::JoinSet;

/// `put` on a task of its own.
fn spawn_put(
    tasks: &mut JoinSet<Result<PutOutcome, StateError>>,
    store: &StateStore,
    key: RecordKey,
    value: impl Into<String>,
) {
    let (store, value) = (store.clone(), value.into());
    tasks.spawn(async move { store.put(&key, &value).await });
}

#[tokio::test]
async fn an_allocation_with_every_field_set_comes_back_as_it_was() {
    let store = StateStore::in_memory().unwrap();
    let alloc = allocation(id(1));
    let state = AllocState {
        tasks: BTreeMap::from([(task("web"), Default::default())]).into(),
        ..Default::default()
    };
    store.put(&RecordKey::Alloc(alloc.id), &alloc).await.unwrap();
    store.put(&RecordKey::AllocState(alloc.id), &state).await.unwrap();
    assert_eq!(store.get::<Allocation>(&RecordKey::Alloc(alloc.id)).unwrap().unwrap(), alloc);
    let records = store.scan(&KeyPrefix::Allocs).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].key, RecordKey::Alloc(alloc.id));
    assert_eq!(records[0].decode::<Allocation>().unwrap(), alloc);
    assert_eq!(decode_any::<AllocState>(&records[1]).unwrap(), state);
}

#[tokio::test]
async fn writing_the_same_again_commits_nothing() {
    let (store, backend) = faulty_store();
    let (key, alloc) = (RecordKey::Alloc(id(1)), allocation(id(1)));
    assert_eq!(store.put(&key, &alloc).await.unwrap(), PutOutcome::Written);
    let commits = backend.commits();
    for _ in 0..100 {
        assert_eq!(store.put(&key, &alloc).await.unwrap(), PutOutcome::Unchanged);
    }
    assert_eq!(backend.commits(), commits);
    let stats = store.stats();
    assert_eq!((stats.puts, stats.unchanged, stats.writes, stats.commits), (101, 100, 1, 1));
}

#[tokio::test]
async fn a_deleted_record_is_written_again() {
    let store = StateStore::in_memory().unwrap();
    let key = RecordKey::DeviceLedger;
    store.put(&key, "a").await.unwrap();
    store.delete(&key).await.unwrap();
    assert_eq!(text(&store, &key), None);
    assert_eq!(store.put(&key, "a").await.unwrap(), PutOutcome::Written);
    assert_eq!(text(&store, &key), Some("a".to_owned()));
}

#[tokio::test]
async fn a_failed_commit_fails_its_waiter_and_the_same_put_then_writes() {
    for fault in [Fault::Before, Fault::After, Fault::Panic] {
        let (store, backend) = faulty_store();
        let key = RecordKey::NodeRegistration;
        store.put(&key, "old").await.unwrap();
        backend.plan([Some(fault)]);
        let error = store.put(&key, "new").await.unwrap_err();
        assert!(matches!(error, StateError::Commit { .. }), "{error:?}");
        assert_eq!(store.put(&key, "new").await.unwrap(), PutOutcome::Written, "{fault:?}");
        assert_eq!(text(&store, &key), Some("new".to_owned()));
        assert_eq!(store.put(&key, "new").await.unwrap(), PutOutcome::Unchanged);
        assert_eq!(store.stats().commits_failed, 1);
    }
}

#[tokio::test]
async fn after_a_lost_acknowledgement_the_old_value_is_written_again() {
    let (store, backend) = faulty_store();
    let key = RecordKey::DeviceLedger;
    store.put(&key, "old").await.unwrap();
    backend.plan([Some(Fault::After)]);
    store.put(&key, "new").await.unwrap_err();
    assert_eq!(store.put(&key, "old").await.unwrap(), PutOutcome::Written);
    assert_eq!(text(&store, &key), Some("old".to_owned()));
}

#[tokio::test]
async fn a_failed_commit_fails_exactly_the_waiters_of_its_batch() {
    let (store, backend) = faulty_store();
    backend.plan([None, Some(Fault::Before), None]);
    let (mut first, mut second, mut third) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    let held = backend.hold();
    spawn_put(&mut first, &store, RecordKey::Alloc(id(0)), "first");
    until(|| backend.commits() == 1).await;
    // These are queued while the first commit is delayed: one full batch, and one more after it.
    for n in 0..STATE_BATCH_MAX {
        spawn_put(&mut second, &store, RecordKey::Alloc(id(100 + n as u128)), "second");
    }
    until(|| store.stats().queued == STATE_BATCH_MAX as u64).await;
    spawn_put(&mut third, &store, RecordKey::Alloc(id(9)), "third");
    until(|| store.stats().queued == STATE_BATCH_MAX as u64 + 1).await;
    drop(held);
    assert!(first.join_all().await.iter().all(Result::is_ok));
    let second = second.join_all().await;
    assert_eq!(second.len(), STATE_BATCH_MAX);
    assert!(second.iter().all(|result| matches!(
        result,
        Err(StateError::Commit { source, .. }) if matches!(**source, BackendError::Injected { commit: 2 })
    )));
    assert!(third.join_all().await.iter().all(Result::is_ok));
    assert_eq!(text(&store, &RecordKey::Alloc(id(100))), None);
    assert_eq!(text(&store, &RecordKey::Alloc(id(9))), Some("third".to_owned()));
}

#[tokio::test]
async fn a_key_with_a_write_on_its_way_is_not_taken_as_unchanged() {
    let (store, backend) = faulty_store();
    let key = RecordKey::DeviceLedger;
    store.put(&key, "a").await.unwrap();
    let held = backend.hold();
    let mut tasks = JoinSet::new();
    spawn_put(&mut tasks, &store, key.clone(), "b");
    until(|| backend.commits() == 2).await;
    spawn_put(&mut tasks, &store, key.clone(), "a");
    until(|| store.stats().queued == 1).await;
    drop(held);
    tasks.join_all().await;
    assert_eq!(text(&store, &key), Some("a".to_owned()));
}

#[tokio::test]
async fn writes_of_one_key_keep_their_order_within_and_across_batches() {
    let (store, backend) = faulty_store();
    let key = RecordKey::DeviceLedger;
    let mut tasks = JoinSet::new();
    let held = backend.hold();
    spawn_put(&mut tasks, &store, key.clone(), "0");
    until(|| backend.commits() == 1).await;
    for n in 1..20u64 {
        spawn_put(&mut tasks, &store, key.clone(), n.to_string());
        until(|| store.stats().queued == n).await;
    }
    drop(held);
    tasks.join_all().await;
    assert_eq!(text(&store, &key), Some("19".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_writers_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(&dir.path().join("state.redb")).unwrap();
    let mut tasks = JoinSet::new();
    for writer in 0..64u128 {
        let store = store.clone();
        tasks.spawn(async move {
            for round in 0..10u64 {
                let put = store.put(&RecordKey::AllocState(id(writer)), &round).await.unwrap();
                assert_eq!(put, PutOutcome::Written);
            }
        });
    }
    tasks.join_all().await;
    let stats = store.stats();
    assert_eq!(stats.writes, 640);
    assert!(stats.commits * 4 < stats.writes, "{stats:?}");
    assert!(stats.batch_largest > 1, "{stats:?}");
    for writer in 0..64 {
        assert_eq!(store.get::<u64>(&RecordKey::AllocState(id(writer))).unwrap(), Some(9));
    }
}

#[tokio::test]
async fn callers_wait_when_the_queue_is_full_and_nothing_is_lost() {
    let (store, backend) = faulty_store();
    let held = backend.hold();
    let mut tasks = JoinSet::new();
    spawn_put(&mut tasks, &store, RecordKey::Alloc(id(0)), "x");
    until(|| backend.commits() == 1).await;
    let writes = STATE_QUEUE_MAX + 50;
    for n in 1..=writes {
        spawn_put(&mut tasks, &store, RecordKey::Alloc(id(n as u128)), "x");
    }
    until(|| store.stats().queued == STATE_QUEUE_MAX as u64).await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.stats().queued, STATE_QUEUE_MAX as u64);
    drop(held);
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    assert_eq!(store.scan(&KeyPrefix::Allocs).unwrap().len(), writes + 1);
    assert!(store.stats().batch_largest <= STATE_BATCH_MAX as u64);
}

#[tokio::test]
async fn a_waiter_that_gives_up_loses_nothing_for_others() {
    let (store, backend) = faulty_store();
    let held = backend.hold();
    let mut tasks = JoinSet::new();
    spawn_put(&mut tasks, &store, RecordKey::Alloc(id(1)), "x");
    until(|| backend.commits() == 1).await;
    spawn_put(&mut tasks, &store, RecordKey::Alloc(id(2)), "x");
    until(|| store.stats().queued == 1).await;
    tasks.shutdown().await;
    drop(held);
    store.put(&RecordKey::Alloc(id(3)), "x").await.unwrap();
    assert_eq!(store.scan(&KeyPrefix::Allocs).unwrap().len(), 3);
    assert_eq!(store.put(&RecordKey::Alloc(id(2)), "x").await.unwrap(), PutOutcome::Unchanged);
}

#[tokio::test]
async fn destroy_removes_everything_of_one_allocation_and_beats_late_persists() {
    let (store, _) = faulty_store();
    let web = task("web");
    for n in [1, 2] {
        store.put(&RecordKey::Alloc(id(n)), "spec").await.unwrap();
        store.put(&RecordKey::AllocState(id(n)), "state").await.unwrap();
        store.put(&RecordKey::TaskLocal(id(n), web.clone()), "local").await.unwrap();
        store.put(&RecordKey::TaskState(id(n), web.clone()), "state").await.unwrap();
    }
    store.destroy_alloc(id(1)).await.unwrap();
    let late = store.put(&RecordKey::TaskState(id(1), web.clone()), "late").await.unwrap();
    assert_eq!(late, PutOutcome::Destroyed);
    let same = store.put(&RecordKey::Alloc(id(1)), "spec").await.unwrap();
    assert_eq!(same, PutOutcome::Destroyed);
    let left = store.scan(&KeyPrefix::Allocs).unwrap();
    assert_eq!(left.len(), 4);
    assert!(left.iter().all(|record| record.key.alloc() == Some(id(2))));
    assert_eq!(store.put(&RecordKey::Alloc(id(2)), "spec").await.unwrap(), PutOutcome::Unchanged);
    assert_eq!(store.stats().destroyed, 2);
}

#[tokio::test]
async fn destroy_beats_persists_that_are_already_queued() {
    let (store, backend) = faulty_store();
    let held = backend.hold();
    let mut tasks = JoinSet::new();
    spawn_put(&mut tasks, &store, RecordKey::DeviceLedger, "x");
    until(|| backend.commits() == 1).await;
    spawn_put(&mut tasks, &store, RecordKey::AllocState(id(1)), "queued before");
    until(|| store.stats().queued == 1).await;
    let destroyer = store.clone();
    let destroyed = tokio::spawn(async move { destroyer.destroy_alloc(id(1)).await });
    until(|| store.stats().queued == 2).await;
    assert_eq!(
        store.put(&RecordKey::AllocState(id(1)), "after").await.unwrap(),
        PutOutcome::Destroyed
    );
    drop(held);
    destroyed.await.unwrap().unwrap();
    tasks.join_all().await;
    assert!(store.scan(&KeyPrefix::Allocs).unwrap().is_empty());
}

#[tokio::test]
async fn a_persist_that_waits_for_room_while_its_allocation_is_destroyed_is_dropped() {
    let (store, backend) = faulty_store();
    let held = backend.hold();
    let mut others = JoinSet::new();
    spawn_put(&mut others, &store, RecordKey::DeviceLedger, "x");
    until(|| backend.commits() == 1).await;
    for n in 0..STATE_QUEUE_MAX {
        spawn_put(&mut others, &store, RecordKey::Alloc(id(100 + n as u128)), "x");
    }
    until(|| store.stats().queued == STATE_QUEUE_MAX as u64).await;
    let puts = store.stats().puts;
    let mut late = JoinSet::new();
    spawn_put(&mut late, &store, RecordKey::AllocState(id(1)), "waits");
    until(|| store.stats().puts == puts + 1).await;
    let destroyer = store.clone();
    let destroyed = tokio::spawn(async move { destroyer.destroy_alloc(id(1)).await });
    // The destroy counts from its call on, long before its own turn in the queue.
    tokio::task::yield_now().await;
    let probe = store.put(&RecordKey::Alloc(id(1)), "probe").await.unwrap();
    assert_eq!(probe, PutOutcome::Destroyed);
    drop(held);
    let late = late.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(late, PutOutcome::Destroyed);
    destroyed.await.unwrap().unwrap();
    assert!(others.join_all().await.iter().all(Result::is_ok));
    assert_eq!(store.get::<String>(&RecordKey::AllocState(id(1))).unwrap(), None);
}

#[tokio::test]
async fn a_failed_destroy_can_be_repeated_and_keeps_persists_out_meanwhile() {
    let (store, backend) = faulty_store();
    store.put(&RecordKey::Alloc(id(1)), "spec").await.unwrap();
    backend.plan([Some(Fault::Before)]);
    store.destroy_alloc(id(1)).await.unwrap_err();
    assert_eq!(store.put(&RecordKey::Alloc(id(1)), "spec 2").await.unwrap(), PutOutcome::Destroyed);
    store.destroy_alloc(id(1)).await.unwrap();
    assert!(store.scan(&KeyPrefix::All).unwrap().iter().all(|record| record.key.alloc().is_none()));
}

#[tokio::test]
async fn close_commits_what_is_queued_and_refuses_what_comes_later() {
    let (store, backend) = faulty_store();
    let held = backend.hold();
    let mut tasks = JoinSet::new();
    spawn_put(&mut tasks, &store, RecordKey::Alloc(id(0)), "x");
    until(|| backend.commits() == 1).await;
    for n in 1..10 {
        spawn_put(&mut tasks, &store, RecordKey::Alloc(id(n)), "x");
    }
    until(|| store.stats().queued == 9).await;
    let mut closing = Box::pin(store.close());
    assert!(polled_once(closing.as_mut()).await.is_pending(), "a commit is held up");
    drop(held);
    closing.await;
    assert!(tasks.join_all().await.iter().all(Result::is_ok));
    assert_eq!(store.scan(&KeyPrefix::Allocs).unwrap().len(), 10);
    let late = store.put(&RecordKey::DeviceLedger, "late").await;
    assert!(matches!(late, Err(StateError::Closed { .. })), "{late:?}");
    store.close().await;
}

#[tokio::test]
async fn a_value_that_is_too_large_fails_alone_and_names_its_key() {
    let store = StateStore::in_memory().unwrap();
    let error =
        store.put(&RecordKey::DeviceLedger, &"x".repeat(STATE_VALUE_BYTES_MAX)).await.unwrap_err();
    assert!(matches!(error, StateError::Encode { key: RecordKey::DeviceLedger, .. }), "{error:?}");
    assert!(error.to_string().contains("device/ledger"));
    assert_eq!(store.stats().writes, 0);
}

#[tokio::test]
async fn a_record_that_is_not_the_type_asked_for_is_an_error_and_can_be_quarantined() {
    let store = StateStore::in_memory().unwrap();
    let key = RecordKey::DeviceLedger;
    store.put(&key, &1u8).await.unwrap();
    let error = store.get::<(u8, String)>(&key).unwrap_err();
    assert!(matches!(error, StateError::Record { .. }), "{error:?}");
    store.quarantine(&key).await.unwrap();
    assert_eq!(store.get::<u8>(&key).unwrap(), None);
    assert_eq!(store.put(&key, &1u8).await.unwrap(), PutOutcome::Written);
}

#[tokio::test]
async fn a_write_ahead_is_on_its_way_before_it_is_waited_for_and_when_nobody_does() {
    let (store, backend) = faulty_store();
    let first = store.put_ahead(&RecordKey::Alloc(id(1)), "a").await.unwrap();
    assert_eq!(first.wait_durable().await.unwrap(), PutOutcome::Written);
    let again = store.put_ahead(&RecordKey::Alloc(id(1)), "a").await.unwrap();
    assert_eq!(again.wait_durable().await.unwrap(), PutOutcome::Unchanged);
    drop(store.put_ahead(&RecordKey::Alloc(id(2)), "b").await.unwrap());
    store.flush().await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(2))), Some("b".to_owned()));
    backend.plan([Some(Fault::Before)]);
    let refused = store.put_ahead(&RecordKey::Alloc(id(3)), "c").await.unwrap();
    assert!(matches!(refused.wait_durable().await, Err(StateError::Commit { .. })));
    assert_eq!(text(&store, &RecordKey::Alloc(id(3))), None);
}
