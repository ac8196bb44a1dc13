//! A job as the user wrote it, after validation: job → task groups → tasks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::artifact::TaskArtifact;
use super::cow_arc::CowArc;
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

/// Kind of work that a job is. It decides the defaults of restarts and the meaning of an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobKind {
    /// The job runs until it is stopped.
    #[default]
    Service,
    /// The job runs to completion.
    Batch,
    /// A service that runs on every node.
    System,
    /// A batch job that runs on every node.
    Sysbatch,
}

impl JobKind {
    /// Whether a successful exit ends the task, as with batch and sysbatch jobs.
    #[must_use]
    pub fn runs_to_completion(self) -> bool {
        matches!(self, Self::Batch | Self::Sysbatch)
    }
}

/// A job: its task groups and where they may run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Id of the job with its namespace, unique on the node.
    pub id: JobId,
    /// Name that people see; the id unless given.
    pub name: String,
    /// Service, batch, system or sysbatch.
    pub kind: JobKind,
    /// Priority, from 1 to 100; 50 unless given.
    pub priority: u8,
    /// Data centers in which the job may run. This agent has one data center, so they are only
    /// checked and shown.
    pub datacenters: Vec<String>,
    /// Free key-value pairs. Tasks see them as `NOMAD_META_*`; `${meta.*}` are those of the node.
    pub meta: BTreeMap<String, String>,
    /// Constraints that must all hold on this node.
    pub constraints: Vec<Constraint>,
    /// Which nodes the job prefers.
    pub placement: Placement,
    /// Servers carry out a plan for the job as a whole or not at all. A node that decides alone
    /// always does so.
    pub all_at_once: bool,
    /// Task groups, in the order of the file. Their names are unique.
    pub groups: Vec<TaskGroup>,
    /// Directory of the job file, for `${job.dir}`; absent for jobs that came over the API.
    pub source_dir: Option<PathBuf>,
    /// The periodic or parameterised job from which servers made this one.
    pub parent: Option<JobId>,
}

impl Constraint {
    /// Most live allocations of the job, or of the group that has this constraint, that it allows
    /// on one node. `None` where the constraint does not limit them.
    #[must_use]
    pub fn most_on_node(&self) -> Option<u64> {
        match self.operator {
            Operator::DistinctHosts if parse_bool(&self.right) == Some(false) => None,
            Operator::DistinctHosts => Some(1),
            Operator::DistinctProperty => Some(self.right.parse().unwrap_or(1)),
            _ => None,
        }
    }
}

/// Read a truth value from a text as Nomad does.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl Job {
    /// Namespace of the job.
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
    /// Name of the group, unique in the job.
    pub name: GroupName,
    /// Number of allocations to make of the group.
    pub count: u32,
    /// Key-value pairs that are added to those of the job.
    pub meta: BTreeMap<String, String>,
    /// Constraints that must all hold on this node.
    pub constraints: Vec<Constraint>,
    /// Which nodes the group prefers.
    pub placement: Placement,
    /// Between which counts the group may be scaled.
    pub scaling: Option<ScalingPolicy>,
    /// Ports of the allocation.
    pub network: Option<NetworkSpec>,
    /// Tasks in the order of the file, at least one. Their names are unique. Owners of allocations
    /// and of tasks share them.
    pub tasks: Vec<CowArc<Task>>,
    /// Wait between the end of service registration and the kill of the first task.
    pub shutdown_delay: Option<Duration>,
    /// Which data a later allocation gets, and how large the directory may become.
    pub ephemeral_disk: EphemeralDisk,
    /// When an allocation counts as healthy; absent where its health is not judged.
    pub health: Option<HealthPolicy>,
    /// How a new version takes over; absent: all at once.
    pub update: Option<UpdatePolicy>,
    /// When an allocation that failed gets a successor.
    pub reschedule: ReschedulePolicy,
    /// Services of the group, with the checks that tell whether they work.
    pub services: Vec<Service>,
    /// Time after its placement at which an allocation is stopped as complete.
    pub max_run_duration: Option<Duration>,
    /// Time without contact to a server after which an allocation is stopped; only servers ask
    /// for it.
    pub stop_after_disconnect: Option<Duration>,
    /// Number of allocations that a drain of the node stops at the same time, at least one.
    pub migrate_parallel: u32,
    /// Volumes of the node that the tasks may mount, by the names that the tasks use.
    pub volumes: BTreeMap<String, VolumeRequest>,
}

impl TaskGroup {
    /// The task of this name.
    #[must_use]
    pub fn task(&self, name: &TaskName) -> Option<&CowArc<Task>> {
        self.tasks.iter().find(|t| &t.name == name)
    }
}

/// The directory of an allocation: its size, and what a later allocation gets of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralDisk {
    /// The next allocation of the same index on this node gets the data.
    pub sticky: bool,
    /// As `sticky`, and the data is fetched from another node too.
    pub migrate: bool,
    /// Most that `alloc/` and the tasks' directories may hold together, MiB.
    pub size_mb: u32,
    /// The job states the size, and an allocation that holds more is ended. Beyond a default size,
    /// people are only told.
    pub size_stated: bool,
}

impl EphemeralDisk {
    /// Whether an allocation gets the data of its predecessor, by `sticky` or by `migrate`.
    #[must_use]
    pub fn keeps_data(self) -> bool {
        self.sticky || self.migrate
    }
}

impl Default for EphemeralDisk {
    /// As in Nomad: 300 MiB, and no data is kept.
    fn default() -> Self {
        Self {
            sticky: false,
            migrate: false,
            size_mb: crate::limits::EPHEMERAL_DISK_MB_DEFAULT,
            size_stated: false,
        }
    }
}

/// What decides whether an allocation is healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthCheck {
    /// The tasks run and every check passes.
    #[default]
    Checks,
    /// The tasks run.
    TaskStates,
    /// A person decides.
    Manual,
}

/// When an allocation is healthy (`update` and `migrate` blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPolicy {
    /// What decides whether an allocation is healthy.
    pub check: HealthCheck,
    /// How long the allocation must be well without a break to count as healthy.
    pub min_healthy_time: Duration,
    /// Time after its placement at which an allocation that is not healthy counts as unhealthy.
    pub healthy_deadline: Duration,
}

impl Default for HealthPolicy {
    /// As in Nomad: checks decide, after 10 s, and within 5 min.
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
    /// Name of the task, unique in the group. It is also the name of the task's directory.
    pub name: TaskName,
    /// Name of the driver that runs the task.
    pub driver: PluginName,
    /// Configuration for the driver, checked against its schema before the start. `${…}` not
    /// yet replaced.
    pub config: JsonObject,
    /// Environment of the task. `${…}` not yet replaced.
    pub env: BTreeMap<String, String>,
    /// Key-value pairs that are added to those of the group.
    pub meta: BTreeMap<String, String>,
    /// Constraints that must all hold on this node.
    pub constraints: Vec<Constraint>,
    /// Preferences for nodes.
    pub affinities: Vec<Affinity>,
    /// Resources that are reserved for the task.
    pub resources: Resources,
    /// When the task is started again. It comes from the job's default, the group's block and the
    /// task's block, in this order.
    pub restart: RestartPolicy,
    /// Time between the stop signal and the kill.
    pub kill_timeout: Duration,
    /// Name of the stop signal; the driver's default unless given.
    pub kill_signal: Option<String>,
    /// The end of this task ends the group.
    pub leader: bool,
    /// When the task runs in the life of the allocation; absent for a main task.
    pub lifecycle: Option<Lifecycle>,
    /// Files that keep the task's output.
    pub logs: LogConfig,
    /// User that the task runs as.
    pub user: Option<String>,
    /// Wait before the stop signal.
    pub shutdown_delay: Option<Duration>,
    /// Payload that the job was dispatched with; only servers send one.
    pub payload: Option<Box<TaskPayload>>,
    /// Volumes of the group that the task sees.
    pub volume_mounts: Vec<VolumeMount>,
    /// Artifacts of the task, in the order of the file.
    pub artifacts: Vec<TaskArtifact>,
    /// Files that are rendered from templates before each start, in their order.
    pub templates: Vec<TaskTemplate>,
}

/// The payload that a job was dispatched with, as a file of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPayload {
    /// Path of the file below the task's `local` directory.
    pub file: String,
    /// Content of the file; see [`crate::limits::DISPATCH_PAYLOAD_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

/// When a task runs in the life of its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// Whether the task runs before the main tasks, after their start, or after their end.
    pub hook: LifecycleHook,
    /// The task runs as long as the main tasks do, instead of to completion.
    pub sidecar: bool,
}

/// When a task with a [`Lifecycle`] starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LifecycleHook {
    /// The task runs first, and the main tasks wait for it.
    Prestart,
    /// The task starts when the main tasks run.
    Poststart,
    /// The task starts when the main tasks are dead.
    Poststop,
}

/// What to do when the restart attempts of an interval are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestartMode {
    /// The task fails.
    #[default]
    Fail,
    /// The agent waits for the rest of the interval, then restarts the task.
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
    /// What happens after the last attempt.
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

/// Files that keep a task's output, for each of its two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// Most files that are kept, the newest included; at least 1.
    pub max_files: u32,
    /// Size of one file, MiB; at least 1.
    pub max_file_size_mb: u32,
    /// The output is dropped instead.
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
    /// The ports: those with a fixed number first, the others in the order of the file. Labels
    /// are unique.
    pub ports: Vec<PortSpec>,
    /// Which kind of network the allocation has.
    pub mode: NetworkMode,
    /// How names are resolved in the network; as on the node unless given.
    pub dns: Option<DnsConfig>,
    /// The host name that the tasks see, which may refer to variables; the node's unless given.
    pub hostname: Option<String>,
}

/// A port an allocation asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortSpec {
    /// Name in `NOMAD_PORT_<label>`.
    pub label: String,
    /// The port that is asked for; absent for any free dynamic port.
    pub fixed: Option<u16>,
    /// Port inside the task (`to`); that of the node unless given. In host mode it is only shown.
    pub to: Option<u16>,
    /// Name of the host network that has the port; the default address unless given.
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
    /// `distinct_hosts`: a node has at most one allocation of the job or of the group. `false` on
    /// the right lifts the limit.
    DistinctHosts,
    /// `distinct_property`: all nodes with the same value have at most as many allocations together
    /// as the right side says, 1 unless given.
    DistinctProperty,
}

/// A condition that must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constraint {
    /// Left side, usually `${attr.…}` or `${device.attr.…}`.
    pub left: String,
    /// How to compare.
    pub operator: Operator,
    /// Right side; empty for `is_set` and `is_not_set`.
    pub right: String,
}

/// A condition that is preferred to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// The condition that is preferred to hold.
    pub rule: Constraint,
    /// Weight, from −100 to 100, but not 0.
    pub weight: i8,
}
