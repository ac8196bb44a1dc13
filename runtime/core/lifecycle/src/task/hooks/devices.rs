//! Asks the plugins, before each run, how the task uses the devices that are assigned to it.
//! Releases the devices at the end.
//!
//! A run does not begin on a device that its plugin calls unhealthy. An event of the task
//! says which device and why, and the restart policy decides what follows. A run that goes on
//! keeps its devices.

use super::{HookError, Preparation, TaskHook};
use crate::task::TaskScope;
use ostler_model::ports::BoxFuture;

pub(super) struct DevicesHook;

impl TaskHook for DevicesHook {
    fn name(&self) -> &'static str {
        "devices"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let Some(assigned) = scope.allocation.devices.get(&scope.task.name) else {
                return Ok(());
            };
            if assigned.is_empty() {
                return Ok(());
            }
            if !preparation.goes_on {
                scope.node.devices.fit(assigned).map_err(|error| HookError::plugin(&error))?;
            }
            preparation.reservation = scope
                .node
                .devices
                .reserve(scope.allocation.id, &scope.task.name, assigned)
                .await
                .map_err(|error| HookError::plugin(&error))?;
            Ok(())
        })
    }

    fn stop<'a>(&'a self, scope: &'a TaskScope) -> BoxFuture<'a, ()> {
        scope.node.devices.release(scope.allocation.id, &scope.task.name)
    }
}
