//! Tests that reading a file changes nothing, whatever the file is like.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;

use super::*;
use crate::backend::Op;
use crate::codec::SCHEMA;
use crate::files;
use crate::migrate::tests::before::{BEFORE, SCHEMA_BEFORE};
use crate::{BackendError, StateStore};
use ostler_model::task::TaskState;

fn new_path() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    (dir, path)
}

/// The texts of the keys whose value is readable, and of those whose value is not, with the reason.
fn seen(inspection: &Inspection) -> (Vec<String>, Vec<String>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let look = &mut |entry: &InspectedRecord<'_>| {
        match &entry.body {
            Ok(_) => good.push(entry.shown_key()),
            Err(error) => bad.push(format!("{}: {error}", entry.shown_key())),
        }
        ControlFlow::Continue(())
    };
    inspection.scan(&KeyPrefix::All, look).unwrap();
    (good, bad)
}

#[tokio::test]
async fn a_file_of_an_agent_that_was_killed_is_read_and_stays_as_it_is() {
    let (_dir, path) = new_path();
    let store = StateStore::open(&path).unwrap();
    store.put(&RecordKey::DeviceLedger, "kept").await.unwrap();
    // A copy of an open file is what a killed agent leaves.
    let killed = path.with_extension("killed");
    let journal = |path: &Path| files::with_suffix(path, ".journal");
    fs::copy(&path, &killed).unwrap();
    fs::copy(journal(&path), journal(&killed)).unwrap();
    drop(store);
    let read = || (fs::read(&killed).unwrap(), fs::read(journal(&killed)).unwrap());
    let before = read();
    let inspection = Inspection::open(&killed).unwrap();
    assert!(inspection.was_recovered() && !inspection.was_repaired());
    assert_eq!(inspection.schema(), Some(SCHEMA));
    let (good, bad) = seen(&inspection);
    assert_eq!((good, bad), (vec!["meta/schema".to_owned(), "device/ledger".to_owned()], vec![]));
    assert!(inspection.engine_stats().unwrap().stored_bytes > 0);
    assert_eq!(inspection.replayed_batches(), 2, "both are in the journal alone");
    drop(inspection);
    assert!(read() == before);
}

#[tokio::test]
async fn a_file_closed_in_order_needs_no_recovery() {
    let (_dir, path) = new_path();
    drop(StateStore::open(&path).unwrap());
    let before = fs::read(&path).unwrap();
    let inspection = Inspection::open(&path).unwrap();
    assert!(!inspection.was_recovered());
    assert_eq!(inspection.file_bytes(), before.len() as u64);
    drop(inspection);
    assert!(fs::read(&path).unwrap() == before);
}

#[test]
fn a_file_that_is_written_is_refused_and_one_that_is_read_is_not_written() {
    let (_dir, path) = new_path();
    let store = StateStore::open(&path).unwrap();
    for error in [Inspection::open(&path).err().unwrap(), compact(&path).unwrap_err()] {
        assert!(matches!(error, StateError::InUse { .. }), "{error:?}");
    }
    drop(store);
    let first = Inspection::open(&path).unwrap();
    let second = Inspection::open(&path).unwrap();
    let error = StateStore::open(&path).unwrap_err();
    assert!(matches!(error, StateError::InUse { .. }), "{error:?}");
    drop((first, second));
    StateStore::open(&path).unwrap();
}

#[test]
fn an_old_file_is_read_in_the_new_shape_and_stays_old() {
    let (_dir, path) = new_path();
    fs::write(&path, &BEFORE.file).unwrap();
    let inspection = Inspection::open(&path).unwrap();
    assert_eq!(inspection.schema(), Some(SCHEMA_BEFORE));
    let (good, bad) = seen(&inspection);
    assert_eq!((good.len() as u64, bad), (BEFORE.records() + 1, vec![]));
    let mut events = 0;
    let look = &mut |entry: &InspectedRecord<'_>| {
        if let Some(RecordKey::TaskState(..)) = entry.key() {
            events += entry.decode::<TaskState>().unwrap().events_total;
        }
        ControlFlow::Continue(())
    };
    inspection.scan(&KeyPrefix::All, look).unwrap();
    assert_eq!(events, BEFORE.events);
    drop(inspection);
    assert!(fs::read(&path).unwrap() == BEFORE.file);
    assert!(compact(&path).is_ok());
    assert_eq!(
        Inspection::open(&path).unwrap().schema(),
        Some(SCHEMA_BEFORE),
        "compacting migrates nothing"
    );
}

#[test]
fn an_old_file_of_an_agent_that_was_killed_is_recovered_copied_once_and_migrated() {
    let (dir, path) = new_path();
    fs::write(&path, &BEFORE.file).unwrap();
    let open = builder().open(&path).unwrap();
    let killed = fs::read(&path).unwrap();
    drop(open);
    for _ in 0..3 {
        fs::write(&path, &killed).unwrap();
        let store = StateStore::open(&path).unwrap();
        assert_eq!(store.open_report().records, BEFORE.records());
        let backup = store.open_report().migrated.clone().unwrap().backup.unwrap();
        assert_eq!(backup, dir.path().join(BEFORE.backup()));
        let backup = Inspection::open(&backup).unwrap();
        assert_eq!((backup.schema(), backup.was_recovered()), (Some(SCHEMA_BEFORE), false));
        assert_eq!(seen(&backup).0.len() as u64, BEFORE.records() + 1);
    }
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, 4, "the file, its journal, its copy, and how many commits it has seen");
}

#[tokio::test]
async fn damaged_and_foreign_records_are_seen_with_the_reason() {
    let (_dir, path) = new_path();
    drop(StateStore::open(&path).unwrap());
    let backend = DiskBackend::open(&path).unwrap();
    let put = |key: &[u8], value: &[u8]| Op::Put { key: key.into(), value: value.into() };
    let schema = RecordKey::Meta.encode();
    let record = backend.get(&schema).unwrap().unwrap();
    let ledger = RecordKey::DeviceLedger.encode();
    backend
        .commit(&[
            put(b"\x99x", &record),
            put(&ledger, &record),
            put(&RecordKey::NodeRegistration.encode(), b"cut"),
        ])
        .unwrap();
    backend.commit(&[Op::Quarantine { key: ledger.into() }]).unwrap();
    drop(backend);
    let inspection = Inspection::open(&path).unwrap();
    let (good, bad) = seen(&inspection);
    assert_eq!(good, ["meta/schema"]);
    let expected =
        ["node/registration: record is cut off: 3 bytes", "9978: record has an unreadable key"];
    assert_eq!(bad, expected);
    let mut aside = Vec::new();
    let look = &mut |entry: &InspectedRecord<'_>| {
        aside.push((entry.shown_key(), entry.first_bytes(2), entry.decode::<u16>().unwrap_err()));
        ControlFlow::Continue(())
    };
    inspection.quarantine(look).unwrap();
    assert_eq!((aside.len(), &*aside[0].0, &*aside[0].1), (1, "device/ledger", "4f53"));
    assert!(matches!(aside[0].2, CodecError::Kind { found: 1, .. }));
}

#[test]
fn a_file_that_is_not_there_is_not_made() {
    let (dir, path) = new_path();
    for error in [Inspection::open(&path).err().unwrap(), compact(&path).unwrap_err()] {
        assert!(matches!(error, StateError::Open { source: BackendError::Io { .. }, .. }));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn files_that_are_no_state_files_are_refused_with_path_and_next_step() {
    for content in [&b""[..], b"x", &BEFORE.file[..20_000], &[0; 4_096], &[0xff; 70_000]] {
        let (_dir, path) = new_path();
        fs::write(&path, content).unwrap();
        for error in [Inspection::open(&path).err().unwrap(), StateStore::open(&path).unwrap_err()]
        {
            assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
            let told = error.to_string();
            let next = format!("ostler state check --file {}", path.display());
            assert!(told.contains(&next) && !told.contains("delete"), "{told}");
        }
    }
}

#[tokio::test]
async fn compacting_gives_room_back_and_keeps_every_record() {
    let (_dir, path) = new_path();
    let store = StateStore::open(&path).unwrap();
    let name = |n: u32| RecordKey::PluginHandle(format!("plugin-{n}").parse().unwrap());
    for n in 0..40 {
        store.put(&name(n), &"x".repeat(100_000)).await.unwrap();
    }
    for n in 1..40 {
        store.delete(&name(n)).await.unwrap();
    }
    store.close().await;
    drop(store);
    let CompactResult { before, after } = compact(&path).unwrap();
    assert!(after * 3 < before, "{before} to {after}");
    assert_eq!(after, fs::metadata(&path).unwrap().len());
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.get::<String>(&name(0)).unwrap().unwrap().len(), 100_000);
}
