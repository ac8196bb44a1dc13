//! A job as the user wrote it, after validation: job → task groups → tasks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::artifact::TaskArtifact;
use super::held_once::HeldOnce;
use super::ids::{GroupName, JobId, PluginName, TaskName};
use super::json::JsonObject;
use super::network::NetworkMode;
use super::placement::{Placement, ScalingPolicy};
use super::resources::Resources;
use super::rollout::{ReschedulePolicy, UpdatePolicy};
use super::saved::DnsConfig;
use super::template::TaskTemplate;
use super::volume::{VolumeMount, VolumeRequest};

pub use super::ids::NAMESPACE;
pub use super::service::{
    AddressMode, Check, CheckKind, CheckRestart, CheckStatus, CheckTls, HttpCheck, OnUpdate,
    Service,
};

/// What kind of work a job is; decides restart defaults and what an exit means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// Runs until stopped.
    #[default]
    Service,
    /// Runs to completion.
    Batch,
    /// A service on every node.
    System,
    /// A batch on every node.
    Sysbatch,
}

impl JobKind {
    /// Batch and sysbatch: a successful exit ends the task.
    #[must_use]
    pub fn runs_to_completion(self) -> bool {
        matches!(self, Self::Batch | Self::Sysbatch)
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Unique on the node, with the namespace that the job is in.
    pub id: JobId,
    /// Name people see; the id unless given.
    pub name: String,
    /// Service, batch …
    pub kind: JobKind,
    /// 1 to 100; 50 unless given.
    pub priority: u8,
    /// Where the job may run; this agent has one data center, so it is checked and shown.
    pub datacenters: Vec<String>,
    /// Free key-value pairs, `${meta.*}` is the node's, `NOMAD_META_*` these.
    pub meta: BTreeMap<String, String>,
    /// All must hold on this node.
    pub constraints: Vec<Constraint>,
    /// Which nodes it prefers.
    pub placement: Placement,
    /// A plan of servers that cannot be carried out whole is not carried out. What a node decides alone always is.
    pub all_at_once: bool,
    /// Task groups, in file order; names unique.
    pub groups: Vec<TaskGroup>,
    /// Directory of the job file, for `${job.dir}`; absent for jobs that came by the API.
    pub source_dir: Option<PathBuf>,
    /// The periodic or parameterised job that servers made this one of.
    pub parent: Option<JobId>,
}

impl Constraint {
    /// Most live allocations, of the job or of the group it stands in, that this allows on one node; `None`:
    /// it says nothing of that.
    #[must_use]
    pub fn most_on_node(&self) -> Option<u64> {
        match self.operator {
            Operator::DistinctHosts if truth(&self.right) == Some(false) => None,
            Operator::DistinctHosts => Some(1),
            Operator::DistinctProperty => Some(self.right.parse().unwrap_or(1)),
            _ => None,
        }
    }
}

/// A truth value as Nomad reads one of a text.
#[must_use]
pub fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl Job {
    /// The namespace it is in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.id.namespace()
    }

    /// The group of this name.
    #[must_use]
    pub fn group(&self, name: &GroupName) -> Option<&TaskGroup> {
        self.groups.iter().find(|g| &g.name == name)
    }
}

/// Tasks that live and die together in one allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskGroup {
    /// Unique in the job.
    pub name: GroupName,
    /// Allocations to make of it.
    pub count: u32,
    /// Added to the job's meta.
    pub meta: BTreeMap<String, String>,
    /// All must hold on this node.
    pub constraints: Vec<Constraint>,
    /// Which nodes it prefers.
    pub placement: Placement,
    /// Between which counts it may be scaled.
    pub scaling: Option<ScalingPolicy>,
    /// Ports of the allocation.
    pub network: Option<NetworkSpec>,
    /// Tasks in file order; names unique; at least one. Owners of allocations and of tasks hold them too.
    pub tasks: Vec<HeldOnce<Task>>,
    /// Wait between the end of service registration and the kill of the first task.
    pub shutdown_delay: Option<Duration>,
    /// What of its directory a later allocation gets, and how large it may become.
    pub ephemeral_disk: EphemeralDisk,
    /// When an allocation counts as healthy; absent: nobody asks.
    pub health: Option<HealthPolicy>,
    /// How a new version takes over; absent: all at once.
    pub update: Option<UpdatePolicy>,
    /// When an allocation that failed gets a successor.
    pub reschedule: ReschedulePolicy,
    /// What it offers, with the checks that tell whether it works.
    pub services: Vec<Service>,
    /// Stopped as complete this long after it was placed.
    pub max_run_duration: Option<Duration>,
    /// Stopped when the node has heard of no server for this long; only servers ask for it.
    pub stop_after_disconnect: Option<Duration>,
    /// Its allocations that a drain of the node stops at the same time; at least one.
    pub migrate_parallel: u32,
    /// Volumes of the node that its tasks may mount, by the name they call each.
    pub volumes: BTreeMap<String, VolumeRequest>,
}

impl TaskGroup {
    /// The task of this name.
    #[must_use]
    pub fn task(&self, name: &TaskName) -> Option<&HeldOnce<Task>> {
        self.tasks.iter().find(|t| &t.name == name)
    }
}

/// The directory that all tasks of an allocation share, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralDisk {
    /// The next allocation of the same index on this node gets its data.
    pub sticky: bool,
    /// As `sticky`, from another node too.
    pub migrate: bool,
    /// Most that `alloc/` and the tasks' directories together may hold, MiB.
    pub size_mb: u32,
    /// The job says that size: an allocation that holds more ends. Of a size that nobody wrote, people are told.
    pub size_stated: bool,
}

impl EphemeralDisk {
    /// Does an allocation get what its predecessor kept? `migrate` says so too.
    #[must_use]
    pub fn keeps_data(self) -> bool {
        self.sticky || self.migrate
    }
}

impl Default for EphemeralDisk {
    /// Nothing is kept; 300 MiB, as in Nomad.
    fn default() -> Self {
        Self {
            sticky: false,
            migrate: false,
            size_mb: crate::limits::EPHEMERAL_DISK_MB_DEFAULT,
            size_stated: false,
        }
    }
}

/// What an allocation is judged healthy by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthCheck {
    /// The tasks run and every check passes.
    #[default]
    Checks,
    /// The tasks run.
    TaskStates,
    /// Somebody says so.
    Manual,
}

/// When an allocation is healthy (`update` and `migrate` blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPolicy {
    /// By what.
    pub check: HealthCheck,
    /// Without a break for this long.
    pub min_healthy_time: Duration,
    /// Unhealthy when it is not healthy this long after it was placed.
    pub healthy_deadline: Duration,
}

impl Default for HealthPolicy {
    /// Checks, 10 s, 5 min, as in Nomad.
    fn default() -> Self {
        Self {
            check: HealthCheck::default(),
            min_healthy_time: Duration::from_secs(10),
            healthy_deadline: Duration::from_secs(5 * 60),
        }
    }
}

/// One program under one driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Unique in the group; a directory name.
    pub name: TaskName,
    /// The driver's name.
    pub driver: PluginName,
    /// The driver's part, checked against its schema before the start. `${…}` not yet replaced.
    pub config: JsonObject,
    /// Environment of the task. `${…}` not yet replaced.
    pub env: BTreeMap<String, String>,
    /// Added to the group's meta.
    pub meta: BTreeMap<String, String>,
    /// All must hold on this node.
    pub constraints: Vec<Constraint>,
    /// What is preferred of a node.
    pub affinities: Vec<Affinity>,
    /// What is reserved for it.
    pub resources: Resources,
    /// When to start it again. The job's default, the group's or the task's block, in this order.
    pub restart: RestartPolicy,
    /// From stop signal to kill.
    pub kill_timeout: Duration,
    /// Name of the stop signal; the driver's default unless given.
    pub kill_signal: Option<String>,
    /// Its end ends the group.
    pub leader: bool,
    /// When it runs in the life of the allocation; absent: a main task.
    pub lifecycle: Option<Lifecycle>,
    /// Files its output is kept in.
    pub logs: LogConfig,
    /// User to run as.
    pub user: Option<String>,
    /// Wait before the stop signal.
    pub shutdown_delay: Option<Duration>,
    /// What its job was dispatched with: of servers alone.
    pub payload: Option<Box<TaskPayload>>,
    /// Volumes of its group that it sees.
    pub volume_mounts: Vec<VolumeMount>,
    /// What it brings along, in file order.
    pub artifacts: Vec<TaskArtifact>,
    /// Files that are made of templates before each start, in their order.
    pub templates: Vec<TaskTemplate>,
}

/// What a job was dispatched with, for a file of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPayload {
    /// Path of the file below the task's `local` directory.
    pub file: String,
    /// What is in it; see [`crate::limits::DISPATCH_PAYLOAD_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// When a task runs in the life of its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Before, after the start of, or after the end of the main tasks.
    pub hook: LifecycleHook,
    /// Runs as long as the main tasks do instead of to completion.
    pub sidecar: bool,
}

/// See [`Lifecycle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LifecycleHook {
    /// Main tasks wait for it.
    Prestart,
    /// Starts when the main tasks run.
    Poststart,
    /// Starts when the main tasks are dead.
    Poststop,
}

/// What to do when the restart attempts of an interval are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestartMode {
    /// The task fails.
    #[default]
    Fail,
    /// Wait for the rest of the interval, then go on.
    Delay,
}

/// When a task that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Restarts allowed in one interval.
    pub attempts: u32,
    /// Window in which attempts are counted; at least 5 s.
    pub interval: Duration,
    /// Wait before each restart, plus up to a quarter of it at random.
    pub delay: Duration,
    /// After the last attempt.
    pub mode: RestartMode,
}

impl RestartPolicy {
    /// Nomad's default for a kind of job: services 2 in 30 min, batch 3 in 24 h, 15 s apart.
    #[must_use]
    pub fn default_for(kind: JobKind) -> Self {
        let (attempts, minutes) = if kind.runs_to_completion() { (3, 24 * 60) } else { (2, 30) };
        Self {
            attempts,
            interval: Duration::from_secs(minutes * 60),
            delay: Duration::from_secs(15),
            mode: RestartMode::Fail,
        }
    }
}

/// Files a task's output is kept in, per stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// Files kept, the newest included; at least 1.
    pub max_files: u32,
    /// Size of one file, MiB; at least 1.
    pub max_file_size_mb: u32,
    /// Drop the output instead.
    pub disabled: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            max_files: crate::limits::LOG_FILES_DEFAULT,
            max_file_size_mb: crate::limits::LOG_FILE_SIZE_MB_DEFAULT,
            disabled: false,
        }
    }
}

/// Network of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkSpec {
    /// Those with a fixed number first, else in file order; labels unique.
    pub ports: Vec<PortSpec>,
    /// Which network.
    pub mode: NetworkMode,
    /// How names are resolved in it; the node's way unless given.
    pub dns: Option<DnsConfig>,
    /// The host's name as its tasks see it; may refer to variables. The node's unless given.
    pub hostname: Option<String>,
}

/// A port an allocation asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSpec {
    /// Name in `NOMAD_PORT_<label>`.
    pub label: String,
    /// The port asked for; absent: any free dynamic one.
    pub fixed: Option<u16>,
    /// Port inside the task (`to`): that of the node unless given; in host mode only shown.
    pub to: Option<u16>,
    /// Addresses of the node that it is at; the default one unless given.
    pub host_network: Option<String>,
}

/// How two attribute values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// `=`, `==`, `is`
    Equal,
    /// `!=`, `not`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `version`: go-version style requirement
    Version,
    /// `semver`
    Semver,
    /// `regexp`
    Regexp,
    /// `set_contains`, `set_contains_all`
    SetContainsAll,
    /// `set_contains_any`
    SetContainsAny,
    /// `is_set`
    IsSet,
    /// `is_not_set`
    IsNotSet,
    /// `distinct_hosts`: a node has at most one allocation, of the job or of the group; `false` on the
    /// right: however many
    DistinctHosts,
    /// `distinct_property`: nodes of one value have at most as many as the right says, 1 unless it does
    DistinctProperty,
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// Left side, usually `${attr.…}` or `${device.attr.…}`.
    pub left: String,
    /// How to compare.
    pub operator: Operator,
    /// Right side; empty for `is_set` and `is_not_set`.
    pub right: String,
}

/// Something that is preferred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// What is compared.
    pub rule: Constraint,
    /// −100 to 100, not 0.
    pub weight: i8,
}
