//! Reads what is durable, as of the last commit.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::codec;
use super::error::StateError;
use super::keys::KeyPrefix;
use super::records::{KeyFor, Record, RecordKey, RecordKind, TypedKey as _};
use super::store::StateStore;

/// A record as stored.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The key under which it is stored.
    pub key: RecordKey,
    path: Arc<Path>,
    bytes: Vec<u8>,
}

impl StoredRecord {
    /// Decode the value.
    ///
    /// # Errors
    /// When the record is damaged or not a `V`. The error concerns this record alone.
    pub fn decode<V: Record>(&self) -> Result<V, StateError> {
        self.decode_as(V::Key::KIND)
    }

    /// Decode the value of a record of this kind, whatever its type.
    pub(super) fn decode_as<V: DeserializeOwned>(&self, kind: RecordKind) -> Result<V, StateError> {
        codec::decode(kind, &self.bytes).map_err(|source| StateError::Record {
            path: self.path.to_path_buf(),
            key: self.key.clone(),
            source,
        })
    }

    /// The size of the record in bytes, its envelope included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the record has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl StateStore {
    /// The durable value of a key. Blocks for microseconds.
    ///
    /// # Errors
    /// When the file cannot be read, or the record is damaged or not a `V`.
    pub fn get<V: DeserializeOwned>(&self, key: &impl KeyFor<V>) -> Result<Option<V>, StateError> {
        let (key, shared) = (key.record_key(), self.writer_shared());
        let read = shared.backend.get(&key.encode());
        let found =
            read.map_err(|source| StateError::Read { path: shared.path.clone(), source })?;
        let Some(bytes) = found else { return Ok(None) };
        codec::decode(key.kind(), &bytes).map(Some).map_err(|source| StateError::Record {
            path: shared.path.clone(),
            key: key.clone(),
            source,
        })
    }

    /// All durable records of a group, in the order of their bytes, as of one commit.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn scan(&self, prefix: &KeyPrefix) -> Result<Vec<StoredRecord>, StateError> {
        let shared = self.writer_shared();
        let path: Arc<Path> = Arc::from(shared.path.as_path());
        let mut records = Vec::new();
        let read = shared.backend.scan(&prefix.encode(), &mut |key, bytes| {
            match RecordKey::parse(key) {
                Ok(key) => {
                    records.push(StoredRecord {
                        key,
                        path: Arc::clone(&path),
                        bytes: bytes.to_vec(),
                    });
                }
                // Such keys are quarantined when the store opens, and one that appears later is
                // reported then.
                Err(error) => tracing::warn!(%error, "state record with an unreadable key"),
            }
            ControlFlow::Continue(())
        });
        read.map_err(|source| StateError::Read { path: shared.path.clone(), source })?;
        Ok(records)
    }
}
