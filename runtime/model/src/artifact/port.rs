//! What a task's owner asks of those who fetch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ArtifactMode, ArtifactOutcome, ArtifactSource};
use crate::ports::BoxFuture;

/// One thing to be fetched, everything in it replaced.
#[derive(Clone, Debug)]
pub struct ArtifactAsk {
    /// Where it is.
    pub source: ArtifactSource,
    /// Headers of the request.
    pub headers: Vec<(String, String)>,
    /// What is to come of it.
    pub mode: ArtifactMode,
    /// Most bytes that it may become, where its allocation has a bound: what is left of that.
    pub room_bytes: Option<u64>,
}

/// Why something was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ArtifactError {
    /// For people; nothing secret is in it.
    pub reason: String,
    /// May it go better next time?
    pub recoverable: bool,
}

impl ArtifactError {
    /// Which trying again does not help.
    pub fn lasting(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: false }
    }

    /// Which may pass.
    pub fn passing(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: true }
    }
}

/// Told how far a download is: bytes, and of how many where that is known. First of all, that it begins: what is
/// kept is given without a word.
pub type FetchProgress = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A file that stays where it is as long as this is held.
pub trait KeptFile: Send + Sync {
    /// Where it is on the node.
    fn path(&self) -> &Path;
}

/// Something fetched, where no task sees it. It goes with this, unless it was moved away.
pub struct Staged {
    /// A file, or a directory whose entries are what is meant.
    pub path: PathBuf,
    /// What it is.
    pub outcome: ArtifactOutcome,
    /// Keeps it there.
    pub held: Box<dyn Send + Sync>,
}

/// Those who fetch. Dropping what they answer with breaks a download off, and nothing is left of it.
pub trait Artifacts: Send + Sync {
    /// Fetch something, to be moved into the directory of an allocation.
    fn fetch(
        &self,
        ask: ArtifactAsk,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Staged, ArtifactError>>;

    /// Fetch a WASM module, to be read where it is kept.
    fn module(
        &self,
        ask: ArtifactAsk,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Arc<dyn KeptFile>, ArtifactError>>;
}
