//! One allocation: its owner, what the owner decides by, and the way to it.
//!
//! ```text
//!   agent ── stop, restart, signal, destroy, shutdown ──► alloc::runner (one tokio task)
//!     │                                                    │ inputs     ▲ task states, answers
//!     ├── update ──► watch<Allocation> (newest wins) ──────┤            │
//!     ▲                                                    ▼            ▼
//!     └── watch<AllocState>, watch<AllocPhase> ◄── machine ── effects ► hooks, gates, task owners
//! ```
//! [`machine`] decides (pure), with [`coordinator`] (which tasks may start) and [`status`] (what the
//! task states mean); [`runner`] acts. [`services`] are listed while they are there; [`health`] judges
//! (pure), with what their [`checks`] find.
//! [`ostler_model::alloc::Allocation`] is what was asked, and changes only by a newer copy of it, as
//! far as [`update`] says; [`AllocState`] is what is.

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
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::by_task::ByTask;
use crate::queue;
use crate::services::NodeServices;
use crate::task::env::NodeFacts;
use crate::task::{ExecRequest, LogSlot, RequestError, RestoredTask, TaskHandle};
use crate::watch;
use ostler_logs::TaskLogs;
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::artifact::Artifacts;
use ostler_model::clock::Clock;
use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
use ostler_model::network::Networks;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::{Devices, Drivers, Workloads};
use ostler_model::rng::Rng;
use ostler_model::saved::{DeploymentStatus, SavedAllocState};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::task::Usage;
use ostler_model::vars::KeptVariables;
use ostler_state::StateStore;
use ostler_trace::TracedAlloc;

pub use self::disk_watch::DiskWatch;
pub use self::health::{CheckId, CheckResult};
use self::hooks::HookTimes;
pub use self::hooks::{HookKind, HookTime};
pub use self::machine::AllocPhase;
pub use self::phases::{OwnerGone, PhaseWatch};
pub use self::size::{AllocDiskUse, DiskMeter, OnDisk};
use self::users::AllocUsers;

/// What an allocation's owner needs.
pub struct AllocRunnerConfig {
    /// What was asked; already durable under its own key.
    pub allocation: Arc<Allocation>,
    /// The node, for `${…}` and the environment.
    pub node: Arc<NodeFacts>,
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
    /// The node's drivers.
    pub drivers: Arc<dyn Drivers>,
    /// What the host runs.
    pub workloads: Arc<dyn Workloads>,
    /// The node's devices.
    pub devices: Arc<dyn Devices>,
    /// Those who fetch what tasks bring along.
    pub artifacts: Option<Arc<dyn Artifacts>>,
    /// Where states are written.
    pub state: StateStore,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
    /// Longest `kill_timeout` honoured; [`ostler_model::limits::KILL_TIMEOUT_MAX`] unless configured.
    pub kill_timeout_max: Duration,
    /// Secrets of tasks are kept in memory, where the agent may mount a file system there.
    pub secrets_in_memory: bool,
    /// Gives allocations user ids of their own.
    pub users: AllocUsers,
    /// Earlier allocations of its place that this node runs, newest first: each is waited for.
    pub previous: Vec<PreviousAlloc>,
    /// Watches over what it has on disk.
    pub disk_watch: DiskWatch,
    /// The list of the node's services.
    pub services: NodeServices,
    /// What the agent keeps for tasks.
    pub variables: Arc<dyn KeptVariables>,
    /// Address of the node for ports of services that are numbers.
    pub host_ip: Arc<str>,
    /// The other nodes of the cluster that this is a node of.
    pub other_nodes: Option<Arc<dyn OtherNodes>>,
    /// Makes networks of allocations.
    pub networks: Arc<dyn Networks>,
    /// Its trace, where it has one.
    pub trace: TracedAlloc,
}

/// An allocation that must run nothing any more before another one starts. Does not keep its owner.
#[derive(Clone, Debug)]
pub struct PreviousAlloc {
    /// Its id.
    pub id: AllocId,
    /// Where its owner is: primed, so that one who looks late sees the end too.
    pub phase: PhaseWatch,
    /// What is asked of it: the newest copy.
    pub asked: watch::Subscriber<Arc<Allocation>>,
}

impl PreviousAlloc {
    /// The allocation behind this handle.
    #[must_use]
    pub fn of(handle: &AllocHandle) -> Self {
        Self { id: handle.id(), phase: handle.phase(), asked: handle.0.newest.subscribe() }
    }
}

/// What is known of an allocation of an earlier agent.
#[derive(Clone, Debug, Default)]
pub struct RestoredAlloc {
    /// Its state as written last.
    pub saved: Option<SavedAllocState>,
    /// The verdict on its health: given once, never again.
    pub health: Option<DeploymentStatus>,
    /// Its tasks, as far as their records could be read.
    pub tasks: BTreeMap<TaskName, RestoredTask>,
    /// What could not be read of its records. Such an allocation is not run on: whatever of it
    /// lives is killed, and it ends failed with this text.
    pub trouble: Option<String>,
}

/// What a restart is of.
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
        /// The allocation.
        alloc: AllocId,
        /// The group named.
        group: GroupName,
        /// The job.
        job: JobId,
    },
}

/// What the owner can be asked. Boxed in the queue, which has room for 32 at once from the start on.
pub(crate) enum Request {
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
    pub fn spawn(config: AllocRunnerConfig) -> Result<AllocHandle, AllocRunnerError> {
        runner::spawn(config, hooks::standard(), &crate::task::hooks::standard())
    }

    /// Start the owner of an allocation an earlier agent ran. Tasks that run are owned again at
    /// once; pre-run hooks are run again beside that, each leaving what it left the first time. One
    /// that had finished runs nothing at all. Needs a tokio runtime.
    ///
    /// # Errors
    /// As [`AllocRunner::spawn`].
    pub fn restore(
        config: AllocRunnerConfig,
        restored: RestoredAlloc,
    ) -> Result<AllocHandle, AllocRunnerError> {
        let hooks = hooks::standard();
        runner::restore(config, restored, hooks, &crate::task::hooks::standard())
    }
}

/// The way to an allocation's owner. Clones share it; when the last one goes, the owner leaves as
/// in [`AllocHandle::shutdown`].
#[derive(Clone)]
pub struct AllocHandle(Arc<AllocWay>);

/// What all clones of an [`AllocHandle`] share: ten thousand of them are copied for a list.
struct AllocWay {
    id: AllocId,
    newest: watch::Publisher<Arc<Allocation>>,
    dir: PathBuf,
    requests: queue::Sender<Box<Request>>,
    state: watch::Subscriber<AllocState>,
    phase: PhaseWatch,
    /// Empty once the owner is gone.
    tasks: Weak<ByTask<TaskHandle>>,
    logs: Arc<ByTask<LogSlot>>,
    logs_changed: watch::Subscriber<u64>,
    times: HookTimes,
    checks: watch::Subscriber<Arc<[CheckResult]>>,
}

impl AllocHandle {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> AllocId {
        self.0.id
    }

    /// What was asked: the newest copy.
    #[must_use]
    pub fn allocation(&self) -> Arc<Allocation> {
        Arc::clone(&self.0.newest.borrow())
    }

    /// A newer copy of what is asked. Of several that come close together only the newest is
    /// looked at; one that is not newer (by `modify_index`) is ignored, and so is one of another
    /// allocation. `desired` stop ends the allocation. Never waits.
    pub fn update(&self, allocation: Arc<Allocation>) {
        self.0.newest.send_if_modified(|newest| {
            let newer = allocation.id == newest.id && allocation.modify_index > newest.modify_index;
            if newer {
                *newest = allocation;
            }
            newer
        });
    }

    /// States as they come, primed with the present one; only the newest is kept.
    #[must_use]
    pub fn state(&self) -> watch::Subscriber<AllocState> {
        self.0.state.clone()
    }

    /// Where the owner is.
    #[must_use]
    pub fn phase(&self) -> PhaseWatch {
        self.0.phase.clone()
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.0.dir.clone()
    }

    /// The logs of a task, once they are open. Followers of them outlive the allocation's owner.
    #[must_use]
    pub fn task_logs(&self, task: &TaskName) -> Option<Arc<TaskLogs>> {
        self.0.logs.get(task)?.get()
    }

    /// The logs of a task, waited for until they are open; none when the allocation ends without. May be
    /// dropped and called again.
    pub async fn logs_opened(&self, task: &TaskName) -> Option<Arc<TaskLogs>> {
        let (mut opened, mut phase) = (self.0.logs_changed.clone(), self.phase());
        loop {
            // Seen before looking: what comes later wakes the wait below.
            opened.borrow_and_update();
            let finished = phase.borrow_and_update().ended();
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

    /// End the allocation in order: `shutdown_delay`, leader, mains, sidecars; then poststop tasks
    /// run. Returns when the owner has taken the request. A second stop ends delay and poststop too.
    pub async fn stop(&self, reason: impl Into<String>) {
        self.stop_with(reason, false).await;
    }

    /// As [`AllocHandle::stop`]; with `skip_shutdown_delay` no `shutdown_delay` is waited for, of
    /// the group or of a task, and one under way ends.
    pub async fn stop_with(&self, reason: impl Into<String>, skip_shutdown_delay: bool) {
        // An error means that the owner has ended.
        let _gone = self
            .0
            .requests
            .send(Box::new(Request::Stop { reason: reason.into(), skip_shutdown_delay }))
            .await;
    }

    /// As [`AllocHandle::stop_with`], by a newer copy whose `desired` is stop: the copy is the newest
    /// one when this returns, and its description the reason. It counts as one stop.
    pub async fn stop_as(&self, stopped: Arc<Allocation>, skip_shutdown_delay: bool) {
        let reason = stopped.desired_description.clone();
        // The request first: whoever sees the copy finds it waiting, and with it how to stop.
        self.stop_with(reason, skip_shutdown_delay).await;
        self.update(stopped);
    }

    /// Restart one running task, all running ones, or the whole allocation. Returns when the tasks
    /// know.
    ///
    /// # Errors
    /// When there is no such task or it does not run; when the allocation ends or has ended; every
    /// task's own error.
    pub async fn restart(&self, scope: RestartScope, reason: &str) -> Result<(), RequestError> {
        let reason = reason.to_owned();
        self.ask(|reply| Request::Restart { scope, reason, reply }).await
    }

    /// Send a signal by name to one running task, or to all running ones.
    ///
    /// # Errors
    /// As [`AllocHandle::restart`], and the drivers' own.
    pub async fn signal(&self, task: Option<&TaskName>, signal: &str) -> Result<(), RequestError> {
        let (task, signal) = (task.cloned(), signal.to_owned());
        self.ask(|reply| Request::Signal { task, signal, reply }).await
    }

    /// Somebody says whether it is healthy. The first verdict counts. Returns when the owner has taken
    /// the request.
    pub async fn judge(&self, healthy: bool) {
        // An error means that the owner has ended.
        let _gone = self.0.requests.send(Box::new(Request::Judge { healthy })).await;
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
        self.ask(|reply| Request::Exec { task, request: ExecRequest { command, reply } }).await
    }

    /// Wait until every task is dead, post-run hooks ran and the last states are durable (or the
    /// agent left). The state at that point.
    pub async fn wait_done(&self) -> AllocState {
        let mut phase = self.0.phase.clone();
        // An error means the owner is gone; the state it left is the last one.
        let _gone = phase.wait_for(|phase| phase.ended()).await;
        self.0.state.borrow().clone()
    }

    /// Stop it if need be, then remove its directory and records. Idempotent; errors of the removal
    /// are logged. The phase reached: [`AllocPhase::Destroyed`], unless the agent left first.
    pub async fn destroy(&self) -> AllocPhase {
        let _gone = self.0.requests.send(Box::new(Request::Destroy)).await;
        let mut phase = self.0.phase.clone();
        let over = |phase: &AllocPhase| matches!(phase, AllocPhase::Destroyed | AllocPhase::Left);
        // An error means the owner is gone; the phase it left is the last one.
        let _gone = phase.wait_for(over).await;
        *self.0.phase.borrow()
    }

    /// The agent leaves: the owner ends, tasks run on, no hooks run. Returns when the owner is gone.
    pub async fn shutdown(&self) {
        let _gone = self.0.requests.send(Box::new(Request::Shutdown)).await;
        self.0.requests.closed().await;
    }

    /// What its running tasks use now; nothing of the others.
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

    /// What the checks of its services say, as far as those are there now; in file order.
    #[must_use]
    pub fn checks(&self) -> Arc<[CheckResult]> {
        Arc::clone(&self.0.checks.borrow())
    }

    /// How its hooks went: an entry for each hook and kind of call.
    #[must_use]
    pub fn hook_times(&self) -> Vec<HookTime> {
        self.0.times.entries()
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, RequestError>>) -> Request,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        self.0.requests.send(Box::new(request(reply))).await.map_err(|_| RequestError::Gone)?;
        answer.await.map_err(|_| RequestError::Gone)?
    }
}
