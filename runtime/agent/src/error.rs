//! Why an agent did not start.

use std::path::PathBuf;

use ostler_lifecycle::alloc::dir::AllocDirError;
use ostler_model::limits::AGENT_OPEN_FILES_MIN;
use ostler_node::NodeIdError;
use ostler_plugin::PluginError;
use ostler_sandbox::{CallError, SandboxError};
use ostler_state::{LockError, StateError};

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data directory cannot be made or used.
    #[error(
        "cannot use the data directory {}: {}; give another with --data-dir",
        path.display(), no_directory(source)
    )]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// It may have too few files open.
    #[error(
        "this process may have only {limit} files open, and an agent needs {AGENT_OPEN_FILES_MIN}; raise the limit \
         (`ulimit -n` in the shell that starts it, LimitNOFILE in its unit)"
    )]
    FewFiles {
        /// How many.
        limit: u64,
    },
    /// It, or a directory that it is to be in, is a file.
    #[error(
        "cannot use the data directory {}: {} is a file, not a directory; give another with \
         --data-dir",
        path.display(),
        file.display()
    )]
    DataDirIsFile {
        /// The directory.
        path: PathBuf,
        /// The file.
        file: PathBuf,
    },
    /// Another agent has it, or it cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The node's identity cannot be read or made.
    #[error(transparent)]
    NodeId(#[from] NodeIdError),
    /// Engines, threads or the code cache.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// WASI for tasks.
    #[error(transparent)]
    Tasks(#[from] CallError),
    /// Host interfaces for plugins.
    #[error(transparent)]
    Plugins(#[from] PluginError),
    /// Native processes.
    #[error("cannot set up native processes: {0}")]
    Processes(String),
    /// The directory of the workers of WASM tasks.
    #[error("cannot look for workers of WASM tasks in the data directory: {0}")]
    Workers(#[source] std::io::Error),
    /// Ids that allocations shall have are somebody else's.
    #[error(
        "client {{ users }} of the configuration gives allocations the user ids {first} to {last}, and {taken}; give \
         others with dynamic_user_min and dynamic_user_max"
    )]
    UserIds {
        /// The first of them.
        first: u32,
        /// The last.
        last: u32,
        /// Whose some are.
        taken: String,
    },
    /// Which user ids allocations have cannot be read.
    #[error("cannot see which user ids allocations have: {0}")]
    AllocUsers(#[from] AllocDirError),
    /// A blocking step was given up.
    #[error("start-up was given up in the middle of {0}")]
    GivenUp(&'static str),
}

/// The kernel's words for making a directory where a file stands are about the making.
fn no_directory(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            "it is a file, not a directory".to_owned()
        }
        _ => source.to_string(),
    }
}
