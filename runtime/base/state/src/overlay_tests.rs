//! Tests the overlay against a plain buffer, and its bound and its locks.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use proptest::prelude::*;
use std::fs;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = 5 * BLOCK as u64;
    let write = (0..size, prop::collection::vec(any::<u8>(), 1..2 * BLOCK));
    let step = prop_oneof![
        write.prop_map(|(at, data)| Step::Write(at, data)),
        (1..size).prop_map(Step::SetLen),
    ];
    prop::collection::vec(step, 1..12)
}

fn file_of(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), content).unwrap();
    file
}

fn whole(overlay: &Overlay) -> Vec<u8> {
    let mut out = vec![0xee; usize::try_from(StorageBackend::len(overlay).unwrap()).unwrap()];
    StorageBackend::read(overlay, 0, &mut out).unwrap();
    out
}

proptest! {
    #[test]
    fn it_reads_as_a_file_would_and_the_file_stays_as_it_is(
        content in prop::collection::vec(any::<u8>(), 1..3 * BLOCK),
        steps in steps(),
        at in any::<prop::sample::Index>(),
        len in any::<prop::sample::Index>(),
    ) {
        let file = file_of(&content);
        let overlay = Overlay::open(file.path()).unwrap();
        let mut model = content.clone();
        for step in steps {
            match step {
                Step::Write(at, data) => {
                    let start = usize::try_from(at).unwrap();
                    let fits = start + data.len() <= model.len();
                    prop_assert_eq!(overlay.write(at, &data).is_ok(), fits);
                    if fits {
                        model[start..start + data.len()].copy_from_slice(&data);
                    }
                }
                Step::SetLen(len) => {
                    overlay.set_len(len).unwrap();
                    model.resize(usize::try_from(len).unwrap(), 0);
                }
            }
        }
        prop_assert!(whole(&overlay) == model);
        let at = at.index(model.len());
        let len = len.index(model.len() - at + 1);
        let mut part = vec![0; len];
        StorageBackend::read(&overlay, at as u64, &mut part).unwrap();
        prop_assert!(part == model[at..at + len]);
        prop_assert!(fs::read(file.path()).unwrap() == content);
    }
}

#[test]
fn reading_beyond_the_end_is_an_error() {
    let file = file_of(&[1; 100]);
    let overlay = Overlay::open(file.path()).unwrap();
    assert!(StorageBackend::read(&overlay, 90, &mut [0; 11]).is_err());
    assert!(StorageBackend::read(&overlay, u64::MAX, &mut [0; 2]).is_err());
}

#[test]
fn memory_is_bounded() {
    let file = file_of(&[1; 4 * BLOCK]);
    let overlay = Overlay::with_limit(file.path(), 2 * BLOCK as u64).unwrap();
    overlay.write(0, &[2; 2 * BLOCK]).unwrap();
    overlay.write(5, b"the same blocks again").unwrap();
    let error = overlay.write(3 * BLOCK as u64, b"one more").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("8192 bytes"), "{error}");
}

#[test]
fn what_cannot_hold_a_database_is_refused() {
    let told = |path: &Path| Overlay::open(path).unwrap_err().to_string();
    assert!(told(file_of(b"").path()).contains("empty"));
    assert!(told(Path::new("/dev/null")).contains("not a regular file"));
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
    assert!(told(&pipe).contains("not a regular file"), "does not wait for a writer");
    assert!(matches!(
        Overlay::open(&dir.path().join("none")).unwrap_err(),
        DatabaseError::Storage(redb::StorageError::Io(error)) if error.kind() == io::ErrorKind::NotFound
    ));
}
