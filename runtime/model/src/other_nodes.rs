//! What the owner of an allocation asks of the other nodes of a cluster: a narrow trait.
//!
//! ```text
//! hooks ── over ─► has the previous allocation, on another node, ended?
//!      └── disk ─► the bytes of its disk, piece by piece
//! ```

use std::fmt;

use crate::ids::AllocId;
use crate::ports::BoxFuture;

/// Why the disk of an allocation cannot be had from another node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDisk {
    /// A later try may work.
    #[error("{0}")]
    Now(String),
    /// None will.
    #[error("{0}")]
    Ever(String),
}

/// The disk of an allocation as it comes from another node.
pub struct RemoteDisk {
    /// Which node that is, for people.
    pub node: String,
    /// An archive.
    pub pieces: Box<dyn DiskPieces>,
}

/// The bytes of a disk.
pub trait DiskPieces: Send {
    /// The next ones; `None`: that was all, and the other node says so. Each is waited for only so long.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>>;
}

/// The other nodes, and the servers that know of them.
pub trait OtherNodes: fmt::Debug + Send + Sync {
    /// Wait until an allocation that is not of this node has ended, or nobody knows it any more. As long as
    /// that takes; may be dropped.
    ///
    /// An error says why nobody can tell.
    fn over(&self, previous: AllocId) -> BoxFuture<'_, Result<(), String>>;

    /// The disk of the allocation that was in the place of `new` before, and has ended.
    fn disk(&self, previous: AllocId, new: AllocId) -> BoxFuture<'_, Result<RemoteDisk, NoDisk>>;
}
