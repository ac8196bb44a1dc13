//! WASM tasks: components of `wasi:cli/command` and core modules of WASI preview 1.
//!
//! ```text
//! spawn ─► code: file read, compiled when new ─┬─► WasmTaskHost: store with limits, held
//!                                              │      release ─► guest threads ─► exit, trap, kill
//!                                              └─► a worker process: the same there, by descriptor
//! ```
//! A task sees the directories that it was given and nothing else of the node. It has sockets only
//! as its driver asked, and only on the allocation's ports. [`WasmTasks`] is the interface for
//! drivers and task runners. [`WasmTaskHost`] runs tasks in its own process: that of an embedded
//! agent, or a worker. Start with `local.rs`; the files of guests, those of plugins too, are in
//! [`guest_files`].

pub mod code;
mod dirs;
mod disk_p1;
mod ended_runs;
mod exit;
pub mod guest_files;
mod input;
mod io_p1;
mod launch;
mod local;
mod registry;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

pub use ended_runs::EndedRuns;
pub use input::TaskStdin;
pub use local::{
    ExitListener, WasmTaskHost, WasmTaskView, make_dirs, new_task_id, opens_dirs_late,
};

use tokio::sync::watch;

use ostler_model::clock::Clock;
use ostler_model::ids::RunId;
use ostler_model::limits::{TaskLimits, WORKLOADS_PER_RUN_MAX};
use ostler_model::ports::{Adoption, BoxFuture, ReleaseError, RunNote, TaskContext};
use ostler_model::task::{RawExit, Usage};
use ostler_sandbox::{CallError, LoadError};

/// A directory or file of the node that a task sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreopenedDir {
    /// Path on the node: inside the task's or the shared directory, or a reserved mount.
    pub host_path: PathBuf,
    /// Path at which the task sees it.
    pub guest_path: String,
    /// Whether the task may not write there.
    pub read_only: bool,
}

/// What a WASM task runs, and with what.
#[derive(Clone, Debug)]
pub struct WasmTaskSpec {
    /// Path of the file with the component or module.
    pub path: PathBuf,
    /// Arguments of the program, its name first.
    pub args: Vec<String>,
    /// The whole environment of the task, as names and values.
    pub env: Vec<(String, String)>,
    /// Directories and files of the node that the task sees.
    pub dirs: Vec<PreopenedDir>,
    /// How much the task may use; of memory at most
    /// [`TASK_MEMORY_BYTES_CEILING`](ostler_model::limits::TASK_MEMORY_BYTES_CEILING).
    pub limits: TaskLimits,
    /// Whether the task may listen on the allocation's ports.
    pub listen: bool,
    /// `address:port` pairs that the task may connect to.
    pub connect: Vec<String>,
    /// What the task reads from its standard input.
    pub input: TaskStdin,
}

/// Why a task did not start, or is not known.
#[derive(Debug, thiserror::Error)]
pub enum WasmTaskError {
    /// The file does not exist.
    #[error("{} is not there; give an absolute path, one relative to the task directory, or ${{job.dir}}/…", path.display())]
    NotFound {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file exists and cannot be used.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used, for people.
        reason: String,
    },
    /// The file is not WASM, was refused, or could not be compiled.
    #[error("{}: {source}", path.display())]
    Code {
        /// Path of the file.
        path: PathBuf,
        /// Why there is no code.
        #[source]
        source: LoadError,
    },
    /// The file is WASM, but no program that can be run as a task.
    #[error("{}: neither a wasi:cli/command component nor a WASI preview 1 module: {reason}", path.display())]
    OtherWorld {
        /// Path of the file.
        path: PathBuf,
        /// What the file lacks, for people.
        reason: String,
    },
    /// The directory or file is not the task's own, and not assigned to it.
    #[error("{} is not inside the task's directories and not assigned to it", path.display())]
    OutsideTask {
        /// Path of the directory or file.
        path: PathBuf,
    },
    /// The file for standard input cannot be read.
    #[error("cannot read standard input from {}: {reason}", path.display())]
    Input {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be read, for people.
        reason: String,
    },
    /// A directory for the task cannot be opened.
    #[error("cannot show {} to the task: {reason}", path.display())]
    Dir {
        /// Path of the directory.
        path: PathBuf,
        /// Why the directory cannot be opened, for people.
        reason: String,
    },
    /// An entry of `connect` is not an address with a port.
    #[error("{given:?} is not an address:port; write for example \"127.0.0.1:6379\"")]
    Address {
        /// The beginning of the entry.
        given: String,
    },
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The run was given up while the task was being started.
    #[error("the start was given up")]
    RunEnded,
    /// The task would be in the network of this process, and not in that of its allocation.
    #[error(
        "a WASM task in a network of its own needs a worker process, which this agent does not have"
    )]
    NoNetwork,
    /// The driver has as many tasks in the run as it may.
    #[error("the driver has {WORKLOADS_PER_RUN_MAX} WASM tasks in this run already")]
    TooMany,
    /// The run has no task of this id.
    #[error("no such WASM task in this run")]
    UnknownTask,
    /// The process that would run the task refused it.
    #[error("{text}")]
    Refused {
        /// Why the process refused, in its own words.
        text: String,
        /// Whether the file or the configuration of the task is at fault.
        invalid: bool,
    },
    /// The process that would run the task cannot be used now.
    #[error("the worker process of WASM tasks cannot be used: {reason}")]
    Worker {
        /// Why the process cannot be used, for people.
        reason: String,
    },
}

impl WasmTaskError {
    /// Is the file or the configuration of the task at fault, so that another start fails too?
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Code { source, .. } => !source.is_temporary(),
            Self::Refused { invalid, .. } => *invalid,
            Self::OtherWorld { .. } | Self::OutsideTask { .. } => true,
            _ => false,
        }
    }
}

/// WASM tasks, as drivers and task runners use them.
pub trait WasmTasks: Send + Sync {
    /// Compile a task where needed, and hold it: it does not run before [`WasmTasks::release`] of
    /// its run. A task that comes after that runs at once. Returns the task's id.
    ///
    /// An error is a [`WasmTaskError`]; nothing is held then.
    fn spawn(
        &self,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> BoxFuture<'static, Result<String, WasmTaskError>>;
    /// Let the held tasks of a run start. An error says why one of them cannot; only now may it be
    /// known.
    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>>;
    /// End a task at its next epoch.
    ///
    /// # Errors
    /// [`WasmTaskError::UnknownTask`].
    fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError>;
    /// Does the task still run?
    ///
    /// # Errors
    /// [`WasmTaskError::UnknownTask`].
    fn is_running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError>;
    /// What a task uses now; `None` when it is not known or has ended. Memory is the linear memory
    /// that the task holds. Processor time is that of the guest threads, host functions included.
    fn usage(&self, run: &RunId, id: &str) -> BoxFuture<'static, Option<Usage>>;
    /// Keep a note of a run that is not released yet, for an agent whose state file does not know
    /// the run. It is written before the run is released, and outlives the agent as long as the run
    /// may. `false`: nothing is kept.
    fn note(&self, run: &RunId, about: &RunNote) -> bool {
        let _ = (run, about);
        false
    }
    /// Wait for the end of a task. After the end this returns at once, until the run is forgotten.
    fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit>;
    /// What became of a task of an earlier agent. This never waits.
    fn adopt(&self, run: &RunId, id: &str) -> Adoption;
    /// Kill every task of a run, also those that it would still start.
    fn kill_run(&self, run: &RunId);
    /// Kill every task of a run, and forget the run.
    fn forget_run(&self, run: &RunId);
    /// Kill every task.
    fn kill_all(&self);
    /// Forget every run but those in `known`, which are on record. Returns how many
    /// runs were forgotten.
    fn sweep(&self, known: &BTreeSet<RunId>) -> usize;
    /// The agent ends. Tasks in its own process end with it, and those in other processes go on. Waits until processes that have no
    /// task any more have ended.
    fn leave(&self) -> BoxFuture<'static, ()>;
}

/// Wait until `exit` has a value. Where it never will, the returned exit says why: the task is not
/// known, or `dropped`.
pub fn wait_for_exit(
    exit: Option<watch::Receiver<Option<RawExit>>>,
    clock: Clock,
    dropped: &'static str,
) -> BoxFuture<'static, RawExit> {
    Box::pin(async move {
        let lost = |text: &str| RawExit {
            error: Some(text.to_owned()),
            finished_at: clock.now(),
            ..RawExit::default()
        };
        let Some(mut exit) = exit else { return lost("the WASM task is not known") };
        match exit.wait_for(Option::is_some).await {
            Ok(value) => value.clone().unwrap_or_default(),
            Err(_) => lost(dropped),
        }
    })
}
