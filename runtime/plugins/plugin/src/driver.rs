//! Typed calls into a driver plugin.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::PluginError;
use super::bindings::since_0_1::driver_world::DriverPluginPre;
use super::call::PluginCaller;
use super::convert::{self, DriverFingerprint};
use super::functions::{self, CallArgument as _};
use super::schema::{ConfigSchema, PluginDescription, run_aside};
use crate::host::CallState;
use ostler_health::meter::PluginMeter;
use ostler_model::grants::{Authority, Grants};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::{
    Capabilities, FsIsolation, InspectResult, PluginCallError, StartedTask, TaskConfig,
    TaskContext, TaskOwner,
};
use ostler_model::redact::Secrets;
use ostler_model::session::ExecPlan;
use ostler_model::task::{DriverHandle, ExitResult, RawExit};

/// A loaded driver.
pub struct LoadedDriver {
    caller: PluginCaller<DriverPluginPre<CallState>>,
    /// What was read from the plugin's file: imports, exports, digest.
    pub manifest: PluginManifest,
    /// The name that jobs use for the driver.
    pub name: PluginName,
    /// The version that the plugin gives itself.
    pub version: String,
    /// What the driver can do.
    pub capabilities: Capabilities,
    /// Schema of a task's `config`.
    pub task_schema: ConfigSchema,
    /// Schema of the plugin's own `config`.
    pub config_schema: ConfigSchema,
    /// What its imports ask for.
    asks: Box<[Authority]>,
}

/// The rows of the table as methods, but for `start` and `exec`, which do more.
macro_rules! asks {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
    )+) => {
        $(asks! { @ $method $function $arguments -> $answer; $(#[$doc])+ })+
    };
    (@ start $($rest:tt)+) => {};
    (@ exec $($rest:tt)+) => {};
    (@ $method:ident $function:literal ($($argument:ident: $type:ty),*) -> $answer:ty;
        $(#[$doc:meta])+
    ) => {
        $(#[$doc])+
        ///
        /// # Errors
        /// The driver's own error, or that the call failed.
        pub async fn $method(
            &self,
            context: Arc<TaskContext>,
            $($argument: $type),*
        ) -> Result<$answer, PluginCallError> {
            let arguments = ($($argument.into_contract(&self.name)?,)*);
            let ask = self.caller.ask_about($function, context)?;
            self.caller.put(&ask, &self.name, functions::driver::$method, arguments).await
        }
    };
}

impl LoadedDriver {
    /// Ask a linked driver who it is, and check its configuration where there already is one.
    pub(super) async fn describe(
        caller: PluginCaller<DriverPluginPre<CallState>>,
        manifest: PluginManifest,
        config: Option<JsonObject>,
    ) -> Result<Self, PluginError> {
        let described = caller.call(None, functions::driver::describe).await;
        let described = caller.finish("describe", described);
        let info = described.map_err(|source| PluginError::Call { call: "describe", source })?;
        caller.note_description(&info.config_schema, &info.task_config_schema);
        let capabilities = convert::capabilities(&info.capabilities);
        let checked = run_aside(move || {
            let own = PluginDescription::check(
                info.name,
                info.version,
                &info.config_schema,
                config.as_ref(),
            )?;
            let task = ConfigSchema::new("task configuration schema", &info.task_config_schema)?;
            Ok((own, task))
        });
        let (PluginDescription { name, version, config_schema }, task_schema) = checked.await?;
        let asks = manifest.asks().into_iter().map(|(ask, _)| ask).collect();
        Ok(Self { manifest, name, version, capabilities, task_schema, config_schema, asks, caller })
    }

    /// Can a call of the driver have no outside effect but to spawn processes and WASM tasks, which
    /// are held until they are released?
    #[must_use]
    pub fn holds_starts(&self) -> bool {
        let held = [Authority::Process, Authority::WasmTask];
        self.asks.iter().all(|ask| ask.is_harmless() || held.contains(ask))
    }

    /// The grants of the driver.
    #[must_use]
    pub fn grants(&self) -> &Grants {
        self.caller.grants()
    }

    /// May tasks of the driver be processes?
    #[must_use]
    pub fn starts_processes(&self) -> bool {
        self.asks.contains(&Authority::Process)
    }

    /// Learn the secrets in a task's configuration. The schema says which values are secret.
    pub fn learn_secrets(&self, config: &JsonObject, secrets: &mut Secrets) {
        secrets.learn_config(config.text(), Some(self.task_schema.value()));
    }

    /// Who owns the files that are made for a task whose job names this user.
    ///
    /// # Errors
    /// The user does not exist.
    pub async fn owner(&self, user: Option<String>) -> Result<TaskOwner, PluginCallError> {
        // A task with a root directory of its own runs as some user, also where its job names none.
        let isolated = self.capabilities.fs_isolation == FsIsolation::Chroot;
        self.caller.owner(user, isolated).await
    }

    /// Write the last calls of the driver to a file. `None`: its calls are not recorded.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn record(&self) -> io::Result<Option<PathBuf>> {
        self.caller.record().await
    }

    /// Counts of the driver's calls so far, and how the driver does.
    #[must_use]
    pub fn meter(&self) -> &Arc<PluginMeter> {
        self.caller.meter()
    }

    /// The deadline of one call.
    #[must_use]
    pub fn call_wall(&self) -> Duration {
        self.caller.call_wall()
    }

    /// Count a call about this task that the caller gave up after this time. It counts as a
    /// call that hangs.
    pub fn count_timeout(&self, call: &'static str, task: &TaskContext, after: Duration) {
        self.caller.count_timeout(call, Some(task), after);
    }

    ostler_model::driver_calls!(asks);

    /// Ask what the driver finds on this node.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn fingerprint(&self) -> Result<DriverFingerprint, PluginCallError> {
        let ask = self.caller.ask("fingerprint")?;
        let found = self.caller.put(&ask, &self.name, functions::driver::fingerprint, ());
        let mut found: DriverFingerprint = found.await?;
        found.next = self.caller.narrow_watches(found.next);
        let granted = self.caller.answers().check_attributes(&found.attributes);
        granted.map_err(|excess| PluginCallError::NotGranted(excess.to_string()))?;
        Ok(found)
    }

    /// Start a task. When this fails, the caller kills what the host owns of the run.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn start(
        &self,
        context: Arc<TaskContext>,
        mut config: TaskConfig,
    ) -> Result<StartedTask, PluginCallError> {
        let _turn = self.caller.start_turn(&context.job_id).await;
        if let Some(texts) = self.task_schema.with_texts(&config.config) {
            config.config = texts;
        }
        let context = Arc::new(TaskContext {
            user: config.user.clone(),
            named: named_addresses(&config.config),
            env: match self.caller.answers().grants.programs {
                Some(_) => config.env.clone().into(),
                None => Arc::default(),
            },
            device_nodes: config.device_nodes.clone(),
            ..(*context).clone()
        });
        let ask = self.caller.ask_to_start(context, &config.config)?;
        let arguments = (config.into_contract(&self.name)?,);
        self.caller.put(&ask, &self.name, functions::driver::start, arguments).await
    }

    /// Ask what the host has to run for a command inside a task.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn exec(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        argv: Vec<String>,
        terminal: bool,
    ) -> Result<ExecPlan, PluginCallError> {
        let (handle, argv) = (handle.into_contract(&self.name)?, argv.into_contract(&self.name)?);
        let ask = self.caller.ask_about("exec", context)?;
        let arguments = (handle, argv, terminal);
        let plan = self.caller.put(&ask, &self.name, functions::driver::exec, arguments);
        let mut plan: ExecPlan = plan.await?;
        let program = plan.argv.first().map(String::as_str).unwrap_or_default();
        let granted = self.caller.answers().check_exec(program);
        let scrubbed = |text: String| self.caller.scrub_secrets(&ask, text);
        granted.map_err(|excess| PluginCallError::NotGranted(scrubbed(excess.to_string())))?;
        if self.caller.answers().grants.programs.is_some() {
            // Where programs are granted one by one, the driver chooses neither their environment
            // nor their directory.
            (plan.env, plan.cwd) = (None, None);
        }
        Ok(plan)
    }
}

/// The texts of a task's configuration that are an address with a port.
fn named_addresses(config: &JsonObject) -> Arc<[String]> {
    fn collect(value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::String(text) if text.parse::<SocketAddr>().is_ok() => {
                into.push(text.clone());
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            serde_json::Value::Object(map) => map.values().for_each(|item| collect(item, into)),
            _ => {}
        }
    }
    let mut named = Vec::new();
    config.map().values().for_each(|value| collect(value, &mut named));
    named.into()
}
