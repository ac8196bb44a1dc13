//! Records in a redb file: the tree behind the journal, see [`super::disk_store`].
//!
//! One-phase durable commits: half the fsyncs of two-phase ones; after a crash redb checks the
//! last commit's checksums and falls back to the one before, which for a commit nobody was told of
//! is right. A failed commit closes the file, because redb refuses further work after an I/O error;
//! the next use opens it again, so that an agent lives through a full disk.
//!
//! After any failed commit but for a full disk the file is first written again ([`rewrite`]).
//!
//! A new file is made under another name and renamed when complete: a state file that is there but
//! empty is damage, never a fresh start.

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
use super::rewrite::{self, Shown};
use super::writer::panic_text;
use super::{files, peek};
use crate::durable::sync_parent;
use crate::own_file;
use ostler_model::limits::STATE_CACHE_BYTES;
use ostler_model::rng::Rng;

type Records = TableDefinition<'static, &'static [u8], &'static [u8]>;
pub(super) const STATE: Records = TableDefinition::new("state");
pub(super) const QUARANTINE: Records = TableDefinition::new("quarantine");
/// Number of the newest batch in the file: see [`super::age`]. Not there in files of older agents.
const COMMITS: TableDefinition<'static, (), u64> = TableDefinition::new("commits");
/// Which file this is, and what the journal continues with. Not there in files of older agents.
const TIP: TableDefinition<'static, (), (u128, u128)> = TableDefinition::new("tip");

/// How an existing file is opened; tests put faults underneath.
pub type Opener = Box<dyn Fn(&Path, Shown) -> Result<Database, DatabaseError> + Send + Sync>;

/// What the storage engine says of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Bytes in pages that hold something; the rest of the file is free for later writes.
    pub allocated_bytes: u64,
    /// Bytes of keys and records.
    pub stored_bytes: u64,
    /// Bytes of the trees that lead to them.
    pub metadata_bytes: u64,
    /// Bytes of the file that hold nothing: free pages, and the gaps in used ones.
    pub fragmented_bytes: u64,
    /// Pages from the root to a record.
    pub tree_height: u32,
}

/// Keeps records in one file, mode 0600.
pub(super) struct Tree {
    path: PathBuf,
    opener: Opener,
    /// Absent after a failed commit, until the next use.
    database: RwLock<Option<Database>>,
    /// What is shown is not trusted until it was written again.
    doubted: AtomicBool,
    repaired: bool,
    opened_at: At,
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    /// The file was there.
    pub there: bool,
    /// Number of its newest batch; none in a file of an older agent.
    pub number: Option<u64>,
    /// What the journal continues with; none in a file of an older agent.
    pub tip: Option<Tip>,
}

/// How much is known of a file that is about to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    /// The engine has found it consistent.
    Whole,
    /// Nothing, or it is not consistent.
    No,
}

impl Tree {
    /// Open the file, or make it when there is none.
    ///
    /// # Errors
    /// When it is damaged, in use, or cannot be read, written or made.
    pub(super) fn open(
        path: &Path,
        opener: Opener,
        checked: Checked,
    ) -> Result<Self, BackendError> {
        let there = path.try_exists()?;
        let checked = if there { checked } else { Checked::Whole };
        if !there {
            create(path)?;
        }
        // The engine may meet content it never wrote; a panic there is damage, not our end.
        let (database, repaired, opened_at) = contained(|| {
            let mut database = opener(path, Shown::Trusted).map_err(engine)?;
            let clean = match checked {
                Checked::Whole => true,
                Checked::No => database.check_integrity().map_err(engine)?,
            };
            // Without its tables it is somebody else's file.
            let read = database.begin_read().map_err(engine)?;
            read.open_table(STATE).map_err(engine)?;
            read.open_table(QUARANTINE).map_err(engine)?;
            let opened_at = at(&read, there)?;
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

    /// What the file said of itself when it was opened.
    pub(super) fn opened_at(&self) -> At {
        self.opened_at
    }

    /// The file was found inconsistent when it was opened and repaired, perhaps to an older commit.
    pub(super) fn repaired(&self) -> bool {
        self.repaired
    }

    /// Visit every record in quarantine, in key order.
    ///
    /// # Errors
    /// When the file cannot be read; records visited before stay visited.
    pub(super) fn scan_quarantine(&self, visit: Visit<'_>) -> Result<(), BackendError> {
        self.with(|database| scan(database, QUARANTINE, &[], visit))
    }

    /// What the engine says of the file as it is now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn engine_stats(&self) -> Result<EngineStats, BackendError> {
        self.with(|database| {
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
        // Put back only when it went well: the engine takes no more work after a failure.
        let moved = contained(|| database.compact().map_err(engine));
        let moved = moved.inspect_err(|error| self.doubt(error))?;
        *slot = Some(database);
        Ok(moved)
    }

    /// Work on the open file. It is closed when that fails: the engine latches an I/O error.
    fn with<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let result = self.attempt(work);
        if result.is_err() {
            self.close();
        }
        result
    }

    fn attempt<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let open = self.database.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*open {
            return contained(|| work(database));
        }
        drop(open);
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let database = match slot.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        contained(|| work(slot.insert(database)))
    }

    fn reopen(&self) -> Result<Database, BackendError> {
        let doubted = self.doubted.load(Ordering::SeqCst);
        let shown = if doubted { Shown::Doubted } else { Shown::Trusted };
        let opened = contained(|| (self.opener)(&self.path, shown).map_err(engine));
        match &opened {
            Ok(_) => self.doubted.store(false, Ordering::SeqCst),
            // Opening syncs too.
            Err(error) => self.doubt(error),
        }
        opened
    }

    /// A full disk refuses the write, and what was written before still reaches the disk.
    fn doubt(&self, error: &BackendError) {
        if !matches!(error, BackendError::DiskFull { .. }) {
            self.doubted.store(true, Ordering::SeqCst);
        }
    }

    fn close(&self) {
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let database = slot.take();
        // Closing writes; after an I/O error it may fail in ways of its own.
        let _ = contained(|| {
            drop(database);
            Ok(())
        });
    }
}

/// What a backend does, over the tree alone.
impl Tree {
    /// Apply changes in one transaction, after which the journal continues with `tip`.
    ///
    /// # Errors
    /// As [`super::Backend::commit`].
    pub(super) fn commit(&self, batch: &[Op], tip: Tip) -> Result<(), BackendError> {
        let result = self.with(|database| {
            let mut transaction = database.begin_write().map_err(engine)?;
            transaction.set_durability(Durability::Immediate).map_err(engine)?;
            {
                let mut state = transaction.open_table(STATE).map_err(engine)?;
                for op in batch {
                    if let Some((key, record)) = apply(&mut state, op).map_err(engine)? {
                        // Opened only when it is needed, which is hardly ever.
                        let mut quarantine = transaction.open_table(QUARANTINE).map_err(engine)?;
                        quarantine.insert(key, &*record).map_err(engine)?;
                    }
                }
            }
            note(&transaction, tip)?;
            transaction.commit().map_err(engine)
        });
        if let Err(error) = &result {
            self.doubt(error);
            if self.doubted.load(Ordering::SeqCst) {
                // At once: who opens the file next may be another process, which does not doubt it.
                let _ = self.attempt(|_| Ok(()));
            }
        }
        result
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.with(|database| {
            let read = database.begin_read().map_err(engine)?;
            let table = read.open_table(STATE).map_err(engine)?;
            let value = table.get(key).map_err(engine)?;
            Ok(value.map(|value| value.value().to_vec()))
        })
    }

    pub(super) fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.with(|database| scan(database, STATE, prefix, visit))
    }

    /// A file whose writer died is copied as the engine recovered it. It is closed meanwhile: a copy
    /// of an open one would look as if its writer had died.
    pub(super) fn backup(&self, from: u16) -> Result<PathBuf, BackendError> {
        let mut slot = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let database = slot.take();
        contained(|| {
            drop(database);
            Ok(())
        })?;
        let backup = files::back_up(&self.path, from, peek::same_records)?;
        *slot = Some(self.reopen()?);
        Ok(backup)
    }

    pub(super) fn quarantined(&self) -> Result<u64, BackendError> {
        self.with(|database| {
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
type Removed<'a> = (&'a [u8], Vec<u8>);

/// Apply a change; returns the record that is to be put into quarantine.
fn apply<'a>(
    state: &mut Table<'_, &'static [u8], &'static [u8]>,
    op: &'a Op,
) -> Result<Option<Removed<'a>>, redb::StorageError> {
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

/// What a file says of itself. Some of it is not there in one of an older agent.
pub(super) fn at(read: &ReadTransaction, there: bool) -> Result<At, BackendError> {
    let number = optional(read.open_table(COMMITS))?;
    let number = number.map(|table| table.get(()).map_err(engine)).transpose()?.flatten();
    let number = number.map(|number| number.value());
    let names = optional(read.open_table(TIP))?;
    let names = names.map(|table| table.get(()).map_err(engine)).transpose()?.flatten();
    let tip = names.map(|names| {
        let (file, chain) = names.value();
        Tip { file, number: number.unwrap_or_default(), chain }
    });
    Ok(At { there, number, tip })
}

fn optional<T>(table: Result<T, TableError>) -> Result<Option<T>, BackendError> {
    match table {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(engine(error)),
    }
}

/// What a journal continues with that is made beside a file of so many batches.
pub(super) fn new_tip(number: u64) -> Tip {
    Tip { file: draw(), number, chain: draw() }
}

/// A number that was never used.
pub(super) fn draw() -> u128 {
    Rng::system().uuid().as_u128()
}

/// From here on the journal continues with `tip`.
fn note(transaction: &WriteTransaction, tip: Tip) -> Result<(), BackendError> {
    let mut numbers = transaction.open_table(COMMITS).map_err(engine)?;
    numbers.insert((), tip.number).map_err(engine)?;
    let mut names = transaction.open_table(TIP).map_err(engine)?;
    names.insert((), (tip.file, tip.chain)).map_err(engine)?;
    Ok(())
}

pub(super) fn open_file(path: &Path, shown: Shown) -> Result<Database, DatabaseError> {
    if shown == Shown::Doubted {
        rewrite::file(path)?;
    }
    // The engine opens it by its path.
    drop(own_file::read(path)?);
    builder().open(path)
}

/// Make a complete, empty state file and give it its name.
fn create(path: &Path) -> Result<(), BackendError> {
    let unfinished = files::with_suffix(path, ".new");
    // A file left by an agent that was killed at this point holds nothing that was acknowledged.
    let file = files::private(&unfinished)?;
    let written = file.try_clone()?;
    let unsynced = Unsynced(FileBackend::new(written).map_err(engine)?);
    let database = builder().create_with_backend(unsynced).map_err(engine)?;
    let transaction = database.begin_write().map_err(engine)?;
    transaction.open_table(STATE).map_err(engine)?;
    transaction.open_table(QUARANTINE).map_err(engine)?;
    note(&transaction, new_tip(0))?;
    transaction.commit().map_err(engine)?;
    drop(database);
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    sync_parent(path)?;
    Ok(())
}

/// A file in the making: nobody was told of it, so it is synced when it is whole, and not at each of the
/// engine's eight steps, which is what a first start waited for longest.
#[derive(Debug)]
struct Unsynced(FileBackend);

impl StorageBackend for Unsynced {
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
    /// The engine is at work on a file, and a panic of it is told as an error.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// A panic of the engine is this call's failure, and told as that alone.
pub(super) fn contained<T>(
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
