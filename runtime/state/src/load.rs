//! What happens when a store is opened: bring it to this agent's schema, check every record, learn
//! what is durable.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::age::Age;
use super::backend::{Backend, Op};
use super::codec::{self, CodecError, SCHEMA};
use super::dedup::{Dedup, ValueDigest};
use super::error::StateError;
use super::keys::{Key, MetaItem};
use super::migrate::{self, Migration};
use super::stats::Stats;

/// A record that was moved out of the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Its key, in words or, when it is not a key, in hexadecimal digits.
    pub key: String,
    /// What is wrong with it.
    pub cause: CodecError,
}

/// What was found when a store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Good records, the file's own left out.
    pub records: u64,
    /// Records moved out of the way this time.
    pub quarantined: Vec<Quarantined>,
    /// Records in quarantine, those of earlier times included.
    pub in_quarantine: u64,
    /// The file was inconsistent and was repaired, perhaps to an older commit.
    pub repaired: bool,
    /// How it compares with what its directory knew.
    pub age: Age,
    /// Where a journal is kept of which not all could be taken: what it held is not in the file.
    pub journal_aside: Option<PathBuf>,
    /// That journal belongs to another state file.
    pub foreign_journal: bool,
    /// The file was of an older schema and was brought to this agent's.
    pub migrated: Option<Migration>,
}

impl OpenReport {
    /// Something that was acknowledged may not be in the file.
    #[must_use]
    pub fn lacks(&self) -> bool {
        self.repaired || self.age.lacks() || self.foreign_journal
    }
}

/// What a store starts with.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What is durable.
    pub dedup: Dedup,
    /// What was found.
    pub report: OpenReport,
    /// Counts kept in the file, zero when there are none.
    pub counted: Stats,
}

/// Read everything once; migrate a store of an older schema; quarantine what is damaged; write the
/// schema version where it is missing.
///
/// # Errors
/// When the backend fails, a migration fails, or the content is of a newer agent.
pub fn load(path: &Path, backend: &dyn Backend) -> Result<Loaded, StateError> {
    let mut found = Found::default();
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
    scanned.map_err(|error| StateError::opening(path.to_owned(), error))?;
    let Found { mut dedup, mut report, schema, counted, mut ops } = found;
    if schema.is_none() {
        // A new file, or one whose own record was damaged: every record carries its schema too.
        let own = migrate::own_record()?;
        if let Op::Put { key, value } = &own {
            dedup.warm(key, ValueDigest::of(codec::unsealed(value)));
        }
        ops.push(own);
    }
    if !ops.is_empty() {
        backend.commit(&ops).map_err(|error| StateError::opening(path.to_owned(), error))?;
    }
    report.in_quarantine = backend
        .quarantined()
        .map_err(|source| StateError::Read { path: path.to_owned(), source })?;
    for record in &report.quarantined {
        tracing::error!(
            path = %path.display(), key = record.key, cause = %record.cause,
            "damaged state record moved to quarantine"
        );
    }
    Ok(Loaded { dedup, report, counted })
}

#[derive(Default)]
struct Found {
    dedup: Dedup,
    report: OpenReport,
    schema: Option<u16>,
    counted: Stats,
    ops: Vec<Op>,
}

impl Found {
    fn visit(&mut self, bytes: &[u8], record: &[u8]) {
        let checked = Key::parse(bytes).map_err(CodecError::Key).and_then(|key| {
            match key {
                Key::Meta(MetaItem::SchemaVersion) => {
                    self.schema = Some(codec::decode::<u16>(key.kind(), record)?);
                }
                Key::Meta(MetaItem::Counters) => {
                    codec::check(key.kind(), record)?;
                    // Counts of another shape are another agent's; counting starts again.
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
            Ok(()) => self.dedup.warm(bytes, ValueDigest::of(codec::unsealed(record))),
            Err(cause) => {
                self.report.quarantined.push(Quarantined { key: shown_key(bytes), cause });
                self.ops.push(Op::Quarantine { key: bytes.into() });
            }
        }
    }
}

/// A key in words or, when it is not one, in hexadecimal digits.
#[must_use]
pub fn shown_key(bytes: &[u8]) -> String {
    // Long enough to find the record, short enough for a log line.
    Key::parse(bytes).map_or_else(|_| hex(bytes, 32), |key| key.to_string())
}

/// The first `most` bytes in hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8], most: usize) -> String {
    bytes.iter().take(most).map(|byte| format!("{byte:02x}")).collect()
}
