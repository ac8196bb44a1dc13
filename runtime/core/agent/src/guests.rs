//! The number of guests that the agent holds, for metrics.

use super::AgentHandle;
use ostler_sandbox::EngineKind;

/// The guests of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPool {
    /// The engine: `plugins` or `tasks`.
    pub of: &'static str,
    /// The number of core module instances at the moment.
    pub instances: u64,
    /// The number of guests that there is room for at once.
    pub room: u32,
}

impl AgentHandle {
    /// The guests of the agent's own process: plugins, and WASM tasks that no worker has.
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
