//! The process: what is born in which order, and the one handle through which the outside acts.
//!
//! ```text
//! Agent::begin:  data dir ─ lock ─ state ─ leftovers of a crashed agent ─ node ─ sandbox ─ host
//!                ─► AgentHandle: can be asked      (its process serves the API from here on)
//! Begun::ready:  plugins (loading) ┬─► allocations restored ─► jobs are taken
//!                                  └─► in use, asked, followed
//! AgentHandle:   submit(job) ─ check ─ admission ─ state.put(alloc, ledger) ─ alloc runner ─► JobHandle
//!                JobHandle ─ stop, wait ─► JobResult
//! ```
//! `cli` and `api` touch only [`AgentHandle`] and what it hands out.

pub mod admission;
pub mod catalogue;
mod change;
mod collect;
mod device_report;
mod devices;
pub mod ended;
mod error;
mod follow;
pub mod gc;
mod held;
pub mod inspect;
mod job;
mod jobs;
mod jobs_dir;
mod keeper;
mod leave;
mod leftovers;
mod loading;
pub mod offline;
mod plugin_status;
pub mod ports;
mod proposal;
mod quarantine;
mod rebooted;
pub mod reconcile;
mod records;
mod registry;
mod remember;
mod restore;
mod revert;
mod startup;
mod submitted;
mod turns;
mod unowned;
mod unwritten;
pub mod upgrade;
pub mod views;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use ostler_device::manager::DeviceManager;
use ostler_jobspec::suggest;
use ostler_lifecycle::alloc::{AllocHandle, AllocRunner, AllocRunnerConfig, PreviousAlloc};
use ostler_lifecycle::task::env::NodeFacts;
use ostler_model::alloc::Allocation;
use ostler_model::clock::Clock;
use ostler_model::ids::{AllocId, PluginName};
use ostler_model::job::Job;
use ostler_model::limits::{JOB_TASKS_MAX, KILL_TIMEOUT_MAX};
use ostler_model::ports::{Drivers as _, PluginCallError, Workloads};
use ostler_model::rng::Rng;
use ostler_node::watch::Watcher;
use ostler_node::{Node, NodeView};
use ostler_plugin::PluginRuntime;
use ostler_plugin::drivers::manager::DriverManager;
use ostler_plugin::host::HostServices;
use ostler_state::{DataDirLock, StateError, StateStore, holder as lock_holder};

pub use admission::DeviceExplanation;
pub use catalogue::RAW_EXEC;
pub use catalogue::{
    ObtainError, PluginEntry, PluginStatus, PullReport, SignatureReport, VerifyReport, pull, verify,
};
pub use device_report::{DeviceGroupReport, DeviceHolder, DeviceReport};
pub use error::{AgentError, AllocError, JobError, SubmitError};
pub use held::{EndRunError, HeldReport, HeldRun};
pub use job::{AllocResult, JobHandle, JobResult};
pub use ostler_device::matching::{
    AffinityResult as DeviceAffinity, Considered as DeviceCandidate, Outcome as DeviceOutcome,
};
pub use ostler_lifecycle::alloc::RestartScope;
use ostler_model::config::AgentConfig;
pub use ostler_plugin::meter::PluginActivity;
pub use ostler_plugin::policy::{PluginState, Quarantine};
pub use ostler_state::{Holder, LockError};
pub use plugin_status::{LiftReport, PluginStatusReport, RecordReport};
pub use upgrade::{
    Outcome as UpgradeOutcome, Release, UpgradeError, UpgradeOptions, UpgradeReport, UpgradeStatus,
};
pub use views::{
    AllocView, BlockedPlacement, Collected, GroupCounts, GroupPlan, JobStatus, JobView,
    JobsDirEntry, JobsDirReport, LeaveMode, PlaceCounts, Plan, Readiness, RegisterOptions,
    Registered, Stage, StopOptions, Stopped,
};

pub use startup::Begun;

use admission::{Admission, Placing};
use loading::InUse;
use records::Follower;
use registry::Registry;
use submitted::Submitted;
use turns::Turns;

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// State, allocations, compiled code. Created when absent; one agent at a time.
    pub data_dir: PathBuf,
    /// What the operator configured.
    pub config: AgentConfig,
    /// Native tasks die with the agent (embedded agents) instead of living on.
    pub kill_with_agent: bool,
    /// Program that answers `__compile` and `__supervise`; this program unless given.
    pub compiler: Option<PathBuf>,
    /// Where compiled code is kept; in the data directory unless given.
    pub code_dir: Option<PathBuf>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
}

/// Opens the state file at a path; may block.
pub type OpenState = Box<dyn FnOnce(&Path) -> Result<StateStore, StateError> + Send>;

/// Starts agents.
pub struct Agent;

impl Agent {
    /// Start an agent. Needs a multi-thread tokio runtime, which becomes the control runtime.
    ///
    /// # Errors
    /// See [`AgentError`]; nothing is left running then.
    pub async fn start(options: AgentOptions) -> Result<AgentHandle, AgentError> {
        Self::begin(options).await?.ready().await
    }

    /// Begin to start an agent: the data directory is its own, and it can be asked how far it is.
    /// Plugins and what earlier agents left come with [`Begun::ready`].
    ///
    /// # Errors
    /// See [`AgentError`]; nothing is left running then.
    pub async fn begin(options: AgentOptions) -> Result<Begun, AgentError> {
        startup::begin(options, Box::new(StateStore::open)).await
    }

    /// Who has a data directory now; none when nobody has, or it cannot be told.
    #[must_use]
    pub fn holder(data_dir: &Path) -> Option<Holder> {
        lock_holder(data_dir)
    }

    /// As [`Agent::start`], over a state store that is opened in another way: with faults beneath
    /// it, to see what an agent that dies there leaves behind.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub async fn start_over(
        options: AgentOptions,
        open_state: OpenState,
    ) -> Result<AgentHandle, AgentError> {
        startup::begin(options, open_state).await?.ready().await
    }
}

/// A `config` that does not fit its driver's schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigProblem {
    /// Task group.
    pub group: String,
    /// Task.
    pub task: String,
    /// Dotted path inside `config`; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What may have been meant instead of the last name of the path.
    #[serde(default)]
    pub suggestion: Option<String>,
}

impl std::fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, task, path, message, suggestion } = self;
        let dot = if path.is_empty() { "" } else { "." };
        write!(f, "group {group}, task {task}, config{dot}{path}: {message}")?;
        match suggestion {
            Some(name) => write!(f, "; did you mean {name}?"),
            None => Ok(()),
        }
    }
}

/// Everything a running agent consists of.
struct Inner {
    data_dir: PathBuf,
    node: Node,
    /// Plugins on their way.
    board: catalogue::Board,
    /// Once all were looked at.
    plugins: OnceLock<InUse>,
    meters: Mutex<catalogue::Meters>,
    runtime: PluginRuntime,
    watcher: Watcher,
    /// Once the agent is ready.
    notices: OnceLock<Vec<String>>,
    drivers: DriverManager,
    devices: DeviceManager,
    workloads: Arc<dyn Workloads>,
    services: HostServices,
    state: StateStore,
    /// Absent in an embedded agent.
    gc: OnceLock<gc::GcHandle>,
    /// Once plugins have said what they are.
    follower: OnceLock<Follower>,
    admission: Mutex<Admission>,
    registry: Mutex<Registry>,
    /// The node as its allocations see it, and the view it was read off.
    facts: Mutex<Option<(Arc<NodeView>, Arc<NodeFacts>)>>,
    stage: watch::Sender<Stage>,
    /// Of the jobs directory; absent without one.
    jobs_dir: Mutex<Option<JobsDirReport>>,
    /// Look at the jobs directory now.
    rescan: Arc<Notify>,
    /// Plugins that have not answered their first fingerprint.
    waiting: Mutex<BTreeSet<PluginName>>,
    /// Runs that are alive and not owned.
    holds: Mutex<held::Holds>,
    /// Changes of one job.
    turns: Turns,
    /// Held while a change is decided, its records are queued and its owners are made: an older record
    /// never follows a newer one, and every allocation that the next one decides on has an owner.
    order: tokio::sync::Mutex<()>,
    /// Removes directories without a record; see [`unowned`].
    unowned: Mutex<Option<JoinHandle<()>>>,
    /// Held while the device ledger is read and queued. Inside `order`, never the other way: a task
    /// that ends writes it, and `order` may be held while a task ends.
    ledger: tokio::sync::Mutex<()>,
    /// Held while records of ended places are made and queued; inside no other.
    places: tokio::sync::Mutex<()>,
    /// Something about a quarantine changed.
    quarantined: Arc<Notify>,
    /// Something became free, or may be placed now.
    wake: Arc<Notify>,
    /// Ends what runs beside the agent.
    ended: CancellationToken,
    /// What does; see [`AgentHandle::beside`].
    beside: TaskTracker,
    /// What follows owners of allocations; each ends with its owner.
    followers: TaskTracker,
    kill_with_agent: bool,
    clock: Clock,
    rng: Rng,
    // Last: the directory is free when all else is gone.
    _lock: DataDirLock,
}

/// The one way to a running agent. Clones share it.
#[derive(Clone)]
pub struct AgentHandle(Arc<Inner>);

impl AgentHandle {
    /// Where state, allocations and compiled code are.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.0.data_dir
    }

    /// The node as it is now.
    #[must_use]
    pub fn node(&self) -> Arc<NodeView> {
        self.0.node.current()
    }

    /// Every plugin that was looked at, with its fate at the start; [`AgentHandle::plugins_now`] has
    /// what became of it since. None until all were looked at.
    #[must_use]
    pub fn plugins(&self) -> &[PluginEntry] {
        self.0.plugins.get().map_or(&[], |used| &used.entries)
    }

    /// What the operator should hear once: lowered pools, leftovers of a crash, records put aside.
    /// Complete when the agent is ready.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        self.0.notices.get().map_or(&[], Vec::as_slice)
    }

    /// What the state store did so far.
    #[must_use]
    pub fn state_stats(&self) -> ostler_state::Stats {
        self.0.state.stats()
    }

    /// Check every task's `config` against its driver's schema. Texts with `${…}` are checked
    /// when the task starts and their values are known.
    #[must_use]
    pub fn check(&self, job: &Job) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        for group in &job.groups {
            for task in &group.tasks {
                // A missing or unhealthy driver is admission's to report.
                let Ok(driver) = self.0.drivers.dispense(&task.driver) else { continue };
                for found in driver.validate(&task.config) {
                    if found.unknown || !depends_on_variables(task.config.map(), &found.path) {
                        problems.push(ConfigProblem {
                            group: group.name.to_string(),
                            task: task.name.to_string(),
                            path: found.path,
                            message: found.message,
                            suggestion: found.suggestion,
                        });
                    }
                }
            }
        }
        problems
    }

    /// Tasks that cannot run here now because of their driver, a sentence for each: nobody has it, or
    /// it cannot be used. The job is right, and the `config` of such a task was not checked.
    #[must_use]
    pub fn without_driver(&self, job: &Job) -> Vec<String> {
        let mut sentences = Vec::new();
        for (group, task) in job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t))) {
            let why = match self.0.drivers.dispense(&task.driver) {
                Ok(_) => continue,
                Err(PluginCallError::StillLoading { name, loading }) => {
                    format!("driver {name} is not there yet; still loading: {loading}")
                }
                Err(PluginCallError::UnknownPlugin { name, known }) => {
                    let instead = suggest::nearest(&name, known.split(", "));
                    let instead = match (instead, known.is_empty()) {
                        (Some(instead), _) => format!("; did you mean {instead}?"),
                        (None, true) => String::new(),
                        (None, false) => format!("; there are {known}"),
                    };
                    format!("this node has no driver {name}{instead}")
                }
                Err(error) => format!("{error}; the config of the task was not checked"),
            };
            sentences.push(format!("group {}, task {}: {why}", group.name, task.name));
        }
        sentences
    }

    /// Place a job on this node and start its allocations.
    ///
    /// # Errors
    /// When it does not fit, its configuration is wrong, or an allocation cannot be made durable;
    /// then nothing of it runs and nothing is held.
    pub async fn submit(&self, job: Job) -> Result<JobHandle, SubmitError> {
        self.check_all(&job)?;
        if *self.0.stage.borrow() == Stage::Leaving {
            return Err(SubmitError::Leaving);
        }
        let job = Arc::new(job);
        let placed = self.place(&job)?;
        let mut submitted = Submitted::new(self.clone(), placed.iter().map(|alloc| alloc.id));
        match self.begin(placed, &mut submitted).await {
            Ok(handles) => {
                submitted.keep();
                Ok(JobHandle::new(job, handles))
            }
            Err(error) => {
                submitted.undo().await;
                Err(error)
            }
        }
    }

    /// Everything about a job that can be checked without placing it.
    fn check_all(&self, job: &Job) -> Result<(), SubmitError> {
        let tasks: usize = job
            .groups
            .iter()
            .map(|g| g.tasks.len().saturating_mul(usize::try_from(g.count).unwrap_or(usize::MAX)))
            .fold(0, usize::saturating_add);
        if tasks > JOB_TASKS_MAX {
            return Err(SubmitError::TooManyTasks { tasks });
        }
        let problems = self.check(job);
        if problems.is_empty() { Ok(()) } else { Err(SubmitError::Config(problems)) }
    }

    /// Queue allocations with the devices they hold, start them, and see that they are durable.
    async fn begin(
        &self,
        placed: Vec<Allocation>,
        submitted: &mut Submitted,
    ) -> Result<Vec<AllocHandle>, SubmitError> {
        let order = self.in_order().await?;
        let change = self.enter(placed);
        let mark = self.queue(&change).await.map_err(SubmitError::State)?;
        let mut handles = Vec::with_capacity(change.placed.len());
        for alloc in &change.placed {
            let handle = self.run(Arc::clone(alloc))?;
            submitted.started(handle.clone());
            handles.push(handle);
        }
        drop(order);
        self.durable(&change, mark).await?;
        Ok(handles)
    }

    /// Free what an allocation holds; its devices once their plugins were told. The record may lag:
    /// at worst a device counts as held by an allocation that is over, which the next start sees.
    async fn release(&self, alloc: AllocId) {
        let _order = self.0.order.lock().await;
        let owing = self.0.devices.end_alloc(alloc);
        self.admission().end_alloc(alloc, &owing);
        match self.put_ledger().await {
            // Closed: the agent has left.
            Ok(()) | Err(StateError::Closed { .. }) => {}
            Err(error) => tracing::warn!(%alloc, %error, "release of devices not written"),
        }
    }

    fn place(&self, job: &Arc<Job>) -> Result<Vec<Allocation>, SubmitError> {
        let view = self.node();
        let rng = &self.0.rng;
        let mut new_id = || AllocId::new(rng.uuid());
        let mut placing = Placing {
            new_id: &mut new_id,
            now: self.0.clock.now(),
            rng,
            port_in_use: &ports::port_in_use,
            explain: None,
        };
        let placed = self.admission().place(job, &view, &mut placing);
        placed.map_err(|refusal| SubmitError::Refused(Box::new(refusal)))
    }

    /// Start the owner of an allocation that is entered and queued.
    fn run(&self, allocation: Arc<Allocation>) -> Result<AllocHandle, SubmitError> {
        let spawned = AllocRunner::spawn(self.runner_config(allocation));
        let handle = spawned.map_err(|error| SubmitError::Runner(error.to_string()))?;
        self.own(&handle);
        Ok(handle)
    }

    /// What the owner of an allocation needs.
    fn runner_config(&self, allocation: Arc<Allocation>) -> AllocRunnerConfig {
        let inner = &self.0;
        let previous = allocation.previous.and_then(|id| {
            let registry = self.registry();
            registry.alloc(id)?.handle.as_ref().map(PreviousAlloc::of)
        });
        AllocRunnerConfig {
            allocation,
            node: self.node_facts(),
            alloc_root: inner.data_dir.join("allocs"),
            drivers: Arc::new(inner.drivers.clone()),
            workloads: Arc::clone(&inner.workloads),
            devices: Arc::new(inner.devices.clone()),
            state: inner.state.clone(),
            clock: inner.clock.clone(),
            rng: inner.rng.clone(),
            kill_timeout_max: KILL_TIMEOUT_MAX,
            previous,
        }
    }

    /// The node as tasks see it: one copy for all allocations, as long as the node is the same.
    fn node_facts(&self) -> Arc<NodeFacts> {
        let view = self.node();
        let mut known = self.0.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let facts = match &*known {
            Some((of, facts)) if Arc::ptr_eq(of, &view) => return Arc::clone(facts),
            Some((_, facts)) => {
                let new = node_facts(&view);
                if **facts == new { Arc::clone(facts) } else { Arc::new(new) }
            }
            None => Arc::new(node_facts(&view)),
        };
        *known = Some((view, Arc::clone(&facts)));
        facts
    }

    /// Enter and follow the owner of a known allocation.
    fn own(&self, handle: &AllocHandle) {
        let newest = self.registry().alloc_mut(handle.id()).map(|entry| {
            entry.handle = Some(handle.clone());
            Arc::clone(&entry.allocation)
        });
        // What was asked while there was no owner to be told.
        if let Some(newest) = newest {
            handle.update(newest);
        }
        follow::spawn(self, handle);
    }

    /// Do something beside the agent that ends soon, or with [`Inner::ended`]; who leaves waits for it.
    fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.beside.spawn(work));
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> std::sync::MutexGuard<'_, Admission> {
        self.0.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn depends_on_variables(config: &serde_json::Map<String, serde_json::Value>, path: &str) -> bool {
    let mut parts = path.split('.');
    let mut at = parts.next().and_then(|first| config.get(first));
    for part in parts {
        at = at.and_then(|value| match part.parse::<usize>() {
            Ok(index) if value.is_array() => value.get(index),
            _ => value.get(part),
        });
    }
    at.and_then(serde_json::Value::as_str).is_some_and(|text| text.contains("${"))
}

fn node_facts(view: &NodeView) -> NodeFacts {
    NodeFacts {
        id: view.id.to_string(),
        name: view.name.clone(),
        datacenter: view.datacenter.clone(),
        class: String::new(),
        region: "global".to_owned(),
        pool: "default".to_owned(),
        attributes: view.attribute_texts(),
        meta: view.meta.clone(),
    }
}
