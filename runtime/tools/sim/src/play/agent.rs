//! An agent as it is shipped, over the world.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::disk::SimDisk;
use crate::devices::SimDevices;
use crate::drivers::{DRIVER, PREPARED};
use crate::files::{DIR, SimFiles};
use crate::plan::{ATTEMPTS, Act, TakesOver};
use crate::world::{PREPARES, World};
use ostler_control::gc::choice::{FsUse, GcPolicy};
use ostler_control::gc::gauge::DiskGauge;
use ostler_control::machine::LEAVE_WALL_MAX;
use ostler_control::node_records::{self, NodeRecords};
use ostler_control::orphan_dirs;
use ostler_control::unowned_runs::UnownedRuns;
use ostler_control::variables::NodeVariables;
use ostler_control::{ControlHandle, ControlOptions, ControlQueue};
use ostler_device::manager::{DeviceManager, DeviceOptions};
use ostler_health::refresh::Refresher;
use ostler_jobsdir::JobsDir;
use ostler_lifecycle::alloc::dir::AllocDirError;
use ostler_lifecycle::alloc::{self, AllocDiskUse, DiskMeter, DiskWatch};
use ostler_lifecycle::context::NodeContext;
use ostler_lifecycle::services::NodeServices;
use ostler_lifecycle::task;
use ostler_lifecycle::task::late_dirs::LateDirsQueue;
use ostler_model::clock::{self, Clock};
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::{AllocId, GroupName, JobId, PluginName, TaskName};
use ostler_model::job::{
    EphemeralDisk, HealthPolicy, Job, JobKind, Lifecycle, LifecycleHook, LogConfig, RestartMode,
    RestartPolicy, Task, TaskGroup,
};
use ostler_model::json::JsonObject;
use ostler_model::ports::{BoxFuture, Drivers, ProcessIdentity, Workloads as _};
use ostler_model::resources::{DeviceRequest, Resources};
use ostler_model::rng::Rng;
use ostler_model::rollout::{DelayFunction, ReschedulePolicy, UpdatePolicy};
use ostler_model::time::Timestamp;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{DriverView, NodeId, NodePublisher, NodeTotals, NodeView};
use ostler_state::{StateError, StateStore};

/// Of every task.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent.
pub(crate) struct Agent {
    pub(crate) control: ControlHandle,
    pub(crate) state: StateStore,
    pub(crate) node: NodePublisher,
    pub(crate) rng: Rng,
    pub(crate) clock: Clock,
    owner: JoinHandle<()>,
    pub(super) devices: DeviceManager,
    pub(crate) jobs_dir: JobsDir,
    ended: CancellationToken,
    follower: Option<JoinHandle<()>>,
}

/// Where an agent starts, and over what.
pub(crate) struct AgentPlace<'a> {
    pub(crate) world: &'a World,
    pub(crate) disk: &'a Arc<SimDisk>,
    pub(crate) dir: &'a Path,
    /// Its jobs directory, where it has one.
    pub(crate) files: Option<&'a SimFiles>,
    /// As it is.
    pub(crate) node: NodeView,
    /// More allocations than so many are collected when they have ended.
    pub(crate) max_allocs: u32,
}

/// There is always room.
struct Roomy;

impl DiskGauge for Roomy {
    fn measure(&self, _settle: bool) -> std::io::Result<FsUse> {
        Ok(FsUse::default())
    }
}

impl DiskMeter for Roomy {
    /// The disk of the machine is no part of the simulation.
    fn filled_bytes(&self, _: &Path) -> Option<u64> {
        None
    }

    /// Directories of simulated tasks are empty: walking each once a minute took most of the time.
    fn measure_alloc(
        &self,
        _: &Path,
        _: AllocId,
        _: &CancellationToken,
    ) -> Result<AllocDiskUse, AllocDirError> {
        Ok(AllocDiskUse { complete: true, ..AllocDiskUse::default() })
    }
}

impl Agent {
    /// Start over what earlier ones left.
    pub(crate) async fn start(place: AgentPlace<'_>) -> Result<Self, String> {
        let AgentPlace { world, disk, dir, files, node: view, max_allocs } = place;
        let world = world.clone();
        let text = |error: &dyn std::error::Error| format!("the agent does not start: {error}");
        let state = disk.open().map_err(|error| text(&error))?;
        world.lock().store = Some(state.clone());
        let seed = world.lock().rng.number_below(u64::MAX);
        let rng = Rng::from_seed(seed);
        let of_day = world.clone();
        let clock = Clock::from_fn(move || of_day.clock());
        let restored = restore(&world, &state, &view, clock.now()).await;
        let recorded = restored.map_err(|error| text(&error))?;
        let kept = NodeVariables::load(state.clone(), clock.clone(), recorded.index()).await;
        let (variables, _unread) = kept.map_err(|error| text(&error))?;
        let unowned =
            orphan_dirs::find_orphan_dirs(dir.join("allocs"), &recorded.recorded_ids(), &state);
        let node = NodePublisher::new(view);
        let refresher = Refresher::new(ChangeWatcher::new(), rng.clone());
        let queue = ControlQueue::new();
        let options = DeviceOptions {
            clock: clock.clone(),
            book: Some(queue.ledger_book()),
            ..DeviceOptions::default()
        };
        let devices = DeviceManager::new(node.clone(), options, refresher);
        let name = PluginName::new("sim-gpu").map_err(|error| text(&error))?;
        let alloc_root = dir.join("allocs");
        let context = NodeContext {
            kill_timeout_max: ostler_model::limits::KILL_TIMEOUT_MAX,
            disk_watch: DiskWatch::new(alloc_root.clone(), Arc::new(Roomy), clock.clone()),
            late_dirs: LateDirsQueue::default(),
            alloc_root,
            drivers: Arc::new(world.clone()) as Arc<dyn Drivers>,
            workloads: Arc::new(world.clone()),
            devices: Arc::new(devices.clone()),
            artifacts: None,
            state: state.clone(),
            clock: clock.clone(),
            rng: rng.clone(),
            users: Default::default(),
            secrets_in_memory: false,
            services: NodeServices::default(),
            variables: Arc::new(variables),
            other_nodes: None,
            networks: Arc::new(ostler_model::network::HostNetworkOnly),
            alloc_hooks: alloc::hooks::standard(),
            task_hooks: task::hooks::standard(),
        };
        let options = ControlOptions {
            node: Arc::new(context),
            publisher: node.clone(),
            devices: devices.clone(),
            gauge: Arc::new(Roomy),
            port_in_use: Arc::new(|_| false),
            kill_tasks: Arc::new(kill_tasks(world.clone())),
            recorded_index: recorded.index(),
            holds: UnownedRuns::default(),
        };
        let (control, owner) = ostler_control::spawn(options, queue);
        if let Some(first) = devices.add(SimDevices { world: world.clone(), name }) {
            drop(tokio::spawn(first));
        }
        drop(unowned.remove(CancellationToken::new()));
        let (restored, owners) = recorded.into_restored(true);
        control.restore(restored, owners).await.map_err(|error| text(&error))?;
        let policy = GcPolicy { max_allocs, ..GcPolicy::default() };
        control.set_ready(Some(policy)).await;
        let (jobs_dir, ended) = (JobsDir::new(PathBuf::from(DIR)), CancellationToken::new());
        let follower = files.map(|files| {
            let (dir, control) = (jobs_dir.clone(), control.clone());
            tokio::spawn(dir.follow(files.clone(), control, |_| Ok(()), |_| Ok(()), ended.clone()))
        });
        Ok(Self { control, state, node, rng, clock, owner, devices, jobs_dir, ended, follower })
    }

    /// Leave in order.
    pub(crate) async fn leave(self, drain: bool) {
        if drain {
            self.control.drain(Duration::from_secs(30)).await;
        }
        self.ended.cancel();
        if let Some(follower) = self.follower {
            drop(clock::timeout(LEAVE_WALL_MAX, follower).await);
        }
        self.control.leave().await;
        self.control.leave_allocs().await;
        self.devices.shutdown().await;
        self.state.close().await;
        self.control.close().await;
        drop(self.owner.await);
    }
}

/// What an earlier agent left, as every start takes it: in the order of the agent's own.
async fn restore(
    world: &World,
    state: &StateStore,
    view: &NodeView,
    now: Timestamp,
) -> Result<NodeRecords, StateError> {
    let mut found = NodeRecords::read(state, now)?;
    for notice in found.take_notices() {
        world.note(&notice);
    }
    found.complete_runs(|run| world.lock().notes.get(run).cloned());
    let processes = world.clone();
    let end = move |run, identity: ProcessIdentity| -> BoxFuture<'static, std::io::Result<bool>> {
        let world = processes.clone();
        Box::pin(async move { Ok(world.end_leftovers(&run, &[identity]).await) })
    };
    for said in found.clear(state, false, now, &end).await? {
        world.note(&said);
    }
    node_records::register_node(
        state,
        view.id,
        &view.name,
        state.open_report().is_incomplete(),
        now,
    )
    .await?;
    let boot_id = world.lock().boot_id();
    found.prepare_boot(state, &boot_id, now).await?;
    Ok(found)
}

fn kill_tasks(world: World) -> impl Fn() + Send + Sync {
    move || {
        if world.door("kill all tasks") {
            let mut inner = world.lock();
            let all: Vec<_> = inner.runs.keys().cloned().collect();
            for id in all {
                let exit = ostler_model::task::RawExit { signal: Some(9), ..Default::default() };
                inner.end(&id, exit);
            }
        }
    }
}

pub(crate) fn view() -> NodeView {
    let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "simulated");
    view.resources = NodeTotals { cpu_mhz: 800, memory_mb: 800 };
    let health = Health { state: HealthState::Healthy, reason: String::new() };
    if let Ok(name) = PluginName::new(DRIVER) {
        view.drivers.insert(name, DriverView { health, ..DriverView::default() });
    }
    view
}

/// Successors that a node comes to rest with.
const FEW: ReschedulePolicy = ReschedulePolicy {
    attempts: 2,
    interval: Duration::from_secs(24 * 3_600),
    delay: Duration::from_secs(20),
    delay_function: DelayFunction::Exponential,
    max_delay: Duration::from_secs(60),
    unlimited: false,
};

/// The job that is registered so: one group with a task, and perhaps one that prepares for it.
pub(crate) fn job(name: &str, act: &Act) -> Option<Job> {
    let Act::Register { count, version, device, prepares, takes_over, batch, .. } = *act else {
        return None;
    };
    let request = DeviceRequest {
        name: "sim/gpu".to_owned(),
        count: 1,
        constraints: Vec::new(),
        affinities: Vec::new(),
    };
    let mut env = BTreeMap::from([("VERSION".to_owned(), version.to_string())]);
    if prepares {
        env.insert(PREPARED.to_owned(), String::new());
    }
    let task = Task {
        name: TaskName::new("t").ok()?,
        driver: PluginName::new(DRIVER).ok()?,
        config: JsonObject::default(),
        env,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        resources: Resources {
            cpu_mhz: 100,
            memory_mb: 100,
            devices: if device { vec![request] } else { Vec::new() },
            ..Resources::default()
        },
        restart: RestartPolicy {
            attempts: u32::try_from(ATTEMPTS.0).ok()?,
            interval: ATTEMPTS.1,
            delay: Duration::from_secs(5),
            mode: RestartMode::Fail,
        },
        kill_timeout: KILL_TIMEOUT,
        kill_signal: None,
        leader: false,
        lifecycle: None,
        logs: LogConfig::default(),
        user: None,
        shutdown_delay: None,
        payload: None,
        volume_mounts: Vec::new(),
        artifacts: Vec::new(),
        affinities: Vec::new(),
        templates: Vec::new(),
    };
    let before = Task {
        name: TaskName::new(PREPARES).ok()?,
        env: BTreeMap::new(),
        resources: Resources { cpu_mhz: 100, memory_mb: 100, ..Resources::default() },
        lifecycle: Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: false }),
        ..task.clone()
    };
    let tasks = if prepares { vec![task.into(), before.into()] } else { vec![task.into()] };
    let update = match takes_over {
        TakesOver::AtOnce => None,
        TakesOver::Rolling(max_parallel) => {
            Some(UpdatePolicy { max_parallel, ..UpdatePolicy::default() })
        }
        TakesOver::Canaries(canary) => {
            Some(UpdatePolicy { canary, auto_promote: true, ..UpdatePolicy::default() })
        }
    };
    let group = TaskGroup {
        name: GroupName::new("g").ok()?,
        count,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        network: None,
        tasks,
        shutdown_delay: None,
        ephemeral_disk: EphemeralDisk::default(),
        health: update.map(|_| HealthPolicy::default()),
        services: Vec::new(),
        max_run_duration: None,
        update,
        reschedule: update.map_or(ReschedulePolicy::NEVER, |_| FEW),
        placement: ostler_model::placement::Placement::default(),
        scaling: None,
        stop_after_disconnect: None,
        migrate_parallel: 1,
        volumes: BTreeMap::new(),
    };
    Some(Job {
        id: JobId::new(name).ok()?,
        name: name.to_owned(),
        kind: if batch { JobKind::Batch } else { JobKind::Service },
        priority: 50,
        datacenters: vec!["*".to_owned()],
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        groups: vec![group],
        source_dir: None,
        placement: ostler_model::placement::Placement::default(),
        all_at_once: false,
        parent: None,
    })
}
