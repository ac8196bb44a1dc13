//! Records in a redb file: the tree behind the journal, see [`super::disk_store`].
//!
//! Commits are durable in one phase, which needs half the fsyncs of two phases. After a crash redb
//! checks the last commit's checksums and falls back to the one before, which is right for a commit
//! that was never acknowledged. A failed commit closes the file, because redb refuses further work
//! after an I/O error. The next use opens it again, so that an agent survives a full disk.
//!
//! After any failed commit, except one because of a full disk, the file is first written again
//! ([`rewrite`]).
//!
//! A new file is made under another name and renamed when it is complete: a state file that is
//! there but empty is damage, never a fresh start.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, Durability, ReadTransaction, ReadableDatabase as _,
    ReadableTableMetadata as _, StorageBackend, Table, TableDefinition, TableError,
    WriteTransaction,
};
use serde::Serialize;

use super::backend::{Op, Visit, prefix_bounds};
use super::error::BackendError;
use super::journal::Tip;
use super::rewrite::{self, FileTrust};
use super::writer::panic_text;
use super::{files, peek};
use crate::durable::sync_parent;
use crate::own_file;
use ostler_model::limits::STATE_CACHE_BYTES;
use ostler_model::rng::Rng;

type Records = TableDefinition<'static, &'static [u8], &'static [u8]>;
pub(super) const STATE: Records = TableDefinition::new("state");
pub(super) const QUARANTINE: Records = TableDefinition::new("quarantine");
/// The table with the number of the newest batch, see [`super::age`]. Files of older agents do not
/// have it.
const COMMITS: TableDefinition<'static, (), u64> = TableDefinition::new("commits");
/// The table with the id of the file, and with what the journal continues with. Files of older
/// agents do not have it.
const TIP: TableDefinition<'static, (), (u128, u128)> = TableDefinition::new("tip");

/// A function that opens an existing file. Tests put faults underneath.
pub type Opener = Box<dyn Fn(&Path, FileTrust) -> Result<Database, DatabaseError> + Send + Sync>;

/// The storage engine's figures of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Bytes in pages that are in use. The rest of the file is free for later writes.
    pub allocated_bytes: u64,
    /// Bytes of keys and records in the file.
    pub stored_bytes: u64,
    /// Bytes of the tree nodes that lead to them.
    pub metadata_bytes: u64,
    /// Bytes of the file that hold nothing: free pages, and the gaps in used ones.
    pub fragmented_bytes: u64,
    /// The number of pages from the root to a record.
    pub tree_height: u32,
}

/// Keeps records in one file of mode 0600.
pub(super) struct RedbTree {
    path: PathBuf,
    opener: Opener,
    /// The open database; `None` after a failed commit, until the next use.
    database: RwLock<Option<Database>>,
    /// Whether the shown content of the file may differ from the disk. It must be written again
    /// before it is used.
    doubted: AtomicBool,
    repaired: bool,
    opened_at: TreePosition,
}

/// The position of a file: the end of its content, as the file itself says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreePosition {
    /// Whether the file was there before.
    pub there: bool,
    /// The number of the newest batch; `None` in a file of an older agent.
    pub number: Option<u64>,
    /// The tip that the journal continues with; `None` in a file of an older agent.
    pub tip: Option<Tip>,
}

/// How much is known of a file that is about to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileCheck {
    /// The engine has found the file consistent.
    Whole,
    /// Nothing is known, or the file is not consistent.
    No,
}

impl RedbTree {
    /// Open the file, or create it if there is none.
    ///
    /// # Errors
    /// When it is damaged, in use, or cannot be read, written or made.
    pub(super) fn open(
        path: &Path,
        opener: Opener,
        checked: FileCheck,
    ) -> Result<Self, BackendError> {
        let there = path.try_exists()?;
        let checked = if there { checked } else { FileCheck::Whole };
        if !there {
            create(path)?;
        }
        // The engine may meet content that it never wrote. A panic there is reported as damage and
        // does not end this process.
        let (database, repaired, opened_at) = catch_engine_panic(|| {
            let mut database = opener(path, FileTrust::Trusted).map_err(engine)?;
            let clean = match checked {
                FileCheck::Whole => true,
                FileCheck::No => database.check_integrity().map_err(engine)?,
            };
            // A file without these tables belongs to another program.
            let read = database.begin_read().map_err(engine)?;
            read.open_table(STATE).map_err(engine)?;
            read.open_table(QUARANTINE).map_err(engine)?;
            let opened_at = read_position(&read, there)?;
            drop(read);
            Ok((database, !clean, opened_at))
        })?;
        Ok(Self {
            path: path.to_owned(),
            opener,
            database: RwLock::new(Some(database)),
            doubted: AtomicBool::new(false),
            repaired,
            opened_at,
        })
    }

    /// The position of the file when it was opened.
    pub(super) fn position_at_open(&self) -> TreePosition {
        self.opened_at
    }

    /// Whether the file was found inconsistent when it was opened, and was repaired, perhaps to an
    /// older commit.
    pub(super) fn was_repaired(&self) -> bool {
        self.repaired
    }

    /// Visit every record in quarantine, in key order.
    ///
    /// # Errors
    /// When the file cannot be read; records visited before stay visited.
    pub(super) fn scan_quarantine(&self, visit: Visit<'_>) -> Result<(), BackendError> {
        self.with_database(|database| scan(database, QUARANTINE, &[], visit))
    }

    /// The engine's figures of the file as it is now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn engine_stats(&self) -> Result<EngineStats, BackendError> {
        self.with_database(|database| {
            let transaction = database.begin_write().map_err(engine)?;
            let stats = transaction.stats().map_err(engine)?;
            transaction.abort().map_err(engine)?;
            let page = u64::try_from(stats.page_size()).unwrap_or(u64::MAX);
            Ok(EngineStats {
                allocated_bytes: stats.allocated_pages().saturating_mul(page),
                stored_bytes: stats.stored_bytes(),
                metadata_bytes: stats.metadata_bytes(),
                fragmented_bytes: stats.fragmented_bytes(),
                tree_height: stats.tree_height(),
            })
        })
    }

    /// Give free room in the file back to the file system. Every step is a commit of its own, so a
    /// crash leaves all records. Returns whether anything was moved.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub(super) fn compact(&self) -> Result<bool, BackendError> {
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let mut database = match slot.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        // The database is kept open only if this succeeded, because the engine does no more work
        // after a failure.
        let moved = catch_engine_panic(|| database.compact().map_err(engine));
        let moved = moved.inspect_err(|error| self.doubt_file(error))?;
        *slot = Some(database);
        Ok(moved)
    }

    /// Work on the open file. The file is closed when that fails, because the engine does no more
    /// work after an I/O error.
    fn with_database<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let result = self.try_with_database(work);
        if result.is_err() {
            self.close();
        }
        result
    }

    fn try_with_database<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let open = self.database.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*open {
            return catch_engine_panic(|| work(database));
        }
        drop(open);
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let database = match slot.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        catch_engine_panic(|| work(slot.insert(database)))
    }

    fn reopen(&self) -> Result<Database, BackendError> {
        let doubted = self.doubted.load(Ordering::SeqCst);
        let shown = if doubted { FileTrust::Doubted } else { FileTrust::Trusted };
        let opened = catch_engine_panic(|| (self.opener)(&self.path, shown).map_err(engine));
        match &opened {
            Ok(_) => self.doubted.store(false, Ordering::SeqCst),
            // Opening syncs too, so its failure is a failed sync.
            Err(error) => self.doubt_file(error),
        }
        opened
    }

    /// Doubt the file after an error. A full disk only refuses the write, and what was written
    /// before still reaches the disk.
    fn doubt_file(&self, error: &BackendError) {
        if !matches!(error, BackendError::DiskFull { .. }) {
            self.doubted.store(true, Ordering::SeqCst);
        }
    }

    fn close(&self) {
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let database = slot.take();
        // Closing writes too, and may fail in its own ways after an I/O error.
        let _ = catch_engine_panic(|| {
            drop(database);
            Ok(())
        });
    }
}

/// The operations of a backend, on the tree alone.
impl RedbTree {
    /// Apply changes in one transaction, after which the journal continues with `tip`.
    ///
    /// # Errors
    /// As [`super::Backend::commit`].
    pub(super) fn commit(&self, batch: &[Op], tip: Tip) -> Result<(), BackendError> {
        let result = self.with_database(|database| {
            let mut transaction = database.begin_write().map_err(engine)?;
            transaction.set_durability(Durability::Immediate).map_err(engine)?;
            {
                let mut state = transaction.open_table(STATE).map_err(engine)?;
                for op in batch {
                    if let Some((key, record)) = apply(&mut state, op).map_err(engine)? {
                        // The table is opened only when it is needed, which is rare.
                        let mut quarantine = transaction.open_table(QUARANTINE).map_err(engine)?;
                        quarantine.insert(key, &*record).map_err(engine)?;
                    }
                }
            }
            write_tip(&transaction, tip)?;
            transaction.commit().map_err(engine)
        });
        if let Err(error) = &result {
            self.doubt_file(error);
            if self.doubted.load(Ordering::SeqCst) {
                // The file is written again at once, because another process may open it next, and
                // that one does not doubt it.
                let _ = self.try_with_database(|_| Ok(()));
            }
        }
        result
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.with_database(|database| {
            let read = database.begin_read().map_err(engine)?;
            let table = read.open_table(STATE).map_err(engine)?;
            let value = table.get(key).map_err(engine)?;
            Ok(value.map(|value| value.value().to_vec()))
        })
    }

    pub(super) fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.with_database(|database| scan(database, STATE, prefix, visit))
    }

    /// Copy the file. A file whose writer died is copied as the engine recovered it. It is closed
    /// meanwhile, because a copy of an open file would look as if its writer had died.
    pub(super) fn backup(&self, from: u16) -> Result<PathBuf, BackendError> {
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let database = slot.take();
        catch_engine_panic(|| {
            drop(database);
            Ok(())
        })?;
        let backup = files::back_up(&self.path, from, peek::same_records)?;
        *slot = Some(self.reopen()?);
        Ok(backup)
    }

    pub(super) fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.with_database(|database| {
            let read = database.begin_read().map_err(engine)?;
            read.open_table(QUARANTINE).map_err(engine)?.len().map_err(engine)
        })
    }
}

pub(super) fn scan(
    database: &Database,
    table: Records,
    prefix: &[u8],
    visit: Visit<'_>,
) -> Result<(), BackendError> {
    let read = database.begin_read().map_err(engine)?;
    let table = read.open_table(table).map_err(engine)?;
    let (from, to) = prefix_bounds(prefix);
    let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    for record in table.range::<&[u8]>(bounds).map_err(engine)? {
        let (key, value) = record.map_err(engine)?;
        if visit(key.value(), value.value()).is_break() {
            break;
        }
    }
    Ok(())
}

/// A record and its key.
type RemovedRecord<'a> = (&'a [u8], Vec<u8>);

/// Apply a change. Returns the record that must be put into quarantine.
fn apply<'a>(
    state: &mut Table<'_, &'static [u8], &'static [u8]>,
    op: &'a Op,
) -> Result<Option<RemovedRecord<'a>>, redb::StorageError> {
    match op {
        Op::Put { key, value } => {
            state.insert(&**key, &**value)?;
        }
        Op::Delete { key } => {
            state.remove(&**key)?;
        }
        Op::DeletePrefix { prefix } => {
            let (from, to) = prefix_bounds(prefix);
            let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            state.retain_in::<&[u8], _>(bounds, |_, _| false)?;
        }
        Op::Quarantine { key } => {
            let record = state.remove(&**key)?.map(|record| record.value().to_vec());
            return Ok(record.map(|record| (&**key, record)));
        }
    }
    Ok(None)
}

/// The position in a file. A file of an older agent does not have all of it.
pub(super) fn read_position(
    read: &ReadTransaction,
    there: bool,
) -> Result<TreePosition, BackendError> {
    let number = allow_missing(read.open_table(COMMITS))?;
    let number = number.map(|table| table.get(()).map_err(engine)).transpose()?.flatten();
    let number = number.map(|number| number.value());
    let names = allow_missing(read.open_table(TIP))?;
    let names = names.map(|table| table.get(()).map_err(engine)).transpose()?.flatten();
    let tip = names.map(|names| {
        let (file, chain) = names.value();
        Tip { file, number: number.unwrap_or_default(), chain }
    });
    Ok(TreePosition { there, number, tip })
}

fn allow_missing<T>(table: Result<T, TableError>) -> Result<Option<T>, BackendError> {
    match table {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(engine(error)),
    }
}

/// The tip for a journal that is made beside a file with this many batches.
pub(super) fn new_tip(number: u64) -> Tip {
    Tip { file: draw_number(), number, chain: draw_number() }
}

/// A number that was never used.
pub(super) fn draw_number() -> u128 {
    Rng::system().uuid().as_u128()
}

/// Write the tip with which the journal continues from here on.
fn write_tip(transaction: &WriteTransaction, tip: Tip) -> Result<(), BackendError> {
    let mut numbers = transaction.open_table(COMMITS).map_err(engine)?;
    numbers.insert((), tip.number).map_err(engine)?;
    let mut names = transaction.open_table(TIP).map_err(engine)?;
    names.insert((), (tip.file, tip.chain)).map_err(engine)?;
    Ok(())
}

pub(super) fn open_file(path: &Path, shown: FileTrust) -> Result<Database, DatabaseError> {
    if shown == FileTrust::Doubted {
        rewrite::file(path)?;
    }
    // The engine opens the file by its path.
    drop(own_file::read(path)?);
    builder().open(path)
}

/// Create a complete, empty state file and give it its name.
fn create(path: &Path) -> Result<(), BackendError> {
    let unfinished = files::with_suffix(path, ".new");
    // A file left by an agent that was killed at this point holds nothing that was acknowledged.
    let file = files::create_private(&unfinished)?;
    let written = file.try_clone()?;
    let unsynced = UnsyncedFile(FileBackend::new(written).map_err(engine)?);
    let database = builder().create_with_backend(unsynced).map_err(engine)?;
    let transaction = database.begin_write().map_err(engine)?;
    transaction.open_table(STATE).map_err(engine)?;
    transaction.open_table(QUARANTINE).map_err(engine)?;
    write_tip(&transaction, new_tip(0))?;
    transaction.commit().map_err(engine)?;
    drop(database);
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    sync_parent(path)?;
    Ok(())
}

/// A file in the making. Nobody knows of it yet, so it is synced once when it is complete, and not
/// at each of the engine's eight steps, which took most of the time of a first start.
#[derive(Debug)]
struct UnsyncedFile(FileBackend);

impl StorageBackend for UnsyncedFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        StorageBackend::read(&self.0, offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        StorageBackend::write(&self.0, offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(STATE_CACHE_BYTES);
    builder
}

pub(super) fn engine(error: impl Into<redb::Error>) -> BackendError {
    error.into().into()
}

thread_local! {
    /// Whether the engine is working on a file, so that its panic is reported as an error.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Run work of the engine, and turn its panic into an error of this call alone.
pub(super) fn catch_engine_panic<T>(
    work: impl FnOnce() -> Result<T, BackendError>,
) -> Result<T, BackendError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                others(info);
            }
        }));
    });
    let outside = CONTAINED.replace(true);
    let ended = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(outside);
    ended.unwrap_or_else(|panic| Err(BackendError::Panicked { message: panic_text(&*panic) }))
}
