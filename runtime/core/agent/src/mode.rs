//! The purpose of an agent, and what outlives it.

/// How long the data of an agent lasts, and who may use the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentMode {
    /// It serves any client. State and tasks outlive it: the next agent on its data directory
    /// owns them.
    Durable,
    /// It serves any client. Its state is in memory, and its tasks end with it.
    InMemory,
    /// It runs for one command (`ostler run`) and serves nobody else. Its tasks end with it.
    Embedded,
}

impl AgentMode {
    /// Whether tasks end with the agent.
    #[must_use]
    pub const fn ends_tasks(self) -> bool {
        matches!(self, Self::InMemory | Self::Embedded)
    }

    /// Whether the agent takes jobs of others, collects what is over and follows a jobs directory.
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Durable | Self::InMemory)
    }
}
