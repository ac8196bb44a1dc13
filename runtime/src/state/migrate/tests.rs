//! Old files: the committed ones, and what goes wrong with them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod crash;
mod fixtures;
mod layouts;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use fixtures::{FIXTURES, Fixture, ONE, TWO, content};
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::model::alloc::Allocation;
use crate::model::ids::{AllocId, TaskName};
use crate::model::saved::SavedAllocState;
use crate::model::task::TaskState;
use crate::state::inspect::Inspection;
use crate::state::mem_store::MemBackend;
use crate::state::redb_store::RedbBackend;
use crate::state::testing::{Fault, FaultyBackend};
use crate::state::{BackendError, Prefix, Put, Record, StateStore};
use crate::task::handle::LocalState;

/// A copy of the oldest file.
fn old_file() -> (tempfile::TempDir, PathBuf) {
    ONE.copy()
}

fn names(dir: &tempfile::TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).unwrap();
    // How many commits a file has seen is noted beside it.
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with(".commits"));
    names.sort();
    names
}

#[tokio::test]
async fn a_file_of_each_old_schema_is_migrated_and_holds_what_it_held() {
    for fixture in FIXTURES {
        let (dir, path) = fixture.copy();
        let store = StateStore::open(&path).unwrap();
        let report = store.opened();
        let backup = Some(dir.path().join(fixture.backup()));
        // All but the one that says the schema.
        let (from, records) = (fixture.schema, fixture.records + fixture.about - 1);
        let migration = Migration { from, to: SCHEMA, records, backup };
        assert_eq!(report.migrated.as_ref(), Some(&migration));
        assert_eq!(report.quarantined, []);
        assert_eq!((report.records, report.in_quarantine), (fixture.records, 0));
        let (content, expected) = (content(&store), fixture.expected());
        assert_eq!(content.len(), expected.len());
        for (is, should) in content.iter().zip(&expected) {
            assert_eq!(is, should, "from schema {from}");
        }
        let key = Key::Meta(MetaItem::SchemaVersion);
        assert_eq!(store.get::<u16>(&key).unwrap(), Some(SCHEMA));
        // What was migrated is known to be durable: nothing is written again.
        for record in store.scan(&Prefix::Allocs).unwrap() {
            let put = match record.key {
                Key::Alloc(_) => rewritten::<Allocation>(&store, &record).await,
                Key::AllocState(_) => rewritten::<SavedAllocState>(&store, &record).await,
                Key::TaskLocal(..) => rewritten::<LocalState>(&store, &record).await,
                Key::TaskState(..) => rewritten::<TaskState>(&store, &record).await,
                _ => continue,
            };
            assert_eq!(put, Put::Unchanged, "{}", record.key);
        }
    }
}

async fn rewritten<T: DeserializeOwned + Serialize>(store: &StateStore, record: &Record) -> Put {
    store.put(&record.key, &record.decode::<T>().unwrap()).await.unwrap()
}

#[test]
fn the_copy_is_the_old_file_to_the_byte_and_its_owners_alone() {
    for fixture in FIXTURES {
        let (dir, path) = fixture.copy();
        drop(StateStore::open(&path).unwrap());
        let backup = dir.path().join(fixture.backup());
        assert!(fs::read(&backup).unwrap() == fixture.file);
        assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(&dir), ["state.redb", &fixture.backup()]);
    }
}

#[test]
fn a_migrated_file_is_not_migrated_again() {
    for fixture in FIXTURES {
        let (dir, path) = fixture.copy();
        drop(StateStore::open(&path).unwrap());
        let store = StateStore::open(&path).unwrap();
        assert_eq!(store.opened().migrated, None);
        assert_eq!(content(&store), fixture.expected());
        assert_eq!(names(&dir), ["state.redb", &fixture.backup()]);
    }
}

#[test]
fn a_copy_restored_to_its_name_is_migrated_like_the_first_time() {
    let (dir, path) = TWO.copy();
    drop(StateStore::open(&path).unwrap());
    fs::copy(dir.path().join(TWO.backup()), &path).unwrap();
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.opened().migrated.as_ref().unwrap().from, 2);
    assert_eq!(content(&store), TWO.expected());
    assert_eq!(names(&dir), ["state.redb", "state.redb.schema-2"], "the same copy serves twice");
}

#[test]
fn a_copy_of_other_content_is_never_written_over() {
    let (dir, path) = old_file();
    let first = dir.path().join("state.redb.schema-1");
    fs::write(&first, "of another time").unwrap();
    let second = dir.path().join("state.redb.schema-1.2");
    fs::write(&second, vec![7; ONE.file.len()]).unwrap();
    fs::write(dir.path().join("state.redb.schema-1.new"), "half a copy").unwrap();
    let store = StateStore::open(&path).unwrap();
    let third = dir.path().join("state.redb.schema-1.3");
    assert_eq!(store.opened().migrated.as_ref().unwrap().backup.as_ref(), Some(&third));
    assert!(fs::read(third).unwrap() == ONE.file);
    assert_eq!(fs::read(first).unwrap(), b"of another time");
    assert_eq!(fs::read(second).unwrap(), vec![7; ONE.file.len()]);
    assert!(!dir.path().join("state.redb.schema-1.new").exists());
}

#[test]
fn without_a_copy_nothing_is_changed() {
    let (dir, path) = old_file();
    // A name that cannot be written, whoever asks.
    let blocked = dir.path().join("state.redb.schema-1.new");
    fs::create_dir(&blocked).unwrap();
    let error = StateStore::open(&path).unwrap_err();
    assert!(matches!(error, StateError::Backup { from: 1, .. }), "{error:?}");
    let told = error.to_string();
    for part in [path.to_str().unwrap(), "state.redb.schema-1", "nothing was changed", "room"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(fs::read(&path).unwrap() == ONE.file);
    fs::remove_dir(&blocked).unwrap();
    assert_eq!(content(&StateStore::open(&path).unwrap()), ONE.expected());
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
    fn quarantined(&self) -> Result<u64, BackendError> {
        self.0.quarantined()
    }
}

#[test]
fn a_full_disk_is_told_as_one_and_nothing_is_committed() {
    let (_dir, path) = old_file();
    let backend = FaultyBackend::new(Arc::new(RedbBackend::open(&path).unwrap()));
    let error = StateStore::with_backend(&path, Arc::new(NoRoom(backend.clone()))).unwrap_err();
    assert!(error.disk_full(), "{error:?}");
    assert_eq!(backend.commits(), 0);
}

#[test]
fn a_failed_commit_leaves_the_old_file_or_the_new_one_and_one_copy() {
    for fault in [Fault::Before, Fault::After] {
        let (dir, path) = old_file();
        let backend = FaultyBackend::new(Arc::new(RedbBackend::open(&path).unwrap()));
        backend.plan([Some(fault)]);
        let error = StateStore::with_backend(&path, backend.clone()).unwrap_err();
        assert!(matches!(error, StateError::Migrate { from: 1, .. }), "{error:?}");
        assert_eq!(backend.commits(), 1, "all in one");
        drop(backend);
        let schema = Inspection::open(&path).unwrap().schema();
        assert_eq!(schema, Some(if fault == Fault::Before { 1 } else { SCHEMA }));
        assert_eq!(content(&StateStore::open(&path).unwrap()), ONE.expected(), "{fault:?}");
        assert_eq!(names(&dir), ["state.redb", "state.redb.schema-1"], "{fault:?}");
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

fn record<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    codec::encode(kind, value, &mut out).unwrap();
    out
}

fn put(key: &Key, value: Vec<u8>) -> Op {
    Op::Put { key: key.encode().into(), value: value.into() }
}

fn id(n: u128) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(n))
}

fn task_key(n: u128) -> Key {
    Key::TaskState(id(n), TaskName::new("web").unwrap())
}

#[test]
fn records_that_do_not_migrate_are_quarantined_and_the_others_go_on() {
    let (_dir, path) = old_file();
    let backend = RedbBackend::open(&path).unwrap();
    let mut flipped = with_schema(1, record(Kind::Alloc, &"x"));
    flipped[7] ^= 1;
    let kind_of_99 = (99u32, false, 0u64, (None::<u64>, None::<u64>, None::<u64>), None::<u8>, "");
    let batch = [
        put(&Key::Alloc(id(1)), flipped),
        put(&task_key(1), with_schema(1, record(Kind::TaskState, &"no task"))),
        put(&task_key(2), with_schema(1, record(Kind::TaskState, &kind_of_99))),
        put(&task_key(3), record(Kind::TaskState, &TaskState::default())),
        Op::Put {
            key: b"\x99?".as_slice().into(),
            value: with_schema(1, record(Kind::Alloc, &1)).into(),
        },
    ];
    backend.commit(&batch).unwrap();
    drop(backend);
    let store = StateStore::open(&path).unwrap();
    let report = store.opened();
    assert_eq!(content(&store), ONE.expected());
    assert_eq!((report.records, report.in_quarantine), (ONE.records, 5));
    let causes: Vec<_> =
        report.quarantined.iter().map(|bad| (bad.key.as_str(), bad.cause.to_string())).collect();
    let (one, two, three) =
        (task_key(1).to_string(), task_key(2).to_string(), task_key(3).to_string());
    assert_eq!(causes[0].0, Key::Alloc(id(1)).to_string());
    assert!(causes[0].1.contains("checksum"), "{causes:?}");
    let undecoded = "record body does not decode".to_owned();
    let newer = format!("record has schema {SCHEMA}, this agent reads {SCHEMA}");
    let rest = [(&*one, undecoded.clone()), (&*two, undecoded), (&*three, newer)];
    assert_eq!(causes[1..4], rest);
    assert_eq!(causes[4].0, "993f");
    drop(store);
    let again = StateStore::open(&path).unwrap();
    assert!(again.opened().quarantined.is_empty());
}

#[test]
fn a_record_of_schema_2_that_does_not_migrate_is_quarantined_and_the_others_go_on() {
    let (_dir, path) = TWO.copy();
    let backend = RedbBackend::open(&path).unwrap();
    let local = Key::TaskLocal(id(1), TaskName::new("web").unwrap());
    let mut flipped = with_schema(2, record(Kind::AllocState, &(1u8, "x")));
    flipped[7] ^= 1;
    let today = SavedAllocState::default();
    let batch = [
        put(&Key::Alloc(id(1)), with_schema(2, record(Kind::Alloc, &id(1)))),
        put(&Key::AllocState(id(1)), flipped),
        put(&local, with_schema(2, record(Kind::TaskLocal, &(Some("no run"), 0u8)))),
        put(&Key::AllocState(id(2)), with_schema(2, record(Kind::AllocState, &today))),
        put(&Key::AllocState(id(3)), with_schema(1, record(Kind::AllocState, &(0u8, "", "")))),
        put(&Key::AllocState(id(4)), with_schema(2, record(Kind::AllocState, &(4u8, "")))),
    ];
    backend.commit(&batch).unwrap();
    drop(backend);
    let store = StateStore::open(&path).unwrap();
    let report = store.opened();
    assert_eq!(content(&store), TWO.expected());
    assert_eq!((report.records, report.in_quarantine), (TWO.records, 6));
    let causes = report.quarantined.iter().map(|bad| (bad.key.clone(), bad.cause.to_string()));
    let causes: std::collections::BTreeMap<_, _> = causes.collect();
    let undecoded = "record body does not decode";
    assert_eq!(causes[&Key::Alloc(id(1)).to_string()], undecoded);
    assert!(causes[&Key::AllocState(id(1)).to_string()].contains("checksum"));
    assert_eq!(causes[&local.to_string()], undecoded);
    let trailing = "record body has 2 bytes after its value";
    assert_eq!(causes[&Key::AllocState(id(2)).to_string()], trailing);
    let older = format!("record has schema 1, this agent reads {SCHEMA}");
    assert_eq!(causes[&Key::AllocState(id(3)).to_string()], older);
    assert_eq!(causes[&Key::AllocState(id(4)).to_string()], undecoded);
}

#[test]
fn a_record_that_a_migration_left_out_is_quarantined() {
    let backend = Arc::new(MemBackend::default());
    drop(StateStore::with_backend(Path::new("(test)"), backend.clone()).unwrap());
    backend.commit(&[put(&task_key(1), with_schema(1, record(Kind::TaskState, &"x")))]).unwrap();
    let store = StateStore::with_backend(Path::new("(test)"), backend).unwrap();
    let report = store.opened();
    assert_eq!((report.migrated.as_ref(), report.records), (None, 0));
    assert_eq!(report.quarantined[0].cause, CodecError::Schema { found: 1 });
}

#[test]
fn what_a_newer_agent_wrote_is_refused_whole_even_when_it_does_not_say_so() {
    let meta = Key::Meta(MetaItem::SchemaVersion);
    let theirs = SCHEMA + 1;
    let told = put(&meta, with_schema(theirs, record(Kind::Meta, &theirs)));
    let value = put(&task_key(1), with_schema(theirs, record(Kind::TaskState, &"theirs")));
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
    let backend = RedbBackend::open(&path).unwrap();
    backend.commit(&[put(&Key::Meta(MetaItem::SchemaVersion), b"damaged".to_vec())]).unwrap();
    drop(backend);
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.opened().migrated.as_ref().unwrap().from, 1);
    assert_eq!(content(&store), ONE.expected());
}

#[test]
fn a_file_that_says_a_schema_there_never_was_is_refused() {
    let backend = Arc::new(MemBackend::default());
    let meta = put(&Key::Meta(MetaItem::SchemaVersion), with_schema(0, record(Kind::Meta, &0u16)));
    backend.commit(&[meta]).unwrap();
    let error = StateStore::with_backend(Path::new("(test)"), backend).unwrap_err();
    assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
}
