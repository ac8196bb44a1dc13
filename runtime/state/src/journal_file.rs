//! The file of a journal: opened, read and made.

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

/// What is put after the name of the state file.
const SUFFIX: &str = ".journal";

/// A journal that is open for writing.
pub type JournalFile = Box<dyn StorageBackend>;
/// How a journal is opened, made empty where there is none; `None`: go without.
pub type JournalOpener = Box<dyn Fn(&Path) -> io::Result<Option<JournalFile>> + Send + Sync>;

/// The journal of the state file at `path`.
pub(super) fn beside(path: &Path) -> PathBuf {
    files::with_suffix(path, SUFFIX)
}

/// Fill a journal with zeros that are written.
pub(super) fn zeroed(file: &dyn StorageBackend, bytes: usize) -> io::Result<()> {
    file.write(0, &vec![0; bytes])?;
    file.sync_data()
}

/// All of a journal that is open.
pub(super) fn read_all(file: &dyn StorageBackend) -> io::Result<Vec<u8>> {
    let len = file.len()?.min(STATE_JOURNAL_BYTES_READ_MAX);
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    if !bytes.is_empty() {
        file.read(0, &mut bytes)?;
    }
    Ok(bytes)
}

/// Open the journal for writing, made when there is none. One that cannot be made is done without: a
/// directory may have no room for it.
pub(super) fn open_journal(path: &Path) -> io::Result<Option<JournalFile>> {
    let opened = match regular(OpenOptions::new().read(true).write(true), path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = files::private(path).and_then(|file| sync_parent(path).map(|()| file));
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

/// The content of the journal of the state file at `path`; none where there is no journal.
pub(super) fn read_journal(path: &Path) -> Result<Vec<u8>, BackendError> {
    let path = beside(path);
    let mut bytes = Vec::new();
    let read = match regular(OpenOptions::new().read(true), &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes),
        Err(error) => Err(error),
        Ok(file) => file.take(STATE_JOURNAL_BYTES_READ_MAX).read_to_end(&mut bytes),
    };
    read.map(|_| bytes).map_err(|source| BackendError::Journal { path, source })
}

/// Open a regular file.
fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<std::fs::File> {
    let file = own_file::open(options, path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")),
    }
}
