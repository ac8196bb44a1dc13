//! The agent's process: the order in which its parts start, and the one handle through which others
//! use it.
//!
//! ```text
//! Agent::begin_start:  data dir ─ lock ─ state ─ leftovers of a crashed agent ─ node ─ sandbox ─ host
//!                ─► AgentHandle: can be asked      (its process serves the API from here on)
//! StartingAgent::into_ready:
//!                plugins (loading) ┬─► allocations restored ─► jobs are taken
//!                                  └─► in use, asked, followed
//! AgentHandle:   submit(job) ─ check ─ admission ─ state.put(alloc, ledger) ─ alloc runner ─► JobHandle
//!                JobHandle ─ stop, wait ─► JobResult
//! ```
//! This crate decides nothing about jobs and allocations: `ostler-control`, which it starts, does
//! that. It prints nothing and serves nothing. Start reading with [`Agent`] and [`AgentHandle`],
//! then `startup`.

pub mod access;
pub mod alone;
mod assigned;
pub mod catalogue;
mod data_dir;
mod device_report;
mod disk;
mod error;
mod event_feed;
mod events;
pub mod exec;
mod fetching;
mod guests;
mod held_runs;
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
pub mod session;
mod startup;
pub mod upgrade;
mod user_range;
pub mod views;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use ostler_control::namespaces::NodeNamespaces;
use ostler_control::no_driver;
use ostler_control::variables::NodeVariables;
use ostler_device::manager::DeviceManager;
use ostler_jobsdir::JobsDir;
use ostler_lifecycle::context::NodeContext;
use ostler_lifecycle::services::NodeServices;
use ostler_model::clock::Clock;
use ostler_model::config::AgentConfig;
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::{JobId, PluginName};
use ostler_model::job::{Job, Task, TaskGroup};
use ostler_model::limits::JOB_TASKS_MAX;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::ports::{Drivers as _, PluginCallError};
use ostler_model::rng::Rng;
use ostler_model::saved::JobOrigin;
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodePublisher, NodeView};
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
pub use events::{EVENTS_FILE, EventNote, EventTopic, EventsFilter, EventsPage, KeptEvent};
pub use guests::GuestPool;
pub use held_runs::{EndRunError, HeldReport, HeldRun};
pub use job::{AllocResult, JobHandle, JobResult};
pub use ostler_control::deployments::{DeploymentAsk, DeploymentError};
pub use ostler_control::namespaces::{KnownNamespace, NamespaceError};
pub use ostler_control::node_drain::{DrainAsk, NodeAsk, NodeAskError};
pub use ostler_control::reconcile::reason;
pub use ostler_control::scaling::ScaleError;
pub use ostler_control::variables::VariableError;
pub use ostler_control::{
    AgentStage, AllocError, AllocRef, AllocView, BlockedPlacement, ChangeBatch, ChangeSubject,
    CollectOutcome, ControlHandle, DeploymentOutcome, DeviceExplanation, GroupCounts, GroupPlan,
    JobOptions, JobPlan, JobStatus, JobView, NotedChange, PlaceCounts, PlanSnapshot, RAW_EXEC,
    RegisterOptions, RegisterOutcome, StopOptions, StopOutcome, SubmitError, TaskConfigProblem,
};
pub use ostler_device::matching::{DeviceAffinity, DeviceCandidate, DeviceOutcome};
pub use ostler_health::meter::PluginActivity;
pub use ostler_health::policy::{PluginState, Quarantine};
pub use ostler_jobsdir::{JobsDirEntry, JobsDirReport};
pub use ostler_lifecycle::alloc::{CheckId, CheckResult, RestartScope};
pub use ostler_state::{DataDirLock, Holder, LockError};

pub use inspect::STATE_FILE;
pub use mode::AgentMode;
pub use plugin_status::{LiftReport, PluginStatusReport, RecordReport};
pub use startup::StartingAgent;
pub use upgrade::{
    Release, UpgradeError, UpgradeOptions, UpgradeOutcome, UpgradeReport, UpgradeStatus,
};
pub use views::{LeaveMode, Readiness};

use loading::PluginTable;
use records::RecordsWriter;

/// The options with which an agent is started.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The directory of state, allocations and compiled code. It is created if it is missing, and
    /// used by one agent at a time.
    pub data_dir: PathBuf,
    /// The directory of the socket for commands. Isolated tasks see neither it nor the data
    /// directory. `None` means the data directory.
    pub socket_dir: Option<PathBuf>,
    /// The configuration of the operator.
    pub config: AgentConfig,
    /// What the agent is for, which decides what outlives it.
    pub mode: AgentMode,
    /// The program that answers `__compile` and `__supervise`. `None` means this program.
    pub compiler: Option<PathBuf>,
    /// The directory of compiled code. `None` means one in the data directory.
    pub code_dir: Option<PathBuf>,
    /// The source of time, which a test can replace.
    pub clock: Clock,
    /// The source of random numbers, which a test can replace.
    pub rng: Rng,
    /// The other nodes of the cluster, if this agent is a node of one.
    pub other_nodes: Option<Arc<dyn OtherNodes>>,
}

/// A function that opens the state file at a path. It may block.
pub type OpenState = Box<dyn FnOnce(&Path) -> Result<StateStore, StateError> + Send>;

/// The type whose functions start agents.
pub struct Agent;

impl Agent {
    /// Start an agent. This needs a multi-thread tokio runtime, which becomes the control runtime.
    ///
    /// # Errors
    /// See [`AgentError`]; nothing is left running then.
    pub async fn start(options: AgentOptions) -> Result<AgentHandle, AgentError> {
        Self::begin_start(options).await?.into_ready().await
    }

    /// Begin the start of an agent: it claims its data directory and can then be asked for its
    /// progress. Plugins and the leftovers of earlier agents come with
    /// [`StartingAgent::into_ready`].
    ///
    /// # Errors
    /// See [`AgentError`]; nothing is left running then.
    pub async fn begin_start(options: AgentOptions) -> Result<StartingAgent, AgentError> {
        let open: OpenState = match options.mode {
            AgentMode::InMemory => Box::new(|_| StateStore::in_memory_of_runtime()),
            AgentMode::Durable | AgentMode::Embedded => Box::new(StateStore::open),
        };
        startup::begin_start(options, open).await
    }

    /// The process that holds a data directory now; `None` if there is none, or it is unknown.
    #[must_use]
    pub fn holder(data_dir: &Path) -> Option<Holder> {
        lock_holder(data_dir)
    }

    /// The same as [`Agent::start`], but the state store is opened in another way. Tests use this
    /// to put faults beneath the store and see what a dying agent leaves behind.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub async fn start_with_state(
        options: AgentOptions,
        open_state: OpenState,
    ) -> Result<AgentHandle, AgentError> {
        startup::begin_start(options, open_state).await?.into_ready().await
    }
}

/// Everything that a running agent consists of.
struct AgentInner {
    data_dir: PathBuf,
    socket_dir: Option<PathBuf>,
    /// Whether people may run commands inside tasks.
    remote_exec: AtomicBool,
    /// The configuration in effect, and the parts that can reload it.
    reloading: reload::ReloadState,
    namespaces: NodeNamespaces,
    node: NodePublisher,
    /// The list of plugins that are being loaded.
    board: catalogue::Board,
    /// The plugins; set once all of them were examined.
    plugins: OnceLock<PluginTable>,
    meters: Mutex<catalogue::Meters>,
    runtime: PluginRuntime,
    watcher: ChangeWatcher,
    /// The notices for the operator; set once the agent is ready.
    notices: OnceLock<Vec<String>>,
    drivers: DriverManager,
    devices: DeviceManager,
    services: HostServices,
    /// The node as its allocations share it.
    context: Arc<NodeContext>,
    /// The variables that are kept for tasks.
    variables: NodeVariables,
    /// The owner of jobs and allocations.
    control: ControlHandle,
    /// The task of that owner.
    owner: Mutex<Option<JoinHandle<()>>>,
    /// The writer of the managers' records; set once plugins have said what they are.
    follower: OnceLock<RecordsWriter>,
    /// The jobs directory; `None` if the agent has none.
    jobs_dir: Option<JobsDir>,
    /// The events of the node.
    events: event_feed::EventFeed,
    /// Plugins that have not answered their first fingerprint.
    waiting: Mutex<BTreeSet<PluginName>>,
    /// Runs that are alive but not owned.
    holds: Mutex<held_runs::HeldRuns>,
    /// The task that removes directories without a record; see [`ostler_control::orphan_dirs`].
    unowned: Mutex<Option<JoinHandle<()>>>,
    /// Signals that something about a quarantine changed.
    quarantined: Arc<Notify>,
    /// Ends everything that runs beside the agent.
    ended: CancellationToken,
    /// Ends the same when nobody has a handle any more.
    _unhandled: DropGuard,
    /// The tasks that run beside the agent; see [`AgentHandle::beside`].
    beside: TaskTracker,
    mode: AgentMode,
    /// Whether servers decide what runs here.
    joined: AtomicBool,
    // This is the last field, so that the directory becomes free when all else is gone.
    lock: DataDirLock,
}

/// The only handle of a running agent. Clones share it.
#[derive(Clone)]
pub struct AgentHandle(Arc<AgentInner>);

impl AgentHandle {
    /// The directory of state, allocations and compiled code.
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
        &self.0.context.services
    }

    /// The variables that are kept for tasks and people.
    #[must_use]
    pub fn variables(&self) -> &NodeVariables {
        &self.0.variables
    }

    /// Every plugin that was examined, with its state at the start; [`AgentHandle::plugins_now`]
    /// has its state now. The list is empty until all were examined.
    #[must_use]
    pub fn plugins(&self) -> &[PluginEntry] {
        self.0.plugins.get().map_or(&[], |used| &used.entries)
    }

    /// What the operator should see once: lowered limits, leftovers of a crash, records put aside.
    /// The list is complete when the agent is ready.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        self.0.notices.get().map_or(&[], Vec::as_slice)
    }

    /// The counts of what the state store did so far.
    #[must_use]
    pub fn state_stats(&self) -> ostler_state::Stats {
        self.0.context.state.stats()
    }

    /// Check every task's driver, and its `config` against the driver's schema. Texts with `${…}`
    /// are checked when the task starts and their values are known.
    #[must_use]
    pub fn check(&self, job: &Job) -> Vec<TaskConfigProblem> {
        let mut problems = self.unknown_drivers(job);
        problems.extend(self.check_configs(job));
        problems
    }

    /// The problems of tasks whose driver nobody has here, now or later: it is not being loaded,
    /// and no plugin of that name failed to load.
    fn unknown_drivers(&self, job: &Job) -> Vec<TaskConfigProblem> {
        let view = self.0.node.current();
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems = Vec::new();
        for (group, task) in job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t))) {
            if waiting.contains(&task.driver) {
                continue;
            }
            let Some(missing) = no_driver(&task.driver, &view) else { continue };
            problems.push(TaskConfigProblem {
                group: group.name.to_string(),
                task: task.name.to_string(),
                message: missing.message,
                suggestion: missing.nearest,
                of_driver: true,
                ..TaskConfigProblem::default()
            });
        }
        problems
    }

    fn check_configs(&self, job: &Job) -> Vec<TaskConfigProblem> {
        let mut problems = Vec::new();
        for group in &job.groups {
            for task in &group.tasks {
                // Admission reports a missing or unhealthy driver.
                let Ok(driver) = self.0.drivers.dispense(&task.driver) else { continue };
                for found in driver.validate(&task.config) {
                    if found.unknown || !depends_on_variables(task.config.map(), &found.path) {
                        problems.push(TaskConfigProblem {
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

    /// A sentence for each task that cannot run here now because of its driver, which is being
    /// loaded or cannot be used. The job is right, but the `config` of such a task was not checked.
    /// Drivers that nobody has are [problems](AgentHandle::check).
    #[must_use]
    pub fn driver_warnings(&self, job: &Job) -> Vec<String> {
        let mut sentences = Vec::new();
        for (group, task) in job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t))) {
            let why = match self.0.drivers.dispense(&task.driver) {
                Ok(_) => continue,
                Err(PluginCallError::StillLoading { name, loading }) => {
                    format!("driver {name} is not loaded yet; still loading: {loading}")
                }
                Err(PluginCallError::UnknownPlugin { name, .. }) => {
                    let view = self.0.node.current();
                    match view.refused_plugins.get(&name) {
                        Some(why) => {
                            format!("driver {name} needs its plugin, which is not in use: {why}")
                        }
                        // A driver that does not exist is reported as a problem instead.
                        None => continue,
                    }
                }
                Err(error) => format!("{error}; the config of the task was not checked"),
            };
            sentences.push(format!("group {}, task {}: {why}", group.name, task.name));
        }
        sentences
    }

    /// A sentence for each setting of a job that this node does not follow as it is written.
    #[must_use]
    pub fn capped_kill_timeouts(&self, job: &Job) -> Vec<String> {
        let most = self.0.context.kill_timeout_max;
        let tasks = job.groups.iter().flat_map(|g| g.tasks.iter().map(move |t| (g, t)));
        let longer = tasks.filter(|(_, task)| task.kill_timeout > most);
        let sentence = |(group, task): (&TaskGroup, &CowArc<Task>)| {
            let [timeout, most] = [task.kill_timeout, most].map(humantime::format_duration);
            format!(
                "group {}, task {}: kill_timeout of {timeout} is longer than this node allows: the task is \
                 killed after {most} (max_kill_timeout in the client block of the agent's configuration)",
                group.name, task.name
            )
        };
        longer.map(sentence).collect()
    }

    /// A sentence for each group of a job that keeps a count which its `scaling` would not allow.
    #[must_use]
    pub fn counts_out_of_range(&self, job: &Job, meant: JobOptions) -> Vec<String> {
        let known = self.0.control.job(&job.id);
        let job = meant.apply_to(job, known.as_ref().map(|view| &*view.record));
        let sentence = |group: &TaskGroup| {
            let why = group.scaling.as_ref()?.check(group.count).err()?;
            Some(format!("group {} keeps its count of {}: {why}", group.name, group.count))
        };
        job.groups.iter().filter_map(sentence).collect()
    }

    /// Run a job: either all of it is placed now, or nothing of it. It ends with this agent and is
    /// not on record. When it is over, a job of its name may be run again.
    ///
    /// # Errors
    /// When it does not fit, its configuration is wrong, or an allocation cannot be made durable;
    /// then nothing of it runs and nothing is held.
    pub async fn submit(&self, job: Job) -> Result<JobHandle, SubmitError> {
        self.takes_jobs()?;
        self.check_job(&job)?;
        self.wait_run_seen(&job.id).await;
        let (origin, job) = (JobOrigin::Run, Arc::new(job));
        let registration = Registration::start_span(None, job.id.as_str(), job.namespace(), "run");
        let trace = registration.context;
        let options = RegisterOptions { origin, all_or_nothing: true, trace, ..Default::default() };
        let given_up = RunGuard { agent: Some(self), job: &job };
        let registering = self.0.control.register(Arc::clone(&job), options);
        let registered = registration.run(registering).await;
        if let Ok(done) = &registered {
            registration.record_result(done.version, done.answer_index(), None);
        }
        if let Err(error @ SubmitError::Unanswered { .. }) = registered {
            // Dropping the guard takes back what the disk may still accept.
            drop(given_up);
            return Err(error);
        }
        given_up.not();
        let registered = registered?;
        let owners =
            registered.placed.iter().filter_map(|id| Some(self.0.control.alloc(*id)?.handle));
        Ok(JobHandle::new(job, owners.collect()))
    }

    /// Wait until the node has seen the end of a run. Whoever waited for the run may know of
    /// it earlier.
    async fn wait_run_seen(&self, id: &JobId) {
        let mut changes = self.0.control.changes();
        loop {
            changes.borrow_and_update();
            let over = |entry: &ostler_control::AllocEntry| entry.client_status().is_terminal();
            let seen = self.0.control.read_tables(|tables| tables.allocs_of(id).all(over));
            let dead = self.0.control.job(id).is_none_or(|job| job.status == JobStatus::Dead);
            if seen || !dead || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Everything that is also checked for jobs from servers: all but the namespace.
    fn check_all(&self, job: &Job) -> Result<(), SubmitError> {
        let tasks: usize = job
            .groups
            .iter()
            .map(|g| g.tasks.len().saturating_mul(usize::try_from(g.count).unwrap_or(usize::MAX)))
            .fold(0, usize::saturating_add);
        if tasks > JOB_TASKS_MAX {
            return Err(SubmitError::TooManyTasks { tasks });
        }
        reject_problems(self.check_configs(job))
    }

    /// Check that the drivers of the job's tasks are here, or may come later. Servers know that
    /// themselves, and a job that is registered already waits for them.
    fn has_drivers(&self, job: &Job) -> Result<(), SubmitError> {
        let as_known = |view: JobView| *view.record.job == *job;
        if self.0.control.job(&job.id).is_some_and(as_known) {
            Ok(())
        } else {
            reject_problems(self.unknown_drivers(job))
        }
    }

    /// The checks for a job from a file of the jobs directory.
    fn check_file(&self, job: &Job) -> Result<(), SubmitError> {
        self.has_drivers(job)?;
        self.check_all(job)
    }

    /// Spawn work beside the agent that ends soon, or with [`AgentInner::ended`]. An agent that
    /// leaves waits for it.
    fn spawn_beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.beside.spawn(work));
    }
}

/// A guard that stops a run which is dropped before it was placed. Nothing of the run is left then.
struct RunGuard<'a> {
    agent: Option<&'a AgentHandle>,
    job: &'a Job,
}

impl RunGuard<'_> {
    fn not(mut self) {
        self.agent = None;
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        let Some(agent) = self.agent else { return };
        let (control, id) = (agent.0.control.clone(), self.job.id.clone());
        let stop = async move {
            let options = StopOptions { purge: true, ..StopOptions::default() };
            // An error means that the agent leaves, which ends the job, or that the stop was
            // refused.
            drop(control.deregister(&id, options, JobOrigin::Run).await);
        };
        // Without a runtime the process is at its end, and the next start closes the records.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(agent.0.beside.spawn_on(stop, &runtime));
        }
    }
}

fn reject_problems(problems: Vec<TaskConfigProblem>) -> Result<(), SubmitError> {
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
