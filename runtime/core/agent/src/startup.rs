//! The order in which the parts of an agent start.
//!
//! ```text
//! begin_start
//!   claim_data_dir    the directory and its lock
//!   open_parts        state, node and sandbox, side by side
//!   find_leftovers    what earlier agents left: records, runs that live, the hosts that know them
//!   record_start      this node and this boot on record
//!   unowned_dirs      directories without a record; nothing is removed yet
//!   build_managers    who asks drivers and devices, and who runs plugins
//!   build_context     users, networks, namespaces: the node as its allocations share it
//!   start_control     the owner of jobs and allocations
//!   assemble          the handle ─► the agent can be asked
//! into_ready
//!   plugins (see `loading`) ─ a while ─► restored ─► jobs are taken
//!     └─ in use, asked ─ a longer while ─► said to be ready ─► the jobs directory
//! ```

mod build;
mod hosts;
mod upkeep;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::build::{Managers, SharedParts, build_context, build_managers, start_control};
use self::hosts::{host_services, node_view, process_ender, raise_files, sandbox};
use self::upkeep::refresh_node;
use super::data_dir::{self, lag_notice, live_runs, open_state, unowned_dirs};
use super::held_runs::{HeldRuns, LiveRuns};
use super::restore::RestoredState;
use super::{
    AgentConfig, AgentError, AgentHandle, AgentInner, AgentMode, AgentOptions, OpenState, loading,
};
use ostler_control::gc::choice::GcPolicy;
use ostler_control::node_records::{self, NodeRecords};
use ostler_control::{ControlHandle, ControlQueue};
use ostler_jobsdir::JobsDir;
use ostler_model::clock;
use ostler_model::config::GcConfig;
use ostler_model::ids::AllocId;
use ostler_network::AllocNetworks;
use ostler_node::NodeView;
use ostler_plugin::host::HostServices;
use ostler_process::{identity, memory};
use ostler_sandbox::Sandbox;
use ostler_state::{DataDirLock, StateStore};

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

/// What earlier agents left, and the hosts of this agent that know what of it lives.
struct Leftovers {
    records: NodeRecords,
    services: HostServices,
    live: LiveRuns,
    /// The state lacks changes that were acknowledged, so nothing is removed by it.
    lacks: bool,
}

pub(super) async fn begin_start(
    options: AgentOptions,
    open: OpenState,
) -> Result<StartingAgent, AgentError> {
    let mut notices = Vec::new();
    let (data_dir, lock) = claim_data_dir(&options, &mut notices).await?;
    let (state, view, sandbox) = open_parts(&options, &data_dir, open, &mut notices).await?;
    let mut left = find_leftovers(&options, &data_dir, &state, sandbox, &mut notices).await?;
    record_start(&options, &state, &view, &mut left, &mut notices).await?;
    let orphans = unowned_dirs(&data_dir, &left.records, &left.live, &state).await?;
    let queue = ControlQueue::new();
    let managers = build_managers(&options, &data_dir, view, &left.services, &queue)?;
    let shared = build_context(&options, &data_dir, state, &managers, &left, &mut notices).await?;
    let control = start_control(&data_dir, &managers, &shared, &left, queue);
    let config = options.config.clone();
    let networks = (Arc::clone(&shared.networks), shared.old_networks.clone());
    let Leftovers { records, services, live, lacks } = left;
    let left = RestoredState {
        records,
        sweep: (!lacks && !live.has_nameless()).then(|| live.processes().to_vec()),
        wasm_runs: live.wasm_runs().clone(),
    };
    let claimed = (data_dir, lock);
    let agent = assemble(options, claimed, services, live, managers, shared, control);
    let removal = orphans.remove(agent.0.ended.clone());
    *agent.0.unowned.lock().unwrap_or_else(PoisonError::into_inner) = removal;
    Ok(StartingAgent { agent, config, left, networks, notices })
}

/// Make the data directory, and take its lock.
async fn claim_data_dir(
    options: &AgentOptions,
    notices: &mut Vec<String>,
) -> Result<(PathBuf, DataDirLock), AgentError> {
    let (data_dir, closed) = data_dir::prepare(&options.data_dir)?;
    notices.extend(closed);
    let serves = options.mode.serves();
    if serves {
        raise_files()?;
    }
    let mut lock = data_dir::claim(&data_dir).await?;
    if serves {
        lock.note_serving()?;
    }
    data_dir::seed_devices(&data_dir)?;
    Ok((data_dir, lock))
}

/// Open the state, look at the node and reserve memory for guests, all at the same time: one waits
/// for the disk, one for the kernel, and none needs another.
async fn open_parts(
    options: &AgentOptions,
    data_dir: &Path,
    open: OpenState,
    notices: &mut Vec<String>,
) -> Result<(StateStore, NodeView, Arc<Sandbox>), AgentError> {
    let (state, view, sandbox) = tokio::join!(
        open_state(data_dir, open, notices),
        node_view(options, data_dir),
        sandbox(options, data_dir),
    );
    Ok((state?, view?, sandbox?))
}

/// Read what earlier agents left: their records, of which crashed runs are ended, and the runs that
/// live. Nothing is removed yet.
async fn find_leftovers(
    options: &AgentOptions,
    data_dir: &Path,
    state: &StateStore,
    sandbox: Arc<Sandbox>,
    notices: &mut Vec<String>,
) -> Result<Leftovers, AgentError> {
    let mut records = NodeRecords::read(state, options.clock.now())?;
    notices.extend(records.take_notices());
    let (embedded, end_process) = (!options.mode.serves(), process_ender(data_dir));
    notices.extend(records.clear(state, embedded, options.clock.now(), &end_process).await?);
    let (services, workers) = host_services(options, data_dir, sandbox, notices).await?;
    // This is read before anything is removed or started.
    let lacks = state.open_report().is_incomplete();
    let (live, records) = live_runs(data_dir, records, workers, lacks, options.clock.now()).await?;
    notices.extend(lag_notice(state.open_report(), data_dir));
    notices.extend(live.notices(data_dir));
    Ok(Leftovers { records, services, live, lacks })
}

/// Put this node on record, and this boot of its machine.
async fn record_start(
    options: &AgentOptions,
    state: &StateStore,
    view: &NodeView,
    left: &mut Leftovers,
    notices: &mut Vec<String>,
) -> Result<(), AgentError> {
    let now = options.clock.now();
    notices.extend(node_records::register_node(state, view.id, &view.name, left.lacks, now).await?);
    if options.mode.serves() {
        match identity::boot_id() {
            Ok(boot) => {
                left.records.prepare_boot(state, &boot, options.clock.now()).await?;
            }
            Err(error) => tracing::warn!(%error, "whether the machine was restarted is not known"),
        }
    }
    Ok(())
}

/// Put the parts together under the handle of the agent.
fn assemble(
    options: AgentOptions,
    (data_dir, lock): (PathBuf, DataDirLock),
    services: HostServices,
    live: LiveRuns,
    managers: Managers,
    shared: SharedParts,
    (control, owner): (ControlHandle, JoinHandle<()>),
) -> AgentHandle {
    let AgentOptions { config, mode, socket_dir, .. } = options;
    let Managers { publisher, board, watcher, drivers, devices, runtime, .. } = managers;
    let SharedParts { context, namespaces, variables, .. } = shared;
    let has_servers = !config.cluster.servers.is_empty();
    let state_age = context.state.open_report().age;
    let jobs_dir = config.jobs_dir.clone().filter(|_| mode.serves());
    let ended = CancellationToken::new();
    AgentHandle(Arc::new(AgentInner {
        data_dir,
        socket_dir,
        remote_exec: AtomicBool::new(!config.cluster.disable_remote_exec),
        reloading: super::reload::ReloadState::new(config),
        namespaces,
        node: publisher,
        board,
        plugins: OnceLock::new(),
        meters: Mutex::default(),
        runtime,
        watcher,
        notices: OnceLock::new(),
        drivers,
        devices,
        services,
        context,
        variables,
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
        mode,
        // This holds from the first request on, before the node has joined.
        joined: AtomicBool::new(mode == AgentMode::Durable && has_servers),
        lock,
    }))
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
            memory::give_back_from_now_on();
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
