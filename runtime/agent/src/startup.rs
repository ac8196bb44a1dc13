//! The order in which the parts of an agent start.
//!
//! ```text
//! begin_start: data dir ─ lock ─ state ─ crashed runs ended ─ node, hosts ─► can be asked
//! into_ready:  plugins (see `loading`) ─ a while ─► restored ─► jobs are taken
//!                └─ in use, asked ─ a longer while ─► said to be ready ─► the jobs directory
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::data_dir::{self, lag_notice, live_runs, open_state, unowned_dirs};
use super::held_runs::HeldRuns;
use super::networks::{fill_node_view, node_facts};
use super::node_cores::node_cores;
use super::restore::RestoredState;
use super::user_range;
use super::{
    AgentConfig, AgentError, AgentHandle, AgentInner, AgentMode, AgentOptions, OpenState,
    catalogue, fetching, loading,
};
use ostler_control::gc::choice::GcPolicy;
use ostler_control::gc::gauge::FsGauge;
use ostler_control::node_records::{self, NodeRecords};
use ostler_control::{ControlOptions, ports};
use ostler_device::manager::{DeviceManager, DeviceOptions};
use ostler_health::refresh::Refresher;
use ostler_jobsdir::JobsDir;
use ostler_lifecycle::alloc::size::AllocDiskUse;
use ostler_lifecycle::services::NodeServices;
use ostler_model::attribute::AttributeValue;
use ostler_model::clock;
use ostler_model::config::{ClientConfig, GcConfig};
use ostler_model::ids::{AllocId, RunId};
use ostler_model::limits::{
    AGENT_OPEN_FILES_MIN, HEAP_LOOK_INTERVAL, KILL_GRACE, KILL_TIMEOUT_MAX,
};
use ostler_model::network::Networks;
use ostler_model::ports::{BoxFuture, ProcessIdentity, Workloads};
use ostler_network::AllocNetworks;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodePublisher, NodeView, id, refresh};
use ostler_plugin::PluginRuntime;
use ostler_plugin::drivers::manager::DriverManager;
use ostler_plugin::host::{HostServices, HostWorkloads};
use ostler_plugin_tools::recording::{RecordCalls, RecordingStore};
use ostler_process::memory::HeapTrimmer;
use ostler_process::{
    ProcessHost, ProcessOptions, Supervision, descriptors, identity, live, memory,
};
use ostler_sandbox::{EngineKind, Sandbox, SandboxConfig};
use ostler_wasm_task::{WasmTaskHost, WasmTasks};
use ostler_worker::{FoundTasks, OpenedWorkerTasks, WorkerOptions, WorkerTasks};

/// How long the restoring of earlier allocations waits for plugins. Plugins whose code was compiled
/// before are there by then, and the others must not keep jobs from being seen.
const RESTORE_WALL: Duration = Duration::from_secs(3);
/// How long the start waits for plugins at most before the agent says that it is ready. It is below
/// the time after which service managers give up a start (90 s in systemd).
const READY_WALL: Duration = Duration::from_secs(60);

/// An agent that has its data directory and can be asked, but is not ready yet.
pub struct StartingAgent {
    agent: AgentHandle,
    config: AgentConfig,
    left: RestoredState,
    /// The networks, and the allocations that had one before this start.
    networks: (Arc<AllocNetworks>, BTreeSet<AllocId>),
    notices: Vec<String>,
}

pub(super) async fn begin_start(
    options: AgentOptions,
    open: OpenState,
) -> Result<StartingAgent, AgentError> {
    let mut notices = Vec::new();
    let (data_dir, closed) = data_dir::prepare(&options.data_dir)?;
    notices.extend(closed);
    let embedded = !options.mode.serves();
    if !embedded {
        raise_files()?;
    }
    let mut lock = data_dir::claim(&data_dir).await?;
    if !embedded {
        lock.note_serving()?;
    }
    data_dir::seed_devices(&data_dir)?;
    // These run at the same time: one waits for the disk, one for the kernel, and none needs
    // another.
    let (state, node, sandbox) = tokio::join!(
        open_state(&data_dir, open, &mut notices),
        node_view(&options, &data_dir),
        sandbox(&options, &data_dir),
    );
    let (state, view, sandbox) = (state?, node?, sandbox?);
    let mut found = NodeRecords::read(&state, options.clock.now())?;
    notices.extend(found.take_notices());
    let end_process = process_ender(&data_dir);
    notices.extend(found.clear(&state, embedded, options.clock.now(), &end_process).await?);
    let (services, workers) = host_services(&options, &data_dir, sandbox, &mut notices).await?;
    // This is read before anything is removed or started.
    let lacks = state.open_report().is_incomplete();
    let (live, mut found) =
        live_runs(&data_dir, found, workers, lacks, options.clock.now()).await?;
    notices.extend(lag_notice(state.open_report(), &data_dir));
    notices.extend(live.notices(&data_dir));

    let now = options.clock.now();
    notices.extend(node_records::register_node(&state, view.id, &view.name, lacks, now).await?);
    if !embedded {
        match identity::boot_id() {
            Ok(boot) => {
                found.prepare_boot(&state, &boot, options.clock.now()).await?;
            }
            Err(error) => tracing::warn!(%error, "whether the machine was restarted is not known"),
        }
    }
    let sweep = (!lacks && !live.has_nameless()).then(|| live.processes().to_vec());
    let wasm_runs = live.wasm_runs().clone();
    let unowned = unowned_dirs(&data_dir, &found, &live, &state).await?;
    let node = NodePublisher::new(view);
    let board = catalogue::Board::new(node.clone());
    let cores = node_cores(&services.processes);
    node.update(|view| view.set_cores(cores));
    let workloads: Arc<dyn Workloads> = Arc::new(HostWorkloads {
        processes: services.processes.clone(),
        wasm_tasks: services.wasm_tasks.clone(),
        clock: options.clock.clone(),
    });
    let watcher = ChangeWatcher::new();
    let refresher = || Refresher::new(watcher.clone(), options.rng.clone());
    let drivers = DriverManager::new(node.clone(), Arc::clone(&workloads), refresher());
    let device_options = DeviceOptions {
        clock: options.clock.clone(),
        stats_interval: options.config.device_stats_interval,
    };
    let devices = DeviceManager::new(node.clone(), device_options, refresher());
    let runtime = PluginRuntime::new(services.clone())?;
    let recordings = RecordingStore::new(
        data_dir.join("recordings"),
        services.clock.clone(),
        services.control.clone(),
    );
    let runtime = runtime.with_observer(Arc::new(RecordCalls::into_store(recordings)));
    let has_servers = !options.config.cluster.servers.is_empty();
    let jobs_dir = options.config.jobs_dir.clone().filter(|_| !embedded);
    let state_age = state.open_report().age;
    let kill = services.clone();
    let networks = Arc::new(AllocNetworks::new(&options.config.client.network, &data_dir));
    // These are the networks of now. Networks that are made later belong to whoever makes them.
    let old_networks = networks.remaining_allocs().await;
    let kill_timeout_max = options.config.client.max_kill_timeout.unwrap_or(KILL_TIMEOUT_MAX);
    let users = user_range::users(&options, &data_dir, &mut notices).await?;
    let node_services = NodeServices::new(found.index());
    let kept = super::namespaces::load(&options, &state, found.index(), &mut notices).await?;
    let (namespaces, variables) = kept;
    let (control, owner) = ostler_control::spawn(ControlOptions {
        data_dir: data_dir.clone(),
        node: node.clone(),
        drivers: Arc::new(drivers.clone()),
        workloads: Arc::clone(&workloads),
        devices: devices.clone(),
        artifacts: fetching::fetcher(&options, &data_dir, &mut notices).await,
        state: state.clone(),
        gauge: Arc::new(gauge(&data_dir, services.processes.clone())),
        port_in_use: Arc::new(ports::port_in_use),
        kill_tasks: Arc::new(move || {
            kill.processes.kill_all();
            kill.wasm_tasks.kill_all();
        }),
        clock: options.clock.clone(),
        rng: options.rng.clone(),
        // An agent that ends with its command leaves no mount behind, whatever ends it.
        secrets_in_memory: options.mode == AgentMode::Durable,
        users,
        recorded_index: found.index(),
        holds: live.holds(&data_dir),
        kill_timeout_max,
        services: node_services.clone(),
        variables: variables.clone(),
        other_nodes: options.other_nodes.clone(),
        networks: Arc::clone(&networks) as Arc<dyn Networks>,
    });
    devices.set_book(control.ledger_book());
    let ended = CancellationToken::new();
    let agent = AgentHandle(Arc::new(AgentInner {
        data_dir,
        socket_dir: options.socket_dir,
        kill_timeout_max,
        remote_exec: AtomicBool::new(!options.config.cluster.disable_remote_exec),
        reloading: super::reload::ReloadState::new(options.config.clone()),
        namespaces,
        node,
        board,
        plugins: OnceLock::new(),
        meters: Mutex::default(),
        runtime,
        watcher,
        notices: OnceLock::new(),
        drivers,
        devices,
        workloads,
        services,
        node_services,
        variables,
        state,
        control,
        owner: Mutex::new(Some(owner)),
        follower: OnceLock::new(),
        holds: Mutex::new(HeldRuns::new(state_age, live)),
        events: super::event_feed::EventFeed::default(),
        waiting: Mutex::default(),
        jobs_dir: jobs_dir.map(JobsDir::new),
        unowned: Mutex::default(),
        quarantined: Arc::default(),
        _unhandled: ended.clone().drop_guard(),
        ended,
        beside: TaskTracker::new(),
        mode: options.mode,
        // This holds from the first request on, before the node has joined.
        joined: AtomicBool::new(options.mode == AgentMode::Durable && has_servers),
        clock: options.clock,
        lock,
    }));
    let removal = unowned.remove(agent.0.ended.clone());
    *agent.0.unowned.lock().unwrap_or_else(PoisonError::into_inner) = removal;
    let left = RestoredState { records: found, sweep, wasm_runs };
    let networks = (networks, old_networks);
    Ok(StartingAgent { agent, config: options.config, left, networks, notices })
}

impl StartingAgent {
    /// The handle of the agent. What it reports of jobs and allocations is valid from the first
    /// stage on that [`ostler_control::AgentStage::is_restored`] accepts, and nothing may be
    /// changed before.
    #[must_use]
    pub const fn agent(&self) -> &AgentHandle {
        &self.agent
    }

    /// Load the plugins, take over what earlier agents left, and follow all of it.
    ///
    /// # Errors
    /// See [`AgentError`]; the agent has left then.
    pub async fn into_ready(self) -> Result<AgentHandle, AgentError> {
        let agent = self.agent.clone();
        match self.finish().await {
            Ok(()) => Ok(agent),
            Err(error) => {
                agent.shutdown().await;
                Err(error)
            }
        }
    }

    async fn finish(self) -> Result<(), AgentError> {
        let Self { agent, config, left, networks, mut notices } = self;
        let embedded = !agent.0.mode.serves();
        for notice in &notices {
            tracing::info!("{notice}");
        }
        let (told, in_use) = oneshot::channel();
        let loading = loading::run(agent.clone(), config.clone(), told);
        let mut loading = agent.0.beside.spawn(loading);
        if embedded {
            // An error means that loading failed, which its result reports below.
            let _in_use = in_use.await;
            agent.restore(left).await?;
        } else {
            let _late = clock::timeout(RESTORE_WALL, in_use).await;
            agent.restore(left).await?;
            agent.watch_held();
            agent.0.control.set_ready(Some(policy(config.gc))).await;
        }
        agent.sweep_networks(networks.0, networks.1);
        refresh_node(&agent, config.client);
        let loaded = if embedded {
            Some(loading.await)
        } else {
            clock::timeout(READY_WALL, &mut loading).await
        };
        match loaded {
            Some(loaded) => {
                notices.extend(loaded.map_err(|_| AgentError::GivenUp("loading plugins"))??);
            }
            None => tracing::warn!(
                plugins = agent.0.node.current().loading.join(", "),
                "plugins are still being loaded: their tasks wait"
            ),
        }
        if !embedded {
            // An error means that the runtime ends.
            let _later = tokio::task::spawn_blocking(memory::give_back);
            agent.spawn_beside(trim_heap(agent.0.ended.clone()));
        }
        // This is set once, so nothing is there yet.
        let _second = agent.0.notices.set(notices);
        if embedded {
            agent.0.control.set_ready(None).await;
        }
        agent.follow_jobs_dir();
        Ok(())
    }
}

/// Measures how full the disk is, and how much allocations use: in their directories, and in files
/// that their processes hold open.
fn gauge(data_dir: &Path, processes: ProcessHost) -> FsGauge {
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

/// The rules of garbage collection, from the configuration.
pub(super) fn policy(config: GcConfig) -> GcPolicy {
    let default = GcPolicy::default();
    GcPolicy {
        interval: config.interval.unwrap_or(default.interval),
        disk_usage_percent: config.disk_usage_percent.unwrap_or(default.disk_usage_percent),
        inode_usage_percent: config.inode_usage_percent.unwrap_or(default.inode_usage_percent),
        max_allocs: config.max_allocs.unwrap_or(default.max_allocs),
        parallel: config.parallel.unwrap_or(default.parallel),
    }
}

/// Raise the limit of open files as far as possible. An agent with too few files says so and does
/// not start, because its API could take no connection.
fn raise_files() -> Result<(), AgentError> {
    match descriptors::raise_limit() {
        Ok(Some(limit)) if limit < AGENT_OPEN_FILES_MIN => Err(AgentError::FewFiles { limit }),
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised: fewer tasks fit");
            Ok(())
        }
    }
}

/// Keep the facts about the machine fresh until the agent ends.
fn refresh_node(agent: &AgentHandle, client: ClientConfig) {
    let dir = agent.0.data_dir.clone();
    let (node, processes) = (agent.0.node.clone(), agent.0.services.processes.clone());
    let look = move || {
        let (dir, client, node) = (dir.clone(), client.clone(), node.clone());
        let processes = processes.clone();
        async move {
            let looked = tokio::task::spawn_blocking(move || {
                // A core may have been switched on or off.
                let cores = node_cores(&processes);
                node.update(|view| view.set_cores(cores));
                node_facts(&dir, &client)
            });
            looked.await.map_err(|_| refresh::NodeFingerprintError)
        }
    };
    agent.spawn_beside(refresh::keep_fresh(agent.0.node.clone(), agent.0.ended.clone(), look));
}

/// Give back memory that past allocations and requests freed, until the agent ends.
async fn trim_heap(ended: CancellationToken) {
    let mut trimmer = HeapTrimmer::default();
    while ended.run_until_cancelled(clock::sleep(HEAP_LOOK_INTERVAL)).await.is_some() {
        let looked = tokio::task::spawn_blocking(move || {
            let freed = trimmer.trim_where_due();
            (trimmer, freed)
        });
        let Ok((looked, freed)) = looked.await else { return };
        trimmer = looked;
        if let Some(bytes) = freed {
            tracing::debug!(bytes, "freed memory was given back to the kernel");
        }
    }
}

/// A function that ends a process of an agent that crashed. It returns whether the process was
/// alive. A process of another data directory, of which this one is a copy, is left alone.
fn process_ender(
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

async fn node_view(options: &AgentOptions, data_dir: &Path) -> Result<NodeView, AgentError> {
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
async fn sandbox(options: &AgentOptions, data_dir: &Path) -> Result<Arc<Sandbox>, AgentError> {
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

async fn host_services(
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
