//! What is asked of the node as a whole, and of what failed on it; where in a trace it belongs.

use super::{ControlHandle, registered};
use crate::error::SubmitError;
use crate::machine::{Answer, Ask, JobAction};
use crate::node_drain::{NodeAsk, NodeAskError};
use crate::owner::Message;
use crate::views::Registered;
use ostler_model::ids::JobId;
use ostler_model::scheduling::NodeScheduling;
use ostler_trace::TraceContext;

impl ControlHandle {
    /// Give what failed of a job its successors now, whatever its `reschedule` says: its new allocations.
    /// What does not fit waits.
    ///
    /// # Errors
    /// When there is no such job, and as [`ControlHandle::register`].
    pub async fn reschedule(&self, id: &JobId) -> Result<Registered, SubmitError> {
        self.known(id)?;
        Ok(registered(self.change(id.clone(), JobAction::Reschedule, false).await?))
    }

    /// Make the node take what is new, or not, or empty it. The index of the change, which is durable; a
    /// drain goes on for as long as it takes.
    ///
    /// # Errors
    /// When it is being drained and is to be eligible, the deadline is too far away, or it cannot be made
    /// durable: then the node is as before.
    pub async fn schedule(&self, asked: NodeAsk) -> Result<u64, NodeAskError> {
        match self.ask(Ask::Schedule(asked)).await {
            Some(Answer::Scheduled(result)) => result,
            _ => Err(NodeAskError::Leaving),
        }
    }

    /// What is placed of a job by later requests belongs there in a trace, or in none. For requests that have no
    /// place for it as [`crate::RegisterOptions`] has; decides nothing.
    pub async fn trace(&self, job: &JobId, trace: Option<TraceContext>) {
        let message = Message::Trace { job: job.clone(), trace };
        if self.queue.send(message).await.is_err() {
            tracing::debug!(%job, "the agent ends: what is asked has no trace");
        }
    }

    /// Whether the node takes what is new, how it is emptied, and what happened to it.
    #[must_use]
    pub fn scheduling(&self) -> NodeScheduling {
        self.look(|tables| tables.scheduling().clone())
    }
}
