//! Backends with faults, and a disk with faults, for tests here and elsewhere.

#[path = "testing_disk.rs"]
pub mod disk;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::backend::{Backend, Op, Visit};
use super::error::BackendError;
use super::keys::Key;
use super::mem_store::MemBackend;

/// What goes wrong with a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and nothing is applied.
    Before,
    /// It is applied, yet reported as failed.
    After,
    /// The backend panics before anything is applied.
    Panic,
}

/// A backend that fails the commits it is told to fail, and can hold commits up.
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
    /// Over another backend, without faults yet.
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

    /// What happens to the next commits, in order; those after the plan's end go well.
    pub fn plan(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    /// Take back what is planned and has not happened.
    pub fn forget_plan(&self) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The commit that removes this record is the last that goes well.
    pub fn fail_after_removing(&self, key: &Key) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.encode().into());
    }

    /// Is this commit the last that goes well?
    fn is_last(&self, batch: &[Op]) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = last.as_deref() else { return false };
        batch.iter().any(|op| matches!(op, Op::Delete { key } if **key == *last))
    }

    /// Hold every commit up until the guard is dropped.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> Held {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Held(Arc::clone(self))
    }

    /// Commits begun so far, held up and failed ones included.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }
}

/// Holds commits up while it lives.
pub struct Held(Arc<FaultyBackend>);

impl Drop for Held {
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

    fn unsettled(&self) -> bool {
        self.inner.unsettled()
    }

    fn settle(&self) -> Result<(), BackendError> {
        self.inner.settle()
    }

    fn quarantined(&self) -> Result<u64, BackendError> {
        self.inner.quarantined()
    }
}

/// A backend of which every operation fails, without any effect, until it is healed.
///
/// Over one that fails from the start no store opens; one that is to fail later starts healed.
#[derive(Debug)]
pub struct ErrorBackend {
    inner: MemBackend,
    failing: AtomicBool,
    refused: AtomicU64,
}

impl ErrorBackend {
    /// An empty one that fails.
    #[must_use]
    pub fn failing() -> Arc<Self> {
        Arc::new(Self {
            inner: MemBackend::default(),
            failing: AtomicBool::new(true),
            refused: AtomicU64::new(0),
        })
    }

    /// An empty one that works so far.
    #[must_use]
    pub fn healed() -> Arc<Self> {
        let backend = Self::failing();
        backend.heal();
        backend
    }

    /// From here on everything fails.
    pub fn fail(&self) {
        self.failing.store(true, Ordering::SeqCst);
    }

    /// From here on everything works, over what was there before it failed.
    pub fn heal(&self) {
        self.failing.store(false, Ordering::SeqCst);
    }

    /// Operations that failed so far.
    #[must_use]
    pub fn refused(&self) -> u64 {
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

    fn quarantined(&self) -> Result<u64, BackendError> {
        self.check()?.quarantined()
    }
}
