//! The cores of this node that tasks may reserve.

use ostler_node::NodeCores;
use ostler_process::ProcessHost;

/// The cores that tasks may have for themselves.
pub(crate) fn node_cores(processes: &ProcessHost) -> NodeCores {
    let ids = processes.cores();
    let missing = match &processes.cgroup_status().unavailable {
        Some(why) if ids.is_empty() => why.to_string(),
        _ => String::new(),
    };
    NodeCores { ids, missing }
}
