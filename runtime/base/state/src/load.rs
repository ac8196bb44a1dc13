//! Opens a store: bring it to this agent's schema, check every record, and learn what is durable.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::age::Age;
use super::backend::{Backend, Op};
use super::codec::{self, CodecError, SCHEMA};
use super::dedup::{Dedup, ValueDigest};
use super::error::StateError;
use super::keys::RecordKey;
use super::migrate::{self, Migration};
use super::stats::Stats;

/// A record that was moved out of the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantinedRecord {
    /// The key in words, or in hexadecimal digits if it is no key.
    pub key: String,
    /// What is wrong with the record.
    pub cause: CodecError,
}

/// The findings from opening a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// The number of good records, without the file's own record.
    pub records: u64,
    /// The records that were moved out of the way this time.
    pub quarantined: Vec<QuarantinedRecord>,
    /// The number of records in quarantine, including those of earlier times.
    pub in_quarantine: u64,
    /// Whether the file was inconsistent and was repaired, perhaps to an older commit.
    pub repaired: bool,
    /// How the file compares with what its directory knew.
    pub age: Age,
    /// The path under which a journal is kept of which not all could be taken. Its content is not
    /// in the file.
    pub journal_aside: Option<PathBuf>,
    /// Whether that journal belongs to another state file.
    pub foreign_journal: bool,
    /// The migration of a file that was of an older schema.
    pub migrated: Option<Migration>,
}

impl OpenReport {
    /// Whether an acknowledged change may be missing from the file.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.repaired || self.age.is_behind() || self.foreign_journal
    }
}

/// The content with which a store starts.
#[derive(Debug, Default)]
pub struct StoreContent {
    /// The digests of everything durable.
    pub dedup: Dedup,
    /// The findings from opening the store.
    pub report: OpenReport,
    /// The counts kept in the file; zero if there are none.
    pub counted: Stats,
}

/// Read everything once. Migrate a store of an older schema, quarantine damaged records, and write
/// the schema version if it is missing.
///
/// # Errors
/// When the backend fails, a migration fails, or the content is of a newer agent.
pub fn load(path: &Path, backend: &dyn Backend) -> Result<StoreContent, StateError> {
    let mut found = LoadScan::default();
    match migrate::known_schema_of(path, backend)? {
        Some(older) if older < SCHEMA => {
            let (migration, quarantined) = migrate::migrate(path, backend, older)?;
            found.report.migrated = Some(migration);
            found.report.quarantined = quarantined;
        }
        _ => {}
    }
    let scanned = backend.scan(&[], &mut |key, record| {
        found.visit(key, record);
        ControlFlow::Continue(())
    });
    scanned.map_err(|error| StateError::from_open_error(path.to_owned(), error))?;
    let LoadScan { mut dedup, mut report, schema, counted, mut ops } = found;
    if schema.is_none() {
        // The file is new, or its own record was damaged; every record carries its schema too.
        let own = migrate::own_record()?;
        if let Op::Put { key, value } = &own {
            dedup.warm(key, ValueDigest::from_unsealed(codec::strip_checksum(value)));
        }
        ops.push(own);
    }
    if !ops.is_empty() {
        backend
            .commit(&ops)
            .map_err(|error| StateError::from_open_error(path.to_owned(), error))?;
    }
    report.in_quarantine = backend
        .count_quarantined()
        .map_err(|source| StateError::Read { path: path.to_owned(), source })?;
    for record in &report.quarantined {
        tracing::error!(
            path = %path.display(), key = record.key, cause = %record.cause,
            "damaged state record moved to quarantine"
        );
    }
    Ok(StoreContent { dedup, report, counted })
}

#[derive(Default)]
struct LoadScan {
    dedup: Dedup,
    report: OpenReport,
    schema: Option<u16>,
    counted: Stats,
    ops: Vec<Op>,
}

impl LoadScan {
    fn visit(&mut self, bytes: &[u8], record: &[u8]) {
        let checked = RecordKey::parse(bytes).map_err(CodecError::Key).and_then(|key| {
            match key {
                RecordKey::Meta => {
                    self.schema = Some(codec::decode::<u16>(key.kind(), record)?);
                }
                RecordKey::Counters => {
                    codec::check(key.kind(), record)?;
                    // Counts of another shape belong to another agent. Counting starts again.
                    self.counted = codec::decode(key.kind(), record).unwrap_or_default();
                }
                _ => {
                    codec::check(key.kind(), record)?;
                    self.report.records = self.report.records.saturating_add(1);
                }
            }
            Ok(())
        });
        match checked {
            Ok(()) => {
                self.dedup.warm(bytes, ValueDigest::from_unsealed(codec::strip_checksum(record)))
            }
            Err(cause) => {
                self.report.quarantined.push(QuarantinedRecord { key: shown_key(bytes), cause });
                self.ops.push(Op::Quarantine { key: bytes.into() });
            }
        }
    }
}

/// A key in words, or in hexadecimal digits if it is no key.
#[must_use]
pub fn shown_key(bytes: &[u8]) -> String {
    // This is long enough to find the record and short enough for a log line.
    RecordKey::parse(bytes).map_or_else(|_| hex(bytes, 32), |key| key.to_string())
}

/// The first `most` bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8], most: usize) -> String {
    bytes.iter().take(most).map(|byte| format!("{byte:02x}")).collect()
}
