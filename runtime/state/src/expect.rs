//! Writes that are known to come, so that one which waits for durability can wait for them.
//!
//! ```text
//!   expect() ─► Expected … dropped when its own write is queued
//!   put_with_expected ── nobody else expected ─► put: committed at once
//!                     └─ others expected ─► queued; committed with theirs, or when `linger` is over
//! ```
//! A hundred tasks that start together are ready one after the other, about a commit apart: each
//! would pay for a commit of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::error::StateError;
use super::keys::Key;
use super::store::{Put, StateStore};
use super::writer::Shared;

/// A write is on its way; to be dropped when it is queued, or will not come.
#[must_use]
pub struct Expected(Arc<Shared>);

impl Drop for Expected {
    fn drop(&mut self) {
        self.0.expected.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StateStore {
    /// Say that a durable write will come soon.
    pub fn expect(&self) -> Expected {
        let shared = Arc::clone(self.shared());
        shared.expected.fetch_add(1, Ordering::Relaxed);
        Expected(shared)
    }

    /// Write a record; durable when this returns. While others are expected, it waits for at most
    /// `linger` to share their commit.
    ///
    /// # Errors
    /// As [`StateStore::put`].
    pub async fn put_with_expected<T: Serialize + ?Sized>(
        &self,
        key: &Key,
        value: &T,
        linger: Duration,
    ) -> Result<Put, StateError> {
        if self.shared().expected.load(Ordering::Relaxed) > 0 {
            self.put_later(key, value).await?;
            self.durable_to(self.mark(), linger).await?;
        }
        // Costs nothing when it is durable by now. A write that may lag can have been given up.
        self.put(key, value).await
    }
}
