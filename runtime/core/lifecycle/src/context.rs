//! What all allocations of a node share, and what an allocation shares with its tasks.
//!
//! ```text
//!   NodeContext (one for the node)         drivers, store, clock, limits, hooks …
//!       ├── AllocScope ─┐
//!       └── TaskScope ──┴── AllocContext (one for an allocation)   facts, network, trace …
//! ```
//! Each is made once and never copied. A scope has what is its own beside them: the newest copy of
//! the allocation, its directories, its queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::alloc::hooks::AllocHook;
use crate::alloc::users::AllocUsers;
use crate::alloc::{DiskWatch, PreviousAlloc};
use crate::services::NodeServices;
use crate::task::NetworkSlot;
use crate::task::env::NodeFacts;
use crate::task::hooks::TaskHook;
use crate::task::late_dirs::LateDirsQueue;
use ostler_model::artifact::Artifacts;
use ostler_model::clock::Clock;
use ostler_model::network::Networks;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::{Devices, Drivers, Workloads};
use ostler_model::rng::Rng;
use ostler_model::vars::VariableStore;
use ostler_state::StateStore;
use ostler_trace::TracedAlloc;

/// The parts of the node that its allocations and their tasks use.
pub struct NodeContext {
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
    /// The drivers that run tasks.
    pub drivers: Arc<dyn Drivers>,
    /// The workloads that the host itself runs.
    pub workloads: Arc<dyn Workloads>,
    /// The node's devices.
    pub devices: Arc<dyn Devices>,
    /// Fetches the artifacts of tasks; `None` where the agent fetches nothing.
    pub artifacts: Option<Arc<dyn Artifacts>>,
    /// The store of the records.
    pub state: StateStore,
    /// The clock that all times are read from.
    pub clock: Clock,
    /// The source of random numbers: ids, jitter, dynamic ports.
    pub rng: Rng,
    /// Longest `kill_timeout` honoured;
    /// [`ostler_model::limits::KILL_TIMEOUT_MAX`] unless configured.
    pub kill_timeout_max: Duration,
    /// Secrets of tasks are kept in memory, where the agent may mount a file system for them.
    pub secrets_in_memory: bool,
    /// Gives allocations user ids of their own.
    pub users: AllocUsers,
    /// Measures what allocations have on disk.
    pub disk_watch: DiskWatch,
    /// Tasks that run without their directories.
    pub late_dirs: LateDirsQueue,
    /// The services that run on the node.
    pub services: NodeServices,
    /// The variables that the agent keeps for tasks.
    pub variables: Arc<dyn VariableStore>,
    /// The other nodes of the cluster; `None` where this node is in no cluster.
    pub other_nodes: Option<Arc<dyn OtherNodes>>,
    /// Makes networks of allocations.
    pub networks: Arc<dyn Networks>,
    /// What happens around the run of an allocation; [`crate::alloc::hooks::standard`].
    pub alloc_hooks: Vec<Arc<dyn AllocHook>>,
    /// What happens around the runs of a task; [`crate::task::hooks::standard`].
    pub task_hooks: Vec<Arc<dyn TaskHook>>,
}

/// What an allocation and its tasks share from the start of its owner to its end.
pub struct AllocContext {
    /// The node as it was at the start of the owner, for `${…}` and the environment.
    pub facts: Arc<NodeFacts>,
    /// Address of the node for ports of services that are numbers.
    pub host_ip: Arc<str>,
    /// Earlier allocations of the same place that this node runs, newest first. The owner waits for
    /// each of them.
    pub previous: Vec<PreviousAlloc>,
    /// The networks of the allocation, once they are made.
    pub network: NetworkSlot,
    /// The trace of the allocation, where it has one.
    pub trace: TracedAlloc,
}

#[cfg(test)]
mod doubles {
    use std::path::Path;

    use super::*;
    use crate::alloc::DirectoryMeter;
    use ostler_model::network::HostNetworkOnly;
    use ostler_testing::fake_driver::FakeNode;
    use ostler_testing::fake_variables::FakeVariables;

    impl NodeContext {
        /// A scripted node.
        pub(crate) fn with_doubles(
            root: &Path,
            node: &FakeNode,
            state: StateStore,
            clock: Clock,
        ) -> Self {
            let disk_watch =
                DiskWatch::new(root.to_owned(), Arc::new(DirectoryMeter), clock.clone());
            Self {
                alloc_root: root.to_owned(),
                drivers: Arc::new(node.clone()),
                workloads: Arc::new(node.clone()),
                devices: Arc::new(node.clone()),
                artifacts: None,
                state,
                clock,
                rng: Rng::from_seed(1),
                kill_timeout_max: ostler_model::limits::KILL_TIMEOUT_MAX,
                secrets_in_memory: false,
                users: AllocUsers::default(),
                disk_watch,
                late_dirs: LateDirsQueue::default(),
                services: NodeServices::default(),
                variables: Arc::new(FakeVariables::default()),
                other_nodes: None,
                networks: Arc::new(HostNetworkOnly),
                alloc_hooks: crate::alloc::hooks::standard(),
                task_hooks: crate::task::hooks::standard(),
            }
        }
    }

    impl Default for AllocContext {
        fn default() -> Self {
            Self {
                facts: Arc::default(),
                host_ip: Arc::from("127.0.0.1"),
                previous: Vec::new(),
                network: NetworkSlot::default(),
                trace: None,
            }
        }
    }
}
