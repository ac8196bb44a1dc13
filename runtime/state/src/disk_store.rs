//! Records in two files: the tree that holds them, and before it the journal, which makes a write one
//! overwrite and one sync.
//!
//! ```text
//! commit ─► journal: one record ─► durable ─► pending ◄─ get, scan: before the tree
//!              │ full, doubted, idle, closed     │
//!              └─────── settle ─────────────────►└─► tree: one transaction ─► the journal begins anew
//!
//! open ─► tree ─► what the journal has beyond it ─► settle
//! ```
//!
//! The journal is made in full before it is used and then written over in place, so that a sync has no
//! metadata to write. One that cannot be written is done without: what it held is moved into the tree,
//! later batches go there, and it is made anew. After a failed commit of the tree it is not known what
//! the tree ends with: nothing is written to the journal before a commit of everything went well.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use super::age::{Age, Witness};
use super::backend::{Backend, Op, Visit};
use super::codec::{OLDEST, SCHEMA};
use super::error::BackendError;
use super::files;
use super::journal::pending::Pending;
use super::journal::plan::{JournalPlan, Step};
use super::journal::{self, Scanned};
use super::journal_file::{self, open_journal, read_all, read_journal, zeroed};
pub use super::journal_file::{JournalFile, JournalOpener};
use super::peek;
use super::redb_store::{At, Checked, EngineStats, Opener, Tree, draw, new_tip, open_file};
use ostler_model::limits::STATE_JOURNAL_BYTES;

/// While there is no journal one is made again at each so-manieth batch.
const MADE_AGAIN: u64 = 64;

/// How the two files are opened; tests put faults underneath.
pub struct Openers {
    /// The tree, which is there.
    pub tree: Opener,
    /// The journal.
    pub journal: JournalOpener,
    /// Bytes of the journal.
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
    tree: Tree,
    journal_path: PathBuf,
    journal_opener: JournalOpener,
    journal_bytes: usize,
    log: Mutex<Log>,
    pending: RwLock<Pending>,
    found: Found,
    /// Copy made before the engine touched the file.
    backup: Option<PathBuf>,
}

/// Who commits has this.
struct Log {
    plan: JournalPlan,
    file: Option<JournalFile>,
    record: Vec<u8>,
    /// Absent when the files are only read.
    witness: Option<Witness>,
}

/// What was found when the files were opened.
#[derive(Clone, Debug, Default)]
struct Found {
    age: Age,
    compared: bool,
    replayed: u64,
    foreign: bool,
    aside: Option<PathBuf>,
}

impl DiskBackend {
    /// Open the files, made when there are none. Reads them once to check them. A state file of an
    /// older schema that was closed in order is copied first: the engine changes bytes of every file
    /// that it opens.
    ///
    /// # Errors
    /// When one is damaged, in use, or cannot be read, written, copied or made.
    pub fn open(path: &Path) -> Result<Self, BackendError> {
        Self::open_checked(path, Checked::No)
    }

    /// As [`DiskBackend::open`], for a file that was looked at before.
    pub(super) fn open_checked(path: &Path, checked: Checked) -> Result<Self, BackendError> {
        let older = peek::look(path).filter(|(from, _)| (OLDEST..SCHEMA).contains(from));
        let older = match older {
            // What its journal holds is to be in the copy: made later, when it is in the file.
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

    /// As [`DiskBackend::open`], with another way to open and no copy.
    ///
    /// # Errors
    /// As [`DiskBackend::open`].
    pub fn open_with(path: &Path, openers: Openers) -> Result<Self, BackendError> {
        Self::open_as(path, openers, Checked::No)
    }

    fn open_as(path: &Path, openers: Openers, checked: Checked) -> Result<Self, BackendError> {
        let Openers { tree, journal, journal_bytes } = openers;
        let tree = Tree::open(path, tree, checked)?;
        let journal_path = journal_file::beside(path);
        let failed = |source| BackendError::Journal { path: journal_path.clone(), source };
        let file = journal(&journal_path).map_err(failed)?;
        let bytes = file.as_deref().map(read_all).transpose().map_err(failed)?.unwrap_or_default();
        let mut opened = Self::over(path, tree, &bytes, journal);
        opened.journal_bytes = journal_bytes;
        let aside = opened.found.keeps(&bytes);
        match opened.settle() {
            // It stays as it is, and everything it holds goes along with the next commit.
            Err(error) if !aside => {
                tracing::warn!(path = %path.display(), %error, "state journal not moved yet");
                return Ok(opened);
            }
            settled => settled?,
        }
        if aside {
            opened.found.aside = Some(files::keep(&opened.journal_path, &bytes).map_err(failed)?);
        }
        let whole = !aside && bytes.len() >= journal_bytes;
        opened.use_journal(&mut opened.log(), file, whole);
        Ok(opened)
    }

    /// Open files for reading alone, the tree by `opener`, which keeps changes to itself.
    ///
    /// # Errors
    /// When one is damaged, in use, or cannot be read.
    pub(super) fn open_reading(path: &Path, opener: Opener) -> Result<Self, BackendError> {
        let tree = Tree::open(path, opener, Checked::No)?;
        let bytes = read_journal(path)?;
        let opened = Self::over(path, tree, &bytes, Box::new(|_| Ok(None)));
        opened.log().witness = None;
        Ok(opened)
    }

    /// The journal is read, and not open yet.
    fn over(path: &Path, tree: Tree, bytes: &[u8], journal_opener: JournalOpener) -> Self {
        let At { there, number, tip } = tree.opened_at();
        let Scanned { changes, batches, tip: reached, newest, foreign } = journal::scan(bytes, tip);
        let reached = match tip {
            Some(_) => reached,
            None => new_tip(number.unwrap_or_default()),
        };
        let witness = Witness::of(path);
        let beside = witness.read();
        // The journal knows of what it no longer holds, or holds behind a hole.
        let known = beside.max((newest > reached.number).then_some(newest));
        let mut pending = Pending::default();
        changes.iter().for_each(|op| pending.apply(op));
        let plan = JournalPlan::new(reached, tip.is_some(), known.unwrap_or_default());
        let age = Age::of(there, number.map(|_| reached.number), known);
        let compared = beside.is_some();
        Self {
            tree,
            journal_path: journal_file::beside(path),
            journal_opener,
            journal_bytes: 0,
            log: Mutex::new(Log { plan, file: None, record: Vec::new(), witness: Some(witness) }),
            pending: RwLock::new(pending),
            found: Found { age, compared, replayed: batches, foreign, aside: None },
            backup: None,
        }
    }

    /// The directory knew something to compare the files with.
    #[must_use]
    pub fn compared(&self) -> bool {
        self.found.compared
    }

    /// How the files compare with what their directory knew when they were opened.
    #[must_use]
    pub fn age(&self) -> Age {
        self.found.age
    }

    /// Batches that were in the journal alone when the files were opened.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.found.replayed
    }

    /// The journal holds batches of another state file, which were not taken.
    #[must_use]
    pub fn foreign(&self) -> bool {
        self.found.foreign
    }

    /// Where a journal is kept of which not all could be taken.
    #[must_use]
    pub fn aside(&self) -> Option<&Path> {
        self.found.aside.as_deref()
    }

    /// The file was found inconsistent when it was opened and repaired, perhaps to an older commit.
    #[must_use]
    pub fn repaired(&self) -> bool {
        self.tree.repaired()
    }

    /// Visit every record in quarantine, in key order.
    ///
    /// # Errors
    /// When the file cannot be read; records visited before stay visited.
    pub fn scan_quarantine(&self, visit: Visit<'_>) -> Result<(), BackendError> {
        self.tree.scan_quarantine(visit)
    }

    /// What the engine says of the tree as it is now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn engine_stats(&self) -> Result<EngineStats, BackendError> {
        self.tree.engine_stats()
    }

    /// Give free room in the state file back to the file system. Every step is a commit of its own, so
    /// a crash leaves all records. Returns whether anything was moved.
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

    /// From here on batches go to this journal. `whole`: it has its length and nothing in it that is
    /// not in the tree.
    fn use_journal(&self, log: &mut Log, file: Option<JournalFile>, whole: bool) {
        let Some(file) = file else { return };
        // All of it: what is left unwritten would cost metadata at the first sync of each block.
        let made = if whole { Ok(()) } else { zeroed(&*file, self.journal_bytes) };
        match made {
            Ok(()) => {
                log.plan.journal(self.journal_bytes);
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

    /// Commit to the tree; nothing may wait in the journal that is not part of `batch`.
    fn commit_tree(&self, log: &mut Log, batch: &[Op], number: u64) -> Result<(), BackendError> {
        let tip = log.plan.tip_in_tree(number, draw());
        let done = self.tree.commit(batch, tip);
        done.inspect_err(|_| log.plan.tree_failed(number))?;
        log.plan.in_tree(tip);
        Ok(())
    }

    /// Make a journal where there is none; everything is in the tree.
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
            let next = match log.file.is_some() && small {
                true => journal::encode(&log.plan.tip(), number, batch, &mut log.record),
                false => None,
            };
            let record = next.map(|tip| (tip, log.record.len()));
            match log.plan.step(record.map(|(_, bytes)| bytes), self.unsettled()) {
                Step::Settle => self.settle_in(log)?,
                Step::Direct => {
                    self.commit_tree(log, batch, number)?;
                    if log.file.is_none()
                        && number.is_multiple_of(MADE_AGAIN)
                        && log.witness.is_some()
                    {
                        self.make_journal(log);
                    }
                    return Ok(number);
                }
                Step::Append { at } => match (self.append(log, at), record) {
                    (Ok(()), Some((tip, bytes))) => {
                        log.plan.appended(tip, bytes);
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
                        log.plan.append_failed(number);
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
            witness.note(number);
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
        // Held throughout: what is seen is as of one commit.
        let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
        if pending.is_empty() {
            return self.tree.scan(prefix, visit);
        }
        pending.scan(prefix, visit, |visit| self.tree.scan(prefix, visit))
    }

    fn unsettled(&self) -> bool {
        !self.pending.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn settle(&self) -> Result<(), BackendError> {
        let mut log = self.log();
        if self.unsettled() { self.settle_in(&mut log) } else { Ok(()) }
    }

    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        // To go back to the copy must be possible without what is written after it.
        self.log().plan.break_off();
        if self.backup.is_some() {
            return Ok(self.backup.clone());
        }
        self.settle()?;
        self.log().plan.break_off();
        self.tree.backup(from).map(Some)
    }

    fn quarantined(&self) -> Result<u64, BackendError> {
        self.tree.quarantined()
    }
}

impl Drop for DiskBackend {
    /// So that the state file is whole by itself.
    fn drop(&mut self) {
        if self.log().witness.is_some()
            && let Err(error) = self.settle()
        {
            tracing::debug!(path = %self.journal_path.display(), %error, "journal left as it is");
        }
    }
}

impl Found {
    /// Is a journal with this content to be kept?
    fn keeps(&self, bytes: &[u8]) -> bool {
        (self.foreign || self.age.lacks()) && bytes.iter().any(|byte| *byte != 0)
    }
}
