//! What an agent has of the machine when it starts: its limits, its facts, and the hosts that run
//! processes and guests on it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::networks::{fill_node_view, node_facts};
use crate::{AgentError, AgentOptions};
use ostler_control::gc::gauge::FsGauge;
use ostler_lifecycle::alloc::size::AllocDiskUse;
use ostler_model::attribute::AttributeValue;
use ostler_model::ids::{AllocId, RunId};
use ostler_model::limits::{AGENT_OPEN_FILES_MIN, KILL_GRACE};
use ostler_model::ports::{BoxFuture, ProcessIdentity};
use ostler_node::{NodeView, id};
use ostler_plugin::host::HostServices;
use ostler_process::{ProcessHost, ProcessOptions, Supervision, descriptors, identity, live};
use ostler_sandbox::{EngineKind, Sandbox, SandboxConfig};
use ostler_wasm_task::{WasmTaskHost, WasmTasks};
use ostler_worker::{FoundTasks, OpenedWorkerTasks, WorkerOptions, WorkerTasks};

/// Measures how full the disk is, and how much allocations use: in their directories, and in files
/// that their processes hold open.
pub(super) fn gauge(data_dir: &Path, processes: ProcessHost) -> FsGauge {
    let held = move |alloc: AllocId, device: u64, cancel: &CancellationToken| {
        let found = processes.held_files(alloc, device, &|| cancel.is_cancelled());
        AllocDiskUse {
            bytes: found.bytes,
            apparent_bytes: found.apparent_bytes,
            inodes: found.inodes,
            complete: !found.incomplete,
        }
    };
    FsGauge { root: data_dir.to_owned(), held: Arc::new(held) }
}

/// Raise the limit of open files as far as possible. An agent with too few files says so and does
/// not start, because its API could take no connection.
pub(super) fn raise_files() -> Result<(), AgentError> {
    match descriptors::raise_limit() {
        Ok(Some(limit)) if limit < AGENT_OPEN_FILES_MIN => Err(AgentError::FewFiles { limit }),
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised: fewer tasks fit");
            Ok(())
        }
    }
}

/// A function that ends a process of an agent that crashed. It returns whether the process was
/// alive. A process of another data directory, of which this one is a copy, is left alone.
pub(super) fn process_ender(
    data_dir: &Path,
) -> impl Fn(RunId, ProcessIdentity) -> BoxFuture<'static, io::Result<bool>> + Send + Sync + use<> {
    let exits = data_dir.join("exits");
    move |run, identity| {
        let elsewhere =
            identity.supervisor.is_some_and(|who| live::other_data_dir(who, &exits).is_some());
        let alive = identity::is_alive(&identity) && !elsewhere;
        Box::pin(async move {
            if !elsewhere {
                identity::end_leftover(run, identity, KILL_GRACE).await?;
            }
            Ok(alive)
        })
    }
}

/// Find out what this machine is.
pub(super) async fn node_view(
    options: &AgentOptions,
    data_dir: &Path,
) -> Result<NodeView, AgentError> {
    let (dir, rng) = (data_dir.to_owned(), options.rng.clone());
    let client = options.config.client.clone();
    let looked = tokio::task::spawn_blocking(move || {
        (node_facts(&dir, &client), id::load_or_create(&dir, &rng))
    });
    let (facts, id) = looked.await.map_err(|_| AgentError::GivenUp("the node fingerprint"))?;
    let id = id?;
    let host = match facts.get("unique.hostname").map(|fact| &fact.value) {
        Some(AttributeValue::Text(name)) => name.clone(),
        _ => "localhost".to_owned(),
    };
    let config = &options.config;
    let mut view = NodeView::new(id, config.node_name.clone().unwrap_or(host));
    view.apply_facts(facts);
    view.meta.clone_from(&config.node_meta);
    fill_node_view(&mut view, &config.client);
    if let Some(datacenter) = &config.datacenter {
        view.datacenter.clone_from(datacenter);
    }
    if let Some(host_ip) = config.host_ip {
        view.host_ip = host_ip;
    }
    Ok(view)
}

/// Create the sandbox, which reserves its memory pools.
pub(super) async fn sandbox(
    options: &AgentOptions,
    data_dir: &Path,
) -> Result<Arc<Sandbox>, AgentError> {
    let code_dir = options.code_dir.clone().unwrap_or_else(|| data_dir.join("code"));
    let mut config = SandboxConfig::new(code_dir)?;
    if let Some(compiler) = &options.compiler {
        config.compiler.clone_from(compiler);
    }
    config.dense = options.config.wasm.dense.unwrap_or(false);
    // Tasks that outlive the agent run in workers.
    config.task_instances = if options.mode.ends_tasks() { options.config.wasm.tasks() } else { 0 };
    config.ahead = ostler_guests::builtin_plugins().iter().map(|plugin| plugin.code).collect();
    let made = tokio::task::spawn_blocking(move || Sandbox::new(config)).await;
    Ok(Arc::new(made.map_err(|_| AgentError::GivenUp("reserving memory for guests"))??))
}

/// Start the hosts of processes and of WASM tasks, and find the tasks that workers still run.
pub(super) async fn host_services(
    options: &AgentOptions,
    data_dir: &Path,
    sandbox: Arc<Sandbox>,
    notices: &mut Vec<String>,
) -> Result<(HostServices, FoundTasks), AgentError> {
    for kind in [EngineKind::Plugin, EngineKind::Task] {
        let pool = sandbox.pool(kind);
        if pool.lowered.is_some() {
            notices.push(pool.to_string());
        }
    }
    let control = tokio::runtime::Handle::current();
    if options.mode.serves() {
        ostler_process::make_room();
    }
    let program = options.compiler.clone().unwrap_or_else(|| "/proc/self/exe".into());
    let processes = ProcessHost::new(ProcessOptions {
        control: control.clone(),
        kill_with_agent: options.mode.ends_tasks(),
        supervision: Some(Supervision {
            program: program.clone(),
            records: data_dir.join("exits"),
        }),
        cgroup_parent: None,
        clock: options.clock.clone(),
    })
    .map_err(|error| AgentError::Processes(error.to_string()))?;
    let (clock, rng) = (options.clock.clone(), options.rng.clone());
    let workers = WorkerOptions {
        program,
        data_dir: data_dir.to_owned(),
        own_allocations: true,
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
    let OpenedWorkerTasks { tasks: workers, found, notices: said } = opened;
    notices.extend(said);
    let wasm_tasks: Arc<dyn WasmTasks> = if options.mode.ends_tasks() {
        // The tasks there that belong to kept allocations go on.
        workers.leave().await;
        Arc::new(WasmTaskHost::new(Arc::clone(&sandbox), control.clone(), clock, rng, None)?)
    } else {
        Arc::new(workers)
    };
    let services = HostServices {
        sandbox,
        processes,
        wasm_tasks,
        clock: options.clock.clone(),
        rng: options.rng.clone(),
        control,
    };
    Ok((services, found))
}
