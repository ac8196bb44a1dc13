//! What goes on beside a started agent for as long as it runs.

use crate::AgentHandle;
use crate::networks::node_facts;
use crate::node_cores::node_cores;
use ostler_model::config::ClientConfig;
use ostler_node::refresh;

/// Keep the facts about the machine fresh until the agent ends.
pub(super) fn refresh_node(agent: &AgentHandle, client: ClientConfig) {
    let dir = agent.0.data_dir.clone();
    let (node, processes) = (agent.0.node.clone(), agent.0.services.processes.clone());
    let look = move || {
        let (dir, client, node) = (dir.clone(), client.clone(), node.clone());
        let processes = processes.clone();
        async move {
            let looked = tokio::task::spawn_blocking(move || {
                // A core may have been switched on or off.
                let cores = node_cores(&processes);
                node.update(|view| view.set_cores(cores));
                node_facts(&dir, &client)
            });
            looked.await.map_err(|_| refresh::NodeFingerprintError)
        }
    };
    agent.spawn_beside(refresh::keep_fresh(agent.0.node.clone(), agent.0.ended.clone(), look));
}
