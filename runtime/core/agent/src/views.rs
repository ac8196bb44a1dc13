//! What the agent reports of itself, in addition to the views of the node
//! ([`ostler_control::views`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use ostler_control::AgentStage;
use ostler_model::ids::PluginName;

/// The progress of the agent's start, see [`super::AgentHandle::readiness`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// The stage that the start has reached.
    pub stage: AgentStage,
    /// Plugins that are loaded but have not said yet whether they can be used. Tasks of such a
    /// driver wait; others do not.
    pub waiting: Vec<PluginName>,
    /// Blocks of plugins that are still being loaded.
    pub loading: Vec<String>,
}

/// How the agent ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaveMode {
    /// Tasks run on, native ones below their supervisors and WASM ones in their workers, and the
    /// next agent owns them again. Where the agent's mode ends its tasks
    /// ([`super::AgentMode::ends_tasks`]), they end with it.
    #[default]
    LeaveTasks,
    /// Every allocation is stopped in order, and killed at the deadline. The jobs stay, and the
    /// next start runs them again.
    Drain {
        /// The time that the drain may take, from now.
        deadline: Duration,
    },
}
