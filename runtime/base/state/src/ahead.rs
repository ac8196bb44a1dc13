//! Writes whose commit goes on while their caller does other work.
//!
//! ```text
//! put_ahead ─► queued, its commit begins ─► other work ─► WriteAhead::wait_durable
//! try_put_ahead ─► queued, with whatever is committed next ─► other work ─► WriteAhead::wait_durable
//! ```

use std::time::Duration;

use serde::Serialize;
use tokio::sync::TryAcquireError;

use super::backend::Op;
use super::error::StateError;
use super::records::KeyFor;
use super::store::{PreparedPut, PutOutcome, QueuedWrite, StateStore};
use super::writer::WriteMark;

/// A durable write on its way ([`StateStore::put_ahead`]). If this is dropped the write takes place
/// all the same, and nobody learns of its result.
#[must_use]
pub struct WriteAhead {
    store: StateStore,
    queued: PendingWrite,
}

enum PendingWrite {
    Queued(QueuedWrite),
    /// The write is before this point in the order of writes.
    Before(WriteMark),
}

impl WriteAhead {
    /// Wait until the write is durable.
    ///
    /// # Errors
    /// As [`StateStore::put`].
    pub async fn wait_durable(self) -> Result<PutOutcome, StateError> {
        let put = match self.queued {
            PendingWrite::Queued(queued) => self.store.wait(queued).await?,
            PendingWrite::Before(mark) => {
                self.store.wait_durable_to(mark, Duration::ZERO).await?;
                PutOutcome::Written
            }
        };
        self.store.count(put);
        Ok(put)
    }
}

impl StateStore {
    /// The same as [`StateStore::put`] in two parts: this returns once the write is queued, and its
    /// commit begins at once. [`Ahead::durable`] waits for it.
    ///
    /// # Errors
    /// When the value cannot be encoded or the store is closed.
    pub async fn put_ahead<V: Serialize + ?Sized>(
        &self,
        key: &impl KeyFor<V>,
        value: &V,
    ) -> Result<WriteAhead, StateError> {
        let queued = match self.prepare(key, value)? {
            PreparedPut::Done(put) => Err(put),
            PreparedPut::Write { key: bytes, record, digest } => {
                let op = Op::Put { key: bytes, value: record };
                self.queue(op, Some(digest)).await?
            }
        };
        Ok(WriteAhead { store: self.clone(), queued: PendingWrite::Queued(queued) })
    }

    /// The same as [`StateStore::put_ahead`], without waiting and without a commit of its own: the
    /// write goes with the next commit that is asked for, at the latest by [`Ahead::durable`].
    /// Returns `None` if the queue is full; nothing was done then.
    ///
    /// # Errors
    /// As [`StateStore::put_ahead`].
    pub fn try_put_ahead<V: Serialize + ?Sized>(
        &self,
        key: &impl KeyFor<V>,
        value: &V,
    ) -> Result<Option<WriteAhead>, StateError> {
        let put = match self.prepare(key, value)? {
            PreparedPut::Done(put) => put,
            PreparedPut::Write { key, record, digest } => {
                match self.writer_shared().room.try_acquire() {
                    Ok(permit) => self.queue_later(permit, key, record, digest)?,
                    Err(TryAcquireError::NoPermits) => return Ok(None),
                    Err(TryAcquireError::Closed) => return Err(self.closed_error()),
                }
            }
        };
        let queued = match put {
            PutOutcome::Queued => PendingWrite::Before(self.mark()),
            put => PendingWrite::Queued(Err(put)),
        };
        Ok(Some(WriteAhead { store: self.clone(), queued }))
    }
}
