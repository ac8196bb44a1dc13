//! What happens around the run of an allocation, in a fixed order.
//!
//! ```text
//!   before any task      prerun       first error stops, every task fails, unless it is the node's: that
//!                                     is tried again; again after a restart of the agent, while the
//!                                     tasks are owned again: tried again too while a task runs
//!   newer copy           update       all of them, one after the other; not when it is also a stop
//!   restart of all       pre_restart  first error stops, the restart does not begin
//!   before kills         pre_kill     all of them; also when the last task ended by itself
//!   after all tasks      postrun      all of them, whatever one says; not when the agent leaves
//!   on removal           destroy      all of them, idempotent
//! ```
//! | hook | prerun | later |
//! |---|---|---|
//! | `alloc_dir` | builds the directory; makes a lost directory again, unless a run lives in it | destroy: removes it |
//! | `await_previous` | waits until the previous allocations run nothing, on another node too | post-run: waits again for previous allocations that are to stop, for the sake of whoever waits for this one |
//! | `disk_migration` | takes over the data of the previous allocation, or of the one before it if that one never started, or fetches the data from another node; never fails the allocation | |
//! | `network` | makes the allocation's own network when its turn comes, or finds it | post-run, destroy: takes it away |
//! | `services` | begins to list the services and to ask their checks | update: sees the newest copy; pre-kill: takes them off the list |
//! | `health` | begins to watch, unless there is a verdict | update: anew; pre-kill: ends |
//! | `max_run_duration` | sets the deadline | update: anew |
//! | `disk_size` | begins to measure | post-run: ends |
//!
//! The list is the same for every allocation. A hook that has nothing to do for an allocation
//! decides that at each call, so that an update may give it something to do (nomad #9707). Hooks
//! hold no state. What a hook leaves running lies in [`Background`], which ends with the
//! allocation's owner, also when the agent leaves. A hook reports to the owner by [`HookNews`].

pub(super) mod background;
mod dir;
mod disk_size;
mod fetch;
mod health;
mod max_run;
mod migrate;
mod network;
mod previous;
mod run;
mod services;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::sync::Mutex;

use super::machine::Blame;
use super::services::AllocServices;
use crate::by_task::ByTask;
use crate::context::{AllocContext, NodeContext};
use crate::queue;
use crate::task::late_dirs::LateDirs;
use crate::task::{LogSlot, MadeDirs, TaskHandle};
use crate::watch;
use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::causes;
use ostler_model::disk_work::run_disk_work;
use ostler_model::event::TaskEvent;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::HOOK_WALL_MAX;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::BoxFuture;
use ostler_model::saved::NetworkStatus;
use ostler_state::records::AllocKey;

pub use self::background::Background;
pub use self::run::{
    HookKind, HookTime, HookTimes, destroy, postrun, pre_kill, pre_restart, prerun, update,
};

/// What hooks of an allocation may use.
#[derive(Clone)]
pub struct AllocScope {
    /// The node.
    pub node: Arc<NodeContext>,
    /// What the allocation shares with its tasks.
    pub context: Arc<AllocContext>,
    /// The newest copy of the allocation that is in effect when the hook is called.
    pub allocation: Arc<Allocation>,
    /// An earlier agent started some task of the allocation, or may have.
    pub started_before: bool,
    /// Does a run of an earlier agent live? Each call looks anew.
    pub lives: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Follows the state of the allocation.
    pub state: watch::Subscriber<AllocState>,
    /// The queue of the allocation's owner. The owner listens until it has ended.
    pub owner: queue::QueueSender<Box<HookNews>>,
    /// What runs on when a hook has returned.
    pub background: Background,
    /// How long hooks took.
    pub times: HookTimes,
    /// Held during each change of the allocation's directory. So a change that was abandoned
    /// half-way cannot make the directory again after it was removed.
    pub disk: Arc<Mutex<()>>,
    /// Set when the directory of the allocation was removed.
    pub dir_removed: Arc<AtomicBool>,
    /// What the allocation makes for the first runs of its tasks.
    pub first: Arc<[FirstRun]>,
    /// The services that the allocation offers.
    pub services: AllocServices,
    /// The tasks of the allocation; empty once the owner is gone.
    pub tasks: Weak<ByTask<TaskHandle>>,
}

/// What is made for the first run of a task together with the allocation's directory.
#[derive(Clone)]
pub struct FirstRun {
    /// The task of the run.
    pub task: TaskName,
    /// Where the task finds its directories.
    pub made: MadeDirs,
    /// Makes them, if they are made late.
    pub dirs: Arc<LateDirs>,
    /// Where the task finds its log files.
    pub logs: LogSlot,
}

impl AllocScope {
    /// Send news to the owner. Nobody needs the news when the owner is gone.
    pub async fn tell(&self, news: HookNews) {
        let _gone = self.owner.send(Box::new(news)).await;
    }

    /// The other nodes, if this allocation is not one of this node: they know its state and
    /// have its disk.
    pub(super) fn other_nodes_for(&self, id: AllocId) -> Option<&Arc<dyn OtherNodes>> {
        let others = self.node.other_nodes.as_ref()?;
        match self.node.state.get::<Allocation>(&AllocKey::of(id)) {
            Ok(None) => Some(others),
            Ok(Some(_)) => None,
            Err(error) => {
                tracing::error!(alloc = %id, %error, "whether it is one of this node is not known");
                None
            }
        }
    }

    /// Change the allocation's directory on a blocking thread, one change after the other. A change
    /// that has begun runs to its end, even if the caller is dropped.
    ///
    /// # Errors
    /// When `change` panicked.
    pub async fn on_disk<T: Send + 'static>(
        &self,
        change: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let change = self.hold_disk(change).await;
        ostler_model::clock::run_blocking(change).await.map_err(|e| e.to_string())
    }

    /// As [`AllocScope::on_disk`], for a change that is short as long as the disk is well. Many
    /// allocations share few threads for these.
    ///
    /// # Errors
    /// When `change` panicked.
    pub async fn on_disk_shortly<T: Send + 'static>(
        &self,
        change: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let change = self.hold_disk(change).await;
        run_disk_work(change).await.map_err(|e| e.to_string())
    }

    /// The same change, which holds the directory until it has ended.
    async fn hold_disk<T, F>(&self, change: F) -> impl FnOnce() -> T + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let held = Arc::clone(&self.disk).lock_owned().await;
        move || {
            let _held = held;
            change()
        }
    }
}

/// What a hook tells the allocation's owner.
#[derive(Clone, Debug, PartialEq)]
pub enum HookNews {
    /// The allocation waits for this, or for nothing any more.
    Waiting(Option<String>),
    /// An event for every task.
    Say(TaskEvent),
    /// The allocation has this network of its own.
    Network(NetworkStatus),
    /// An event for one task.
    SayTo(TaskName, TaskEvent),
    /// The allocation ends with this status.
    Force {
        /// The client status that the allocation ends with.
        status: ClientStatus,
        /// A sentence on the status, for people.
        description: String,
        /// An event for each task before the end.
        event: Option<TaskEvent>,
    },
    /// There is a verdict on the health.
    Verdict {
        /// The allocation is healthy.
        healthy: bool,
        /// Why the allocation is not healthy, by task.
        reasons: Vec<(TaskName, String)>,
    },
}

/// Why a hook failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{hook}: {failure}")]
pub struct AllocHookError {
    /// Name of the hook: `alloc_dir`, `network` …
    pub hook: &'static str,
    /// What went wrong.
    pub failure: HookFailure,
}

/// What went wrong in a hook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HookFailure {
    text: String,
    /// Whose fault it is.
    pub blame: Blame,
}

impl HookFailure {
    /// From an error and its causes.
    #[must_use]
    pub fn from_error(error: &(dyn std::error::Error + 'static)) -> Self {
        Self {
            text: causes::chain(error),
            blame: Blame::of_the_node(causes::is_of_the_node(error)),
        }
    }

    /// The failure of a hook that did not end within its time.
    #[must_use]
    pub fn from_timeout(wall: Duration) -> Self {
        Self { text: format!("did not end within {wall:?}"), blame: Blame::Nobody }
    }
}

impl From<String> for HookFailure {
    fn from(text: String) -> Self {
        Self { text, blame: Blame::Alloc }
    }
}

/// How a call of a hook ends.
pub type HookResult<'a> = BoxFuture<'a, Result<(), HookFailure>>;

fn succeed_at_once<'a>() -> HookResult<'a> {
    Box::pin(async { Ok(()) })
}

/// One concern of an allocation. Every call is bounded by [`AllocHook::wall`]; `prerun` may be
/// dropped half-way by a stop and is run again after a restart of the agent, `postrun` runs in any
/// case, and all but `prerun` may come more than once.
pub trait AllocHook: Send + Sync {
    /// For logs and events.
    fn name(&self) -> &'static str;
    /// Longest time of one call. `None`: as long as it takes. Only a hook may say `None` whose wait
    /// people see, whose work has bounds of its own, and which a stop may break off anywhere.
    fn wall(&self) -> Option<Duration> {
        Some(HOOK_WALL_MAX)
    }
    /// Before any task.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        succeed_at_once()
    }
    /// The allocation has a newer copy. The call may come before `prerun`, or while `prerun` runs.
    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        succeed_at_once()
    }
    /// Before every task is started again.
    fn pre_restart<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        succeed_at_once()
    }
    /// Before tasks are killed, or after the last one ended by itself.
    fn pre_kill<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        succeed_at_once()
    }
    /// After all tasks.
    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        succeed_at_once()
    }
    /// When the allocation is removed.
    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        succeed_at_once()
    }
}

/// The hooks of every allocation, in order.
#[must_use]
pub fn standard() -> Vec<Arc<dyn AllocHook>> {
    // All allocations share one list, because each of them keeps it.
    static ALL: LazyLock<Vec<Arc<dyn AllocHook>>> = LazyLock::new(|| {
        vec![
            Arc::new(dir::AllocDirHook),
            Arc::new(previous::PreviousHook),
            Arc::new(migrate::MigrateHook),
            Arc::new(network::NetworkHook),
            Arc::new(services::ServicesHook),
            Arc::new(health::HealthHook),
            Arc::new(max_run::MaxRunHook),
            Arc::new(disk_size::DiskSizeHook),
        ]
    });
    ALL.clone()
}
