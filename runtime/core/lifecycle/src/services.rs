//! The services of a node: those that run now, as the owners of allocations report them, and the
//! permits for checks that are being asked.
//!
//! ```text
//!   owner of an allocation ── set(its services) ──► NodeServices ──► list, changed (API, templates)
//!        └── gone, stopping: remove ────────────────────┘
//! ```
//! The list is not on disk. It is built from what runs, so a new agent has no stale entries. The
//! list of a new agent is incomplete until the allocations that it takes over have reported their
//! services ([`NodeServices::expect`]). When the agent leaves, the list stays as it was
//! ([`NodeServices::freeze`]), because the tasks run on without the agent.

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
pub struct NodeServices(Arc<NodeServicesInner>);

struct NodeServicesInner {
    known: Mutex<ServiceTable>,
    index: watch::Sender<u64>,
    /// How many allocations have not reported their services yet.
    expected: watch::Sender<usize>,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct ServiceTable {
    by_alloc: BTreeMap<AllocId, Vec<Arc<ServiceInstance>>>,
    /// All services in order; built when somebody asks for the list.
    list: Option<Arc<[Arc<ServiceInstance>]>>,
    /// Allocations of an earlier agent that have not reported their services yet.
    expected: BTreeSet<AllocId>,
    frozen: bool,
}

impl NodeServices {
    /// An empty list. `index` is the first index of the list. It is above every index that an
    /// earlier agent gave out, as far as that is known.
    #[must_use]
    pub fn new(index: u64) -> Self {
        Self(Arc::new(NodeServicesInner {
            known: Mutex::default(),
            index: watch::Sender::new(index),
            expected: watch::Sender::new(0),
            places: Arc::new(Semaphore::new(CHECKS_ASKED_MAX)),
        }))
    }

    /// Follow the index of the last change.
    #[must_use]
    pub fn indexes(&self) -> watch::Receiver<u64> {
        self.0.index.subscribe()
    }

    /// The permits for checks: a check that is being asked holds one.
    #[must_use]
    pub fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.places)
    }

    /// These allocations run on from an earlier agent and have services, which their
    /// owners will report.
    pub fn expect(&self, allocs: impl IntoIterator<Item = AllocId>) {
        let mut known = self.lock_table();
        known.expected.extend(allocs);
        self.0.expected.send_replace(known.expected.len());
    }

    /// The agent leaves and the tasks run on: the list does not change any more.
    pub fn freeze(&self) {
        self.lock_table().frozen = true;
    }

    /// Replace the services of an allocation by these.
    pub fn set(&self, alloc: AllocId, services: Vec<ServiceInstance>) {
        let mut known = self.lock_table();
        if known.frozen {
            return;
        }
        // The list changes first, then whoever waits for it is woken; both under the lock.
        let told = known.expected.remove(&alloc).then_some(known.expected.len());
        self.put(&mut known, alloc, services);
        if let Some(left) = told {
            self.0.expected.send_replace(left);
        }
    }

    fn put(&self, known: &mut ServiceTable, alloc: AllocId, services: Vec<ServiceInstance>) {
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
        // Under the lock, because a list and its index belong together.
        self.0.index.send_replace(index);
    }

    /// An allocation offers nothing any more.
    pub fn remove(&self, alloc: AllocId) {
        self.set(alloc, Vec::new());
    }

    fn lock_table(&self) -> MutexGuard<'_, ServiceTable> {
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
        let mut known = self.lock_table();
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

    fn wait_until_restored(&self) -> BoxFuture<'static, ()> {
        let mut expected = self.0.expected.subscribe();
        Box::pin(async move {
            let all = expected.wait_for(|left| *left == 0);
            // After the timeout, or when nobody reports any more, the list counts as complete.
            let _there = clock::timeout(SERVICES_RESTORED_WALL_MAX, all).await;
        })
    }

    fn wait_for_change(&self, index: u64) -> BoxFuture<'static, ()> {
        wait_for_change(self.0.index.subscribe(), index)
    }
}

/// Wait until an index differs from `seen`. The wait never ends when the index does not change any
/// more. It may be dropped and begun again.
#[must_use]
pub fn wait_for_change(mut index: watch::Receiver<u64>, seen: u64) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if index.wait_for(|now| *now != seen).await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
