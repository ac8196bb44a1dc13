//! Whether the node takes what is new, and how it is emptied.

use super::{AgentHandle, SubmitError};
use ostler_control::Registered;
use ostler_control::node_drain::{NodeAsk, NodeAskError};
use ostler_model::ids::JobId;
use ostler_model::scheduling::NodeScheduling;

impl AgentHandle {
    /// Whether the node takes what is new, how it is emptied, and what happened to it.
    #[must_use]
    pub fn scheduling(&self) -> NodeScheduling {
        self.0.control.scheduling()
    }

    /// Make the node take what is new, or not, or empty it. The index of the change, which is durable; a
    /// drain goes on for as long as it takes.
    ///
    /// # Errors
    /// When it is being drained and is to be eligible, the deadline is too far away, servers decide on it,
    /// or it cannot be made durable.
    pub async fn schedule(&self, asked: NodeAsk) -> Result<u64, NodeAskError> {
        self.takes_jobs().map_err(|_| NodeAskError::Joined)?;
        self.0.control.schedule(asked).await
    }

    /// Give what failed of a job its successors now, whatever its `reschedule` says.
    ///
    /// # Errors
    /// When there is no such job, and as [`AgentHandle::register`].
    pub async fn reschedule(&self, id: &JobId) -> Result<Registered, SubmitError> {
        self.takes_jobs()?;
        self.0.control.reschedule(id).await
    }
}
