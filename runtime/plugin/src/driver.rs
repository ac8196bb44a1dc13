//! Typed calls into a driver plugin.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::PluginError;
use super::bindings::since_0_1::driver_export as drv;
use super::bindings::since_0_1::driver_world::DriverPluginPre;
use super::bindings::since_0_1::host::types as wit;
use super::call::{PluginCaller, PluginQuestion};
use super::convert::{self, AnswerError, DriverFingerprint};
use super::schema::{ConfigSchema, PluginDescription, run_aside};
use super::weigh::Weigh as _;
use crate::host::CallState;
use ostler_health::meter::PluginMeter;
use ostler_model::grants::{Authority, Grants};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::limits::HANDLE_BYTES_MAX;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::{
    Capabilities, FsIsolation, InspectResult, PluginCallError, StartedTask, TaskConfig,
    TaskContext, TaskOwner,
};
use ostler_model::redact::Secrets;
use ostler_model::session::ExecPlan;
use ostler_model::task::{DriverHandle, ExitResult, RawExit, Workload};

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
}

/// Call one function of the driver on a new instance.
macro_rules! call {
    ($self:ident, $task:expr, $function:ident ( $($arg:ident),* )) => {{
        let given = 0 $(+ $arg.weigh())*;
        let input = $self.caller.arguments(&($(&$arg,)*));
        $self.caller.call($task, move |pre, store| Box::pin(async move {
            let plugin = pre.instantiate_async(&mut *store).await?;
            plugin.ostler_plugin_driver().$function(store $(, &$arg)*).await
        })).await.with_bytes_in(given).with_arguments(input)
    }};
}

impl LoadedDriver {
    /// Ask a linked driver who it is, and check its configuration where there already is one.
    pub(super) async fn describe(
        caller: PluginCaller<DriverPluginPre<CallState>>,
        manifest: PluginManifest,
        config: Option<JsonObject>,
    ) -> Result<Self, PluginError> {
        let described = caller.call(None, |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_driver().call_describe(store).await
            })
        });
        let described = caller.finish("describe", described.await);
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
        Ok(Self { manifest, name, version, capabilities, task_schema, config_schema, caller })
    }

    /// Can a call of the driver have no outside effect but to spawn processes and WASM tasks, which
    /// are held until they are released?
    #[must_use]
    pub fn holds_starts(&self) -> bool {
        let asks = self.manifest.asks();
        let held = [Authority::Process, Authority::WasmTask];
        asks.iter().all(|(ask, _)| ask.is_harmless() || held.contains(ask))
    }

    /// The grants of the driver.
    #[must_use]
    pub fn grants(&self) -> &Grants {
        self.caller.grants()
    }

    /// May tasks of the driver be processes?
    #[must_use]
    pub fn starts_processes(&self) -> bool {
        self.manifest.asks().iter().any(|(ask, _)| *ask == Authority::Process)
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

    /// Ask what the driver finds on this node.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn fingerprint(&self) -> Result<DriverFingerprint, PluginCallError> {
        let ask = self.caller.ask("fingerprint")?;
        let mut found = self.caller.answer(&ask, call!(self, None, call_fingerprint()))?;
        found.health.reason = self.caller.scrub_secrets(&ask, found.health.reason);
        let mut found =
            convert::driver_fingerprint(found).map_err(|e| self.caller.count_broken(&ask, e))?;
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
        let ask = self.caller.ask_to_start(&context, &config.config)?;
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
        let config = task_config(config);
        let started = self.caller.answer(&ask, call!(self, Some(context), call_start(config)))?;
        self.check_started(&ask, started)
    }

    /// Ask the driver to own a task again.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn recover(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> Result<StartedTask, PluginCallError> {
        let handle = self.handle(handle)?;
        let ask = self.caller.ask_about("recover", &context)?;
        let started = self.caller.answer(&ask, call!(self, Some(context), call_recover(handle)))?;
        self.check_started(&ask, started)
    }

    /// Ask the driver what the exit of a task means.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn interpret_exit(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        exit: RawExit,
    ) -> Result<ExitResult, PluginCallError> {
        let handle = self.handle(handle)?;
        let exit = raw_exit(exit);
        let ask = self.caller.ask_about("exited", &context)?;
        let mut result =
            self.caller.answer(&ask, call!(self, Some(context), call_exited(handle, exit)))?;
        result.error = result.error.map(|text| self.caller.scrub_secrets(&ask, text));
        parse_exit(result).map_err(|e| self.caller.count_broken(&ask, e))
    }

    /// Ask a task to end.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn stop(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        signal: Option<String>,
        timeout: Duration,
    ) -> Result<(), PluginCallError> {
        let handle = self.handle(handle)?;
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let ask = self.caller.ask_about("stop", &context)?;
        let given = handle.weigh() + signal.weigh() + timeout.weigh();
        let input = self.caller.arguments(&(&handle, &signal, timeout));
        let called = self.caller.call(Some(context), move |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                let driver = plugin.ostler_plugin_driver();
                driver.call_stop(store, &handle, signal.as_deref(), timeout).await
            })
        });
        self.caller.answer(&ask, called.await.with_bytes_in(given).with_arguments(input))
    }

    /// End a task now.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn kill(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> Result<(), PluginCallError> {
        let handle = self.handle(handle)?;
        let ask = self.caller.ask_about("kill", &context)?;
        self.caller.answer(&ask, call!(self, Some(context), call_kill(handle)))
    }

    /// Forget a task.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn destroy(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        force: bool,
    ) -> Result<(), PluginCallError> {
        let handle = self.handle(handle)?;
        let ask = self.caller.ask_about("destroy", &context)?;
        let given = handle.weigh() + force.weigh();
        let input = self.caller.arguments(&(&handle, force));
        let called = self.caller.call(Some(context), move |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_driver().call_destroy(store, &handle, force).await
            })
        });
        self.caller.answer(&ask, called.await.with_bytes_in(given).with_arguments(input))
    }

    /// Ask for the state of a task.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn inspect(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> Result<InspectResult, PluginCallError> {
        let handle = self.handle(handle)?;
        let ask = self.caller.ask_about("inspect", &context)?;
        let mut status =
            self.caller.answer(&ask, call!(self, Some(context), call_inspect(handle)))?;
        if let Some(exit) = &mut status.exit {
            exit.error = exit.error.take().map(|text| self.caller.scrub_secrets(&ask, text));
        }
        parse_inspected(status).map_err(|e| self.caller.count_broken(&ask, e))
    }

    /// Send a signal by name.
    ///
    /// # Errors
    /// The driver's own error, or that the call failed.
    pub async fn signal(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        signal: String,
    ) -> Result<(), PluginCallError> {
        let handle = self.handle(handle)?;
        let ask = self.caller.ask_about("signal", &context)?;
        self.caller.answer(&ask, call!(self, Some(context), call_signal(handle, signal)))
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
        let handle = self.handle(handle)?;
        let ask = self.caller.ask_about("exec", &context)?;
        let given = handle.weigh() + argv.weigh() + terminal.weigh();
        let input = self.caller.arguments(&(&handle, &argv, terminal));
        let called = self.caller.call(Some(context), move |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_driver().call_exec(store, &handle, &argv, terminal).await
            })
        });
        let plan =
            self.caller.answer(&ask, called.await.with_bytes_in(given).with_arguments(input))?;
        let program = plan.argv.first().map(String::as_str).unwrap_or_default();
        let granted = self.caller.answers().check_exec(program);
        let told = |text: String| self.caller.scrub_secrets(&ask, text);
        granted.map_err(|excess| PluginCallError::NotGranted(told(excess.to_string())))?;
        // Where programs are granted one by one, the driver chooses neither their environment nor
        // their directory.
        let chosen = self.caller.answers().grants.programs.is_none();
        let env = plan.env.into_iter().map(|var| (var.name, var.value));
        let (env, cwd) = (chosen.then(|| env.collect()), chosen.then_some(plan.cwd));
        Ok(ExecPlan { argv: plan.argv, env, cwd, user: plan.user })
    }

    fn handle(&self, handle: DriverHandle) -> Result<drv::Handle, PluginCallError> {
        if handle.plugin != self.name.as_str() {
            return Err(PluginCallError::NotFound(format!(
                "the handle was made by {}, not by {}",
                handle.plugin, self.name
            )));
        }
        Ok(drv::Handle { version: handle.version, data: handle.data })
    }

    fn check_started(
        &self,
        ask: &PluginQuestion,
        given: drv::Started,
    ) -> Result<StartedTask, PluginCallError> {
        parse_started(self.name.as_str(), given).map_err(|e| self.caller.count_broken(ask, e))
    }
}

fn broken_answer(place: &str, problem: String) -> AnswerError {
    AnswerError { place: place.to_owned(), problem }
}

/// Check the answer of `start` and `recover`.
pub(super) fn parse_started(plugin: &str, given: drv::Started) -> Result<StartedTask, AnswerError> {
    let data = given.handle.data;
    if data.len() > HANDLE_BYTES_MAX {
        let problem = format!("has {} bytes; at most {HANDLE_BYTES_MAX}", data.len());
        return Err(broken_answer("handle", problem));
    }
    let network = given.network.map(convert::driver_network).transpose()?.map(Arc::new);
    let id = |id| convert::name("workload id", id);
    let workload = match given.workload {
        drv::Workload::Process(process) => Workload::Process(id(process)?),
        drv::Workload::WasmTask(task) => Workload::WasmTask(id(task)?),
        drv::Workload::Poll(interval) => Workload::Poll(interval),
    };
    let (plugin, version) = (plugin.to_owned(), given.handle.version);
    Ok(StartedTask { handle: DriverHandle { plugin, version, data }, workload, network })
}

/// Check the answer of `exited`.
pub(super) fn parse_exit(given: drv::ExitResult) -> Result<ExitResult, AnswerError> {
    Ok(ExitResult {
        exit_code: given.exit_code,
        signal: given.signal,
        oom_killed: given.oom_killed,
        error: given.error.map(|text| convert::text("error", text)).transpose()?,
    })
}

/// Check the answer of `inspect`.
pub(super) fn parse_inspected(status: drv::Status) -> Result<InspectResult, AnswerError> {
    match (status.state, status.exit) {
        (drv::RunState::Running, _) => Ok(InspectResult::Running),
        (drv::RunState::Unknown, _) => Ok(InspectResult::Unknown),
        (drv::RunState::Exited, Some(exit)) => Ok(InspectResult::Exited(RawExit {
            exit_code: exit.exit_code,
            signal: exit.signal,
            oom_killed: exit.oom_killed,
            error: exit.error.map(|text| convert::text("error", text)).transpose()?,
            finished_at: ostler_model::clock::Timestamp::from_nanos(exit.finished_at),
        })),
        (drv::RunState::Exited, None) => {
            Err(broken_answer("state", "exited without an exit".to_owned()))
        }
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

fn raw_exit(exit: RawExit) -> drv::RawExit {
    drv::RawExit {
        exit_code: exit.exit_code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        error: exit.error,
        finished_at: exit.finished_at.nanos(),
    }
}

fn task_config(config: TaskConfig) -> drv::TaskConfig {
    let env = config.env.into_iter().map(|(name, value)| wit::EnvVar { name, value }).collect();
    let ports = config
        .ports
        .into_iter()
        .map(|port| drv::Port { label: port.label, value: port.value, host_ip: port.host_ip })
        .collect();
    let mounts = config.mounts.into_iter().map(|mount| wit::Mount {
        host_path: mount.host_path,
        task_path: mount.task_path,
        read_only: mount.read_only,
    });
    let nodes = config.device_nodes.into_iter().map(|node| wit::DeviceNode {
        host_path: node.host_path,
        task_path: node.task_path,
        permissions: node.permissions,
    });
    drv::TaskConfig {
        id: config.run_id.to_string(),
        alloc_id: config.alloc_id.to_string(),
        job_id: config.job_id.to_string(),
        group_name: config.group.to_string(),
        task_name: config.task.to_string(),
        config_json: config.config.text().to_owned(),
        env,
        resources: drv::Resources {
            cpu_mhz: config.cpu_mhz,
            memory_bytes: config.memory_bytes,
            memory_max_bytes: config.memory_max_bytes,
        },
        ports,
        mounts: mounts.collect(),
        device_nodes: nodes.collect(),
        task_dir: config.task_dir.to_string_lossy().into_owned(),
        alloc_dir: config.alloc_dir.to_string_lossy().into_owned(),
        user: config.user,
    }
}
