//! The traits that the loops need: the node that is joined, and the ways to servers and disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::other_nodes::{DiskPieces, NoDisk};
use ostler_model::ports::BoxFuture;
use ostler_model::saved::AcknowledgedState;
use ostler_model::server_address::ServerAddress;
use ostler_node::NodeView;
use tokio::sync::watch;

use crate::credentials::NodeStanding;
use crate::dial::DialError;
use crate::previous::DiskSource;
use crate::session::{Arrivals, ClusterSession};

/// An allocation as the node has it.
#[derive(Clone, Debug)]
pub struct PlacedAlloc {
    /// The newest copy of the allocation.
    pub allocation: Arc<Allocation>,
    /// Whether nothing of it runs any more, and that is durable.
    pub ended: bool,
}

/// The allocations that were not entered now, each with the reason: another one has something that
/// it needs.
pub type UnenteredAllocs = BTreeMap<AllocId, String>;

/// Why none of some allocations was entered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnterError {
    /// This node cannot run them, now or later.
    #[error("{0}")]
    CannotRun(String),
    /// They were not entered this time, most often because of the disk.
    #[error("{0}")]
    NotEntered(String),
}

/// The node that joins the cluster.
pub trait ClusterNode: Send + Sync {
    /// The present node, and its changes.
    fn views(&self) -> watch::Receiver<Arc<NodeView>>;

    /// Notified when an allocation has changed.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The allocations that servers placed, in any state. Each has the index of its last change on
    /// this node.
    fn assigned_allocs(&self) -> Vec<(AllocId, u64)>;

    /// An allocation of this node; none while its record is on the way to the disk.
    fn alloc(&self, id: AllocId) -> Option<PlacedAlloc>;

    /// Whether the record of an allocation is on the way to the disk.
    fn is_entering(&self, id: AllocId) -> bool;

    /// The state of an allocation, as it is reported to servers.
    fn state(&self, id: AllocId) -> Option<AcknowledgedState>;

    /// Run allocations of one job that a server placed: new ones, and newer copies of known ones.
    fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> BoxFuture<'_, Result<UnenteredAllocs, EnterError>>;

    /// Stop one of these allocations.
    fn stop<'a>(
        &'a self,
        alloc: &'a Allocation,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// The allocations that run and must be stopped when no server answers for a time, each with
    /// that time.
    fn silence_limits(&self) -> Vec<(Arc<Allocation>, Duration)>;

    /// Remove the directory and the records of an allocation that has ended.
    fn collect(&self, id: AllocId) -> BoxFuture<'_, Result<(), String>>;

    /// Record what servers have acknowledged. The record may lag: a lost report is sent again.
    fn acknowledge<'a>(
        &'a self,
        told: &'a BTreeMap<AllocId, AcknowledgedState>,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// Note that servers know how these allocations have ended, so that they may be collected.
    fn mark_ends_known(&self, allocs: Vec<AllocId>) -> BoxFuture<'_, ()>;

    /// Record the standing of this node with the servers.
    fn keep_standing(&self, standing: NodeStanding) -> BoxFuture<'_, Result<(), String>>;

    /// The recorded states of these allocations that servers have acknowledged.
    fn acknowledged_states(&self, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState>;
}

/// Fetches the disk of an allocation from another node.
pub trait DiskDoor: Send + Sync {
    /// Start to fetch a disk.
    fn fetch<'a>(
        &'a self,
        from: &'a DiskSource,
    ) -> BoxFuture<'a, Result<Box<dyn DiskPieces>, NoDisk>>;
}

/// Connects to servers.
pub trait ServerDoor: Send + Sync {
    /// Open a new connection. Every step has a deadline.
    fn dial<'a>(
        &'a self,
        to: &'a ServerAddress,
    ) -> BoxFuture<'a, Result<(ClusterSession, Arrivals), DialError>>;
}
