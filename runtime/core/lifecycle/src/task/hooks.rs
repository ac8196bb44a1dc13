//! What happens around the runs of a task, in a fixed order.
//!
//! ```text
//!   before each run   driver ─► dir ─► logs ─► devices ─► owner ─► payload ─► artifacts ─►
//!                     template ─► config ─► modules ─► volumes ─► dns     first error stops
//!   after each run    exited, all of them, whatever one says
//!   at the end        stop, all of them; idempotent
//! ```
//! The list never changes after construction; a hook with nothing to do for a task does nothing. No
//! hook is "done" for more than one run: each leaves its effects in the [`Preparation`], which is
//! made anew for each run, so that no effect can be lost between two runs.

mod artifacts;
mod config;
mod devices;
mod dir;
mod dns;
mod driver;
mod logs;
mod modules;
mod owner;
mod payload;
mod template;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::TaskScope;
use super::env::TaskEnv;
use super::events;
use super::handle::RunIntent;
use super::notes::{self, DriverNote};
use super::templates::Templates;
use crate::alloc::dir::TaskDir;
use crate::queue;
pub use artifacts::FetchedArtifacts;
pub use config::env_with_driver as environment_of_task;
use ostler_logs::TaskLogs;
use ostler_model::artifact::PinnedFile;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::device::Reservation;
use ostler_model::event::TaskEvent;
use ostler_model::json::JsonObject;
use ostler_model::limits::{HOOK_SLOW, HOOK_WALL_MAX};
use ostler_model::ports::{AllocUser, BoxFuture, FileOwner, PluginCallError, TaskDriver};
use ostler_model::time::Timestamp;
use ostler_trace::{child_span, run_in};

/// What the prestart hooks made for one run.
#[derive(Default)]
pub struct Preparation {
    /// The run was started by an earlier agent and goes on. Hooks refuse nothing that the
    /// run has already.
    pub goes_on: bool,
    /// A run that went on has ended since. Its directory may have gone too, and be another one now.
    pub ended: bool,
    /// From `driver`: the driver of the task.
    pub driver: Option<Arc<dyn TaskDriver>>,
    /// From `dir`: the paths of the task's directories.
    pub task_dir: Option<TaskDir>,
    /// From `dir`: the path of the shared directory.
    pub alloc_dir: PathBuf,
    /// From `logs`: the task's open log files.
    pub logs: Option<Arc<TaskLogs>>,
    /// From `devices`: how the task uses its devices.
    pub reservation: Reservation,
    /// From `config`: the environment of the task.
    pub env: Option<TaskEnv>,
    /// From `owner`: the owner of files that are made for the task; `None`: the agent.
    pub owner: Option<FileOwner>,
    /// From `owner`: the user of the task if it is isolated and names no user.
    pub alloc_user: AllocUser,
    /// From `config`: the task's `config` block, interpolated and checked.
    pub config: JsonObject,
    /// From `config`: the user that the task names, interpolated.
    pub user: Option<String>,
    /// From `template`: variables from files of templates with `env`.
    pub template_env: BTreeMap<String, String>,
    /// From `template`: the task's templates, to be followed while it runs.
    pub templates: Option<Arc<Templates>>,
    /// The intent of the run, where it was put on its way to the disk before the hooks ran.
    pub intent: Option<RunIntent>,
    /// From `modules`: files that the driver reads while it starts the run.
    pub modules: Vec<Arc<dyn PinnedFile>>,
    /// Where hooks report their progress.
    pub notes: Option<queue::QueueSender<DriverNote>>,
}

impl Preparation {
    /// Send an event of the task while it is prepared. An owner whose queue is full
    /// misses the event.
    fn say(&self, event: TaskEvent) {
        notes::tell(self.notes.as_ref(), event);
    }
}

/// Why a run cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The driver exists but cannot be used now: the task waits and does not fail.
    #[error("driver not ready: {reason}")]
    DriverNotReady {
        /// The health text of the driver.
        reason: String,
    },
    /// The configuration is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Something that the task needs cannot be had.
    #[error("{error}")]
    Setup {
        /// What failed, for the event.
        error: String,
        /// A later try may succeed.
        recoverable: bool,
    },
    /// The node is short of something, or its disk fails.
    #[error("{error}")]
    Node {
        /// What failed, for the event.
        error: String,
    },
    /// An artifact of the task could not be fetched.
    #[error("{error}")]
    Artifact {
        /// Which artifact failed and why, for the event.
        error: String,
        /// A later try may succeed.
        recoverable: bool,
    },
    /// The hook did not end in time.
    #[error("hook {hook} did not end in time")]
    TimedOut {
        /// Name of the hook: `driver`, `artifacts` …
        hook: &'static str,
    },
}

impl HookError {
    /// A set-up failure that a later try does not mend.
    pub(super) fn setup(error: impl std::fmt::Display) -> Self {
        Self::Setup { error: error.to_string(), recoverable: false }
    }

    /// A set-up failure that a later try may mend.
    pub(super) fn passing_setup(error: impl std::fmt::Display) -> Self {
        Self::Setup { error: error.to_string(), recoverable: true }
    }

    /// A set-up failure on the disk, which a later try may mend.
    pub(super) fn on_disk(error: &(dyn std::error::Error + 'static)) -> Self {
        let text = causes::chain(error);
        if causes::is_of_the_node(error) {
            Self::Node { error: text }
        } else {
            Self::passing_setup(text)
        }
    }

    /// The failure of a plugin that a hook asked.
    pub(super) fn plugin(error: &PluginCallError) -> Self {
        Self::Setup { error: error.to_string(), recoverable: error.is_recoverable() }
    }

    /// May the next attempt go better?
    #[must_use]
    pub fn recoverable(&self) -> bool {
        match self {
            Self::DriverNotReady { .. } | Self::TimedOut { .. } | Self::Node { .. } => true,
            Self::Invalid(_) => false,
            Self::Setup { recoverable, .. } | Self::Artifact { recoverable, .. } => *recoverable,
        }
    }

    /// The event that reports the error.
    #[must_use]
    pub fn event(&self, now: Timestamp) -> TaskEvent {
        let text = self.to_string();
        match self {
            Self::Invalid(_) => events::failed_validation(now, &text),
            Self::Artifact { .. } => events::artifact_failed(now, &text),
            Self::TimedOut { hook } => events::hook_failed(now, hook, &text),
            Self::DriverNotReady { .. } | Self::Setup { .. } | Self::Node { .. } => {
                events::setup_failure(now, &text)
            }
        }
    }
}

/// One concern of a task. Every call is bounded by [`TaskHook::wall`], and a kill may drop it
/// half-way. `stop` runs in any case.
pub trait TaskHook: Send + Sync {
    /// For logs and events.
    fn name(&self) -> &'static str;
    /// The longest time of [`TaskHook::prestart`].
    fn wall(&self) -> Duration {
        HOOK_WALL_MAX
    }
    /// Before each run.
    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        let _ = (scope, preparation);
        Box::pin(async { Ok(()) })
    }
    /// After each run.
    fn exited<'a>(&'a self, scope: &'a TaskScope) -> BoxFuture<'a, ()> {
        let _ = scope;
        Box::pin(async {})
    }
    /// When the task ended for good, also when it never ran.
    fn stop<'a>(&'a self, scope: &'a TaskScope) -> BoxFuture<'a, ()> {
        let _ = scope;
        Box::pin(async {})
    }
}

/// The hooks of every task, in order.
#[must_use]
pub fn standard() -> Vec<Arc<dyn TaskHook>> {
    // All tasks share one list, because each of them keeps it.
    static ALL: LazyLock<Vec<Arc<dyn TaskHook>>> = LazyLock::new(|| {
        vec![
            Arc::new(driver::DriverHook),
            Arc::new(dir::TaskDirHook),
            Arc::new(logs::LogsHook),
            Arc::new(devices::DevicesHook),
            Arc::new(owner::OwnerHook),
            Arc::new(payload::PayloadHook),
            Arc::new(artifacts::ArtifactsHook),
            Arc::new(template::TemplateHook),
            Arc::new(config::ConfigHook),
            Arc::new(modules::ModulesHook),
            Arc::new(volumes::VolumesHook),
            Arc::new(dns::DnsHook),
        ]
    });
    ALL.clone()
}

/// The span of one call of a hook.
fn span(scope: &TaskScope, hook: &dyn TaskHook, call: &'static str) -> Span {
    let (ids, hook, task) =
        (child_span(&scope.context.trace), hook.name(), scope.task.name.as_str());
    ostler_trace::span!(ids, "task hook", task, hook, call, error = Empty)
}

/// Run all prestart hooks.
///
/// # Errors
/// The first hook's that fails.
pub async fn prestart(
    scope: &TaskScope,
    notes: Option<queue::QueueSender<DriverNote>>,
) -> Result<Preparation, HookError> {
    let mut preparation = Preparation { notes, ..Preparation::default() };
    for hook in &scope.node.task_hooks {
        let watch = clock::Stopwatch::start();
        let prepared = async {
            let prepared = hook.prestart(scope, &mut preparation);
            let late = || Err(HookError::TimedOut { hook: hook.name() });
            clock::timeout(hook.wall(), prepared).await.unwrap_or_else(late)
        };
        let result = run_in(span(scope, &**hook, "prestart"), prepared, |error| error).await;
        if watch.elapsed() >= HOOK_SLOW && result.is_ok() {
            preparation.say(events::hook_took(
                scope.node.clock.now(),
                hook.name(),
                watch.elapsed(),
            ));
        }
        tracing::trace!(task = %scope.task.name, hook = hook.name(), elapsed = ?watch.elapsed(), ok = result.is_ok(), "prestart hook");
        result?;
    }
    Ok(preparation)
}

/// The result of a replay of the prestart hooks.
#[derive(Default)]
pub struct ReplayedHooks {
    /// What the hooks made.
    pub preparation: Preparation,
    /// All hooks succeeded.
    pub whole: bool,
    /// What the node was short of. A later replay may succeed.
    pub trouble: Option<String>,
}

/// Run all prestart hooks for a run that goes on: each has its effects again (directories, logs,
/// devices, environment). A hook that fails leaves its part out. The run is not touched for that,
/// and the next start runs the hook again. `ended`: the run has ended.
pub async fn replay(scope: &TaskScope, ended: bool) -> ReplayedHooks {
    let mut preparation = Preparation { goes_on: true, ended, ..Preparation::default() };
    let (mut whole, mut trouble) = (true, None);
    for hook in &scope.node.task_hooks {
        let done = clock::timeout(HOOK_WALL_MAX, hook.prestart(scope, &mut preparation)).await;
        let error = match done {
            Some(Ok(())) => continue,
            Some(Err(error)) => error,
            None => HookError::TimedOut { hook: hook.name() },
        };
        tracing::info!(task = %scope.task.name, hook = hook.name(), %error, "prestart hook not replayed");
        whole = false;
        if let HookError::Node { error } = error {
            trouble.get_or_insert(error);
        }
    }
    ReplayedHooks { preparation, whole, trouble }
}

/// Run all exited hooks.
pub async fn run_exited_hooks(scope: &TaskScope) {
    for hook in &scope.node.task_hooks {
        let span = span(scope, &**hook, "exited");
        let exited = clock::timeout(HOOK_WALL_MAX, hook.exited(scope)).instrument(span);
        if exited.await.is_none() {
            tracing::warn!(task = %scope.task.name, hook = hook.name(), "exited hook did not end in time");
        }
    }
}

/// Run all stop hooks.
pub async fn run_stop_hooks(scope: &TaskScope) {
    for hook in &scope.node.task_hooks {
        let span = span(scope, &**hook, "stop");
        let stopped = clock::timeout(HOOK_WALL_MAX, hook.stop(scope)).instrument(span);
        if stopped.await.is_none() {
            tracing::warn!(task = %scope.task.name, hook = hook.name(), "stop hook did not end in time");
        }
    }
}
