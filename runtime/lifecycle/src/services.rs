//! The services of a node: those that run now, as the owners of allocations say, and the places for
//! checks that are being asked.
//!
//! ```text
//!   owner of an allocation ── set(its services) ──► NodeServices ──► list, changed (API, templates)
//!        └── gone, stopping: remove ────────────────────┘
//! ```
//! Nothing of it is on disk: what runs says what is there, so a new agent has nothing stale. Until the
//! allocations that it takes over have said it ([`NodeServices::expect`]), the list lacks something; and once
//! it leaves, the list stays as it was ([`NodeServices::freeze`]): what runs goes on without it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{CHECKS_ASKED_MAX, SERVICES_RESTORED_WALL_MAX};
use ostler_model::ports::BoxFuture;
use ostler_model::service::{ServiceInstance, ServiceList, Services};

/// The services of a node. Clones share them.
#[derive(Clone)]
pub struct NodeServices(Arc<Inner>);

struct Inner {
    known: Mutex<Known>,
    index: watch::Sender<u64>,
    /// How many allocations have not said yet what they offer.
    expected: watch::Sender<usize>,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Known {
    by_alloc: BTreeMap<AllocId, Vec<Arc<ServiceInstance>>>,
    /// In order; made when it is asked for.
    list: Option<Arc<[Arc<ServiceInstance>]>>,
    /// Allocations of an earlier agent that have not said yet what they offer.
    expected: BTreeSet<AllocId>,
    frozen: bool,
}

impl NodeServices {
    /// None yet. `index` is where their index begins: above any that an earlier agent gave out, as far
    /// as that is known.
    #[must_use]
    pub fn new(index: u64) -> Self {
        Self(Arc::new(Inner {
            known: Mutex::default(),
            index: watch::Sender::new(index),
            expected: watch::Sender::new(0),
            places: Arc::new(Semaphore::new(CHECKS_ASKED_MAX)),
        }))
    }

    /// The index of the last change, as it grows.
    #[must_use]
    pub fn indexes(&self) -> watch::Receiver<u64> {
        self.0.index.subscribe()
    }

    /// A place for each check that is being asked.
    #[must_use]
    pub fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.places)
    }

    /// These allocations run on from an earlier agent and have services: they will be said.
    pub fn expect(&self, allocs: impl IntoIterator<Item = AllocId>) {
        let mut known = self.known();
        known.expected.extend(allocs);
        self.0.expected.send_replace(known.expected.len());
    }

    /// The agent leaves, and what runs goes on: nothing of the list changes any more.
    pub fn freeze(&self) {
        self.known().frozen = true;
    }

    /// These, and no others, are the services of an allocation now.
    pub fn set(&self, alloc: AllocId, services: Vec<ServiceInstance>) {
        let mut known = self.known();
        if known.frozen {
            return;
        }
        // The list first, then who waits for it: below, under the lock.
        let told = known.expected.remove(&alloc).then_some(known.expected.len());
        self.put(&mut known, alloc, services);
        if let Some(left) = told {
            self.0.expected.send_replace(left);
        }
    }

    fn put(&self, known: &mut Known, alloc: AllocId, services: Vec<ServiceInstance>) {
        let before = known.by_alloc.get(&alloc).map_or(&[][..], Vec::as_slice);
        let index = self.0.index.borrow().saturating_add(1);
        let mut changed = before.len() != services.len();
        let now: Vec<_> = services
            .into_iter()
            .map(|service| match before.iter().find(|known| known.id == service.id) {
                None => {
                    changed = true;
                    Arc::new(ServiceInstance {
                        create_index: index,
                        modify_index: index,
                        ..service
                    })
                }
                Some(known) => {
                    let (create_index, modify_index) = (known.create_index, known.modify_index);
                    let same = ServiceInstance { create_index, modify_index, ..service };
                    if **known == same {
                        return Arc::clone(known);
                    }
                    changed = true;
                    Arc::new(ServiceInstance { modify_index: index, ..same })
                }
            })
            .collect();
        if !changed {
            return;
        }
        if now.is_empty() {
            known.by_alloc.remove(&alloc);
        } else {
            known.by_alloc.insert(alloc, now);
        }
        known.list = None;
        // Under the lock: a list and its index belong together.
        self.0.index.send_replace(index);
    }

    /// An allocation offers nothing any more.
    pub fn remove(&self, alloc: AllocId) {
        self.set(alloc, Vec::new());
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for NodeServices {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Services for NodeServices {
    fn list(&self) -> ServiceList {
        let mut known = self.known();
        let instances = match &known.list {
            Some(list) => Arc::clone(list),
            None => {
                let mut all: Vec<_> = known.by_alloc.values().flatten().cloned().collect();
                all.sort_by(|a, b| {
                    (&a.name, &a.namespace, &a.id).cmp(&(&b.name, &b.namespace, &b.id))
                });
                let list: Arc<[_]> = all.into();
                known.list = Some(Arc::clone(&list));
                list
            }
        };
        ServiceList { index: *self.0.index.borrow(), instances }
    }

    fn index(&self) -> u64 {
        *self.0.index.borrow()
    }

    fn restored(&self) -> BoxFuture<'static, ()> {
        let mut expected = self.0.expected.subscribe();
        Box::pin(async move {
            let all = expected.wait_for(|left| *left == 0);
            // Late, or nobody says it any more: the list is what there is.
            let _there = clock::timeout(SERVICES_RESTORED_WALL_MAX, all).await;
        })
    }

    fn changed(&self, index: u64) -> BoxFuture<'static, ()> {
        other_than(self.0.index.subscribe(), index)
    }
}

/// Wait until an index is another one than `seen`; never ends where none comes any more. May be dropped and
/// called again.
#[must_use]
pub fn other_than(mut index: watch::Receiver<u64>, seen: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if index.wait_for(|now| *now != seen).await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
