//! Calls hooks. Each call is bounded and timed, and a panic counts as a failure of that hook alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::Span;
use tracing::field::Empty;

use super::{AllocHook, AllocHookError, AllocScope, HookFailure, HookResult};
use ostler_model::clock;
use ostler_trace::{child_span, run_in};

/// Which call of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookKind {
    /// Before any task.
    Prerun,
    /// The allocation has a newer copy.
    Update,
    /// Before every task is started again.
    PreRestart,
    /// Before tasks are killed.
    PreKill,
    /// After all tasks.
    Postrun,
    /// When the allocation is removed.
    Destroy,
}

impl HookKind {
    /// The name of the call in traces: `prerun`, `pre_kill` …
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerun => "prerun",
            Self::Update => "update",
            Self::PreRestart => "pre_restart",
            Self::PreKill => "pre_kill",
            Self::Postrun => "postrun",
            Self::Destroy => "destroy",
        }
    }
}

/// How the calls of one hook went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookTime {
    /// Name of the hook: `alloc_dir`, `network` …
    pub hook: &'static str,
    /// Which call of the hook the times are of.
    pub kind: HookKind,
    /// How often it was called and has returned.
    pub calls: u32,
    /// How often it failed.
    pub failed: u32,
    /// How long the last call took.
    pub last: Duration,
    /// How long the longest took.
    pub longest: Duration,
}

/// How the hooks of one allocation went: an entry for each hook and kind that was called.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HookTimes(Arc<Mutex<Vec<HookTime>>>);

impl HookTimes {
    /// The entries, in the order of the first calls.
    #[must_use]
    pub fn entries(&self) -> Vec<HookTime> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, hook: &'static str, kind: HookKind, took: Duration, failed: bool) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = entries.iter_mut().find(|e| e.hook == hook && e.kind == kind);
        let (last, longest) = (took, took);
        match found {
            Some(entry) => {
                entry.calls = entry.calls.saturating_add(1);
                entry.failed = entry.failed.saturating_add(u32::from(failed));
                entry.last = took;
                entry.longest = entry.longest.max(took);
            }
            None => {
                let failed = u32::from(failed);
                entries.reserve_exact(1);
                entries.push(HookTime { hook, kind, calls: 1, failed, last, longest });
            }
        }
    }
}

const PANICKED: &str = "internal error: the hook panicked";

/// The future of a hook. A panic of the future becomes an error.
struct PanicGuard<'a>(HookResult<'a>);

impl Future for PanicGuard<'_> {
    type Output = Result<(), HookFailure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let hook = self.0.as_mut();
        // The future is not polled again after a panic, so nobody sees an invariant that it broke.
        catch_unwind(AssertUnwindSafe(|| hook.poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(HookFailure::from(PANICKED.to_owned()))))
    }
}

fn span(hook: &dyn AllocHook, kind: HookKind, scope: &AllocScope) -> Span {
    let (ids, hook) = (child_span(&scope.context.trace), hook.name());
    ostler_trace::span!(ids, "allocation hook", hook, call = kind.name(), error = Empty)
}

async fn call(
    hook: &dyn AllocHook,
    kind: HookKind,
    scope: &AllocScope,
) -> Result<(), AllocHookError> {
    let called = call_within(hook, kind, scope);
    run_in(span(hook, kind, scope), called, |error| &error.failure).await
}

async fn call_within(
    hook: &dyn AllocHook,
    kind: HookKind,
    scope: &AllocScope,
) -> Result<(), AllocHookError> {
    let watch = clock::Stopwatch::start();
    let future = PanicGuard(match kind {
        HookKind::Prerun => hook.prerun(scope),
        HookKind::Update => hook.update(scope),
        HookKind::PreRestart => hook.pre_restart(scope),
        HookKind::PreKill => hook.pre_kill(scope),
        HookKind::Postrun => hook.postrun(scope),
        HookKind::Destroy => hook.destroy(scope),
    });
    let result = match hook.wall() {
        Some(wall) => clock::timeout(wall, future)
            .await
            .unwrap_or_else(|| Err(HookFailure::from_timeout(wall))),
        None => future.await,
    };
    let elapsed = watch.elapsed();
    scope.times.add(hook.name(), kind, elapsed, result.is_err());
    tracing::trace!(alloc = %scope.allocation.id, hook = hook.name(), ?kind, ?elapsed, ok = result.is_ok(), "allocation hook");
    result.map_err(|failure| AllocHookError { hook: hook.name(), failure })
}

async fn call_until_error(kind: HookKind, scope: &AllocScope) -> Result<(), AllocHookError> {
    for hook in &scope.node.alloc_hooks {
        call(hook.as_ref(), kind, scope).await?;
    }
    Ok(())
}

async fn call_all(kind: HookKind, scope: &AllocScope) {
    for hook in &scope.node.alloc_hooks {
        if let Err(error) = call(hook.as_ref(), kind, scope).await {
            tracing::error!(alloc = %scope.allocation.id, ?kind, %error, "hook of an allocation failed");
        }
    }
}

/// Run all pre-run hooks.
///
/// # Errors
/// The first hook's that fails.
pub async fn prerun(scope: &AllocScope) -> Result<(), AllocHookError> {
    call_until_error(HookKind::Prerun, scope).await
}

/// Run all hooks before a restart of the whole allocation.
///
/// # Errors
/// The first hook's that fails.
pub async fn pre_restart(scope: &AllocScope) -> Result<(), AllocHookError> {
    call_until_error(HookKind::PreRestart, scope).await
}

/// Run all update hooks; errors are logged.
pub async fn update(scope: &AllocScope) {
    call_all(HookKind::Update, scope).await;
}

/// Run all pre-kill hooks; errors are logged.
pub async fn pre_kill(scope: &AllocScope) {
    call_all(HookKind::PreKill, scope).await;
}

/// Run all post-run hooks; errors are logged.
pub async fn postrun(scope: &AllocScope) {
    call_all(HookKind::Postrun, scope).await;
}

/// Run all destroy hooks; errors are logged.
pub async fn destroy(scope: &AllocScope) {
    call_all(HookKind::Destroy, scope).await;
}
