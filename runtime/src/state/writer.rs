//! The one thread that commits.
//!
//! ```text
//! put, delete, destroy ─► queue (STATE_QUEUE_MAX) ─► [ first waiting … at most STATE_BATCH_MAX ]
//!                                                       │ one transaction
//!                               ┌───────────────────────┴──────────────────────┐
//!                               ▼ durable                                      ▼ failed
//!                    publish digests, wake waiters            forget digests, fail these waiters
//! ```
//!
//! Writes queued while a commit is in flight share the next one: the more writers, the fewer
//! fsyncs per write, with no added delay for a single one. The thread ends when the store is closed
//! or its last handle is dropped, after everything queued is committed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::backend::{Backend, Op};
use super::dedup::{Dedup, Digest, Settled};
use super::error::BackendError;
use super::stats::{Counters, count};
use crate::limits::STATE_BATCH_MAX;

/// How a batch ended, told to each of its waiters.
pub type Outcome = Result<(), Arc<BackendError>>;

/// One write on its way.
pub struct Request {
    /// The change.
    pub op: Op,
    /// Digest of the record of a put.
    pub digest: Option<Digest>,
    /// Told when the batch ended; the waiter may be gone.
    pub done: oneshot::Sender<Outcome>,
}

/// What the writer thread is asked.
pub enum Message {
    /// Commit this.
    Write(Request),
    /// Take no more, commit what is queued, tell, end.
    Close(oneshot::Sender<()>),
}

/// What the handles and the writer thread have in common.
pub struct Shared {
    /// The state file, for messages.
    pub path: PathBuf,
    /// Where records are kept.
    pub backend: Arc<dyn Backend>,
    dedup: Mutex<Dedup>,
    /// What happened so far.
    pub counters: Counters,
}

impl Shared {
    /// Over a backend, knowing what `dedup` was warmed with.
    #[must_use]
    pub fn new(path: PathBuf, backend: Arc<dyn Backend>, dedup: Dedup) -> Self {
        Self { path, backend, dedup: Mutex::new(dedup), counters: Counters::default() }
    }

    /// What is known to be durable. Held for microseconds, never across a wait or a commit.
    pub fn dedup(&self) -> MutexGuard<'_, Dedup> {
        // Each change of it is complete in itself, so a panic elsewhere leaves it usable.
        self.dedup.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commit what comes through `queue` until it is closed and empty.
pub fn run(shared: &Shared, mut queue: mpsc::Receiver<Message>) {
    let mut batch = Batch::default();
    let mut closers = Vec::new();
    while let Some(first) = queue.blocking_recv() {
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                Message::Write(request) => batch.push(request),
                Message::Close(told) => {
                    queue.close();
                    closers.push(told);
                }
            }
            if batch.ops.len() < STATE_BATCH_MAX {
                next = queue.try_recv().ok();
            }
        }
        batch.commit(shared);
    }
    for told in closers {
        // Whoever asked may have stopped waiting.
        let _ = told.send(());
    }
}

#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    waiters: Vec<(Option<Digest>, oneshot::Sender<Outcome>)>,
}

impl Batch {
    fn push(&mut self, request: Request) {
        self.ops.push(request.op);
        self.waiters.push((request.digest, request.done));
    }

    fn commit(&mut self, shared: &Shared) {
        if self.ops.is_empty() {
            return;
        }
        let outcome = commit_contained(shared.backend.as_ref(), &self.ops).map_err(Arc::new);
        self.count(&shared.counters, outcome.is_ok());
        if let Err(error) = &outcome {
            tracing::warn!(
                path = %shared.path.display(), writes = self.ops.len(),
                error = &**error as &dyn std::error::Error, "state commit failed"
            );
        }
        // Published before anyone is woken: a caller that was told "durable" and writes the same
        // again finds it unchanged.
        {
            let mut dedup = shared.dedup();
            for (op, (digest, _)) in self.ops.iter().zip(&self.waiters) {
                settle(&mut dedup, op, *digest, outcome.is_ok());
            }
        }
        self.ops.clear();
        for (_, done) in self.waiters.drain(..) {
            // Whoever wrote may have stopped waiting.
            let _ = done.send(outcome.clone());
        }
    }

    fn count(&self, counters: &Counters, committed: bool) {
        if !committed {
            count(&counters.commits_failed, 1);
            return;
        }
        let size = u64::try_from(self.ops.len()).unwrap_or(u64::MAX);
        count(&counters.commits, 1);
        count(&counters.writes, size);
        count(&counters.bytes, self.ops.iter().map(Op::bytes).sum());
        counters.batch_largest.fetch_max(size, Ordering::Relaxed);
    }
}

fn settle(dedup: &mut Dedup, op: &Op, digest: Option<Digest>, committed: bool) {
    match op {
        Op::Put { key, .. } => {
            let settled = match digest {
                Some(digest) if committed => Settled::Put(digest),
                _ => Settled::Unknown,
            };
            dedup.settle(key, settled);
        }
        Op::Delete { key } | Op::Quarantine { key } => {
            dedup.settle(key, if committed { Settled::Removed } else { Settled::Unknown });
        }
        Op::DeletePrefix { prefix } => dedup.forget_prefix(prefix),
    }
}

/// Commit; a panic of the storage engine is this batch's failure, not the thread's end.
fn commit_contained(backend: &dyn Backend, ops: &[Op]) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(|| backend.commit(ops)))
        .unwrap_or_else(|panic| Err(BackendError::Panicked { message: panic_text(&*panic) }))
}

/// The text of a caught panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").chars().take(512).collect()
}
