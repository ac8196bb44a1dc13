//! Why an agent did not start, and why a job was not taken.

use std::path::PathBuf;

use super::ConfigProblem;
use super::admission::Refusal;
use crate::limits::JOB_TASKS_MAX;
use crate::node::NodeIdError;
use crate::plugin::PluginError;
use crate::sandbox::{CallError, SandboxError};
use crate::state::{LockError, StateError};

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data directory cannot be made or used.
    #[error("cannot use the data directory {}: {source}; give another with --data-dir", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
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
    /// A blocking step was given up.
    #[error("start-up was given up in the middle of {0}")]
    GivenUp(&'static str),
}

/// Why a job was not taken. Nothing of it runs.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It does not fit on this node.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Configurations that do not fit their drivers' schemas.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigProblem>),
    /// More tasks than one job may have here.
    #[error("the job has {tasks} tasks over all counts; at most {JOB_TASKS_MAX} fit in one job")]
    TooManyTasks {
        /// Tasks times count.
        tasks: usize,
    },
    /// It could not be made durable.
    #[error("the job could not be recorded: {0}")]
    State(#[source] StateError),
    /// Its owner could not be started.
    #[error("{0}")]
    Runner(String),
}
