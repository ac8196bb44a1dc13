//! One allocation: its owner, what the owner decides by, and the way to it.
//!
//! ```text
//!   agent ── stop, restart, signal, destroy, shutdown ──► alloc::runner (one tokio task)
//!     ▲                                                    │ inputs     ▲ task states, answers
//!     └── watch<AllocState>, watch<AllocPhase> ◄── machine ◄┘ ─effects─► hooks, gates, task owners
//! ```
//! [`machine`] decides (pure), with [`coordinator`] (which tasks may start) and [`status`] (what the
//! task states mean); [`runner`] acts. [`health`] judges (pure), with what [`checks`] finds.
//! [`crate::model::alloc::Allocation`] is what was asked and never changes here; [`AllocState`] is
//! what is.

pub mod checks;
pub mod coordinator;
pub mod dir;
pub mod health;
pub mod hooks;
pub mod machine;
pub mod migrate;
pub(crate) mod remove;
pub mod runner;
pub mod size;
pub mod status;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::driver::api::{Devices, Drivers, Workloads};
use crate::logs::TaskLogs;
use crate::model::alloc::{AllocState, Allocation};
use crate::model::ids::{AllocId, GroupName, JobId, TaskName};
use crate::rng::Rng;
use crate::state::StateStore;
use crate::task::env::NodeFacts;
use crate::task::{LogSlot, RequestError};

pub use self::machine::AllocPhase;

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
    /// Where states are written.
    pub state: StateStore,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
    /// Longest `kill_timeout` honoured; [`crate::limits::KILL_TIMEOUT_MAX`] unless configured.
    pub kill_timeout_max: Duration,
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

/// What the owner can be asked.
pub(crate) enum Request {
    Stop { reason: String },
    Restart { task: Option<TaskName>, reason: String, reply: Reply },
    Signal { task: Option<TaskName>, signal: String, reply: Reply },
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
}

/// The way to an allocation's owner. Clones share it; when the last one goes, the owner leaves as
/// in [`AllocHandle::shutdown`].
#[derive(Clone)]
pub struct AllocHandle {
    allocation: Arc<Allocation>,
    dir: PathBuf,
    requests: mpsc::Sender<Request>,
    state: watch::Receiver<AllocState>,
    phase: watch::Receiver<AllocPhase>,
    logs: Arc<BTreeMap<TaskName, LogSlot>>,
    logs_changed: watch::Receiver<u64>,
}

impl AllocHandle {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> AllocId {
        self.allocation.id
    }

    /// What was asked.
    #[must_use]
    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// States as they come, primed with the present one; only the newest is kept.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<AllocState> {
        self.state.clone()
    }

    /// Where the owner is.
    #[must_use]
    pub fn phase(&self) -> watch::Receiver<AllocPhase> {
        self.phase.clone()
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.dir.clone()
    }

    /// The logs of a task, once they are open. Followers of them outlive the allocation's owner.
    #[must_use]
    pub fn task_logs(&self, task: &TaskName) -> Option<Arc<TaskLogs>> {
        self.logs.get(task)?.get()
    }

    /// Changes when a task's logs are opened.
    #[must_use]
    pub fn tasks_logs_changed(&self) -> watch::Receiver<u64> {
        self.logs_changed.clone()
    }

    /// End the allocation in order: `shutdown_delay`, leader, mains, sidecars; then poststop tasks
    /// run. Returns when the owner has taken the request. A second stop ends delay and poststop too.
    pub async fn stop(&self, reason: impl Into<String>) {
        // An owner that is gone has stopped.
        let _gone = self.requests.send(Request::Stop { reason: reason.into() }).await;
    }

    /// Restart one running task, or all running ones.
    ///
    /// # Errors
    /// When there is no such task or it does not run; of several the first error.
    pub async fn restart(&self, task: Option<&TaskName>, reason: &str) -> Result<(), RequestError> {
        let (task, reason) = (task.cloned(), reason.to_owned());
        self.ask(|reply| Request::Restart { task, reason, reply }).await
    }

    /// Send a signal by name to one running task, or to all running ones.
    ///
    /// # Errors
    /// As [`AllocHandle::restart`], and the driver's.
    pub async fn signal(&self, task: Option<&TaskName>, signal: &str) -> Result<(), RequestError> {
        let (task, signal) = (task.cloned(), signal.to_owned());
        self.ask(|reply| Request::Signal { task, signal, reply }).await
    }

    /// Wait until every task is dead, post-run hooks ran and the last states are durable (or the
    /// agent left). The state at that point.
    pub async fn wait_done(&self) -> AllocState {
        let mut phase = self.phase.clone();
        // An error means the owner is gone; the state it left is the last one.
        let _gone = phase.wait_for(|phase| phase.finished()).await;
        self.state.borrow().clone()
    }

    /// Stop it if need be, then remove its directory and records. Idempotent; errors of the removal
    /// are logged. The phase reached: [`AllocPhase::Destroyed`], unless the agent left first.
    pub async fn destroy(&self) -> AllocPhase {
        let _gone = self.requests.send(Request::Destroy).await;
        let mut phase = self.phase.clone();
        let over = |phase: &AllocPhase| matches!(phase, AllocPhase::Destroyed | AllocPhase::Left);
        // An error means the owner is gone; the phase it left is the last one.
        let _gone = phase.wait_for(over).await;
        *self.phase.borrow()
    }

    /// The agent leaves: the owner ends, tasks run on, no hooks run. Returns when the owner is gone.
    pub async fn shutdown(&self) {
        let _gone = self.requests.send(Request::Shutdown).await;
        self.requests.closed().await;
    }

    async fn ask(&self, request: impl FnOnce(Reply) -> Request) -> Result<(), RequestError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| RequestError::Gone)?;
        answer.await.map_err(|_| RequestError::Gone)?
    }
}
