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
mod first_byte;
pub mod handle;
pub mod hooks;
pub mod interpolate;
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
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use crate::alloc::coordinator::Gate;
use crate::alloc::dir::TaskDir;
use crate::alloc::users::AllocUsers;
use crate::queue;
use crate::watch;
use ostler_logs::TaskLogs;
use ostler_model::alloc::Allocation;
use ostler_model::artifact::Artifacts;
use ostler_model::clock::Clock;
use ostler_model::event::TaskEvent;
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::{RunId, TaskName};
use ostler_model::job::Task;
use ostler_model::network::{AllocNetwork, DriverNetwork};
use ostler_model::ports::{Devices, Drivers, PluginCallError, Workloads};
use ostler_model::rng::Rng;
use ostler_model::service::Services;
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::task::{TaskState, Usage, Workload};
use ostler_model::vars::KeptVariables;
use ostler_state::StateStore;
use ostler_trace::TracedAlloc;

use self::env::NodeFacts;
use self::hooks::{Fetched, TaskHook};

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
    /// Nothing of the allocation runs.
    #[error("no task of the allocation is running")]
    NothingRunning,
    /// The allocation is being stopped, or ends by itself.
    #[error("the allocation is ending")]
    Stopping,
    /// Another restart of the whole allocation has not been done yet.
    #[error("the allocation is being restarted already; wait for that restart")]
    Restarting,
    /// A hook of the allocation did not let the restart begin.
    #[error("the restart could not begin: {0}")]
    Hook(String),
    /// Several tasks did not do it.
    #[error("{}", joined(.0))]
    Several(Vec<RequestError>),
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

fn joined(errors: &[RequestError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Everything around a task. `allocation` and `task` are the newest accepted ones: the owner puts a
/// scope with newer ones in its place ([`TaskHandle::update`]), so what is read at use is fresh.
#[derive(Clone)]
pub struct TaskScope {
    /// What was asked.
    pub allocation: Arc<Allocation>,
    /// The task.
    pub task: HeldOnce<Task>,
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
    /// `secrets` is in memory, where the agent may mount a file system there.
    pub secrets_in_memory: bool,
    /// Gives allocations user ids of their own.
    pub users: AllocUsers,
    /// What happens around runs; [`hooks::standard`].
    pub hooks: Vec<Arc<dyn TaskHook>>,
    /// The services of the node, for templates.
    pub services: Arc<dyn Services>,
    /// What the agent keeps for tasks, for templates.
    pub variables: Arc<dyn KeptVariables>,
    /// Those who fetch what tasks bring along.
    pub artifacts: Option<Arc<dyn Artifacts>>,
    /// What of that is there.
    pub fetched: Fetched,
    /// The task's log files once open.
    pub logs: LogSlot,
    /// The task's directories were made with those of the allocation: the first run takes that.
    pub made: MadeDirs,
    /// Nothing but its directories is waited for before its first run.
    pub at_once: bool,
    /// A task that ended waits, dead, for [`TaskHandle::force_restart`] until
    /// [`TaskHandle::finish`], a kill or the agent's leaving. Poststop tasks and killed ones do not
    /// wait. `false`: the owner ends with its task.
    pub restartable: bool,
    /// The network that the allocation has of its own, once it is made.
    pub network: NetworkSlot,
    /// The trace of the allocation.
    pub trace: TracedAlloc,
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

    /// The network; none where it is the node's, or is not made.
    #[must_use]
    pub fn get(&self) -> Option<Arc<AllocNetwork>> {
        self.lock().own.clone()
    }

    /// It is made.
    pub fn set(&self, network: AllocNetwork) {
        self.lock().own = Some(Arc::new(network));
    }

    /// It is taken away.
    pub fn clear(&self) {
        self.lock().own = None;
    }

    /// What the driver of a task made for its run, if anything.
    #[must_use]
    pub fn of_driver(&self, task: &TaskName) -> Option<Arc<DriverNetwork>> {
        self.lock().of_drivers.get(task).cloned()
    }

    /// A run of the task begins, with this network of its driver's.
    pub(crate) fn set_of_driver(&self, task: &TaskName, network: Option<Arc<DriverNetwork>>) {
        let of_drivers = &mut self.lock().of_drivers;
        match network {
            Some(network) => drop(of_drivers.insert(task.clone(), network)),
            None => drop(of_drivers.remove(task)),
        }
    }
}

/// The shared directory, and the task's.
pub type MadeDirs = Arc<Mutex<Option<(PathBuf, TaskDir)>>>;

/// Holds a task's logs once they are open and tells who waits for that.
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

/// What the owner can be asked. Boxed in the queue, which has room for 32 at once from the start on.
pub(crate) enum Request {
    Kill(KillRequest),
    Restart { reason: String, how: RestartHow, reply: oneshot::Sender<Result<(), RequestError>> },
    Signal { signal: String, reply: oneshot::Sender<Result<(), RequestError>> },
    Exec(ExecRequest),
    Note(TaskEvent),
    Finish,
    Shutdown,
}

/// Which restart of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartHow {
    /// Of a run that is alive; somebody asked for it.
    Asked,
    /// The same because of a check: by the restart policy.
    Unhealthy,
    /// Whatever the state.
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
    /// Said first; may mark the task as failed.
    pub event: Option<TaskEvent>,
    /// `kill_reason` of the `Killing` event.
    pub reason: String,
    /// Do not wait for `shutdown_delay`; a wait under way is cut short.
    pub skip_shutdown_delay: bool,
}

/// What an earlier agent recorded of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredTask {
    /// Its public state; absent when none is stored or it cannot be read.
    pub state: Option<TaskState>,
    /// Its private record; absent likewise.
    pub local: Option<handle::LocalState>,
}

/// The workload of the present run, as the host knows it; for reading its usage.
pub(crate) type PresentRun = Arc<Mutex<Option<(RunId, Workload)>>>;

/// The way to a task's owner. Clones share it.
#[derive(Clone)]
pub struct TaskHandle {
    task: TaskName,
    requests: queue::Sender<Box<Request>>,
    newest: watch::Publisher<Arc<Allocation>>,
    state: watch::Subscriber<HeldOnce<TaskState>>,
    logs: LogSlot,
    gone: CancellationToken,
    present: PresentRun,
    workloads: Arc<dyn Workloads>,
    /// For tests that let the owner vanish, as with its agent.
    #[cfg(test)]
    owner: tokio::task::AbortHandle,
}

impl TaskHandle {
    /// Start the owner. It waits until `gate` is open; `tick` is notified on each change of state
    /// and at its end.
    #[must_use]
    pub fn spawn(scope: TaskScope, gate: watch::Subscriber<Gate>, tick: Arc<Notify>) -> Self {
        runner::spawn(scope, gate, tick)
    }

    /// Start the owner of a task that an earlier agent had: a run that may be alive is owned again
    /// or, where that cannot be, ended; a dead task stays dead. `gate` counts for the next start
    /// only.
    #[must_use]
    pub fn restore(
        scope: TaskScope,
        gate: watch::Subscriber<Gate>,
        tick: Arc<Notify>,
        restored: RestoredTask,
    ) -> Self {
        runner::restore(scope, gate, tick, restored)
    }

    /// A newer copy of the allocation: rules are read from it at their next use, nothing is
    /// restarted. One whose `modify_index` is not above the newest is dropped. Never blocks; of
    /// several only the newest is taken.
    pub fn update(&self, allocation: Arc<Allocation>) {
        self.newest.send_if_modified(|newest| {
            let newer = allocation.modify_index > newest.modify_index;
            if newer {
                *newest = allocation;
            }
            newer
        });
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &TaskName {
        &self.task
    }

    /// The newest state.
    #[must_use]
    pub fn state(&self) -> HeldOnce<TaskState> {
        self.state.borrow().clone()
    }

    /// States as they come; only the newest is kept.
    #[must_use]
    pub fn watch(&self) -> watch::Subscriber<HeldOnce<TaskState>> {
        self.state.clone()
    }

    /// Its logs, once open.
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

    /// End the task for good. `event` is said first and may mark the task as failed. No effect on
    /// a task that is dead but that it can no longer be restarted.
    pub async fn kill(&self, event: Option<TaskEvent>, reason: &str) {
        let reason = reason.to_owned();
        self.kill_with(KillRequest { event, reason, skip_shutdown_delay: false }).await;
    }

    /// As [`TaskHandle::kill`], with a word on `shutdown_delay`. A second kill with
    /// `skip_shutdown_delay` cuts short the delay that the first one waits for.
    pub async fn kill_with(&self, kill: KillRequest) {
        // An owner that is gone has nothing to kill.
        let _gone = self.requests.send(Box::new(Request::Kill(kill))).await;
    }

    /// Leave the task as it is and end the owner.
    pub async fn shutdown(&self) {
        let _gone = self.requests.send(Box::new(Request::Shutdown)).await;
    }

    /// The allocation is over: a dead task waits for a restart no longer. No effect on a live one,
    /// which then ends with its run.
    pub async fn finish(&self) {
        let _gone = self.requests.send(Box::new(Request::Finish)).await;
    }

    /// Say an event of the task: a verdict of the allocation, a message of a hook.
    pub async fn note(&self, event: TaskEvent) {
        let _gone = self.requests.send(Box::new(Request::Note(event))).await;
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

    /// As [`TaskHandle::restart`], as a failure of the task: the restart policy says whether and when it
    /// starts again.
    ///
    /// # Errors
    /// As [`TaskHandle::restart`].
    pub async fn restart_unhealthy(&self, reason: &str) -> Result<(), RequestError> {
        self.restart_how(reason, RestartHow::Unhealthy).await
    }

    /// Start the task anew whatever its state: a run that is alive is ended first, a restart delay
    /// is not waited for, a dead task of a [`TaskScope::restartable`] scope starts again (failed or
    /// not). The gate counts. No effect on a task that is being killed.
    ///
    /// # Errors
    /// When the owner is gone.
    pub async fn force_restart(&self, reason: &str) -> Result<(), RequestError> {
        self.restart_how(reason, RestartHow::Forced).await
    }

    async fn restart_how(&self, reason: &str, how: RestartHow) -> Result<(), RequestError> {
        let reason = reason.to_owned();
        self.ask(|reply| Request::Restart { reason, how, reply }).await
    }

    /// Send a signal by name.
    ///
    /// # Errors
    /// When the task does not run, or its driver refuses or does not answer.
    pub async fn signal(&self, signal: &str) -> Result<(), RequestError> {
        self.ask(|reply| Request::Signal { signal: signal.to_owned(), reply }).await
    }

    /// Run a command inside the task.
    ///
    /// # Errors
    /// When the task does not run, or its driver or the host refuses.
    pub async fn exec(&self, command: ExecCommand) -> Result<ExecSession, RequestError> {
        self.ask(|reply| Request::Exec(ExecRequest { command, reply })).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, RequestError>>) -> Request,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Box::new(request(reply))).await.map_err(|_| RequestError::Gone)?;
        answer.await.map_err(|_| RequestError::Gone)?
    }
}
