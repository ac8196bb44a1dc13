//! The services of one allocation: which are up now, how they are listed, and how their
//! checks are asked.
//!
//! ```text
//!   task states ─► [`offer`]: since when is each there ─► [`resolve`]: names, address, questions
//!                                                              │
//!                       the list of the node ◄─────────────────┴──► checks, their results, restarts
//! ```
//! The hook `services` runs this for the life of the allocation ([`super::hooks`]).

pub mod offer;
pub mod resolve;

use std::sync::{Arc, Mutex, PoisonError};

use super::health::CheckResult;
use crate::context::NodeContext;
use crate::watch;
use ostler_model::alloc::Allocation;
use ostler_model::ids::AllocId;
use ostler_model::service::ServiceInstance;

/// The services of an allocation, as its owner, hooks and handles share them. Clones
/// share the state.
#[derive(Clone)]
pub struct AllocServices {
    /// The node, whose list of services they are on.
    node: Arc<NodeContext>,
    /// The newest copy of the allocation that the hooks have seen.
    pub newest: watch::Publisher<Arc<Allocation>>,
    /// The results of the checks in file order, without those of services that are not up.
    pub results: watch::Publisher<Arc<[CheckResult]>>,
    open: Arc<Mutex<bool>>,
}

impl AllocServices {
    /// The services of an allocation that offers nothing yet.
    #[must_use]
    pub fn new(node: Arc<NodeContext>, allocation: Arc<Allocation>) -> Self {
        Self {
            node,
            newest: watch::Publisher::new(allocation),
            results: watch::Publisher::new(Arc::from([])),
            open: Arc::new(Mutex::new(true)),
        }
    }

    /// List these services as those of the allocation. Does nothing after [`AllocServices::close`].
    pub fn offer(&self, alloc: AllocId, services: Vec<ServiceInstance>) {
        // The lock is held during the change, so that a closed list stays empty.
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if *open {
            self.node.services.set(alloc, services);
        }
    }

    /// Take all services off the list, for good.
    pub fn close(&self, alloc: AllocId) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = false;
        self.node.services.remove(alloc);
        self.results.send_if_modified(|results| {
            let some = !results.is_empty();
            if some {
                *results = Arc::from([]);
            }
            some
        });
    }
}
