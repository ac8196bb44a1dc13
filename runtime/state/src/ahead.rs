//! Writes whose commit goes on beside the work of who asked for them.
//!
//! ```text
//! put_ahead ─► queued, its commit begins ─► other work ─► Ahead::durable
//! try_put_ahead ─► queued, with whatever is committed next ─► other work ─► Ahead::durable
//! ```

use std::time::Duration;

use serde::Serialize;
use tokio::sync::TryAcquireError;

use super::backend::Op;
use super::error::StateError;
use super::keys::Key;
use super::store::{Prepared, Put, Queued, StateStore};
use super::writer::WriteMark;

/// A durable write on its way ([`StateStore::put_ahead`]). Dropped: the write takes place all the
/// same, and nobody hears of it.
#[must_use]
pub struct Ahead {
    store: StateStore,
    queued: OnItsWay,
}

enum OnItsWay {
    Queued(Queued),
    /// Before this point of the order of writes.
    Before(WriteMark),
}

impl Ahead {
    /// Wait until it is durable.
    ///
    /// # Errors
    /// As [`StateStore::put`].
    pub async fn durable(self) -> Result<Put, StateError> {
        let put = match self.queued {
            OnItsWay::Queued(queued) => self.store.wait(queued).await?,
            OnItsWay::Before(mark) => {
                self.store.durable_to(mark, Duration::ZERO).await?;
                Put::Written
            }
        };
        self.store.count(put);
        Ok(put)
    }
}

impl StateStore {
    /// As [`StateStore::put`], in two parts: this returns once the write is queued, and its commit
    /// begins at once. [`Ahead::durable`] waits for it.
    ///
    /// # Errors
    /// When the value cannot be encoded or the store is closed.
    pub async fn put_ahead<T: Serialize + ?Sized>(
        &self,
        key: &Key,
        value: &T,
    ) -> Result<Ahead, StateError> {
        let queued = match self.prepare(key, value)? {
            Prepared::Done(put) => Err(put),
            Prepared::Write { key: bytes, record, digest } => {
                let op = Op::Put { key: bytes, value: record };
                self.queue(op, Some(digest)).await?
            }
        };
        Ok(Ahead { store: self.clone(), queued: OnItsWay::Queued(queued) })
    }

    /// As [`StateStore::put_ahead`] without waiting, and without a commit of its own: the write goes with
    /// the next one that is asked for, at the latest by [`Ahead::durable`]. `None`: the queue is full,
    /// and nothing was done.
    ///
    /// # Errors
    /// As [`StateStore::put_ahead`].
    pub fn try_put_ahead<T: Serialize + ?Sized>(
        &self,
        key: &Key,
        value: &T,
    ) -> Result<Option<Ahead>, StateError> {
        let put = match self.prepare(key, value)? {
            Prepared::Done(put) => put,
            Prepared::Write { key, record, digest } => match self.shared().room.try_acquire() {
                Ok(permit) => self.queue_later(permit, key, record, digest)?,
                Err(TryAcquireError::NoPermits) => return Ok(None),
                Err(TryAcquireError::Closed) => return Err(self.closed()),
            },
        };
        let queued = match put {
            Put::Queued => OnItsWay::Before(self.mark()),
            put => OnItsWay::Queued(Err(put)),
        };
        Ok(Some(Ahead { store: self.clone(), queued }))
    }
}
