//! Finds out whom the task runs as, and gives it its directories before anything comes into them.

use super::{HookError, Preparation, TaskHook, config};
use crate::alloc::owner;
use crate::task::TaskScope;
use ostler_model::clock;
use ostler_model::ports::{BoxFuture, FsIsolation};

pub(super) struct OwnerHook;

impl TaskHook for OwnerHook {
    fn name(&self) -> &'static str {
        "owner"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let Some(driver) = preparation.driver.clone() else {
                return Err(HookError::setup("the driver comes before owner"));
            };
            let user = match &scope.task.user {
                None => None,
                Some(user) => {
                    let env = config::environment(scope, preparation).await?;
                    match env.interpolate(user) {
                        Ok(name) if env.unknown_in([user.as_str()]).is_empty() => Some(name),
                        // A variable of its templates, or none: `config` says so.
                        _ => return Ok(()),
                    }
                }
            };
            let found = driver.owner(user).await.map_err(|error| HookError::plugin(&error))?;
            preparation.owner = found;
            let Some(found) = found.filter(|_| !preparation.goes_on) else { return Ok(()) };
            let (root, id, task) =
                (scope.alloc_root.clone(), scope.allocation.id, scope.task.name.clone());
            let whole = driver.capabilities().fs_isolation == FsIsolation::None;
            let given = clock::blocking(move || owner::hand_over(&root, id, &task, found, whole));
            given.await.map_err(HookError::passing)?.map_err(|error| HookError::on_disk(&error))
        })
    }
}
