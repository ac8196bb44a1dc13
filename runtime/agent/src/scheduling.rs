//! The eligibility of the node for new allocations, and its draining.

use super::{AgentHandle, SubmitError};
use ostler_control::RegisterOutcome;
use ostler_control::node_drain::{NodeAsk, NodeAskError};
use ostler_model::ids::JobId;
use ostler_model::scheduling::NodeScheduling;

impl AgentHandle {
    /// The eligibility of the node, the state of its drain, and the history of both.
    #[must_use]
    pub fn scheduling(&self) -> NodeScheduling {
        self.0.control.scheduling()
    }

    /// Make the node eligible or ineligible for new allocations, or drain it. Returns the index of
    /// the change, which is durable. A drain goes on for as long as it takes.
    ///
    /// # Errors
    /// When it is being drained and is to be eligible, the deadline is too far away, servers decide
    /// on it, or it cannot be made durable.
    pub async fn schedule(&self, asked: NodeAsk) -> Result<u64, NodeAskError> {
        self.takes_jobs().map_err(|_| NodeAskError::Joined)?;
        self.0.control.schedule(asked).await
    }

    /// Start successors of the failed allocations of a job now, whatever its `reschedule` says.
    ///
    /// # Errors
    /// When there is no such job, and as [`AgentHandle::register`].
    pub async fn reschedule(&self, id: &JobId) -> Result<RegisterOutcome, SubmitError> {
        self.takes_jobs()?;
        self.0.control.reschedule(id).await
    }
}
