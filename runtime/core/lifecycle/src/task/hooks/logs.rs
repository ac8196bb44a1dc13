//! Makes the task's log streams once for all its runs. Closes them at the end, so that followers end.

use std::sync::Arc;

use super::{HookError, Preparation, TaskHook};
use crate::alloc::dir;
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
            let logs = scope.logs.get().unwrap_or_else(|| {
                let dir = dir::logs_of(&scope.node.alloc_root, scope.allocation.id);
                let logs = TaskLogs::new(&dir, &scope.task.name, &scope.task.logs, false);
                scope.logs.set(Arc::new(logs))
            });
            preparation.logs = Some(logs);
            Ok(())
        })
    }

    fn stop<'a>(&'a self, scope: &'a TaskScope) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(logs) = scope.logs.get() else { return };
            if logs.is_followed() {
                // Closing blocks, because it looks for the last bytes.
                let closed = ostler_model::clock::run_blocking(move || logs.close()).await;
                if let Err(error) = closed {
                    tracing::warn!(task = %scope.task.name, %error, "log files not closed in order");
                }
            } else {
                logs.close();
            }
        })
    }
}
