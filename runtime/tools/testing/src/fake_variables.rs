//! Variables that are kept in memory alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use ostler_model::ports::BoxFuture;
use ostler_model::time::Timestamp;
use ostler_model::vars::{Secret, VarKey, VarList, VarPathError, Variable, VariableStore};

/// Variables of the namespace `default`. Clones share them.
#[derive(Clone)]
pub struct FakeVariables(Arc<Inner>);

struct Inner {
    all: Mutex<BTreeMap<VarKey, Arc<Variable>>>,
    index: watch::Sender<u64>,
}

impl Default for FakeVariables {
    fn default() -> Self {
        let index = watch::Sender::new(0);
        Self(Arc::new(Inner { all: Mutex::default(), index }))
    }
}

impl FakeVariables {
    fn all(&self) -> MutexGuard<'_, BTreeMap<VarKey, Arc<Variable>>> {
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Write a variable.
    ///
    /// # Errors
    /// When no variable can have this path.
    pub fn put(&self, path: &str, items: &[(&str, &str)]) -> Result<(), VarPathError> {
        let key = VarKey::new("default", path)?;
        let mut all = self.all();
        let index = *self.0.index.borrow() + 1;
        let items = items.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text)));
        let at = Timestamp::from_nanos(index * 1_000_000_000);
        let variable = Variable {
            namespace: key.namespace.clone(),
            path: key.path.clone(),
            items: items.collect(),
            create_index: all.get(&key).map_or(index, |known| known.create_index),
            modify_index: index,
            created: all.get(&key).map_or(at, |known| known.created),
            modified: at,
        };
        all.insert(key, Arc::new(variable));
        self.0.index.send_replace(index);
        Ok(())
    }

    /// Remove a variable.
    ///
    /// # Errors
    /// When no variable can have this path.
    pub fn remove(&self, path: &str) -> Result<(), VarPathError> {
        let mut all = self.all();
        all.remove(&VarKey::new("default", path)?);
        self.0.index.send_modify(|index| *index += 1);
        Ok(())
    }
}

impl VariableStore for FakeVariables {
    fn get(&self, key: &VarKey) -> (u64, Option<Arc<Variable>>) {
        let all = self.all();
        (*self.0.index.borrow(), all.get(key).cloned())
    }

    fn list(&self, namespace: Option<&str>, prefix: &str) -> VarList {
        let all = self.all();
        let such = |of: &&Arc<Variable>| {
            namespace.is_none_or(|named| of.namespace.as_str() == named)
                && of.path.as_str().starts_with(prefix)
        };
        let index = *self.0.index.borrow();
        VarList { index, found: all.values().filter(such).cloned().collect() }
    }

    fn index(&self) -> u64 {
        *self.0.index.borrow()
    }

    fn wait_for_change(&self, index: u64) -> BoxFuture<'static, ()> {
        let mut changes = self.0.index.subscribe();
        Box::pin(async move {
            if changes.wait_for(|now| *now != index).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}
