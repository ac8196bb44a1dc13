//! The interface between the owner of a task and the fetcher of artifacts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ArtifactMode, ArtifactOutcome, ArtifactSource};
use crate::ports::BoxFuture;

/// A request for one artifact, in whose texts all `${…}` are replaced.
#[derive(Clone, Debug)]
pub struct ArtifactRequest {
    /// Where the artifact is.
    pub source: ArtifactSource,
    /// Headers of the HTTP request.
    pub headers: Vec<(String, String)>,
    /// Whether a file or a directory is to come of it.
    pub mode: ArtifactMode,
    /// Most bytes that the artifact may have on the disk. It is the rest of the allocation's bound,
    /// where there is one.
    pub room_bytes: Option<u64>,
}

/// Why an artifact was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ArtifactError {
    /// The reason for people. Nothing secret is in it.
    pub reason: String,
    /// A later try may succeed.
    pub recoverable: bool,
}

impl ArtifactError {
    /// An error that another try does not help.
    pub fn permanent(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: false }
    }

    /// An error that may pass, so that a later try may succeed.
    pub fn transient(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: true }
    }
}

/// Called with the progress of a download: the bytes so far, and of how many where that is known.
/// The first call comes at the beginning. An artifact from the cache causes no call.
pub type FetchProgress = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A file that stays in its place as long as this value lives.
pub trait PinnedFile: Send + Sync {
    /// Path of the file on the node.
    fn path(&self) -> &Path;
}

/// A fetched artifact in a place that no task sees. It is removed with this value, unless it was
/// moved away.
pub struct StagedArtifact {
    /// Path of the file, or of a directory whose entries make up the artifact.
    pub path: PathBuf,
    /// Whether the artifact is a file, and of what name, or a tree.
    pub outcome: ArtifactOutcome,
    /// Guard that keeps the artifact in its place.
    pub held: Box<dyn Send + Sync>,
}

/// The fetcher of artifacts. Dropping a future of it breaks the download off and leaves
/// nothing behind.
pub trait Artifacts: Send + Sync {
    /// Fetch an artifact, which the caller moves into the directory of an allocation.
    fn fetch(
        &self,
        ask: ArtifactRequest,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<StagedArtifact, ArtifactError>>;

    /// Fetch a WASM module, which the caller reads where it is kept.
    fn fetch_module(
        &self,
        ask: ArtifactRequest,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Arc<dyn PinnedFile>, ArtifactError>>;
}
