//! How many guests the agent holds, for who measures it.

use super::AgentHandle;
use ostler_sandbox::EngineKind;

/// Guests of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPool {
    /// `plugins` or `tasks`.
    pub of: &'static str,
    /// Instances of core modules that are there now.
    pub instances: u64,
    /// Guests that there is room for at once.
    pub room: u32,
}

impl AgentHandle {
    /// Guests of the agent's own process: plugins, and WASM tasks where no worker has them.
    #[must_use]
    pub fn guests(&self) -> Vec<GuestPool> {
        let sandbox = &self.0.services.sandbox;
        let pool = |(of, kind)| GuestPool {
            of,
            instances: sandbox.pool_use(kind).instances,
            room: sandbox.pool(kind).got,
        };
        [("plugins", EngineKind::Plugin), ("tasks", EngineKind::Task)]
            .into_iter()
            .map(pool)
            .collect()
    }
}
