//! The handle that everybody uses. Each of its rules is kept by a test:
//!
//! * A write is acknowledged only after its commit. A failed commit fails exactly its waiters, and
//!   makes the store forget what it knew of their keys, so that the next write is carried out.
//! * A key with a write on its way is never taken as unchanged.
//! * Writes of one key keep their order; a durable write takes everything queued before it along.
//! * `destroy_alloc` beats every later persist of that allocation ([`Put::Destroyed`]).
//! * One bad record does not stop the agent: it is moved to a quarantine table and reported. A bad
//!   file is never deleted or changed: it is read through an overlay before it is opened.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{SemaphorePermit, oneshot};

use super::backend::{Backend, Op};
use super::codec::{self, CodecError};
use super::dedup::{LaterWrite, ValueDigest, WriteDecision};
use super::disk_store::DiskBackend;
use super::error::StateError;
use super::inspect::Inspection;
use super::keys::KeyPrefix;
use super::load::{self, OpenReport, StoreContent};
use super::mem_store::MemBackend;
use super::queue::{CommitResult, WriteRequest};
use super::records::{KeyFor, RecordKey};
use super::redb_store::FileCheck;
use super::stats::{Stats, count};
use super::writer::{self, WriteMark, WriteProgress, WriterCore, WriterShared};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::limits::STATE_SETTLE_IDLE;

/// Encoding buffers above this number of bytes are freed, so that one large value does not hold
/// memory on every thread.
const SCRATCH_KEEP: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { key: Vec::new(), record: Vec::new() }) };
}

#[derive(Default)]
struct Scratch {
    key: Vec<u8>,
    record: Vec<u8>,
}

/// The result of a successful put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The value is durable now.
    Written,
    /// The value was durable already, and nothing was done.
    Unchanged,
    /// The write is on its way and will be durable soon, as [`StateStore::put_later`] promises.
    Queued,
    /// The value was dropped, because the allocation is destroyed.
    Destroyed,
}

/// The options of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Whether writes of durable content are left out. It is off only to measure how much
    /// that saves.
    pub deduplicate: bool,
    /// How long no write must come before the content of the journal is moved into the state file.
    pub settle_idle: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { deduplicate: true, settle_idle: STATE_SETTLE_IDLE }
    }
}

/// A handle of the agent's state. Clones are the same store.
///
/// Dropping the last handle commits what is queued before it returns, which blocks for a commit or
/// two; [`StateStore::close`] does the same without blocking.
#[derive(Clone)]
pub struct StateStore {
    inner: Arc<StateStoreInner>,
}

struct StateStoreInner {
    shared: Arc<WriterShared>,
    options: StoreOptions,
    thread: Option<JoinHandle<()>>,
    report: OpenReport,
}

impl Drop for StateStoreInner {
    fn drop(&mut self) {
        self.shared.close(None);
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics. If it has ended there is nothing left to commit.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for StateStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StateStore").field("path", &self.inner.shared.path).finish_non_exhaustive()
    }
}

/// Examine a file that is about to be opened. Returns whether the engine finds it whole, and
/// whether it falls back to an older commit for that.
fn check_file(path: &Path) -> Result<(FileCheck, bool), StateError> {
    if !path.exists() {
        return Ok((FileCheck::No, false));
    }
    match Inspection::open(path) {
        Ok(looked) if looked.was_repaired() => Ok((FileCheck::No, true)),
        // A crash can leave a commit that was not acknowledged.
        Ok(looked) => Ok((FileCheck::Whole, looked.has_fallen_back() && !looked.was_compared())),
        // The file is too large to be held in memory, so it is examined while it is opened.
        Err(error) if error.is_too_large() => Ok((FileCheck::No, false)),
        Err(error) => Err(error),
    }
}

/// A function that says how long a commit takes.
pub type CommitPace = Box<dyn Fn() -> Duration + Send + Sync>;

pub(super) enum PreparedPut {
    Done(PutOutcome),
    Write { key: Box<[u8]>, record: Box<[u8]>, digest: ValueDigest },
}

/// The receiver of a commit's result, or the outcome of a put that needs no commit.
pub(super) type QueuedWrite = Result<oneshot::Receiver<CommitResult>, PutOutcome>;

impl StateStore {
    /// Open the state file at `path`, or create it. Every record is checked; damaged ones are
    /// quarantined and reported by [`StateStore::opened`]. This blocks, so call it from a thread
    /// that may block.
    ///
    /// # Errors
    /// When the file as a whole cannot be used; it is then left as it is.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Self::open_with(path, StoreOptions::default())
    }

    /// The same as [`StateStore::open`], with options.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub fn open_with(path: &Path, options: StoreOptions) -> Result<Self, StateError> {
        // This does not change a byte of the file, so that a refused file stays as it is.
        let (checked, repaired) = check_file(path)?;
        let backend = DiskBackend::open_checked(path, checked)
            .map_err(|error| StateError::from_open_error(path.to_owned(), error))?;
        let file = OpenReport {
            repaired: repaired || backend.was_repaired(),
            age: backend.age(),
            journal_aside: backend.moved_aside_path().map(Path::to_owned),
            foreign_journal: backend.has_foreign_journal(),
            ..OpenReport::default()
        };
        Self::start(path, Arc::new(backend), file, options, None)
    }

    /// A store in memory, which is gone with its last handle.
    ///
    /// # Errors
    /// When the writer thread cannot be started.
    pub fn in_memory() -> Result<Self, StateError> {
        Self::with_backend(Path::new("(memory)"), Arc::new(MemBackend::default()))
    }

    /// A store in memory whose writer is a task of the present runtime, which has to live as long as
    /// the store. A commit in memory takes no longer than waking a thread for it.
    ///
    /// # Errors
    /// None in memory.
    pub fn in_memory_of_runtime() -> Result<Self, StateError> {
        let backend = Arc::new(MemBackend::default());
        Self::open_simulated(Path::new("(memory)"), backend, Box::new(|| writer::NO_DISK))
    }

    /// A store over any backend. `path` is only for messages.
    ///
    /// # Errors
    /// When the backend's content cannot be read or the writer thread cannot be started.
    pub fn with_backend(path: &Path, backend: Arc<dyn Backend>) -> Result<Self, StateError> {
        Self::with_backend_and(path, backend, StoreOptions::default())
    }

    /// The same as [`StateStore::with_backend`], with options.
    ///
    /// # Errors
    /// As [`StateStore::with_backend`].
    pub fn with_backend_and(
        path: &Path,
        backend: Arc<dyn Backend>,
        options: StoreOptions,
    ) -> Result<Self, StateError> {
        Self::start(path, backend, OpenReport::default(), options, None)
    }

    /// A store over any backend, without a thread: the writer is a task of a simulation's runtime
    /// of one thread. What is not committed when the runtime ends is lost, as in a crash. `pace`
    /// says how long the disk takes for a commit.
    ///
    /// # Errors
    /// When the backend's content cannot be read.
    pub fn open_simulated(
        path: &Path,
        backend: Arc<dyn Backend>,
        pace: CommitPace,
    ) -> Result<Self, StateError> {
        let (file, options) = (OpenReport::default(), StoreOptions::default());
        Self::start(path, backend, file, options, Some(pace))
    }

    fn start(
        path: &Path,
        backend: Arc<dyn Backend>,
        file: OpenReport,
        options: StoreOptions,
        inline: Option<CommitPace>,
    ) -> Result<Self, StateError> {
        let StoreContent { dedup, report, counted } = load::load(path, backend.as_ref())?;
        let OpenReport { records, quarantined, in_quarantine, migrated, .. } = report;
        let report = OpenReport { records, quarantined, in_quarantine, migrated, ..file };
        if report.repaired {
            tracing::warn!(path = %path.display(), "state file was inconsistent and has been repaired");
        }
        let shared = Arc::new(WriterShared::new(
            path.to_owned(),
            backend,
            dedup,
            counted,
            options.settle_idle,
        ));
        if let Some(pace) = inline {
            let writer = Arc::clone(&shared);
            drop(tokio::spawn(async move { writer.run_inline(&*pace).await }));
            let inner = StateStoreInner { shared, options, thread: None, report };
            return Ok(Self { inner: Arc::new(inner) });
        }
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ostler-state".to_owned())
            .spawn(move || writer::run(&for_thread))
            .map_err(|source| StateError::Thread { source })?;
        let inner = StateStoreInner { shared, options, thread: Some(thread), report };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Make `value` durable under `key`. This returns when it is durable, or at once if it was
    /// already, which costs an encoding and a comparison and nothing else.
    ///
    /// It waits while the queue is full. If the future is dropped early, the write may or may not
    /// take place.
    ///
    /// # Errors
    /// When the value cannot be encoded, the commit failed (the write may be tried again), or the
    /// store is closed.
    pub async fn put<V: Serialize + ?Sized>(
        &self,
        key: &impl KeyFor<V>,
        value: &V,
    ) -> Result<PutOutcome, StateError> {
        let put = match self.prepare(key, value)? {
            PreparedPut::Done(put) => put,
            PreparedPut::Write { key: bytes, record, digest } => {
                let op = Op::Put { key: bytes, value: record };
                self.write(op, Some(digest)).await?
            }
        };
        self.count(put);
        Ok(put)
    }

    /// Write `value` under `key` soon. This is for data that may be lost in a crash. It returns
    /// once the write is queued.
    ///
    /// The write is durable with the next durable write that is started after it, whichever its
    /// key, or within [`STATE_LATER_WALL_MAX`]. While it waits, a newer one of the same key takes
    /// its place. Writes of one key keep their order, durable ones included. If the commit fails it
    /// is tried again. [`StateStore::get`] shows the value once it is durable.
    ///
    /// [`STATE_LATER_WALL_MAX`]: ostler_model::limits::STATE_LATER_WALL_MAX
    ///
    /// # Errors
    /// When the value cannot be encoded or the store is closed.
    pub async fn put_later<V: Serialize + ?Sized>(
        &self,
        key: &impl KeyFor<V>,
        value: &V,
    ) -> Result<PutOutcome, StateError> {
        count(&self.inner.shared.counters.later, 1);
        let put = match self.prepare(key, value)? {
            PreparedPut::Done(put) => put,
            PreparedPut::Write { key: bytes, record, digest } => {
                self.write_later(bytes, record, digest).await?
            }
        };
        self.count(put);
        Ok(put)
    }

    /// Wait until everything that is queued now is durable.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn flush(&self) -> Result<(), StateError> {
        let queued = self.push(|_| Ok((None, None))).await?;
        self.wait(queued).await.map(drop)
    }

    /// The present point in the order of writes.
    #[must_use]
    pub fn mark(&self) -> WriteMark {
        self.inner.shared.core().mark()
    }

    /// Wait until everything queued before `mark` is durable. If somebody else asks for a commit
    /// within `linger`, that commit takes it along; only after that one is asked for. So what is
    /// queued after `mark` does not get a commit of its own.
    ///
    /// # Errors
    /// When the commit asked for failed or the store is closed.
    pub async fn wait_durable_to(
        &self,
        mark: WriteMark,
        linger: Duration,
    ) -> Result<(), StateError> {
        let shared = &self.inner.shared;
        let since = Stopwatch::start();
        loop {
            // The waiter is registered before the check, so that no end is missed.
            let changed = shared.ended.notified();
            // The result is bound to a name, because the lock must not be held over the waits.
            let reach = shared.core().write_progress(mark);
            match reach {
                WriteProgress::Durable => return Ok(()),
                WriteProgress::Unknown => return self.flush().await,
                WriteProgress::Committing => changed.await,
                WriteProgress::Waiting => match linger.checked_sub(since.elapsed()) {
                    Some(left) if clock::timeout(left, changed).await.is_some() => {}
                    _ => return self.flush().await,
                },
            }
        }
    }

    /// Remove a record, durably when this returns. Nothing happens if there is none.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn delete(&self, key: &RecordKey) -> Result<(), StateError> {
        let op = Op::Delete { key: key.encode().into() };
        self.write(op, None).await.map(drop)
    }

    /// Remove every record of a group, also those whose writes are still queued, durably when
    /// this returns.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn delete_all(&self, group: &KeyPrefix) -> Result<(), StateError> {
        let op = Op::DeletePrefix { prefix: group.encode().into() };
        self.write(op, None).await.map(drop)
    }

    /// Remove every record of an allocation, durably when this returns. From the call on, writes of
    /// the allocation are dropped ([`Put::Destroyed`]), even if this fails and must be repeated.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn destroy_alloc(&self, id: AllocId) -> Result<(), StateError> {
        self.inner.shared.core().dedup.destroy(id);
        self.delete_all(&KeyPrefix::Alloc(id)).await
    }

    /// Move an unusable record out of the way. It is kept for inspection.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn quarantine(&self, key: &RecordKey) -> Result<(), StateError> {
        let op = Op::Quarantine { key: key.encode().into() };
        self.write(op, None).await.map(drop)
    }

    /// The findings from opening the store.
    #[must_use]
    pub fn open_report(&self) -> &OpenReport {
        &self.inner.report
    }

    /// The counts since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.inner.shared;
        let core = shared.core();
        shared.counters.snapshot(core.queue.len(), core.dedup.len())
    }

    /// Whether all durable data is in its final place, so that nothing more is written without a
    /// new write.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.inner.shared.backend.has_unsettled()
    }

    /// Commit everything queued and accept no more writes. Reads go on. The file is closed when the
    /// last handle is dropped.
    pub async fn close(&self) {
        let (told, done) = oneshot::channel();
        self.inner.shared.close(Some(told));
        // An error means that the writer has ended already, with nothing left in the queue.
        let _ = done.await;
    }

    /// The state that the handles share, for reads.
    pub(super) fn writer_shared(&self) -> &Arc<WriterShared> {
        &self.inner.shared
    }

    pub(super) fn closed_error(&self) -> StateError {
        StateError::Closed { path: self.inner.shared.path.clone() }
    }

    pub(super) fn count(&self, put: PutOutcome) {
        let counters = &self.inner.shared.counters;
        match put {
            PutOutcome::Written | PutOutcome::Queued => {}
            PutOutcome::Unchanged => count(&counters.unchanged, 1),
            PutOutcome::Destroyed => count(&counters.destroyed, 1),
        }
    }

    /// Encode a value and compare it. Only what must be written is copied.
    pub(super) fn prepare<V: Serialize + ?Sized>(
        &self,
        key: &impl KeyFor<V>,
        value: &V,
    ) -> Result<PreparedPut, StateError> {
        let (key, shared) = (key.record_key(), &self.inner.shared);
        count(&shared.counters.puts, 1);
        // The buffer is taken out while in use, so that a value whose serialisation writes state
        // finds a fresh one instead of a borrow error.
        let mut scratch = SCRATCH.take();
        let encoded = codec::encode_unsealed(key.kind(), value, &mut scratch.record);
        let prepared = encoded.map(|()| {
            key.encode_into(&mut scratch.key);
            let digest = ValueDigest::from_unsealed(&scratch.record);
            let decision = shared.core().dedup.decide(&scratch.key, digest);
            match self.settled_outcome(decision) {
                Some(put) => PreparedPut::Done(put),
                None => {
                    codec::seal(&mut scratch.record);
                    let (key, record) = (scratch.key.as_slice(), scratch.record.as_slice());
                    PreparedPut::Write { key: key.into(), record: record.into(), digest }
                }
            }
        });
        if scratch.record.capacity() <= SCRATCH_KEEP {
            SCRATCH.replace(scratch);
        }
        prepared.map_err(|source: CodecError| StateError::Encode { key: key.clone(), source })
    }

    /// The outcome of a put that need not be written; `None` if it must be.
    fn settled_outcome(&self, decision: WriteDecision) -> Option<PutOutcome> {
        match decision {
            WriteDecision::Destroyed => Some(PutOutcome::Destroyed),
            WriteDecision::Unchanged if self.inner.options.deduplicate => {
                Some(PutOutcome::Unchanged)
            }
            WriteDecision::Unchanged | WriteDecision::Write => None,
        }
    }

    /// Queue one change and wait for its commit.
    async fn write(&self, op: Op, digest: Option<ValueDigest>) -> Result<PutOutcome, StateError> {
        let queued = self.queue(op, digest).await?;
        self.wait(queued).await
    }

    /// Queue one change.
    pub(super) async fn queue(
        &self,
        op: Op,
        digest: Option<ValueDigest>,
    ) -> Result<QueuedWrite, StateError> {
        // The decision is made again, because time has passed. It is made under the lock of the
        // queue, so that the order in the queue is the order in which keys became busy.
        self.push(|core| {
            match (&op, digest) {
                (Op::Put { key, .. }, Some(digest)) => {
                    if let Some(put) = self.settled_outcome(core.dedup.decide(key, digest)) {
                        return Err(put);
                    }
                    core.dedup.begin_write(key);
                }
                (Op::Put { key, .. } | Op::Delete { key } | Op::Quarantine { key }, _) => {
                    core.dedup.begin_write(key);
                }
                (Op::DeletePrefix { prefix }, _) => core.dedup.bar_prefix(prefix),
            }
            Ok((Some(op), digest))
        })
        .await
    }

    /// Queue the change that `decide` gives, unless `decide` ends the put.
    async fn push(
        &self,
        decide: impl FnOnce(&mut WriterCore) -> Result<(Option<Op>, Option<ValueDigest>), PutOutcome>,
    ) -> Result<QueuedWrite, StateError> {
        let shared = &self.inner.shared;
        let permit = shared.room.acquire().await.map_err(|_| self.closed_error())?;
        let (done, committed) = oneshot::channel();
        let wake = {
            let mut core = shared.core();
            if core.queue.is_closed() {
                return Err(self.closed_error());
            }
            let (op, digest) = match decide(&mut core) {
                Ok(change) => change,
                Err(put) => return Ok(Err(put)),
            };
            core.queue.push(WriteRequest { op, digest, done: Some(done) });
            permit.forget();
            shared.wake_soon(&mut core)
        };
        wake.into_iter().for_each(writer::SoonWake::begin);
        Ok(Ok(committed))
    }

    /// Wait for the commit of what was queued.
    pub(super) async fn wait(&self, queued: QueuedWrite) -> Result<PutOutcome, StateError> {
        let committed = match queued {
            Ok(committed) => committed,
            Err(put) => return Ok(put),
        };
        match committed.await {
            Ok(Ok(())) => Ok(PutOutcome::Written),
            Ok(Err(source)) => {
                Err(StateError::Commit { path: self.inner.shared.path.clone(), source })
            }
            Err(_) => Err(self.closed_error()),
        }
    }

    async fn write_later(
        &self,
        key: Box<[u8]>,
        record: Box<[u8]>,
        digest: ValueDigest,
    ) -> Result<PutOutcome, StateError> {
        let shared = &self.inner.shared;
        if shared.core().replace_waiting(&key, &record, digest) {
            count(&shared.counters.replaced, 1);
            return Ok(PutOutcome::Queued);
        }
        let permit = shared.room.acquire().await.map_err(|_| self.closed_error())?;
        self.queue_later(permit, key, record, digest)
    }

    /// Queue a write that may lag, in the place that `permit` reserves.
    pub(super) fn queue_later(
        &self,
        permit: SemaphorePermit<'_>,
        key: Box<[u8]>,
        record: Box<[u8]>,
        digest: ValueDigest,
    ) -> Result<PutOutcome, StateError> {
        let shared = &self.inner.shared;
        let mut core = shared.core();
        if core.queue.is_closed() {
            return Err(self.closed_error());
        }
        if let Some(put) = self.settled_outcome(core.dedup.decide(&key, digest)) {
            return Ok(put);
        }
        if core.replace_waiting(&key, &record, digest) {
            count(&shared.counters.replaced, 1);
            return Ok(PutOutcome::Queued);
        }
        let op = Op::Put { key: key.clone(), value: record };
        let waits = core.queue.has_lagging();
        let ticket =
            core.queue.push(WriteRequest { op: Some(op), digest: Some(digest), done: None });
        core.dedup.begin_later_write(&key, LaterWrite { ticket, digest });
        permit.forget();
        shared.wake_to_lag(&mut core, waits);
        Ok(PutOutcome::Queued)
    }
}
