//! Why a process could not be started or reached.

use std::io;
use std::path::PathBuf;

use super::supervise::record::ExitRecordError;
use ostler_model::signal::UnknownSignal;

/// Why the process host did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No such program.
    #[error("{}", not_found(command, looked_for))]
    CommandNotFound {
        /// As asked for.
        command: String,
        /// The paths tried, comma separated.
        looked_for: String,
    },
    /// The program is there and cannot be run.
    #[error("{path} is not executable: {reason}", path = path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The working directory cannot be used.
    #[error("working directory {path} cannot be used: {reason}", path = path.display())]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No such user.
    #[error("user {user:?} does not exist on this node")]
    UnknownUser {
        /// The name.
        user: String,
    },
    /// The agent is not root and may not switch users.
    #[error(
        "task may not run as user {user:?}: the agent is not root; run the agent as root or leave out user"
    )]
    UserNotPermitted {
        /// The name.
        user: String,
    },
    /// The task would run as root.
    #[error(
        "task may not run as {user:?}, which is root: tasks of this driver do so only where the \
         grants of its plugin block name the user in users"
    )]
    RootNotPermitted {
        /// The name.
        user: String,
    },
    /// A bound that nothing here could keep.
    #[error(
        "the task may have {most} processes (processes_max), and nothing here can count them: the pids \
         controller is not delegated to the agent, and only tasks of other users than root, or in a user \
         namespace, are counted by the kernel otherwise; delegate it, or name another user"
    )]
    ProcessesNotBounded {
        /// How many.
        most: u32,
    },
    /// Something cannot be shown to an isolated task.
    #[error("{host} cannot be shown to the task as {task}: {reason}")]
    Mount {
        /// Path on the node.
        host: String,
        /// Path in the task.
        task: String,
        /// Why.
        reason: String,
    },
    /// A process cannot be kept apart as was asked; it was not run.
    #[error("the task was not started, because it could not be isolated: {step}")]
    Isolation {
        /// What could not be done.
        step: String,
        /// What the kernel said.
        #[source]
        source: Option<io::Error>,
    },
    /// A text that cannot be given to a program.
    #[error("{what} of the process {reason}")]
    InvalidText {
        /// `command`, `argument`, `environment variable` …
        what: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The identity could not be recorded, so the program was not run.
    #[error("the process was not started, because its identity could not be recorded: {reason}")]
    NotRecorded {
        /// What the recorder said.
        reason: String,
    },
    /// A step between fork and exec failed.
    #[error("starting {command:?} failed in {step}")]
    Start {
        /// As asked for.
        command: String,
        /// Which step.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A run has as many processes as it may have.
    #[error("run {run} has {limit} processes already; that is the most one task may have")]
    TooMany {
        /// The run.
        run: String,
        /// The limit.
        limit: usize,
    },
    /// No process of this id belongs to the run.
    #[error("no process {id:?} belongs to run {run}")]
    UnknownProcess {
        /// The run that asked.
        run: String,
        /// The id it gave.
        id: String,
    },
    /// The signal name is not known.
    #[error(transparent)]
    UnknownSignal(#[from] UnknownSignal),
    /// A call to the kernel failed.
    #[error("{what} failed")]
    System {
        /// Which call, for what.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A supervisor did not do what it was started for.
    #[error("the supervisor of the process {reason}")]
    Supervisor {
        /// What it did instead.
        reason: &'static str,
    },
    /// No command is run inside a task.
    #[error("no command can be run inside the task: {reason}")]
    Session {
        /// Why.
        reason: String,
    },
    /// The directory of the exit records.
    #[error(transparent)]
    Record(#[from] ExitRecordError),
    /// The agent is shutting down.
    #[error("the process host has stopped; no process is started any more")]
    Stopped,
}

/// Where a program was looked for says something of a name only.
fn not_found(command: &str, looked_for: &str) -> String {
    if command == looked_for {
        format!("{command} was not found")
    } else {
        format!("command {command:?} was not found; looked for: {looked_for}")
    }
}

impl ProcessError {
    /// A failed kernel call.
    pub(super) fn system(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::System { what, source: source.into() }
    }
}

/// An error and its causes in one line, for an event.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
