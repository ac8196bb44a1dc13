//! Finds the driver of the task. The task waits for a driver that is not ready or may still be
//! loaded. A driver that does not exist fails the task.

use super::{HookError, Preparation, TaskHook};
use crate::task::TaskScope;
use ostler_model::ports::{BoxFuture, PluginCallError};

pub(super) struct DriverHook;

impl TaskHook for DriverHook {
    fn name(&self) -> &'static str {
        "driver"
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            let driver =
                scope.node.drivers.dispense(&scope.task.driver).map_err(|error| match error {
                    PluginCallError::NotReady { .. } | PluginCallError::StillLoading { .. } => {
                        HookError::DriverNotReady { reason: error.to_string() }
                    }
                    other => HookError::plugin(&other),
                })?;
            preparation.driver = Some(driver);
            Ok(())
        })
    }
}
