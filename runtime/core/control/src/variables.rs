//! The variables of a node: kept on disk and in memory, and changed one after the other.
//!
//! ```text
//!   put, delete ─► table (pure): cas, bounds ─► record durable ─► true for readers ─► changed
//!                                     └── refused: nothing happens
//! ```
//! A change that was begun ends even when nobody waits for it: readers see what is on disk. The
//! index of a removal is recorded as well, so that no index is given out twice.

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

use self::table::{VariableChange, VariableDecision, VariableTable};
use ostler_lifecycle::services::wait_for_change;
use ostler_model::clock::{self, Clock};
use ostler_model::limits::{VAR_CHANGES_MAX, VAR_WRITE_WALL_MAX, VARS_BYTES_MAX, VARS_MAX};
use ostler_model::ports::BoxFuture;
use ostler_model::vars::{Items, ItemsError, VarKey, VarList, Variable, VariableStore};
use ostler_state::records::{VariableKey, VariablesIndexKey};
use ostler_state::{KeyPrefix, RecordKey, StateError, StateStore};

/// Why a variable was not changed. The error reveals nothing of a variable's content.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    /// Somebody else has changed the variable.
    #[error(
        "variable {key} has index {index}, not {asked}: it was changed meanwhile; look at it and try again"
    )]
    Conflict {
        /// Namespace and path of the variable.
        key: VarKey,
        /// The index that the requester expects.
        asked: u64,
        /// The present index; 0: there is no such variable.
        index: u64,
        /// The present variable, where there is one.
        present: Option<Arc<Variable>>,
    },
    /// The items are not allowed.
    #[error(transparent)]
    Items(#[from] ItemsError),
    /// There are as many variables as allowed.
    #[error("this node keeps {VARS_MAX} variables, the most allowed; purge some")]
    TooMany,
    /// The variables are as large as allowed, all together.
    #[error(
        "the variables of this node may have {VARS_BYTES_MAX} bytes together, and would have more; purge \
         some"
    )]
    TooLarge,
    /// Too many others wait for the disk.
    #[error("too many changes of variables wait for the disk; try again in a moment")]
    Busy,
    /// The disk refuses the change.
    #[error("the change of the variable cannot be written")]
    State(#[source] StateError),
    /// The disk does not answer, or the agent ends.
    #[error(
        "the change of the variable was not written to disk within {VAR_WRITE_WALL_MAX:?} and may still be: \
         look at the variable before you try again"
    )]
    Unanswered,
}

/// The variables of a node. Clones share them.
#[derive(Clone)]
pub struct NodeVariables(Arc<NodeVariablesInner>);

struct NodeVariablesInner {
    state: StateStore,
    clock: Clock,
    table: Mutex<VariableTable>,
    index: watch::Sender<u64>,
    /// Allows one change at a time, so that a decision stays true until it is on disk.
    turn: tokio::sync::Mutex<()>,
    /// Bounds the number of changes that wait.
    places: Arc<Semaphore>,
}

impl NodeVariables {
    /// Load the variables on record. Their index is above `index`, the highest one that an earlier
    /// agent gave out for anything else. Records that cannot be read are put aside; a sentence is
    /// returned for each.
    ///
    /// # Errors
    /// When the state file cannot be read, or a bad record cannot be put aside.
    pub async fn load(
        state: StateStore,
        clock: Clock,
        index: u64,
    ) -> Result<(Self, Vec<String>), StateError> {
        let (mut all, mut index, mut bad) = (Vec::new(), index, Vec::new());
        for record in state.scan(&KeyPrefix::Variables)? {
            let read = match &record.key {
                RecordKey::Variable(key) => record.decode::<Variable>().map(|variable| {
                    // A variable under the key of another one does not count.
                    let own = variable.key() == **key;
                    own.then(|| all.push(variable)).is_some()
                }),
                _ => record.decode::<u64>().map(|kept| {
                    index = index.max(kept);
                    true
                }),
            };
            if !matches!(read, Ok(true)) {
                bad.push(record.key);
            }
        }
        let mut notices = Vec::new();
        for key in bad {
            state.quarantine(&key).await?;
            notices.push(format!("record {key} could not be read and was put aside"));
        }
        Ok((Self::new(state, clock, VariableTable::new(index, all)), notices))
    }

    fn new(state: StateStore, clock: Clock, table: VariableTable) -> Self {
        let index = watch::Sender::new(table.index());
        let (table, turn) = (Mutex::new(table), tokio::sync::Mutex::default());
        let places = Arc::new(Semaphore::new(VAR_CHANGES_MAX));
        Self(Arc::new(NodeVariablesInner { state, clock, table, index, turn, places }))
    }

    /// The index of the last change, as it grows.
    #[must_use]
    pub fn indexes(&self) -> watch::Receiver<u64> {
        self.0.index.subscribe()
    }

    /// Write a variable. `cas`: only while it has this index; 0: while there is none. The change is
    /// durable when this returns.
    ///
    /// # Errors
    /// See [`VariableError`]. With [`VariableError::Unanswered`] it is not known whether it was written.
    pub async fn put(
        &self,
        key: VarKey,
        items: Items,
        cas: Option<u64>,
    ) -> Result<Arc<Variable>, VariableError> {
        match self.change(VariableChange::Put(key, items), cas).await? {
            VariableDecision::Put(variable) => Ok(variable),
            _ => Err(VariableError::Unanswered),
        }
    }

    /// Remove a variable, where there is one. Returns the index of the change, which is durable.
    ///
    /// # Errors
    /// As [`NodeVariables::put`].
    pub async fn delete(&self, key: VarKey, cas: Option<u64>) -> Result<u64, VariableError> {
        match self.change(VariableChange::Delete(key), cas).await? {
            VariableDecision::Delete(_, index) | VariableDecision::Nothing(index) => Ok(index),
            VariableDecision::Put(_) => Err(VariableError::Unanswered),
        }
    }

    async fn change(
        &self,
        change: VariableChange,
        cas: Option<u64>,
    ) -> Result<VariableDecision, VariableError> {
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        let place = place.map_err(|_| VariableError::Busy)?;
        let own = self.clone();
        // The change is a task of its own, so that it does not stop half-way when the requester
        // hangs up.
        let done = tokio::spawn(async move {
            let _place = place;
            own.change_in_turn(change, cas).await
        });
        match clock::timeout(VAR_WRITE_WALL_MAX, done).await {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(VariableError::Unanswered),
        }
    }

    async fn change_in_turn(
        &self,
        change: VariableChange,
        cas: Option<u64>,
    ) -> Result<VariableDecision, VariableError> {
        let inner = &self.0;
        let _turn = inner.turn.lock().await;
        let decided = self.table().decide(change, cas, inner.clock.now())?;
        let written = write(&inner.state, &decided).await;
        let mut table = self.table();
        match &written {
            Ok(()) => table.apply(&decided),
            // The disk may have the change all the same: what is on disk counts.
            Err(_) => {
                if is_on_disk(&inner.state, &decided) {
                    table.apply(&decided);
                } else {
                    table.skip(&decided);
                }
            }
        }
        // This happens under the lock, because the variables and their index belong together.
        let index = table.index();
        inner.index.send_if_modified(|known| std::mem::replace(known, index) != index);
        drop(table);
        written.map(|()| decided).map_err(VariableError::State)
    }

    fn table(&self) -> MutexGuard<'_, VariableTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Make a change durable.
async fn write(state: &StateStore, decided: &VariableDecision) -> Result<(), StateError> {
    match decided {
        VariableDecision::Put(variable) => {
            state.put(&VariableKey::of(Box::new(variable.key())), &**variable).await.map(drop)
        }
        VariableDecision::Delete(key, index) => {
            // It is written with the same commit.
            state.put_later(&VariablesIndexKey::of(), index).await?;
            state.delete(&RecordKey::Variable(Box::new(key.clone()))).await
        }
        VariableDecision::Nothing(_) => Ok(()),
    }
}

/// Is a change on disk although its write failed?
fn is_on_disk(state: &StateStore, decided: &VariableDecision) -> bool {
    let kept = |key: VarKey| state.get::<Variable>(&VariableKey::of(Box::new(key)));
    match decided {
        VariableDecision::Put(variable) => {
            kept(variable.key()).is_ok_and(|kept| kept.as_ref() == Some(&**variable))
        }
        VariableDecision::Delete(key, _) => kept(key.clone()).is_ok_and(|kept| kept.is_none()),
        VariableDecision::Nothing(_) => false,
    }
}

impl VariableStore for NodeVariables {
    fn get(&self, key: &VarKey) -> (u64, Option<Arc<Variable>>) {
        let table = self.table();
        (table.index(), table.get(key))
    }

    fn list(&self, namespace: Option<&str>, prefix: &str) -> VarList {
        self.table().list(namespace, prefix)
    }

    fn index(&self) -> u64 {
        *self.0.index.borrow()
    }

    fn wait_for_change(&self, index: u64) -> BoxFuture<'static, ()> {
        wait_for_change(self.0.index.subscribe(), index)
    }
}

#[cfg(test)]
mod tests;
