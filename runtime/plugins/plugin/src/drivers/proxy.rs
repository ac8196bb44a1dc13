//! A loaded driver plugin behind the interface that task runners use.
//!
//! ```text
//! task runner ─ call ─► DriverProxy ─ the plugin of this moment ─► its answer
//!                           ▲ switch: calls in flight end where they began, later ones go to the new
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use super::usual_env;
use crate::driver::LoadedDriver;
use ostler_model::ids::RunId;
use ostler_model::json::JsonObject;
use ostler_model::limits::DRIVER_RUNS_LOOK_MIN;
use ostler_model::ports::{
    AllocUser, BoxFuture, Capabilities, Diagnostic, InspectResult, PluginCallError, StartedTask,
    TaskConfig, TaskContext, TaskDriver, TaskOwner, Workloads,
};
use ostler_model::redact::Secrets;
use ostler_model::session::ExecPlan;
use ostler_model::task::{DriverHandle, ExitResult, RawExit};

/// A task that the driver started or owns again, and has not forgotten.
#[derive(Clone)]
pub struct LiveTask {
    /// What the host and the driver know of the task.
    pub context: Arc<TaskContext>,
    /// The driver's handle of the task, and what runs the task.
    pub started: StartedTask,
}

/// A driver whose plugin can be switched.
pub struct DriverProxy {
    plugin: RwLock<Arc<LoadedDriver>>,
    workloads: Arc<dyn Workloads>,
    /// The tasks of the driver by run. A run whose start failed after all is dropped
    /// with its context.
    live: Mutex<DriverRuns>,
}

#[derive(Default)]
struct DriverRuns {
    runs: BTreeMap<RunId, (Weak<TaskContext>, StartedTask)>,
    /// How many runs there may be before those that are gone are dropped.
    enough: usize,
}

impl DriverProxy {
    /// A proxy for a plugin whose workloads live in `workloads`.
    #[must_use]
    pub fn new(plugin: Arc<LoadedDriver>, workloads: Arc<dyn Workloads>) -> Self {
        Self { plugin: RwLock::new(plugin), workloads, live: Mutex::default() }
    }

    /// The plugin that is behind the proxy now. A call of it also ends with it, whatever takes
    /// its place meanwhile.
    #[must_use]
    pub fn plugin(&self) -> Arc<LoadedDriver> {
        Arc::clone(&self.plugin.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Put another plugin behind the proxy: calls from now on go there. Returns the one before.
    pub(super) fn switch(&self, plugin: Arc<LoadedDriver>) -> Arc<LoadedDriver> {
        let mut now = self.plugin.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, plugin)
    }

    /// The tasks that the driver started or owns again, and has not forgotten.
    #[must_use]
    pub fn live_tasks(&self) -> Vec<LiveTask> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let there = |(context, started): &(Weak<TaskContext>, StartedTask)| {
            Some(LiveTask { context: context.upgrade()?, started: started.clone() })
        };
        live.runs.values().filter_map(there).collect()
    }

    fn keep(&self, context: &Arc<TaskContext>, started: &StartedTask) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.runs.len() >= live.enough {
            live.runs.retain(|_, (context, _)| context.strong_count() > 0);
            // So that each start looks at a few runs, however many there are.
            live.enough = live.runs.len().saturating_mul(2).max(DRIVER_RUNS_LOOK_MIN);
        }
        live.runs.insert(context.run_id.clone(), (Arc::downgrade(context), started.clone()));
    }

    fn forget(&self, run: &RunId) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).runs.remove(run);
    }
}

/// The rows of the table as calls of the plugin of this moment, but for those of which the proxy takes
/// note itself.
macro_rules! forwards {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
    )+) => {
        $(forwards! { @ $method $arguments -> $answer; })+
    };
    (@ start $($rest:tt)+) => {};
    (@ recover $($rest:tt)+) => {};
    (@ destroy $($rest:tt)+) => {};
    (@ $method:ident ($($argument:ident: $type:ty),*) -> $answer:ty;) => {
        fn $method(
            &self,
            context: Arc<TaskContext>,
            $($argument: $type),*
        ) -> BoxFuture<'_, Result<$answer, PluginCallError>> {
            Box::pin(async move { self.plugin().$method(context, $($argument),*).await })
        }
    };
}

impl TaskDriver for DriverProxy {
    fn capabilities(&self) -> Capabilities {
        self.plugin().capabilities.clone()
    }

    fn holds_starts(&self) -> bool {
        self.plugin().holds_starts()
    }

    fn call_wall(&self) -> Duration {
        self.plugin().call_wall()
    }

    fn report_hang(&self, call: &'static str, task: &TaskContext, after: Duration) {
        self.plugin().count_timeout(call, task, after);
    }

    fn file_address_keys(&self) -> Vec<String> {
        self.plugin().task_schema.file_address_keys()
    }

    fn usual_env(
        &self,
        user: Option<String>,
        of_alloc: AllocUser,
    ) -> BoxFuture<'_, Vec<(String, String)>> {
        Box::pin(async move { usual_env::build_usual_env(&self.plugin(), user, of_alloc).await })
    }

    fn learn_secrets(&self, config: &JsonObject, secrets: &mut Secrets) {
        self.plugin().learn_secrets(config, secrets);
    }

    fn owner(&self, user: Option<String>) -> BoxFuture<'_, Result<TaskOwner, PluginCallError>> {
        Box::pin(async move { self.plugin().owner(user).await })
    }

    fn validate(&self, config: &JsonObject) -> Vec<Diagnostic> {
        let plugin = self.plugin();
        // The configuration is checked in the form in which the driver gets it at the start.
        let texts = plugin.task_schema.with_texts(config);
        plugin.task_schema.check(texts.as_ref().unwrap_or(config))
    }

    fn start(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> BoxFuture<'_, Result<StartedTask, PluginCallError>> {
        Box::pin(async move {
            // The guard also works when the runner gives up waiting and drops this future.
            let guard = KillUnlessStarted { run: Some(&context.run_id), host: &*self.workloads };
            let started = self.plugin().start(Arc::clone(&context), config).await?;
            guard.disarm();
            self.keep(&context, &started);
            Ok(started)
        })
    }

    fn recover(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<StartedTask, PluginCallError>> {
        Box::pin(async move {
            let started = self.plugin().recover(Arc::clone(&context), handle).await?;
            self.keep(&context, &started);
            Ok(started)
        })
    }

    fn destroy(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        force: bool,
    ) -> BoxFuture<'_, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.forget(&context.run_id);
            self.plugin().destroy(context, handle, force).await
        })
    }

    ostler_model::driver_calls!(forwards);
}

/// Kills the run when it is dropped, unless the start succeeded: a failed start
/// leaves nothing behind.
struct KillUnlessStarted<'a> {
    run: Option<&'a RunId>,
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
