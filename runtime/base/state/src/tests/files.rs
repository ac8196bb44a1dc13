//! Tests of state files: reopening, damage, permissions, and storage that fails underneath redb.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::backend::{Backend as _, Op};
use crate::codec::SCHEMA;
use crate::disk_store::{DiskBackend, JournalFile, Openers};
use crate::inspect::Inspection;
use crate::rewrite::FileTrust;
use crate::{Age, KeyPrefix, PutOutcome, StateError, move_aside};
use redb::backends::FileBackend;
use redb::{BackendError as StorageRefusal, StorageBackend};

fn new_path() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.redb");
    (dir, path)
}

/// A file with 200 allocations.
async fn filled(path: &Path) -> Vec<u8> {
    let store = StateStore::open(path).unwrap();
    for n in 0..200 {
        store.put(&RecordKey::Alloc(id(n)), &allocation(id(n))).await.unwrap();
    }
    drop(store);
    fs::read(path).unwrap()
}

#[tokio::test]
async fn everything_is_there_after_a_drop_and_known_to_be_durable() {
    let (_dir, path) = new_path();
    filled(&path).await;
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.open_report().records, 200);
    assert!(store.open_report().quarantined.is_empty() && !store.open_report().repaired);
    for record in store.scan(&KeyPrefix::Allocs).unwrap() {
        let alloc: Allocation = record.decode().unwrap();
        assert_eq!(alloc, allocation(record.key.alloc().unwrap()));
        assert_eq!(store.put(&record.key, &alloc).await.unwrap(), PutOutcome::Unchanged);
    }
    assert_eq!(store.stats().commits, 0);
}

#[tokio::test]
async fn writes_that_nobody_waits_for_any_more_are_committed_before_the_drop_ends() {
    let (_dir, path) = new_path();
    let store = StateStore::open(&path).unwrap();
    for n in 0..50 {
        let key = RecordKey::Alloc(id(n));
        // One poll queues the write; then its future is dropped.
        let put = std::pin::pin!(store.put(&key, "x"));
        let _ = polled_once(put).await;
    }
    drop(store);
    assert_eq!(StateStore::open(&path).unwrap().open_report().records, 50);
}

#[tokio::test]
async fn the_state_file_is_its_owners_alone_and_is_made_whole() {
    let (dir, path) = new_path();
    let store = StateStore::open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    // These are the file, the number of its commits, and its journal.
    let expected = ["state.redb", "state.redb.commits", "state.redb.journal"];
    assert_eq!(names, expected, "nothing is left of its making");
    let journal = fs::metadata(dir.path().join("state.redb.journal")).unwrap();
    assert_eq!(journal.permissions().mode() & 0o777, 0o600);
    drop(store);
}

#[test]
fn an_unfinished_new_file_of_an_agent_that_died_is_made_again() {
    let (dir, path) = new_path();
    fs::write(dir.path().join("state.redb.new"), "half a database").unwrap();
    StateStore::open(&path).unwrap();
    assert!(!dir.path().join("state.redb.new").exists());
}

#[test]
fn a_file_in_use_is_told_with_its_path() {
    let (_dir, path) = new_path();
    let _first = StateStore::open(&path).unwrap();
    let error = StateStore::open(&path).unwrap_err();
    assert!(matches!(error, StateError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
}

#[test]
fn files_that_are_no_state_files_are_refused_by_name_and_left_as_they_are() {
    let text = b"this is not a database\n".repeat(1_000);
    for content in [&b""[..], &b"x"[..], &text[..], &[0; 4096][..], &[0xff; 70_000][..]] {
        let (dir, path) = new_path();
        fs::write(&path, content).unwrap();
        let error = StateStore::open(&path).unwrap_err();
        assert!(matches!(error, StateError::Damaged { .. }), "{} bytes: {error:?}", content.len());
        let told = error.to_string();
        assert!(told.contains(path.to_str().unwrap()) && !told.contains("delete"), "{told}");
        assert_eq!(fs::read(&path).unwrap(), content);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn another_programs_database_is_refused() {
    let (_dir, path) = new_path();
    drop(redb::Database::create(&path).unwrap());
    let error = StateStore::open(&path).unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error:?}");
}

#[tokio::test]
async fn a_file_cut_off_anywhere_is_refused_or_whole_but_never_part_of_itself() {
    let (_dir, path) = new_path();
    let whole = filled(&path).await;
    for part in 1..20 {
        fs::write(&path, &whole[..whole.len() * part / 20]).unwrap();
        match StateStore::open(&path) {
            Err(error) => assert!(matches!(error, StateError::Damaged { .. }), "{error:?}"),
            Ok(store) => assert_eq!(store.open_report().records, 200, "cut to {part}/20"),
        }
    }
}

#[tokio::test]
async fn damage_anywhere_in_the_file_is_noticed_or_without_effect() {
    let (dir, path) = new_path();
    let whole = filled(&path).await;
    let mut noticed = 0;
    for part in 0..40 {
        fs::write(&path, &whole).unwrap();
        // The journal would make good what it still holds.
        let _gone_already = fs::remove_file(dir.path().join("state.redb.journal"));
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let at = whole.len() * part / 40;
        file.write_all_at(&[0xa5; 64], at as u64).unwrap();
        match StateStore::open(&path) {
            Err(error) => {
                assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
                assert!(error.to_string().contains(path.to_str().unwrap()));
                let mut expected = whole.clone();
                expected[at..at + 64].fill(0xa5);
                assert!(fs::read(&path).unwrap() == expected, "left as it is, damage at {at}");
                let again = StateStore::open(&path).unwrap_err();
                assert!(matches!(again, StateError::Damaged { .. }), "{again:?}");
                noticed += 1;
            }
            Ok(store) => {
                let report = store.open_report().clone();
                let read = store.scan(&KeyPrefix::Allocs).unwrap();
                let good = read.iter().filter(|r| r.decode::<Allocation>().is_ok()).count();
                assert_eq!(good, read.len(), "what is shown is good");
                if report.repaired || !report.quarantined.is_empty() {
                    noticed += 1;
                } else {
                    assert_eq!(good, 200, "nothing went missing in silence, damage at {at}");
                }
            }
        }
    }
    assert!(noticed > 0);
}

#[tokio::test]
async fn damaged_records_are_quarantined_and_the_rest_is_used() {
    let (_dir, path) = new_path();
    filled(&path).await;
    let backend = DiskBackend::open(&path).unwrap();
    let bad = RecordKey::Alloc(id(7)).encode();
    let mut record = backend.get(&bad).unwrap().unwrap();
    record[20] ^= 1;
    let other = backend.get(&RecordKey::Alloc(id(8)).encode()).unwrap().unwrap();
    let put = |key: &[u8], value: &[u8]| Op::Put { key: key.into(), value: value.into() };
    backend
        .commit(&[
            put(&bad, &record),
            put(&RecordKey::AllocState(id(8)).encode(), &other),
            put(b"\x99unknown", &other),
            put(&RecordKey::Meta.encode(), b"short"),
        ])
        .unwrap();
    drop(backend);
    let store = StateStore::open(&path).unwrap();
    let report = store.open_report();
    assert_eq!((report.records, report.in_quarantine), (199, 4));
    let keys: Vec<_> = report.quarantined.iter().map(|record| record.key.as_str()).collect();
    let expected = [
        "meta/schema".to_owned(),
        RecordKey::Alloc(id(7)).to_string(),
        RecordKey::AllocState(id(8)).to_string(),
        "99756e6b6e6f776e".to_owned(),
    ];
    assert_eq!(keys, expected);
    let again = store.put(&RecordKey::Alloc(id(7)), &allocation(id(7))).await.unwrap();
    assert_eq!(
        again,
        PutOutcome::Written,
        "what was in a damaged record is not known to be durable"
    );
    drop(store);
    let store = StateStore::open(&path).unwrap();
    assert_eq!((store.open_report().records, store.open_report().in_quarantine), (200, 4));
    assert!(store.open_report().quarantined.is_empty());
}

#[tokio::test]
async fn a_file_of_a_newer_agent_is_refused() {
    let (_dir, path) = new_path();
    let store = StateStore::open(&path).unwrap();
    store.put(&RecordKey::Meta, &7u16).await.unwrap();
    drop(store);
    let before = fs::read(&path).unwrap();
    let error = StateStore::open(&path).unwrap_err();
    assert!(matches!(error, StateError::Schema { found: 7, supported: SCHEMA, .. }), "{error:?}");
    assert!(fs::read(&path).unwrap() == before, "left as it is");
}

/// A file with more commits than the copy that comes with it. The first of these commits is not in
/// the journal any more.
async fn with_older_copy(path: &Path) -> Vec<u8> {
    filled(path).await;
    let older = fs::read(path).unwrap();
    for said in ["acknowledged", "and another"] {
        let store = StateStore::open(path).unwrap();
        store.put(&RecordKey::DeviceLedger, said).await.unwrap();
    }
    older
}

#[tokio::test]
async fn an_older_copy_that_was_put_back_is_told_once() {
    let (_dir, path) = new_path();
    let older = with_older_copy(&path).await;
    assert_eq!(StateStore::open(&path).unwrap().open_report().age, Age::Newest);
    fs::write(&path, older).unwrap();
    let inspection = Inspection::open(&path).unwrap();
    assert!(matches!(inspection.age(), Age::Older { commits: 1.. }));
    drop(inspection);
    let store = StateStore::open(&path).unwrap();
    assert!(matches!(store.open_report().age, Age::Older { commits: 1.. }));
    assert!(store.open_report().is_incomplete() && !store.open_report().repaired);
    store.put(&RecordKey::DeviceLedger, "another").await.unwrap();
    drop(store);
    assert_eq!(StateStore::open(&path).unwrap().open_report().age, Age::Newest, "it was told");
}

#[tokio::test]
async fn a_file_that_is_gone_is_told_and_a_directory_without_one_is_not() {
    let (_dir, path) = new_path();
    assert_eq!(StateStore::open(&path).unwrap().open_report().age, Age::Newest);
    with_older_copy(&path).await;
    fs::remove_file(&path).unwrap();
    let age = StateStore::open(&path).unwrap().open_report().age;
    assert!(matches!(age, Age::Gone { commits: 201.. }), "{age:?}");
}

#[tokio::test]
async fn a_file_of_an_agent_that_counted_no_commits_is_as_good_as_new_where_nobody_counted() {
    let (dir, path) = new_path();
    with_older_copy(&path).await;
    fs::remove_file(dir.path().join("state.redb.commits")).unwrap();
    let store = StateStore::open(&path).unwrap();
    assert_eq!(store.open_report().age, Age::Newest);
    store.put(&RecordKey::DeviceLedger, "on").await.unwrap();
    drop(store);
    assert_eq!(StateStore::open(&path).unwrap().open_report().age, Age::Newest);
}

#[test]
fn a_missing_directory_is_an_error_with_the_path() {
    let (dir, _) = new_path();
    let path = dir.path().join("nowhere/state.redb");
    let error = StateStore::open(&path).unwrap_err();
    assert!(matches!(error, StateError::Open { .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
}

#[test]
fn a_file_is_moved_aside_to_the_first_free_name() {
    let (dir, path) = new_path();
    for expected in ["state.redb.damaged-1", "state.redb.damaged-2"] {
        fs::write(&path, expected).unwrap();
        let moved = move_aside(&path).unwrap();
        assert_eq!(moved, dir.path().join(expected));
        assert_eq!(fs::read_to_string(moved).unwrap(), expected);
        assert!(!path.exists());
    }
}

/// A file whose disk is full while the switch is on.
#[derive(Debug)]
struct FullDisk {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

impl FullDisk {
    fn check(&self) -> Result<(), StorageRefusal> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StorageRefusal::Io(io::Error::from(io::ErrorKind::StorageFull)));
        }
        Ok(())
    }
}

impl StorageBackend for FullDisk {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.check()?;
        self.file.set_len(len)
    }
    fn sync_data(&self) -> Result<(), io::Error> {
        self.check()?;
        self.file.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.check()?;
        self.file.write(offset, data)
    }
    fn close(&self) -> Result<(), io::Error> {
        self.file.close()
    }
}

#[tokio::test]
async fn a_full_disk_fails_writes_with_its_name_and_room_heals_the_store() {
    let (_dir, path) = new_path();
    filled(&path).await;
    let full = Arc::new(AtomicBool::new(false));
    let switch = full.clone();
    let opener = move |path: &Path, _: FileTrust| {
        let file = fs::OpenOptions::new().read(true).write(true).open(path)?;
        let storage = FullDisk { file: FileBackend::new(file)?, full: switch.clone() };
        redb::Builder::new().create_with_backend(storage)
    };
    let switch = full.clone();
    let journal = move |path: &Path| {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Some(Box::new(FullDisk { file, full: switch.clone() }) as JournalFile))
    };
    let openers =
        Openers { tree: Box::new(opener), journal: Box::new(journal), journal_bytes: 1 << 20 };
    let backend = DiskBackend::open_with(&path, openers).unwrap();
    let store = StateStore::with_backend(&path, Arc::new(backend)).unwrap();
    let key = RecordKey::DeviceLedger;
    store.put(&key, "before").await.unwrap();
    full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let error = store.put(&key, "while full").await.unwrap_err();
        assert!(matches!(error, StateError::Commit { .. }), "{error:?}");
        assert!(error.disk_full(), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
    full.store(false, Ordering::SeqCst);
    assert_eq!(text(&store, &key), Some("before".to_owned()));
    assert_eq!(store.put(&key, "after").await.unwrap(), PutOutcome::Written);
    drop(store);
    let store = StateStore::open(&path).unwrap();
    assert_eq!(text(&store, &key), Some("after".to_owned()));
    assert_eq!(store.scan(&KeyPrefix::Allocs).unwrap().len(), 200);
}
