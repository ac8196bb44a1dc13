//! The interface of a place that keeps records.

use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;

use super::error::BackendError;

/// One change of a batch. Changes of a batch are applied in order, all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Write a record, replacing an older one.
    Put {
        /// Encoded [`super::Key`].
        key: Box<[u8]>,
        /// Enveloped value.
        value: Box<[u8]>,
    },
    /// Remove a record; nothing happens when there is none.
    Delete {
        /// Encoded key.
        key: Box<[u8]>,
    },
    /// Remove every record whose key starts with a prefix.
    DeletePrefix {
        /// The prefix of the encoded keys.
        prefix: Box<[u8]>,
    },
    /// Move a record out of the way. It is kept under the same key in a second table.
    Quarantine {
        /// The encoded key, which need not be a valid one.
        key: Box<[u8]>,
    },
}

impl Op {
    /// The number of bytes that the backend gets for this change.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let len = match self {
            Self::Put { key, value } => key.len().saturating_add(value.len()),
            Self::Delete { key } | Self::Quarantine { key } => key.len(),
            Self::DeletePrefix { prefix } => prefix.len(),
        };
        u64::try_from(len).unwrap_or(u64::MAX)
    }
}

/// A function that is called with each key and value of a scan. It breaks to end the scan early.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// A place to keep records. All calls block; commits come from one thread, reads from any.
pub trait Backend: Send + Sync + 'static {
    /// Apply a batch, all or nothing, and return when it is durable.
    ///
    /// # Errors
    /// When the batch is not known to be durable. It may have been applied nevertheless (a lost
    /// acknowledgement), so the caller must assume neither content.
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError>;

    /// The value of a key as of the last commit.
    ///
    /// # Errors
    /// When the place cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError>;

    /// Visit every record whose key starts with `prefix`, in key order, as of one commit.
    ///
    /// # Errors
    /// When the place cannot be read. Records visited before stay visited.
    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError>;

    /// Make a durable copy of the whole content before content of schema `from` is migrated.
    /// Returns `None` if there is nothing to copy because the records end with the process.
    ///
    /// # Errors
    /// When it cannot be made; nothing is left of it then.
    fn backup(&self, from: u16) -> Result<Option<PathBuf>, BackendError> {
        let _ = from;
        Ok(None)
    }

    /// Whether something is durable but not yet in its final place. [`Backend::settle`] moves
    /// it there.
    fn has_unsettled(&self) -> bool {
        false
    }

    /// Move everything durable to its final place. This is called when no commit came for a while,
    /// and at the end; nothing is lost without it.
    ///
    /// # Errors
    /// When it stays where it is.
    fn settle(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Number of records in quarantine.
    ///
    /// # Errors
    /// When the place cannot be read.
    fn count_quarantined(&self) -> Result<u64, BackendError>;
}

/// Bounds of the keys that start with `prefix`.
#[must_use]
pub fn prefix_bounds(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut end = prefix.to_vec();
    // The first key beyond the prefix is the prefix with its last byte below 255 raised.
    while let Some(last) = end.pop() {
        if let Some(raised) = last.checked_add(1) {
            end.push(raised);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}

#[cfg(test)]
mod tests {
    use super::prefix_bounds;
    use proptest::prelude::*;
    use std::ops::RangeBounds;

    proptest! {
        #[test]
        fn bounds_hold_exactly_the_keys_with_the_prefix(
            prefix in prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..4),
            key in prop::collection::vec(prop::sample::select(vec![0u8, 1, 254, 255]), 0..6),
        ) {
            prop_assert_eq!(prefix_bounds(&prefix).contains(&key), key.starts_with(&prefix));
        }
    }
}
