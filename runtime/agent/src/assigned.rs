//! Allocations that servers place on this node, and what they have heard of them.
//!
//! ```text
//! join ─► jobs are refused here
//! assign, stop_assigned ─► control          acknowledge ─► records ─► acknowledged, after a restart
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use super::AgentHandle;
use ostler_control::acknowledged;
use ostler_control::{AllocError, AllocRef, Assigned, Stopped, SubmitError};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::saved::AcknowledgedState;
use ostler_node::{NodeIdError, NodeView};
use ostler_state::StateError;
use ostler_trace::Registration;

impl AgentHandle {
    /// From now on servers say what runs here: jobs are refused. `false`: the agent has jobs of its own,
    /// and nothing is changed.
    #[must_use]
    pub fn join(&self) -> bool {
        if self.0.jobs_dir.is_some() || !self.jobs().is_empty() {
            return false;
        }
        self.0.joined.store(true, Ordering::SeqCst);
        true
    }

    /// Refused on a node whose servers say what runs.
    pub(super) fn takes_jobs(&self) -> Result<(), SubmitError> {
        match self.0.joined.load(Ordering::SeqCst) {
            true => Err(SubmitError::Joined),
            false => Ok(()),
        }
    }

    /// The node as it is, and hears when it is another one.
    #[must_use]
    pub fn node_views(&self) -> watch::Receiver<Arc<NodeView>> {
        self.0.node.subscribe()
    }

    /// What this node proves with that it is the same one, made once and kept beside its id.
    ///
    /// # Errors
    /// When its file is corrupt, or cannot be read or written.
    pub async fn node_secret(&self) -> Result<String, NodeIdError> {
        let (dir, rng) = (self.0.data_dir.clone(), self.0.services.rng.clone());
        let made = tokio::task::spawn_blocking(move || ostler_node::node_secret(&dir, &rng)).await;
        made.unwrap_or_else(|error| Err(NodeIdError::given_up(&self.0.data_dir, error.into())))
    }

    /// Whether servers have taken this node before, and the identity that they signed for it; empty where they
    /// sign none.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub async fn standing(&self) -> Result<Option<String>, NodeIdError> {
        let dir = self.0.data_dir.clone();
        let read = tokio::task::spawn_blocking(move || ostler_node::standing(&dir)).await;
        read.unwrap_or_else(|error| Err(NodeIdError::given_up(&self.0.data_dir, error.into())))
    }

    /// Keep that.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub async fn keep_standing(&self, standing: Option<String>) -> Result<(), NodeIdError> {
        let dir = self.0.data_dir.clone();
        let keep = move || ostler_node::keep_standing(&dir, standing.as_deref());
        let kept = tokio::task::spawn_blocking(keep).await;
        kept.unwrap_or_else(|error| Err(NodeIdError::given_up(&self.0.data_dir, error.into())))
    }

    /// Allocations that servers placed, whatever became of them.
    #[must_use]
    pub fn assigned(&self) -> Vec<AllocRef> {
        self.0.control.assigned()
    }

    /// Is the record of an allocation on the way to the disk?
    #[must_use]
    pub fn is_entering(&self, id: AllocId) -> bool {
        self.0.control.is_entering(id)
    }

    /// Run allocations that a server placed, all of one job. See [`ostler_control::ControlHandle::assign`].
    ///
    /// # Errors
    /// When the configuration of a task is wrong, or as there.
    pub async fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> Result<Assigned, SubmitError> {
        for alloc in &allocs {
            self.check_all(&alloc.job)?;
        }
        let new = allocs.iter().any(|alloc| self.alloc(alloc.id).is_none());
        if !new || !ostler_trace::is_recording() {
            return self.0.control.assign(job, allocs).await;
        }
        // Servers say nothing of traces: one begins here.
        let registration = Registration::begin(None, job.as_str(), job.namespace(), "servers");
        let assigning = async {
            self.belongs(&job, registration.context).await;
            self.0.control.assign(job.clone(), allocs).await
        };
        registration.run(assigning).await
    }

    /// Stop one of them.
    ///
    /// # Errors
    /// When the stop cannot be made durable.
    pub async fn stop_assigned(
        &self,
        alloc: &Allocation,
        reason: &str,
    ) -> Result<Stopped, AllocError> {
        self.0.control.stop_alloc(alloc.job.id.clone(), alloc.id, reason, false).await
    }

    /// Remember what servers have acknowledged. It may lag: what is lost is told once more.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn acknowledge(
        &self,
        told: &BTreeMap<AllocId, AcknowledgedState>,
    ) -> Result<(), StateError> {
        acknowledged::keep(&self.0.control, &self.0.state, told).await
    }

    /// Servers know how these allocations have ended: they may be collected.
    pub async fn ends_told(&self, allocs: Vec<AllocId>) {
        self.0.control.ends_told(allocs).await;
    }

    /// What servers have acknowledged of these allocations.
    #[must_use]
    pub fn acknowledged(&self, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState> {
        acknowledged::read(&self.0.state, of)
    }
}
