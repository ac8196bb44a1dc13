//! Keeps records in two files: the tree that holds them, and the journal before it, which makes a
//! write one overwrite and one sync.
//!
//! ```text
//! commit ─► journal: one record ─► durable ─► pending ◄─ get, scan: before the tree
//!              │ full, doubted, idle, closed     │
//!              └─────── settle ─────────────────►└─► tree: one transaction ─► the journal begins anew
//!
//! open ─► tree ─► what the journal has beyond it ─► settle
//! ```
//!
//! The journal is made in full before it is used and then overwritten in place, so that a sync has
//! no metadata to write. If it cannot be written the store goes on without it: its content is moved
//! into the tree, later batches go there, and it is made anew. After a failed commit of the tree it
//! is unknown with what the tree ends. Nothing is written to the journal then until a commit of
//! everything succeeded.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::age::{Age, Witness};
use super::backend::{Backend, Op, Visit};
use super::codec::{OLDEST, SCHEMA};
use super::error::BackendError;
use super::files;
use super::journal::pending::PendingChanges;
use super::journal::plan::{JournalPlan, JournalStep};
use super::journal::{self, JournalScan};
use super::journal_file::{self, fill_with_zeros, open_journal, read_all, read_journal};
pub use super::journal_file::{JournalFile, JournalOpener};
use super::peek;
use super::redb_store::{
    EngineStats, FileCheck, Opener, RedbTree, TreePosition, draw_number, new_tip, open_file,
};
use ostler_model::limits::STATE_JOURNAL_BYTES;

/// Without a journal, each batch whose number is a multiple of this tries to make a new one.
const MADE_AGAIN: u64 = 64;

/// The functions that open the two files. Tests put faults underneath.
pub struct Openers {
    /// The function that opens the tree, whose file is there.
    pub tree: Opener,
    /// The function that opens or creates the journal.
    pub journal: JournalOpener,
    /// The size of the journal in bytes.
    pub journal_bytes: usize,
}

impl Default for Openers {
    fn default() -> Self {
        Self {
            tree: Box::new(open_file),
            journal: Box::new(open_journal),
            journal_bytes: STATE_JOURNAL_BYTES,
        }
    }
}

/// Keeps records in a state file and its journal, mode 0600.
pub struct DiskBackend {
    tree: RedbTree,
    journal_path: PathBuf,
    journal_opener: JournalOpener,
    journal_bytes: usize,
    log: Mutex<Log>,
    pending: RwLock<PendingChanges>,
    found: OpenFindings,
    /// The copy that was made before the engine touched the file.
    backup: Option<PathBuf>,
}

/// The state of the journal; whoever commits holds its lock.
struct Log {
    plan: JournalPlan,
    file: Option<JournalFile>,
    record: Vec<u8>,
    /// The number file beside the state file; `None` if the files are only read.
    witness: Option<Witness>,
}

/// The findings from opening the files.
#[derive(Clone, Debug, Default)]
struct OpenFindings {
    age: Age,
    compared: bool,
    replayed: u64,
    foreign: bool,
    aside: Option<PathBuf>,
}

impl DiskBackend {
    /// Open the files, or create them if there are none. They are read once and checked. A state
    /// file of an older schema that was closed in order is copied first, because the engine changes
    /// bytes of every file that it opens.
    ///
    /// # Errors
    /// When one is damaged, in use, or cannot be read, written, copied or made.
    pub fn open(path: &Path) -> Result<Self, BackendError> {
        Self::open_checked(path, FileCheck::No)
    }

    /// The same as [`DiskBackend::open`], for a file that was examined before.
    pub(super) fn open_checked(path: &Path, checked: FileCheck) -> Result<Self, BackendError> {
        let older = peek::peek_schema(path).filter(|(from, _)| (OLDEST..SCHEMA).contains(from));
        let older = match older {
            // The content of its journal must be in the copy, which is made later, when that
            // content is in the file.
            Some((from, at)) if journal::scan(&read_journal(path)?, at.tip).batches == 0 => {
                Some(from)
            }
            _ => None,
        };
        let backup =
            older.map(|from| files::back_up(path, from, peek::same_records)).transpose()?;
        let mut opened = Self::open_as(path, Openers::default(), checked)?;
        opened.backup = backup;
        Ok(opened)
    }

    /// The same as [`DiskBackend::open`], with another way to open and without a copy.
    ///
    /// # Errors
    /// As [`DiskBackend::open`].
    pub fn open_with(path: &Path, openers: Openers) -> Result<Self, BackendError> {
        Self::open_as(path, openers, FileCheck::No)
    }

    fn open_as(path: &Path, openers: Openers, checked: FileCheck) -> Result<Self, BackendError> {
        let Openers { tree, journal, journal_bytes } = openers;
        let tree = RedbTree::open(path, tree, checked)?;
        let journal_path = journal_file::journal_path(path);
        let failed = |source| BackendError::Journal { path: journal_path.clone(), source };
        let file = journal(&journal_path).map_err(failed)?;
        let bytes = file.as_deref().map(read_all).transpose().map_err(failed)?.unwrap_or_default();
        let mut opened = Self::from_tree(path, tree, &bytes, journal);
        opened.journal_bytes = journal_bytes;
        let aside = opened.found.keeps(&bytes);
        match opened.settle() {
            // The journal stays as it is, and everything in it goes along with the next commit.
            Err(error) if !aside => {
                tracing::warn!(path = %path.display(), %error, "state journal not moved yet");
                return Ok(opened);
            }
            settled => settled?,
        }
        if aside {
            opened.found.aside =
                Some(files::keep_aside(&opened.journal_path, &bytes).map_err(failed)?);
        }
        let whole = !aside && bytes.len() >= journal_bytes;
        opened.use_journal(&mut opened.log(), file, whole);
        Ok(opened)
    }

    /// Open the files only for reading, the tree by `opener`, which keeps changes to itself.
    ///
    /// # Errors
    /// When one is damaged, in use, or cannot be read.
    pub(super) fn open_reading(path: &Path, opener: Opener) -> Result<Self, BackendError> {
        let tree = RedbTree::open(path, opener, FileCheck::No)?;
        let bytes = read_journal(path)?;
        let opened = Self::from_tree(path, tree, &bytes, Box::new(|_| Ok(None)));
        opened.log().witness = None;
        Ok(opened)
    }

    /// Build the backend from a tree and the bytes of a journal that was read but is not open yet.
    fn from_tree(path: &Path, tree: RedbTree, bytes: &[u8], journal_opener: JournalOpener) -> Self {
        let TreePosition { there, number, tip } = tree.position_at_open();
        let JournalScan { changes, batches, tip: reached, newest, foreign } =
            journal::scan(bytes, tip);
        let reached = match tip {
            Some(_) => reached,
            None => new_tip(number.unwrap_or_default()),
        };
        let witness = Witness::for_state_file(path);
        let beside = witness.read();
        // The journal may know of batches that it no longer holds, or that are behind a hole.
        let known = beside.max((newest > reached.number).then_some(newest));
        let mut pending = PendingChanges::default();
        changes.iter().for_each(|op| pending.apply(op));
        let plan = JournalPlan::new(reached, tip.is_some(), known.unwrap_or_default());
        let age = Age::compare(there, number.map(|_| reached.number), known);
        let compared = beside.is_some();
        Self {
            tree,
            journal_path: journal_file::journal_path(path),
            journal_opener,
            journal_bytes: 0,
            log: Mutex::new(Log { plan, file: None, record: Vec::new(), witness: Some(witness) }),
            pending: RwLock::new(pending),
            found: OpenFindings { age, compared, replayed: batches, foreign, aside: None },
            backup: None,
        }
    }

    /// Whether the directory knew something to compare the files with.
    #[must_use]
    pub fn was_compared(&self) -> bool {
        self.found.compared
    }

    /// How the files compare with what their directory knew when they were opened.
    #[must_use]
    pub fn age(&self) -> Age {
        self.found.age
    }

    /// The number of batches that were only in the journal when the files were opened.
    #[must_use]
    pub fn replayed_batches(&self) -> u64 {
        self.found.replayed
    }

    /// Whether the journal holds batches of another state file, which were not taken.
    #[must_use]
    pub fn has_foreign_journal(&self) -> bool {
        self.found.foreign
    }

    /// The path under which a journal is kept of which not all could be taken.
    #[must_use]
    pub fn moved_aside_path(&self) -> Option<&Path> {
        self.found.aside.as_deref()
    }

    /// Whether the file was found inconsistent when it was opened, and was repaired, perhaps to an
    /// older commit.
    #[must_use]
    pub fn was_repaired(&self) -> bool {
        self.tree.was_repaired()
    }

    /// Visit every record in quarantine, in key order.
    ///
    /// # Errors
    /// When the file cannot be read; records visited before stay visited.
    pub fn scan_quarantine(&self, visit: Visit<'_>) -> Result<(), BackendError> {
        self.tree.scan_quarantine(visit)
    }

    /// The engine's figures of the tree as it is now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn engine_stats(&self) -> Result<EngineStats, BackendError> {
        self.tree.engine_stats()
    }

    /// Give free room in the state file back to the file system. Every step is a commit of its own,
    /// so a crash leaves all records. Returns whether anything was moved.
    ///
    /// # Errors
    /// When a file cannot be read or written.
    pub fn compact(&self) -> Result<bool, BackendError> {
        self.settle()?;
        self.tree.compact()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Send batches to this journal from now on. `whole` says that it has its length and nothing in
    /// it that is not in the tree.
    fn use_journal(&self, log: &mut Log, file: Option<JournalFile>, whole: bool) {
        let Some(file) = file else { return };
        // All of it is written: an unwritten block would cost metadata at its first sync.
        let made = if whole { Ok(()) } else { fill_with_zeros(&*file, self.journal_bytes) };
        match made {
            Ok(()) => {
                log.plan.set_journal_size(self.journal_bytes);
                log.file = Some(file);
            }
            Err(error) => tracing::warn!(
                path = %self.journal_path.display(), %error,
                "no state journal can be made: every write goes to the state file itself"
            ),
        }
    }

    /// Write the record of the batch, which is in `log.record`.
    fn append(&self, log: &mut Log, at: usize) -> io::Result<()> {
        let file = log.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.write(u64::try_from(at).map_err(io::Error::other)?, &log.record)?;
        file.sync_data()
    }

    /// Commit to the tree. Only changes that are part of `batch` may wait in the journal.
    fn commit_tree(&self, log: &mut Log, batch: &[Op], number: u64) -> Result<(), BackendError> {
        let tip = log.plan.tip_in_tree(number, draw_number());
        let done = self.tree.commit(batch, tip);
        done.inspect_err(|_| log.plan.note_tree_failure(number))?;
        log.plan.note_tree_commit(tip);
        Ok(())
    }

    /// Make a journal if there is none. Everything is in the tree.
    fn make_journal(&self, log: &mut Log) {
        match (self.journal_opener)(&self.journal_path) {
            Ok(file) => self.use_journal(log, file, false),
            Err(error) => tracing::debug!(%error, "state journal not opened"),
        }
    }

    fn settle_in(&self, log: &mut Log) -> Result<(), BackendError> {
        let changes = self.pending.read().unwrap_or_else(PoisonError::into_inner).changes();
        let number = log.plan.tip().number;
        self.commit_tree(log, &changes, number)?;
        self.pending.write().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    fn commit_in(&self, log: &mut Log, batch: &[Op]) -> Result<u64, BackendError> {
        let bytes: u64 = batch.iter().map(Op::bytes).sum();
        let small = usize::try_from(bytes).is_ok_and(|bytes| bytes < self.journal_bytes);
        loop {
            let number = log.plan.number();
            let next = if log.file.is_some() && small {
                journal::encode(&log.plan.tip(), number, batch, &mut log.record)
            } else {
                None
            };
            let record = next.map(|tip| (tip, log.record.len()));
            match log.plan.step(record.map(|(_, bytes)| bytes), self.has_unsettled()) {
                JournalStep::Settle => self.settle_in(log)?,
                JournalStep::Direct => {
                    self.commit_tree(log, batch, number)?;
                    if log.file.is_none()
                        && number.is_multiple_of(MADE_AGAIN)
                        && log.witness.is_some()
                    {
                        self.make_journal(log);
                    }
                    return Ok(number);
                }
                JournalStep::Append { at } => match (self.append(log, at), record) {
                    (Ok(()), Some((tip, bytes))) => {
                        log.plan.note_append(tip, bytes);
                        let mut pending =
                            self.pending.write().unwrap_or_else(PoisonError::into_inner);
                        batch.iter().for_each(|op| pending.apply(op));
                        return Ok(number);
                    }
                    (outcome, _) => {
                        let error = outcome.err();
                        tracing::warn!(
                            path = %self.journal_path.display(), ?error,
                            "state journal not written: the change goes to the state file itself"
                        );
                        log.plan.note_append_failure(number);
                        log.file = None;
                    }
                },
            }
        }
    }
}

impl Backend for DiskBackend {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let mut log = self.log();
        let number = self.commit_in(&mut log, batch)?;
        if let Some(witness) = &mut log.witness {
            witness.note_commits(number);
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        {
            let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = pending.get(key) {
                return Ok(known.map(<[u8]>::to_vec));
            }
        }
        self.tree.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        // The lock is held throughout, so that the scan shows one commit.
        let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
        if pending.is_empty() {
            return self.tree.scan(prefix, visit);
        }
        pending.scan(prefix, visit, |visit| self.tree.scan(prefix, visit))
    }

    fn has_unsettled(&self) -> bool {
        !self.pending.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn settle(&self) -> Result<(), BackendError> {
        let mut log = self.log();
        if self.has_unsettled() { self.settle_in(&mut log) } else { Ok(()) }
    }

    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        // Going back to the copy must be possible without what is written after it.
        self.log().plan.break_off();
        if self.backup.is_some() {
            return Ok(self.backup.clone());
        }
        self.settle()?;
        self.log().plan.break_off();
        self.tree.backup(from).map(Some)
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.tree.count_quarantined()
    }
}

impl Drop for DiskBackend {
    /// Settle, so that the state file is whole by itself.
    fn drop(&mut self) {
        if self.log().witness.is_some()
            && let Err(error) = self.settle()
        {
            tracing::debug!(path = %self.journal_path.display(), %error, "journal left as it is");
        }
    }
}

impl OpenFindings {
    /// Whether a journal with this content must be kept.
    fn keeps(&self, bytes: &[u8]) -> bool {
        (self.foreign || self.age.is_behind()) && bytes.iter().any(|byte| *byte != 0)
    }
}
