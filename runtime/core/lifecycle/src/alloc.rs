//! One allocation: its owner, the state machine that decides for the owner, and the handle
//! to the owner.
//!
//! ```text
//!   agent ── stop, restart, signal, destroy, shutdown ──► alloc::runner (one tokio task)
//!     │                                                    │ inputs     ▲ task states, answers
//!     ├── update ──► watch<Allocation> (newest wins) ──────┤            │
//!     ▲                                                    ▼            ▼
//!     └── watch<AllocState>, watch<AllocPhase> ◄── machine ── effects ► hooks, gates, task owners
//! ```
//! [`machine`] decides (pure), with [`coordinator`] (which tasks may start) and [`status`] (what
//! the task states mean); [`runner`] acts. [`services`] lists the services while they are up.
//! [`health`] judges the health (pure) by the results of the [`checks`]. An
//! [`ostler_model::alloc::Allocation`] says what was asked for. It changes only by a newer copy, as
//! far as [`update`] allows. [`AllocState`] says what is there.

pub mod bring;
pub mod checks;
pub mod coordinator;
pub mod dir;
pub mod disk_watch;
pub mod fetch_tries;
pub mod health;
pub mod hooks;
pub mod machine;
pub mod migrate;
pub mod owner;
mod phases;
pub(crate) mod remove;
pub mod runner;
pub(crate) mod secrets;
pub mod services;
pub mod size;
pub mod snapshot;
pub mod status;
pub mod update;
pub mod users;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use crate::by_task::ByTask;
use crate::context::{AllocContext, NodeContext};
use crate::queue;
use crate::task::{ExecRequest, LogSlot, RequestError, RestoredTask, TaskHandle};
use crate::watch;
use ostler_logs::TaskLogs;
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
use ostler_model::saved::{DeploymentStatus, SavedAllocState};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::task::Usage;

pub use self::disk_watch::DiskWatch;
pub use self::health::{CheckId, CheckResult};
use self::hooks::HookTimes;
pub use self::hooks::{HookKind, HookTime};
pub use self::machine::AllocPhase;
pub use self::phases::{OwnerGone, PhaseWatch};
pub use self::size::{AllocDiskUse, DirectoryMeter, DiskMeter};

/// What the owner of an allocation needs to start.
pub struct AllocStart {
    /// The node.
    pub node: Arc<NodeContext>,
    /// What the allocation will share with its tasks.
    pub context: AllocContext,
    /// The allocation as it was asked for; it is already durable under its own key.
    pub allocation: Arc<Allocation>,
}

/// An allocation that must have ended before another one starts. This does not keep
/// its owner alive.
#[derive(Clone, Debug)]
pub struct PreviousAlloc {
    /// The id of the earlier allocation.
    pub id: AllocId,
    /// The phase of its owner. The watch holds the present phase, so that a late reader sees
    /// the end too.
    pub phase: PhaseWatch,
    /// The newest copy of the earlier allocation.
    pub asked: watch::Subscriber<Arc<Allocation>>,
}

impl PreviousAlloc {
    /// The allocation behind this handle.
    #[must_use]
    pub fn from_handle(handle: &AllocHandle) -> Self {
        Self { id: handle.id(), phase: handle.phase(), asked: handle.0.newest.subscribe() }
    }
}

/// What is known of an allocation of an earlier agent.
#[derive(Clone, Debug, Default)]
pub struct RestoredAlloc {
    /// The state of the allocation as it was written last.
    pub saved: Option<SavedAllocState>,
    /// The verdict on the health. It is given once, never again.
    pub health: Option<DeploymentStatus>,
    /// The tasks, as far as their records could be read.
    pub tasks: BTreeMap<TaskName, RestoredTask>,
    /// What could not be read of the records. Such an allocation does not run on: its runs are
    /// killed, and it ends failed with this text.
    pub trouble: Option<String>,
}

/// Which tasks a restart concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartScope {
    /// Every running task.
    Running,
    /// This task, which must be running.
    Task(TaskName),
    /// Every task, dead ones and those of the lifecycle too, from the first prestart task on.
    All,
}

/// Why an allocation cannot be run at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocRunnerError {
    /// The allocation names a group its job does not have.
    #[error("allocation {alloc} is of group {group}, which job {job} does not have")]
    UnknownGroup {
        /// The id of the allocation.
        alloc: AllocId,
        /// The group that the allocation names.
        group: GroupName,
        /// The job that has no such group.
        job: JobId,
    },
}

/// What the owner can be asked. Requests are boxed, so that a place in the queue
/// takes little memory.
pub(crate) enum AllocOwnerRequest {
    Stop { reason: String, skip_shutdown_delay: bool },
    Restart { scope: RestartScope, reason: String, reply: Reply },
    Signal { task: Option<TaskName>, signal: String, reply: Reply },
    Exec { task: TaskName, request: ExecRequest },
    Judge { healthy: bool },
    Destroy,
    Shutdown,
}

pub(crate) type Reply = oneshot::Sender<Result<(), RequestError>>;

/// Starts owners of allocations.
pub struct AllocRunner;

impl AllocRunner {
    /// Start the owner of an allocation never run before. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the allocation's group is not in its job.
    pub fn spawn(start: AllocStart) -> Result<AllocHandle, AllocRunnerError> {
        runner::start(start, None)
    }

    /// Start the owner of an allocation that an earlier agent ran. Tasks that run are owned again
    /// at once. Meanwhile the pre-run hooks run again, each with the same effect as the first time.
    /// An allocation that had finished runs nothing at all. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`AllocRunner::spawn`].
    pub fn restore(
        start: AllocStart,
        restored: RestoredAlloc,
    ) -> Result<AllocHandle, AllocRunnerError> {
        runner::start(start, Some(restored))
    }
}

/// The handle to the owner of an allocation. When the last clone goes, the owner leaves
/// as in [`AllocHandle::shutdown`].
#[derive(Clone)]
pub struct AllocHandle(Arc<AllocWay>);

/// What all clones of an [`AllocHandle`] share. A list may copy ten thousand handles, so a
/// clone is cheap.
struct AllocWay {
    id: AllocId,
    newest: watch::Publisher<Arc<Allocation>>,
    dir: PathBuf,
    requests: queue::QueueSender<Box<AllocOwnerRequest>>,
    state: watch::Subscriber<AllocState>,
    phase: PhaseWatch,
    /// Empty once the owner is gone.
    tasks: Weak<ByTask<TaskHandle>>,
    logs: Arc<ByTask<LogSlot>>,
    logs_changed: watch::Subscriber<u64>,
    times: HookTimes,
    dir_removed: Arc<AtomicBool>,
    checks: watch::Subscriber<Arc<[CheckResult]>>,
}

impl AllocHandle {
    /// The id of the allocation.
    #[must_use]
    pub fn id(&self) -> AllocId {
        self.0.id
    }

    /// The newest copy of the allocation.
    #[must_use]
    pub fn allocation(&self) -> Arc<Allocation> {
        Arc::clone(&self.0.newest.borrow())
    }

    /// Give the owner a newer copy of the allocation. Of several that come close together only the
    /// newest counts. A copy that is not newer (by `modify_index`) is ignored, and so is one of
    /// another allocation. A copy whose `desired` is stop ends the allocation. Never waits.
    pub fn update(&self, allocation: Arc<Allocation>) {
        self.0.newest.send_if_modified(|newest| {
            let newer = allocation.id == newest.id && allocation.modify_index > newest.modify_index;
            if newer {
                *newest = allocation;
            }
            newer
        });
    }

    /// Follow the state of the allocation; only the newest state is kept.
    #[must_use]
    pub fn state(&self) -> watch::Subscriber<AllocState> {
        self.0.state.clone()
    }

    /// Follow the phase of the owner.
    #[must_use]
    pub fn phase(&self) -> PhaseWatch {
        self.0.phase.clone()
    }

    /// The path of the allocation's directory, `<alloc_root>/<alloc id>`.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.0.dir.clone()
    }

    /// Whether the owner has removed the directory of the allocation. When it is destroyed and this is false, something
    /// of the directory is left.
    #[must_use]
    pub fn dir_is_removed(&self) -> bool {
        self.0.dir_removed.load(Ordering::Acquire)
    }

    /// The logs of a task, once they are open. A follower of the logs may outlive
    /// the allocation's owner.
    #[must_use]
    pub fn task_logs(&self, task: &TaskName) -> Option<Arc<TaskLogs>> {
        self.0.logs.get(task)?.get()
    }

    /// Wait until the logs of a task are open. `None` when the allocation ends before they are. The
    /// wait may be dropped and begun again.
    pub async fn wait_for_logs(&self, task: &TaskName) -> Option<Arc<TaskLogs>> {
        let (mut opened, mut phase) = (self.0.logs_changed.clone(), self.phase());
        loop {
            // Marked as seen before the look, so that a later change wakes the wait below.
            opened.borrow_and_update();
            let finished = phase.borrow_and_update().has_ended();
            if let Some(logs) = self.task_logs(task) {
                return Some(logs);
            }
            if finished {
                return None;
            }
            let gone = tokio::select! {
                changed = opened.changed() => changed.is_err(),
                changed = phase.changed() => changed.is_err(),
            };
            if gone {
                return self.task_logs(task);
            }
        }
    }

    /// End the allocation in order: `shutdown_delay`, leader, main tasks, sidecars; then the
    /// poststop tasks run. Returns when the owner has taken the request. A second stop ends the
    /// delay and the poststop tasks too.
    pub async fn stop(&self, reason: impl Into<String>) {
        self.stop_with(reason, false).await;
    }

    /// As [`AllocHandle::stop`]. With `skip_shutdown_delay` the owner waits for no `shutdown_delay`
    /// of the group or of a task, and a delay that runs already ends.
    pub async fn stop_with(&self, reason: impl Into<String>, skip_shutdown_delay: bool) {
        // An error means that the owner has ended.
        let _gone = self
            .0
            .requests
            .send(Box::new(AllocOwnerRequest::Stop { reason: reason.into(), skip_shutdown_delay }))
            .await;
    }

    /// As [`AllocHandle::stop_with`], by a newer copy whose `desired` is stop. Its description is
    /// the reason. The copy is the newest one when this returns. Request and copy together count
    /// as one stop.
    pub async fn stop_as(&self, stopped: Arc<Allocation>, skip_shutdown_delay: bool) {
        let reason = stopped.desired_description.clone();
        // The request goes first, so that the owner finds in the queue how to stop when it
        // sees the copy.
        self.stop_with(reason, skip_shutdown_delay).await;
        self.update(stopped);
    }

    /// Restart one running task, all running tasks, or the whole allocation. Returns when the tasks
    /// have taken the request.
    ///
    /// # Errors
    /// When there is no such task or it does not run; when the allocation ends or has ended; when
    /// a task refuses.
    pub async fn restart(&self, scope: RestartScope, reason: &str) -> Result<(), RequestError> {
        let reason = reason.to_owned();
        self.ask(|reply| AllocOwnerRequest::Restart { scope, reason, reply }).await
    }

    /// Send a signal by name to one running task, or to all running ones.
    ///
    /// # Errors
    /// As [`AllocHandle::restart`], and the drivers' own.
    pub async fn signal(&self, task: Option<&TaskName>, signal: &str) -> Result<(), RequestError> {
        let (task, signal) = (task.cloned(), signal.to_owned());
        self.ask(|reply| AllocOwnerRequest::Signal { task, signal, reply }).await
    }

    /// Set the allocation healthy or unhealthy by request. The first verdict counts. Returns when
    /// the owner has taken the request.
    pub async fn judge(&self, healthy: bool) {
        // An error means that the owner has ended.
        let _gone = self.0.requests.send(Box::new(AllocOwnerRequest::Judge { healthy })).await;
    }

    /// Run a command inside a running task.
    ///
    /// # Errors
    /// When there is no such task or it does not run, or its driver or the host refuses.
    pub async fn exec(
        &self,
        task: &TaskName,
        command: ExecCommand,
    ) -> Result<ExecSession, RequestError> {
        let task = task.clone();
        self.ask(|reply| AllocOwnerRequest::Exec { task, request: ExecRequest { command, reply } })
            .await
    }

    /// Wait until every task is dead, the post-run hooks ran and the last states are durable, or
    /// the agent left. Returns the state at that point.
    pub async fn wait_done(&self) -> AllocState {
        let mut phase = self.0.phase.clone();
        // An error means the owner is gone; the state it left is the last one.
        let _gone = phase.wait_for(|phase| phase.has_ended()).await;
        self.0.state.borrow().clone()
    }

    /// Stop the allocation if it runs, then remove its directory and records. Idempotent. Errors of
    /// the removal are logged. Returns the phase reached: [`AllocPhase::Destroyed`], unless the
    /// agent left first.
    pub async fn destroy(&self) -> AllocPhase {
        let _gone = self.0.requests.send(Box::new(AllocOwnerRequest::Destroy)).await;
        let mut phase = self.0.phase.clone();
        let over = |phase: &AllocPhase| matches!(phase, AllocPhase::Destroyed | AllocPhase::Left);
        // An error means the owner is gone; the phase it left is the last one.
        let _gone = phase.wait_for(over).await;
        *self.0.phase.borrow()
    }

    /// The agent leaves: the owner ends, the tasks run on and no hooks run. Returns when the
    /// owner is gone.
    pub async fn shutdown(&self) {
        let _gone = self.0.requests.send(Box::new(AllocOwnerRequest::Shutdown)).await;
        self.0.requests.closed().await;
    }

    /// What the running tasks use now. Other tasks have no entry.
    pub async fn usage(&self) -> BTreeMap<TaskName, Usage> {
        let Some(tasks) = self.0.tasks.upgrade() else {
            return BTreeMap::new();
        };
        let mut used = BTreeMap::new();
        for (name, task) in tasks.iter() {
            used.extend(task.usage().await.map(|usage| (name.clone(), usage)));
        }
        used
    }

    /// The results of the checks of those services that are listed now, in file order.
    #[must_use]
    pub fn checks(&self) -> Arc<[CheckResult]> {
        Arc::clone(&self.0.checks.borrow())
    }

    /// How the hooks of the allocation went: an entry for each hook and kind of call.
    #[must_use]
    pub fn hook_times(&self) -> Vec<HookTime> {
        self.0.times.entries()
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, RequestError>>) -> AllocOwnerRequest,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        self.0.requests.send(Box::new(request(reply))).await.map_err(|_| RequestError::Gone)?;
        answer.await.map_err(|_| RequestError::Gone)?
    }
}
