//! Why a change of a job was refused, and why an allocation did not do what was asked.

use serde::{Deserialize, Serialize};

use super::admission::Refusal;
use super::deployments::DeploymentError;
use super::scaling::ScaleError;
use ostler_lifecycle::task::RequestError;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::{AllocId, JobId, UnknownNamespace};
use ostler_model::limits::{
    CHANGES_WAITING_MAX, COLLECT_REQUESTS_MAX, JOB_TASKS_MAX, STATE_WRITE_WALL_MAX,
};
use ostler_model::printable::printable_path;
use ostler_model::saved::JobOrigin;
use ostler_model::signal::UnknownSignal;
use ostler_state::StateError;

/// A `config` that does not fit its driver's schema, or a driver that does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskConfigProblem {
    /// Name of the task group.
    pub group: String,
    /// Name of the task.
    pub task: String,
    /// Dotted path inside `config`; empty for the whole.
    pub path: String,
    /// The problem, for people.
    pub message: String,
    /// The name that may have been meant instead of the last one of the path.
    #[serde(default)]
    pub suggestion: Option<String>,
    /// The name of the driver is wrong. Nothing is known of the `config` then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_driver: bool,
}

impl std::fmt::Display for TaskConfigProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, task, path, message, suggestion, of_driver } = self;
        let dot = if path.is_empty() { "" } else { "." };
        if *of_driver {
            write!(f, "group {group}, task {task}: {message}")?;
        } else {
            write!(f, "group {group}, task {task}, config{dot}{path}: {message}")?;
        }
        match suggestion {
            Some(name) => write!(f, "; did you mean {name}?"),
            None => Ok(()),
        }
    }
}

/// Why a job was not changed. Nothing runs of a job that was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// There is no job of this id.
    #[error("there is no job {job}")]
    Unknown {
        /// The id asked for.
        job: JobId,
    },
    /// It does not fit on this node.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Configurations that do not fit their drivers' schemas, and drivers that do not exist.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<TaskConfigProblem>),
    /// The job is in a namespace that does not exist.
    #[error(transparent)]
    Namespace(UnknownNamespace),
    /// More tasks than one job may have here.
    #[error("the job has {tasks} tasks over all counts; at most {JOB_TASKS_MAX} fit in one job")]
    TooManyTasks {
        /// Number of tasks, over all groups and counts.
        tasks: usize,
    },
    /// The change could not be made durable.
    #[error("the change of the job could not be recorded: {0}")]
    State(#[source] StateError),
    /// An owner of a new allocation could not be started.
    #[error("{0}")]
    Runner(String),
    /// The job is at another index than the caller expects. Nomad's command line recognises the
    /// error by its beginning.
    #[error("Enforcing job modify index {expected}: {}", at_another(job, *actual))]
    Index {
        /// Id of the job.
        job: JobId,
        /// The index that the caller expects.
        expected: u64,
        /// The present index; 0 when there is no such job.
        actual: u64,
    },
    /// The job was given by somebody else.
    #[error("job {job} is {}; {}", given_by(actual), who_may(actual))]
    Origin {
        /// Id of the job.
        job: JobId,
        /// The origin of the job.
        actual: JobOrigin,
    },
    /// The disk did not answer in time whether the change is on record.
    #[error(
        "the disk did not answer within {STATE_WRITE_WALL_MAX:?}: whether job {job} is registered as asked is \
         not known; look at it with `ostler job status {job}`"
    )]
    Unanswered {
        /// Id of the job.
        job: JobId,
    },
    /// Another change of the job did not end in time. Nothing of this change was done.
    #[error(
        "an earlier change of job {job} was not done within {STATE_WRITE_WALL_MAX:?}, so this one was not \
         begun; the disk may be slow or full; try again later"
    )]
    Waited {
        /// Id of the job.
        job: JobId,
    },
    /// Too many changes wait already.
    #[error(
        "{CHANGES_WAITING_MAX} changes of jobs are already waiting to be written; the disk may be slow or \
         full; try again later"
    )]
    Busy,
    /// The deployment refuses the request.
    #[error("{0}")]
    Deployment(#[source] DeploymentError),
    /// The group cannot have the count asked for.
    #[error("{0}")]
    Scale(#[source] ScaleError),
    /// There is no such version, or not any more.
    #[error(
        "there is no version {version} of job {job} to go back to; `ostler job history {job}` lists those \
         that are kept"
    )]
    Version {
        /// Id of the job.
        job: JobId,
        /// The version asked for.
        version: u64,
    },
    /// The job is at this version already.
    #[error("job {job} is already at version {version}")]
    SameVersion {
        /// Id of the job.
        job: JobId,
        /// The version asked for.
        version: u64,
    },
    /// The job is at another version than the caller expects.
    #[error("job {job} is at version {actual}, not {expected}")]
    OtherVersion {
        /// Id of the job.
        job: JobId,
        /// The version that the caller expects.
        expected: u64,
        /// The present version.
        actual: u64,
    },
    /// The agent is ending.
    #[error("the agent is shutting down and accepts no changes of jobs")]
    Leaving,
    /// The node belongs to a cluster, whose servers decide what runs here.
    #[error(
        "this node is one of a cluster, and its servers say what runs on it: give the job to them, with \
         `nomad job run` or their API"
    )]
    Joined,
}

fn at_another(job: &JobId, actual: u64) -> String {
    match actual {
        0 => format!("there is no job {job}; leave the index out, or give 0"),
        _ => format!("job {job} is at {actual}; look at it again with `ostler job plan`"),
    }
}

fn given_by(origin: &JobOrigin) -> String {
    match origin {
        JobOrigin::Api => "one that came by the API".to_owned(),
        JobOrigin::File(path) => format!("that of the file {}", printable_path(path)),
        JobOrigin::Run => "one that runs already".to_owned(),
    }
}

fn who_may(origin: &JobOrigin) -> String {
    match origin {
        JobOrigin::Api => "stop it with `ostler job stop --purge` first, or give the job in the \
                           file another id"
            .to_owned(),
        JobOrigin::File(path) => format!(
            "change or remove {} instead; a job whose file the agent no longer looks at is stopped like any other",
            printable_path(path)
        ),
        JobOrigin::Run => "stop it first, or give the other one another id".to_owned(),
    }
}

/// Why an allocation did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// There is no such allocation, or not any more.
    #[error("there is no allocation {alloc}")]
    Unknown {
        /// The id asked for.
        alloc: AllocId,
    },
    /// The allocation is over.
    #[error("allocation {} has ended ({status})", alloc.short())]
    Ended {
        /// Id of the allocation.
        alloc: AllocId,
        /// The state in which it ended.
        status: ClientStatus,
    },
    /// Only an allocation that is over can be collected.
    #[error(
        "allocation {} is {status} and not over, or another one waits for its data; stop it first",
        alloc.short()
    )]
    NotOver {
        /// Id of the allocation.
        alloc: AllocId,
        /// The present state of the allocation.
        status: ClientStatus,
    },
    /// The rest of the allocation could not be removed.
    #[error("allocation {} could not be removed: {why}", alloc.short())]
    Stays {
        /// Id of the allocation.
        alloc: AllocId,
        /// The reason, for people.
        why: String,
    },
    /// There is no such signal.
    #[error(transparent)]
    Signal(#[from] UnknownSignal),
    /// Its owner, a task or a driver refused the request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The change of its job failed.
    #[error(transparent)]
    Change(#[from] SubmitError),
    /// Too many requests to collect wait already.
    #[error("{COLLECT_REQUESTS_MAX} collections wait for others; try again later")]
    Busy,
    /// The agent is ending.
    #[error("the agent is shutting down")]
    Leaving,
}
