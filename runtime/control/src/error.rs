//! Why a job was not taken or stopped, and why an allocation did not do what it was asked.

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
use ostler_model::saved::JobOrigin;
use ostler_model::shown::shown_path;
use ostler_model::signal::UnknownSignal;
use ostler_state::StateError;

/// A `config` that does not fit its driver's schema, or a driver that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigProblem {
    /// Task group.
    pub group: String,
    /// Task.
    pub task: String,
    /// Dotted path inside `config`; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What may have been meant instead of the last name of the path.
    #[serde(default)]
    pub suggestion: Option<String>,
    /// It is the name of the driver that is wrong; nothing is known of the `config` then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_driver: bool,
}

impl std::fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, task, path, message, suggestion, of_driver } = self;
        let dot = if path.is_empty() { "" } else { "." };
        match of_driver {
            true => write!(f, "group {group}, task {task}: {message}")?,
            false => write!(f, "group {group}, task {task}, config{dot}{path}: {message}")?,
        }
        match suggestion {
            Some(name) => write!(f, "; did you mean {name}?"),
            None => Ok(()),
        }
    }
}

/// Why a job was not changed. Of one that was not taken nothing runs.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// There is no job to be stopped.
    #[error("there is no job {job}")]
    Unknown {
        /// The id asked for.
        job: JobId,
    },
    /// It does not fit on this node.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Configurations that do not fit their drivers' schemas, and drivers that are not there.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigProblem>),
    /// It is in a namespace that is not there.
    #[error(transparent)]
    Namespace(UnknownNamespace),
    /// More tasks than one job may have here.
    #[error("the job has {tasks} tasks over all counts; at most {JOB_TASKS_MAX} fit in one job")]
    TooManyTasks {
        /// Tasks times count.
        tasks: usize,
    },
    /// It could not be made durable.
    #[error("the change of the job could not be recorded: {0}")]
    State(#[source] StateError),
    /// Its owner could not be started.
    #[error("{0}")]
    Runner(String),
    /// The job is at another index than the caller thinks. Nomad's command line knows it by its beginning.
    #[error("Enforcing job modify index {expected}: {}", at_another(job, *actual))]
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
    /// The disk does not say in time whether the change is on record.
    #[error(
        "the disk did not answer within {STATE_WRITE_WALL_MAX:?}: whether job {job} is registered as asked is \
         not known; look at it with `ostler job status {job}`"
    )]
    Unanswered {
        /// The job.
        job: JobId,
    },
    /// Another change of the job was not done in time: nothing of this one is.
    #[error(
        "another change of job {job} was not done within {STATE_WRITE_WALL_MAX:?}, and this one was not \
         begun; the disk may be slow or full; try again later"
    )]
    Waited {
        /// The job.
        job: JobId,
    },
    /// More changes wait than the node keeps.
    #[error(
        "{CHANGES_WAITING_MAX} changes of jobs wait for others to be written; the disk may be slow or \
         full; try again later"
    )]
    Busy,
    /// A deployment does not do what it is asked.
    #[error("{0}")]
    Deployment(#[source] DeploymentError),
    /// A group does not get the count asked for.
    #[error("{0}")]
    Scale(#[source] ScaleError),
    /// A version that is not there, or not any more.
    #[error(
        "there is no version {version} of job {job} to go back to; `ostler job history {job}` lists those \
         that are kept"
    )]
    Version {
        /// The job.
        job: JobId,
        /// The version asked for.
        version: u64,
    },
    /// Nothing to go back to.
    #[error("job {job} is at version {version} already")]
    SameVersion {
        /// The job.
        job: JobId,
        /// The version asked for.
        version: u64,
    },
    /// The job is at another version than the caller thinks.
    #[error("job {job} is at version {actual}, not {expected}")]
    OtherVersion {
        /// The job.
        job: JobId,
        /// What the caller expects.
        expected: u64,
        /// What is.
        actual: u64,
    },
    /// The agent ends.
    #[error("the agent is leaving and takes no changes of jobs")]
    Leaving,
    /// Servers say what runs here.
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
        JobOrigin::File(path) => format!("that of the file {}", shown_path(path)),
        JobOrigin::Run => "one that runs already".to_owned(),
    }
}

fn who_may(origin: &JobOrigin) -> String {
    match origin {
        JobOrigin::Api => "stop it with `ostler job stop --purge` first, or give the job in the \
                           file another id"
            .to_owned(),
        JobOrigin::File(path) => format!(
            "change or remove {} instead; a job whose file the agent does not look at any more is stopped \
             as any other",
            shown_path(path)
        ),
        JobOrigin::Run => "stop it first, or give the other one another id".to_owned(),
    }
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
    /// Its job was not changed.
    #[error(transparent)]
    Change(#[from] SubmitError),
    /// More requests to collect wait than the node keeps.
    #[error("{COLLECT_REQUESTS_MAX} collections wait for others; try again later")]
    Busy,
    /// The agent ends.
    #[error("the agent is leaving")]
    Leaving,
}
