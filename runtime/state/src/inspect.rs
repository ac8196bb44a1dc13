//! Looking at a state file without an agent and without changing a byte of it.
//!
//! ```text
//! file ─► overlay (read-only) ─► engine: checked, recovered in memory ─► Inspection
//!                                                                          │ scan, quarantine
//!     Entry: key, size, body in this agent's schema or what is wrong ◄─────┘
//! ```
//!
//! Records of an older schema are brought to this agent's one by one, in memory. What a record means
//! is for the callers: the types of some are above this module.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::Database;
use serde::de::DeserializeOwned;

use super::age::Age;
use super::backend::Backend as _;
use super::codec::{self, CodecError};
use super::disk_store::{DiskBackend, Openers};
use super::error::StateError;
use super::keys::{Key, Prefix};
use super::load::{hex, shown_key};
use super::migrate;
use super::overlay::Overlay;
use super::redb_store::{EngineStats, builder};
use super::rewrite::Shown;

/// The engine's progress at its first word on a repair whose newest commit can be read as a whole:
/// with one that cannot it says an earlier one before.
const NEWEST_IS_WHOLE: f64 = 0.5;

/// A state file, opened for reading alone. Nobody can write to it meanwhile.
pub struct Inspection {
    path: PathBuf,
    backend: DiskBackend,
    recovered: Arc<AtomicBool>,
    fell_back: Arc<AtomicBool>,
    schema: Option<u16>,
    file_bytes: u64,
}

/// A record as it was found.
pub struct Entry<'a> {
    key: Result<Key, CodecError>,
    key_bytes: &'a [u8],
    record: &'a [u8],
    body: Result<Cow<'a, [u8]>, CodecError>,
}

impl Entry<'_> {
    fn of<'a>(key_bytes: &'a [u8], record: &'a [u8]) -> Entry<'a> {
        let key = Key::parse(key_bytes).map_err(CodecError::Key);
        let body = key.clone().and_then(|key| migrate::current(&key, record));
        Entry { key, key_bytes, record, body }
    }

    /// The key, when its bytes are one.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref().ok()
    }

    /// The key in words or, when it is not one, in hexadecimal digits.
    #[must_use]
    pub fn shown_key(&self) -> String {
        shown_key(self.key_bytes)
    }

    /// Bytes of the key and the record.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = self.key_bytes.len().saturating_add(self.record.len());
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The first `most` bytes of the record in hexadecimal digits.
    #[must_use]
    pub fn first_bytes(&self, most: usize) -> String {
        hex(self.record, most)
    }

    /// The value, whatever the schema of the record.
    ///
    /// # Errors
    /// When the record is damaged, belongs to another key, or is not a `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, CodecError> {
        codec::decode_body(self.body.as_ref().map_err(Clone::clone)?)
    }
}

/// Called with each record; breaks to end early.
pub type Look<'a> = &'a mut dyn FnMut(&Entry<'_>) -> ControlFlow<()>;

impl Inspection {
    /// Open `path`. The engine reads all of it once and checks it.
    ///
    /// # Errors
    /// When there is no such file, it is no state file or damaged beyond single records, somebody
    /// writes to it, or a newer agent wrote it.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let recovered = Arc::new(AtomicBool::new(false));
        let fell_back = Arc::new(AtomicBool::new(false));
        let noticed = (Arc::clone(&recovered), Arc::clone(&fell_back));
        let opener = move |path: &Path, _: Shown| -> Result<Database, redb::DatabaseError> {
            let (recovered, fell_back) = noticed.clone();
            let mut builder = builder();
            builder.set_repair_callback(move |repair| {
                recovered.store(true, Ordering::Relaxed);
                if repair.progress() < NEWEST_IS_WHOLE {
                    fell_back.store(true, Ordering::Relaxed);
                }
            });
            builder.create_with_backend(Overlay::open(path)?)
        };
        let opening = |error| StateError::opening(path.to_owned(), error);
        // Asked first: opening a path that is not there would make it.
        let file_bytes = std::fs::metadata(path).map_err(|error| opening(error.into()))?.len();
        let backend = DiskBackend::open_reading(path, Box::new(opener)).map_err(opening)?;
        let schema = migrate::known_schema_of(path, &backend)?;
        Ok(Self { path: path.to_owned(), backend, recovered, fell_back, schema, file_bytes })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Schema of the content; `None` when the file holds nothing that says so.
    #[must_use]
    pub fn schema(&self) -> Option<u16> {
        self.schema
    }

    /// Size of the file, bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The file was not closed by who wrote it last: it was recovered in memory, with what its journal
    /// holds, as the next agent will do on disk. No damage.
    #[must_use]
    pub fn recovered(&self) -> bool {
        self.recovered.load(Ordering::Relaxed) || self.replayed() > 0
    }

    /// The engine found the file inconsistent and repaired it in memory, perhaps to an older commit.
    #[must_use]
    pub fn repaired(&self) -> bool {
        self.backend.repaired()
    }

    /// The newest commit is not whole, and what is shown is the one before. A crash leaves that of a
    /// commit that nobody was told of; anything else is damage. [`Inspection::age`] may tell.
    #[must_use]
    pub fn fell_back(&self) -> bool {
        self.fell_back.load(Ordering::Relaxed)
    }

    /// Its directory knows something to compare it with.
    #[must_use]
    pub fn compared(&self) -> bool {
        self.backend.compared()
    }

    /// How the file compares with what its directory knows.
    #[must_use]
    pub fn age(&self) -> Age {
        self.backend.age()
    }

    /// Batches that are in the journal alone; the next agent moves them into the file.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.backend.replayed()
    }

    /// The journal beside it belongs to another state file: nothing of it was taken.
    #[must_use]
    pub fn foreign_journal(&self) -> bool {
        self.backend.foreign()
    }

    /// What the engine says of it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn engine_stats(&self) -> Result<EngineStats, StateError> {
        self.backend.engine_stats().map_err(|source| self.unreadable(source))
    }

    /// Look at every record of a group, in the order of the keys' bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn scan(&self, group: &Prefix, look: Look<'_>) -> Result<(), StateError> {
        let prefix = group.encode();
        let scanned = self.backend.scan(&prefix, &mut |key, record| look(&Entry::of(key, record)));
        scanned.map_err(|source| self.unreadable(source))
    }

    /// Look at every record in quarantine.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn quarantine(&self, look: Look<'_>) -> Result<(), StateError> {
        let visit = &mut |key: &[u8], record: &[u8]| look(&Entry::of(key, record));
        self.backend.scan_quarantine(visit).map_err(|source| self.unreadable(source))
    }

    fn unreadable(&self, source: super::BackendError) -> StateError {
        StateError::Read { path: self.path.clone(), source }
    }
}

/// What [`compact`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Size of the file before, bytes.
    pub before: u64,
    /// And after.
    pub after: u64,
}

/// Give the free room in a state file back to the file system. A crash in the middle leaves all
/// records. Whoever calls it has the data directory's lock, if the file is in one.
///
/// # Errors
/// When there is no such file, it is damaged, open elsewhere, a newer agent's, or cannot be written.
pub fn compact(path: &Path) -> Result<Compacted, StateError> {
    let opening = |error| StateError::opening(path.to_owned(), error);
    let size = || std::fs::metadata(path).map(|file| file.len());
    let before = size().map_err(|error| opening(error.into()))?;
    // As it is: what only saves room does not migrate.
    let backend = DiskBackend::open_with(path, Openers::default()).map_err(opening)?;
    migrate::known_schema_of(path, &backend)?;
    backend.compact().map_err(|source| StateError::Compact { path: path.to_owned(), source })?;
    drop(backend);
    let after = size().map_err(|error| opening(error.into()))?;
    Ok(Compacted { before, after })
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
