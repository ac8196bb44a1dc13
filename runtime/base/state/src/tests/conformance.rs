//! Tests of what every backend must do, run over each backend.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::*;
use crate::backend::{Backend, Op};
use crate::disk_store::DiskBackend;
use crate::mem_store::MemBackend;
use crate::testing::disk::{DiskFault, FaultyDisk};
use crate::testing::{ErrorBackend, Fault, FaultyBackend};
use crate::{KeyPrefix, PutOutcome, StateError};

/// Run a check over a new backend of each kind. Those with faults had a fault that is over.
fn over_each(check: impl Fn(&dyn Backend)) {
    let dir = tempfile::tempdir().unwrap();
    check(&MemBackend::default());
    check(&DiskBackend::open(&dir.path().join("state.redb")).unwrap());

    let healed = FaultyBackend::new(Arc::new(MemBackend::default()));
    healed.plan([Some(Fault::Before)]);
    healed.commit(&[put(b"a", b"lost")]).unwrap_err();
    check(&*healed);

    let healed = ErrorBackend::new_failing();
    healed.commit(&[put(b"a", b"lost")]).unwrap_err();
    healed.heal();
    check(&*healed);

    let (path, disk) = (dir.path().join("state.redb"), FaultyDisk::new(&empty_state_file(), 1));
    // This journal is so short that most batches go to the tree.
    check(&DiskBackend::open_with(&path, disk.openers(1 << 20, 4_096)).unwrap());

    for journal_bytes in [0, 1 << 16] {
        let disk = FaultyDisk::new(&empty_state_file(), 1);
        let openers = disk.openers(1 << 20, journal_bytes);
        let healed = DiskBackend::open_with(&path, openers).unwrap();
        // The fault is at the first operation of the commit and all after it, so nothing can have
        // been applied.
        disk.plan(disk.journal().len() + 1, DiskFault::Full);
        healed.commit(&[put(b"a", b"lost")]).unwrap_err();
        disk.make_room();
        check(&healed);
    }
}

fn put(key: &[u8], value: &[u8]) -> Op {
    Op::Put { key: key.into(), value: value.into() }
}

fn all(backend: &dyn Backend, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    backend.scan(prefix, visit).unwrap();
    found
}

#[test]
fn a_new_backend_is_empty() {
    over_each(|backend| {
        assert!(all(backend, b"").is_empty());
        assert_eq!(backend.get(b"a").unwrap(), None);
        assert_eq!(backend.count_quarantined().unwrap(), 0);
    });
}

#[test]
fn changes_of_a_batch_apply_in_order() {
    over_each(|backend| {
        let prefix = || Op::DeletePrefix { prefix: b"a".as_slice().into() };
        backend.commit(&[put(b"a1", b"x"), prefix(), put(b"a2", b"1"), put(b"a2", b"2")]).unwrap();
        assert_eq!(all(backend, b""), [(b"a2".to_vec(), b"2".to_vec())]);
        backend.commit(&[put(b"a3", b"3"), Op::Delete { key: b"a2".as_slice().into() }]).unwrap();
        assert_eq!(all(backend, b""), [(b"a3".to_vec(), b"3".to_vec())]);
    });
}

#[test]
fn a_scan_gives_the_keys_of_its_prefix_in_order_and_ends_when_told() {
    over_each(|backend| {
        let keys: [&[u8]; 6] = [b"\xff\xff", b"b", b"a\xff", b"a", b"a\x00", b"\xff"];
        backend.commit(&keys.map(|key| put(key, b"v"))).unwrap();
        let names = |prefix: &[u8]| -> Vec<Vec<u8>> {
            all(backend, prefix).into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(names(b"a"), [b"a".to_vec(), b"a\x00".to_vec(), b"a\xff".to_vec()]);
        assert_eq!(names(b"\xff"), [b"\xff".to_vec(), b"\xff\xff".to_vec()]);
        assert_eq!(names(b"").len(), 6);
        let mut seen = 0;
        let first = &mut |_: &[u8], _: &[u8]| {
            seen += 1;
            ControlFlow::Break(())
        };
        backend.scan(b"", first).unwrap();
        assert_eq!(seen, 1);
    });
}

#[test]
fn removing_a_prefix_leaves_its_neighbours() {
    over_each(|backend| {
        let keys: [&[u8]; 5] = [b"a\xfe", b"a\xff", b"a\xff\x00", b"a\xff\xff", b"b"];
        backend.commit(&keys.map(|key| put(key, b"v"))).unwrap();
        backend.commit(&[Op::DeletePrefix { prefix: b"a\xff".as_slice().into() }]).unwrap();
        let left: Vec<_> = all(backend, b"").into_iter().map(|(key, _)| key).collect();
        assert_eq!(left, [b"a\xfe".to_vec(), b"b".to_vec()]);
    });
}

#[test]
fn removing_what_is_not_there_is_no_error() {
    over_each(|backend| {
        let key = || b"a".as_slice().into();
        backend
            .commit(&[
                Op::Delete { key: key() },
                Op::DeletePrefix { prefix: key() },
                Op::Quarantine { key: key() },
            ])
            .unwrap();
        assert_eq!(backend.count_quarantined().unwrap(), 0);
    });
}

#[test]
fn a_quarantined_record_is_kept_but_not_seen() {
    over_each(|backend| {
        backend.commit(&[put(b"a", b"bad"), put(b"b", b"good")]).unwrap();
        backend.commit(&[Op::Quarantine { key: b"a".as_slice().into() }]).unwrap();
        assert_eq!(backend.get(b"a").unwrap(), None);
        assert_eq!(all(backend, b"").len(), 1);
        assert_eq!(backend.count_quarantined().unwrap(), 1);
    });
}

#[test]
fn an_empty_value_is_a_value() {
    over_each(|backend| {
        backend.commit(&[put(b"a", b"")]).unwrap();
        assert_eq!(backend.get(b"a").unwrap(), Some(Vec::new()));
    });
}

#[test]
fn a_backend_that_fails_fails_every_operation_and_does_nothing() {
    let backend = ErrorBackend::new_healed();
    backend.commit(&[put(b"a", b"before"), put(b"b", b"bad")]).unwrap();
    backend.fail();
    let key = || b"a".as_slice().into();
    let changes = [
        put(b"a", b"after"),
        Op::Delete { key: key() },
        Op::DeletePrefix { prefix: key() },
        Op::Quarantine { key: key() },
    ];
    for change in changes {
        backend.commit(&[change]).unwrap_err();
    }
    backend.get(b"a").unwrap_err();
    backend.scan(b"", &mut |_, _| panic!("shown")).unwrap_err();
    backend.count_quarantined().unwrap_err();
    backend.backup(1).unwrap_err();
    assert_eq!(backend.refused_calls(), 8);
    backend.heal();
    assert_eq!(backend.get(b"a").unwrap(), Some(b"before".to_vec()));
    assert_eq!((all(&*backend, b"").len(), backend.count_quarantined().unwrap()), (2, 0));
}

#[test]
fn no_store_opens_over_a_backend_that_fails() {
    let error =
        StateStore::with_backend(Path::new("(test)"), ErrorBackend::new_failing()).unwrap_err();
    assert!(matches!(error, StateError::Open { .. }), "{error:?}");
    assert!(error.to_string().contains("(test)"));
}

#[tokio::test]
async fn every_call_of_a_store_fails_with_its_backend_and_works_again_when_that_does() {
    let backend = ErrorBackend::new_healed();
    let store = StateStore::with_backend(Path::new("(test)"), backend.clone()).unwrap();
    let key = RecordKey::DeviceLedger;
    store.put(&key, "before").await.unwrap();
    backend.fail();
    let errors = [
        store.put(&key, "after").await.unwrap_err(),
        store.delete(&key).await.unwrap_err(),
        store.quarantine(&key).await.unwrap_err(),
        store.destroy_alloc(id(1)).await.unwrap_err(),
        store.get::<String>(&key).unwrap_err(),
        store.scan(&KeyPrefix::All).unwrap_err(),
    ];
    for error in errors {
        let expected = matches!(error, StateError::Commit { .. } | StateError::Read { .. });
        assert!(expected && error.to_string().contains("(test)"), "{error:?}");
    }
    assert_eq!(
        store.put_later(&RecordKey::Alloc(id(2)), "later").await.unwrap(),
        PutOutcome::Queued
    );
    store.flush().await.unwrap_err();
    backend.heal();
    assert_eq!(text(&store, &key), Some("before".to_owned()));
    store.flush().await.unwrap();
    assert_eq!(text(&store, &RecordKey::Alloc(id(2))), Some("later".to_owned()));
    assert_eq!(store.put(&key, "before").await.unwrap(), PutOutcome::Written);
}
