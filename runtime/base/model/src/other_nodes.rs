//! What the owner of an allocation asks of the other nodes of a cluster: a narrow trait.
//!
//! ```text
//! hooks ── wait_until_over ─► has the previous allocation, on another node, ended?
//!      └── fetch_disk ─► the bytes of its disk, piece by piece
//! ```

use std::fmt;

use crate::ids::AllocId;
use crate::ports::BoxFuture;

/// Why the disk of an allocation cannot be fetched from another node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDisk {
    /// It failed now, and a later try may work.
    #[error("{0}")]
    Now(String),
    /// No later try will work.
    #[error("{0}")]
    Ever(String),
}

/// The disk of an allocation as it comes from another node.
pub struct RemoteDisk {
    /// Name of that node, for people.
    pub node: String,
    /// The archive of the disk, piece by piece.
    pub pieces: Box<dyn DiskPieces>,
}

/// The bytes of a disk.
pub trait DiskPieces: Send {
    /// The next piece; `None` once the other node says that it has sent all. The wait for a piece
    /// is bounded.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>>;
}

/// The other nodes, and the servers that know of them.
pub trait OtherNodes: fmt::Debug + Send + Sync {
    /// Wait until an allocation of another node has ended, or nobody knows it any more. The wait
    /// has no bound; the future may be dropped.
    ///
    /// # Errors
    /// Why nobody can tell whether the allocation has ended.
    fn wait_until_over(&self, previous: AllocId) -> BoxFuture<'_, Result<(), String>>;

    /// Fetch the disk of `previous`, the ended allocation whose place `new` takes.
    fn fetch_disk(
        &self,
        previous: AllocId,
        new: AllocId,
    ) -> BoxFuture<'_, Result<RemoteDisk, NoDisk>>;
}
