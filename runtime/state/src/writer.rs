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
//! Writes queued while a commit is in flight share the next one: the more writers, the fewer
//! fsyncs per write, with no added delay for a single one. When none came for a while, what the backend
//! keeps in its journal is moved to where it stays, and then nothing is done any more. The thread ends
//! when the store is closed or its last handle is dropped, after everything queued is committed.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};

use super::backend::{Backend, Op};
use super::dedup::{Dedup, Later, ValueDigest, WriteEnd};
use super::error::BackendError;
use super::queue::{CommitResult, Due, Queue, Request};
use super::stats::{Counters, Stats, count};
use super::writer_pace::Pace;
use ostler_model::clock;
use ostler_model::limits::{STATE_COUNTERS_COMMITS, STATE_QUEUE_MAX};

/// What the handles and the writer thread have in common.
pub struct Shared {
    /// The state file, for messages.
    pub path: PathBuf,
    /// Where records are kept.
    pub backend: Arc<dyn Backend>,
    /// Places in the queue.
    pub room: Semaphore,
    core: Mutex<Core>,
    /// Wakes the thread.
    wake: Condvar,
    /// Wakes what stands for it in a simulation.
    inline: Notify,
    /// What happened so far.
    pub counters: Counters,
    /// Durable writes known to come, see [`super::StateStore::expect`].
    pub expected: AtomicUsize,
    /// How long no write comes before the backend settles.
    settle_idle: Duration,
    /// Wakes whoever waits for the end of a batch, in the order in which they began to wait: a `watch`
    /// wakes them in any order, and no simulation would play the same twice.
    pub ended: Notify,
}

/// How far writes are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Some wait in the queue.
    Waiting,
    /// None waits, and some are being committed.
    Committing,
    /// All are durable.
    Durable,
    /// A commit failed since, so their places may have changed.
    Unknown,
}

/// A point in the order of writes, see [`super::StateStore::mark`].
#[derive(Clone, Copy, Debug)]
pub struct WriteMark {
    /// Ticket of the next write.
    ticket: u64,
    /// Commits failed by then.
    failed: u64,
}

/// What changes together: the order in the queue is the order in which keys became busy.
pub struct Core {
    /// What is known to be durable.
    pub dedup: Dedup,
    /// What is on its way.
    pub queue: Queue,
    /// Ticket of the first write of the batch that is being committed.
    committing: Option<u64>,
    /// Commits that failed.
    failed: u64,
    /// The thread waits to be woken.
    asleep: bool,
    ended: bool,
    closers: Vec<oneshot::Sender<()>>,
}

impl Shared {
    /// Over a backend, knowing what `dedup` was warmed with and what was counted before.
    #[must_use]
    pub fn new(
        path: PathBuf,
        backend: Arc<dyn Backend>,
        dedup: Dedup,
        before: Stats,
        settle_idle: Duration,
    ) -> Self {
        let core = Core {
            dedup,
            queue: Queue::default(),
            committing: None,
            failed: 0,
            asleep: false,
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
            counters: Counters::new(before),
            expected: AtomicUsize::new(0),
            settle_idle,
            ended: Notify::new(),
        }
    }

    /// Held for microseconds, never across a wait or a commit.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        // Each change of it is complete in itself, so a panic elsewhere leaves it usable.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let the thread look at the queue, if it is not about to do so anyway.
    pub fn wake(&self, core: &mut Core) {
        // The thread sets it again before it sleeps; a wake-up costs a system call.
        if std::mem::take(&mut core.asleep) {
            self.wake.notify_one();
            self.inline.notify_one();
        }
    }

    /// Take no more writes; `told` hears when everything queued is committed.
    pub fn close(&self, told: Option<oneshot::Sender<()>>) {
        self.room.close();
        let mut core = self.core();
        core.queue.close();
        if !core.ended {
            core.closers.extend(told);
        }
        self.wake(&mut core);
    }

    /// Wait for what is to be done next.
    fn next(&self, pace: Pace, batch: &mut Vec<Request>) -> Next {
        let mut core = self.core();
        loop {
            let (limit, idle) = match core.take_due(pace.lag(), batch) {
                Taken::Some(taken) => {
                    drop(core);
                    self.room.add_permits(taken);
                    return Next::Batch;
                }
                Taken::Ended => return Next::End,
                Taken::Wait(limit) => self.limited(limit, pace),
            };
            core = match limit {
                None => self.wake.wait(core).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.wake.wait_timeout(core, left);
                    let (mut core, ended) = waited.unwrap_or_else(PoisonError::into_inner);
                    if idle && ended.timed_out() && core.queue.is_empty() {
                        core.asleep = false;
                        return Next::Settle;
                    }
                    core
                }
            };
            core.asleep = false;
        }
    }

    /// How long to wait for a write, and whether nothing but the backend is waited for.
    fn limited(&self, limit: Option<Duration>, pace: Pace) -> (Option<Duration>, bool) {
        match limit {
            None if self.backend.unsettled() => (Some(pace.idle(self.settle_idle)), true),
            limit => (limit, false),
        }
    }

    /// Move what is durable to where it stays. Whether it went well.
    fn settle(&self) -> bool {
        let settled = contained(|| self.backend.settle());
        if let Err(error) = &settled {
            tracing::warn!(
                path = %self.path.display(), error = error as &dyn std::error::Error,
                "state journal not moved into the state file; it is tried again"
            );
        }
        settled.is_ok()
    }

    /// As [`run`], on the runtime of one thread of a simulation; `pace` is how long the disk takes.
    pub async fn run_inline(&self, pace: &(dyn Fn() -> Duration + Send + Sync)) {
        let mut batch = Batch::default();
        let mut failed = Pace::default();
        loop {
            let taken = self.core().take_due(failed.lag(), &mut batch.requests);
            let (limit, idle) = match taken {
                Taken::Some(taken) => {
                    self.room.add_permits(taken);
                    clock::sleep(pace()).await;
                    failed.committed(batch.commit(self));
                    continue;
                }
                Taken::Ended => break,
                Taken::Wait(limit) => self.limited(limit, failed),
            };
            let limit = limit.unwrap_or(Duration::MAX);
            let woken = clock::timeout(limit, self.inline.notified()).await;
            self.core().asleep = false;
            if idle && woken.is_none() && self.core().queue.is_empty() {
                clock::sleep(pace()).await;
                failed.settled(self.settle());
            }
        }
        self.end();
    }

    fn end(&self) {
        save_counters(self);
        self.settle();
        let mut core = self.core();
        core.ended = true;
        for told in core.closers.drain(..) {
            // An error means that the asker has stopped waiting.
            let _ = told.send(());
        }
    }
}

/// What the thread does next.
enum Next {
    Batch,
    Settle,
    End,
}

/// What there is of a batch.
enum Taken {
    /// So many writes.
    Some(usize),
    /// There is none any more.
    Ended,
    /// None yet: wait to be woken, or at most so long.
    Wait(Option<Duration>),
}

impl Core {
    /// Take the batch that is due, or go to sleep.
    fn take_due(&mut self, lag: Duration, batch: &mut Vec<Request>) -> Taken {
        let limit = match self.queue.due(lag) {
            Due::Now => {
                self.committing = Some(self.queue.first());
                return Taken::Some(self.queue.take(batch));
            }
            Due::Ended => return Taken::Ended,
            Due::In(left) => Some(left),
            Due::Never => None,
        };
        self.asleep = true;
        Taken::Wait(limit)
    }

    /// The point reached now.
    #[must_use]
    pub fn mark(&self) -> WriteMark {
        WriteMark { ticket: self.queue.next(), failed: self.failed }
    }

    /// How far the writes before `mark` are.
    #[must_use]
    pub fn reach(&self, mark: WriteMark) -> Reach {
        if self.failed != mark.failed {
            // What was put back waits at other tickets than before.
            Reach::Unknown
        } else if self.queue.first() < mark.ticket {
            Reach::Waiting
        } else if self.committing.is_some_and(|first| first < mark.ticket) {
            Reach::Committing
        } else {
            Reach::Durable
        }
    }

    /// Put `record` in the place of the write of `key` that may lag and still waits, if that is the
    /// newest of its key.
    pub fn replace_waiting(&mut self, key: &[u8], record: &[u8], digest: ValueDigest) -> bool {
        let Some(Later { ticket, digest: waiting }) = self.dedup.later(key) else {
            return false;
        };
        if waiting == digest && self.queue.holds(ticket) {
            return true;
        }
        let replaced = self.queue.replace(ticket, record, digest);
        if replaced {
            self.dedup.replaced(key, Later { ticket, digest });
        }
        replaced
    }
}

/// Commit what comes until the store is closed and everything is committed.
pub fn run(shared: &Shared) {
    let mut batch = Batch::default();
    let mut pace = Pace::default();
    loop {
        match shared.next(pace, &mut batch.requests) {
            Next::Batch => pace.committed(batch.commit(shared)),
            Next::Settle => pace.settled(shared.settle()),
            Next::End => break,
        }
    }
    shared.end();
}

#[derive(Default)]
struct Batch {
    requests: Vec<Request>,
    ops: Vec<Op>,
    waiters: Vec<Waiter>,
}

struct Waiter {
    digest: Option<ValueDigest>,
    done: Option<oneshot::Sender<CommitResult>>,
}

impl Batch {
    /// Whether it went well.
    fn commit(&mut self, shared: &Shared) -> bool {
        let mut flushes = Vec::new();
        for Request { op, digest, done } in self.requests.drain(..) {
            match op {
                Some(op) => {
                    self.ops.push(op);
                    self.waiters.push(Waiter { digest, done });
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
        // Published before anyone is woken: a caller that was told "durable" and writes the same
        // again finds it unchanged.
        self.finish(shared, outcome.is_ok());
        self.ops.clear();
        let dones = self.waiters.drain(..).filter_map(|waiter| waiter.done).chain(flushes);
        for done in dones {
            // An error means that the writer of the value has stopped waiting.
            let _ = done.send(outcome.clone());
        }
        outcome.is_ok()
    }

    fn write(&mut self, shared: &Shared) -> CommitResult {
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
        let outcome = commit_contained(shared.backend.as_ref(), &self.ops).map_err(Arc::new);
        self.ops.truncate(size);
        match outcome {
            Ok(()) => counters.committed(size, bytes),
            Err(_) => count(&counters.commits_failed, 1),
        }
        outcome
    }

    fn finish(&mut self, shared: &Shared, committed: bool) {
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

    /// Queue again what may lag and has nothing newer behind it. How many, and how many there was
    /// no room for.
    fn put_back(&mut self, shared: &Shared, core: &mut Core) -> (u64, u64) {
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
        // Newest first: each goes before the one put back before it.
        for (op, digest) in late {
            let Ok(permit) = shared.room.try_acquire() else {
                lost += 1;
                continue;
            };
            permit.forget();
            let request = Request { op: Some(op.clone()), digest: Some(digest), done: None };
            let ticket = core.queue.put_back(request);
            if let Op::Put { key, .. } = op {
                core.dedup.begin_later(key, Later { ticket, digest });
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

/// Leave the counts for `ostler state stats`; not worth an error.
fn save_counters(shared: &Shared) {
    if !shared.counters.worth_saving() {
        return;
    }
    let Some(op) = shared.counters.record() else { return };
    if let Err(error) = commit_contained(shared.backend.as_ref(), &[op]) {
        tracing::debug!(path = %shared.path.display(), %error, "state counters not saved");
    }
}

/// Commit; a panic of the storage engine is this batch's failure, not the thread's end.
fn commit_contained(backend: &dyn Backend, ops: &[Op]) -> Result<(), BackendError> {
    contained(|| backend.commit(ops))
}

fn contained(work: impl FnOnce() -> Result<(), BackendError>) -> Result<(), BackendError> {
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::ErrorBackend;

    fn put(value: u8, done: Option<oneshot::Sender<CommitResult>>) -> Request {
        let op = Op::Put { key: b"k".as_slice().into(), value: [value].into() };
        Request { op: Some(op), digest: Some(ValueDigest::of(&[value])), done }
    }

    #[test]
    fn a_write_that_may_lag_is_not_put_back_before_a_newer_one_of_its_key() {
        let shared = Shared::new(
            PathBuf::from("(test)"),
            ErrorBackend::failing(),
            Dedup::default(),
            Stats::default(),
            Duration::MAX,
        );
        let mut batch = Batch::default();
        {
            let mut core = shared.core();
            let ticket = core.queue.push(put(1, None));
            core.dedup.begin_later(b"k", Later { ticket, digest: ValueDigest::of(&[1]) });
        }
        shared.core().take_due(Duration::ZERO, &mut batch.requests);
        {
            // Queued while the first is being committed.
            let mut core = shared.core();
            core.queue.push(put(2, Some(oneshot::channel().0)));
            core.dedup.begin(b"k");
        }
        assert!(!batch.commit(&shared));
        // Were it put back, a third value would take its place in the queue and be overwritten by
        // the second.
        let mut core = shared.core();
        assert_eq!(core.queue.len(), 1);
        assert!(!core.replace_waiting(b"k", &[3], ValueDigest::of(&[3])));
    }
}
