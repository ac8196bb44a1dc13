//! Makes the task's directories on a blocking thread. For the first run they are made together with
//! those of the allocation.

use std::sync::PoisonError;

use super::{HookError, Preparation, TaskHook};
use crate::alloc::dir::AllocDir;
use crate::alloc::secrets;
use crate::task::TaskScope;
use ostler_model::disk_work::run_disk_work;
use ostler_model::ports::BoxFuture;

pub(super) struct TaskDirHook;

impl TaskHook for TaskDirHook {
    fn name(&self) -> &'static str {
        "task_dir"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let (root, id, task) =
                (scope.node.alloc_root.clone(), scope.allocation.id, scope.task.clone());
            let in_memory = scope.node.secrets_in_memory;
            let made = scope.made.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((shared, task_dir)) = made {
                preparation.alloc_dir = shared;
                preparation.task_dir = Some(task_dir);
                return Ok(());
            }
            // Every later run has its directories before it starts.
            scope.dirs.leave_to_others();
            let build = run_disk_work(move || {
                let dir = AllocDir::open(&root, id)?;
                let task_dir = secrets::create_task(&dir, &task, in_memory)?;
                Ok::<_, crate::alloc::dir::AllocDirError>((dir.shared(), task_dir))
            });
            let (shared, task_dir) = build
                .await
                .map_err(HookError::passing_setup)?
                .map_err(|e| HookError::on_disk(&e))?;
            preparation.alloc_dir = shared;
            preparation.task_dir = Some(task_dir);
            Ok(())
        })
    }
}
