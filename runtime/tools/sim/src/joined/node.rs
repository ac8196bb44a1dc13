//! A simulated node as the loops of the cluster see it, and what is checked of what they do with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_cluster::NodeStanding;
use ostler_cluster::client::{ClusterNode, EnterError, PlacedAlloc, UnenteredAllocs};
use ostler_control::{ControlHandle, SubmitError, acknowledgement};
use ostler_model::alloc::Allocation;
use ostler_model::causes;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::ports::BoxFuture;
use ostler_model::saved::AcknowledgedState;
use ostler_node::{NodePublisher, NodeView};
use ostler_state::StateStore;
use tokio::sync::watch;

use super::servers::copy_of;
use crate::play::agent::Agent;
use crate::world::World;

/// See the module.
pub(crate) struct SimNode {
    control: ControlHandle,
    state: StateStore,
    node: NodePublisher,
    world: World,
    /// Number of the newest copy of each allocation that was carried out.
    copies: Mutex<BTreeMap<AllocId, u64>>,
    /// Those that were seen to have ended, on this agent or an earlier one.
    ended: Arc<Mutex<BTreeSet<AllocId>>>,
}

impl SimNode {
    pub(crate) fn new(agent: &Agent, world: &World, ended: &Arc<Mutex<BTreeSet<AllocId>>>) -> Self {
        let (control, state, node) =
            (agent.control.clone(), agent.state.clone(), agent.node.clone());
        let (world, ended) = (world.clone(), Arc::clone(ended));
        Self { control, state, node, world, copies: Mutex::default(), ended }
    }

    /// A copy is carried out: not one that is older than what was.
    fn carries_out(&self, alloc: &Allocation) {
        let Some(copy) = copy_of(alloc) else { return };
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = copies.entry(alloc.id).or_insert(copy);
        if copy < *newest {
            let text = format!("copy {copy} of {} is carried out after {newest}", alloc.id.short());
            self.world.lock().break_with(text);
        }
        *newest = copy.max(*newest);
    }
}

impl ClusterNode for SimNode {
    fn views(&self) -> watch::Receiver<Arc<NodeView>> {
        self.node.subscribe()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.control.changes()
    }

    fn assigned_allocs(&self) -> Vec<(AllocId, u64)> {
        let assigned = self.control.assigned_allocs().into_iter();
        assigned.map(|alloc| (alloc.allocation.id, alloc.modify_index)).collect()
    }

    fn alloc(&self, id: AllocId) -> Option<PlacedAlloc> {
        let view = self.control.alloc(id)?;
        Some(PlacedAlloc { ended: view.phase.has_ended(), allocation: view.allocation })
    }

    fn is_entering(&self, id: AllocId) -> bool {
        self.control.is_entering(id)
    }

    fn state(&self, id: AllocId) -> Option<AcknowledgedState> {
        self.control.alloc(id).map(|view| acknowledgement::acknowledged_state(&view.state))
    }

    fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> BoxFuture<'_, Result<UnenteredAllocs, EnterError>> {
        Box::pin(async move {
            for alloc in &allocs {
                self.carries_out(alloc);
                self.world.note(&format!("assign {}", alloc.id.short()));
                let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                if ended.contains(&alloc.id) && self.control.alloc(alloc.id).is_none() {
                    let text = format!("{} has ended and gone, and runs again", alloc.id.short());
                    self.world.lock().break_with(text);
                }
            }
            let assigned = self.control.assign(job, allocs).await.map_err(|error| {
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
            self.world.note(&format!("stop {}: {reason}", alloc.id.short()));
            let stopped = self.control.stop_alloc(alloc.job.id.clone(), alloc.id, reason, false);
            stopped.await.map(drop).map_err(|error| causes::chain(&error))
        })
    }

    fn collect(&self, id: AllocId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.world.note(&format!("collect {}", id.short()));
            self.control.collect(Some(id)).await.map(drop).map_err(|error| causes::chain(&error))
        })
    }

    fn acknowledge<'a>(
        &'a self,
        told: &'a BTreeMap<AllocId, AcknowledgedState>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let kept = acknowledgement::keep_acknowledged(&self.control, &self.state, told).await;
            kept.map_err(|error| causes::chain(&error))
        })
    }

    fn mark_ends_known(&self, allocs: Vec<AllocId>) -> BoxFuture<'_, ()> {
        Box::pin(self.control.mark_ends_told(allocs))
    }

    /// None of what the servers place here says so.
    fn silence_limits(&self) -> Vec<(Arc<Allocation>, Duration)> {
        Vec::new()
    }

    /// The double signs nothing.
    fn keep_standing(&self, _: NodeStanding) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn acknowledged_states(&self, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState> {
        acknowledgement::read_acknowledged(&self.state, of)
    }
}
