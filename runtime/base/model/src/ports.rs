//! What a task runner asks of the node: drivers, workloads, devices, as narrow traits.
//!
//! ```text
//! task runner ─── Drivers::dispense ─► TaskDriver::start(context, config) ─► StartedTask
//!      │                                   (a call into the plugin; the host spawns)
//!      ├── Workloads::wait(run, workload) ─► RawExit ── TaskDriver::interpret_exit ─► ExitResult
//!      ├── TaskDriver::stop ─(kill_timeout)─► TaskDriver::kill ─(KILL_GRACE)─► Workloads::kill_run
//!      └── TaskDriver::destroy, Workloads::forget_run
//! ```
//! The runners know only these traits. `ostler_plugin` (in `drivers` and `host`) and `ostler_device`
//! implement them over real plugins, and tests implement them in a few lines over virtual time.

use std::fmt;
use std::path::{Path, PathBuf};
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

/// How much of the node's file system a task sees. It decides the paths in the task's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsIsolation {
    /// The paths of the node.
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
    /// How much of the node's file system its tasks see.
    pub fs_isolation: FsIsolation,
}

/// One problem of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// Dotted path inside the configuration; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
    /// The last name of the path is unknown, so no value is allowed there.
    pub unknown: bool,
    /// The known name that was probably meant.
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
    #[error("no plugin named {name:?} is loaded; the loaded ones are: {known}")]
    UnknownPlugin {
        /// Name of the plugin that was asked for.
        name: String,
        /// Names that exist, comma separated.
        known: String,
    },
    /// The plugin may be among those that are still being loaded.
    #[error("no plugin named {name:?} is loaded yet; still loading: {loading}")]
    StillLoading {
        /// Name of the plugin that was asked for.
        name: String,
        /// Names of the blocks of plugins that are still loading, comma separated.
        loading: String,
    },
    /// The plugin is loaded but not usable now.
    #[error("plugin {name} is not ready: {reason}")]
    NotReady {
        /// Name of the plugin.
        name: String,
        /// Reason of its health, for people.
        reason: String,
    },
    /// The plugin does not know the handle or device. For a stop this counts as success.
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
    /// The plugin does not support this call.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A host interface refused; the text has the configuration lines that would grant it.
    #[error("permission denied: {0}")]
    PermissionDenied(String),
    /// The plugin did what it was asked, but its answer is not granted. The text has the configuration
    /// lines that would grant it.
    #[error("{0}")]
    NotGranted(String),
    /// The call itself failed: trap, deadline, memory limit, broken answer.
    #[error("plugin {plugin} failed in {call}: {reason}")]
    CallFailed {
        /// Name of the plugin.
        plugin: String,
        /// The function that was called.
        call: &'static str,
        /// What stopped the call, in words.
        reason: String,
    },
}

impl PluginCallError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
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
    /// The supervisor that watches over the process; absent for a child of the agent itself.
    pub supervisor: Option<SupervisorIdentity>,
}

impl ProcessIdentity {
    /// The id for plugins and tasks, `PID-TICKS`. No other process of this boot has it.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", self.pid, self.start_ticks)
    }
}

/// Identity of a supervisor, in the same boot as the process that it watches over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SupervisorIdentity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// Which task a run belongs to. It is kept beside the exit record, for an agent whose state file
/// does not know the run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RunNote {
    /// Id of the allocation that the task is part of.
    pub alloc: AllocId,
    /// Name of the task in its group.
    pub task: TaskName,
    /// Id of the job, with its namespace.
    pub job: JobId,
    /// Name of the task group in the job.
    pub group: GroupName,
    /// Index of the allocation in the group.
    pub index: u32,
    /// What the state file has of the run, for an agent that can read it; null for nothing.
    pub record: serde_json::Value,
}

/// Takes the bytes that a task prints. It never fails: bytes that cannot be kept are counted.
pub trait ByteSink: Send + Sync {
    /// Take bytes. May block briefly on the disk; called on guest threads and pump tasks.
    fn write(&self, bytes: &[u8]);
    /// The files behind the sink, for a writer in another process: the output of a supervised task
    /// never passes through the agent. Without files that output is discarded.
    fn files(&self) -> Option<SinkFiles> {
        None
    }
}

/// The directory that the files of a stream lie in. Names in it are not trusted.
#[derive(Clone, Debug)]
pub enum LogDir {
    /// The directory is open.
    Open(Arc<std::os::fd::OwnedFd>),
    /// The directory is opened whenever it is used, so that the logs of a task that prints nothing
    /// hold no descriptor.
    Below {
        /// A directory that only the agent's user changes.
        root: Arc<Path>,
        /// The path from there. A link on it is not followed.
        path: Arc<Path>,
    },
}

impl From<std::os::fd::OwnedFd> for LogDir {
    fn from(dir: std::os::fd::OwnedFd) -> Self {
        Self::Open(Arc::new(dir))
    }
}

/// Rotated files `<prefix>N` in a directory, described for a writer in another process.
#[derive(Clone, Debug)]
pub struct SinkFiles {
    /// Where the files lie.
    pub dir: LogDir,
    /// Name of a file without its index.
    pub prefix: String,
    /// Most files that are kept. 0: there are none, and `prefix` is the whole name of a named pipe
    /// that another process reads.
    pub files_max: u32,
    /// Bytes after which the next file is begun.
    pub file_bytes_max: u64,
    /// No file of the stream exists yet, so none is looked for.
    pub fresh: bool,
}

impl SinkFiles {
    /// A named pipe in place of files.
    #[must_use]
    pub const fn pipe(dir: Arc<std::os::fd::OwnedFd>, name: String) -> Self {
        Self { dir: LogDir::Open(dir), prefix: name, files_max: 0, file_bytes_max: 0, fresh: false }
    }
}

/// Records durably that a process exists *before* it runs its first instruction of user code.
/// An error keeps the process from running.
pub type IdentityRecorder =
    Arc<dyn Fn(ProcessIdentity) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Takes an event that a driver reports about a task (`events.emit`).
pub type DriverEventSink = Arc<dyn Fn(String, Vec<(String, String)>) + Send + Sync>;

/// Makes the directories of a task, if they are not made yet. An error is a text for people.
pub type DirMaker = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// The maker for a task whose directories are made already.
#[must_use]
pub fn dirs_are_made() -> DirMaker {
    Arc::new(|| Box::pin(std::future::ready(Ok(()))))
}

/// What the host knows about one start of a task while its driver is called.
#[derive(Clone)]
pub struct TaskContext {
    /// Id of this start of the task.
    pub run_id: RunId,
    /// Id of the allocation that the task is part of.
    pub alloc_id: AllocId,
    /// Id of the job that the task belongs to, with its namespace.
    pub job_id: JobId,
    /// Name of the task group in the job.
    pub group: GroupName,
    /// Name of the task in its group.
    pub task: TaskName,
    /// Takes the task's standard output.
    pub stdout: Arc<dyn ByteSink>,
    /// Takes the task's standard error.
    pub stderr: Arc<dyn ByteSink>,
    /// Called before a native process runs.
    pub record_identity: IdentityRecorder,
    /// Takes events from the driver.
    pub events: DriverEventSink,
    /// MHz of processor time that are reserved.
    pub cpu_mhz: u32,
    /// Cores that only this task runs on. Empty: it shares the cores that nobody has.
    pub cores: CoreSet,
    /// Largest memory in bytes.
    pub memory_bytes_max: u64,
    /// Bytes that one start may write to its directories: the bound of the allocation's directory.
    pub disk_bytes_max: u64,
    /// Ports assigned to the allocation.
    pub ports: Vec<AllocatedPort>,
    /// Absolute host path of the task's directory, which the task may read and write.
    pub task_dir: PathBuf,
    /// Absolute host path of the allocation's shared directory, which it may read and write too.
    pub alloc_dir: PathBuf,
    /// Makes both directories. Whoever runs something that opens files by itself calls it first.
    pub dirs: DirMaker,
    /// Host paths assigned by reservations, with their read-only flag.
    pub mounts: Vec<Mount>,
    /// Device nodes assigned by reservations. They are set only while the driver starts the task.
    pub device_nodes: Vec<DeviceNode>,
    /// User that the job names, interpolated. It is set only while the driver starts the task.
    pub user: Option<String>,
    /// The allocation's own user id, which an isolated task that names no user runs as.
    pub alloc_user: Option<u32>,
    /// `address:port` texts in the task's `config`, to which connections are allowed. They are set
    /// only while the driver starts the task.
    pub named: Arc<[String]>,
    /// The environment of the task, which a driver that is granted only some `programs` passes on.
    /// It is set only while such a driver starts the task.
    pub env: Arc<[(String, String)]>,
    /// The network that the allocation has for itself.
    pub network: Option<Arc<AllocNetwork>>,
    /// Secrets of the task's environment and configuration, removed from all texts of its driver.
    pub secrets: Arc<Secrets>,
}

/// Everything a driver is told about a task (`task-config` of the WIT).
#[derive(Clone, Debug, PartialEq)]
pub struct TaskConfig {
    /// Id of this start of the task.
    pub run_id: RunId,
    /// Id of the allocation that the task is part of.
    pub alloc_id: AllocId,
    /// Id of the job that the task belongs to, with its namespace.
    pub job_id: JobId,
    /// Name of the task group in the job.
    pub group: GroupName,
    /// Name of the task in its group.
    pub task: TaskName,
    /// The `config` block, interpolated.
    pub config: JsonObject,
    /// The whole environment, sorted by name.
    pub env: Vec<(String, String)>,
    /// MHz of processor time that are reserved.
    pub cpu_mhz: u32,
    /// Bytes of memory that are reserved.
    pub memory_bytes: u64,
    /// Most bytes of memory, where that is more than the reserved ones.
    pub memory_max_bytes: Option<u64>,
    /// Ports of the allocation.
    pub ports: Vec<AllocatedPort>,
    /// Mounts assigned by reservations.
    pub mounts: Vec<Mount>,
    /// Device nodes assigned by reservations.
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
pub struct StartedTask {
    /// Handle of the driver, which the host stores and passes to later calls.
    pub handle: DriverHandle,
    /// What runs the task, for the host.
    pub workload: Workload,
    /// Address and ports in a network that the driver made for the task.
    pub network: Option<Arc<DriverNetwork>>,
}

/// Answer of [`TaskDriver::inspect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectResult {
    /// The task runs.
    Running,
    /// The task ended, with this exit.
    Exited(RawExit),
    /// The driver cannot tell.
    Unknown,
}

/// The rows of the table as methods.
macro_rules! driver_methods {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident($($argument:ident: $type:ty),*) -> $answer:ty;
    )+) => {$(
        $(#[$doc])+
        fn $method(
            &self,
            context: Arc<TaskContext>,
            $($argument: $type),*
        ) -> BoxFuture<'_, Result<$answer, PluginCallError>> {
            let _ = (context, $($argument),*);
            let why = concat!("this driver has no `", $function, "`").to_owned();
            Box::pin(std::future::ready(Err(PluginCallError::Unsupported(why))))
        }
    )+};
}

/// Typed calls into one driver. Every call has the plugin's deadline. The calls about a task are those
/// of the table ([`crate::calls`]).
pub trait TaskDriver: Send + Sync {
    /// What the driver can do, as it declared at load.
    fn capabilities(&self) -> Capabilities;
    /// Whether all effects of a `start` are held back until the run is released. `true` for a
    /// driver that may spawn processes and WASM tasks and nothing else: a start whose handle is not
    /// recorded has then run nothing.
    fn holds_starts(&self) -> bool {
        false
    }
    /// The deadline of one call of this driver.
    fn call_wall(&self) -> Duration {
        Duration::ZERO
    }
    /// Report that a call about this task was given up after this time, which is longer than the
    /// deadline of the call. It counts against the driver as a call that hangs.
    fn report_hang(&self, _call: &'static str, _task: &TaskContext, _after: Duration) {}
    /// Keys of a task's `config` that may hold the address of a file. The driver gets the path of the
    /// fetched file in its place.
    fn file_address_keys(&self) -> Vec<String> {
        Vec::new()
    }
    /// Default environment of a task of this driver that runs as `user`: `PATH`, `HOME` and the
    /// like. `of_alloc`: the user of the allocation, for a task that names none.
    fn usual_env(
        &self,
        user: Option<String>,
        of_alloc: AllocUser,
    ) -> BoxFuture<'_, Vec<(String, String)>> {
        let _ = (user, of_alloc);
        Box::pin(std::future::ready(Vec::new()))
    }
    /// Learn the secrets in a task's `config`. A driver may know more keys than the usual ones.
    fn learn_secrets(&self, config: &JsonObject, secrets: &mut Secrets) {
        secrets.learn_config(config.text(), None);
    }
    /// Owner of the files that are made for a task whose job names this user.
    fn owner(&self, _user: Option<String>) -> BoxFuture<'_, Result<TaskOwner, PluginCallError>> {
        Box::pin(std::future::ready(Ok(TaskOwner::Agent)))
    }
    /// Check a task's `config` against the driver's schema; empty when fine.
    fn validate(&self, config: &JsonObject) -> Vec<Diagnostic>;
    crate::driver_calls!(driver_methods);
}

/// The drivers of the node.
pub trait Drivers: Send + Sync {
    /// The driver of this name, when it is loaded and healthy.
    ///
    /// # Errors
    /// [`PluginCallError::UnknownPlugin`] or [`PluginCallError::NotReady`].
    fn dispense(&self, name: &PluginName) -> Result<Arc<dyn TaskDriver>, PluginCallError>;
}

/// What became of a workload while no agent ran ([`Workloads::adopt`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// The workload runs, and is owned from now on.
    Running,
    /// It ended with this exit. If its supervisor was killed, the exit has an error text.
    Ended(RawExit),
    /// It was never released: not one instruction of the program has run, and none will.
    NotRun,
    /// The machine was rebooted since. The workload is gone, and how it ended is not known.
    Rebooted,
    /// Nothing is known of it: it was a WASM task whose process is gone, or had no supervisor. What
    /// it may have left was not touched.
    Unknown,
    /// The state is not known now, for this reason: no file descriptor is left, for example. The
    /// workload may run. Nothing was changed, and the caller should ask again.
    NotNow(String),
}

/// Why a held run could not be let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseError {
    /// The text for the event.
    pub text: String,
    /// Whether a later start may succeed.
    pub recoverable: bool,
}

impl From<String> for ReleaseError {
    fn from(text: String) -> Self {
        Self { text, recoverable: true }
    }
}

/// The workloads that the host owns.
pub trait Workloads: Send + Sync {
    /// Wait until a process or WASM task of this run ends. After that every call returns the exit
    /// at once, until [`Workloads::forget_run`]. For an unknown workload the exit has an error
    /// text. Not for `Workload::Poll`.
    fn wait(&self, run: &RunId, workload: &Workload) -> BoxFuture<'static, RawExit>;
    /// Kill everything the host owns for this run, without asking a plugin.
    fn kill_run(&self, run: &RunId);
    /// Forget a run, and kill what still runs of it.
    fn forget_run(&self, run: &RunId);
    /// Let the held processes of this run go. Call it once the intent of the run and the identities
    /// of the processes are durable. The future ends when the programs run. Processes that the run
    /// spawns later are not held. Does nothing for a run that holds none.
    ///
    /// An error says why a program could not be executed. The caller then ends the run.
    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>> {
        let _ = run;
        Box::pin(std::future::ready(Ok(())))
    }
    /// Write a note of which task a run belongs to, for an agent that does not know the run, or
    /// only its intent. Call it before [`Workloads::release`]. A failure is logged.
    ///
    /// `true`: the note is complete and outlives a kill of agent and host until the run is
    /// forgotten; only a crash of the machine may lose it. So the record of the run may lag behind.
    fn note(&self, run: &RunId, about: RunNote) -> BoxFuture<'static, bool> {
        let _ = (run, about);
        Box::pin(std::future::ready(false))
    }
    /// Own a workload again that an earlier agent started. After [`Adoption::Running`] and
    /// [`Adoption::Ended`] the workload is like one that this agent started. Idempotent. Reads
    /// `/proc` and small files, and never waits.
    fn adopt(&self, run: &RunId, identities: &[ProcessIdentity], workload: &Workload) -> Adoption {
        let _ = (run, identities, workload);
        Adoption::Unknown
    }
    /// Signal a process without its driver, while the driver cannot be called.
    ///
    /// # Errors
    /// The text for the event: the workload is no process, or the signal was not delivered.
    fn signal(&self, run: &RunId, workload: &Workload, signal: &str) -> Result<(), String> {
        let _ = (workload, signal);
        Err(format!("the host cannot signal {run}"))
    }
    /// Run a command inside a task, isolated as the task is, as its user and within its limits. An
    /// error is the text for the caller; nothing runs then.
    fn exec(
        &self,
        run: &RunId,
        workload: &Workload,
        plan: ExecPlan,
        terminal: Option<TerminalSize>,
    ) -> BoxFuture<'static, Result<ExecSession, String>> {
        let _ = (workload, plan, terminal);
        let why = format!("the host cannot run commands inside {run}");
        Box::pin(std::future::ready(Err(why)))
    }
    /// End the processes of this run that an earlier agent left, found by their identities, owned
    /// or not. The wait is bounded. Returns `true` when none of them is left.
    fn end_leftovers<'a>(
        &'a self,
        run: &'a RunId,
        identities: &'a [ProcessIdentity],
    ) -> BoxFuture<'a, bool> {
        let _ = (run, identities);
        Box::pin(std::future::ready(true))
    }
    /// Processes of this run that have not ended, for people: pid, program, state. Reads `/proc`.
    fn list_leftovers(&self, run: &RunId, identities: &[ProcessIdentity]) -> Vec<String> {
        let _ = (run, identities);
        Vec::new()
    }
    /// What a workload uses now, within a second; `None` when it is not known or does not run.
    fn usage(&self, run: &RunId, workload: &Workload) -> BoxFuture<'static, Option<Usage>> {
        let _ = (run, workload);
        Box::pin(std::future::ready(None))
    }
}

/// The devices of the node, for tasks that use them.
pub trait Devices: Send + Sync {
    /// Check that a start may rely on these instances, by the last report of their plugins.
    ///
    /// # Errors
    /// An instance that is not healthy, and why. It may become healthy later.
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
