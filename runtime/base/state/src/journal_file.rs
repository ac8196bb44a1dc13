//! Opens, reads and creates the file of a journal.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use redb::StorageBackend;
use redb::backends::FileBackend;

use super::error::BackendError;
use super::files;
use crate::durable::sync_parent;
use crate::own_file;
use ostler_model::limits::STATE_JOURNAL_BYTES_READ_MAX;

/// The suffix after the name of the state file.
const SUFFIX: &str = ".journal";

/// A journal that is open for writing.
pub type JournalFile = Box<dyn StorageBackend>;
/// A function that opens a journal, or creates an empty one. It returns `None` to go on without
/// a journal.
pub type JournalOpener = Box<dyn Fn(&Path) -> io::Result<Option<JournalFile>> + Send + Sync>;

/// The path of the journal of the state file at `path`.
pub(super) fn journal_path(path: &Path) -> PathBuf {
    files::with_suffix(path, SUFFIX)
}

/// Fill a journal with zeros that are really written.
pub(super) fn fill_with_zeros(file: &dyn StorageBackend, bytes: usize) -> io::Result<()> {
    file.write(0, &vec![0; bytes])?;
    file.sync_data()
}

/// The whole content of an open journal.
pub(super) fn read_all(file: &dyn StorageBackend) -> io::Result<Vec<u8>> {
    let len = file.len()?.min(STATE_JOURNAL_BYTES_READ_MAX);
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    if !bytes.is_empty() {
        file.read(0, &mut bytes)?;
    }
    Ok(bytes)
}

/// Open the journal for writing, or create it. The store goes on without a journal if it cannot be
/// created, because a directory may have no room for it.
pub(super) fn open_journal(path: &Path) -> io::Result<Option<JournalFile>> {
    let opened = match open_regular(OpenOptions::new().read(true).write(true), path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made =
                files::create_private(path).and_then(|file| sync_parent(path).map(|()| file));
            made.inspect_err(|error| {
                tracing::warn!(path = %path.display(), %error, "no state journal can be made");
            })
            .ok()
        }
        opened => Some(opened?),
    };
    let backend = opened.map(FileBackend::new).transpose().map_err(io::Error::other)?;
    Ok(backend.map(|file| Box::new(file) as JournalFile))
}

/// The content of the journal of the state file at `path`; empty if there is no journal.
pub(super) fn read_journal(path: &Path) -> Result<Vec<u8>, BackendError> {
    let path = journal_path(path);
    let mut bytes = Vec::new();
    let read = match open_regular(OpenOptions::new().read(true), &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes),
        Err(error) => Err(error),
        Ok(file) => file.take(STATE_JOURNAL_BYTES_READ_MAX).read_to_end(&mut bytes),
    };
    read.map(|_| bytes).map_err(|source| BackendError::Journal { path, source })
}

/// Open a regular file.
fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<std::fs::File> {
    let file = own_file::open(options, path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"))
    }
}
