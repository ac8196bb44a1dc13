//! Tests of the thread that commits: when it wakes, and what it puts back.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::testing::ErrorBackend;

fn put(value: u8, done: Option<oneshot::Sender<CommitResult>>) -> WriteRequest {
    let op = Op::Put { key: b"k".as_slice().into(), value: [value].into() };
    WriteRequest { op: Some(op), digest: Some(ValueDigest::from_unsealed(&[value])), done }
}

#[test]
fn a_write_that_may_lag_is_not_put_back_before_a_newer_one_of_its_key() {
    let shared = WriterShared::new(
        PathBuf::from("(test)"),
        ErrorBackend::new_failing(),
        Dedup::default(),
        Stats::default(),
        Duration::MAX,
    );
    let mut batch = WriteBatch::default();
    {
        let mut core = shared.core();
        let ticket = core.queue.push(put(1, None));
        core.dedup.begin_later_write(
            b"k",
            LaterWrite { ticket, digest: ValueDigest::from_unsealed(&[1]) },
        );
    }
    shared.core().take_due(Duration::ZERO, &mut batch.requests);
    {
        // This one is queued while the first is being committed.
        let mut core = shared.core();
        core.queue.push(put(2, Some(oneshot::channel().0)));
        core.dedup.begin_write(b"k");
    }
    assert!(!batch.commit(&shared));
    // If it were put back, a third value would take its place in the queue and be overwritten
    // by the second.
    let mut core = shared.core();
    assert_eq!(core.queue.len(), 1);
    assert!(!core.replace_waiting(b"k", &[3], ValueDigest::from_unsealed(&[3])));
}

#[tokio::test]
async fn only_the_first_of_the_writes_that_may_lag_wakes_whoever_commits() {
    let store = crate::StateStore::in_memory_of_runtime().unwrap();
    let shared = std::sync::Arc::clone(store.writer_shared());
    let sleeps = || shared.core().asleep;
    let until_it_sleeps = async || {
        while !sleeps() {
            tokio::task::yield_now().await;
        }
    };
    let key = |seed: u64| {
        let id = ostler_model::rng::Rng::from_seed(seed).uuid();
        crate::RecordKey::Alloc(ostler_model::ids::AllocId::new(id))
    };
    until_it_sleeps().await;
    store.put_later(&key(1), "x").await.unwrap();
    assert!(!sleeps());
    until_it_sleeps().await;
    store.put_later(&key(2), "x").await.unwrap();
    assert!(sleeps());
    store.put(&key(3), "x").await.unwrap();
    assert_eq!(shared.core().queue.len(), 0, "all three are committed");
}

#[tokio::test]
async fn what_is_written_in_one_turn_goes_in_one_commit() {
    let backend = std::sync::Arc::new(crate::mem_store::MemBackend::default());
    let store = crate::StateStore::with_backend(std::path::Path::new("(test)"), backend);
    let store = store.unwrap();
    let shared = std::sync::Arc::clone(store.writer_shared());
    while !shared.core().asleep {
        tokio::task::yield_now().await;
    }
    let before = store.stats().commits;
    let mut writes = tokio::task::JoinSet::new();
    for seed in 0..50 {
        let (store, id) = (store.clone(), ostler_model::rng::Rng::from_seed(seed).uuid());
        let key = crate::RecordKey::Alloc(ostler_model::ids::AllocId::new(id));
        writes.spawn(async move { store.put(&key, "x").await });
    }
    for written in writes.join_all().await {
        written.unwrap();
    }
    assert_eq!(store.stats().commits, before + 1);
}

#[test]
fn a_runtime_that_ends_before_its_turn_does_not_leave_the_thread_asleep() {
    let backend = std::sync::Arc::new(crate::mem_store::MemBackend::default());
    let store = crate::StateStore::with_backend(std::path::Path::new("(test)"), backend).unwrap();
    let shared = std::sync::Arc::clone(store.writer_shared());
    while !shared.core().asleep {
        std::thread::yield_now();
    }
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let key = |seed: u64| {
        let id = ostler_model::rng::Rng::from_seed(seed).uuid();
        crate::RecordKey::Alloc(ostler_model::ids::AllocId::new(id))
    };
    let ended = runtime();
    ended.block_on(async {
        // Queued, and the runtime ends before it has another turn.
        let first = key(1);
        let mut write = std::pin::pin!(store.put(&first, "x"));
        let waits = std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx)));
        assert!(waits.await.is_pending() && shared.core().wakes_soon);
    });
    drop(ended);
    runtime().block_on(store.put(&key(2), "x")).unwrap();
    assert_eq!(store.get::<String>(&key(1)).unwrap().as_deref(), Some("x"));
}
