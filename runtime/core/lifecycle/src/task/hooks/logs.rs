//! Opens the task's log files once for all its runs. Closes them at the end, so that followers end.

use std::sync::Arc;

use super::{HookError, Preparation, TaskHook};
use crate::alloc::dir::AllocDir;
use crate::task::TaskScope;
use ostler_logs::TaskLogs;
use ostler_model::ports::BoxFuture;

pub(super) struct LogsHook;

impl TaskHook for LogsHook {
    fn name(&self) -> &'static str {
        "logs"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            if let Some(logs) = scope.logs.get() {
                preparation.logs = Some(logs);
                return Ok(());
            }
            let (root, id) = (scope.node.alloc_root.clone(), scope.allocation.id);
            let (task, limits) = (scope.task.name.clone(), scope.task.logs);
            let open = ostler_model::clock::run_blocking(move || {
                let dir = AllocDir::open(&root, id)
                    .and_then(|dir| dir.logs_dir())
                    .map_err(|e| HookError::on_disk(&e))?;
                TaskLogs::open(&dir, &task, &limits).map_err(|e| HookError::on_disk(&e))
            });
            let logs = open.await.map_err(HookError::passing_setup)??;
            preparation.logs = Some(scope.logs.set(Arc::new(logs)));
            Ok(())
        })
    }

    fn stop<'a>(&'a self, scope: &'a TaskScope) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(logs) = scope.logs.get() {
                // Closing blocks, because it flushes to the disk.
                let closed = ostler_model::clock::run_blocking(move || logs.close()).await;
                if let Err(error) = closed {
                    tracing::warn!(task = %scope.task.name, %error, "log files not closed in order");
                }
            }
        })
    }
}
