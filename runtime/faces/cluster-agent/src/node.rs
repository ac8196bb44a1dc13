//! Implements the loops' view of a node for the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostler_agent::AgentHandle;
use ostler_cluster::NodeStanding;
use ostler_cluster::client::{ClusterNode, EnterError, PlacedAlloc, UnenteredAllocs};
use ostler_control::SubmitError;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::causes;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::ports::BoxFuture;
use ostler_model::saved::AcknowledgedState;
use ostler_node::NodeView;
use tokio::sync::watch;

/// The agent as a [`ClusterNode`]; see the module.
pub(crate) struct AgentNode(pub(crate) AgentHandle);

impl ClusterNode for AgentNode {
    fn views(&self) -> watch::Receiver<Arc<NodeView>> {
        self.0.node_views()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.control().changes()
    }

    fn assigned_allocs(&self) -> Vec<(AllocId, u64)> {
        let assigned = self.0.control().assigned_allocs().into_iter();
        assigned.map(|alloc| (alloc.allocation.id, alloc.modify_index)).collect()
    }

    fn alloc(&self, id: AllocId) -> Option<PlacedAlloc> {
        let view = self.0.control().alloc(id)?;
        Some(PlacedAlloc { ended: view.phase.has_ended(), allocation: view.allocation })
    }

    fn is_entering(&self, id: AllocId) -> bool {
        self.0.control().is_entering(id)
    }

    fn state(&self, id: AllocId) -> Option<AcknowledgedState> {
        self.0
            .control()
            .alloc(id)
            .map(|view| ostler_control::acknowledgement::acknowledged_state(&view.state))
    }

    fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> BoxFuture<'_, Result<UnenteredAllocs, EnterError>> {
        Box::pin(async move {
            let assigned = self.0.assign(job, allocs).await.map_err(|error| {
                let why = causes::chain(&error);
                match error {
                    SubmitError::Config(_) | SubmitError::TooManyTasks { .. } => {
                        EnterError::CannotRun(why)
                    }
                    _ => EnterError::NotEntered(why),
                }
            })?;
            Ok(assigned.refused.into_iter().collect())
        })
    }

    fn stop<'a>(
        &'a self,
        alloc: &'a Allocation,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let stopped = self.0.stop_assigned(alloc, reason).await;
            stopped.map(drop).map_err(|error| causes::chain(&error))
        })
    }

    fn silence_limits(&self) -> Vec<(Arc<Allocation>, Duration)> {
        let running = self.0.control().assigned_allocs().into_iter().map(|alloc| alloc.allocation);
        let runs = running.filter(|alloc| alloc.desired == DesiredStatus::Run);
        let stands = |alloc: Arc<Allocation>| {
            let after = alloc.task_group()?.stop_after_disconnect?;
            Some((alloc, after))
        };
        runs.filter_map(stands).collect()
    }

    fn keep_standing(&self, standing: NodeStanding) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let NodeStanding { registered, identity } = standing;
            let kept = self.0.keep_standing(registered.then(|| identity.unwrap_or_default()));
            kept.await.map_err(|error| causes::chain(&error))
        })
    }

    fn collect(&self, id: AllocId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.0
                .control()
                .collect(Some(id))
                .await
                .map(drop)
                .map_err(|error| causes::chain(&error))
        })
    }

    fn acknowledge<'a>(
        &'a self,
        told: &'a BTreeMap<AllocId, AcknowledgedState>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(
            async move { self.0.acknowledge(told).await.map_err(|error| causes::chain(&error)) },
        )
    }

    fn mark_ends_known(&self, allocs: Vec<AllocId>) -> BoxFuture<'_, ()> {
        Box::pin(self.0.control().mark_ends_told(allocs))
    }

    fn acknowledged_states(&self, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState> {
        self.0.acknowledged_states(of)
    }
}
