//! The variables of a node: kept on disk, held in memory, changed one after the other.
//!
//! ```text
//!   put, delete ─► table (pure): cas, bounds ─► record durable ─► true for readers ─► changed
//!                                     └── refused: nothing happens
//! ```
//! A change that was begun ends, whoever waits for it: what readers see is what is on disk. The index of a
//! removal is kept beside them, so that no index comes twice.

mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

use self::table::{Change, Decided, Table};
use ostler_lifecycle::services::other_than;
use ostler_model::clock::{self, Clock};
use ostler_model::limits::{VAR_CHANGES_MAX, VAR_WRITE_WALL_MAX, VARS_BYTES_MAX, VARS_MAX};
use ostler_model::ports::BoxFuture;
use ostler_model::vars::{Items, ItemsError, KeptVariables, VarKey, VarList, Variable};
use ostler_state::{Key, Prefix, StateError, StateStore};

/// Why a variable was not changed. Says nothing of what is in one.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    /// Somebody else changed it.
    #[error(
        "variable {key} has index {index}, not {asked}: it was changed meanwhile; look at it and try again"
    )]
    Conflict {
        /// Which.
        key: VarKey,
        /// The index that it was to have.
        asked: u64,
        /// The one it has; 0: there is none.
        index: u64,
        /// It, as it is.
        present: Option<Arc<Variable>>,
    },
    /// The items are wrong.
    #[error(transparent)]
    Items(#[from] ItemsError),
    /// There are as many as there may be.
    #[error("this node keeps {VARS_MAX} variables, the most allowed; purge some")]
    TooMany,
    /// There is as much as there may be.
    #[error(
        "the variables of this node may have {VARS_BYTES_MAX} bytes together, and would have more; purge \
         some"
    )]
    TooLarge,
    /// Many others wait for the disk.
    #[error("too many changes of variables wait for the disk; try again in a moment")]
    Busy,
    /// The disk refuses.
    #[error("the change of the variable cannot be written")]
    State(#[source] StateError),
    /// The disk does not answer, or the agent ends.
    #[error(
        "the change of the variable did not reach the disk within {VAR_WRITE_WALL_MAX:?}; it may still \
         do: look at the variable before you try again"
    )]
    Unanswered,
}

/// The variables of a node. Clones share them.
#[derive(Clone)]
pub struct NodeVariables(Arc<Inner>);

struct Inner {
    state: StateStore,
    clock: Clock,
    table: Mutex<Table>,
    index: watch::Sender<u64>,
    /// One change at a time: what is decided is true until it is on disk.
    turn: tokio::sync::Mutex<()>,
    /// Places for those that wait.
    places: Arc<Semaphore>,
}

impl NodeVariables {
    /// Those on record. `index` is what theirs is above: any that an earlier agent gave out of something
    /// else. Records that cannot be read are put aside, a sentence for each.
    ///
    /// # Errors
    /// When the state file cannot be read, or what is bad of it not put aside.
    pub async fn load(
        state: StateStore,
        clock: Clock,
        index: u64,
    ) -> Result<(Self, Vec<String>), StateError> {
        let (mut all, mut index, mut bad) = (Vec::new(), index, Vec::new());
        for record in state.scan(&Prefix::Variables)? {
            let read = match &record.key {
                Key::Variable(key) => record.decode::<Variable>().map(|variable| {
                    // One under another's name is none.
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
        Ok((Self::new(state, clock, Table::new(index, all)), notices))
    }

    fn new(state: StateStore, clock: Clock, table: Table) -> Self {
        let index = watch::Sender::new(table.index());
        let (table, turn) = (Mutex::new(table), tokio::sync::Mutex::default());
        let places = Arc::new(Semaphore::new(VAR_CHANGES_MAX));
        Self(Arc::new(Inner { state, clock, table, index, turn, places }))
    }

    /// The index of the last change, as it grows.
    #[must_use]
    pub fn indexes(&self) -> watch::Receiver<u64> {
        self.0.index.subscribe()
    }

    /// Write a variable. `cas`: only while it has this index; 0: while there is none. It is durable when this
    /// returns.
    ///
    /// # Errors
    /// See [`VariableError`]. With [`VariableError::Unanswered`] it is not known whether it was written.
    pub async fn put(
        &self,
        key: VarKey,
        items: Items,
        cas: Option<u64>,
    ) -> Result<Arc<Variable>, VariableError> {
        match self.change(Change::Put(key, items), cas).await? {
            Decided::Put(variable) => Ok(variable),
            _ => Err(VariableError::Unanswered),
        }
    }

    /// Remove a variable, where there is one. The index of the change; it is durable when this returns.
    ///
    /// # Errors
    /// As [`NodeVariables::put`].
    pub async fn delete(&self, key: VarKey, cas: Option<u64>) -> Result<u64, VariableError> {
        match self.change(Change::Delete(key), cas).await? {
            Decided::Delete(_, index) | Decided::Nothing(index) => Ok(index),
            Decided::Put(_) => Err(VariableError::Unanswered),
        }
    }

    async fn change(&self, change: Change, cas: Option<u64>) -> Result<Decided, VariableError> {
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        let place = place.map_err(|_| VariableError::Busy)?;
        let own = self.clone();
        // A task of its own: what was begun is not to stop half-way when who asked hangs up.
        let done = tokio::spawn(async move {
            let _place = place;
            own.in_turn(change, cas).await
        });
        match clock::timeout(VAR_WRITE_WALL_MAX, done).await {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(VariableError::Unanswered),
        }
    }

    async fn in_turn(&self, change: Change, cas: Option<u64>) -> Result<Decided, VariableError> {
        let inner = &self.0;
        let _turn = inner.turn.lock().await;
        let decided = self.table().decide(change, cas, inner.clock.now())?;
        let written = write(&inner.state, &decided).await;
        let mut table = self.table();
        match &written {
            Ok(()) => table.apply(&decided),
            // The disk may have it all the same: what it has counts.
            Err(_) => match there(&inner.state, &decided) {
                true => table.apply(&decided),
                false => table.skip(&decided),
            },
        }
        // Under the lock: what is read and its index belong together.
        let index = table.index();
        inner.index.send_if_modified(|known| std::mem::replace(known, index) != index);
        drop(table);
        written.map(|()| decided).map_err(VariableError::State)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Make a change durable.
async fn write(state: &StateStore, decided: &Decided) -> Result<(), StateError> {
    match decided {
        Decided::Put(variable) => {
            state.put(&Key::Variable(Box::new(variable.key())), &**variable).await.map(drop)
        }
        Decided::Delete(key, index) => {
            // Goes with the same commit.
            state.put_later(&Key::VariablesIndex, index).await?;
            state.delete(&Key::Variable(Box::new(key.clone()))).await
        }
        Decided::Nothing(_) => Ok(()),
    }
}

/// Is a change on disk whose write failed?
fn there(state: &StateStore, decided: &Decided) -> bool {
    let kept = |key: VarKey| state.get::<Variable>(&Key::Variable(Box::new(key)));
    match decided {
        Decided::Put(variable) => {
            kept(variable.key()).is_ok_and(|kept| kept.as_ref() == Some(&**variable))
        }
        Decided::Delete(key, _) => kept(key.clone()).is_ok_and(|kept| kept.is_none()),
        Decided::Nothing(_) => false,
    }
}

impl KeptVariables for NodeVariables {
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

    fn changed(&self, index: u64) -> BoxFuture<'static, ()> {
        other_than(self.0.index.subscribe(), index)
    }
}

#[cfg(test)]
mod tests;
