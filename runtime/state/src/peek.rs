//! Short looks at a state file that nobody has open, before the engine opens it for writing.

use std::ops::ControlFlow;
use std::path::Path;

use redb::{Database, ReadableDatabase as _};
use xxhash_rust::xxh3::Xxh3;

use super::error::BackendError;
use super::keys::{Key, MetaItem};
use super::migrate;
use super::overlay::Overlay;
use super::redb_store::{At, QUARANTINE, STATE, at, builder, contained, engine, scan};

/// The schema that a file says it has, and what else it says of itself. `None` where that cannot be seen without work: the file is
/// not there, not closed in order, in use or damaged. Whoever opens it then finds out.
pub(super) fn look(path: &Path) -> Option<(u16, At)> {
    let key = Key::Meta(MetaItem::SchemaVersion);
    let (record, at) = contained(|| {
        let database = open(path, false)?;
        let read = database.begin_read().map_err(engine)?;
        let table = read.open_table(STATE).map_err(engine)?;
        let record = table.get(key.encode().as_slice()).map_err(engine)?;
        Ok((record.map(|record| record.value().to_vec()), at(&read, true)?))
    })
    .ok()?;
    Some((migrate::told(&record?)?, at))
}

/// Whether two files hold the same records, quarantine included. Not when one cannot be read.
pub(super) fn same_records(left: &Path, right: &Path) -> bool {
    let digests = contained(|| Ok((digest(left)?, digest(right)?)));
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
        // No record has a key of this length: the end of a table.
        hash.update(&u64::MAX.to_le_bytes());
    }
    Ok(hash.digest128())
}

/// Open without writing; a file that must be recovered only when `recover` says so.
fn open(path: &Path, recover: bool) -> Result<Database, BackendError> {
    let mut builder = builder();
    if !recover {
        builder.set_repair_callback(|repair| repair.abort());
    }
    let overlay = Overlay::open(path).map_err(engine)?;
    builder.create_with_backend(overlay).map_err(engine)
}
