//! What the agent tells of itself, beside what the node has ([`ostler_control::views`]).

use std::time::Duration;

use serde::Serialize;

use ostler_control::Stage;
use ostler_model::ids::PluginName;

/// See [`super::AgentHandle::readiness`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// How far the agent is.
    pub stage: Stage,
    /// Plugins that are loaded and have not said yet whether they can be used. Tasks of such a
    /// driver wait; others do not.
    pub waiting: Vec<PluginName>,
    /// Blocks of plugins that are still being loaded.
    pub loading: Vec<String>,
}

/// How the agent ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaveMode {
    /// Native tasks run on (those of an embedded agent end). WASM tasks live in this process and
    /// end with it; the next start sees that and starts them again.
    #[default]
    LeaveTasks,
    /// Every allocation is stopped in order and, at the deadline, killed. The jobs stay: the next
    /// start runs them again.
    Drain {
        /// From now.
        deadline: Duration,
    },
}
