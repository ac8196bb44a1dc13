//! Why a process could not be started or reached.

use std::io;
use std::path::PathBuf;

use super::supervise::record::ExitRecordError;
use ostler_model::signal::UnknownSignal;

/// Why the process host did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The command names no file that exists.
    #[error("{}", not_found(command, looked_for))]
    CommandNotFound {
        /// The command as the task names it.
        command: String,
        /// The paths tried, comma separated.
        looked_for: String,
    },
    /// The program is there and cannot be run.
    #[error("{path} is not executable: {reason}", path = path.display())]
    NotExecutable {
        /// Path of the program's file.
        path: PathBuf,
        /// What keeps the file from being executed, in words.
        reason: String,
    },
    /// The working directory cannot be used.
    #[error("working directory {path} cannot be used: {reason}", path = path.display())]
    WorkingDirectory {
        /// The working directory as it was given.
        path: PathBuf,
        /// What is wrong with the directory, in words.
        reason: String,
    },
    /// The node has no user of this name.
    #[error("user {user:?} does not exist on this node")]
    UnknownUser {
        /// The user's name as the task or the driver gives it.
        user: String,
    },
    /// The agent is not root and may not switch users.
    #[error(
        "task may not run as user {user:?}: the agent is not root; run the agent as root or leave out user"
    )]
    UserNotPermitted {
        /// Name of the user that the task asked to run as.
        user: String,
    },
    /// The task would run as root.
    #[error(
        "task may not run as {user:?}, which is root: tasks of this driver do so only where the \
         grants of its plugin block name the user in users"
    )]
    RootNotPermitted {
        /// Name, or id as text, of the user that turned out to be root.
        user: String,
    },
    /// The number of the task's processes is bounded, and nothing on this node can enforce
    /// that bound.
    #[error(
        "the task may have {most} processes (processes_max), and nothing here can count them: the pids \
         controller is not delegated to the agent, and only tasks of other users than root, or in a user \
         namespace, are counted by the kernel otherwise; delegate it, or name another user"
    )]
    ProcessesNotBounded {
        /// Processes that the task may have, as the configuration says.
        most: u32,
    },
    /// A path of the node cannot be shown to an isolated task.
    #[error("{host} cannot be shown to the task as {task}: {reason}")]
    Mount {
        /// Path on the node.
        host: String,
        /// Path in the task.
        task: String,
        /// Why the path cannot be shown, in words.
        reason: String,
    },
    /// A process could not be isolated as its driver asked, and was not run.
    #[error("the task was not started, because it could not be isolated: {step}")]
    Isolation {
        /// The step that could not be done, in words.
        step: String,
        /// The error of the kernel.
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
        /// Why the identity could not be recorded, in words.
        reason: String,
    },
    /// A step between fork and exec failed.
    #[error("starting {command:?} failed in {step}")]
    Start {
        /// The command as the task names it.
        command: String,
        /// Name of the step that failed.
        step: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A run has as many processes as it may have.
    #[error("run {run} has {limit} processes already; that is the most one task may have")]
    TooMany {
        /// Id of the run.
        run: String,
        /// Processes that one run may have at once.
        limit: usize,
    },
    /// No process of this id belongs to the run.
    #[error("no process {id:?} belongs to run {run}")]
    UnknownProcess {
        /// Id of the run that was searched.
        run: String,
        /// Id of the process that was asked for.
        id: String,
    },
    /// The signal name is not known.
    #[error(transparent)]
    UnknownSignal(#[from] UnknownSignal),
    /// A call to the kernel failed.
    #[error("{what} failed")]
    System {
        /// The call and its purpose, in words.
        what: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A supervisor did not do what it was started for.
    #[error("the supervisor of the process {reason}")]
    Supervisor {
        /// What the supervisor did instead, as the rest of a sentence.
        reason: &'static str,
    },
    /// A command inside a task could not be started.
    #[error("no command can be run inside the task: {reason}")]
    Session {
        /// Why the command could not be started, in words.
        reason: String,
    },
    /// An exit record, or the directory of the exit records, cannot be used.
    #[error(transparent)]
    Record(#[from] ExitRecordError),
    /// The agent is shutting down.
    #[error("the process host has stopped; no more processes are started")]
    Stopped,
}

/// Text of a command that was not found. The searched paths are told only where they differ from
/// the command itself.
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
