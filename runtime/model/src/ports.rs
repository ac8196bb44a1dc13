//! What a task runner asks of the node: drivers, workloads, devices, as narrow traits.
//!
//! ```text
//! task::runner ── Drivers::dispense ─► Driver::start(context, config) ─► Started { handle, workload }
//!      │                                   (a call into the plugin; the host spawns)
//!      ├── Workloads::wait(run, workload) ─► RawExit ── Driver::exited(handle, raw) ─► ExitResult
//!      ├── Driver::stop ─(kill_timeout)─► Driver::kill ─(KILL_GRACE)─► Workloads::kill_run
//!      └── Driver::destroy, Workloads::forget_run
//! ```
//! The runners know these traits only; [`driver::proxy` and `host` implement them
//! over real plugins, and tests implement them in a few lines over virtual time.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::cores::CoreSet;
use crate::device::{DeviceNode, Mount, Reservation};
use crate::ids::{AllocId, GroupName, JobId, PluginName, RunId, TaskName};
use crate::json::JsonObject;
use crate::network::{AllocNetwork, DriverNetwork};
pub use crate::owners::{AllocUser, FileOwner, TaskOwner};
use crate::redact::Secrets;
use crate::resources::{AllocatedDevice, AllocatedPort};
use crate::session::{ExecPlan, ExecSession, TerminalSize};
use crate::task::{DriverHandle, ExitResult, RawExit, Usage, Workload};

/// A boxed future, for traits used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How much of the node's file system a task sees; decides the paths in its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsIsolation {
    /// Host paths.
    None,
    /// `/alloc`, `/local`, `/secrets` in a root of its own.
    Chroot,
    /// `/alloc`, `/local`, `/secrets` as pre-opened directories (WASM tasks).
    Preopen,
}

/// What a driver can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Tasks can be signalled.
    pub send_signals: bool,
    /// Commands can be run inside tasks.
    pub exec: bool,
    /// See [`FsIsolation`].
    pub fs_isolation: FsIsolation,
}

/// One thing wrong with a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// Dotted path inside the configuration; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
    /// Nothing may stand at the path, whatever it is: its last name is unknown.
    pub unknown: bool,
    /// The name that may have been meant in place of the unknown one.
    pub suggestion: Option<String>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.suggestion {
            Some(name) => write!(f, "; did you mean {name}?"),
            None => Ok(()),
        }
    }
}

/// Why a driver or device plugin did not do what it was asked. `recoverable` is in the type: the
/// restart tracker decides by it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginCallError {
    /// No plugin of this name is loaded.
    #[error("no plugin named {name:?} is loaded; loaded are: {known}")]
    UnknownPlugin {
        /// The name asked for.
        name: String,
        /// Names that exist, comma separated.
        known: String,
    },
    /// The plugin may be among those that are still being loaded.
    #[error("no plugin named {name:?} is loaded yet; still loading: {loading}")]
    StillLoading {
        /// The name asked for.
        name: String,
        /// Blocks of those, comma separated.
        loading: String,
    },
    /// The plugin is loaded and not usable now.
    #[error("plugin {name} is not ready: {reason}")]
    NotReady {
        /// The plugin.
        name: String,
        /// Its health text.
        reason: String,
    },
    /// The handle or device is unknown to the plugin. Stopping what is not found is success.
    #[error("not found: {0}")]
    NotFound(String),
    /// The task's configuration is wrong.
    #[error("invalid configuration: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    InvalidConfig(Vec<Diagnostic>),
    /// Trying again may help.
    #[error("{0}")]
    Recoverable(String),
    /// Trying again cannot help.
    #[error("{0}")]
    Fatal(String),
    /// The plugin does not do this.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A host interface refused; the text has the configuration lines that would grant it.
    #[error("permission denied: {0}")]
    PermissionDenied(String),
    /// The plugin answered what its answers may not cause; the text has the configuration lines that
    /// would grant it. It did what it was asked.
    #[error("{0}")]
    NotGranted(String),
    /// The call itself failed: trap, deadline, memory limit, broken answer.
    #[error("plugin {plugin} failed in {call}: {reason}")]
    CallFailed {
        /// The plugin.
        plugin: String,
        /// The function called.
        call: &'static str,
        /// What stopped it.
        reason: String,
    },
}

impl PluginCallError {
    /// May the same call succeed later?
    #[must_use]
    pub fn recoverable(&self) -> bool {
        matches!(
            self,
            Self::Recoverable(_)
                | Self::StillLoading { .. }
                | Self::NotReady { .. }
                | Self::CallFailed { .. }
        )
    }
}

/// Identity of a native process that survives pid reuse and reboots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessIdentity {
    /// Process id; also the process group.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat` field 22).
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Cgroup of the task, where one was made.
    pub cgroup: Option<PathBuf>,
    /// The process that watches over it for the agent; absent for a child of the agent itself.
    pub supervisor: Option<SupervisorIdentity>,
}

impl ProcessIdentity {
    /// The id that plugins and tasks know it by, `PID-TICKS`: no other process has it until the machine is down.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", self.pid, self.start_ticks)
    }
}

/// Identity of a supervisor; of the same boot as the process it watches over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SupervisorIdentity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// What a run is of: kept beside its exit record, for an agent whose state file does not know it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RunNote {
    /// The allocation.
    pub alloc: AllocId,
    /// The task.
    pub task: TaskName,
    /// The job.
    pub job: JobId,
    /// The group.
    pub group: GroupName,
    /// Index in the group.
    pub index: u32,
    /// What the state file has of the run, for who can read it; null: nothing.
    pub record: serde_json::Value,
}

/// Where the bytes a task prints go. Never fails towards the task: what cannot be kept is counted.
pub trait ByteSink: Send + Sync {
    /// Take bytes. May block briefly on the disk; called on guest threads and pump tasks.
    fn write(&self, bytes: &[u8]);
    /// The files behind it, for a writer in another process: what a supervised task prints never
    /// passes through the agent. Without files, what it prints is discarded.
    fn files(&self) -> Option<SinkFiles> {
        None
    }
}

/// Rotated files `<prefix>N` in a directory, as a writer in another process needs them.
#[derive(Clone, Debug)]
pub struct SinkFiles {
    /// The directory. Every name in it is untrusted.
    pub dir: Arc<std::os::fd::OwnedFd>,
    /// Name of a file without its index.
    pub prefix: String,
    /// Most files kept; 0: there are none, and `prefix` is the whole name of a named pipe that somebody
    /// else reads.
    pub files_max: u32,
    /// A file is left when it is this long, bytes.
    pub file_bytes_max: u64,
}

impl SinkFiles {
    /// A named pipe in place of files.
    #[must_use]
    pub const fn pipe(dir: Arc<std::os::fd::OwnedFd>, name: String) -> Self {
        Self { dir, prefix: name, files_max: 0, file_bytes_max: 0 }
    }
}

/// Records durably that a process exists *before* it runs its first instruction of user code.
/// An error keeps the process from running.
pub type IdentityRecorder =
    Arc<dyn Fn(ProcessIdentity) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Takes what a driver says about a task (`events.emit`).
pub type DriverEventSink = Arc<dyn Fn(String, Vec<(String, String)>) + Send + Sync>;

/// What the host knows about one start of a task while its driver is called.
#[derive(Clone)]
pub struct TaskContext {
    /// Which start of which task.
    pub run_id: RunId,
    /// Its allocation.
    pub alloc_id: AllocId,
    /// Its job.
    pub job_id: JobId,
    /// Its group.
    pub group: GroupName,
    /// Its name.
    pub task: TaskName,
    /// Standard output.
    pub stdout: Arc<dyn ByteSink>,
    /// Standard error.
    pub stderr: Arc<dyn ByteSink>,
    /// Called before a native process runs.
    pub record_identity: IdentityRecorder,
    /// Events from the driver.
    pub events: DriverEventSink,
    /// MHz reserved.
    pub cpu_mhz: u32,
    /// Cores that are its own: it runs on no other, and nobody else on them. None: it shares.
    pub cores: CoreSet,
    /// Largest memory in bytes.
    pub memory_bytes_max: u64,
    /// Bytes one start may add to its directories, as far as the host sees it write: what the
    /// allocation's directory may hold.
    pub disk_bytes_max: u64,
    /// Ports assigned to the allocation.
    pub ports: Vec<AllocatedPort>,
    /// Absolute host directories the task may see read-write: its task directory and the shared one.
    pub task_dir: PathBuf,
    /// See `task_dir`.
    pub alloc_dir: PathBuf,
    /// Host paths assigned by reservations, with their read-only flag.
    pub mounts: Vec<Mount>,
    /// Device nodes assigned by reservations; known while its driver starts it.
    pub device_nodes: Vec<DeviceNode>,
    /// User its job names, interpolated; known while its driver starts it.
    pub user: Option<String>,
    /// The user id that its allocation has of its own: whom it runs as where it is kept apart and names no user.
    pub alloc_user: Option<u32>,
    /// `address:port` texts in its job's `config`: what it may be connected to; known while its
    /// driver starts it.
    pub named: Arc<[String]>,
    /// The environment the task was given, which a driver that is granted only some `programs` passes
    /// on; known while such a driver starts it.
    pub env: Arc<[(String, String)]>,
    /// The network that its allocation has of its own.
    pub network: Option<Arc<AllocNetwork>>,
    /// What of its environment and its configuration is secret: nothing that its driver says of it shows that.
    pub secrets: Arc<Secrets>,
}

/// Everything a driver is told about a task (`task-config` of the WIT).
#[derive(Clone, Debug, PartialEq)]
pub struct TaskConfig {
    /// Which start.
    pub run_id: RunId,
    /// Its allocation.
    pub alloc_id: AllocId,
    /// Its job.
    pub job_id: JobId,
    /// Its group.
    pub group: GroupName,
    /// Its name.
    pub task: TaskName,
    /// The `config` block, interpolated.
    pub config: JsonObject,
    /// The whole environment, sorted by name.
    pub env: Vec<(String, String)>,
    /// MHz reserved.
    pub cpu_mhz: u32,
    /// Bytes reserved.
    pub memory_bytes: u64,
    /// Upper bound when larger.
    pub memory_max_bytes: Option<u64>,
    /// Ports of the allocation.
    pub ports: Vec<AllocatedPort>,
    /// From reservations.
    pub mounts: Vec<Mount>,
    /// From reservations.
    pub device_nodes: Vec<DeviceNode>,
    /// Host path of the task directory.
    pub task_dir: PathBuf,
    /// Host path of the shared directory.
    pub alloc_dir: PathBuf,
    /// User to run as.
    pub user: Option<String>,
}

/// A task that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// To be stored and given back.
    pub handle: DriverHandle,
    /// Who runs it.
    pub workload: Workload,
    /// What the driver gave it of a network of its own making.
    pub network: Option<Arc<DriverNetwork>>,
}

/// Answer of [`Driver::inspect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// It runs.
    Running,
    /// It ended.
    Exited(RawExit),
    /// The driver cannot tell.
    Unknown,
}

/// Typed calls into one driver. Every call has the plugin's deadline.
pub trait Driver: Send + Sync {
    /// Declared once at load.
    fn capabilities(&self) -> Capabilities;
    /// Is all that its `start` can do outside itself held back until the run is released? True of a
    /// driver that may spawn processes and WASM tasks and nothing else: a start of which no handle is recorded has
    /// then run nothing.
    fn starts_held(&self) -> bool {
        false
    }
    /// The driver's own deadline of one call.
    fn call_wall(&self) -> Duration {
        Duration::ZERO
    }
    /// A call about this task was given up after so long, longer than its own deadline: it counts
    /// against the driver as one that hangs.
    fn given_up(&self, _call: &'static str, _task: &TaskContext, _after: Duration) {}
    /// Keys of a task's `config` at which the address of a file may stand; the driver is told the path of
    /// what was fetched from there.
    fn fetched_keys(&self) -> Vec<String> {
        Vec::new()
    }
    /// What a task of this driver that runs as `user` has in its environment where its job says nothing
    /// else: `PATH`, `HOME` and the like. `of_alloc`: whom it may run as that names no user.
    fn usual_env(
        &self,
        user: Option<String>,
        of_alloc: AllocUser,
    ) -> BoxFuture<'_, Vec<(String, String)>> {
        let _ = (user, of_alloc);
        Box::pin(std::future::ready(Vec::new()))
    }
    /// Learn what of a task's `config` is secret; a driver may know more keys than everybody does.
    fn learn_secrets(&self, config: &JsonObject, secrets: &mut Secrets) {
        secrets.learn_config(config.text(), None);
    }
    /// Whose the files are that are made for a task whose job names this user.
    fn owner(&self, _user: Option<String>) -> BoxFuture<'_, Result<TaskOwner, PluginCallError>> {
        Box::pin(std::future::ready(Ok(TaskOwner::Agent)))
    }
    /// Check a task's `config` against the driver's schema; empty when fine.
    fn validate(&self, config: &JsonObject) -> Vec<Diagnostic>;
    /// Start. On an error the host has killed whatever the call spawned.
    fn start(
        &self,
        context: Arc<TaskContext>,
        config: TaskConfig,
    ) -> BoxFuture<'_, Result<Started, PluginCallError>>;
    /// Own a task again.
    fn recover(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<Started, PluginCallError>>;
    /// What does this exit mean.
    fn exited(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        exit: RawExit,
    ) -> BoxFuture<'_, Result<ExitResult, PluginCallError>>;
    /// Ask the task to end; returns at once.
    fn stop(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        signal: Option<String>,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<(), PluginCallError>>;
    /// End it now.
    fn kill(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<(), PluginCallError>>;
    /// Forget it.
    fn destroy(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        force: bool,
    ) -> BoxFuture<'_, Result<(), PluginCallError>>;
    /// Where is it (for `Workload::Poll`).
    fn inspect(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
    ) -> BoxFuture<'_, Result<Inspected, PluginCallError>>;
    /// Send a signal by name.
    fn signal(
        &self,
        context: Arc<TaskContext>,
        handle: DriverHandle,
        signal: String,
    ) -> BoxFuture<'_, Result<(), PluginCallError>>;
    /// What is to be run for a command inside the task.
    fn exec(
        &self,
        _context: Arc<TaskContext>,
        _handle: DriverHandle,
        _argv: Vec<String>,
        _terminal: bool,
    ) -> BoxFuture<'_, Result<ExecPlan, PluginCallError>> {
        let why = "this driver runs no commands inside a task".to_owned();
        Box::pin(std::future::ready(Err(PluginCallError::Unsupported(why))))
    }
}

/// The drivers of the node.
pub trait Drivers: Send + Sync {
    /// The driver of this name, when it is loaded and healthy.
    ///
    /// # Errors
    /// [`PluginCallError::UnknownPlugin`] or [`PluginCallError::NotReady`].
    fn dispense(&self, name: &PluginName) -> Result<Arc<dyn Driver>, PluginCallError>;
}

/// What became of a workload while no agent looked ([`Workloads::adopt`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// It runs, and is owned from now on.
    Running,
    /// It ended, and this is how. Its supervisor was killed: an exit with an error text.
    Ended(RawExit),
    /// It was never released: not one instruction of the program has run, and none will.
    NotRun,
    /// The machine was started anew since: it is gone, and how it ended is not known.
    Rebooted,
    /// Nothing is known of it: a WASM task whose process is gone, or a process that nobody
    /// watched over. What may be left of it was not touched.
    Unknown,
    /// It could not be found out now, for example because no file descriptor is left: why. It may
    /// run. Nothing was changed; to be asked again.
    NotNow(String),
}

/// The workloads the host owns.
pub trait Workloads: Send + Sync {
    /// Wait until a process or WASM task of this run ends. Answers at once, every time, after it
    /// ended and until [`Workloads::forget_run`]. A workload that is not known is an exit with an
    /// error text. Not for `Workload::Poll`.
    fn wait(&self, run: &RunId, workload: &Workload) -> BoxFuture<'static, RawExit>;
    /// Kill everything the host owns for this run, without asking a plugin.
    fn kill_run(&self, run: &RunId);
    /// Drop what is remembered of a run; kills what still runs.
    fn forget_run(&self, run: &RunId);
    /// Let what was started for this run go: it was made, identified and held. To be called once the
    /// intent of the run is durable and what identifies it is kept; ends when the programs run. What the
    /// run spawns later is not held. Nothing to do for a run that holds nothing.
    ///
    /// An error is the text for the event: a program could not be executed. Whoever asked ends the
    /// run then.
    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), String>> {
        let _ = run;
        Box::pin(std::future::ready(Ok(())))
    }
    /// Keep what a run is of where an agent finds it that does not know the run, or only its intent.
    /// To be called before [`Workloads::release`]; what cannot be kept is logged.
    ///
    /// `true`: all of it is kept as long as the run may live and until it is forgotten, whatever is
    /// killed of agent and host; only a crash of the machine may lose it. So the record of the run may
    /// lag behind.
    fn note(&self, run: &RunId, about: RunNote) -> BoxFuture<'static, bool> {
        let _ = (run, about);
        Box::pin(std::future::ready(false))
    }
    /// Own again what an earlier agent started. After [`Adoption::Running`] and
    /// [`Adoption::Ended`] the workload is as one started by this agent. Idempotent. Reads `/proc`
    /// and small files, never waits.
    fn adopt(&self, run: &RunId, identities: &[ProcessIdentity], workload: &Workload) -> Adoption {
        let _ = (run, identities, workload);
        Adoption::Unknown
    }
    /// Signal a process by the host's own means, for the time in which its driver cannot be asked.
    ///
    /// # Errors
    /// The text for the event: it is no process, or the signal was not delivered.
    fn signal(&self, run: &RunId, workload: &Workload, signal: &str) -> Result<(), String> {
        let _ = (workload, signal);
        Err(format!("the host cannot signal {run}"))
    }
    /// Run a command inside a task: kept apart as the task is, as its user and within its limits.
    ///
    /// An error is the text for whoever asked: nothing runs then.
    fn exec(
        &self,
        run: &RunId,
        workload: &Workload,
        plan: ExecPlan,
        terminal: Option<TerminalSize>,
    ) -> BoxFuture<'static, Result<ExecSession, String>> {
        let _ = (workload, plan, terminal);
        let why = format!("the host runs no commands inside {run}");
        Box::pin(std::future::ready(Err(why)))
    }
    /// End by their identity what processes of an earlier agent are left of this run, owned or not.
    /// `true` when none of them is left; bounded.
    fn end_leftovers<'a>(
        &'a self,
        run: &'a RunId,
        identities: &'a [ProcessIdentity],
    ) -> BoxFuture<'a, bool> {
        let _ = (run, identities);
        Box::pin(std::future::ready(true))
    }
    /// Which processes of this run have not ended, for people: pid, program, state. Reads `/proc`.
    fn left(&self, run: &RunId, identities: &[ProcessIdentity]) -> Vec<String> {
        let _ = (run, identities);
        Vec::new()
    }
    /// What a workload uses now; `None` when it is not known or does not run. Answers within a
    /// second.
    fn usage(&self, run: &RunId, workload: &Workload) -> BoxFuture<'static, Option<Usage>> {
        let _ = (run, workload);
        Box::pin(std::future::ready(None))
    }
}

/// Devices as a task uses them.
pub trait Devices: Send + Sync {
    /// May a start rely on these instances, by what their plugins said last?
    ///
    /// # Errors
    /// An instance that is not healthy, and why; it may be so later.
    fn fit(&self, devices: &[AllocatedDevice]) -> Result<(), PluginCallError>;
    /// How the task uses the instances assigned to it; asked before each start.
    fn reserve<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a TaskName,
        devices: &'a [AllocatedDevice],
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>>;
    /// The task ended for good. Idempotent.
    fn release<'a>(&'a self, alloc: AllocId, task: &'a TaskName) -> BoxFuture<'a, ()>;
}
