//! Which directories are nobody's.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::symlink;

use super::*;
use ostler_model::ids::{NodeId, TaskName};
use ostler_model::rng::Rng;
use ostler_model::task::TaskState;
use ostler_state::KeyPrefix;
use ostler_state::records::{NodeRegistrationKey, TaskStateKey};

fn id(n: u64) -> AllocId {
    AllocId::new(Rng::from_seed(n).uuid())
}

/// A state file that is as old as this.
async fn state_since(since: Timestamp) -> StateStore {
    let state = StateStore::in_memory().unwrap();
    let node = NodeRegistration {
        id: NodeId::new(Rng::from_seed(9).uuid()),
        name: "box".into(),
        registered_at: since,
    };
    state.put(&NodeRegistrationKey::of(), &node).await.unwrap();
    state
}

fn made(root: &Path, ids: impl IntoIterator<Item = u64>) {
    for n in ids {
        AllocDir::create(root, id(n)).unwrap();
    }
}

fn found(root: &Path, recorded: &[u64], state: &StateStore) -> Vec<AllocId> {
    let recorded = recorded.iter().map(|n| id(*n)).collect();
    find_orphan_dirs(root.to_owned(), &recorded, state).allocs
}

#[tokio::test]
async fn only_directories_without_any_record_are_removed_and_nothing_outside_them() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let precious = outside.path().join("precious");
    std::fs::write(&precious, "kept").unwrap();
    made(root.path(), 1..=3);
    let hostile = root.path().join(id(2).to_string());
    symlink(outside.path(), hostile.join("alloc/data/out")).unwrap();
    symlink(&precious, hostile.join("alloc/file")).unwrap();
    // A link in the place of a directory.
    symlink(outside.path(), root.path().join(id(4).to_string())).unwrap();
    std::fs::create_dir(root.path().join("not-an-allocation")).unwrap();
    let state = state_since(Timestamp::from_nanos(1)).await;
    let unowned = find_orphan_dirs(root.path().to_owned(), &BTreeSet::from([id(1)]), &state);
    unowned.remove(CancellationToken::new()).unwrap().await.unwrap();
    assert_eq!(AllocDir::list(root.path()).unwrap(), [id(1)]);
    assert!(root.path().join("not-an-allocation").exists());
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "kept");
}

#[tokio::test]
async fn directories_stay_while_a_record_is_in_quarantine() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("allocs");
    made(&root, [1]);
    let path = dir.path().join("state.redb");
    let state = StateStore::open(&path).unwrap();
    let node = NodeRegistration {
        id: NodeId::new(Rng::from_seed(9).uuid()),
        name: "box".into(),
        registered_at: Timestamp::from_nanos(1),
    };
    state.put(&NodeRegistrationKey::of(), &node).await.unwrap();
    assert_eq!(found(&root, &[], &state), [id(1)]);
    let key = TaskStateKey::of(id(1), TaskName::new("t").unwrap());
    state.put(&key, &TaskState::default()).await.unwrap();
    state.quarantine(&key).await.unwrap();
    state.close().await;
    drop(state);
    let state = StateStore::open(&path).unwrap();
    assert!(state.scan(&KeyPrefix::Alloc(id(1))).unwrap().is_empty());
    assert_eq!(found(&root, &[], &state), []);
}

#[tokio::test]
async fn directories_older_than_the_state_file_stay() {
    let root = tempfile::tempdir().unwrap();
    made(root.path(), [1]);
    let later = changed_at(&root.path().join(id(1).to_string())).unwrap();
    let later = Timestamp::from_nanos(later.nanos() + 1);
    assert_eq!(found(root.path(), &[], &state_since(later).await), []);
    let unknown = StateStore::in_memory().unwrap();
    assert_eq!(found(root.path(), &[], &unknown), [], "not even registered");
}

#[tokio::test]
async fn an_agent_that_leaves_removes_no_more() {
    let root = tempfile::tempdir().unwrap();
    made(root.path(), [1]);
    let state = state_since(Timestamp::from_nanos(1)).await;
    let unowned = find_orphan_dirs(root.path().to_owned(), &BTreeSet::new(), &state);
    let ended = CancellationToken::new();
    ended.cancel();
    unowned.remove(ended).unwrap().await.unwrap();
    assert_eq!(AllocDir::list(root.path()).unwrap(), [id(1)]);
    assert!(
        find_orphan_dirs(root.path().join("no"), &BTreeSet::new(), &state)
            .remove(CancellationToken::new())
            .is_none()
    );
}
