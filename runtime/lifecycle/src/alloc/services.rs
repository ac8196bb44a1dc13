//! The services of one allocation: which are there now, what is said of them, and how they are asked.
//!
//! ```text
//!   task states ─► [`offered`]: since when is each there ─► [`resolve`]: names, address, questions
//!                                                                │
//!                       the list of the node ◄───────────────────┴──► checks, their results, restarts
//! ```
//! The hook `services` runs this for the life of the allocation ([`super::hooks`]).

pub mod offered;
pub mod resolve;

use std::sync::{Arc, Mutex, PoisonError};

use super::health::CheckResult;
use crate::services::NodeServices;
use crate::watch;
use ostler_model::alloc::Allocation;
use ostler_model::ids::AllocId;
use ostler_model::service::ServiceInstance;

/// What the owner of an allocation, its hooks and its handles share of its services. Clones share it.
#[derive(Clone)]
pub struct AllocServices {
    /// The list of the node.
    pub node: NodeServices,
    /// Address of the node for ports that are numbers.
    pub host_ip: Arc<str>,
    /// The newest copy of what is asked, once hooks were told.
    pub newest: watch::Publisher<Arc<Allocation>>,
    /// What the checks say; in file order, those of services that are not there left out.
    pub results: watch::Publisher<Arc<[CheckResult]>>,
    open: Arc<Mutex<bool>>,
}

impl AllocServices {
    /// Those of an allocation that offers nothing yet.
    #[must_use]
    pub fn new(node: NodeServices, host_ip: Arc<str>, allocation: Arc<Allocation>) -> Self {
        Self {
            node,
            host_ip,
            newest: watch::Publisher::new(allocation),
            results: watch::Publisher::new(Arc::from([])),
            open: Arc::new(Mutex::new(true)),
        }
    }

    /// These are offered now; none any more once it was closed.
    pub fn offer(&self, alloc: AllocId, services: Vec<ServiceInstance>) {
        // Held meanwhile: what is closed stays so, whoever runs beside.
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if *open {
            self.node.set(alloc, services);
        }
    }

    /// Nothing is offered any more, from here on.
    pub fn close(&self, alloc: AllocId) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *open = false;
        self.node.remove(alloc);
        self.results.send_if_modified(|results| {
            let some = !results.is_empty();
            if some {
                *results = Arc::from([]);
            }
            some
        });
    }
}
