//! Tests a migration on a disk that fails, or loses power, at each of its operations.

use super::*;
use crate::testing::disk::{DiskFault, FaultyDisk};
use ostler_model::limits::STATE_CACHE_BYTES;

/// The schemas in the envelopes of all records, the file's own included.
fn schemas(backend: &DiskBackend) -> Vec<u16> {
    let mut schemas = Vec::new();
    let visit = &mut |_: &[u8], record: &[u8]| {
        schemas.push(Envelope::open(record).unwrap().schema);
        ControlFlow::Continue(())
    };
    backend.scan(&[], visit).unwrap();
    schemas
}

fn open(path: &Path, disk: &FaultyDisk) -> Result<DiskBackend, BackendError> {
    DiskBackend::open_with(path, disk.openers(STATE_CACHE_BYTES, 1 << 16))
}

#[test]
fn a_crash_anywhere_leaves_the_old_file_or_the_new_one() {
    let (_dir, path) = old_file();
    let untroubled = FaultyDisk::new(&BEFORE.file, 0);
    drop(StateStore::with_backend(&path, Arc::new(open(&path, &untroubled).unwrap())).unwrap());
    let operations = untroubled.journal().len();
    assert!(operations > 20, "{operations}");
    let expected = &BEFORE.content;
    let (mut old, mut new, mut missed) = (0, 0, 0);
    for fault in [DiskFault::PowerCut, DiskFault::TornWrite, DiskFault::Error, DiskFault::Full] {
        for operation in 1..=operations {
            let disk = FaultyDisk::new(&BEFORE.file, operation as u64);
            disk.plan(operation, fault);
            // This may fail; only what is there afterwards counts.
            let opened = open(&path, &disk)
                .map(|backend| StateStore::with_backend(&path, Arc::new(backend)).is_ok());
            drop(opened);
            if !disk.has_fault_happened() {
                missed += 1;
            }
            disk.power_cycle();
            let at = format!("{fault:?} at operation {operation}");
            let backend = open(&path, &disk).unwrap_or_else(|error| panic!("{at}: {error:?}"));
            let found = schemas(&backend);
            assert_eq!(found.len() as u64, BEFORE.records() + 1, "{at}");
            if found[0] == SCHEMA_BEFORE {
                old += 1;
            } else {
                new += 1;
            }
            assert!(found.iter().all(|schema| *schema == found[0]), "{at}: half done: {found:?}");
            let store = StateStore::with_backend(&path, Arc::new(backend)).unwrap();
            assert!(store.open_report().quarantined.is_empty(), "{at}");
            assert_eq!(&content(&store), expected, "{at}");
        }
    }
    assert!(old > 0 && new > 0 && missed < operations, "{old} old, {new} new, {missed} missed");
}
