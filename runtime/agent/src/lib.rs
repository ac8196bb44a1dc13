//! The process: what is started in which order, and the one handle through which the outside acts.
//!
//! ```text
//! Agent::begin:  data dir ─ lock ─ state ─ leftovers of a crashed agent ─ node ─ sandbox ─ host
//!                ─► AgentHandle: can be asked      (its process serves the API from here on)
//! Begun::ready:  plugins (loading) ┬─► allocations restored ─► jobs are taken
//!                                  └─► in use, asked, followed
//! AgentHandle:   submit(job) ─ check ─ admission ─ state.put(alloc, ledger) ─ alloc runner ─► JobHandle
//!                JobHandle ─ stop, wait ─► JobResult
//! ```
//! It decides nothing about jobs and allocations: that is `ostler-control`, which it starts. It prints
//! nothing and serves nothing. Start with [`Agent`] and [`AgentHandle`]; then `startup`.

pub mod access;
pub mod alone;
mod assigned;
pub mod catalogue;
mod data_dir;
mod device_report;
mod devices;
mod disk;
mod error;
mod event_feed;
pub mod exec;
mod fetching;
mod guests;
mod held;
pub mod inspect;
mod job;
mod jobs;
mod leave;
mod loading;
mod mode;
mod namespaces;
mod networks;
mod node_cores;
pub mod offline;
mod plugin_status;
mod quarantine;
mod records;
pub mod reload;
mod restore;
mod scheduling;
pub mod session;
mod startup;
pub mod upgrade;
mod user_range;
pub mod views;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use ostler_control::namespaces::NodeNamespaces;
use ostler_control::variables::NodeVariables;
use ostler_control::{ControlHandle, no_driver};
use ostler_device::manager::DeviceManager;
use ostler_jobsdir::JobsDir;
use ostler_lifecycle::services::NodeServices;
use ostler_model::clock::Clock;
use ostler_model::config::AgentConfig;
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::{JobId, PluginName};
use ostler_model::job::{Job, Task, TaskGroup};
use ostler_model::limits::JOB_TASKS_MAX;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::{Drivers as _, PluginCallError, Workloads};
use ostler_model::rng::Rng;
use ostler_model::saved::JobOrigin;
use ostler_node::watch::Watcher;
use ostler_node::{Node, NodeView};
use ostler_plugin::PluginRuntime;
use ostler_plugin::drivers::manager::DriverManager;
use ostler_plugin::host::HostServices;
use ostler_state::{StateError, StateStore, holder as lock_holder};
use ostler_trace::Registration;

pub use catalogue::{
    ObtainError, PluginEntry, PluginStatus, PullReport, SignatureReport, VerifyReport, pull, verify,
};
pub use ostler_artifact::registry::PullProgress;

pub use device_report::{DeviceGroupReport, DeviceHolder, DeviceReport};
pub use error::AgentError;
pub use guests::GuestPool;
pub use held::{EndRunError, HeldReport, HeldRun};
pub use job::{AllocResult, JobHandle, JobResult};
pub use ostler_control::deployments::{DeploymentAsk, DeploymentError};
pub use ostler_control::namespaces::{KnownNamespace, NamespaceError};
pub use ostler_control::node_drain::{DrainAsk, NodeAsk, NodeAskError};
pub use ostler_control::reconcile::reason;
pub use ostler_control::scaling::ScaleError;
pub use ostler_control::variables::VariableError;
pub use ostler_control::{
    AllocError, AllocRef, AllocView, BlockedPlacement, ChangeOf, ChangesSeen, Collected,
    ConfigProblem, Deployed, DeviceExplanation, GroupCounts, GroupPlan, JobOptions, JobStatus,
    JobView, NotedChange, PlaceCounts, Plan, Planning, RAW_EXEC, RegisterOptions, Registered,
    Stage, StopOptions, Stopped, SubmitError,
};
pub use ostler_device::matching::{DeviceAffinity, DeviceCandidate, DeviceOutcome};
pub use ostler_events::{EVENTS_FILE, EventTopic, EventsSeen, EventsWanted, KeptEvent, Noted};
pub use ostler_health::meter::PluginActivity;
pub use ostler_health::policy::{PluginState, Quarantine};
pub use ostler_jobsdir::{JobsDirEntry, JobsDirReport};
pub use ostler_lifecycle::alloc::{CheckId, CheckResult, RestartScope};
pub use ostler_state::{DataDirLock, Holder, LockError};

pub use inspect::STATE_FILE;
pub use mode::AgentMode;
pub use plugin_status::{LiftReport, PluginStatusReport, RecordReport};
pub use startup::Begun;
pub use upgrade::{
    Outcome as UpgradeOutcome, Release, UpgradeError, UpgradeOptions, UpgradeReport, UpgradeStatus,
};
pub use views::{LeaveMode, Readiness};

use loading::InUse;
use records::Follower;

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// State, allocations, compiled code. Created when absent; one agent at a time.
    pub data_dir: PathBuf,
    /// Where commands reach it, which isolated tasks do not see, as little as the data directory; in that
    /// unless given.
    pub socket_dir: Option<PathBuf>,
    /// What the operator configured.
    pub config: AgentConfig,
    /// Whom it is there for, and what outlives it.
    pub mode: AgentMode,
    /// Program that answers `__compile` and `__supervise`; this program unless given.
    pub compiler: Option<PathBuf>,
    /// Where compiled code is kept; in the data directory unless given.
    pub code_dir: Option<PathBuf>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
    /// The other nodes of the cluster that it is to be a node of.
    pub other_nodes: Option<Arc<dyn OtherNodes>>,
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
        let open: OpenState = match options.mode {
            AgentMode::InMemory => Box::new(|_| StateStore::in_memory()),
            AgentMode::Durable | AgentMode::Embedded => Box::new(StateStore::open),
        };
        startup::begin(options, open).await
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

/// Everything a running agent consists of.
struct Inner {
    data_dir: PathBuf,
    socket_dir: Option<PathBuf>,
    kill_timeout_max: Duration,
    /// People may run commands inside tasks.
    remote_exec: AtomicBool,
    /// What of the configuration holds.
    reloading: reload::Reloading,
    namespaces: NodeNamespaces,
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
    /// Which services of allocations run.
    node_services: NodeServices,
    /// What is kept for tasks.
    variables: NodeVariables,
    state: StateStore,
    /// The owner of jobs and allocations.
    control: ControlHandle,
    /// Its task.
    owner: Mutex<Option<JoinHandle<()>>>,
    /// Once plugins have said what they are.
    follower: OnceLock<Follower>,
    /// Absent without one.
    jobs_dir: Option<JobsDir>,
    /// What happened on the node.
    events: event_feed::EventFeed,
    /// Plugins that have not answered their first fingerprint.
    waiting: Mutex<BTreeSet<PluginName>>,
    /// Runs that are alive and not owned.
    holds: Mutex<held::Holds>,
    /// Removes directories without a record; see [`ostler_control::unowned`].
    unowned: Mutex<Option<JoinHandle<()>>>,
    /// Something about a quarantine changed.
    quarantined: Arc<Notify>,
    /// Ends what runs beside the agent.
    ended: CancellationToken,
    /// It ends too when nobody has a handle any more.
    _unhandled: DropGuard,
    /// What does; see [`AgentHandle::beside`].
    beside: TaskTracker,
    mode: AgentMode,
    /// Servers say what runs here.
    joined: AtomicBool,
    clock: Clock,
    // Last: the directory is free when all else is gone.
    lock: DataDirLock,
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

    /// The services that run on this node.
    #[must_use]
    pub fn services(&self) -> &NodeServices {
        &self.0.node_services
    }

    /// The variables that are kept for tasks and people.
    #[must_use]
    pub fn variables(&self) -> &NodeVariables {
        &self.0.variables
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

    /// Check every task's driver, and its `config` against the driver's schema. Texts with `${…}` are
    /// checked when the task starts and their values are known.
    #[must_use]
    pub fn check(&self, job: &Job) -> Vec<ConfigProblem> {
        let mut problems = self.without_such_driver(job);
        problems.extend(self.check_configs(job));
        problems
    }

    /// Tasks of drivers that nobody has here, nor will have: neither are they on their way, nor is there a
    /// plugin of that name that could not be loaded.
    fn without_such_driver(&self, job: &Job) -> Vec<ConfigProblem> {
        let view = self.0.node.current();
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems = Vec::new();
        for (group, task) in job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t))) {
            if waiting.contains(&task.driver) {
                continue;
            }
            let Some(missing) = no_driver(&task.driver, &view) else { continue };
            problems.push(ConfigProblem {
                group: group.name.to_string(),
                task: task.name.to_string(),
                message: missing.message,
                suggestion: missing.nearest,
                of_driver: true,
                ..ConfigProblem::default()
            });
        }
        problems
    }

    fn check_configs(&self, job: &Job) -> Vec<ConfigProblem> {
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
                            of_driver: false,
                        });
                    }
                }
            }
        }
        problems
    }

    /// Tasks that cannot run here now because of their driver, a sentence for each: it is on its way, or
    /// cannot be used. The job is right, and the `config` of such a task was not checked. Drivers that
    /// nobody has are [problems](AgentHandle::check).
    #[must_use]
    pub fn without_driver(&self, job: &Job) -> Vec<String> {
        let mut sentences = Vec::new();
        for (group, task) in job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t))) {
            let why = match self.0.drivers.dispense(&task.driver) {
                Ok(_) => continue,
                Err(PluginCallError::StillLoading { name, loading }) => {
                    format!("driver {name} is not there yet; still loading: {loading}")
                }
                Err(PluginCallError::UnknownPlugin { name, .. }) => {
                    let view = self.0.node.current();
                    match view.refused_plugins.get(&name) {
                        Some(why) => {
                            format!("driver {name} waits for its plugin, which is not used: {why}")
                        }
                        // That it is not there is a problem, and told as one.
                        None => continue,
                    }
                }
                Err(error) => format!("{error}; the config of the task was not checked"),
            };
            sentences.push(format!("group {}, task {}: {why}", group.name, task.name));
        }
        sentences
    }

    /// What of a job is not done as it is written on this node, a sentence for each.
    #[must_use]
    pub fn not_as_written(&self, job: &Job) -> Vec<String> {
        let most = self.0.kill_timeout_max;
        let tasks = job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t)));
        let longer = tasks.filter(|(_, task)| task.kill_timeout > most);
        let sentence = |(group, task): (&TaskGroup, &HeldOnce<Task>)| {
            let [timeout, most] = [task.kill_timeout, most].map(humantime::format_duration);
            format!(
                "group {}, task {}: kill_timeout of {timeout} is longer than this node waits: the task is \
                 killed after {most}; max_kill_timeout in the client block of its configuration says so",
                group.name, task.name
            )
        };
        longer.map(sentence).collect()
    }

    /// Groups of a job that keep a count which their `scaling` would not allow, a sentence for each.
    #[must_use]
    pub fn counts_out_of_range(&self, job: &Job, meant: JobOptions) -> Vec<String> {
        let known = self.job(&job.id);
        let job = meant.of(job, known.as_ref().map(|view| &*view.record));
        let sentence = |group: &TaskGroup| {
            let why = group.scaling.as_ref()?.check(group.count).err()?;
            Some(format!("group {} keeps its count of {}: {why}", group.name, group.count))
        };
        job.groups.iter().filter_map(sentence).collect()
    }

    /// Run a job: all of it is placed now, or nothing of it. It ends with this agent and is not on
    /// record; when it is over, a job of its name may be run again.
    ///
    /// # Errors
    /// When it does not fit, its configuration is wrong, or an allocation cannot be made durable;
    /// then nothing of it runs and nothing is held.
    pub async fn submit(&self, job: Job) -> Result<JobHandle, SubmitError> {
        self.takes_jobs()?;
        self.accepts(&job)?;
        self.run_seen(&job.id).await;
        let (origin, job) = (JobOrigin::Run, Arc::new(job));
        let registration = Registration::begin(None, job.id.as_str(), job.namespace(), "run");
        let trace = registration.context;
        let options = RegisterOptions { origin, all_or_nothing: true, trace, ..Default::default() };
        let given_up = GivenUp { agent: Some(self), job: &job };
        let registering = self.0.control.register(Arc::clone(&job), options);
        let registered = registration.run(registering).await;
        if let Ok(done) = &registered {
            registration.done(done.version, done.answer_index(), None);
        }
        if let Err(error @ SubmitError::Unanswered { .. }) = registered {
            // What the disk may still take is taken back.
            drop(given_up);
            return Err(error);
        }
        given_up.not();
        let registered = registered?;
        let owners = registered.placed.iter().filter_map(|id| Some(self.alloc(*id)?.handle));
        Ok(JobHandle::new(job, owners.collect()))
    }

    /// The end of a run may be known to whoever waited for it before the node has seen it.
    async fn run_seen(&self, id: &JobId) {
        let mut changes = self.0.control.changes();
        loop {
            changes.borrow_and_update();
            let over = |entry: &ostler_control::AllocEntry| entry.client_status().terminal();
            let seen = self.0.control.look(|tables| tables.allocs_of(id).all(over));
            let dead = self.0.control.job(id).is_none_or(|job| job.status == JobStatus::Dead);
            if seen || !dead || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// What servers check too: everything but the namespace.
    fn check_all(&self, job: &Job) -> Result<(), SubmitError> {
        let tasks: usize = job
            .groups
            .iter()
            .map(|g| g.tasks.len().saturating_mul(usize::try_from(g.count).unwrap_or(usize::MAX)))
            .fold(0, usize::saturating_add);
        if tasks > JOB_TASKS_MAX {
            return Err(SubmitError::TooManyTasks { tasks });
        }
        refused(self.check_configs(job))
    }

    /// Has somebody here the drivers of its tasks, or may have them later? Servers know that themselves, and
    /// a job that is registered already waits for them.
    fn has_drivers(&self, job: &Job) -> Result<(), SubmitError> {
        let as_known = |view: JobView| *view.record.job == *job;
        match self.job(&job.id).is_some_and(as_known) {
            true => Ok(()),
            false => refused(self.without_such_driver(job)),
        }
    }

    /// What files of the jobs directory are asked too.
    fn check_file(&self, job: &Job) -> Result<(), SubmitError> {
        self.has_drivers(job)?;
        self.check_all(job)
    }

    /// Do something beside the agent that ends soon, or with [`Inner::ended`]; who leaves waits for it.
    fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.beside.spawn(work));
    }
}

/// A run that is given up before it was placed is stopped, and nothing of it is left.
struct GivenUp<'a> {
    agent: Option<&'a AgentHandle>,
    job: &'a Job,
}

impl GivenUp<'_> {
    fn not(mut self) {
        self.agent = None;
    }
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        let Some(agent) = self.agent else { return };
        let (control, id) = (agent.0.control.clone(), self.job.id.clone());
        let stop = async move {
            let options = StopOptions { purge: true, ..StopOptions::default() };
            // An error means that the agent leaves, which ends the job, or that the stop was
            // refused.
            drop(control.deregister(&id, options, JobOrigin::Run).await);
        };
        // Without a runtime the process is at its end: the next start closes the records.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(agent.0.beside.spawn_on(stop, &runtime));
        }
    }
}

fn refused(problems: Vec<ConfigProblem>) -> Result<(), SubmitError> {
    if problems.is_empty() { Ok(()) } else { Err(SubmitError::Config(problems)) }
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
