//! Announced writes, so that a write that must become durable can wait for them and share
//! their commit.
//!
//! ```text
//!   expect() ─► ExpectedWrite … dropped when its own write is queued
//!   put_with_expected ── nobody else expected ─► put: committed at once
//!                     └─ others expected ─► queued; committed with theirs, or when `linger` is over
//! ```
//! A hundred tasks that start together become ready one after the other, about a commit apart.
//! Without this, each would pay for a commit of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::error::StateError;
use super::records::KeyFor;
use super::store::{PutOutcome, StateStore};
use super::writer::WriterShared;

/// An announced write. It must be dropped when the write is queued or will not come.
#[must_use]
pub struct ExpectedWrite(Arc<WriterShared>);

impl Drop for ExpectedWrite {
    fn drop(&mut self) {
        self.0.expected.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StateStore {
    /// Announce that a durable write will come soon.
    pub fn expect(&self) -> ExpectedWrite {
        let shared = Arc::clone(self.writer_shared());
        shared.expected.fetch_add(1, Ordering::Relaxed);
        ExpectedWrite(shared)
    }

    /// Write a record, which is durable when this returns. While other writes are expected, this
    /// waits for at most `linger` to share their commit.
    ///
    /// # Errors
    /// As [`StateStore::put`].
    pub async fn put_with_expected<V: Serialize + ?Sized>(
        &self,
        key: &impl KeyFor<V>,
        value: &V,
        linger: Duration,
    ) -> Result<PutOutcome, StateError> {
        if self.writer_shared().expected.load(Ordering::Relaxed) > 0 {
            self.put_later(key, value).await?;
            self.wait_durable_to(self.mark(), linger).await?;
        }
        // This costs nothing if the record is durable by now. A write that may lag can have been
        // given up.
        self.put(key, value).await
    }
}
