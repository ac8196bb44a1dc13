//! Builds what an agent consists of from what it found: the managers of plugins, the node as its
//! allocations share it, and the owner of jobs and allocations.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::Leftovers;
use super::hosts::gauge;
use crate::node_cores::node_cores;
use crate::{AgentError, AgentMode, AgentOptions, catalogue, fetching, namespaces, user_range};
use ostler_control::gc::gauge::{DiskGauge, FsGauge};
use ostler_control::namespaces::NodeNamespaces;
use ostler_control::variables::NodeVariables;
use ostler_control::{ControlHandle, ControlOptions, ControlQueue, ports};
use ostler_device::manager::{DeviceManager, DeviceOptions};
use ostler_health::refresh::Refresher;
use ostler_lifecycle::alloc::{self, DiskWatch};
use ostler_lifecycle::context::NodeContext;
use ostler_lifecycle::services::NodeServices;
use ostler_lifecycle::task;
use ostler_lifecycle::task::late_dirs::LateDirsQueue;
use ostler_model::ids::AllocId;
use ostler_model::limits::KILL_TIMEOUT_MAX;
use ostler_model::network::Networks;
use ostler_model::ports::Workloads;
use ostler_network::AllocNetworks;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodePublisher, NodeView};
use ostler_plugin::PluginRuntime;
use ostler_plugin::drivers::manager::DriverManager;
use ostler_plugin::host::{HostServices, HostWorkloads};
use ostler_plugin_tools::recording::{RecordCalls, RecordingStore};
use ostler_state::StateStore;

/// Those who ask drivers and devices, and who run plugins.
pub(super) struct Managers {
    pub(super) publisher: NodePublisher,
    pub(super) board: catalogue::Board,
    pub(super) watcher: ChangeWatcher,
    pub(super) workloads: Arc<dyn Workloads>,
    pub(super) drivers: DriverManager,
    pub(super) devices: DeviceManager,
    pub(super) runtime: PluginRuntime,
}

/// The node as its allocations share it, and those of its parts that have more uses.
pub(super) struct SharedParts {
    pub(super) context: Arc<NodeContext>,
    pub(super) networks: Arc<AllocNetworks>,
    /// The allocations that had a network before this start.
    pub(super) old_networks: BTreeSet<AllocId>,
    pub(super) namespaces: NodeNamespaces,
    pub(super) variables: NodeVariables,
    pub(super) gauge: Arc<FsGauge>,
}

/// Build those who ask drivers and devices, and who run plugins. None of them has a plugin yet.
pub(super) fn build_managers(
    options: &AgentOptions,
    data_dir: &Path,
    view: NodeView,
    services: &HostServices,
    queue: &ControlQueue,
) -> Result<Managers, AgentError> {
    let publisher = NodePublisher::new(view);
    let board = catalogue::Board::new(publisher.clone());
    let cores = node_cores(&services.processes);
    publisher.update(|view| view.set_cores(cores));
    let workloads: Arc<dyn Workloads> = Arc::new(HostWorkloads {
        processes: services.processes.clone(),
        wasm_tasks: services.wasm_tasks.clone(),
        clock: options.clock.clone(),
    });
    let watcher = ChangeWatcher::new();
    let refresher = || Refresher::new(watcher.clone(), options.rng.clone());
    let drivers = DriverManager::new(publisher.clone(), Arc::clone(&workloads), refresher());
    let device_options = DeviceOptions {
        clock: options.clock.clone(),
        stats_interval: options.config.device_stats_interval,
        book: Some(queue.ledger_book()),
    };
    let devices = DeviceManager::new(publisher.clone(), device_options, refresher());
    let runtime = PluginRuntime::new(services.clone())?;
    let recordings = RecordingStore::new(
        data_dir.join("recordings"),
        services.clock.clone(),
        services.control.clone(),
    );
    let runtime = runtime.with_observer(Arc::new(RecordCalls::into_store(recordings)));
    Ok(Managers { publisher, board, watcher, workloads, drivers, devices, runtime })
}

/// Build the node as its allocations share it.
pub(super) async fn build_context(
    options: &AgentOptions,
    data_dir: &Path,
    state: StateStore,
    managers: &Managers,
    left: &Leftovers,
    notices: &mut Vec<String>,
) -> Result<SharedParts, AgentError> {
    let networks = Arc::new(AllocNetworks::new(&options.config.client.network, data_dir));
    // These are the networks of now. Networks that are made later belong to whoever makes them.
    let old_networks = networks.remaining_allocs().await;
    let users = user_range::users(options, data_dir, notices).await?;
    let index = left.records.index();
    let kept = namespaces::load(options, &state, index, notices).await?;
    let (namespaces, variables) = kept;
    let gauge = Arc::new(gauge(data_dir, left.services.processes.clone()));
    let (alloc_root, meter) = (data_dir.join("allocs"), Arc::clone(&gauge));
    let context = NodeContext {
        disk_watch: DiskWatch::new(alloc_root.clone(), meter, options.clock.clone()),
        late_dirs: LateDirsQueue::default(),
        alloc_root,
        drivers: Arc::new(managers.drivers.clone()),
        workloads: Arc::clone(&managers.workloads),
        devices: Arc::new(managers.devices.clone()),
        artifacts: fetching::fetcher(options, data_dir, notices).await,
        state,
        clock: options.clock.clone(),
        rng: options.rng.clone(),
        kill_timeout_max: options.config.client.max_kill_timeout.unwrap_or(KILL_TIMEOUT_MAX),
        // An agent that ends with its command leaves no mount behind, whatever ends it.
        secrets_in_memory: options.mode == AgentMode::Durable,
        users,
        services: NodeServices::new(index),
        variables: Arc::new(variables.clone()),
        other_nodes: options.other_nodes.clone(),
        networks: Arc::clone(&networks) as Arc<dyn Networks>,
        alloc_hooks: alloc::hooks::standard(),
        task_hooks: task::hooks::standard(),
    };
    let context = Arc::new(context);
    Ok(SharedParts { context, networks, old_networks, namespaces, variables, gauge })
}

/// Start the owner of jobs and allocations. It has none yet.
pub(super) fn start_control(
    data_dir: &Path,
    managers: &Managers,
    shared: &SharedParts,
    left: &Leftovers,
    queue: ControlQueue,
) -> (ControlHandle, JoinHandle<()>) {
    let kill = left.services.clone();
    let options = ControlOptions {
        node: Arc::clone(&shared.context),
        publisher: managers.publisher.clone(),
        devices: managers.devices.clone(),
        gauge: Arc::clone(&shared.gauge) as Arc<dyn DiskGauge>,
        port_in_use: Arc::new(ports::port_in_use),
        kill_tasks: Arc::new(move || {
            kill.processes.kill_all();
            kill.wasm_tasks.kill_all();
        }),
        recorded_index: left.records.index(),
        holds: left.live.holds(data_dir),
    };
    ostler_control::spawn(options, queue)
}
