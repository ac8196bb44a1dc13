//! Networks of allocations: those that the node can make, and those that earlier agents left.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::AgentHandle;
use ostler_model::config::ClientConfig;
use ostler_model::ids::AllocId;
use ostler_network::AllocNetworks;
use ostler_node::{NodeView, fingerprint, host_networks};

/// The facts about the machine, and the networks that it can make. Reads files.
pub(super) fn node_facts(dir: &Path, client: &ClientConfig) -> fingerprint::Facts {
    let mut facts = fingerprint::collect_facts(Path::new("/"), dir, client);
    facts.extend(ostler_network::facts(&client.network));
    facts
}

/// Enter in the node's view what the configuration offers to jobs by name: volumes, and addresses
/// for ports.
pub(super) fn fill_node_view(view: &mut NodeView, client: &ClientConfig) {
    view.host_volumes.clone_from(&client.host_volumes);
    let (found, missing) = host_networks::find_host_networks(&client.network.host_networks);
    view.host_networks = found;
    for name in missing {
        tracing::warn!("this node has no address in host network {name}: no port is placed there");
    }
}

impl AgentHandle {
    /// Remove the networks of allocations that are over, which an agent left when it was killed.
    pub(super) fn sweep_networks(&self, networks: Arc<AllocNetworks>, mut left: BTreeSet<AllocId>) {
        self.0.control.read_tables(|tables| {
            for entry in tables.allocs().filter(|entry| !entry.ended) {
                left.remove(&entry.allocation.id);
            }
        });
        if !left.is_empty() {
            self.spawn_beside(async move { networks.sweep(&left).await });
        }
    }
}
