//! Backends with faults, and a disk with faults, for tests here and in other crates.

#[path = "testing_disk.rs"]
pub mod disk;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use serde::de::DeserializeOwned;

use super::backend::{Backend, Op, Visit};
use super::error::{BackendError, StateError};
use super::mem_store::MemBackend;
use super::read::StoredRecord;
use super::records::{KeyFor, RecordKey};

/// A key under which a test puts what is no value of it.
#[derive(Clone, Debug)]
pub struct AnyKey(pub RecordKey);

impl<V: ?Sized> KeyFor<V> for AnyKey {
    fn record_key(&self) -> &RecordKey {
        &self.0
    }
}

/// The value of a record that a test wrote with [`AnyKey`].
///
/// # Errors
/// When the record is damaged or not a `V`.
pub fn decode_any<V: DeserializeOwned>(record: &StoredRecord) -> Result<V, StateError> {
    record.decode_as(record.key.kind())
}

/// The fault of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The commit fails and nothing is applied.
    Before,
    /// The commit is applied, yet reported as failed.
    After,
    /// The backend panics before anything is applied.
    Panic,
}

/// A backend that fails the commits it is told to fail, and can delay commits.
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    plan: Mutex<VecDeque<Option<Fault>>>,
    last: Mutex<Option<Box<[u8]>>>,
    ended: AtomicBool,
    commits: AtomicU64,
    held: Mutex<bool>,
    released: Condvar,
}

impl FaultyBackend {
    /// A backend over another one, without faults yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            plan: Mutex::default(),
            last: Mutex::default(),
            ended: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            held: Mutex::new(false),
            released: Condvar::new(),
        })
    }

    /// Plan the faults of the next commits, in order. Commits after the end of the plan succeed.
    pub fn plan(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// Take back planned faults that have not happened.
    pub fn forget_plan(&self) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Let all commits fail after the one that removes this record.
    pub fn fail_after_removing(&self, key: &RecordKey) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.encode().into());
    }

    /// Whether this commit is the last that succeeds.
    fn is_last(&self, batch: &[Op]) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = last.as_deref() else { return false };
        batch.iter().any(|op| matches!(op, Op::Delete { key } if **key == *last))
    }

    /// Delay every commit until the guard is dropped.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> CommitHold {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = true;
        CommitHold(Arc::clone(self))
    }

    /// The number of commits started so far, delayed and failed ones included.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }
}

/// A guard that delays commits while it lives.
pub struct CommitHold(Arc<FaultyBackend>);

impl Drop for CommitHold {
    fn drop(&mut self) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.released.notify_all();
    }
}

impl Backend for FaultyBackend {
    #[expect(clippy::panic, reason = "the fault a test asked for")]
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let commit = self.commits.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.released.wait_while(held, |held| *held).unwrap_or_else(PoisonError::into_inner));
        let fault = self.plan.lock().unwrap_or_else(PoisonError::into_inner).pop_front().flatten();
        let fault = fault.or(self.ended.load(Ordering::SeqCst).then_some(Fault::Before));
        self.ended.fetch_or(self.is_last(batch), Ordering::SeqCst);
        match fault {
            None => self.inner.commit(batch),
            Some(Fault::Before) => Err(BackendError::Injected { commit }),
            Some(Fault::After) => {
                self.inner.commit(batch)?;
                Err(BackendError::Injected { commit })
            }
            Some(Fault::Panic) => panic!("injected panic"),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.inner.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.inner.scan(prefix, visit)
    }

    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        self.inner.backup(from)
    }

    fn has_unsettled(&self) -> bool {
        self.inner.has_unsettled()
    }

    fn settle(&self) -> Result<(), BackendError> {
        self.inner.settle()
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.inner.count_quarantined()
    }
}

/// A backend of which every operation fails without any effect, until it is healed.
///
/// No store opens over a backend that fails from the start. For a store that fails later, begin
/// with a healed one.
#[derive(Debug)]
pub struct ErrorBackend {
    inner: MemBackend,
    failing: AtomicBool,
    refused: AtomicU64,
}

impl ErrorBackend {
    /// An empty backend that fails.
    #[must_use]
    pub fn new_failing() -> Arc<Self> {
        Arc::new(Self {
            inner: MemBackend::default(),
            failing: AtomicBool::new(true),
            refused: AtomicU64::new(0),
        })
    }

    /// An empty backend that works until [`ErrorBackend::fail`].
    #[must_use]
    pub fn new_healed() -> Arc<Self> {
        let backend = Self::new_failing();
        backend.heal();
        backend
    }

    /// Let every operation fail from here on.
    pub fn fail(&self) {
        self.failing.store(true, Ordering::SeqCst);
    }

    /// Let every operation succeed from here on, with the content from before it failed.
    pub fn heal(&self) {
        self.failing.store(false, Ordering::SeqCst);
    }

    /// The number of operations that failed so far.
    #[must_use]
    pub fn refused_calls(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<&MemBackend, BackendError> {
        if self.failing.load(Ordering::SeqCst) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(BackendError::Io { source: io::Error::other("every operation fails") });
        }
        Ok(&self.inner)
    }
}

impl Backend for ErrorBackend {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        self.check()?.commit(batch)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        self.check()?.get(key)
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        self.check()?.scan(prefix, visit)
    }

    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        self.check()?.backup(from)
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        self.check()?.count_quarantined()
    }
}
