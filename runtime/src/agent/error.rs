//! Why an agent did not start, and why a job was not taken.

use std::path::PathBuf;

use super::ConfigProblem;
use super::admission::Refusal;
use ostler_lifecycle::task::RequestError;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::JOB_TASKS_MAX;
use ostler_model::saved::JobOrigin;
use ostler_model::signal::UnknownSignal;
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
    /// The job is at another index than the caller thinks.
    #[error(
        "job {job} is at job modify index {actual}, not {expected}; look at it again with `ostler job plan`"
    )]
    Index {
        /// The job.
        job: JobId,
        /// What the caller expects.
        expected: u64,
        /// What is; 0 when there is no such job.
        actual: u64,
    },
    /// Somebody else gave the job.
    #[error("job {job} is {}; {}", given_by(actual), who_may(actual))]
    Origin {
        /// The job.
        job: JobId,
        /// Who gave it.
        actual: JobOrigin,
    },
    /// The agent ends.
    #[error("the agent is leaving and takes no jobs")]
    Leaving,
}

fn given_by(origin: &JobOrigin) -> String {
    match origin {
        JobOrigin::Api => "one that came by the API".to_owned(),
        JobOrigin::File(path) => format!("that of the file {}", path.display()),
    }
}

fn who_may(origin: &JobOrigin) -> String {
    match origin {
        JobOrigin::Api => "stop it with `ostler job stop --purge` first, or give the job in the \
                           file another id"
            .to_owned(),
        JobOrigin::File(path) => format!("change or remove {} instead", path.display()),
    }
}

/// Why a job was not stopped.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No such job.
    #[error("there is no job {job}")]
    Unknown {
        /// The id asked for.
        job: JobId,
    },
    /// Somebody else gave the job.
    #[error("job {job} is {}; {}", given_by(actual), who_may(actual))]
    Origin {
        /// The job.
        job: JobId,
        /// Who gave it.
        actual: JobOrigin,
    },
    /// It could not be made durable.
    #[error("the stop of the job could not be recorded: {0}")]
    State(#[source] StateError),
    /// The agent ends.
    #[error("the agent is leaving")]
    Leaving,
}

/// Why an allocation did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// No such allocation, or not any more.
    #[error("there is no allocation {alloc}")]
    Unknown {
        /// The id asked for.
        alloc: AllocId,
    },
    /// It is over.
    #[error("allocation {} has ended ({status})", alloc.short())]
    Ended {
        /// The allocation.
        alloc: AllocId,
        /// How.
        status: ClientStatus,
    },
    /// Only what is over can be collected.
    #[error(
        "allocation {} is {status} and not over, or another one waits for its data; stop it first",
        alloc.short()
    )]
    NotOver {
        /// The allocation.
        alloc: AllocId,
        /// Where it is.
        status: ClientStatus,
    },
    /// What is left of it could not be removed.
    #[error("allocation {} could not be removed: {why}", alloc.short())]
    Stays {
        /// The allocation.
        alloc: AllocId,
        /// Why.
        why: String,
    },
    /// There is no such signal.
    #[error(transparent)]
    Signal(#[from] UnknownSignal),
    /// Its owner, a task or a driver refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It could not be made durable.
    #[error("the request could not be recorded: {0}")]
    State(#[source] StateError),
    /// The agent ends.
    #[error("the agent is leaving")]
    Leaving,
}

impl From<SubmitError> for JobError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::State(source) => Self::State(source),
            SubmitError::Origin { job, actual } => Self::Origin { job, actual },
            // A stop is refused for no other reason.
            _ => Self::Leaving,
        }
    }
}

impl From<SubmitError> for AllocError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::State(source) => Self::State(source),
            // A stop is refused for no other reason.
            _ => Self::Leaving,
        }
    }
}
