//! Whom an agent is there for, and what outlives it.

/// How long what an agent has is there, and who may ask it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentMode {
    /// It serves whoever asks. State and tasks outlive it: the next agent on its data directory owns
    /// them.
    Durable,
    /// It serves whoever asks. Its state is in memory, and its tasks end with it.
    InMemory,
    /// It is there for one command (`ostler run`) and serves nobody else. Its tasks end with it.
    Embedded,
}

impl AgentMode {
    /// Do tasks end with the agent?
    #[must_use]
    pub const fn ends_tasks(self) -> bool {
        matches!(self, Self::InMemory | Self::Embedded)
    }

    /// Does it take jobs of others, collect what is over and follow a jobs directory?
    #[must_use]
    pub const fn serves(self) -> bool {
        matches!(self, Self::Durable | Self::InMemory)
    }
}
