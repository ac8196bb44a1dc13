//! Which cores of this node tasks may have for themselves.

use ostler_node::NodeCores;
use ostler_process::ProcessHost;

/// Cores that tasks may have for themselves.
pub(crate) fn node_cores(processes: &ProcessHost) -> NodeCores {
    let ids = processes.cores();
    let missing = match &processes.cgroup_status().unavailable {
        Some(why) if ids.is_empty() => why.to_string(),
        _ => String::new(),
    };
    NodeCores { ids, missing }
}
