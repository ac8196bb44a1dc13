//! What happens around the run of an allocation, in a fixed order.
//!
//! ```text
//!   before any task   prerun: first error stops, every task fails
//!   after all tasks   postrun: all of them, whatever one says; not when the agent leaves
//!   on removal        destroy: all of them, idempotent
//! ```

mod dir;

use std::path::PathBuf;
use std::sync::Arc;

use crate::clock;
use crate::driver::api::BoxFuture;
use crate::limits::HOOK_WALL_MAX;
use crate::model::alloc::Allocation;

/// What hooks of an allocation may use.
#[derive(Clone)]
pub struct AllocScope {
    /// What was asked.
    pub allocation: Arc<Allocation>,
    /// Directory of all allocations.
    pub alloc_root: PathBuf,
}

/// Why a hook failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{hook}: {error}")]
pub struct AllocHookError {
    /// Its name.
    pub hook: &'static str,
    /// What went wrong.
    pub error: String,
}

/// One concern of an allocation. Every call is bounded by [`HOOK_WALL_MAX`]; `prerun` may be
/// dropped half-way by a stop, `postrun` runs in any case.
pub trait AllocHook: Send + Sync {
    /// For logs and events.
    fn name(&self) -> &'static str;
    /// Before any task.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> BoxFuture<'a, Result<(), String>> {
        let _ = scope;
        Box::pin(async { Ok(()) })
    }
    /// After all tasks.
    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> BoxFuture<'a, Result<(), String>> {
        let _ = scope;
        Box::pin(async { Ok(()) })
    }
    /// When the allocation is removed.
    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> BoxFuture<'a, Result<(), String>> {
        let _ = scope;
        Box::pin(async { Ok(()) })
    }
}

/// The hooks of every allocation, in order.
#[must_use]
pub fn standard() -> Vec<Arc<dyn AllocHook>> {
    vec![Arc::new(dir::DirHook)]
}

async fn bounded(
    hook: &dyn AllocHook,
    call: BoxFuture<'_, Result<(), String>>,
) -> Result<(), AllocHookError> {
    let watch = clock::Stopwatch::start();
    let result = clock::timeout(HOOK_WALL_MAX, call)
        .await
        .unwrap_or_else(|| Err(format!("did not end within {HOOK_WALL_MAX:?}")));
    tracing::trace!(hook = hook.name(), elapsed = ?watch.elapsed(), ok = result.is_ok(), "allocation hook");
    result.map_err(|error| AllocHookError { hook: hook.name(), error })
}

/// Run all pre-run hooks.
///
/// # Errors
/// The first hook's that fails.
pub async fn prerun(
    hooks: &[Arc<dyn AllocHook>],
    scope: &AllocScope,
) -> Result<(), AllocHookError> {
    for hook in hooks {
        bounded(hook.as_ref(), hook.prerun(scope)).await?;
    }
    Ok(())
}

/// Run all post-run hooks; errors are logged.
pub async fn postrun(hooks: &[Arc<dyn AllocHook>], scope: &AllocScope) {
    for hook in hooks {
        if let Err(error) = bounded(hook.as_ref(), hook.postrun(scope)).await {
            tracing::error!(alloc = %scope.allocation.id, %error, "post-run hook failed");
        }
    }
}

/// Run all destroy hooks; errors are logged.
pub async fn destroy(hooks: &[Arc<dyn AllocHook>], scope: &AllocScope) {
    for hook in hooks {
        if let Err(error) = bounded(hook.as_ref(), hook.destroy(scope)).await {
            tracing::error!(alloc = %scope.allocation.id, %error, "destroy hook failed");
        }
    }
}
