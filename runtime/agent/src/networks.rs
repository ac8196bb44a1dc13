//! Networks of allocations: what the node can make of them, and those that earlier agents left.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::AgentHandle;
use ostler_model::config::ClientConfig;
use ostler_model::ids::AllocId;
use ostler_network::AllocNetworks;
use ostler_node::{NodeView, fingerprint, host_networks};

/// What the machine is, and what networks it can make. Reads files.
pub(super) fn facts(dir: &Path, client: &ClientConfig) -> fingerprint::Facts {
    let mut facts = fingerprint::all(Path::new("/"), dir, client);
    facts.extend(ostler_network::facts(&client.network));
    facts
}

/// What the configuration offers to jobs by name: volumes, and addresses for ports.
pub(super) fn of_node(view: &mut NodeView, client: &ClientConfig) {
    view.host_volumes.clone_from(&client.host_volumes);
    let (found, missing) = host_networks::find(&client.network.host_networks);
    view.host_networks = found;
    for name in missing {
        tracing::warn!("this node has no address in host network {name}: no port is placed there");
    }
}

impl AgentHandle {
    /// Take away networks of allocations that are over, which an agent that was killed left.
    pub(super) fn sweep_networks(&self, networks: Arc<AllocNetworks>, mut left: BTreeSet<AllocId>) {
        self.0.control.look(|tables| {
            for entry in tables.allocs().filter(|entry| !entry.ended) {
                left.remove(&entry.allocation.id);
            }
        });
        if !left.is_empty() {
            self.beside(async move { networks.sweep(&left).await });
        }
    }
}
