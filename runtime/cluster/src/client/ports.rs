//! What the loops need: of the node that is joined, and to reach a server.

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

use crate::credentials::Standing;
use crate::dial::DialError;
use crate::previous::DiskSource;
use crate::session::{Arrivals, Session};

/// An allocation as the node has it.
#[derive(Clone, Debug)]
pub struct PlacedAlloc {
    /// What was asked, the newest copy.
    pub allocation: Arc<Allocation>,
    /// Nothing of it runs, and that is durable.
    pub ended: bool,
}

/// Those that were not entered now, with the reason: something they need is another one's.
pub type Unentered = BTreeMap<AllocId, String>;

/// Why none of some allocations was entered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnterError {
    /// This node cannot run them, not later either.
    #[error("{0}")]
    CannotRun(String),
    /// Not this time: the disk, most often.
    #[error("{0}")]
    NotEntered(String),
}

/// The node that is joined.
pub trait ClusterNode: Send + Sync {
    /// The node as it is, and hears when it is another one.
    fn views(&self) -> watch::Receiver<Arc<NodeView>>;

    /// Hears when an allocation has changed.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Allocations that servers placed, whatever became of them, each with the index of its last change here.
    fn assigned(&self) -> Vec<(AllocId, u64)>;

    /// One allocation; none too while its record is on the way to the disk.
    fn alloc(&self, id: AllocId) -> Option<PlacedAlloc>;

    /// Is its record on the way to the disk?
    fn is_entering(&self, id: AllocId) -> bool;

    /// What became of one, as servers are told of it.
    fn state(&self, id: AllocId) -> Option<AcknowledgedState>;

    /// Run allocations that a server placed, all of one job: new ones, and newer copies of known ones.
    fn assign(
        &self,
        job: JobId,
        allocs: Vec<Allocation>,
    ) -> BoxFuture<'_, Result<Unentered, EnterError>>;

    /// Stop one of them.
    fn stop<'a>(
        &'a self,
        alloc: &'a Allocation,
        reason: &'a str,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// Those that are to run and end when no server is heard for so long.
    fn ends_unheard(&self) -> Vec<(Arc<Allocation>, Duration)>;

    /// Remove directory and records of one that has ended.
    fn collect(&self, id: AllocId) -> BoxFuture<'_, Result<(), String>>;

    /// Remember what servers have acknowledged. It may lag: what is lost is told once more.
    fn acknowledge<'a>(
        &'a self,
        told: &'a BTreeMap<AllocId, AcknowledgedState>,
    ) -> BoxFuture<'a, Result<(), String>>;

    /// Servers know how these have ended: nothing is lost when they are collected.
    fn ends_told(&self, allocs: Vec<AllocId>) -> BoxFuture<'_, ()>;

    /// Remember how this node stands with the servers.
    fn keep_standing(&self, standing: Standing) -> BoxFuture<'_, Result<(), String>>;

    /// What servers have acknowledged of these, by the records.
    fn acknowledged(&self, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState>;
}

/// The way to the disk of an allocation on another node.
pub trait DiskDoor: Send + Sync {
    /// Ask for it.
    fn fetch<'a>(
        &'a self,
        from: &'a DiskSource,
    ) -> BoxFuture<'a, Result<Box<dyn DiskPieces>, NoDisk>>;
}

/// The way to a server.
pub trait ServerDoor: Send + Sync {
    /// A new connection. Every step of it has a deadline.
    fn dial<'a>(
        &'a self,
        to: &'a ServerAddress,
    ) -> BoxFuture<'a, Result<(Session, Arrivals), DialError>>;
}
