//! What of the agent's answers is shown. Unknown fields are passed over; absent ones are empty.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::device_shapes::DeviceStats;

use crate::agent::{ConfigProblem, DeviceExplanation};
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::ids::AllocId;
use ostler_model::saved::JobOrigin;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;

/// `null` is the empty value.
pub(super) fn or_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A job in a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct JobStub {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// `service`, `batch` …
    #[serde(rename = "Type")]
    pub kind: String,
    /// 1 to 100.
    pub priority: u32,
    /// `pending`, `running`, `dead`.
    pub status: String,
    /// What it waits for.
    pub status_description: String,
    /// Somebody stopped it.
    pub stop: bool,
    /// Allocations by group.
    pub job_summary: JobSummary,
    /// When this version came.
    pub submit_time: Timestamp,
}

/// Allocations of a job by group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct JobSummary {
    /// By group.
    #[serde(deserialize_with = "or_empty")]
    pub summary: BTreeMap<String, GroupSummary>,
}

/// Allocations of a group by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct GroupSummary {
    /// Places that cannot be filled now.
    pub queued: u32,
    /// Not running yet.
    pub starting: u32,
    /// Running.
    pub running: u32,
    /// Failed.
    pub failed: u32,
    /// Ended well.
    pub complete: u32,
}

impl JobSummary {
    /// All groups together.
    pub(in crate::cli) fn total(&self) -> GroupSummary {
        self.summary.values().fold(GroupSummary::default(), |sum, group| GroupSummary {
            queued: sum.queued.saturating_add(group.queued),
            starting: sum.starting.saturating_add(group.starting),
            running: sum.running.saturating_add(group.running),
            failed: sum.failed.saturating_add(group.failed),
            complete: sum.complete.saturating_add(group.complete),
        })
    }
}

/// A job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Job {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name, when it has another.
    pub name: String,
    /// `service`, `batch` …
    #[serde(rename = "Type")]
    pub kind: String,
    /// 1 to 100.
    pub priority: u32,
    /// Where it may run.
    #[serde(deserialize_with = "or_empty")]
    pub datacenters: Vec<String>,
    /// Its namespace.
    pub namespace: String,
    /// `pending`, `running`, `dead`.
    pub status: String,
    /// What it waits for.
    pub status_description: String,
    /// Somebody stopped it.
    pub stop: bool,
    /// 0 for the first.
    pub version: u64,
    /// When this version came.
    pub submit_time: Timestamp,
    /// For `--check-index`.
    pub job_modify_index: u64,
    /// Its groups.
    #[serde(deserialize_with = "or_empty")]
    pub task_groups: Vec<TaskGroup>,
    /// Who gave it.
    pub origin: Option<JobOrigin>,
    /// Its places without an allocation. An agent of another version may not say.
    pub places: Places,
}

/// Places of a job without an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Places {
    /// They wait for something to become free that is not the job's own.
    pub waiting: u64,
    /// Their allocations completed and were collected.
    pub complete: u64,
    /// Their allocations failed and were collected.
    pub failed: u64,
}

/// A group of a job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct TaskGroup {
    /// How many allocations it wants.
    pub count: u32,
}

/// An allocation. In lists the resources are absent.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::cli) struct Alloc {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// `<job>.<group>[<index>]`.
    #[serde(default)]
    pub name: String,
    /// Its node.
    #[serde(default)]
    pub node_name: String,
    /// Its job.
    #[serde(rename = "JobID", default)]
    pub job_id: String,
    /// Of lists only: see [`Alloc::version`].
    #[serde(default)]
    pub job_version: Option<u64>,
    /// Of the full form only.
    #[serde(default)]
    pub job: Option<JobOfAlloc>,
    /// Its group.
    #[serde(default)]
    pub task_group: String,
    /// Whether it shall run.
    pub desired_status: DesiredStatus,
    /// Why.
    #[serde(default)]
    pub desired_description: String,
    /// What became of it.
    pub client_status: ClientStatus,
    /// A sentence on it.
    #[serde(default)]
    pub client_description: String,
    /// Its tasks.
    #[serde(default, deserialize_with = "or_empty")]
    pub task_states: BTreeMap<String, TaskState>,
    /// The verdict on its health.
    #[serde(default)]
    pub deployment_status: Option<Health>,
    /// What it was given.
    #[serde(default)]
    pub allocated_resources: Option<Given>,
    /// Whose place it takes.
    #[serde(default)]
    pub previous_allocation: Option<String>,
    /// When it was made.
    #[serde(default)]
    pub create_time: Timestamp,
    /// When it last changed.
    #[serde(default)]
    pub modify_time: Timestamp,
}

impl Alloc {
    /// Version of the job it is of.
    pub(in crate::cli) fn version(&self) -> u64 {
        self.job_version.or(self.job.as_ref().map(|job| job.version)).unwrap_or(0)
    }

    /// Why it is as it is, in a few words.
    pub(in crate::cli) fn why(&self) -> &str {
        match (self.client_description.as_str(), self.desired_description.as_str()) {
            ("", why) | (why, _) => why,
        }
    }

    /// Whether it shall run, in a word.
    pub(in crate::cli) const fn desired(&self) -> &'static str {
        match self.desired_status {
            DesiredStatus::Run => "run",
            DesiredStatus::Stop => "stop",
        }
    }

    /// It ended.
    pub(in crate::cli) fn over(&self) -> bool {
        self.client_status.terminal()
    }
}

/// What is used of an allocation's job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct JobOfAlloc {
    /// Its version.
    pub version: u64,
}

/// The verdict on an allocation's health.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Health {
    /// None before there is one.
    pub healthy: Option<bool>,
}

/// The state of a task.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct TaskState {
    /// Where it is.
    pub state: TaskStatus,
    /// It counts as failed.
    pub failed: bool,
    /// How often it was restarted.
    pub restarts: u64,
    /// RFC 3339.
    pub last_restart: Option<String>,
    /// RFC 3339.
    pub started_at: Option<String>,
    /// RFC 3339.
    pub finished_at: Option<String>,
    /// The newest events, oldest first.
    #[serde(deserialize_with = "or_empty")]
    pub events: Vec<TaskEvent>,
    /// All events that ever were.
    pub events_total: u64,
}

/// Something that happened to a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct TaskEvent {
    /// What.
    #[serde(rename = "Type")]
    pub kind: String,
    /// When.
    pub time: Timestamp,
    /// In words.
    pub display_message: String,
    /// It makes the task failed.
    pub fails_task: bool,
    /// The same as data.
    #[serde(deserialize_with = "or_empty")]
    pub details: BTreeMap<String, String>,
}

/// What an allocation was given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Given {
    /// By task.
    #[serde(deserialize_with = "or_empty")]
    pub tasks: BTreeMap<String, TaskGiven>,
    /// Hooks of tasks that have one.
    #[serde(deserialize_with = "or_empty")]
    pub task_lifecycles: BTreeMap<String, Option<Lifecycle>>,
    /// Of all tasks together.
    pub shared: Shared,
}

/// What a task was given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct TaskGiven {
    /// Processor.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Devices.
    #[serde(deserialize_with = "or_empty")]
    pub devices: Vec<Devices>,
}

/// Processor.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Cpu {
    /// MHz.
    pub cpu_shares: u64,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct Memory {
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub mib: u64,
}

/// Devices of one group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Devices {
    /// Of the group.
    pub vendor: String,
    /// Of the group.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Of the group.
    pub name: String,
    /// Which of the group.
    #[serde(rename = "DeviceIDs", deserialize_with = "or_empty")]
    pub ids: Vec<String>,
}

/// When a task runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Lifecycle {
    /// `prestart` …
    pub hook: String,
    /// Beside the main tasks.
    pub sidecar: bool,
}

/// What the tasks of an allocation share.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Shared {
    /// Disk, MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mib: u64,
    /// Ports.
    #[serde(deserialize_with = "or_empty")]
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Port {
    /// Its name.
    pub label: String,
    /// On the host.
    pub value: u16,
    /// Where the task listens; 0 for the same.
    pub to: u16,
    /// The host's address.
    #[serde(rename = "HostIP")]
    pub host_ip: String,
}

/// What an allocation uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Usage {
    /// By task.
    #[serde(deserialize_with = "or_empty")]
    pub tasks: BTreeMap<String, TaskUsage>,
}

/// What a task uses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct TaskUsage {
    /// Measured.
    pub resource_usage: ResourceUsage,
}

/// Measurements; what is not in a `measured` is not known.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct ResourceUsage {
    /// Memory.
    pub memory_stats: MemoryStats,
    /// Processor.
    pub cpu_stats: CpuStats,
    /// Devices, by group.
    #[serde(deserialize_with = "or_empty")]
    pub device_stats: Vec<DeviceStats>,
}

/// Memory in use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct MemoryStats {
    /// Bytes.
    #[serde(rename = "RSS")]
    pub rss: u64,
    /// What was measured.
    #[serde(deserialize_with = "or_empty")]
    pub measured: Vec<String>,
}

/// Processor time in use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct CpuStats {
    /// Per cent of one core.
    pub percent: f64,
    /// MHz.
    pub total_ticks: f64,
    /// What was measured.
    #[serde(deserialize_with = "or_empty")]
    pub measured: Vec<String>,
}

/// The answer to a registration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Registered {
    /// For people.
    pub warnings: String,
    /// Index of the version.
    pub job_modify_index: u64,
    /// What became of it.
    pub registered: Effects,
    /// Those of the warnings that the job's text alone does not tell. An agent of another version
    /// may not say.
    pub agent_warnings: Option<Vec<String>>,
}

impl Registered {
    /// What to tell who has read the job already, and was told what its text says.
    pub(in crate::cli) fn told(&self) -> String {
        not_of_the_text(self.agent_warnings.as_deref(), &self.warnings)
    }
}

fn not_of_the_text(agent: Option<&[String]>, all: &str) -> String {
    agent.map_or_else(|| all.to_owned(), |warnings| warnings.join("\n"))
}

/// The answer to a validation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Validated {
    /// What is wrong with the tasks' configurations. An agent of another version may not say.
    #[serde(deserialize_with = "or_empty")]
    config_problems: Vec<WrongConfig>,
    /// What keeps a right job from running here.
    #[serde(deserialize_with = "or_empty")]
    pub agent_warnings: Vec<String>,
}

impl Validated {
    /// What is wrong with the tasks' configurations.
    pub(in crate::cli) fn problems(self) -> Vec<ConfigProblem> {
        let problem = |wrong| {
            let WrongConfig { group, task, path, message, suggestion } = wrong;
            ConfigProblem { group, task, path, message, suggestion }
        };
        self.config_problems.into_iter().map(problem).collect()
    }
}

/// Something wrong with a task's configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct WrongConfig {
    group: String,
    task: String,
    path: String,
    message: String,
    suggestion: Option<String>,
}

/// What a registration did.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Effects {
    /// Version of the job.
    pub version: u64,
    /// New allocations.
    pub placed: Vec<AllocId>,
    /// Changed without a restart.
    pub updated: Vec<AllocId>,
    /// Told to stop.
    pub stopped: Vec<AllocId>,
}

/// The answer to a plan.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Plan {
    /// What would happen.
    pub annotations: Annotations,
    /// For `--check-index`.
    pub job_modify_index: u64,
    /// For people.
    pub warnings: String,
    /// What differs, a line for each field.
    #[serde(deserialize_with = "or_empty")]
    pub changes: Vec<String>,
    /// What would wait, and why.
    #[serde(deserialize_with = "or_empty")]
    pub waiting: Vec<String>,
    /// Each device request, with every candidate. An agent of another version may not say.
    #[serde(deserialize_with = "or_empty")]
    pub devices: Vec<DeviceExplanation>,
    /// Those of the warnings that the job's text alone does not tell. An agent of another version
    /// may not say.
    pub agent_warnings: Option<Vec<String>>,
}

impl Plan {
    /// What to tell who has read the job already, and was told what its text says.
    pub(in crate::cli) fn told(&self) -> String {
        not_of_the_text(self.agent_warnings.as_deref(), &self.warnings)
    }
}

/// What a registration would do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct Annotations {
    /// By group.
    #[serde(rename = "DesiredTGUpdates", deserialize_with = "or_empty")]
    pub groups: BTreeMap<String, GroupPlan>,
}

/// What would happen to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct GroupPlan {
    /// Left as they are.
    pub ignore: u32,
    /// New.
    pub place: u32,
    /// Stopped.
    pub stop: u32,
    /// Updated without a restart.
    pub in_place_update: u32,
    /// Stopped and replaced.
    pub destructive_update: u32,
}

impl GroupPlan {
    /// Something would happen.
    pub(in crate::cli) const fn changes(&self) -> bool {
        let Self { ignore: _, place, stop, in_place_update, destructive_update } = *self;
        place > 0 || stop > 0 || in_place_update > 0 || destructive_update > 0
    }
}

/// An answer that says no more than that it was done.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in crate::cli) struct Done {}

/// What is wrong with the jobs directory.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct JobsDir {
    /// As a whole.
    pub problem: Option<String>,
}

/// The answer to a stop.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(in crate::cli) struct Stopped {
    /// What there is to know beside that it was done.
    pub warnings: Option<String>,
}
