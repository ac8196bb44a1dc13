//! One task: its owner, what the owner decides by, and what it needs.
//!
//! ```text
//!   alloc::runner ── requests (kill, restart, signal, shutdown), gate ──► task::runner (one tokio task)
//!        ▲                                                             │ inputs      ▲ answers
//!        └── watch<TaskState>, tick ◄── public state ◄── machine ◄─────┘ ─effects─► calls (JoinSet)
//!                                                                                     │
//!                                   hooks · driver · workloads · devices · state ◄────┘
//! ```
//! [`machine`] decides (pure), [`runner`] acts, [`calls`] are the acts that take time. The owner
//! itself never waits for anything but news: whatever may take long runs beside it and is bounded,
//! so a kill is taken at once in every state.

pub mod calls;
pub mod env;
pub mod events;
pub mod handle;
pub mod hooks;
pub mod interpolate;
pub mod machine;
pub mod restart;
pub mod runner;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::alloc::coordinator::Gate;
use crate::clock::Clock;
use crate::driver::api::{Devices, Drivers, PluginCallError, Workloads};
use crate::logs::TaskLogs;
use crate::model::alloc::Allocation;
use crate::model::event::TaskEvent;
use crate::model::ids::TaskName;
use crate::model::job::Task;
use crate::model::task::TaskState;
use crate::rng::Rng;
use crate::state::StateStore;

use self::env::NodeFacts;
use self::hooks::TaskHook;

/// Why a request to a task was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No such task.
    #[error("the allocation has no task {task}")]
    UnknownTask {
        /// The name asked for.
        task: TaskName,
    },
    /// Only a running task can be asked.
    #[error("task {task} is not running")]
    NotRunning {
        /// The task.
        task: TaskName,
    },
    /// The allocation or task has ended and its owner is gone.
    #[error("the allocation has ended")]
    Gone,
    /// The driver refused.
    #[error("driver: {0}")]
    Driver(#[source] PluginCallError),
    /// The driver did not answer.
    #[error("the driver of task {task} did not answer in time")]
    NoAnswer {
        /// The task.
        task: TaskName,
    },
}

/// Everything around a task that does not change while it lives.
pub struct TaskScope {
    /// What was asked.
    pub allocation: Arc<Allocation>,
    /// The task.
    pub task: Task,
    /// The node, for `${…}`.
    pub node: Arc<NodeFacts>,
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
    /// See [`Drivers`].
    pub drivers: Arc<dyn Drivers>,
    /// See [`Workloads`].
    pub workloads: Arc<dyn Workloads>,
    /// See [`Devices`].
    pub devices: Arc<dyn Devices>,
    /// Where states are written.
    pub state: StateStore,
    /// Time.
    pub clock: Clock,
    /// Randomness: run ids, jitter.
    pub rng: Rng,
    /// Longest `kill_timeout` honoured.
    pub kill_timeout_max: Duration,
    /// What happens around runs; [`hooks::standard`].
    pub hooks: Vec<Arc<dyn TaskHook>>,
    /// The task's log files once open.
    pub logs: LogSlot,
}

/// Holds a task's logs once they are open and tells who waits for that.
#[derive(Clone)]
pub struct LogSlot {
    slot: Arc<OnceLock<Arc<TaskLogs>>>,
    changed: watch::Sender<u64>,
}

impl LogSlot {
    /// An empty slot; `changed` grows when logs are put in.
    #[must_use]
    pub fn new(changed: watch::Sender<u64>) -> Self {
        Self { slot: Arc::new(OnceLock::new()), changed }
    }

    /// The logs, once open.
    #[must_use]
    pub fn get(&self) -> Option<Arc<TaskLogs>> {
        self.slot.get().cloned()
    }

    /// Put the logs in; the first ones stay.
    pub fn set(&self, logs: Arc<TaskLogs>) -> Arc<TaskLogs> {
        let logs = Arc::clone(self.slot.get_or_init(|| logs));
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
        logs
    }
}

/// What the owner can be asked.
pub(crate) enum Request {
    Kill { event: Option<TaskEvent>, reason: String },
    Restart { reason: String, reply: oneshot::Sender<Result<(), RequestError>> },
    Signal { signal: String, reply: oneshot::Sender<Result<(), RequestError>> },
    Shutdown,
}

/// The way to a task's owner. Clones share it.
#[derive(Clone)]
pub struct TaskHandle {
    task: TaskName,
    requests: mpsc::Sender<Request>,
    state: watch::Receiver<TaskState>,
    logs: LogSlot,
    gone: CancellationToken,
}

impl TaskHandle {
    /// Start the owner. It waits until `gate` is open; `tick` is notified on each change of state
    /// and at its end.
    #[must_use]
    pub fn spawn(scope: TaskScope, gate: watch::Receiver<Gate>, tick: Arc<Notify>) -> Self {
        runner::spawn(scope, gate, tick)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TaskName {
        &self.task
    }

    /// The newest state.
    #[must_use]
    pub fn state(&self) -> TaskState {
        self.state.borrow().clone()
    }

    /// States as they come; only the newest is kept.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<TaskState> {
        self.state.clone()
    }

    /// Its logs, once open.
    #[must_use]
    pub fn logs(&self) -> Option<Arc<TaskLogs>> {
        self.logs.get()
    }

    /// Has the owner ended, with everything it wrote durable?
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Wait for the owner's end.
    pub async fn wait_gone(&self) {
        self.gone.cancelled().await;
    }

    /// End the task for good. `event` is said first and may mark the task as failed. No effect on
    /// a task that is dead.
    pub async fn kill(&self, event: Option<TaskEvent>, reason: &str) {
        // An owner that is gone has nothing to kill.
        let _gone = self.requests.send(Request::Kill { event, reason: reason.to_owned() }).await;
    }

    /// Leave the task as it is and end the owner.
    pub async fn shutdown(&self) {
        let _gone = self.requests.send(Request::Shutdown).await;
    }

    /// End the present run and start another one.
    ///
    /// # Errors
    /// When the task does not run.
    pub async fn restart(&self, reason: &str) -> Result<(), RequestError> {
        self.ask(|reply| Request::Restart { reason: reason.to_owned(), reply }).await
    }

    /// Send a signal by name.
    ///
    /// # Errors
    /// When the task does not run, or its driver refuses or does not answer.
    pub async fn signal(&self, signal: &str) -> Result<(), RequestError> {
        self.ask(|reply| Request::Signal { signal: signal.to_owned(), reply }).await
    }

    async fn ask(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<(), RequestError>>) -> Request,
    ) -> Result<(), RequestError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| RequestError::Gone)?;
        answer.await.map_err(|_| RequestError::Gone)?
    }
}
