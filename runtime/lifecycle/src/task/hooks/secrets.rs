//! Has the task's `secrets` in memory.

use super::{HookError, Preparation, TaskHook};
use crate::alloc::dir::AllocDir;
use crate::alloc::secrets;
use crate::task::TaskScope;
use ostler_model::clock;
use ostler_model::limits::SECRETS_MB_DEFAULT;
use ostler_model::ports::BoxFuture;

pub(super) struct SecretsHook;

impl TaskHook for SecretsHook {
    fn name(&self) -> &'static str {
        "secrets"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        _preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            if !scope.secrets_in_memory {
                return Ok(());
            }
            let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
            let task = scope.task.name.clone();
            let size_mb = scope.task.resources.secrets_mb.unwrap_or(SECRETS_MB_DEFAULT);
            let done = clock::blocking(move || {
                let dir = AllocDir::open(&root, id)?;
                secrets::in_memory(&dir, &task, size_mb).map(drop)
            });
            done.await.map_err(HookError::passing)?.map_err(|error| HookError::on_disk(&error))
        })
    }
}
