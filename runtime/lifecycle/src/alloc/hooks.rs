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
//! | `alloc_dir` | builds the directory; one that is gone is made again, unless a run lives in it | destroy: removes it |
//! | `await_previous` | waits until the previous allocations run nothing, on another node too | post-run: the same for those that are to stop, for who waits for this one |
//! | `disk_migration` | takes over its data, or that of the one before it if it never started, or fetches it from another node; never fails the allocation | |
//! | `network` | makes the network of one that has its own, in its turn, or finds it | post-run, destroy: takes it away |
//! | `services` | begins to list its services and to ask their checks | update: sees the newest copy; pre-kill: takes them off the list |
//! | `health` | begins to watch, unless it was judged | update: anew; pre-kill: ends |
//! | `max_run_duration` | sets the deadline | update: anew |
//! | `disk_size` | begins to measure | post-run: ends |
//!
//! The list is the same for every allocation: a hook that has nothing to do for one decides so each
//! time, so that an update may give it something to do (nomad #9707). Hooks hold no state: what one
//! leaves running lies in [`Background`], which the allocation's owner ends with itself, also when
//! the agent leaves. What a hook has to say goes to the owner as [`News`].
//!

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

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use tokio::sync::Mutex;

use super::machine::Blame;
use super::services::AllocServices;
use super::{DiskWatch, PreviousAlloc};
use crate::by_task::ByTask;
use crate::queue;
use crate::task::env::NodeFacts;
use crate::task::{LogSlot, MadeDirs, NetworkSlot, TaskHandle};
use crate::watch;
use ostler_model::alloc::{AllocState, Allocation, ClientStatus};
use ostler_model::causes;
use ostler_model::clock::Clock;
use ostler_model::event::TaskEvent;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::HOOK_WALL_MAX;
use ostler_model::network::Networks;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::{BoxFuture, Drivers};
use ostler_model::rng::Rng;
use ostler_model::saved::NetworkStatus;
use ostler_state::{Key, StateStore};
use ostler_trace::TracedAlloc;

pub use self::background::Background;
pub use self::run::{
    HookKind, HookTime, HookTimes, destroy, postrun, pre_kill, pre_restart, prerun, update,
};

/// What hooks of an allocation may use.
#[derive(Clone)]
pub struct AllocScope {
    /// What was asked: the newest copy in effect when the hook is called.
    pub allocation: Arc<Allocation>,
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
    /// Time.
    pub clock: Clock,
    /// Earlier allocations of its place that this node runs, newest first.
    pub previous: Vec<PreviousAlloc>,
    /// An earlier agent started some task of it, or may have.
    pub started_before: bool,
    /// Does a run of an earlier agent live? Looked at when it is asked.
    pub lives: Arc<dyn Fn() -> bool + Send + Sync>,
    /// What is, as it changes.
    pub state: watch::Subscriber<AllocState>,
    /// The allocation's owner. It always listens; gone only when it has ended.
    pub owner: queue::Sender<Box<News>>,
    /// What runs on when a hook has returned.
    pub background: Background,
    /// How long hooks took.
    pub times: HookTimes,
    /// Held by whoever changes the allocation's directory, to the end of the change: what was
    /// abandoned half-way must not make a directory again after it was removed.
    pub disk: Arc<Mutex<()>>,
    /// What is on record of other allocations.
    pub store: StateStore,
    /// Watches over what the allocation has on disk.
    pub disk_watch: DiskWatch,
    /// Where its tasks find what was made for their first runs.
    pub first: Arc<[FirstRun]>,
    /// What it offers.
    pub services: AllocServices,
    /// The node, for `${…}`.
    pub node: Arc<NodeFacts>,
    /// The node's drivers.
    pub drivers: Arc<dyn Drivers>,
    /// Its tasks; empty once the owner is gone.
    pub tasks: Weak<ByTask<TaskHandle>>,
    /// Randomness.
    pub rng: Rng,
    /// The other nodes of the cluster that this is a node of.
    pub other_nodes: Option<Arc<dyn OtherNodes>>,
    /// Makes networks.
    pub networks: Arc<dyn Networks>,
    /// Its own, once it is made.
    pub network: NetworkSlot,
    /// Its trace.
    pub trace: TracedAlloc,
}

/// What is made for the first run of a task together with the allocation's directory.
#[derive(Clone)]
pub struct FirstRun {
    /// Whose.
    pub task: TaskName,
    /// Its directories.
    pub made: MadeDirs,
    /// Its log files.
    pub logs: LogSlot,
    /// Its secrets are in memory, where that is possible.
    pub secrets_in_memory: bool,
}

impl AllocScope {
    /// Tell the owner; nobody needs it any more when the owner is gone.
    pub async fn tell(&self, news: News) {
        let _gone = self.owner.send(Box::new(news)).await;
    }

    /// Who can tell of this allocation, and has its disk: it is not one of this node.
    pub(super) fn elsewhere(&self, id: AllocId) -> Option<&Arc<dyn OtherNodes>> {
        let others = self.other_nodes.as_ref()?;
        match self.store.get::<Allocation>(&Key::Alloc(id)) {
            Ok(None) => Some(others),
            Ok(Some(_)) => None,
            Err(error) => {
                tracing::error!(alloc = %id, %error, "whether it is one of this node is not known");
                None
            }
        }
    }

    /// Change the allocation's directory on a blocking thread, one change after the other. A caller
    /// that goes away does not end a change that has begun.
    ///
    /// # Errors
    /// When `change` panicked.
    pub async fn on_disk<T: Send + 'static>(
        &self,
        change: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let held = Arc::clone(&self.disk).lock_owned().await;
        let change = move || {
            let _held = held;
            change()
        };
        ostler_model::clock::blocking(change).await.map_err(|e| e.to_string())
    }
}

/// What a hook tells the allocation's owner.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// The allocation waits for this, or for nothing any more.
    Waiting(Option<String>),
    /// An event for every task.
    Say(TaskEvent),
    /// It has a network of its own.
    Network(NetworkStatus),
    /// An event for one.
    SayTo(TaskName, TaskEvent),
    /// The allocation ends with this status.
    Force {
        /// The status.
        status: ClientStatus,
        /// A sentence on it.
        description: String,
        /// Said to each task first.
        event: Option<TaskEvent>,
    },
    /// It was judged.
    Verdict {
        /// The verdict.
        healthy: bool,
        /// Why not, by task.
        reasons: Vec<(TaskName, String)>,
    },
}

/// Why a hook failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{hook}: {failure}")]
pub struct AllocHookError {
    /// Its name.
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
    pub fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self {
            text: causes::chain(error),
            blame: Blame::of_the_node(causes::is_of_the_node(error)),
        }
    }

    /// It did not end in its time.
    #[must_use]
    pub fn late(wall: Duration) -> Self {
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

fn nothing<'a>() -> HookResult<'a> {
    Box::pin(async { Ok(()) })
}

/// One concern of an allocation. Every call is bounded by [`AllocHook::wall`]; `prerun` may be
/// dropped half-way by a stop and is run again after a restart of the agent, `postrun` runs in any
/// case, and all but `prerun` may come more than once.
pub trait AllocHook: Send + Sync {
    /// For logs and events.
    fn name(&self) -> &'static str;
    /// Longest run of one call. `None`: as long as it takes, which only a hook may say whose waiting
    /// people see, whose work has bounds of its own, and which a stop may break off anywhere.
    fn wall(&self) -> Option<Duration> {
        Some(HOOK_WALL_MAX)
    }
    /// Before any task.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        nothing()
    }
    /// What is asked changed. May come before `prerun` did, or while it runs.
    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        nothing()
    }
    /// Before every task is started again.
    fn pre_restart<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        nothing()
    }
    /// Before tasks are killed, or after the last one ended by itself.
    fn pre_kill<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        nothing()
    }
    /// After all tasks.
    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        nothing()
    }
    /// When the allocation is removed.
    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let _ = scope;
        nothing()
    }
}

/// The hooks of every allocation, in order.
#[must_use]
pub fn standard() -> Vec<Arc<dyn AllocHook>> {
    // Shared by all allocations: each keeps them.
    static ALL: LazyLock<Vec<Arc<dyn AllocHook>>> = LazyLock::new(|| {
        vec![
            Arc::new(dir::DirHook),
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
