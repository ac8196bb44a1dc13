//! Allocations that servers place on this node, and what those servers have acknowledged of them.
//!
//! ```text
//! join ─► jobs are refused here
//! assign, stop_assigned ─► control          acknowledge ─► records ─► acknowledged_states, after a restart
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use super::AgentHandle;
use ostler_control::acknowledgement;
use ostler_control::{AllocError, AssignOutcome, StopOutcome, SubmitError};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::saved::AcknowledgedState;
use ostler_node::{NodeIdError, NodeView};
use ostler_state::StateError;
use ostler_trace::Registration;

impl AgentHandle {
    /// From now on servers decide what runs here, and jobs are refused. Returns `false`, and
    /// changes nothing, if the agent has jobs of its own.
    #[must_use]
    pub fn join(&self) -> bool {
        if self.0.jobs_dir.is_some() || !self.0.control.jobs().is_empty() {
            return false;
        }
        self.0.joined.store(true, Ordering::SeqCst);
        true
    }

    /// Refuse jobs on a node whose servers decide what runs.
    pub(super) fn takes_jobs(&self) -> Result<(), SubmitError> {
        if self.0.joined.load(Ordering::SeqCst) { Err(SubmitError::Joined) } else { Ok(()) }
    }

    /// The current view of the node. The receiver is notified of each change.
    #[must_use]
    pub fn node_views(&self) -> watch::Receiver<Arc<NodeView>> {
        self.0.node.subscribe()
    }

    /// The secret by which this node proves that it is the same one. It is created once and kept
    /// beside the node's id.
    ///
    /// # Errors
    /// When its file is corrupt, or cannot be read or written.
    pub async fn node_secret(&self) -> Result<String, NodeIdError> {
        let (dir, rng) = (self.0.data_dir.clone(), self.0.services.rng.clone());
        let made = tokio::task::spawn_blocking(move || ostler_node::node_secret(&dir, &rng)).await;
        made.unwrap_or_else(|error| {
            Err(NodeIdError::from_secret_read(&self.0.data_dir, error.into()))
        })
    }

    /// The identity that servers signed when they took this node before. It is `None` if no server
    /// ever took the node, and empty if the servers sign no identities.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub async fn read_standing(&self) -> Result<Option<String>, NodeIdError> {
        let dir = self.0.data_dir.clone();
        let read = tokio::task::spawn_blocking(move || ostler_node::load_standing(&dir)).await;
        read.unwrap_or_else(|error| {
            Err(NodeIdError::from_secret_read(&self.0.data_dir, error.into()))
        })
    }

    /// Keep the identity that servers signed for this node.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub async fn keep_standing(&self, standing: Option<String>) -> Result<(), NodeIdError> {
        let dir = self.0.data_dir.clone();
        let keep = move || ostler_node::keep_standing(&dir, standing.as_deref());
        let kept = tokio::task::spawn_blocking(keep).await;
        kept.unwrap_or_else(|error| {
            Err(NodeIdError::from_secret_read(&self.0.data_dir, error.into()))
        })
    }

    /// Run allocations that a server placed, all of one job. See
    /// [`ostler_control::ControlHandle::assign`].
    ///
    /// # Errors
    /// When the configuration of a task is wrong, or as there.
    pub async fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> Result<AssignOutcome, SubmitError> {
        for alloc in &allocs {
            self.check_all(&alloc.job)?;
        }
        let new = allocs.iter().any(|alloc| self.0.control.alloc(alloc.id).is_none());
        if !new || !ostler_trace::is_recording() {
            return self.0.control.assign(job, allocs).await;
        }
        // Servers send no trace, so one begins here.
        let registration = Registration::start_span(None, job.as_str(), job.namespace(), "servers");
        let assigning = async {
            self.assign_trace(&job, registration.context).await;
            self.0.control.assign(job.clone(), allocs).await
        };
        registration.run(assigning).await
    }

    /// Stop one of the assigned allocations.
    ///
    /// # Errors
    /// When the stop cannot be made durable.
    pub async fn stop_assigned(
        &self,
        alloc: &Allocation,
        reason: &str,
    ) -> Result<StopOutcome, AllocError> {
        self.0.control.stop_alloc(alloc.job.id.clone(), alloc.id, reason, false).await
    }

    /// Remember what servers have acknowledged. The write may lag: what is lost is reported
    /// once more.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn acknowledge(
        &self,
        told: &BTreeMap<AllocId, AcknowledgedState>,
    ) -> Result<(), StateError> {
        acknowledgement::keep_acknowledged(&self.0.control, &self.0.context.state, told).await
    }

    /// The states of these allocations that servers have acknowledged.
    #[must_use]
    pub fn acknowledged_states(&self, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState> {
        acknowledgement::read_acknowledged(&self.0.context.state, of)
    }
}
