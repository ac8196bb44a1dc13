//! The handle everybody uses. Rules, each kept by a test:
//!
//! * A write is acknowledged only after its commit; a failed commit fails exactly its waiters and
//!   makes the store forget what it knew of their keys, so that the next write is real.
//! * A key with a write on its way is never taken as unchanged.
//! * Writes of one key keep their order; a durable write takes everything queued before it along.
//! * `destroy_alloc` beats every later persist of that allocation ([`Put::Destroyed`]).
//! * One bad record does not stop the agent: it is moved to a quarantine table and reported. A bad
//!   file is never deleted or changed: it is looked at through an overlay before it is opened.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{SemaphorePermit, oneshot};

use super::backend::{Backend, Op};
use super::codec::{self, CodecError};
use super::dedup::{Later, ValueDigest, WriteDecision};
use super::disk_store::DiskBackend;
use super::error::StateError;
use super::inspect::Inspection;
use super::keys::{Key, Prefix};
use super::load::{self, Loaded, OpenReport};
use super::mem_store::MemBackend;
use super::queue::{CommitResult, Request};
use super::redb_store::Checked;
use super::stats::{Stats, count};
use super::writer::{self, Core, Reach, Shared, WriteMark};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::limits::STATE_SETTLE_IDLE;

/// Encoding buffers above this are given back, bytes: one large value must not hold memory on
/// every thread.
const SCRATCH_KEEP: usize = 256 * 1024;

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch { key: Vec::new(), record: Vec::new() }) };
}

#[derive(Default)]
struct Scratch {
    key: Vec<u8>,
    record: Vec<u8>,
}

/// How a put ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Durable now.
    Written,
    /// Was durable already; nothing was done.
    Unchanged,
    /// On its way, durable soon: what [`StateStore::put_later`] is for.
    Queued,
    /// Dropped: the allocation is destroyed.
    Destroyed,
}

/// How a store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Leave out writes of what is durable already. Off only to measure what that saves.
    pub deduplicate: bool,
    /// How long no write comes before what the journal holds is moved into the state file.
    pub settle_idle: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { deduplicate: true, settle_idle: STATE_SETTLE_IDLE }
    }
}

/// A handle on the agent's state. Clones are the same store.
///
/// Dropping the last handle commits what is queued before it returns, which blocks for a commit or
/// two; [`StateStore::close`] does the same without blocking.
#[derive(Clone)]
pub struct StateStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    options: StoreOptions,
    thread: Option<JoinHandle<()>>,
    report: OpenReport,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close(None);
        if let Some(thread) = self.thread.take() {
            // The thread contains its panics; one that ended has nothing left to commit.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for StateStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StateStore").field("path", &self.inner.shared.path).finish_non_exhaustive()
    }
}

/// Look at a file that is about to be opened. Whether the engine finds it whole, and whether it falls
/// back to an older commit for that.
fn look(path: &Path) -> Result<(Checked, bool), StateError> {
    if !path.exists() {
        return Ok((Checked::No, false));
    }
    match Inspection::open(path) {
        Ok(looked) if looked.repaired() => Ok((Checked::No, true)),
        // A crash can leave a commit that was not acknowledged.
        Ok(looked) => Ok((Checked::Whole, looked.fell_back() && !looked.compared())),
        // Too much to be held in memory: looked at while it is opened.
        Err(error) if error.too_large() => Ok((Checked::No, false)),
        Err(error) => Err(error),
    }
}

/// How long a commit takes.
pub type CommitPace = Box<dyn Fn() -> Duration + Send + Sync>;

pub(super) enum Prepared {
    Done(Put),
    Write { key: Box<[u8]>, record: Box<[u8]>, digest: ValueDigest },
}

/// Tells the end of a commit; or how a put ended that needs none.
pub(super) type Queued = Result<oneshot::Receiver<CommitResult>, Put>;

impl StateStore {
    /// Open the state file at `path`, made when there is none. Checks every record; those that are
    /// damaged are quarantined and reported by [`StateStore::opened`]. Blocks: call it from a
    /// thread that may.
    ///
    /// # Errors
    /// When the file as a whole cannot be used; it is then left as it is.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Self::open_with(path, StoreOptions::default())
    }

    /// As [`StateStore::open`], with options.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub fn open_with(path: &Path, options: StoreOptions) -> Result<Self, StateError> {
        // Without a byte of it changed: what is refused stays as it is.
        let (checked, repaired) = look(path)?;
        let backend = DiskBackend::open_checked(path, checked)
            .map_err(|error| StateError::opening(path.to_owned(), error))?;
        let file = OpenReport {
            repaired: repaired || backend.repaired(),
            age: backend.age(),
            journal_aside: backend.aside().map(Path::to_owned),
            foreign_journal: backend.foreign(),
            ..OpenReport::default()
        };
        Self::start(path, Arc::new(backend), file, options, None)
    }

    /// A store that is gone with its last handle.
    ///
    /// # Errors
    /// When the writer thread cannot be started.
    pub fn in_memory() -> Result<Self, StateError> {
        Self::with_backend(Path::new("(memory)"), Arc::new(MemBackend::default()))
    }

    /// Over any backend; `path` is for messages.
    ///
    /// # Errors
    /// When the backend's content cannot be read or the writer thread cannot be started.
    pub fn with_backend(path: &Path, backend: Arc<dyn Backend>) -> Result<Self, StateError> {
        Self::with_backend_and(path, backend, StoreOptions::default())
    }

    /// As [`StateStore::with_backend`], with options.
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

    /// Over any backend, without a thread: the writer is a task of the runtime of one thread, which a
    /// simulation has. What is not committed when the runtime ends is lost, as by a crash. `pace`: how
    /// long the disk takes for a commit.
    ///
    /// # Errors
    /// When the backend's content cannot be read.
    pub fn simulated(
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
        let Loaded { dedup, report, counted } = load::load(path, backend.as_ref())?;
        let OpenReport { records, quarantined, in_quarantine, migrated, .. } = report;
        let report = OpenReport { records, quarantined, in_quarantine, migrated, ..file };
        if report.repaired {
            tracing::warn!(path = %path.display(), "state file was inconsistent and has been repaired");
        }
        let shared =
            Arc::new(Shared::new(path.to_owned(), backend, dedup, counted, options.settle_idle));
        if let Some(pace) = inline {
            let writer = Arc::clone(&shared);
            drop(tokio::spawn(async move { writer.run_inline(&*pace).await }));
            let inner = Inner { shared, options, thread: None, report };
            return Ok(Self { inner: Arc::new(inner) });
        }
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ostler-state".to_owned())
            .spawn(move || writer::run(&for_thread))
            .map_err(|source| StateError::Thread { source })?;
        let inner = Inner { shared, options, thread: Some(thread), report };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Make `value` durable under `key`. Returns when it is, or at once when it was already, which
    /// costs an encoding and a comparison and nothing else.
    ///
    /// Waits while the queue is full. When the future is dropped early the write may or may not
    /// take place.
    ///
    /// # Errors
    /// When the value cannot be encoded, the commit failed (the write may be tried again), or the
    /// store is closed.
    pub async fn put<T: Serialize + ?Sized>(
        &self,
        key: &Key,
        value: &T,
    ) -> Result<Put, StateError> {
        let put = match self.prepare(key, value)? {
            Prepared::Done(put) => put,
            Prepared::Write { key: bytes, record, digest } => {
                let op = Op::Put { key: bytes, value: record };
                self.write(op, Some(digest)).await?
            }
        };
        self.count(put);
        Ok(put)
    }

    /// Write `value` under `key` soon: for what may lag behind a crash. Returns once it is queued.
    ///
    /// It is durable with the next durable write that is begun after it, whichever its key, or
    /// within [`STATE_LATER_WALL_MAX`]. While it waits, a newer one of the same key takes its place.
    /// Writes of one key keep their order, durable ones included. When the commit fails it is tried
    /// again. [`StateStore::get`] shows it once it is durable.
    ///
    /// [`STATE_LATER_WALL_MAX`]: ostler_model::limits::STATE_LATER_WALL_MAX
    ///
    /// # Errors
    /// When the value cannot be encoded or the store is closed.
    pub async fn put_later<T: Serialize + ?Sized>(
        &self,
        key: &Key,
        value: &T,
    ) -> Result<Put, StateError> {
        count(&self.inner.shared.counters.later, 1);
        let put = match self.prepare(key, value)? {
            Prepared::Done(put) => put,
            Prepared::Write { key: bytes, record, digest } => {
                self.write_later(bytes, record, digest).await?
            }
        };
        self.count(put);
        Ok(put)
    }

    /// Wait until everything queued before is durable.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn flush(&self) -> Result<(), StateError> {
        let queued = self.push(|_| Ok((None, None))).await?;
        self.wait(queued).await.map(drop)
    }

    /// The point in the order of writes that is reached now.
    #[must_use]
    pub fn mark(&self) -> WriteMark {
        self.inner.shared.core().mark()
    }

    /// Wait until everything queued before `mark` is durable. A commit that somebody else asks for
    /// within `linger` takes it along; only then one is asked for. So what is queued after `mark`
    /// is not drawn into a commit of its own.
    ///
    /// # Errors
    /// When the commit asked for failed or the store is closed.
    pub async fn durable_to(&self, mark: WriteMark, linger: Duration) -> Result<(), StateError> {
        let shared = &self.inner.shared;
        let since = Stopwatch::start();
        loop {
            // Registered before the check, so that no end is missed.
            let changed = shared.ended.notified();
            // Bound to a name: the lock must not be held over the waits.
            let reach = shared.core().reach(mark);
            match reach {
                Reach::Durable => return Ok(()),
                Reach::Unknown => return self.flush().await,
                Reach::Committing => changed.await,
                Reach::Waiting => match linger.checked_sub(since.elapsed()) {
                    Some(left) if clock::timeout(left, changed).await.is_some() => {}
                    _ => return self.flush().await,
                },
            }
        }
    }

    /// Remove a record; durable when it returns. Nothing happens when there is none.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn delete(&self, key: &Key) -> Result<(), StateError> {
        let op = Op::Delete { key: key.encode().into() };
        self.write(op, None).await.map(drop)
    }

    /// Remove every record of a group, those included whose writes are queued yet; durable when it
    /// returns.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn delete_all(&self, group: &Prefix) -> Result<(), StateError> {
        let op = Op::DeletePrefix { prefix: group.encode().into() };
        self.write(op, None).await.map(drop)
    }

    /// Remove every record of an allocation; durable when it returns. From the call on, writes of
    /// the allocation are dropped ([`Put::Destroyed`]), even if this fails and must be repeated.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn destroy_alloc(&self, id: AllocId) -> Result<(), StateError> {
        self.inner.shared.core().dedup.destroy(id);
        self.delete_all(&Prefix::Alloc(id)).await
    }

    /// Move a record that cannot be used out of the way; it is kept for inspection.
    ///
    /// # Errors
    /// When the commit failed or the store is closed.
    pub async fn quarantine(&self, key: &Key) -> Result<(), StateError> {
        let op = Op::Quarantine { key: key.encode().into() };
        self.write(op, None).await.map(drop)
    }

    /// What was found when the store was opened.
    #[must_use]
    pub fn opened(&self) -> &OpenReport {
        &self.inner.report
    }

    /// What happened since.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.inner.shared;
        let core = shared.core();
        shared.counters.snapshot(core.queue.len(), core.dedup.len())
    }

    /// Everything that is durable is where it stays: nothing more is written by itself.
    #[must_use]
    pub fn settled(&self) -> bool {
        !self.inner.shared.backend.unsettled()
    }

    /// Commit everything queued and take no more writes; reads go on. The file is given back when
    /// the last handle is dropped.
    pub async fn close(&self) {
        let (told, done) = oneshot::channel();
        self.inner.shared.close(Some(told));
        // An error means that the writer has ended already, with nothing left in the queue.
        let _ = done.await;
    }

    /// What the handles share, for the reading part.
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(super) fn closed(&self) -> StateError {
        StateError::Closed { path: self.inner.shared.path.clone() }
    }

    pub(super) fn count(&self, put: Put) {
        let counters = &self.inner.shared.counters;
        match put {
            Put::Written | Put::Queued => {}
            Put::Unchanged => count(&counters.unchanged, 1),
            Put::Destroyed => count(&counters.destroyed, 1),
        }
    }

    /// Encode and compare; copies only what must be written.
    pub(super) fn prepare<T: Serialize + ?Sized>(
        &self,
        key: &Key,
        value: &T,
    ) -> Result<Prepared, StateError> {
        let shared = &self.inner.shared;
        count(&shared.counters.puts, 1);
        // Taken out while in use, so that a value whose serialisation writes state finds a fresh
        // one instead of a borrow error.
        let mut scratch = SCRATCH.take();
        let encoded = codec::encode_unsealed(key.kind(), value, &mut scratch.record);
        let prepared = encoded.map(|()| {
            key.encode_into(&mut scratch.key);
            let digest = ValueDigest::of(&scratch.record);
            let decision = shared.core().dedup.decide(&scratch.key, digest);
            match self.decided(decision) {
                Some(put) => Prepared::Done(put),
                None => {
                    codec::seal(&mut scratch.record);
                    let (key, record) = (scratch.key.as_slice(), scratch.record.as_slice());
                    Prepared::Write { key: key.into(), record: record.into(), digest }
                }
            }
        });
        if scratch.record.capacity() <= SCRATCH_KEEP {
            SCRATCH.replace(scratch);
        }
        prepared.map_err(|source: CodecError| StateError::Encode { key: key.clone(), source })
    }

    /// How a put ends that need not be written.
    fn decided(&self, decision: WriteDecision) -> Option<Put> {
        match decision {
            WriteDecision::Destroyed => Some(Put::Destroyed),
            WriteDecision::Unchanged if self.inner.options.deduplicate => Some(Put::Unchanged),
            WriteDecision::Unchanged | WriteDecision::Write => None,
        }
    }

    /// Queue one change and wait for its commit.
    async fn write(&self, op: Op, digest: Option<ValueDigest>) -> Result<Put, StateError> {
        let queued = self.queue(op, digest).await?;
        self.wait(queued).await
    }

    /// Queue one change.
    pub(super) async fn queue(
        &self,
        op: Op,
        digest: Option<ValueDigest>,
    ) -> Result<Queued, StateError> {
        // Decided again, because time has passed, and queued under the same lock: the order in the
        // queue is the order in which keys became busy.
        self.push(|core| {
            match (&op, digest) {
                (Op::Put { key, .. }, Some(digest)) => {
                    if let Some(put) = self.decided(core.dedup.decide(key, digest)) {
                        return Err(put);
                    }
                    core.dedup.begin(key);
                }
                (Op::Put { key, .. } | Op::Delete { key } | Op::Quarantine { key }, _) => {
                    core.dedup.begin(key);
                }
                (Op::DeletePrefix { prefix }, _) => core.dedup.bar_prefix(prefix),
            }
            Ok((Some(op), digest))
        })
        .await
    }

    /// Queue what `decide` gives, unless it ends the put.
    async fn push(
        &self,
        decide: impl FnOnce(&mut Core) -> Result<(Option<Op>, Option<ValueDigest>), Put>,
    ) -> Result<Queued, StateError> {
        let shared = &self.inner.shared;
        let permit = shared.room.acquire().await.map_err(|_| self.closed())?;
        let (done, committed) = oneshot::channel();
        {
            let mut core = shared.core();
            if core.queue.is_closed() {
                return Err(self.closed());
            }
            let (op, digest) = match decide(&mut core) {
                Ok(change) => change,
                Err(put) => return Ok(Err(put)),
            };
            core.queue.push(Request { op, digest, done: Some(done) });
            permit.forget();
            shared.wake(&mut core);
        }
        Ok(Ok(committed))
    }

    /// Wait for the commit of what was queued.
    pub(super) async fn wait(&self, queued: Queued) -> Result<Put, StateError> {
        let committed = match queued {
            Ok(committed) => committed,
            Err(put) => return Ok(put),
        };
        match committed.await {
            Ok(Ok(())) => Ok(Put::Written),
            Ok(Err(source)) => {
                Err(StateError::Commit { path: self.inner.shared.path.clone(), source })
            }
            Err(_) => Err(self.closed()),
        }
    }

    async fn write_later(
        &self,
        key: Box<[u8]>,
        record: Box<[u8]>,
        digest: ValueDigest,
    ) -> Result<Put, StateError> {
        let shared = &self.inner.shared;
        if shared.core().replace_waiting(&key, &record, digest) {
            count(&shared.counters.replaced, 1);
            return Ok(Put::Queued);
        }
        let permit = shared.room.acquire().await.map_err(|_| self.closed())?;
        self.queue_later(permit, key, record, digest)
    }

    /// Queue a write that may lag, in the place that `permit` stands for.
    pub(super) fn queue_later(
        &self,
        permit: SemaphorePermit<'_>,
        key: Box<[u8]>,
        record: Box<[u8]>,
        digest: ValueDigest,
    ) -> Result<Put, StateError> {
        let shared = &self.inner.shared;
        let mut core = shared.core();
        if core.queue.is_closed() {
            return Err(self.closed());
        }
        if let Some(put) = self.decided(core.dedup.decide(&key, digest)) {
            return Ok(put);
        }
        if core.replace_waiting(&key, &record, digest) {
            count(&shared.counters.replaced, 1);
            return Ok(Put::Queued);
        }
        let op = Op::Put { key: key.clone(), value: record };
        let ticket = core.queue.push(Request { op: Some(op), digest: Some(digest), done: None });
        core.dedup.begin_later(&key, Later { ticket, digest });
        permit.forget();
        shared.wake(&mut core);
        Ok(Put::Queued)
    }
}
