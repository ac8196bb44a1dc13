//! The namespaces of jobs: those of the configuration, and those that were made over the API.
//!
//! ```text
//!   configuration ─┐                      ┌─► list, "is there one?"
//!   records ───────┼─► table (by name) ───┤
//!   put, delete ───┘     ▲                └─► index, for those who wait
//!      one at a time ─► record durable ─► entered
//! ```
//! A namespace of the configuration hides a record of its name, which comes back when the
//! configuration does not have it any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use ostler_model::clock::{self, Clock};
use ostler_model::ids::{NAMESPACE, Namespace};
use ostler_model::limits::{NAMESPACE_DESCRIPTION_BYTES_MAX, NAMESPACES_MAX, STATE_WRITE_WALL_MAX};
use ostler_model::saved::NamespaceRecord;
use ostler_model::words::count_noun;
use ostler_state::records::NamespaceKey;
use ostler_state::{KeyPrefix, RecordKey, StateError, StateStore};

/// Nomad's description of the namespace that always exists.
const DEFAULT: &str = "Default shared namespace";

/// A namespace, as it is known to the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNamespace {
    /// The description that people gave it.
    pub description: String,
    /// Index at which it was made.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// It is in the agent's configuration.
    pub configured: bool,
}

/// Why a namespace was not made, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The namespace is in the configuration, and only the configuration changes it.
    #[error(
        "namespace {name} is in the agent's configuration: change or remove its block there and restart the agent"
    )]
    Configured {
        /// Name of the namespace.
        name: Namespace,
    },
    /// The namespace `default` always exists.
    #[error("namespace {NAMESPACE} is always there and cannot be removed")]
    Default,
    /// There is no such namespace.
    #[error("there is no namespace {name}")]
    Unknown {
        /// The name asked for.
        name: Namespace,
    },
    /// There are jobs in the namespace.
    #[error(
        "namespace {name} has {}; purge {} first, with `ostler job stop --purge --namespace {name} JOB`",
        count_noun(*jobs, "job"),
        if *jobs == 1 { "it" } else { "them" }
    )]
    InUse {
        /// Name of the namespace.
        name: Namespace,
        /// Number of its jobs, those that are stopped included.
        jobs: usize,
    },
    /// There are as many namespaces as allowed.
    #[error("there are {NAMESPACES_MAX} namespaces already; remove some first")]
    TooMany,
    /// The description is too long.
    #[error(
        "a description has at most {NAMESPACE_DESCRIPTION_BYTES_MAX} bytes; this one has {bytes}"
    )]
    Description {
        /// Length of the description, bytes.
        bytes: usize,
    },
    /// The change could not be made durable.
    #[error("the change of the namespace could not be recorded: {0}")]
    State(#[source] StateError),
    /// The disk did not answer in time whether the change is on record.
    #[error(
        "the change of the namespace was not written to disk within {STATE_WRITE_WALL_MAX:?} and may still be: \
         look at the namespace before you try again"
    )]
    Unanswered,
}

/// The namespaces of a node. Clones share them.
#[derive(Clone)]
pub struct NodeNamespaces(Arc<NodeNamespacesInner>);

struct NodeNamespacesInner {
    state: StateStore,
    clock: Clock,
    /// Namespaces of the configuration, with their descriptions.
    configured: BTreeMap<Namespace, String>,
    /// Namespaces on record.
    made: Mutex<BTreeMap<Namespace, NamespaceRecord>>,
    /// The index at the start of the agent, which is that of all namespaces of the configuration.
    began: u64,
    index: watch::Sender<u64>,
    /// Allows one change at a time, so that a decision stays true until it is on disk.
    turn: tokio::sync::Mutex<()>,
}

impl NodeNamespaces {
    /// Load the namespaces of the configuration and those on record. Their index is above `index`,
    /// the highest one that an earlier agent gave out for anything else. Records that cannot be
    /// read are put aside; a sentence is returned for each.
    ///
    /// # Errors
    /// When the state file cannot be read, or a bad record cannot be put aside.
    pub async fn load(
        state: StateStore,
        clock: Clock,
        configured: BTreeMap<Namespace, String>,
        index: u64,
    ) -> Result<(Self, Vec<String>), StateError> {
        let (mut made, mut bad) = (BTreeMap::new(), Vec::new());
        for record in state.scan(&KeyPrefix::Namespaces)? {
            match (&record.key, record.decode::<NamespaceRecord>()) {
                (RecordKey::Namespace(name), Ok(known)) => drop(made.insert(name.clone(), known)),
                _ => bad.push(record.key),
            }
        }
        let mut notices = Vec::new();
        for key in bad {
            state.quarantine(&key).await?;
            notices.push(format!("record {key} could not be read and was put aside"));
        }
        let newest = made.values().map(|known| known.modify_index).max().unwrap_or_default();
        let began = newest.max(index).saturating_add(1).max(millis(&clock));
        let (index, turn) = (watch::Sender::new(began), tokio::sync::Mutex::default());
        let made = Mutex::new(made);
        Ok((
            Self(Arc::new(NodeNamespacesInner {
                state,
                clock,
                configured,
                made,
                began,
                index,
                turn,
            })),
            notices,
        ))
    }

    fn lock_records(&self) -> MutexGuard<'_, BTreeMap<Namespace, NamespaceRecord>> {
        self.0.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of the last change, as it grows.
    #[must_use]
    pub fn indexes(&self) -> watch::Receiver<u64> {
        self.0.index.subscribe()
    }

    /// All namespaces, by name; `default` is always among them.
    #[must_use]
    pub fn all(&self) -> BTreeMap<Namespace, KnownNamespace> {
        let began = self.0.began;
        let known = |description: &str, configured| KnownNamespace {
            description: description.to_owned(),
            create_index: began,
            modify_index: began,
            configured,
        };
        let mut all = BTreeMap::from([(Namespace::default(), known(DEFAULT, false))]);
        all.extend(self.lock_records().iter().map(|(name, record)| {
            let NamespaceRecord { description, create_index, modify_index } = record.clone();
            let made =
                KnownNamespace { description, create_index, modify_index, configured: false };
            (name.clone(), made)
        }));
        let configured = self.0.configured.iter();
        all.extend(configured.map(|(name, text)| (name.clone(), known(text, true))));
        all
    }

    /// Is there a namespace of this name?
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        name == NAMESPACE
            || self.0.configured.contains_key(name)
            || self.lock_records().contains_key(name)
    }

    /// Make a namespace, or change its description. Returns the index of the change,
    /// which is durable.
    ///
    /// # Errors
    /// See [`NamespaceError`]. With [`NamespaceError::Unanswered`] it is not known whether it was made.
    pub async fn put(&self, name: Namespace, description: String) -> Result<u64, NamespaceError> {
        if description.len() > NAMESPACE_DESCRIPTION_BYTES_MAX {
            return Err(NamespaceError::Description { bytes: description.len() });
        }
        let _turn = self.lock_turn(&name).await?;
        let known = self.lock_records().get(&name).cloned();
        if known.is_none() && self.lock_records().len() >= NAMESPACES_MAX {
            return Err(NamespaceError::TooMany);
        }
        let index = self.next_index();
        let create_index = known.map_or(index, |known| known.create_index);
        let record = NamespaceRecord { description, create_index, modify_index: index };
        let key = NamespaceKey::of(name.clone());
        write_in_time(async { self.0.state.put(&key, &record).await.map(drop) }).await?;
        self.lock_records().insert(name, record);
        self.0.index.send_replace(index);
        Ok(index)
    }

    /// Remove a namespace. Returns the index of the change, which is durable. `jobs`
    /// counts its jobs.
    ///
    /// # Errors
    /// See [`NamespaceError`]. With [`NamespaceError::Unanswered`] it is not known whether it was removed.
    pub async fn delete(
        &self,
        name: Namespace,
        jobs: impl Fn(&Namespace) -> usize,
    ) -> Result<u64, NamespaceError> {
        if name.as_str() == NAMESPACE {
            return Err(NamespaceError::Default);
        }
        let _turn = self.lock_turn(&name).await?;
        let Some(known) = self.lock_records().remove(&name) else {
            return Err(NamespaceError::Unknown { name });
        };
        // From here on no job can come into it.
        let used = jobs(&name);
        let removed = match used {
            0 => {
                let key = NamespaceKey::of(name.clone());
                write_in_time(async { self.0.state.delete(&key).await.map(drop) }).await
            }
            jobs => Err(NamespaceError::InUse { name: name.clone(), jobs }),
        };
        if let Err(error) = removed {
            self.lock_records().insert(name, known);
            return Err(error);
        }
        let index = self.next_index();
        self.0.index.send_replace(index);
        Ok(index)
    }

    async fn lock_turn(
        &self,
        name: &Namespace,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>, NamespaceError> {
        if self.0.configured.contains_key(name) {
            return Err(NamespaceError::Configured { name: name.clone() });
        }
        let turn = clock::timeout(STATE_WRITE_WALL_MAX, self.0.turn.lock()).await;
        turn.ok_or(NamespaceError::Unanswered)
    }

    fn next_index(&self) -> u64 {
        self.0.index.borrow().saturating_add(1).max(millis(&self.0.clock))
    }
}

fn millis(clock: &Clock) -> u64 {
    clock.now().nanos() / 1_000_000
}

async fn write_in_time(
    write: impl Future<Output = Result<(), StateError>>,
) -> Result<(), NamespaceError> {
    match clock::timeout(STATE_WRITE_WALL_MAX, write).await {
        Some(written) => written.map_err(NamespaceError::State),
        None => Err(NamespaceError::Unanswered),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    fn named(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    async fn over(state: &StateStore) -> NodeNamespaces {
        let configured = BTreeMap::from([(named("prod"), "what customers see".to_owned())]);
        let loaded = NodeNamespaces::load(state.clone(), Clock::system(), configured, 0).await;
        loaded.unwrap().0
    }

    #[tokio::test]
    async fn one_that_was_made_is_there_after_a_restart_with_its_description() {
        let state = StateStore::in_memory().unwrap();
        let all = over(&state).await;
        let made = all.put(named("dev"), "for trying".to_owned()).await.unwrap();
        let changed = all.put(named("dev"), "for trials".to_owned()).await.unwrap();
        assert!(changed > made && *all.indexes().borrow() == changed);
        let again = over(&state).await;
        let dev = &again.all()[&named("dev")];
        assert_eq!((&*dev.description, dev.create_index), ("for trials", made));
        assert!(again.has("dev") && again.has("default") && again.has("prod"));
        assert!(*again.indexes().borrow() > changed, "no index is given out twice");
    }

    #[tokio::test]
    async fn those_of_the_configuration_default_and_those_in_use_cannot_be_removed() {
        let state = StateStore::in_memory().unwrap();
        let all = over(&state).await;
        all.put(named("dev"), String::new()).await.unwrap();
        let none = |_: &Namespace| 0;
        let refused = all.delete(named("prod"), none).await.unwrap_err();
        assert!(refused.to_string().contains("configuration"), "{refused}");
        let refused = all.put(named("prod"), "mine".to_owned()).await.unwrap_err();
        assert!(refused.to_string().contains("configuration"), "{refused}");
        assert!(matches!(all.delete(named("default"), none).await, Err(NamespaceError::Default)));
        let refused = all.delete(named("dev"), |_| 2).await.unwrap_err();
        assert!(refused.to_string().contains("2 jobs"), "{refused}");
        assert!(all.has("dev"));
        all.delete(named("dev"), none).await.unwrap();
        assert!(!all.has("dev") && !over(&state).await.has("dev"));
        let gone = all.delete(named("dev"), none).await;
        assert!(matches!(gone, Err(NamespaceError::Unknown { .. })));
        let long = all.put(named("x"), "y".repeat(257)).await;
        assert!(matches!(long, Err(NamespaceError::Description { bytes: 257 })));
    }
}
