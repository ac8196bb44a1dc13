//! Migrates the schema of an older agent to this one's: only forward, step by step, in
//! one transaction.
//!
//! ```text
//! file of schema n < SCHEMA ─► copy FILE.schema-n (durable) ─► every record: n → n+1 → … → SCHEMA
//!                                                                 │ ok            │ does not decode
//!                                                                 ▼               ▼
//!                                                           put, new envelope   quarantine
//!                                                          └───────── one commit ─────────┘
//! ```
//!
//! * A step sees one record and answers with the body of the next schema. In most steps, most
//!   records keep the same bytes under a new number.
//! * A crash leaves the old file (and perhaps its copy) or the new one, because the records, and
//!   the number in the file's own record, change in one commit.
//! * A record of an older schema in a file of a newer one was left out by whoever migrated it; it
//!   is quarantined like any other that cannot be read.
//!
//! To add a schema: raise [`SCHEMA`]; copy what it changes, as the schema before had it, into a
//! file `vN.rs` of types of their own that no other module uses, so that a change of the living
//! model cannot change how an old file is read; add a step to `STEPS`; and commit a file written by
//! the last agent of the old schema for the tests.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::backend::{Backend, Op};
use super::codec::{self, CodecError, Envelope, OLDEST, SCHEMA};
use super::error::StateError;
use super::keys::{RecordKey, RecordKind};
use super::load::{QuarantinedRecord, shown_key};

/// A step, which gives the body of a record of a kind in the next schema. `None` means that the
/// bytes stay the same.
type Step = fn(RecordKind, &[u8]) -> Result<Option<Vec<u8>>, CodecError>;

/// The steps; the first one starts from [`OLDEST`].
#[cfg(not(test))]
const STEPS: [Step; (SCHEMA - OLDEST) as usize] = [];
#[cfg(test)]
const STEPS: [Step; (SCHEMA - OLDEST) as usize] = [tests::before::step];

/// The migration of a file of an older schema, done when it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Migration {
    /// The schema that the file had.
    pub from: u16,
    /// The schema that the file has now.
    pub to: u16,
    /// The number of records that were migrated, without the file's own record.
    pub records: u64,
    /// The path of the copy of the old file; `None` for a store that is no file.
    pub backup: Option<PathBuf>,
}

/// The body of `record` in this agent's schema, if it is whole and belongs under `key`.
///
/// # Errors
/// When the record is damaged, belongs to another key, is of a schema this agent does not know, or
/// its body is no value of its schema.
pub fn current_body<'a>(key: &RecordKey, record: &'a [u8]) -> Result<Cow<'a, [u8]>, CodecError> {
    let kind = key.kind();
    let envelope = Envelope::open(record)?;
    let body = envelope.body_of(kind)?;
    if *key == RecordKey::Meta {
        // This is the only record whose body is the same in every schema: it says which schema that
        // is.
        return Ok(Cow::Borrowed(body));
    }
    upgrade(kind, envelope.schema, body)
}

fn upgrade(kind: RecordKind, schema: u16, body: &[u8]) -> Result<Cow<'_, [u8]>, CodecError> {
    let steps = schema.checked_sub(OLDEST).and_then(|done| STEPS.get(usize::from(done)..));
    let steps = steps.ok_or(CodecError::Schema { found: schema })?;
    let mut body = Cow::Borrowed(body);
    for step in steps {
        if let Some(next) = step(kind, &body)? {
            body = Cow::Owned(next);
        }
    }
    Ok(body)
}

/// The schema of a store's content; `None` if nothing in the store says it.
///
/// The file's own record says it. If that is damaged or gone, each record says its own schema, and
/// the newest counts: this agent must not touch what a newer one wrote.
///
/// # Errors
/// When the store cannot be read.
pub fn schema_of(path: &Path, backend: &dyn Backend) -> Result<Option<u16>, StateError> {
    let key = RecordKey::Meta;
    let unreadable = |source| StateError::from_open_error(path.to_owned(), source);
    let own = backend.get(&key.encode()).map_err(unreadable)?;
    let told = own.as_deref().and_then(recorded_schema);
    if told.is_some() {
        return Ok(told);
    }
    let mut newest = None;
    let scanned = backend.scan(&[], &mut |bytes, record| {
        if let (Ok(key), Ok(envelope)) = (RecordKey::parse(bytes), Envelope::open(record))
            && envelope.body_of(key.kind()).is_ok()
        {
            newest = newest.max(Some(envelope.schema));
        }
        ControlFlow::Continue(())
    });
    scanned.map_err(unreadable)?;
    Ok(newest)
}

/// The schema in a file's own record, if the record is whole. Its body is the same in every schema.
#[must_use]
pub fn recorded_schema(record: &[u8]) -> Option<u16> {
    let key = RecordKey::Meta;
    let body = Envelope::open(record).and_then(|envelope| envelope.body_of(key.kind()));
    codec::decode_body(body.ok()?).ok()
}

/// The same as [`schema_of`], for content that this agent knows.
///
/// # Errors
/// When the store cannot be read, or its content is of a newer agent, or of one from before the
/// first release.
pub fn known_schema_of(path: &Path, backend: &dyn Backend) -> Result<Option<u16>, StateError> {
    match schema_of(path, backend)? {
        Some(found) if found > SCHEMA => {
            Err(StateError::Schema { path: path.to_owned(), found, supported: SCHEMA })
        }
        Some(0) => {
            let detail = "it claims to have schema 0".to_owned();
            Err(StateError::Damaged { path: path.to_owned(), detail })
        }
        Some(found) if found < OLDEST => {
            Err(StateError::TooOld { path: path.to_owned(), found, oldest: OLDEST })
        }
        known => Ok(known),
    }
}

/// The write of the file's own record, which says that the content is of [`SCHEMA`].
///
/// # Errors
/// Never in practice: a number always encodes.
pub fn own_record() -> Result<Op, StateError> {
    let key = RecordKey::Meta;
    let mut record = Vec::new();
    codec::encode(key.kind(), &SCHEMA, &mut record)
        .map_err(|source| StateError::Encode { key: key.clone(), source })?;
    Ok(Op::Put { key: key.encode().into(), value: record.into() })
}

/// Bring a store of schema `from` to [`SCHEMA`]. Its records are held in memory meanwhile.
///
/// # Errors
/// When the copy or the commit fails. The content is then as it was, or (after a lost
/// acknowledgement) as it should be, and the next opening goes on from there.
pub fn migrate(
    path: &Path,
    backend: &dyn Backend,
    from: u16,
) -> Result<(Migration, Vec<QuarantinedRecord>), StateError> {
    let mut found = MigrationScan { from, ..MigrationScan::default() };
    let scanned = backend.scan(&[], &mut |bytes, record| {
        found.visit(bytes, record);
        ControlFlow::Continue(())
    });
    scanned.map_err(|source| StateError::from_open_error(path.to_owned(), source))?;
    let MigrationScan { mut ops, quarantined, records, .. } = found;
    ops.push(own_record()?);

    let backup = backend.backup(from);
    let backup = backup.map_err(|source| StateError::from_open_error(path.to_owned(), source))?;
    backend.commit(&ops).map_err(|source| StateError::Migrate {
        path: path.to_owned(),
        from,
        to: SCHEMA,
        source,
    })?;
    let migration = Migration { from, to: SCHEMA, records, backup };
    tracing::info!(
        path = %path.display(), from, to = SCHEMA, records,
        backup = migration.backup.as_deref().map(|path| path.display().to_string()),
        "state file migrated to the schema of this agent"
    );
    Ok((migration, quarantined))
}

#[derive(Default)]
struct MigrationScan {
    from: u16,
    ops: Vec<Op>,
    quarantined: Vec<QuarantinedRecord>,
    records: u64,
}

impl MigrationScan {
    fn visit(&mut self, bytes: &[u8], record: &[u8]) {
        let own = RecordKey::Meta;
        let migrated = RecordKey::parse(bytes).map_err(CodecError::Key).and_then(|key| {
            if key == own {
                // The caller writes this record anew.
                Ok(None)
            } else {
                migrate_record(&key, self.from, record).map(Some)
            }
        });
        match migrated {
            Ok(None) => {}
            Ok(Some(value)) => {
                self.records = self.records.saturating_add(1);
                self.ops.push(Op::Put { key: bytes.into(), value: value.into() });
            }
            Err(cause) => {
                self.quarantined.push(QuarantinedRecord { key: shown_key(bytes), cause });
                self.ops.push(Op::Quarantine { key: bytes.into() });
            }
        }
    }
}

/// The record in this agent's schema, its envelope included.
fn migrate_record(key: &RecordKey, from: u16, record: &[u8]) -> Result<Vec<u8>, CodecError> {
    let envelope = Envelope::open(record)?;
    if envelope.schema != from {
        return Err(CodecError::Schema { found: envelope.schema });
    }
    let body = upgrade(key.kind(), from, envelope.body_of(key.kind())?)?;
    let mut out = Vec::with_capacity(record.len());
    codec::wrap(key.kind(), &body, &mut out)?;
    Ok(out)
}

#[cfg(test)]
pub(crate) mod tests;
