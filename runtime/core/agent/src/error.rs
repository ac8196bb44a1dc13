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
    /// The data directory cannot be created or used.
    #[error(
        "cannot use the data directory {}: {}; give another with --data-dir",
        path.display(), no_directory(source)
    )]
    DataDir {
        /// The path of the data directory.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// The process may not have enough files open.
    #[error(
        "this process may open only {limit} files, and an agent needs {AGENT_OPEN_FILES_MIN}; raise the limit \
         (`ulimit -n` in the shell that starts it, LimitNOFILE in its unit)"
    )]
    FewFiles {
        /// The number of files that this process may have open.
        limit: u64,
    },
    /// The data directory, or a directory above it, is a file.
    #[error(
        "cannot use the data directory {}: {} is a file, not a directory; give another with \
         --data-dir",
        path.display(),
        file.display()
    )]
    DataDirIsFile {
        /// The path of the data directory.
        path: PathBuf,
        /// The path of the file that stands in the way.
        file: PathBuf,
    },
    /// Another agent has the data directory, or it cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The node's identity cannot be read or created.
    #[error(transparent)]
    NodeId(#[from] NodeIdError),
    /// The sandbox failed: its engines, its threads or its code cache.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// WASI for tasks could not be set up.
    #[error(transparent)]
    Tasks(#[from] CallError),
    /// The host interfaces for plugins could not be set up.
    #[error(transparent)]
    Plugins(#[from] PluginError),
    /// Native processes cannot be run.
    #[error("cannot set up native processes: {0}")]
    Processes(String),
    /// The directory of the workers of WASM tasks cannot be used.
    #[error("cannot look for workers of WASM tasks in the data directory: {0}")]
    Workers(#[source] std::io::Error),
    /// The configured user ids for allocations belong to somebody else.
    #[error(
        "client {{ users }} of the configuration gives allocations the user ids {first} to {last}, and {taken}; give \
         others with dynamic_user_min and dynamic_user_max"
    )]
    UserIds {
        /// The first user id of the range.
        first: u32,
        /// The last user id of the range.
        last: u32,
        /// The sentence that says to whom some of the ids belong.
        taken: String,
    },
    /// The user ids that allocations have cannot be read.
    #[error("cannot see which user ids allocations have: {0}")]
    AllocUsers(#[from] AllocDirError),
    /// A blocking step was given up.
    #[error("start-up was interrupted while {0}")]
    GivenUp(&'static str),
}

/// When a directory cannot be made because a file stands there, the kernel's message speaks of
/// making it. This says instead that the file is no directory.
fn no_directory(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
            "it is a file, not a directory".to_owned()
        }
        _ => source.to_string(),
    }
}
