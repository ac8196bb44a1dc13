//! What a worker is told before anything else. Only spoken between an agent and the worker that it
//! starts itself, so it may change with each build.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The first message on a new worker's standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Its own directory: socket, record, log.
    pub dir: PathBuf,
    /// What it was made for, for its record.
    pub key: String,
    /// Directories with all below that its tasks may use.
    pub write: Vec<PathBuf>,
    /// The same, to read only.
    pub read: Vec<PathBuf>,
    /// WASM tasks alive at once.
    pub task_instances: u32,
    /// In the dense profile.
    pub dense: bool,
    /// File of the network namespace that it is in.
    pub network: Option<PathBuf>,
}
