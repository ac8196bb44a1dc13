#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::time::Duration;

use super::*;
use ostler_model::vars::Secret;
use ostler_state::mem_store::MemBackend;
use ostler_state::records::VariableKey;
use ostler_state::testing::AnyKey;
use ostler_state::testing::{Fault, FaultyBackend};

fn key(path: &str) -> VarKey {
    VarKey::new("default", path).unwrap()
}

fn items(text: &str) -> Items {
    Items::from([("password".to_owned(), Secret::new(text))])
}

async fn load(state: &StateStore) -> (NodeVariables, Vec<String>) {
    NodeVariables::load(state.clone(), Clock::system(), 100).await.unwrap()
}

fn text(variables: &NodeVariables, path: &str) -> Option<String> {
    let found = variables.get(&key(path)).1?;
    Some(found.items["password"].reveal().to_owned())
}

/// What an agent finds that comes after one which was killed now: what is in its files.
async fn after_a_crash(dir: &Path) -> (tempfile::TempDir, NodeVariables) {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let state = StateStore::open(&copy.path().join("state.redb")).unwrap();
    let (variables, notices) = load(&state).await;
    assert!(notices.is_empty(), "{notices:?}");
    (copy, variables)
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_crash_and_no_index_comes_twice() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateStore::open(&dir.path().join("state.redb")).unwrap();
    let (variables, _) = load(&state).await;
    variables.put(key("a"), items("one"), Some(0)).await.unwrap();
    variables.put(key("b"), items("two"), None).await.unwrap();
    let last = variables.put(key("c"), items("three"), None).await.unwrap().modify_index;
    let gone = variables.delete(key("c"), Some(last)).await.unwrap();
    assert_eq!((last, gone), (103, 104));
    let (_copy, again) = after_a_crash(dir.path()).await;
    assert_eq!(text(&again, "a").as_deref(), Some("one"));
    assert_eq!(text(&again, "b").as_deref(), Some("two"));
    assert_eq!(text(&again, "c"), None);
    assert_eq!(VariableStore::index(&again), 104);
    assert_eq!(again.put(key("c"), items("four"), Some(0)).await.unwrap().modify_index, 105);
}

#[tokio::test]
async fn a_write_that_fails_changes_nothing_and_one_that_reached_the_disk_counts() {
    let backend = FaultyBackend::new(Arc::new(MemBackend::default()));
    let store = Arc::clone(&backend);
    let state = StateStore::with_backend(Path::new("test"), store).unwrap();
    let (variables, _) = load(&state).await;
    variables.put(key("a"), items("one"), None).await.unwrap();
    backend.plan([Some(Fault::Before)]);
    let failed = variables.put(key("a"), items("hunter2"), None).await.unwrap_err();
    assert!(matches!(failed, VariableError::State(_)), "{failed:?}");
    assert!(!format!("{failed:?} {failed}").contains("hunter2"));
    assert_eq!(text(&variables, "a").as_deref(), Some("one"));
    backend.plan([Some(Fault::After)]);
    variables.put(key("a"), items("two"), None).await.unwrap_err();
    assert_eq!(text(&variables, "a").as_deref(), Some("two"), "as the disk has it");
    let next = variables.put(key("b"), items("x"), None).await.unwrap();
    assert_eq!(next.modify_index, 104, "those of failed writes are not given out again");
}

#[tokio::test]
async fn a_change_goes_on_when_who_asked_for_it_hangs_up() {
    let backend = FaultyBackend::new(Arc::new(MemBackend::default()));
    let store = Arc::clone(&backend);
    let state = StateStore::with_backend(Path::new("test"), store).unwrap();
    let (variables, _) = load(&state).await;
    let held = backend.hold();
    let (own, index) = (variables.clone(), VariableStore::index(&variables));
    let asked = tokio::spawn(async move { own.put(key("a"), items("one"), None).await });
    // It waits for the disk.
    while variables.0.places.available_permits() == VAR_CHANGES_MAX {
        tokio::task::yield_now().await;
    }
    asked.abort();
    drop(held);
    clock::timeout(Duration::from_secs(30), variables.wait_for_change(index)).await.unwrap();
    assert_eq!(text(&variables, "a").as_deref(), Some("one"));
}

#[tokio::test]
async fn changes_that_wait_for_a_disk_that_hangs_are_bounded() {
    let backend = FaultyBackend::new(Arc::new(MemBackend::default()));
    let store = Arc::clone(&backend);
    let state = StateStore::with_backend(Path::new("test"), store).unwrap();
    let (variables, _) = load(&state).await;
    let held = backend.hold();
    let ask = |number: usize| {
        let own = variables.clone();
        tokio::spawn(async move { own.put(key(&format!("v{number}")), items("x"), None).await })
    };
    let waiting: Vec<_> = (0..VAR_CHANGES_MAX).map(ask).collect();
    while variables.0.places.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let refused = variables.put(key("one-more"), items("x"), None).await;
    assert!(matches!(refused, Err(VariableError::Busy)));
    drop(held);
    for one in waiting {
        one.await.unwrap().unwrap();
    }
    variables.put(key("one-more"), items("x"), None).await.unwrap();
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_put_aside_and_told() {
    let state = StateStore::in_memory().unwrap();
    let (variables, _) = load(&state).await;
    let good = variables.put(key("good"), items("one"), None).await.unwrap();
    state.put(&AnyKey(RecordKey::Variable(Box::new(key("bad")))), "no variable").await.unwrap();
    state.put(&VariableKey::of(Box::new(key("other"))), &*good).await.unwrap();
    let (again, notices) = load(&state).await;
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(notices[0].contains("variable/default/bad"), "{notices:?}");
    assert_eq!(again.list(None, "").found.len(), 1);
    assert!(load(&state).await.1.is_empty(), "once");
}

#[tokio::test]
async fn who_follows_hears_of_each_change() {
    let state = StateStore::in_memory().unwrap();
    let (variables, _) = load(&state).await;
    let seen = VariableStore::index(&variables);
    let changed = variables.wait_for_change(seen);
    variables.put(key("a"), items("one"), None).await.unwrap();
    clock::timeout(Duration::from_secs(30), changed).await.unwrap();
    let (index, found) = variables.get(&key("a"));
    assert_eq!((index, found.unwrap().modify_index), (seen + 1, seen + 1));
}
