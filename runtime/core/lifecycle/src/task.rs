//! One task: its owner, the state machine that decides for the owner, and what the owner needs.
//!
//! ```text
//!   alloc::runner ── requests (kill, restart, signal, shutdown), gate ──► task::runner (one tokio task)
//!        ▲                                                             │ inputs      ▲ answers
//!        └── watch<TaskState>, tick ◄── public state ◄── machine ◄─────┘ ─effects─► calls (JoinSet)
//!                                                                                     │
//!                                   hooks · driver · workloads · devices · state ◄────┘
//! ```
//! [`machine`] decides (pure), [`runner`] acts, [`calls`] are the acts that take time. The owner
//! itself waits for inputs only. Whatever may take long runs beside it and is bounded, so a kill is
//! taken at once in every state.

pub mod calls;
pub mod env;
pub mod events;
mod first_byte;
pub mod handle;
pub mod hooks;
pub mod interpolate;
pub mod late_dirs;
pub mod machine;
pub mod notes;
pub mod recovery;
pub mod references;
pub mod restart;
pub mod run;
pub mod runner;
pub mod templates;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::alloc::coordinator::TaskGate;
use crate::alloc::dir::TaskDir;
use crate::context::{AllocContext, NodeContext};
use crate::queue;
use crate::watch;
use ostler_logs::TaskLogs;
use ostler_model::alloc::Allocation;
use ostler_model::cow_arc::CowArc;
use ostler_model::event::TaskEvent;
use ostler_model::ids::{RunId, TaskName};
use ostler_model::job::Task;
use ostler_model::network::{AllocNetwork, DriverNetwork};
use ostler_model::ports::{PluginCallError, Workloads};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::task::{TaskState, Usage, Workload};

use self::hooks::FetchedArtifacts;
use self::late_dirs::LateDirs;

/// Why a request to a task was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No such task.
    #[error("the allocation has no task {task}")]
    UnknownTask {
        /// The name that was asked for.
        task: TaskName,
    },
    /// Only a running task can be asked.
    #[error("task {task} is not running")]
    NotRunning {
        /// Name of the task that does not run.
        task: TaskName,
    },
    /// The allocation or task has ended and its owner is gone.
    #[error("the allocation has ended")]
    Gone,
    /// Nothing of the allocation runs.
    #[error("no task of the allocation is running")]
    NothingRunning,
    /// The allocation is being stopped, or ends by itself.
    #[error("the allocation is ending")]
    Stopping,
    /// Another restart of the whole allocation is still under way.
    #[error("the allocation is already being restarted; wait for that restart")]
    Restarting,
    /// A hook of the allocation did not let the restart begin.
    #[error("the restart could not begin: {0}")]
    Hook(String),
    /// Several tasks refused.
    #[error("{}", join_errors(.0))]
    Several(Vec<RequestError>),
    /// The driver refused.
    #[error("driver: {0}")]
    Driver(#[source] PluginCallError),
    /// The driver did not answer.
    #[error("the driver of task {task} did not answer in time")]
    NoAnswer {
        /// Name of the task whose driver did not answer.
        task: TaskName,
    },
}

fn join_errors(errors: &[RequestError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Everything that a task and its hooks use. `allocation` and `task` are the newest accepted
/// copies: after [`TaskHandle::update`] the owner replaces the scope by one with newer copies.
#[derive(Clone)]
pub struct TaskScope {
    /// The node.
    pub node: Arc<NodeContext>,
    /// What the task shares with its allocation.
    pub context: Arc<AllocContext>,
    /// The newest copy of the allocation.
    pub allocation: Arc<Allocation>,
    /// The task as that copy has it.
    pub task: CowArc<Task>,
    /// Which artifacts are in the task's directory.
    pub fetched: FetchedArtifacts,
    /// The task's log files once they are open.
    pub logs: LogSlot,
    /// The task's directories, where they were made together with those of the allocation. The
    /// first run takes them.
    pub made: MadeDirs,
    /// Makes the directories of a first run that may not need them.
    pub dirs: Arc<LateDirs>,
    /// The first run waits for nothing but its directories.
    pub at_once: bool,
    /// A task that has ended waits, dead, for [`TaskHandle::force_restart`] until
    /// [`TaskHandle::finish`], a kill or the leaving of the agent. Poststop tasks and killed tasks
    /// do not wait. `false`: the owner ends with its task.
    pub restartable: bool,
}

/// The network of an allocation and those that drivers made for its tasks. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct NetworkSlot(Arc<Mutex<KnownNetworks>>);

#[derive(Debug, Default)]
struct KnownNetworks {
    own: Option<Arc<AllocNetwork>>,
    of_drivers: BTreeMap<TaskName, Arc<DriverNetwork>>,
}

impl NetworkSlot {
    fn lock(&self) -> std::sync::MutexGuard<'_, KnownNetworks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocation's own network; `None` where it uses the node's, or the network is
    /// not made yet.
    #[must_use]
    pub fn get(&self) -> Option<Arc<AllocNetwork>> {
        self.lock().own.clone()
    }

    /// Set the allocation's own network, once it is made.
    pub fn set(&self, network: AllocNetwork) {
        self.lock().own = Some(Arc::new(network));
    }

    /// Remove the allocation's own network, once it is taken away.
    pub fn clear(&self) {
        self.lock().own = None;
    }

    /// The network that the driver of a task made for its run; `None` where it made none.
    #[must_use]
    pub fn of_driver(&self, task: &TaskName) -> Option<Arc<DriverNetwork>> {
        self.lock().of_drivers.get(task).cloned()
    }

    /// Set the network that the driver made for the run of a task that begins.
    pub(crate) fn set_of_driver(&self, task: &TaskName, network: Option<Arc<DriverNetwork>>) {
        let of_drivers = &mut self.lock().of_drivers;
        match network {
            Some(network) => drop(of_drivers.insert(task.clone(), network)),
            None => drop(of_drivers.remove(task)),
        }
    }
}

/// The path of the shared directory and those of the task, once they are made.
pub type MadeDirs = Arc<Mutex<Option<(PathBuf, TaskDir)>>>;

/// Holds a task's logs once they are open, and wakes those who wait for that.
#[derive(Clone)]
pub struct LogSlot {
    slot: Arc<OnceLock<Arc<TaskLogs>>>,
    changed: watch::Publisher<u64>,
}

impl LogSlot {
    /// An empty slot; `changed` grows when logs are put in.
    #[must_use]
    pub fn new(changed: watch::Publisher<u64>) -> Self {
        Self { slot: Arc::new(OnceLock::new()), changed }
    }

    /// The logs, once they are open.
    #[must_use]
    pub fn get(&self) -> Option<Arc<TaskLogs>> {
        self.slot.get().cloned()
    }

    /// Put the logs in, unless there are logs already. Returns the logs of the slot.
    pub fn set(&self, logs: Arc<TaskLogs>) -> Arc<TaskLogs> {
        let logs = Arc::clone(self.slot.get_or_init(|| logs));
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
        logs
    }
}

/// What the owner can be asked. Requests are boxed, so that a place in the queue
/// takes little memory.
pub(crate) enum TaskOwnerRequest {
    Kill(KillRequest),
    Restart { reason: String, how: RestartHow, reply: oneshot::Sender<Result<(), RequestError>> },
    Signal { signal: String, reply: oneshot::Sender<Result<(), RequestError>> },
    Exec(ExecRequest),
    Note(TaskEvent),
    Finish,
    Shutdown,
}

/// The kind of a restart of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartHow {
    /// A restart of a run that is alive, because somebody asked for it.
    Asked,
    /// A restart of a run that is alive, because a check demands it; it counts by
    /// the restart policy.
    Unhealthy,
    /// A restart whatever the state of the task.
    Forced,
}

/// A command to be run inside the task.
pub(crate) struct ExecRequest {
    pub command: ExecCommand,
    pub reply: oneshot::Sender<Result<ExecSession, RequestError>>,
}

/// How a task is ended for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillRequest {
    /// An event before the end; it may mark the task as failed.
    pub event: Option<TaskEvent>,
    /// `kill_reason` of the `Killing` event.
    pub reason: String,
    /// Do not wait for `shutdown_delay`; a wait under way is cut short.
    pub skip_shutdown_delay: bool,
}

/// What an earlier agent recorded of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredTask {
    /// The public state of the task; `None` when none is stored or it cannot be read.
    pub state: Option<TaskState>,
    /// The private record of the task; `None` in the same cases.
    pub local: Option<handle::LocalState>,
}

/// The workload of the present run as the host knows it, for reading its usage.
pub(crate) type PresentRun = Arc<Mutex<Option<(RunId, Workload)>>>;

/// The handle to the owner of a task. Clones share the owner.
#[derive(Clone)]
pub struct TaskHandle {
    task: TaskName,
    requests: queue::QueueSender<Box<TaskOwnerRequest>>,
    newest: watch::Publisher<Arc<Allocation>>,
    state: watch::Subscriber<CowArc<TaskState>>,
    logs: LogSlot,
    gone: CancellationToken,
    present: PresentRun,
    workloads: Arc<dyn Workloads>,
    /// For tests in which the owner vanishes, as it does with its agent.
    #[cfg(test)]
    owner: tokio::task::AbortHandle,
}

impl TaskHandle {
    /// Start the owner. It waits until `gate` is open; `tick` is notified on each change of state
    /// and at its end.
    #[must_use]
    pub fn spawn(scope: TaskScope, gate: watch::Subscriber<TaskGate>, tick: Arc<Notify>) -> Self {
        runner::spawn(scope, gate, tick)
    }

    /// Start the owner of a task that an earlier agent had: a run that may be alive is owned
    /// again or, where that cannot be, ended; a dead task stays dead. `gate` counts for the
    /// next start only.
    #[must_use]
    pub fn restore(
        scope: TaskScope,
        gate: watch::Subscriber<TaskGate>,
        tick: Arc<Notify>,
        restored: RestoredTask,
    ) -> Self {
        runner::restore(scope, gate, tick, restored)
    }

    /// Give the owner a newer copy of the allocation. Its rules count from their next use on, and
    /// nothing is restarted. A copy whose `modify_index` is not above that of the newest is
    /// dropped. Never blocks; of several copies only the newest is taken.
    pub fn update(&self, allocation: Arc<Allocation>) {
        self.newest.send_if_modified(|newest| {
            let newer = allocation.modify_index > newest.modify_index;
            if newer {
                *newest = allocation;
            }
            newer
        });
    }

    /// The name of the task.
    #[must_use]
    pub fn name(&self) -> &TaskName {
        &self.task
    }

    /// The newest public state of the task.
    #[must_use]
    pub fn state(&self) -> CowArc<TaskState> {
        self.state.borrow().clone()
    }

    /// Follow the public state of the task; only the newest state is kept.
    #[must_use]
    pub fn watch(&self) -> watch::Subscriber<CowArc<TaskState>> {
        self.state.clone()
    }

    /// The logs of the task, once they are open.
    #[must_use]
    pub fn logs(&self) -> Option<Arc<TaskLogs>> {
        self.logs.get()
    }

    /// Has the owner ended, with its last state durable?
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Wait for the owner's end.
    pub async fn wait_gone(&self) {
        self.gone.cancelled().await;
    }

    /// End the task for good. `event` comes first and may mark the task as failed. The only effect
    /// on a dead task is that it can no longer be restarted.
    pub async fn kill(&self, event: Option<TaskEvent>, reason: &str) {
        let reason = reason.to_owned();
        self.kill_with(KillRequest { event, reason, skip_shutdown_delay: false }).await;
    }

    /// As [`TaskHandle::kill`], with a word on `shutdown_delay`. A second kill with
    /// `skip_shutdown_delay` cuts short the delay that the first one waits for.
    pub async fn kill_with(&self, kill: KillRequest) {
        // An owner that is gone has nothing to kill.
        let _gone = self.requests.send(Box::new(TaskOwnerRequest::Kill(kill))).await;
    }

    /// Leave the task as it is and end the owner.
    pub async fn shutdown(&self) {
        let _gone = self.requests.send(Box::new(TaskOwnerRequest::Shutdown)).await;
    }

    /// The allocation is over, so a dead task no longer waits for a restart. A live task is not
    /// touched and ends with its run.
    pub async fn finish(&self) {
        let _gone = self.requests.send(Box::new(TaskOwnerRequest::Finish)).await;
    }

    /// Add an event to the task: a verdict of the allocation, a message of a hook.
    pub async fn note(&self, event: TaskEvent) {
        let _gone = self.requests.send(Box::new(TaskOwnerRequest::Note(event))).await;
    }

    /// What the present run uses; `None` when the task does not run or the host cannot tell.
    pub async fn usage(&self) -> Option<Usage> {
        let present = self.present.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (run, workload) = present?;
        self.workloads.usage(&run, &workload).await
    }

    /// End the present run and start another one. Answers when the owner has accepted it: the
    /// ending itself is bounded by the kill timers, whatever the driver does.
    ///
    /// # Errors
    /// When the task does not run.
    pub async fn restart(&self, reason: &str) -> Result<(), RequestError> {
        self.restart_how(reason, RestartHow::Asked).await
    }

    /// As [`TaskHandle::restart`], but it counts as a failure of the task: the restart policy
    /// decides whether and when the task starts again.
    ///
    /// # Errors
    /// As [`TaskHandle::restart`].
    pub async fn restart_unhealthy(&self, reason: &str) -> Result<(), RequestError> {
        self.restart_how(reason, RestartHow::Unhealthy).await
    }

    /// Start the task anew, whatever its state. A run that is alive is ended first, a restart delay
    /// ends, and a dead task of a [`TaskScope::restartable`] scope starts again (failed or not).
    /// The task still waits for its gate. No effect on a task that is being killed.
    ///
    /// # Errors
    /// When the owner is gone.
    pub async fn force_restart(&self, reason: &str) -> Result<(), RequestError> {
        self.restart_how(reason, RestartHow::Forced).await
    }

    async fn restart_how(&self, reason: &str, how: RestartHow) -> Result<(), RequestError> {
        let reason = reason.to_owned();
        self.ask(|reply| TaskOwnerRequest::Restart { reason, how, reply }).await
    }

    /// Send a signal by name.
    ///
    /// # Errors
    /// When the task does not run, or its driver refuses or does not answer.
    pub async fn signal(&self, signal: &str) -> Result<(), RequestError> {
        self.ask(|reply| TaskOwnerRequest::Signal { signal: signal.to_owned(), reply }).await
    }

    /// Run a command inside the task.
    ///
    /// # Errors
    /// When the task does not run, or its driver or the host refuses.
    pub async fn exec(&self, command: ExecCommand) -> Result<ExecSession, RequestError> {
        self.ask(|reply| TaskOwnerRequest::Exec(ExecRequest { command, reply })).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, RequestError>>) -> TaskOwnerRequest,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Box::new(request(reply))).await.map_err(|_| RequestError::Gone)?;
        answer.await.map_err(|_| RequestError::Gone)?
    }
}
