//! Records in memory, for tests and for an agent without a data directory.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use super::backend::{Backend, Op, Visit, prefix_bounds};
use super::error::BackendError;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// A backend that keeps records as long as it lives.
#[derive(Debug, Default)]
pub struct MemBackend {
    tables: RwLock<MemTables>,
}

#[derive(Debug, Default)]
struct MemTables {
    state: Records,
    quarantine: Records,
}

impl MemTables {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Put { key, value } => {
                self.state.insert(key.to_vec(), value.to_vec());
            }
            Op::Delete { key } => {
                self.state.remove(&**key);
            }
            Op::DeletePrefix { prefix } => {
                self.state.extract_if(prefix_bounds(prefix), |_, _| true).for_each(drop);
            }
            Op::Quarantine { key } => {
                if let Some((key, value)) = self.state.remove_entry(&**key) {
                    self.quarantine.insert(key, value);
                }
            }
        }
    }
}

impl Backend for MemBackend {
    fn commit(&self, batch: &[Op]) -> Result<(), BackendError> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        for op in batch {
            tables.apply(op);
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BackendError> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        Ok(tables.state.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Result<(), BackendError> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in tables.state.range(prefix_bounds(prefix)) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn count_quarantined(&self) -> Result<u64, BackendError> {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        Ok(u64::try_from(tables.quarantine.len()).unwrap_or(u64::MAX))
    }
}
