//! Reads a state file without an agent and without changing a byte of it.
//!
//! ```text
//! file ─► overlay (read-only) ─► engine: checked, recovered in memory ─► Inspection
//!                                                                          │ scan, quarantine
//!    record: key, size, body in this agent's schema or what is wrong ◄─────┘
//! ```
//!
//! Records of an older schema are brought to this agent's schema one by one, in memory. Callers
//! know what a record means: the types of some are above this crate.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::Database;

use super::age::Age;
use super::backend::Backend as _;
use super::codec::{self, CodecError};
use super::disk_store::{DiskBackend, Openers};
use super::error::StateError;
use super::keys::KeyPrefix;
use super::load::{hex, shown_key};
use super::migrate;
use super::overlay::Overlay;
use super::records::{Record, RecordKey, TypedKey as _};
use super::redb_store::{EngineStats, builder};
use super::rewrite::FileTrust;
use ostler_model::causes;

/// The engine's first progress report on a repair if the newest commit can be read as a whole. If
/// it cannot, the first report is below this.
const NEWEST_IS_WHOLE: f64 = 0.5;

/// A state file that is open only for reading. Nobody can write to it meanwhile.
pub struct Inspection {
    path: PathBuf,
    backend: DiskBackend,
    recovered: Arc<AtomicBool>,
    fell_back: Arc<AtomicBool>,
    schema: Option<u16>,
    file_bytes: u64,
}

/// A record as it was found in the file.
pub struct InspectedRecord<'a> {
    key: Result<RecordKey, CodecError>,
    key_bytes: &'a [u8],
    record: &'a [u8],
    body: Result<Cow<'a, [u8]>, CodecError>,
}

impl InspectedRecord<'_> {
    fn from_record<'a>(key_bytes: &'a [u8], record: &'a [u8]) -> InspectedRecord<'a> {
        let key = RecordKey::parse(key_bytes).map_err(CodecError::Key);
        let body = key.clone().and_then(|key| migrate::current_body(&key, record));
        InspectedRecord { key, key_bytes, record, body }
    }

    /// The key; `None` if its bytes are no key.
    #[must_use]
    pub fn key(&self) -> Option<&RecordKey> {
        self.key.as_ref().ok()
    }

    /// The key in words, or in hexadecimal digits if its bytes are no key.
    #[must_use]
    pub fn shown_key(&self) -> String {
        shown_key(self.key_bytes)
    }

    /// The number of bytes of the key and the record.
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

    /// The value of the record, whatever its schema.
    ///
    /// # Errors
    /// When the record is damaged, belongs to another key, or is not a `V`.
    pub fn decode<V: Record>(&self) -> Result<V, CodecError> {
        let (key, body) = (self.key.as_ref(), self.body.as_ref().map_err(Clone::clone)?);
        match key.map(RecordKey::kind) {
            Ok(found) if found != V::Key::KIND => {
                Err(CodecError::Kind { found: found as u8, expected: V::Key::KIND })
            }
            _ => codec::decode_body(body),
        }
    }

    /// The value as JSON, read as a `V`.
    ///
    /// # Errors
    /// When it cannot be read or shown.
    pub fn json_as<V: Record>(&self) -> Result<serde_json::Value, ValueError> {
        Ok(serde_json::to_value(self.decode::<V>()?)?)
    }

    /// The value as JSON, read as the type that its key names; `None` if it is secret, or that type above this
    /// crate.
    ///
    /// # Errors
    /// When it cannot be read or shown.
    pub fn json(&self) -> Result<Option<serde_json::Value>, ValueError> {
        let kind = self.key.as_ref().map(RecordKey::kind).map_err(Clone::clone)?;
        kind.json(self).transpose()
    }
}

/// Why a record has no value to show.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The record cannot be read.
    #[error("{}", causes::chain(.0))]
    Codec(#[from] CodecError),
    /// The record was read but cannot be shown as JSON.
    #[error("cannot be shown as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// A function that is called with each record. It breaks to end early.
pub type RecordVisitor<'a> = &'a mut dyn FnMut(&InspectedRecord<'_>) -> ControlFlow<()>;

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
        let opener = move |path: &Path, _: FileTrust| -> Result<Database, redb::DatabaseError> {
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
        let opening = |error| StateError::from_open_error(path.to_owned(), error);
        // The size is read first, because opening a missing path would create the file.
        let file_bytes = std::fs::metadata(path).map_err(|error| opening(error.into()))?.len();
        let backend = DiskBackend::open_reading(path, Box::new(opener)).map_err(opening)?;
        let schema = migrate::known_schema_of(path, &backend)?;
        Ok(Self { path: path.to_owned(), backend, recovered, fell_back, schema, file_bytes })
    }

    /// The path of the state file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The schema of the content; `None` if nothing in the file says it.
    #[must_use]
    pub fn schema(&self) -> Option<u16> {
        self.schema
    }

    /// The size of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Whether the last writer did not close the file. It was then recovered in memory, with the
    /// content of its journal, as the next agent will do on disk. This is no damage.
    #[must_use]
    pub fn was_recovered(&self) -> bool {
        self.recovered.load(Ordering::Relaxed) || self.replayed_batches() > 0
    }

    /// Whether the engine found the file inconsistent and repaired it in memory, perhaps to an
    /// older commit.
    #[must_use]
    pub fn was_repaired(&self) -> bool {
        self.backend.was_repaired()
    }

    /// Whether the newest commit is not whole, so that the one before is shown. After a crash this
    /// can be a commit that was never acknowledged; anything else is damage. [`Inspection::age`]
    /// may tell.
    #[must_use]
    pub fn has_fallen_back(&self) -> bool {
        self.fell_back.load(Ordering::Relaxed)
    }

    /// Whether the directory knows something to compare the file with.
    #[must_use]
    pub fn was_compared(&self) -> bool {
        self.backend.was_compared()
    }

    /// How the file compares with what its directory knows.
    #[must_use]
    pub fn age(&self) -> Age {
        self.backend.age()
    }

    /// The number of batches that are only in the journal. The next agent moves them into the file.
    #[must_use]
    pub fn replayed_batches(&self) -> u64 {
        self.backend.replayed_batches()
    }

    /// Whether the journal beside the file belongs to another state file. Nothing of it was taken.
    #[must_use]
    pub fn has_foreign_journal(&self) -> bool {
        self.backend.has_foreign_journal()
    }

    /// The figures of the storage engine.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn engine_stats(&self) -> Result<EngineStats, StateError> {
        self.backend.engine_stats().map_err(|source| self.read_error(source))
    }

    /// Visit every record of a group, in the order of the keys' bytes.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn scan(&self, group: &KeyPrefix, look: RecordVisitor<'_>) -> Result<(), StateError> {
        let prefix = group.encode();
        let scanned = self
            .backend
            .scan(&prefix, &mut |key, record| look(&InspectedRecord::from_record(key, record)));
        scanned.map_err(|source| self.read_error(source))
    }

    /// Visit every record in quarantine.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn quarantine(&self, look: RecordVisitor<'_>) -> Result<(), StateError> {
        let visit =
            &mut |key: &[u8], record: &[u8]| look(&InspectedRecord::from_record(key, record));
        self.backend.scan_quarantine(visit).map_err(|source| self.read_error(source))
    }

    fn read_error(&self, source: super::BackendError) -> StateError {
        StateError::Read { path: self.path.clone(), source }
    }
}

/// The result of [`compact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactResult {
    /// The size of the file before, in bytes.
    pub before: u64,
    /// The size of the file after, in bytes.
    pub after: u64,
}

/// Give the free room in a state file back to the file system. A crash in the middle leaves all
/// records. The caller holds the data directory's lock, if the file is in a data directory.
///
/// # Errors
/// When there is no such file, it is damaged, open elsewhere, a newer agent's, or cannot
/// be written.
pub fn compact(path: &Path) -> Result<CompactResult, StateError> {
    let opening = |error| StateError::from_open_error(path.to_owned(), error);
    let size = || std::fs::metadata(path).map(|file| file.len());
    let before = size().map_err(|error| opening(error.into()))?;
    // The file keeps its schema: an operation that only saves room does not migrate.
    let backend = DiskBackend::open_with(path, Openers::default()).map_err(opening)?;
    migrate::known_schema_of(path, &backend)?;
    backend.compact().map_err(|source| StateError::Compact { path: path.to_owned(), source })?;
    drop(backend);
    let after = size().map_err(|error| opening(error.into()))?;
    Ok(CompactResult { before, after })
}

#[cfg(test)]
#[path = "inspect_tests.rs"]
mod tests;
