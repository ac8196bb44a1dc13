//! One plugin without jobs, state and manager: for whoever else serves it.
//!
//! ```text
//! LonePlugin::find ─► what it says of itself (nothing locked, several at once)
//!        └─► live(config) ─► the data directory is its own, what earlier ones left is found again
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
use ostler_plugin::host::wasm_task::WasmTaskHost;
use ostler_plugin::host::{HostServices, HostWorkloads};
use ostler_plugin::{Plugin, PluginRuntime};
use ostler_process::{ProcessHost, ProcessOptions, Supervision, descriptors};
use ostler_sandbox::{Sandbox, SandboxConfig};
use ostler_state::DataDirLock;
use ostler_worker::{WorkerOptions, WorkerTasks};

/// How one plugin is found.
#[derive(Clone, Debug)]
pub struct LoneOptions {
    /// What the operator configured: its block, grants, trust.
    pub config: AgentConfig,
    /// What outlives the process: tasks' records, compiled code.
    pub data_dir: PathBuf,
    /// Its name, or a file.
    pub which: String,
    /// Program that answers `__compile` and `__supervise`; this program unless given.
    pub program: Option<PathBuf>,
}

/// Why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoneError {
    /// What it would live in cannot be had.
    #[error(transparent)]
    Place(#[from] AgentError),
    /// There is none of the name, or it is refused.
    #[error("the plugin {name} cannot be used: {reason}")]
    Refused {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// A plugin that said what it is.
pub struct LonePlugin {
    options: LoneOptions,
    lone: Lone,
    sandbox: Arc<Sandbox>,
    described: Plugin,
}

/// What a plugin that is configured lives in, with the tasks of it.
pub struct LivePlugin {
    /// What runs for it.
    pub workloads: Arc<dyn Workloads>,
    /// What is to be told to the operator.
    pub notices: Vec<String>,
    services: HostServices,
    _lock: DataDirLock,
}

impl LonePlugin {
    /// Find it, judge whether it is trusted, and ask it who it is. To be called on the control runtime.
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
        let services = describing(&options, Arc::clone(&sandbox))?;
        let runtime = PluginRuntime::new(services).map_err(AgentError::from)?;
        let described = lone.load(runtime, None).await.map_err(refused)?;
        Ok(Self { options, lone, sandbox, described })
    }

    /// What it says of itself. It has no configuration yet.
    #[must_use]
    pub const fn described(&self) -> &Plugin {
        &self.described
    }

    /// What outlives the process.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.options.data_dir
    }

    /// Its configuration: what its block has, with `given` over it key by key.
    #[must_use]
    pub fn configuration(&self, given: &JsonObject) -> JsonObject {
        let mut all = self.lone.own_config().map().clone();
        all.extend(given.map().iter().map(|(key, value)| (key.clone(), value.clone())));
        JsonObject::from(all)
    }

    /// Load it with a configuration, to be used. The data directory is this process's from here on, and
    /// the tasks of an earlier one can be owned again.
    ///
    /// # Errors
    /// See [`LoneError`]; another process may have the data directory.
    pub async fn live(&self, config: JsonObject) -> Result<(Plugin, LivePlugin), LoneError> {
        let lock = data_dir::claim(&self.options.data_dir).await.map_err(AgentError::from)?;
        if self.lone.name() == "files" {
            data_dir::seed_devices(&self.options.data_dir)?;
        }
        let (services, notices) = living(&self.options, Arc::clone(&self.sandbox)).await?;
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
    /// Leave the tasks to the next process.
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
    // They run in workers.
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

/// Enough to ask a plugin who it is.
fn describing(options: &LoneOptions, sandbox: Arc<Sandbox>) -> Result<HostServices, AgentError> {
    let control = tokio::runtime::Handle::current();
    let (clock, rng) = (Clock::system(), Rng::system());
    let tasks =
        WasmTaskHost::new(Arc::clone(&sandbox), control.clone(), clock.clone(), rng.clone(), None)?;
    let processes = processes(options, true)?;
    Ok(HostServices { sandbox, processes, wasm_tasks: Arc::new(tasks), clock, rng, control })
}

/// All that tasks need which outlive this process.
async fn living(
    options: &LoneOptions,
    sandbox: Arc<Sandbox>,
) -> Result<(HostServices, Vec<String>), AgentError> {
    if let Err(error) = descriptors::raise() {
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
