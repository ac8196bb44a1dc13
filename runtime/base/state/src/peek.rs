//! Reads a little of a state file that nobody has open, before the engine opens it for writing.

use std::ops::ControlFlow;
use std::path::Path;

use redb::{Database, ReadableDatabase as _};
use xxhash_rust::xxh3::Xxh3;

use super::error::BackendError;
use super::keys::RecordKey;
use super::migrate;
use super::overlay::Overlay;
use super::redb_store::{
    QUARANTINE, STATE, TreePosition, builder, catch_engine_panic, engine, read_position, scan,
};

/// The schema in a file, and its position. Returns `None` if that cannot be read without work:
/// the file is not there, was not closed in order, is in use or damaged. Whoever opens it next
/// finds out.
pub(super) fn peek_schema(path: &Path) -> Option<(u16, TreePosition)> {
    let key = RecordKey::Meta;
    let (record, at) = catch_engine_panic(|| {
        let database = open(path, false)?;
        let read = database.begin_read().map_err(engine)?;
        let table = read.open_table(STATE).map_err(engine)?;
        let record = table.get(key.encode().as_slice()).map_err(engine)?;
        Ok((record.map(|record| record.value().to_vec()), read_position(&read, true)?))
    })
    .ok()?;
    Some((migrate::recorded_schema(&record?)?, at))
}

/// Whether two files hold the same records, quarantine included; `false` if one of them cannot
/// be read.
pub(super) fn same_records(left: &Path, right: &Path) -> bool {
    let digests = catch_engine_panic(|| Ok((digest(left)?, digest(right)?)));
    digests.is_ok_and(|(left, right)| left == right)
}

fn digest(path: &Path) -> Result<u128, BackendError> {
    let database = open(path, true)?;
    let mut hash = Xxh3::new();
    for table in [STATE, QUARANTINE] {
        let mut add = |bytes: &[u8]| {
            hash.update(&bytes.len().to_le_bytes());
            hash.update(bytes);
        };
        scan(&database, table, &[], &mut |key, record| {
            add(key);
            add(record);
            ControlFlow::Continue(())
        })?;
        // No record has a key of this length, so it marks the end of a table.
        hash.update(&u64::MAX.to_le_bytes());
    }
    Ok(hash.digest128())
}

/// Open a file without writing. A file that must be recovered is opened only with `recover`.
fn open(path: &Path, recover: bool) -> Result<Database, BackendError> {
    let mut builder = builder();
    if !recover {
        builder.set_repair_callback(|repair| repair.abort());
    }
    let overlay = Overlay::open(path).map_err(engine)?;
    builder.create_with_backend(overlay).map_err(engine)
}
