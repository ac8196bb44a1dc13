//! The first message to a worker. Only an agent sends it to a worker that it starts itself, so the
//! format may change with each build.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The first message on a new worker's standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The worker's own directory, for its socket, record and log.
    pub dir: PathBuf,
    /// Which tasks the worker takes; written into its record.
    pub key: String,
    /// Directories that its tasks may read and write, with all below them.
    pub write: Vec<PathBuf>,
    /// Directories that its tasks may only read, with all below them.
    pub read: Vec<PathBuf>,
    /// Most WASM tasks alive at once.
    pub task_instances: u32,
    /// Whether the tasks are held in the dense profile.
    pub dense: bool,
    /// File of the network namespace that the worker enters; absent: the agent's own.
    pub network: Option<PathBuf>,
}
