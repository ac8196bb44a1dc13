//! What happens around the runs of a task, in a fixed order.
//!
//! ```text
//!   before each run   driver ─► dir ─► logs ─► devices ─► owner ─► payload ─► artifacts ─►
//!                     template ─► config ─► modules ─► volumes ─► dns     first error stops
//!   after each run    exited, all of them, whatever one says
//!   at the end        stop, all of them; idempotent
//! ```
//! The list never changes after construction; a hook with nothing to do for a task does nothing.
//! No hook is "done" beyond the run it prepared: each leaves its effects in the [`Preparation`],
//! which is made anew for each run, so that no effect can be lost between two runs.

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
use super::handle::Intent;
use super::notes::{self, DriverNote};
use super::templates::Templates;
use crate::alloc::dir::TaskDir;
use crate::queue;
pub use artifacts::Fetched;
pub use config::of_task as environment_of_task;
use ostler_logs::TaskLogs;
use ostler_model::artifact::KeptFile;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::device::Reservation;
use ostler_model::event::TaskEvent;
use ostler_model::json::JsonObject;
use ostler_model::limits::{HOOK_SLOW, HOOK_WALL_MAX};
use ostler_model::ports::{AllocUser, BoxFuture, Driver, FileOwner, PluginCallError};
use ostler_model::time::Timestamp;
use ostler_trace::{child_of, run_in};

/// What the prestart hooks made for one run.
#[derive(Default)]
pub struct Preparation {
    /// The run is there already, of an earlier agent: nothing that it holds is refused now.
    pub goes_on: bool,
    /// And it has ended since: its directory may have gone with it, and be another one now.
    pub ended: bool,
    /// From `driver`.
    pub driver: Option<Arc<dyn Driver>>,
    /// From `dir`.
    pub task_dir: Option<TaskDir>,
    /// From `dir`: the shared directory.
    pub alloc_dir: PathBuf,
    /// From `logs`.
    pub logs: Option<Arc<TaskLogs>>,
    /// From `devices`.
    pub reservation: Reservation,
    /// From `config`.
    pub env: Option<TaskEnv>,
    /// From `owner`: whose what is made for the task is; absent: the agent's own.
    pub owner: Option<FileOwner>,
    /// From `owner`: whom the task runs as if it is kept apart and names no user.
    pub alloc_user: AllocUser,
    /// From `config`: the task's `config` block, interpolated and checked.
    pub config: JsonObject,
    /// From `config`: interpolated.
    pub user: Option<String>,
    /// From `template`: what their files say of the environment.
    pub template_env: BTreeMap<String, String>,
    /// From `template`: those of the task, to be followed while it runs.
    pub templates: Option<Arc<Templates>>,
    /// The intent of the run, where it was put on its way before the hooks ran.
    pub intent: Option<Intent>,
    /// From `modules`: what its driver reads while it starts the run.
    pub modules: Vec<Arc<dyn KeptFile>>,
    /// Where hooks say how far they are.
    pub notes: Option<queue::Sender<DriverNote>>,
}

impl Preparation {
    /// Tell an event of the task while it is prepared. An owner that does not read misses it.
    fn say(&self, event: TaskEvent) {
        notes::tell(self.notes.as_ref(), event);
    }
}

/// Why a run cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The driver exists and cannot be used now: wait, do not fail.
    #[error("driver not ready: {reason}")]
    DriverNotReady {
        /// Its health text.
        reason: String,
    },
    /// The configuration is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Something needed for the task cannot be had.
    #[error("{error}")]
    Setup {
        /// What failed.
        error: String,
        /// May it go better next time?
        recoverable: bool,
    },
    /// The node is short of something, or its disk fails.
    #[error("{error}")]
    Node {
        /// What failed.
        error: String,
    },
    /// What the task brings along could not be fetched.
    #[error("{error}")]
    Artifact {
        /// What failed.
        error: String,
        /// May it go better next time?
        recoverable: bool,
    },
    /// The hook did not end.
    #[error("hook {hook} did not end in time")]
    TimedOut {
        /// Its name.
        hook: &'static str,
    },
}

impl HookError {
    /// A set-up failure that stays one.
    pub(super) fn setup(error: impl std::fmt::Display) -> Self {
        Self::Setup { error: error.to_string(), recoverable: false }
    }

    /// A set-up failure that may pass.
    pub(super) fn passing(error: impl std::fmt::Display) -> Self {
        Self::Setup { error: error.to_string(), recoverable: true }
    }

    /// A set-up failure on the disk, which may pass.
    pub(super) fn on_disk(error: &(dyn std::error::Error + 'static)) -> Self {
        let text = causes::chain(error);
        if causes::is_of_the_node(error) { Self::Node { error: text } } else { Self::passing(text) }
    }

    /// From a plugin that was asked by a hook.
    pub(super) fn plugin(error: &PluginCallError) -> Self {
        Self::Setup { error: error.to_string(), recoverable: error.recoverable() }
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

    /// The event that tells it.
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

/// One concern of a task. Every call is bounded by its [`TaskHook::wall`] and may be dropped half-way
/// by a kill; `stop` runs in any case.
pub trait TaskHook: Send + Sync {
    /// For logs and events.
    fn name(&self) -> &'static str;
    /// How long it may take before a run.
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
    // Shared by all tasks: each keeps them.
    static ALL: LazyLock<Vec<Arc<dyn TaskHook>>> = LazyLock::new(|| {
        vec![
            Arc::new(driver::DriverHook),
            Arc::new(dir::DirHook),
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
    let (ids, hook, task) = (child_of(&scope.trace), hook.name(), scope.task.name.as_str());
    ostler_trace::span!(ids, "task hook", task, hook, call, error = Empty)
}

/// Run all prestart hooks.
///
/// # Errors
/// The first hook's that fails.
pub async fn prestart(
    scope: &TaskScope,
    notes: Option<queue::Sender<DriverNote>>,
) -> Result<Preparation, HookError> {
    let mut preparation = Preparation { notes, ..Preparation::default() };
    for hook in &scope.hooks {
        let watch = clock::Stopwatch::start();
        let prepared = async {
            let prepared = hook.prestart(scope, &mut preparation);
            let late = || Err(HookError::TimedOut { hook: hook.name() });
            clock::timeout(hook.wall(), prepared).await.unwrap_or_else(late)
        };
        let result = run_in(span(scope, &**hook, "prestart"), prepared, |error| error).await;
        if watch.elapsed() >= HOOK_SLOW && result.is_ok() {
            preparation.say(events::hook_took(scope.clock.now(), hook.name(), watch.elapsed()));
        }
        tracing::trace!(task = %scope.task.name, hook = hook.name(), elapsed = ?watch.elapsed(), ok = result.is_ok(), "prestart hook");
        result?;
    }
    Ok(preparation)
}

/// What a replay of the prestart hooks left.
#[derive(Default)]
pub struct ReplayedHooks {
    /// What they made.
    pub preparation: Preparation,
    /// All went well.
    pub whole: bool,
    /// What the node was short of: a later replay may go better.
    pub trouble: Option<String>,
}

/// Run all prestart hooks for a run that goes on: each leaves its effects again (directories, logs,
/// devices, environment). One that fails leaves its part out; the run is not touched for that, and
/// the next start asks again. `ended`: it runs no more.
pub async fn replay(scope: &TaskScope, ended: bool) -> ReplayedHooks {
    let mut preparation = Preparation { goes_on: true, ended, ..Preparation::default() };
    let (mut whole, mut trouble) = (true, None);
    for hook in &scope.hooks {
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
pub async fn exited(scope: &TaskScope) {
    for hook in &scope.hooks {
        let span = span(scope, &**hook, "exited");
        let exited = clock::timeout(HOOK_WALL_MAX, hook.exited(scope)).instrument(span);
        if exited.await.is_none() {
            tracing::warn!(task = %scope.task.name, hook = hook.name(), "exited hook did not end in time");
        }
    }
}

/// Run all stop hooks.
pub async fn stop(scope: &TaskScope) {
    for hook in &scope.hooks {
        let span = span(scope, &**hook, "stop");
        let stopped = clock::timeout(HOOK_WALL_MAX, hook.stop(scope)).instrument(span);
        if stopped.await.is_none() {
            tracing::warn!(task = %scope.task.name, hook = hook.name(), "stop hook did not end in time");
        }
    }
}
