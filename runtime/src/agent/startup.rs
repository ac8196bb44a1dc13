//! The order of birth.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::admission::Admission;
use super::inspect::STATE_FILE;
use super::records::{self, Follower};
use super::registry::Registry;
use super::views::Stage;
use super::{AgentError, AgentHandle, AgentOptions, Inner, catalogue, leftovers};
use crate::device::manager::DeviceManager;
use crate::driver::api::Workloads;
use crate::driver::manager::DriverManager;
use crate::host::process::{Options as ProcessOptions, ProcessHost, Supervision};
use crate::host::wasm_task::WasmTaskHost;
use crate::host::{HostServices, HostWorkloads};
use crate::model::attribute::Scalar;
use crate::node::{Node, NodeView, fingerprint, id};
use crate::plugin::PluginRuntime;
use crate::sandbox::{EngineKind, Sandbox, SandboxConfig};
use crate::state::{DataDirLock, StateStore};

pub(super) async fn start(options: AgentOptions) -> Result<AgentHandle, AgentError> {
    let mut notices = Vec::new();
    let data_dir = prepare_data_dir(&options.data_dir)?;
    let lock = DataDirLock::acquire(&data_dir)?;
    seed_devices(&data_dir)?;
    let state = open_state(&data_dir, &mut notices).await?;
    notices.extend(leftovers::clear(&state, options.clock.now()).await?);

    let view = node_view(&options, &data_dir).await?;
    notices.extend(records::register(&state, &view, options.clock.now()).await?);
    let node = Node::new(view);
    let services = host_services(&options, &data_dir, &mut notices)?;
    let workloads: Arc<dyn Workloads> = Arc::new(HostWorkloads {
        processes: services.processes.clone(),
        wasm_tasks: services.wasm_tasks.clone(),
        clock: options.clock.clone(),
    });
    let drivers = DriverManager::new(node.clone(), Arc::clone(&workloads));
    let devices = DeviceManager::new(node.clone());
    let runtime = PluginRuntime::new(services.clone())?;
    let plugins =
        catalogue::load_all(&options.config, &data_dir, &runtime, &drivers, &devices).await;
    for entry in &plugins {
        if let catalogue::PluginStatus::Refused(reason) = &entry.status {
            tracing::info!(plugin = %entry.name, source = %entry.source, "not used: {reason}");
        }
    }
    let (handles, changed) = records::remember_plugins(&state, &plugins).await?;
    notices.extend(changed);
    for notice in &notices {
        tracing::info!("{notice}");
    }
    let follower = Follower::spawn(state.clone(), &node, handles);
    Ok(AgentHandle(Arc::new(Inner {
        data_dir,
        node,
        plugins,
        notices,
        drivers,
        devices,
        workloads,
        services,
        state,
        follower,
        admission: Mutex::new(Admission::default()),
        registry: Mutex::new(Registry::new(0, options.clock.now())),
        stage: watch::Sender::new(Stage::Ready),
        ledger_order: tokio::sync::Mutex::new(()),
        kill_with_agent: options.kill_with_agent,
        clock: options.clock,
        rng: options.rng,
        _lock: lock,
    })))
}

/// Create the directory for this user alone, and make its path absolute.
fn prepare_data_dir(path: &Path) -> Result<std::path::PathBuf, AgentError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let failed = |source| AgentError::DataDir { path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    path.canonicalize().map_err(failed)
}

async fn open_state(data_dir: &Path, notices: &mut Vec<String>) -> Result<StateStore, AgentError> {
    let path = data_dir.join(STATE_FILE);
    let opened = tokio::task::spawn_blocking(move || StateStore::open(&path));
    let state = opened.await.map_err(|_| AgentError::GivenUp("opening the state"))??;
    if let Some(migrated) = &state.opened().migrated {
        let copy = migrated.backup.as_ref().map(|path| format!("; a copy is {}", path.display()));
        notices.push(format!(
            "the state was brought from schema {} to {}{}",
            migrated.from,
            migrated.to,
            copy.unwrap_or_default()
        ));
    }
    for bad in &state.opened().quarantined {
        notices.push(format!("state record {} was put aside: {}", bad.key, bad.cause));
    }
    Ok(state)
}

async fn node_view(options: &AgentOptions, data_dir: &Path) -> Result<NodeView, AgentError> {
    let id = id::load_or_create(data_dir, &options.rng)?;
    let dir = data_dir.to_owned();
    let facts = tokio::task::spawn_blocking(move || fingerprint::all(Path::new("/"), &dir)).await;
    let facts = facts.map_err(|_| AgentError::GivenUp("the node fingerprint"))?;
    let host = match facts.get("unique.hostname").map(|fact| &fact.value) {
        Some(Scalar::Text(name)) => name.clone(),
        _ => "localhost".to_owned(),
    };
    let config = &options.config;
    let mut view = NodeView::new(id, config.node_name.clone().unwrap_or(host));
    view.apply_facts(facts);
    view.meta.clone_from(&config.node_meta);
    if let Some(datacenter) = &config.datacenter {
        view.datacenter.clone_from(datacenter);
    }
    if let Some(host_ip) = config.host_ip {
        view.host_ip = host_ip;
    }
    Ok(view)
}

fn host_services(
    options: &AgentOptions,
    data_dir: &Path,
    notices: &mut Vec<String>,
) -> Result<HostServices, AgentError> {
    let code_dir = options.code_dir.clone().unwrap_or_else(|| data_dir.join("code"));
    let mut config = SandboxConfig::new(code_dir)?;
    if let Some(compiler) = &options.compiler {
        config.compiler.clone_from(compiler);
    }
    let sandbox = Arc::new(Sandbox::new(config)?);
    for kind in [EngineKind::Plugin, EngineKind::Task] {
        let pool = sandbox.pool(kind);
        if pool.lowered.is_some() {
            notices.push(pool.to_string());
        }
    }
    let control = tokio::runtime::Handle::current();
    let processes = ProcessHost::new(ProcessOptions {
        control: control.clone(),
        kill_with_agent: options.kill_with_agent,
        supervision: (!options.kill_with_agent).then(|| Supervision {
            program: options.compiler.clone().unwrap_or_else(|| "/proc/self/exe".into()),
            records: data_dir.join("exits"),
        }),
        cgroup_parent: None,
        clock: options.clock.clone(),
    })
    .map_err(|error| AgentError::Processes(error.to_string()))?;
    let wasm_tasks = WasmTaskHost::new(
        Arc::clone(&sandbox),
        control.clone(),
        options.clock.clone(),
        options.rng.clone(),
    )?;
    Ok(HostServices {
        sandbox,
        processes,
        wasm_tasks,
        clock: options.clock.clone(),
        rng: options.rng.clone(),
        control,
    })
}

/// On a fresh data directory, make the directory that the built-in `files` plugin is granted, with
/// one file in it: a device to try requests with. An existing directory is left as it is.
fn seed_devices(data_dir: &Path) -> Result<(), AgentError> {
    const SAMPLE: &str = "Every file in this directory is a device of the group \
                          ostler/file/files.\nThis one is here so that there is something to lend; \
                          put your own files here\nand remove it when you like.\n";
    let dir = data_dir.join("devices");
    let failed = |source| AgentError::DataDir { path: dir.clone(), source };
    match std::fs::create_dir(&dir) {
        Ok(()) => std::fs::write(dir.join("sample"), SAMPLE).map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error)),
    }
}
