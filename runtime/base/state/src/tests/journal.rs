//! Tests of the journal and the tree together: content in the one, the other or both, and files of
//! different stores side by side.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::backend::{Backend as _, Op};
use crate::disk_store::DiskBackend;
use crate::inspect::{Inspection, compact};
use crate::journal::BLOCK;
use crate::testing::decode_any;
use crate::testing::disk::{DiskFault, DiskOperation, FaultyDisk};
use crate::{Age, KeyPrefix, PutOutcome, StateError, StoreOptions};
use ostler_model::limits::STATE_JOURNAL_BYTES;
use proptest::prelude::*;

/// A state file and its journal.
struct Pair {
    dir: tempfile::TempDir,
    path: PathBuf,
    journal: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (path, journal) =
            (dir.path().join("state.redb"), dir.path().join("state.redb.journal"));
        Self { dir, path, journal }
    }

    /// The files of an agent that was killed after these writes were acknowledged, with nothing
    /// moved into the tree.
    async fn killed_after(texts: &[&str]) -> Self {
        let (alive, killed) = (Self::new(), Self::new());
        let store = StateStore::open(&alive.path).unwrap();
        for (n, text) in texts.iter().enumerate() {
            store.put(&RecordKey::Alloc(id(n as u128)), text).await.unwrap();
        }
        for (from, to) in [(&alive.path, &killed.path), (&alive.journal, &killed.journal)] {
            fs::copy(from, to).unwrap();
        }
        fs::copy(alive.beside(".commits"), killed.beside(".commits")).unwrap();
        killed
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        crate::files::with_suffix(&self.path, suffix)
    }

    fn read(&self) -> (Vec<u8>, Vec<u8>) {
        (fs::read(&self.path).unwrap(), fs::read(&self.journal).unwrap())
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn texts(store: &StateStore) -> Vec<String> {
    store
        .scan(&KeyPrefix::Allocs)
        .unwrap()
        .iter()
        .map(|record| decode_any(record).unwrap())
        .collect()
}

const TEXTS: [&str; 4] = ["one", "two", "three", "four"];

#[tokio::test]
async fn what_a_killed_agent_had_acknowledged_is_read_known_to_be_durable_and_moved() {
    let killed = Pair::killed_after(&TEXTS).await;
    let before = killed.read();
    let looked = Inspection::open(&killed.path).unwrap();
    assert_eq!(
        (looked.replayed_batches(), looked.age()),
        (5, Age::Newest),
        "the schema among them"
    );
    drop(looked);
    assert!(killed.read() == before, "looking changes nothing");

    let store = StateStore::open(&killed.path).unwrap();
    assert_eq!(texts(&store), TEXTS);
    assert!(!store.open_report().is_incomplete());
    assert_eq!(store.put(&RecordKey::Alloc(id(3)), "four").await.unwrap(), PutOutcome::Unchanged);
    drop(store);
    fs::remove_file(&killed.journal).unwrap();
    assert_eq!(texts(&StateStore::open(&killed.path).unwrap()), TEXTS, "it was moved");
}

#[tokio::test]
async fn a_closed_store_is_whole_without_its_journal() {
    let pair = Pair::new();
    let store = StateStore::open(&pair.path).unwrap();
    store.put(&RecordKey::Alloc(id(1)), "one").await.unwrap();
    store.close().await;
    let copy = pair.beside(".copy");
    fs::copy(&pair.path, &copy).unwrap();
    drop(store);
    let looked = Inspection::open(&copy).unwrap();
    assert_eq!((looked.replayed_batches(), looked.age()), (0, Age::Newest));
    drop(looked);
    assert_eq!(texts(&StateStore::open(&copy).unwrap()), ["one"]);
}

#[tokio::test]
async fn compacting_moves_the_journal_first() {
    let killed = Pair::killed_after(&TEXTS).await;
    compact(&killed.path).unwrap();
    fs::remove_file(&killed.journal).unwrap();
    assert_eq!(texts(&StateStore::open(&killed.path).unwrap()), TEXTS);
}

#[tokio::test]
async fn a_file_of_an_agent_without_journals_is_brought_along() {
    let pair = Pair::new();
    // This is a file as it was made before there were journals.
    let database = crate::redb_store::builder().create(&pair.path).unwrap();
    let write = database.begin_write().unwrap();
    let commits: redb::TableDefinition<'_, (), u64> = redb::TableDefinition::new("commits");
    write.open_table(crate::redb_store::STATE).unwrap();
    write.open_table(crate::redb_store::QUARANTINE).unwrap();
    write.open_table(commits).unwrap().insert((), 70).unwrap();
    write.commit().unwrap();
    drop(database);
    for n in 0..3 {
        let store = StateStore::open(&pair.path).unwrap();
        assert_eq!(store.open_report().age, Age::Newest);
        store.put(&RecordKey::Alloc(id(n)), "x").await.unwrap();
        assert_eq!(texts(&store).len() as u128, n + 1);
    }
    let number = fs::read_to_string(pair.beside(".commits")).unwrap();
    assert!(number.trim_end().parse::<u64>().unwrap() > 70, "the numbers go on: {number}");
}

#[tokio::test]
async fn the_journal_of_another_file_is_told_kept_and_not_taken() {
    let (killed, other) = (Pair::killed_after(&TEXTS).await, Pair::killed_after(&["other"]).await);
    drop(StateStore::open(&killed.path).unwrap());
    fs::copy(&other.journal, &killed.journal).unwrap();
    let before = killed.read();
    let looked = Inspection::open(&killed.path).unwrap();
    assert!(looked.has_foreign_journal() && looked.replayed_batches() == 0);
    drop(looked);
    assert!(killed.read() == before);

    let store = StateStore::open(&killed.path).unwrap();
    assert_eq!(texts(&store), TEXTS);
    let report = store.open_report();
    assert!(report.foreign_journal && report.is_incomplete());
    let aside = report.journal_aside.clone().unwrap();
    assert_eq!(aside, killed.beside(".journal.aside-1"));
    assert!(fs::read(aside).unwrap() == before.1);
    drop(store);
    let again = StateStore::open(&killed.path).unwrap();
    assert!(!again.open_report().is_incomplete(), "told once");
    assert_eq!(killed.names().len(), 4, "{:?}", killed.names());
}

#[tokio::test]
async fn what_is_behind_a_hole_is_told_kept_and_not_taken() {
    let killed = Pair::killed_after(&TEXTS).await;
    let mut journal = fs::read(&killed.journal).unwrap();
    // The journal holds the schema, one and two; two is no longer whole.
    journal[2 * BLOCK + 60] ^= 1;
    fs::write(&killed.journal, &journal).unwrap();
    // This also holds if nothing else in the directory knows how much there was.
    fs::remove_file(killed.beside(".commits")).unwrap();
    let lacks = Age::Older { commits: 3 };
    assert_eq!(Inspection::open(&killed.path).unwrap().age(), lacks);
    let store = StateStore::open(&killed.path).unwrap();
    assert_eq!(texts(&store), ["one"]);
    assert_eq!(store.open_report().age, lacks);
    assert!(fs::read(store.open_report().journal_aside.as_ref().unwrap()).unwrap() == journal);
    store.put(&RecordKey::Alloc(id(7)), "on").await.unwrap();
    drop(store);
    assert!(!StateStore::open(&killed.path).unwrap().open_report().is_incomplete(), "told once");
}

#[tokio::test]
async fn the_newest_record_damaged_is_told_by_what_the_directory_knows() {
    let killed = Pair::killed_after(&TEXTS).await;
    let mut journal = fs::read(&killed.journal).unwrap();
    journal[4 * BLOCK + 60] ^= 1;
    fs::write(&killed.journal, &journal).unwrap();
    let store = StateStore::open(&killed.path).unwrap();
    assert_eq!(texts(&store), &TEXTS[..3]);
    assert_eq!(store.open_report().age, Age::Older { commits: 1 });
}

#[tokio::test]
async fn a_journal_that_is_gone_is_told_by_what_the_directory_knows() {
    let killed = Pair::killed_after(&TEXTS).await;
    fs::remove_file(&killed.journal).unwrap();
    let store = StateStore::open(&killed.path).unwrap();
    assert_eq!((texts(&store).len(), store.open_report().age), (0, Age::Older { commits: 5 }));
}

#[tokio::test]
async fn an_older_file_under_a_journal_that_goes_on_from_it_lacks_nothing() {
    let killed = Pair::killed_after(&TEXTS).await;
    let older = fs::read(&killed.path).unwrap();
    let journal = fs::read(&killed.journal).unwrap();
    drop(StateStore::open(&killed.path).unwrap());
    // The state file's newest commits are lost, but the journal still has their content.
    fs::write(&killed.path, older).unwrap();
    assert!(fs::read(&killed.journal).unwrap() == journal, "it is not touched when it is moved");
    let store = StateStore::open(&killed.path).unwrap();
    assert_eq!((texts(&store).len(), store.open_report().age), (4, Age::Newest));
}

#[test]
fn what_is_in_the_place_of_a_journal_and_none_is_refused_by_name() {
    let pair = Pair::new();
    drop(StateStore::open(&pair.path).unwrap());
    fs::remove_file(&pair.journal).unwrap();
    fs::create_dir(&pair.journal).unwrap();
    let before = fs::read(&pair.path).unwrap();
    for error in
        [StateStore::open(&pair.path).unwrap_err(), Inspection::open(&pair.path).err().unwrap()]
    {
        assert!(matches!(error, StateError::Journal { .. }), "{error:?}");
        assert!(error.to_string().contains(pair.journal.to_str().unwrap()), "{error}");
    }
    assert!(fs::read(&pair.path).unwrap() == before, "left as it is");
}

#[test]
fn bytes_that_are_no_journal_are_written_over() {
    let pair = Pair::new();
    for content in [&b"text"[..], &[0xff; 3 * BLOCK]] {
        fs::write(&pair.journal, content).unwrap();
        let backend = DiskBackend::open(&pair.path).unwrap();
        assert!(backend.moved_aside_path().is_none() && !backend.age().is_behind());
        backend.commit(&[put(1, 1)]).unwrap();
        let made = fs::metadata(&pair.journal).unwrap().len();
        assert_eq!(made, STATE_JOURNAL_BYTES as u64);
    }
}

fn put(key: u8, value: u8) -> Op {
    Op::Put { key: [key].into(), value: [value; 200].into() }
}

fn open(path: &Path, disk: &FaultyDisk, blocks: usize) -> DiskBackend {
    DiskBackend::open_with(path, disk.openers(1 << 20, blocks * BLOCK)).unwrap()
}

#[test]
fn a_write_is_one_overwrite_and_one_sync() {
    let (pair, disk) = (Pair::new(), FaultyDisk::new(&empty_state_file(), 0));
    fs::write(&pair.path, "").unwrap();
    let backend = open(&pair.path, &disk, 16);
    for n in 0..10 {
        let before = disk.operations();
        backend.commit(&[put(n, 1), put(n, 2), put(n + 1, 1)]).unwrap();
        assert_eq!(disk.journal()[before..], [DiskOperation::Write, DiskOperation::Sync]);
    }
}

#[tokio::test]
async fn the_journal_is_moved_when_nothing_comes_and_then_nothing_is_written() {
    let (pair, disk) = (Pair::new(), FaultyDisk::new(&empty_state_file(), 0));
    fs::write(&pair.path, "").unwrap();
    let backend = Arc::new(open(&pair.path, &disk, 16));
    let options = StoreOptions { settle_idle: Duration::from_millis(1), ..Default::default() };
    let store = StateStore::with_backend_and(&pair.path, backend.clone(), options).unwrap();
    for n in 0..3 {
        store.put(&RecordKey::Alloc(id(n)), "x").await.unwrap();
        until(|| !backend.has_unsettled()).await;
    }
    let before = disk.operations();
    for n in 0..3 {
        assert_eq!(store.put(&RecordKey::Alloc(id(n)), "x").await.unwrap(), PutOutcome::Unchanged);
    }
    store.flush().await.unwrap();
    assert_eq!(disk.operations(), before);
}

fn any_batch() -> impl Strategy<Value = Vec<Op>> {
    let key = || prop::sample::select(vec![b"a".to_vec(), b"ab".to_vec(), b"b".to_vec()]);
    let op = prop_oneof![
        8 => (key(), any::<u8>(), prop::sample::select(vec![1usize, 300, 5_000, 30_000]))
            .prop_map(|(key, value, len)| Op::Put { key: key.into(), value: vec![value; len].into() }),
        2 => key().prop_map(|key| Op::Delete { key: key.into() }),
        1 => key().prop_map(|key| Op::DeletePrefix { prefix: key.into() }),
        1 => key().prop_map(|key| Op::Quarantine { key: key.into() }),
    ];
    prop::collection::vec(op, 1..4)
}

#[derive(Clone, Debug)]
enum Then {
    Nothing,
    Settle,
    Close,
    Kill,
    PowerCut,
}

fn any_then() -> impl Strategy<Value = Then> {
    prop_oneof![
        8 => Just(Then::Nothing),
        1 => Just(Then::Settle),
        1 => Just(Then::Close),
        1 => Just(Then::Kill),
        1 => Just(Then::PowerCut),
    ]
}

fn all(backend: &dyn crate::Backend) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        std::ops::ControlFlow::Continue(())
    };
    backend.scan(b"", visit).unwrap();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if soak() { 5_000 } else { 60 }))]

    #[test]
    fn both_files_together_read_as_one_at_any_time(
        steps in prop::collection::vec((any_batch(), any_then()), 1..40),
        seed in any::<u64>(),
    ) {
        let (pair, disk) = (Pair::new(), FaultyDisk::new(&empty_state_file(), seed));
        fs::write(&pair.path, "").unwrap();
        let model = MemBackend::default();
        let mut backend = Some(open(&pair.path, &disk, 5));
        for (batch, then) in steps {
            let current = backend.take().unwrap();
            current.commit(&batch).unwrap();
            model.commit(&batch).unwrap();
            backend = Some(match then {
                Then::Nothing => current,
                Then::Settle => {
                    current.settle().unwrap();
                    prop_assert!(!current.has_unsettled());
                    current
                }
                Then::Close => {
                    drop(current);
                    open(&pair.path, &disk, 5)
                }
                Then::Kill | Then::PowerCut => {
                    disk.cut_power();
                    drop(current);
                    match then {
                        Then::Kill => disk.kill_process(),
                        _ => disk.power_cycle(),
                    }
                    open(&pair.path, &disk, 5)
                }
            });
            let current = backend.as_ref().unwrap();
            prop_assert!(!current.age().is_behind());
            prop_assert_eq!(all(current), all(&model));
            prop_assert_eq!(current.count_quarantined().unwrap(), model.count_quarantined().unwrap());
        }
    }
}

#[test]
fn a_journal_that_failed_is_done_without_and_made_again() {
    let (pair, disk) = (Pair::new(), FaultyDisk::new(&empty_state_file(), 3));
    fs::write(&pair.path, "").unwrap();
    let backend = open(&pair.path, &disk, 16);
    backend.commit(&[put(1, 1)]).unwrap();
    disk.plan(disk.operations() + 1, DiskFault::Error);
    backend.commit(&[put(2, 1)]).unwrap();
    assert!(!backend.has_unsettled(), "all of it is in the tree");
    for n in 0..=64 {
        backend.commit(&[put(3, n)]).unwrap();
    }
    let before = disk.operations();
    backend.commit(&[put(4, 1)]).unwrap();
    assert_eq!(disk.journal()[before..], [DiskOperation::Write, DiskOperation::Sync]);
    disk.cut_power();
    drop(backend);
    disk.power_cycle();
    let backend = open(&pair.path, &disk, 16);
    let values: Vec<u8> = all(&backend).iter().map(|(_, value)| value[0]).collect();
    assert_eq!(values, [1, 1, 64, 1]);
}
