//! The tokens of the agent's API.

use ostler_access::{Tokens, TokensError};
use ostler_model::access::AclConfig;
use ostler_model::rng::Rng;

use super::AgentHandle;

impl AgentHandle {
    /// Load the tokens of a configuration and those that were created before, for the one API of
    /// the agent.
    ///
    /// # Errors
    /// When a secret of the configuration or a token on record cannot be read.
    pub fn tokens(&self, config: &AclConfig) -> Result<Tokens, TokensError> {
        Tokens::load(
            self.0.context.state.clone(),
            self.0.context.clock.clone(),
            Rng::system(),
            config,
        )
    }
}
