//! One plugin without jobs, state and plugin manager, for another program that serves it.
//!
//! ```text
//! LonePlugin::find ─► what it says of itself (nothing locked, several at once)
//!        └─► activate(config) ─► the data directory is its own, what earlier ones left is found again
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::AgentError;
use super::catalogue::alone::Lone;
use super::data_dir;
use ostler_model::clock::Clock;
use ostler_model::config::AgentConfig;
use ostler_model::json::JsonObject;
use ostler_model::ports::Workloads;
use ostler_model::rng::Rng;
use ostler_plugin::host::{HostServices, HostWorkloads};
use ostler_plugin::{Plugin, PluginRuntime};
use ostler_process::{ProcessHost, ProcessOptions, Supervision, descriptors};
use ostler_sandbox::{Sandbox, SandboxConfig};
use ostler_state::DataDirLock;
use ostler_wasm_task::WasmTaskHost;
use ostler_worker::{WorkerOptions, WorkerTasks};

/// The options that say how one plugin is found.
#[derive(Clone, Debug)]
pub struct LoneOptions {
    /// The operator's configuration, with the block, the grants and the trust settings of
    /// the plugin.
    pub config: AgentConfig,
    /// The directory of everything that outlives the process: records of tasks and compiled code.
    pub data_dir: PathBuf,
    /// The name of the plugin, or the path of its file.
    pub which: String,
    /// The program that answers `__compile` and `__supervise`. `None` means this program.
    pub program: Option<PathBuf>,
}

/// Why a plugin cannot be used by itself.
#[derive(Debug, thiserror::Error)]
pub enum LoneError {
    /// The directories or services that the plugin needs are not available.
    #[error(transparent)]
    Place(#[from] AgentError),
    /// There is no plugin of this name, or it is refused.
    #[error("the plugin {name} cannot be used: {reason}")]
    Refused {
        /// The name or the file that was asked for.
        name: String,
        /// Why the plugin is refused, as a sentence for the operator.
        reason: String,
    },
}

/// A plugin that was found, judged and asked who it is, but has no configuration yet.
pub struct LonePlugin {
    options: LoneOptions,
    lone: Lone,
    sandbox: Arc<Sandbox>,
    described: Plugin,
}

/// The services and tasks of a plugin that was loaded with its configuration.
pub struct LivePlugin {
    /// The workloads of the plugin that still run.
    pub workloads: Arc<dyn Workloads>,
    /// Sentences that the operator should see.
    pub notices: Vec<String>,
    services: HostServices,
    _lock: DataDirLock,
}

impl LonePlugin {
    /// Find the plugin, judge whether it is trusted, and ask it who it is. Call this on the
    /// control runtime.
    ///
    /// # Errors
    /// See [`LoneError`].
    pub async fn find(mut options: LoneOptions) -> Result<Self, LoneError> {
        let (data_dir, closed) = data_dir::prepare(&options.data_dir)?;
        if let Some(notice) = closed {
            tracing::warn!("{notice}");
        }
        options.data_dir = data_dir;
        let refused = |reason| LoneError::Refused { name: options.which.clone(), reason };
        let lone = Lone::find(options.config.clone(), options.data_dir.clone(), &options.which);
        let lone = lone.map_err(refused)?;
        let sandbox = sandbox(&options).await?;
        let services = minimal_services(&options, Arc::clone(&sandbox))?;
        let runtime = PluginRuntime::new(services).map_err(AgentError::from)?;
        let described = lone.load(runtime, None).await.map_err(refused)?;
        Ok(Self { options, lone, sandbox, described })
    }

    /// The loaded plugin and what it says of itself. It has no configuration yet.
    #[must_use]
    pub const fn described_plugin(&self) -> &Plugin {
        &self.described
    }

    /// The directory of everything that outlives the process.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.options.data_dir
    }

    /// The configuration of the plugin: that of its block, with `given` over it key by key.
    #[must_use]
    pub fn configuration(&self, given: &JsonObject) -> JsonObject {
        let mut all = self.lone.own_config().map().clone();
        all.extend(given.map().iter().map(|(key, value)| (key.clone(), value.clone())));
        JsonObject::from(all)
    }

    /// Load the plugin with a configuration, so that it can be used. This process claims the data
    /// directory from here on, and can own the tasks of an earlier process again.
    ///
    /// # Errors
    /// See [`LoneError`]; another process may have the data directory.
    pub async fn activate(&self, config: JsonObject) -> Result<(Plugin, LivePlugin), LoneError> {
        let lock = data_dir::claim(&self.options.data_dir).await.map_err(AgentError::from)?;
        if self.lone.name() == "files" {
            data_dir::seed_devices(&self.options.data_dir)?;
        }
        let (services, notices) = full_services(&self.options, Arc::clone(&self.sandbox)).await?;
        let runtime = PluginRuntime::new(services.clone()).map_err(AgentError::from)?;
        let plugin = self
            .lone
            .load(runtime, Some(config))
            .await
            .map_err(|reason| LoneError::Refused { name: self.options.which.clone(), reason })?;
        let workloads = Arc::new(HostWorkloads {
            processes: services.processes.clone(),
            wasm_tasks: Arc::clone(&services.wasm_tasks),
            clock: services.clock.clone(),
        });
        Ok((plugin, LivePlugin { workloads, notices, services, _lock: lock }))
    }
}

impl LivePlugin {
    /// Leave the tasks to the next process, and end the workers that have none.
    pub async fn leave(&self) {
        self.services.wasm_tasks.leave().await;
    }
}

async fn sandbox(options: &LoneOptions) -> Result<Arc<Sandbox>, AgentError> {
    let mut config = SandboxConfig::new(options.data_dir.join("code"))?;
    if let Some(program) = &options.program {
        config.compiler.clone_from(program);
    }
    config.dense = options.config.wasm.dense.unwrap_or(false);
    // The tasks run in workers, not in this process.
    config.task_instances = 0;
    config.ahead = ostler_guests::builtin_plugins().iter().map(|plugin| plugin.code).collect();
    let made = tokio::task::spawn_blocking(move || Sandbox::new(config)).await;
    Ok(Arc::new(made.map_err(|_| AgentError::GivenUp("reserving memory for guests"))??))
}

fn processes(options: &LoneOptions, ends_tasks: bool) -> Result<ProcessHost, AgentError> {
    let program = options.program.clone().unwrap_or_else(|| "/proc/self/exe".into());
    let records = options.data_dir.join("exits");
    ProcessHost::new(ProcessOptions {
        control: tokio::runtime::Handle::current(),
        kill_with_agent: ends_tasks,
        supervision: Some(Supervision { program, records }),
        cgroup_parent: None,
        clock: Clock::system(),
    })
    .map_err(|error| AgentError::Processes(error.to_string()))
}

/// The services that are enough to ask a plugin who it is.
fn minimal_services(
    options: &LoneOptions,
    sandbox: Arc<Sandbox>,
) -> Result<HostServices, AgentError> {
    let control = tokio::runtime::Handle::current();
    let (clock, rng) = (Clock::system(), Rng::system());
    let tasks =
        WasmTaskHost::new(Arc::clone(&sandbox), control.clone(), clock.clone(), rng.clone(), None)?;
    let processes = processes(options, true)?;
    Ok(HostServices { sandbox, processes, wasm_tasks: Arc::new(tasks), clock, rng, control })
}

/// All services that tasks need, which outlive this process, and the notices for the operator.
async fn full_services(
    options: &LoneOptions,
    sandbox: Arc<Sandbox>,
) -> Result<(HostServices, Vec<String>), AgentError> {
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "the limit of open files could not be raised: fewer tasks fit");
    }
    let control = tokio::runtime::Handle::current();
    let (clock, rng) = (Clock::system(), Rng::system());
    let processes = processes(options, false)?;
    let workers = WorkerOptions {
        program: options.program.clone().unwrap_or_else(|| "/proc/self/exe".into()),
        data_dir: options.data_dir.clone(),
        own_allocations: false,
        config: options.config.wasm_worker,
        task_instances: options.config.wasm.tasks(),
        dense: options.config.wasm.dense.unwrap_or(false),
        sandbox: Arc::clone(&sandbox),
        processes: processes.clone(),
        control: control.clone(),
        clock: clock.clone(),
        rng: rng.clone(),
    };
    let opened = WorkerTasks::open(workers).await.map_err(AgentError::Workers)?;
    let wasm_tasks = Arc::new(opened.tasks);
    let services = HostServices { sandbox, processes, wasm_tasks, clock, rng, control };
    Ok((services, opened.notices))
}
