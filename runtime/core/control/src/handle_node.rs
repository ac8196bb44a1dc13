//! Requests about the node as a whole and about what failed on it, and the trace that a job belongs
//! to.

use super::{ControlHandle, register_outcome};
use crate::error::SubmitError;
use crate::machine::{ControlAnswer, ControlRequest, JobAction};
use crate::node_drain::{NodeAsk, NodeAskError};
use crate::owner::Message;
use crate::views::RegisterOutcome;
use ostler_model::ids::JobId;
use ostler_model::scheduling::NodeScheduling;
use ostler_trace::TraceContext;

impl ControlHandle {
    /// Give the failed allocations of a job their successors now, whatever its `reschedule` says.
    /// Returns the new allocations. What does not fit waits.
    ///
    /// # Errors
    /// When there is no such job, and as [`ControlHandle::register`].
    pub async fn reschedule(&self, id: &JobId) -> Result<RegisterOutcome, SubmitError> {
        self.require_job(id)?;
        Ok(register_outcome(self.change(id.clone(), JobAction::Reschedule, false).await?))
    }

    /// Change whether the node takes new allocations, or drain it. Returns the index of the change,
    /// which is durable; a drain goes on for as long as it takes.
    ///
    /// # Errors
    /// When the node is being drained and is to be eligible, the deadline is too far away, or the
    /// change cannot be made durable: then the node is as before.
    pub async fn schedule(&self, asked: NodeAsk) -> Result<u64, NodeAskError> {
        match self.ask(ControlRequest::Schedule(asked)).await {
            Some(ControlAnswer::Scheduled(result)) => result,
            _ => Err(NodeAskError::Leaving),
        }
    }

    /// Set the trace for what later requests place of a job, or none. It is for requests that have
    /// no field for it as [`crate::RegisterOptions`] has, and decides nothing.
    pub async fn set_trace(&self, job: &JobId, trace: Option<TraceContext>) {
        let message = Message::Trace { job: job.clone(), trace };
        if self.queue.send(message).await.is_err() {
            tracing::debug!(%job, "the agent is shutting down: the trace of the job is not set");
        }
    }

    /// Whether the node takes new allocations, its drain, and its last events.
    #[must_use]
    pub fn scheduling(&self) -> NodeScheduling {
        self.read_tables(|tables| tables.scheduling().clone())
    }
}
