//! The one thread that commits.
//!
//! ```text
//! put, put_later, delete, destroy ─► queue (STATE_QUEUE_MAX) ─► [ oldest … at most STATE_BATCH_MAX ]
//!                                        ▲                         │ one transaction
//!                                        │         ┌───────────────┴───────────────┐
//!                                        │         ▼ durable                       ▼ failed
//!                                        │  publish digests, wake waiters   forget digests, fail
//!                                        │                                  these waiters
//!                                        └── what may lag and nothing newer replaces ◄──┘
//! ```
//!
//! Writes that are queued while a commit is in flight share the next one: the more writers, the
//! fewer fsyncs per write, with no added delay for a single one. When no write came for a while,
//! the content of the backend's journal is moved to its final place, and then nothing is done any
//! more. The thread ends when the store is closed or its last handle is dropped, after everything
//! queued is committed.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::backend::{Backend, Op};
use super::dedup::{Dedup, LaterWrite, ValueDigest, WriteEnd};
use super::error::BackendError;
use super::queue::{BatchDue, CommitResult, WriteQueue, WriteRequest};
use super::stats::{Stats, StoreCounters, count};
use super::writer_pace::RetryPace;
use ostler_model::clock;
use ostler_model::limits::{STATE_COUNTERS_COMMITS, STATE_QUEUE_MAX};

/// The state that the handles and the writer thread share.
pub struct WriterShared {
    /// The path of the state file, for messages.
    pub path: PathBuf,
    /// The place where records are kept.
    pub backend: Arc<dyn Backend>,
    /// The free places in the queue.
    pub room: Semaphore,
    core: Mutex<WriterCore>,
    /// Wakes the writer thread.
    wake: Condvar,
    /// Wakes the task that replaces the thread in a simulation.
    inline: Notify,
    /// The counts so far.
    pub counters: StoreCounters,
    /// The number of announced durable writes, see [`super::StateStore::expect`].
    pub expected: AtomicUsize,
    /// How long no write must come before the backend settles.
    settle_idle: Duration,
    /// Wakes whoever waits for the end of a batch, in the order in which they began to wait. A
    /// `watch` wakes them in any order, and then no simulation could be repeated exactly.
    pub ended: Notify,
}

/// How far writes have come on their way to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProgress {
    /// Some of them wait in the queue.
    Waiting,
    /// None of them waits, and some are being committed.
    Committing,
    /// All of them are durable.
    Durable,
    /// A commit failed since, so their places may have changed.
    Unknown,
}

/// A point in the order of writes, see [`super::StateStore::mark`].
#[derive(Clone, Copy, Debug)]
pub struct WriteMark {
    /// The ticket of the next write at that point.
    ticket: u64,
    /// The number of failed commits at that point.
    failed: u64,
}

/// The state that changes together: the order in the queue is the order in which keys became busy.
pub struct WriterCore {
    /// The digests of what is known to be durable.
    pub dedup: Dedup,
    /// The writes on their way.
    pub queue: WriteQueue,
    /// The ticket of the first write of the batch that is being committed.
    committing: Option<u64>,
    /// The number of commits that failed.
    failed: u64,
    /// Whether the thread waits to be woken.
    asleep: bool,
    /// Whether somebody wakes it soon, see [`WriterShared::wake_soon`].
    wakes_soon: bool,
    ended: bool,
    closers: Vec<oneshot::Sender<()>>,
}

impl WriterShared {
    /// The shared state for a backend, with the warmed `dedup` and the counts from before.
    #[must_use]
    pub fn new(
        path: PathBuf,
        backend: Arc<dyn Backend>,
        dedup: Dedup,
        before: Stats,
        settle_idle: Duration,
    ) -> Self {
        let core = WriterCore {
            dedup,
            queue: WriteQueue::default(),
            committing: None,
            failed: 0,
            asleep: false,
            wakes_soon: false,
            ended: false,
            closers: Vec::new(),
        };
        Self {
            path,
            backend,
            room: Semaphore::new(STATE_QUEUE_MAX),
            core: Mutex::new(core),
            wake: Condvar::new(),
            inline: Notify::new(),
            counters: StoreCounters::new(before),
            expected: AtomicUsize::new(0),
            settle_idle,
            ended: Notify::new(),
        }
    }

    /// Lock the core. The lock is held for microseconds, never across a wait or a commit.
    pub fn core(&self) -> MutexGuard<'_, WriterCore> {
        // Each change of the core is complete in itself, so a panic elsewhere leaves it usable.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wake the thread to check the queue, unless it is about to do so anyway.
    pub fn wake(&self, core: &mut WriterCore) {
        // The thread sets the flag again before it sleeps. A wake-up costs a system call.
        if std::mem::take(&mut core.asleep) {
            self.wake.notify_one();
            self.inline.notify_one();
        }
    }

    /// Wake the thread for a write that may lag. `waits`: another one waited before it. Until that may lag
    /// no more the thread sleeps, and takes both.
    pub fn wake_to_lag(&self, core: &mut WriterCore, waits: bool) {
        if !waits || core.queue.is_full_batch() {
            self.wake(core);
        }
    }

    /// Wake the thread when what is ready on this runtime has had its turn. What that writes goes in one
    /// commit, where the thread would have woken for each write. Only one thread decides, so this waits
    /// for nobody else. The caller begins the wake without the lock.
    pub fn wake_soon(self: &Arc<Self>, core: &mut WriterCore) -> Option<SoonWake> {
        let runtime = Handle::try_current().ok();
        let one_thread = |of: &Handle| of.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let Some(runtime) = runtime.filter(one_thread) else {
            self.wake(core);
            return None;
        };
        let first = core.asleep && !std::mem::replace(&mut core.wakes_soon, true);
        first.then(|| SoonWake { wake: WakeAtDrop(Arc::clone(self)), runtime })
    }

    /// Accept no more writes. `told` is signalled when everything queued is committed.
    pub fn close(&self, told: Option<oneshot::Sender<()>>) {
        self.room.close();
        let mut core = self.core();
        core.queue.close();
        if !core.ended {
            core.closers.extend(told);
        }
        self.wake(&mut core);
    }

    /// Wait for the next step.
    fn wait_next_step(&self, pace: RetryPace, batch: &mut Vec<WriteRequest>) -> WriterStep {
        let mut core = self.core();
        loop {
            let (limit, idle) = match core.take_due(pace.lag_limit(), batch) {
                DueWrites::Some(taken) => {
                    drop(core);
                    self.room.add_permits(taken);
                    return WriterStep::Batch;
                }
                DueWrites::Ended => return WriterStep::End,
                DueWrites::Wait(limit) => self.wait_limit(limit, pace),
            };
            core = match limit {
                None => self.wake.wait(core).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.wake.wait_timeout(core, left);
                    let (mut core, ended) = waited.unwrap_or_else(PoisonError::into_inner);
                    if idle && ended.timed_out() && core.queue.is_empty() {
                        core.asleep = false;
                        return WriterStep::Settle;
                    }
                    core
                }
            };
            core.asleep = false;
        }
    }

    /// How long to wait for a write, and whether only the backend's settling is waited for.
    fn wait_limit(&self, limit: Option<Duration>, pace: RetryPace) -> (Option<Duration>, bool) {
        match limit {
            None if self.backend.has_unsettled() => (Some(pace.idle_limit(self.settle_idle)), true),
            limit => (limit, false),
        }
    }

    /// Move the durable content of the journal to its final place. Returns whether that succeeded.
    fn settle_backend(&self) -> bool {
        let settled = catch_panic(|| self.backend.settle());
        if let Err(error) = &settled {
            tracing::warn!(
                path = %self.path.display(), error = error as &dyn std::error::Error,
                "state journal not moved into the state file; it is tried again"
            );
        }
        settled.is_ok()
    }

    /// The same as [`run`], on the runtime of one thread of a simulation. `pace` says how long the
    /// disk takes.
    pub async fn run_inline(&self, pace: &(dyn Fn() -> Duration + Send + Sync)) {
        let mut batch = WriteBatch::default();
        let mut failed = RetryPace::default();
        loop {
            let taken = self.core().take_due(failed.lag_limit(), &mut batch.requests);
            let (limit, idle) = match taken {
                DueWrites::Some(taken) => {
                    self.room.add_permits(taken);
                    pause(pace()).await;
                    failed.note_commit(batch.commit(self));
                    continue;
                }
                DueWrites::Ended => break,
                DueWrites::Wait(limit) => self.wait_limit(limit, failed),
            };
            let limit = limit.unwrap_or(Duration::MAX);
            let woken = clock::timeout(limit, self.inline.notified()).await;
            self.core().asleep = false;
            if idle && woken.is_none() && self.core().queue.is_empty() {
                pause(pace()).await;
                failed.note_settle(self.settle_backend());
            }
        }
        self.finish_writing();
    }

    fn finish_writing(&self) {
        save_counters(self);
        self.settle_backend();
        let mut core = self.core();
        core.ended = true;
        for told in core.closers.drain(..) {
            // An error means that the asker has stopped waiting.
            let _ = told.send(());
        }
    }
}

/// A wake of the thread that is to come.
pub struct SoonWake {
    wake: WakeAtDrop,
    runtime: Handle,
}

impl SoonWake {
    /// Leave the wake to the runtime. A runtime that ends wakes the thread too.
    pub fn begin(self) {
        let Self { wake, runtime } = self;
        drop(runtime.spawn(async move { drop(wake) }));
    }
}

struct WakeAtDrop(Arc<WriterShared>);

impl Drop for WakeAtDrop {
    fn drop(&mut self) {
        let mut core = self.0.core();
        core.wakes_soon = false;
        self.0.wake(&mut core);
    }
}

/// Wait as long as the disk takes; where there is none, only let the others have their turn.
async fn pause(pace: Duration) {
    if pace == NO_DISK {
        tokio::task::yield_now().await;
    } else {
        clock::sleep(pace).await;
    }
}

/// The pace of a store that has no disk.
pub(super) const NO_DISK: Duration = Duration::MAX;

/// The next step of the writer thread.
enum WriterStep {
    Batch,
    Settle,
    End,
}

/// The state of the next batch.
enum DueWrites {
    /// The batch has this many writes.
    Some(usize),
    /// There is no batch any more.
    Ended,
    /// There is no batch yet: wait to be woken, or at most this long.
    Wait(Option<Duration>),
}

impl WriterCore {
    /// Take the batch that is due, or go to sleep.
    fn take_due(&mut self, lag: Duration, batch: &mut Vec<WriteRequest>) -> DueWrites {
        let limit = match self.queue.batch_due(lag) {
            BatchDue::Now => {
                self.committing = Some(self.queue.first_ticket());
                return DueWrites::Some(self.queue.take_batch(batch));
            }
            BatchDue::Ended => return DueWrites::Ended,
            BatchDue::In(left) => Some(left),
            BatchDue::Never => None,
        };
        self.asleep = true;
        DueWrites::Wait(limit)
    }

    /// The present point in the order of writes.
    #[must_use]
    pub fn mark(&self) -> WriteMark {
        WriteMark { ticket: self.queue.next_ticket(), failed: self.failed }
    }

    /// How far the writes before `mark` have come.
    #[must_use]
    pub fn write_progress(&self, mark: WriteMark) -> WriteProgress {
        if self.failed != mark.failed {
            // Writes that were put back wait at other tickets than before.
            WriteProgress::Unknown
        } else if self.queue.first_ticket() < mark.ticket {
            WriteProgress::Waiting
        } else if self.committing.is_some_and(|first| first < mark.ticket) {
            WriteProgress::Committing
        } else {
            WriteProgress::Durable
        }
    }

    /// Put `record` in the place of the lagging write of `key` that still waits, if that is the
    /// newest of its key.
    pub fn replace_waiting(&mut self, key: &[u8], record: &[u8], digest: ValueDigest) -> bool {
        let Some(LaterWrite { ticket, digest: waiting }) = self.dedup.later_write(key) else {
            return false;
        };
        if waiting == digest && self.queue.is_waiting(ticket) {
            return true;
        }
        let replaced = self.queue.replace(ticket, record, digest);
        if replaced {
            self.dedup.update_later(key, LaterWrite { ticket, digest });
        }
        replaced
    }
}

/// Commit what comes, until the store is closed and everything is committed.
pub fn run(shared: &WriterShared) {
    let mut batch = WriteBatch::default();
    let mut pace = RetryPace::default();
    loop {
        match shared.wait_next_step(pace, &mut batch.requests) {
            WriterStep::Batch => pace.note_commit(batch.commit(shared)),
            WriterStep::Settle => pace.note_settle(shared.settle_backend()),
            WriterStep::End => break,
        }
    }
    shared.finish_writing();
}

#[derive(Default)]
struct WriteBatch {
    requests: Vec<WriteRequest>,
    ops: Vec<Op>,
    waiters: Vec<CommitWaiter>,
}

struct CommitWaiter {
    digest: Option<ValueDigest>,
    done: Option<oneshot::Sender<CommitResult>>,
}

impl WriteBatch {
    /// Commit the batch. Returns whether that succeeded.
    fn commit(&mut self, shared: &WriterShared) -> bool {
        let mut flushes = Vec::new();
        for WriteRequest { op, digest, done } in self.requests.drain(..) {
            match op {
                Some(op) => {
                    self.ops.push(op);
                    self.waiters.push(CommitWaiter { digest, done });
                }
                None => flushes.extend(done),
            }
        }
        let outcome = self.write(shared);
        if let Err(error) = &outcome {
            tracing::warn!(
                path = %shared.path.display(), writes = self.waiters.len(),
                error = &**error as &dyn std::error::Error, "state commit failed"
            );
        }
        // This is published before anyone is woken: a caller that is told "durable" and writes the
        // same again finds it unchanged.
        self.finish(shared, outcome.is_ok());
        self.ops.clear();
        let dones = self.waiters.drain(..).filter_map(|waiter| waiter.done).chain(flushes);
        for done in dones {
            // An error means that the writer of the value has stopped waiting.
            let _ = done.send(outcome.clone());
        }
        outcome.is_ok()
    }

    fn write(&mut self, shared: &WriterShared) -> CommitResult {
        if self.ops.is_empty() {
            return Ok(());
        }
        let (counters, size) = (&shared.counters, self.ops.len());
        let bytes = self.ops.iter().map(Op::bytes).sum();
        if counters.commits.load(Ordering::Relaxed) % STATE_COUNTERS_COMMITS
            == STATE_COUNTERS_COMMITS - 1
        {
            self.ops.extend(counters.record());
        }
        let outcome = commit_caught(shared.backend.as_ref(), &self.ops).map_err(Arc::new);
        self.ops.truncate(size);
        match outcome {
            Ok(()) => counters.count_commit(size, bytes),
            Err(_) => count(&counters.commits_failed, 1),
        }
        outcome
    }

    fn finish(&mut self, shared: &WriterShared, committed: bool) {
        let mut core = shared.core();
        for (op, waiter) in self.ops.iter().zip(&self.waiters) {
            finish(&mut core.dedup, op, waiter.digest, committed);
        }
        core.committing = None;
        if committed {
            drop(core);
        } else {
            core.failed = core.failed.saturating_add(1);
            let (again, lost) = self.put_back(shared, &mut core);
            drop(core);
            count(&shared.counters.later_retried, again);
            count(&shared.counters.later_lost, lost);
            if lost > 0 {
                tracing::warn!(
                    path = %shared.path.display(), writes = lost,
                    "state writes that may lag given up: too many wait; the next ones are written"
                );
            }
        }
        shared.ended.notify_waiters();
    }

    /// Queue lagging writes again that have nothing newer behind them. Returns how many there are,
    /// and for how many there was no room.
    fn put_back(&mut self, shared: &WriterShared, core: &mut WriterCore) -> (u64, u64) {
        let (mut again, mut lost) = (0, 0);
        let mut newer: HashSet<&[u8]> = HashSet::new();
        let mut gone: Vec<&[u8]> = Vec::new();
        let mut late = Vec::new();
        for (op, waiter) in self.ops.iter().zip(&self.waiters).rev() {
            match (op, waiter.digest) {
                (Op::Put { key, .. }, Some(digest)) if waiter.done.is_none() => {
                    let newest = !newer.contains(&**key)
                        && !gone.iter().any(|prefix| key.starts_with(prefix))
                        && !core.dedup.is_busy(key);
                    if newest {
                        late.push((op, digest));
                    }
                    newer.insert(key);
                }
                (Op::DeletePrefix { prefix }, _) => gone.push(prefix),
                (Op::Put { key, .. } | Op::Delete { key } | Op::Quarantine { key }, _) => {
                    newer.insert(key);
                }
            }
        }
        // The newest goes first, because each is put before the one put back before it.
        for (op, digest) in late {
            let Ok(permit) = shared.room.try_acquire() else {
                lost += 1;
                continue;
            };
            permit.forget();
            let request = WriteRequest { op: Some(op.clone()), digest: Some(digest), done: None };
            let ticket = core.queue.put_back(request);
            if let Op::Put { key, .. } = op {
                core.dedup.begin_later_write(key, LaterWrite { ticket, digest });
            }
            again += 1;
        }
        (again, lost)
    }
}

fn finish(dedup: &mut Dedup, op: &Op, digest: Option<ValueDigest>, committed: bool) {
    match op {
        Op::Put { key, .. } => {
            let ended = match digest {
                Some(digest) if committed => WriteEnd::Put(digest),
                _ => WriteEnd::Unknown,
            };
            dedup.finish(key, ended);
        }
        Op::Delete { key } | Op::Quarantine { key } => {
            dedup.finish(key, if committed { WriteEnd::Removed } else { WriteEnd::Unknown });
        }
        Op::DeletePrefix { prefix } => dedup.forget_prefix(prefix),
    }
}

/// Write the counts for `ostler state stats`. A failure is not worth an error.
fn save_counters(shared: &WriterShared) {
    if !shared.counters.has_counts() {
        return;
    }
    let Some(op) = shared.counters.record() else { return };
    if let Err(error) = commit_caught(shared.backend.as_ref(), &[op]) {
        tracing::debug!(path = %shared.path.display(), %error, "state counters not saved");
    }
}

/// Commit. A panic of the storage engine fails only this batch and does not end the thread.
fn commit_caught(backend: &dyn Backend, ops: &[Op]) -> Result<(), BackendError> {
    catch_panic(|| backend.commit(ops))
}

fn catch_panic(work: impl FnOnce() -> Result<(), BackendError>) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(work))
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

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
