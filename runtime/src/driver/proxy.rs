//! A loaded driver plugin behind the face that task runners know.

use std::sync::Arc;
use std::time::Duration;

use super::api::{
    BoxFuture, Capabilities, Diagnostic, Driver, Inspected, PluginCallError, Started, TaskConfig,
    TaskContext, Workloads,
};
use crate::model::json::JsonObject;
use crate::model::task::{DriverHandle, ExitResult, RawExit};
use crate::plugin::driver::DriverPlugin;

/// See the module.
pub struct DriverProxy {
    plugin: Arc<DriverPlugin>,
    workloads: Arc<dyn Workloads>,
}

impl DriverProxy {
    /// A proxy for a plugin whose workloads live in `workloads`.
    #[must_use]
    pub fn new(plugin: Arc<DriverPlugin>, workloads: Arc<dyn Workloads>) -> Self {
        Self { plugin, workloads }
    }

    /// The plugin behind it.
    #[must_use]
    pub fn plugin(&self) -> &Arc<DriverPlugin> {
        &self.plugin
    }
}

impl Driver for DriverProxy {
    fn capabilities(&self) -> Capabilities {
        self.plugin.capabilities.clone()
    }

    fn starts_held(&self) -> bool {
        self.plugin.starts_held()
    }

    fn validate(&self, config: &JsonObject) -> Vec<Diagnostic> {
        self.plugin.task_schema.check(config)
    }

    fn start(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> BoxFuture<'_, Result<Started, PluginCallError>> {
        Box::pin(async move {
            // Also when the runner gives up waiting and drops this future.
            let guard = KillUnlessStarted { run: Some(&context.run_id), host: &*self.workloads };
            let started = self.plugin.start(Arc::clone(&context), config).await?;
            guard.disarm();
            Ok(started)
        })
    }

    fn recover(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<Started, PluginCallError>> {
        Box::pin(self.plugin.recover(context, handle))
    }

    fn exited(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        exit: RawExit,
    ) -> BoxFuture<'_, Result<ExitResult, PluginCallError>> {
        Box::pin(self.plugin.exited(context, handle, exit))
    }

    fn stop(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        signal: Option<String>,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(self.plugin.stop(context, handle, signal, timeout))
    }

    fn kill(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(self.plugin.kill(context, handle))
    }

    fn destroy(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        force: bool,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(self.plugin.destroy(context, handle, force))
    }

    fn inspect(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<Inspected, PluginCallError>> {
        Box::pin(self.plugin.inspect(context, handle))
    }

    fn signal(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        signal: String,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(self.plugin.signal(context, handle, signal))
    }
}

/// A start that did not succeed leaves nothing behind.
struct KillUnlessStarted<'a> {
    run: Option<&'a crate::model::ids::RunId>,
    host: &'a dyn Workloads,
}

impl KillUnlessStarted<'_> {
    fn disarm(mut self) {
        self.run = None;
    }
}

impl Drop for KillUnlessStarted<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run {
            self.host.kill_run(run);
        }
    }
}
