//! Tests of a file of the schema before, and of what can go wrong with it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

pub(crate) mod before;
mod crash;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use crate::testing::decode_any;
use before::{BEFORE, SCHEMA_BEFORE, content};
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::disk_store::DiskBackend;
use crate::inspect::Inspection;
use crate::mem_store::MemBackend;
use crate::testing::{Fault, FaultyBackend};
use crate::{BackendError, KeyPrefix, PutOutcome, StateStore, StoredRecord};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::saved::SavedAllocState;
use ostler_model::task::TaskState;

/// A copy of the file.
fn old_file() -> (tempfile::TempDir, PathBuf) {
    BEFORE.copy()
}

fn names(dir: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).unwrap();
    // These belong to the file itself.
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with(".commits") && !name.contains(".journal"));
    names.sort();
    names
}

#[tokio::test]
async fn a_file_of_the_schema_before_is_migrated_and_holds_what_it_held() {
    let (dir, path) = old_file();
    let store = StateStore::open(&path).unwrap();
    let report = store.open_report();
    let backup = Some(dir.path().join(BEFORE.backup()));
    let migration =
        Migration { from: SCHEMA_BEFORE, to: SCHEMA, records: BEFORE.records(), backup };
    assert_eq!(report.migrated.as_ref(), Some(&migration));
    assert_eq!(report.quarantined, []);
    assert_eq!((report.records, report.in_quarantine), (BEFORE.records(), 0));
    assert_eq!(content(&store), BEFORE.content);
    let key = RecordKey::Meta;
    assert_eq!(store.get::<u16>(&key).unwrap(), Some(SCHEMA));
    // The migrated records are known to be durable, so nothing is written again.
    for record in store.scan(&KeyPrefix::Allocs).unwrap() {
        let put = match record.key {
            RecordKey::AllocState(_) => rewritten::<SavedAllocState>(&store, &record).await,
            _ => rewritten::<TaskState>(&store, &record).await,
        };
        assert_eq!(put, PutOutcome::Unchanged, "{}", record.key);
    }
}

async fn rewritten<T: DeserializeOwned + Serialize>(
    store: &StateStore,
    record: &StoredRecord,
) -> PutOutcome {
    store.put(&record.key, &decode_any::<T>(record).unwrap()).await.unwrap()
}

#[test]
fn the_copy_is_the_old_file_to_the_byte_and_its_owners_alone() {
    let (dir, path) = old_file();
    drop(StateStore::open(&path).unwrap());
    let backup = dir.path().join(BEFORE.backup());
    assert!(fs::read(&backup).unwrap() == BEFORE.file);
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(&dir), ["state.redb", &BEFORE.backup()]);
}

#[test]
fn a_migrated_file_is_not_migrated_again() {
    let (dir, path) = old_file();
    drop(StateStore::open(&path).unwrap());
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.open_report().migrated, None);
    assert_eq!(content(&store), BEFORE.content);
    assert_eq!(names(&dir), ["state.redb", &BEFORE.backup()]);
}

#[test]
fn a_copy_restored_to_its_name_is_migrated_like_the_first_time() {
    let (dir, path) = old_file();
    drop(StateStore::open(&path).unwrap());
    fs::copy(dir.path().join(BEFORE.backup()), &path).unwrap();
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.open_report().migrated.as_ref().unwrap().from, SCHEMA_BEFORE);
    assert_eq!(content(&store), BEFORE.content);
    assert_eq!(names(&dir), ["state.redb", &BEFORE.backup()], "the same copy serves twice");
}

#[test]
fn a_copy_of_other_content_is_never_written_over() {
    let (dir, path) = old_file();
    let first = dir.path().join(BEFORE.backup());
    fs::write(&first, "of another time").unwrap();
    let second = dir.path().join(BEFORE.backup() + ".2");
    fs::write(&second, vec![7; BEFORE.file.len()]).unwrap();
    fs::write(dir.path().join(BEFORE.backup() + ".new"), "half a copy").unwrap();
    let store = StateStore::open(&path).unwrap();
    let third = dir.path().join(BEFORE.backup() + ".3");
    assert_eq!(store.open_report().migrated.as_ref().unwrap().backup.as_ref(), Some(&third));
    assert!(fs::read(third).unwrap() == BEFORE.file);
    assert_eq!(fs::read(first).unwrap(), b"of another time");
    assert_eq!(fs::read(second).unwrap(), vec![7; BEFORE.file.len()]);
    assert!(!dir.path().join(BEFORE.backup() + ".new").exists());
}

#[test]
fn without_a_copy_nothing_is_changed() {
    let (dir, path) = old_file();
    // Nobody can write under this name.
    let blocked = dir.path().join(BEFORE.backup() + ".new");
    fs::create_dir(&blocked).unwrap();
    let error = StateStore::open(&path).unwrap_err();
    assert!(matches!(error, StateError::Backup { from: SCHEMA_BEFORE, .. }), "{error:?}");
    let told = error.to_string();
    for part in [path.to_str().unwrap(), &BEFORE.backup(), "nothing was changed", "room"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(fs::read(&path).unwrap() == BEFORE.file);
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(content(&StateStore::open(&path).unwrap()), BEFORE.content);
}

/// A backend without room for a copy.
struct NoRoom(Arc<FaultyBackend>);

impl Backend for NoRoom {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        self.0.commit(batch)
    }
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.0.get(key)
    }
    fn scan(
        &self,
        prefix: &[u8],
        visit: super::super::backend::Visit<'_>,
    ) -> Result<(), BackendError> {
        self.0.scan(prefix, visit)
    }
    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        let source = std::io::ErrorKind::StorageFull.into();
        Err(BackendError::Backup { backup: "b".into(), from, source })
    }
    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.0.count_quarantined()
    }
}

#[test]
fn a_full_disk_is_told_as_one_and_nothing_is_committed() {
    let (_dir, path) = old_file();
    let backend = FaultyBackend::new(Arc::new(DiskBackend::open(&path).unwrap()));
    let error = StateStore::with_backend(&path, Arc::new(NoRoom(backend.clone()))).unwrap_err();
    assert!(error.disk_full(), "{error:?}");
    assert_eq!(backend.commits(), 0);
}

#[test]
fn a_failed_commit_leaves_the_old_file_or_the_new_one_and_one_copy() {
    for fault in [Fault::Before, Fault::After] {
        let (dir, path) = old_file();
        let backend = FaultyBackend::new(Arc::new(DiskBackend::open(&path).unwrap()));
        backend.plan([Some(fault)]);
        let error = StateStore::with_backend(&path, backend.clone()).unwrap_err();
        assert!(matches!(error, StateError::Migrate { from: SCHEMA_BEFORE, .. }), "{error:?}");
        assert_eq!(backend.commits(), 1, "all in one");
        drop(backend);
        let schema = Inspection::open(&path).unwrap().schema();
        assert_eq!(schema, Some(if fault == Fault::Before { SCHEMA_BEFORE } else { SCHEMA }));
        assert_eq!(content(&StateStore::open(&path).unwrap()), BEFORE.content, "{fault:?}");
        assert_eq!(names(&dir), ["state.redb", &BEFORE.backup()], "{fault:?}");
    }
}

/// `record` with another schema in its envelope.
fn with_schema(schema: u16, mut record: Vec<u8>) -> Vec<u8> {
    let end = record.len() - 8;
    record[2..4].copy_from_slice(&schema.to_le_bytes());
    let checksum = xxh3_64(&record[..end]);
    record[end..].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn record<T: Serialize>(kind: RecordKind, value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    codec::encode(kind, value, &mut out).unwrap();
    out
}

fn put(key: &RecordKey, value: Vec<u8>) -> Op {
    Op::Put { key: key.encode().into(), value: value.into() }
}

fn id(n: u128) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(n))
}

fn task_key(n: u128) -> RecordKey {
    RecordKey::TaskState(id(n), TaskName::new("web").unwrap())
}

#[test]
fn records_that_do_not_migrate_are_quarantined_and_the_others_go_on() {
    let (_dir, path) = old_file();
    let backend = DiskBackend::open(&path).unwrap();
    let mut flipped = with_schema(SCHEMA_BEFORE, record(RecordKind::Alloc, &"x"));
    flipped[7] ^= 1;
    let batch = [
        put(&RecordKey::Alloc(id(21)), flipped),
        put(
            &RecordKey::AllocState(id(22)),
            with_schema(SCHEMA_BEFORE, record(RecordKind::AllocState, &7u8)),
        ),
        put(&task_key(23), record(RecordKind::TaskState, &TaskState::default())),
        Op::Put {
            key: b"\x99?".as_slice().into(),
            value: with_schema(SCHEMA_BEFORE, record(RecordKind::Alloc, &1)).into(),
        },
    ];
    backend.commit(&batch).unwrap();
    drop(backend);
    let store = StateStore::open(&path).unwrap();
    let report = store.open_report();
    assert_eq!(content(&store), BEFORE.content);
    assert_eq!((report.records, report.in_quarantine), (BEFORE.records(), 4));
    let causes: Vec<_> =
        report.quarantined.iter().map(|bad| (bad.key.as_str(), bad.cause.to_string())).collect();
    assert_eq!(causes[0].0, RecordKey::Alloc(id(21)).to_string());
    assert!(causes[0].1.contains("checksum"), "{causes:?}");
    let (two, three) = (RecordKey::AllocState(id(22)).to_string(), task_key(23).to_string());
    let newer = format!("record has schema {SCHEMA}, this agent reads {SCHEMA}");
    assert_eq!(causes[1], (&*two, "record body does not decode".to_owned()));
    assert_eq!(causes[2], (&*three, newer));
    assert_eq!(causes[3].0, "993f");
    drop(store);
    let again = StateStore::open(&path).unwrap();
    assert!(again.open_report().quarantined.is_empty());
}

#[test]
fn a_record_that_a_migration_left_out_is_quarantined() {
    let backend = Arc::new(MemBackend::default());
    drop(StateStore::with_backend(Path::new("(test)"), backend.clone()).unwrap());
    backend
        .commit(&[put(
            &task_key(1),
            with_schema(SCHEMA_BEFORE, record(RecordKind::TaskState, &"x")),
        )])
        .unwrap();
    let store = StateStore::with_backend(Path::new("(test)"), backend).unwrap();
    let report = store.open_report();
    assert_eq!((report.migrated.as_ref(), report.records), (None, 0));
    assert_eq!(report.quarantined[0].cause, CodecError::Schema { found: SCHEMA_BEFORE });
}

#[test]
fn what_a_newer_agent_wrote_is_refused_whole_even_when_it_does_not_say_so() {
    let meta = RecordKey::Meta;
    let theirs = SCHEMA + 1;
    let told = put(&meta, with_schema(theirs, record(RecordKind::Meta, &theirs)));
    let value = put(&task_key(1), with_schema(theirs, record(RecordKind::TaskState, &"theirs")));
    let unreadable = put(&meta, b"damaged".to_vec());
    for content in [vec![told, value.clone()], vec![value.clone()], vec![unreadable, value]] {
        let backend = Arc::new(MemBackend::default());
        backend.commit(&content).unwrap();
        let counted = FaultyBackend::new(backend);
        let error = StateStore::with_backend(Path::new("(test)"), counted.clone()).unwrap_err();
        assert!(matches!(error, StateError::Schema { found, .. } if found == theirs), "{error:?}");
        assert_eq!(counted.commits(), 0);
    }
}

#[test]
fn a_file_whose_own_record_is_damaged_is_known_by_its_records() {
    let (_dir, path) = old_file();
    let backend = DiskBackend::open(&path).unwrap();
    backend.commit(&[put(&RecordKey::Meta, b"damaged".to_vec())]).unwrap();
    drop(backend);
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.open_report().migrated.as_ref().unwrap().from, SCHEMA_BEFORE);
    assert_eq!(content(&store), BEFORE.content);
}

#[test]
fn a_file_that_says_a_schema_there_never_was_is_refused() {
    let backend = Arc::new(MemBackend::default());
    let meta = put(&RecordKey::Meta, with_schema(0, record(RecordKind::Meta, &0u16)));
    backend.commit(&[meta]).unwrap();
    let error = StateStore::with_backend(Path::new("(test)"), backend).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
}

#[test]
fn a_file_from_before_the_first_release_is_refused_by_its_schema_and_left_as_it_is() {
    let theirs = OLDEST - 1;
    let backend = Arc::new(MemBackend::default());
    let meta = RecordKey::Meta;
    let told = put(&meta, with_schema(theirs, record(RecordKind::Meta, &theirs)));
    let value = put(&task_key(1), with_schema(theirs, record(RecordKind::TaskState, &"theirs")));
    backend.commit(&[told, value]).unwrap();
    let counted = FaultyBackend::new(backend);
    let error = StateStore::with_backend(Path::new("(test)"), counted.clone()).unwrap_err();
    assert!(matches!(error, StateError::TooOld { found, .. } if found == theirs), "{error:?}");
    assert!(error.to_string().contains("move the file away"), "{error}");
    assert_eq!(counted.commits(), 0);
}
