//! WASM tasks: components of `wasi:cli/command` and core modules of WASI preview 1.
//!
//! ```text
//! spawn ─► code: file read, compiled when new ─┬─► WasmTaskHost: store with limits, held
//!                                              │      release ─► guest threads ─► exit, trap, kill
//!                                              └─► a worker process: the same there, by descriptor
//! ```
//! A task sees the directories it was given and nothing else of the node; sockets only as asked
//! and only on the allocation's ports. [`WasmTasks`] is what drivers and task runners ask;
//! [`WasmTaskHost`] runs tasks in its own process: that of an embedded agent, or a worker.

pub mod code;
mod dirs;
mod disk_p1;
mod ended;
mod exit;
mod input;
mod io_p1;
mod launch;
mod local;
mod registry;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

pub use ended::EndedRuns;
pub use input::TaskStdin;
pub use local::{TaskExited, TaskSeen, WasmTaskHost};

use tokio::sync::watch;

use ostler_model::clock::Clock;
use ostler_model::ids::RunId;
use ostler_model::limits::{TaskLimits, WORKLOADS_PER_RUN_MAX};
use ostler_model::ports::{Adoption, BoxFuture, TaskContext};
use ostler_model::task::{RawExit, Usage};
use ostler_sandbox::{CallError, LoadError};

/// A directory or file a task sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreopenedDir {
    /// Inside the task's or the shared directory, or a reserved mount.
    pub host_path: PathBuf,
    /// Where the task sees it.
    pub guest_path: String,
    /// No writes.
    pub read_only: bool,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct WasmTaskSpec {
    /// The file.
    pub path: PathBuf,
    /// Arguments, the program's name first.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// What it sees of the node's files.
    pub dirs: Vec<PreopenedDir>,
    /// What it may use; of memory at most [`TASK_MEMORY_BYTES_CEILING`](ostler_model::limits::TASK_MEMORY_BYTES_CEILING).
    pub limits: TaskLimits,
    /// May listen on the allocation's ports.
    pub listen: bool,
    /// `address:port` pairs it may connect to.
    pub connect: Vec<String>,
    /// What it reads from its standard input.
    pub input: TaskStdin,
}

/// Why a task did not start, or is not known.
#[derive(Debug, thiserror::Error)]
pub enum WasmTaskError {
    /// The file is not there.
    #[error("{} is not there; give an absolute path, one relative to the task directory, or ${{job.dir}}/…", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// It is there and cannot be used.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Not WASM, refused, or not compiled.
    #[error("{}: {source}", path.display())]
    Code {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: LoadError,
    },
    /// WASM of another kind.
    #[error("{}: neither a wasi:cli/command component nor a WASI preview 1 module: {reason}", path.display())]
    OtherWorld {
        /// The path.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A directory that is not the task's.
    #[error("{} is not inside the task's directories and not assigned to it", path.display())]
    OutsideTask {
        /// The path.
        path: PathBuf,
    },
    /// A file for standard input that cannot be read.
    #[error("cannot read standard input from {}: {reason}", path.display())]
    Input {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A directory that cannot be opened.
    #[error("cannot show {} to the task: {reason}", path.display())]
    Dir {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A `connect` entry that is no address.
    #[error("{given:?} is not an address:port; write for example \"127.0.0.1:6379\"")]
    Address {
        /// The text.
        given: String,
    },
    /// The store could not be made.
    #[error(transparent)]
    Store(#[from] CallError),
    /// The run was given up while the task was being started.
    #[error("the start was given up")]
    RunEnded,
    /// It would be in the network of this process, and not in that of its allocation.
    #[error(
        "a WASM task in a network of its own needs a worker process, which this agent does not have"
    )]
    NoNetwork,
    /// A driver that starts more and more.
    #[error("the driver has {WORKLOADS_PER_RUN_MAX} WASM tasks in this run already")]
    TooMany,
    /// Not a task of this run.
    #[error("no such WASM task in this run")]
    UnknownTask,
    /// The process that would run it refused, in its own words.
    #[error("{text}")]
    Refused {
        /// Why.
        text: String,
        /// Is the task's file or configuration at fault?
        invalid: bool,
    },
    /// The process that would run it cannot be had now.
    #[error("the worker process of WASM tasks cannot be used: {reason}")]
    Worker {
        /// Why.
        reason: String,
    },
}

/// WASM tasks as drivers and task runners ask for them.
pub trait WasmTasks: Send + Sync {
    /// Compile where needed and hold: it runs nothing before [`WasmTasks::release`] of its run. One
    /// that comes after that runs at once. Its id.
    ///
    /// An error is a [`WasmTaskError`]; nothing is held then.
    fn spawn(
        &self,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> BoxFuture<'static, Result<String, WasmTaskError>>;
    /// Let what is held of a run go.
    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), String>>;
    /// End a task at its next epoch.
    ///
    /// # Errors
    /// [`WasmTaskError::UnknownTask`].
    fn kill(&self, run: &RunId, id: &str) -> Result<(), WasmTaskError>;
    /// Does it still run?
    ///
    /// # Errors
    /// [`WasmTaskError::UnknownTask`].
    fn running(&self, run: &RunId, id: &str) -> Result<bool, WasmTaskError>;
    /// What a task uses now; `None` when it is not known or has ended. Memory is the linear memory
    /// it holds; processor time is that of the guest threads, host functions included.
    fn usage(&self, run: &RunId, id: &str) -> BoxFuture<'static, Option<Usage>>;
    /// Wait for the end; answers at once after it, until the run is forgotten.
    fn wait(&self, run: &RunId, id: &str) -> BoxFuture<'static, RawExit>;
    /// What became of a task of an earlier agent. Never waits.
    fn adopt(&self, run: &RunId, id: &str) -> Adoption;
    /// Kill everything of a run, and whatever it would still start.
    fn kill_run(&self, run: &RunId);
    /// Kill everything of a run and drop what is remembered.
    fn forget_run(&self, run: &RunId);
    /// Kill every task.
    fn kill_all(&self);
    /// Forget every run but these, which are on record; how many.
    fn sweep(&self, known: &BTreeSet<RunId>) -> usize;
    /// The agent ends: tasks of its own process end with it, those of others go on. Waits until processes that have no
    /// task any more have ended.
    fn leave(&self) -> BoxFuture<'static, ()>;
}

/// Wait until `exit` has one; an exit that says why where it never will: the task is not known, or
/// `dropped`.
pub fn waited(
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
