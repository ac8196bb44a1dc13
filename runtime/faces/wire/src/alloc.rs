//! Allocations, their tasks, and the evaluations that created them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::event::TaskEvent;
use ostler_model::ids::AllocId;
use ostler_model::saved::{DeploymentStatus, DnsConfig, NetworkStatus};
use ostler_model::task::{ExitResult, TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::message::{json_only, json_or_not_empty, time_if_any};
use crate::{
    Absent, AllocatedResources, LegacyResources, RescheduleTracker, Text, WireJob, moment, or_empty,
};

/// Nomad's `AllocListStub` and `Allocation`. A field that only one of them has is `None` in the
/// other. `J` is the form in which the job is written or read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Alloc<'a, J = WireJob<'a>> {
    /// The id of the allocation, a UUID.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// The id of the evaluation that created it.
    #[serde(rename = "EvalID", serialize_with = "json_only")]
    pub eval_id: Text<'a>,
    /// The name of the allocation: `<job>.<group>[<index>]`.
    #[serde(serialize_with = "json_only")]
    pub name: Text<'a>,
    /// The namespace of its job.
    #[serde(serialize_with = "json_only")]
    pub namespace: Text<'a>,
    /// The id of the node that it is placed on.
    #[serde(rename = "NodeID")]
    pub node_id: Text<'a>,
    /// The name of that node.
    #[serde(serialize_with = "json_only")]
    pub node_name: Text<'a>,
    /// The id of its job, without the namespace.
    #[serde(rename = "JobID", serialize_with = "json_only")]
    pub job_id: Text<'a>,
    /// The type of its job, such as `service`. In lists only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_type: Option<Text<'a>>,
    /// The version of its job. In lists only; see [`Alloc::version`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_version: Option<u64>,
    /// The job as it was when the allocation was placed. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<J>,
    /// The name of its task group.
    #[serde(serialize_with = "json_only")]
    pub task_group: Text<'a>,
    /// The resources of all its tasks together, in Nomad's oldest form. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<LegacyResources<'a>>,
    /// The resources that its tasks share, in Nomad's oldest form. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_resources: Option<LegacyResources<'a>>,
    /// The resources of each task, in Nomad's oldest form. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_resources: Option<BTreeMap<Text<'a>, LegacyResources<'a>>>,
    /// The resources that it was given. In lists only with `?resources=true`.
    #[serde(serialize_with = "json_only")]
    pub allocated_resources: Option<AllocatedResources<'a>>,
    /// How its node was chosen. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<AllocMetric>,
    /// Whether the scheduler wants it to run or to stop.
    #[serde(serialize_with = "json_only")]
    pub desired_status: DesiredStatus,
    /// Why the scheduler wants that, in one sentence.
    #[serde(serialize_with = "json_only")]
    pub desired_description: Text<'a>,
    /// The state that its node reports, such as `running`.
    pub client_status: ClientStatus,
    /// One sentence about the state that its node reports.
    pub client_description: Text<'a>,
    /// The next change that a scheduler wants. This agent sets only `migrate`.
    #[serde(serialize_with = "json_only")]
    pub desired_transition: DesiredTransition,
    /// The state of each task, by the name of the task.
    #[serde(deserialize_with = "or_empty")]
    pub task_states: BTreeMap<Text<'a>, WireTaskState<'a>>,
    /// The id of its deployment. Not in lists.
    #[serde(rename = "DeploymentID", skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<Text<'a>>,
    /// The verdict on its health, once there is one.
    #[serde(serialize_with = "json_or_not_empty")]
    pub deployment_status: Option<AllocHealth<'a>>,
    /// Its own network; `null` if it uses the network of the node. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_status: Option<Option<AllocNetworkStatus<'a>>>,
    /// The id of the allocation that it replaces. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_allocation: Option<Option<Text<'a>>>,
    /// The id of the allocation that replaces it. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_allocation: Option<Text<'a>>,
    /// The id of the evaluation that will place its successor after it failed.
    #[serde(rename = "FollowupEvalID", skip_serializing_if = "Option::is_none")]
    pub followup_eval_id: Option<Text<'a>>,
    /// The failed allocations that it follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reschedule_tracker: Option<Option<RescheduleTracker>>,
    /// This agent preempts nothing: always `null`. In lists only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted_allocations: Option<Absent>,
    /// This agent preempts nothing: always empty. In lists only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted_by_allocation: Option<Text<'a>>,
    /// The index of the change that created it.
    #[serde(serialize_with = "json_only")]
    pub create_index: u64,
    /// The index of its last change.
    #[serde(serialize_with = "json_only")]
    pub modify_index: u64,
    /// The index of the last change of its desired state. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_modify_index: Option<u64>,
    /// The time at which it was created.
    #[serde(serialize_with = "json_only")]
    pub create_time: Timestamp,
    /// The time of its last change.
    #[serde(serialize_with = "json_only")]
    pub modify_time: Timestamp,
}

/// Nomad's `AllocNetworkStatus`: the network of one allocation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocNetworkStatus<'a> {
    /// The name of the interface inside its network namespace.
    pub interface_name: Text<'a>,
    /// The IP address of that interface.
    pub address: Text<'a>,
    /// How the tasks resolve names, if the network configures it.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns<'a>>,
}

impl<'a> From<&'a NetworkStatus> for AllocNetworkStatus<'a> {
    fn from(status: &'a NetworkStatus) -> Self {
        Self {
            interface_name: (&status.interface_name).into(),
            address: (&status.address).into(),
            dns: status.dns.as_ref().map(Dns::from),
        }
    }
}

/// Nomad's `DNSConfig`: how the tasks of an allocation resolve names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Dns<'a> {
    /// The addresses of the name servers.
    #[serde(deserialize_with = "or_empty")]
    pub servers: Cow<'a, [String]>,
    /// The domains that are appended to short names.
    #[serde(deserialize_with = "or_empty")]
    pub searches: Cow<'a, [String]>,
    /// The options of the resolver, as in `resolv.conf`.
    #[serde(deserialize_with = "or_empty")]
    pub options: Cow<'a, [String]>,
}

impl<'a> From<&'a DnsConfig> for Dns<'a> {
    fn from(dns: &'a DnsConfig) -> Self {
        Self {
            servers: Cow::Borrowed(&dns.servers),
            searches: Cow::Borrowed(&dns.searches),
            options: Cow::Borrowed(&dns.options),
        }
    }
}

impl Alloc<'_> {
    /// The version of its job.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.job_version.or(self.job.as_ref().map(|job| job.facts.version)).unwrap_or(0)
    }

    /// A few words on why it is in its state: the node's description, or the scheduler's.
    #[must_use]
    pub fn description(&self) -> &str {
        match (&*self.client_description, &*self.desired_description) {
            ("", why) | (why, _) => why,
        }
    }

    /// The desired state as Nomad writes it: `run` or `stop`.
    #[must_use]
    pub const fn desired_word(&self) -> &'static str {
        match self.desired_status {
            DesiredStatus::Run => "run",
            DesiredStatus::Stop => "stop",
        }
    }

    /// Whether its client status is complete or failed.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.client_status.is_terminal()
    }

    /// Whether it is healthy; none before there is a verdict.
    #[must_use]
    pub fn healthy(&self) -> Option<bool> {
        self.deployment_status.as_ref().and_then(|health| health.healthy)
    }
}

/// Nomad's `DesiredTransition`: the next change that a scheduler wants.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredTransition {
    /// Its node is drained, and it has to move.
    pub migrate: Option<bool>,
    /// This agent never sets it.
    pub reschedule: Absent,
    /// This agent never sets it.
    pub force_reschedule: Absent,
}

/// Nomad's `AllocDeploymentStatus`: the verdict on the health of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocHealth<'a> {
    /// Whether it is healthy; none before there is a verdict.
    pub healthy: Option<bool>,
    /// The time of the verdict, RFC 3339.
    #[serde(serialize_with = "time_if_any")]
    pub timestamp: Option<Text<'a>>,
    /// Whether it is a canary.
    pub canary: bool,
    /// The index of the change that recorded the verdict.
    pub modify_index: u64,
}

impl From<&DeploymentStatus> for AllocHealth<'_> {
    fn from(status: &DeploymentStatus) -> Self {
        let &DeploymentStatus { healthy, changed_at, canary, modify_index, deployment: _ } = status;
        Self { healthy, timestamp: changed_at.map(moment), canary, modify_index }
    }
}

/// Nomad's `TaskState`. Times are RFC 3339.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireTaskState<'a> {
    /// Whether the task is pending, running or dead.
    pub state: TaskStatus,
    /// Whether the task counts as failed.
    pub failed: bool,
    /// How often the task was restarted.
    pub restarts: u64,
    /// The time of its last restart.
    #[serde(serialize_with = "time_if_any")]
    pub last_restart: Option<Text<'a>>,
    /// The time at which it first started.
    #[serde(serialize_with = "time_if_any")]
    pub started_at: Option<Text<'a>>,
    /// The time at which it ended for good.
    #[serde(serialize_with = "time_if_any")]
    pub finished_at: Option<Text<'a>>,
    /// Its newest events, the oldest of them first.
    #[serde(deserialize_with = "or_empty")]
    pub events: Vec<WireTaskEvent<'a>>,
    /// Ours: the number of all its events so far, so that a reader notices a gap.
    #[serde(serialize_with = "json_only")]
    pub events_total: u64,
    /// Ours: how its last run ended.
    #[serde(serialize_with = "json_only")]
    pub last_exit: Option<LastExit<'a>>,
}

impl<'a> From<&'a TaskState> for WireTaskState<'a> {
    fn from(state: &'a TaskState) -> Self {
        Self {
            state: state.status,
            failed: state.failed,
            restarts: state.restarts,
            last_restart: state.last_restart.map(moment),
            started_at: state.started_at.map(moment),
            finished_at: state.finished_at.map(moment),
            events: state.events.iter().map(WireTaskEvent::from).collect(),
            events_total: state.events_total,
            last_exit: state.last_exit.as_ref().map(LastExit::from),
        }
    }
}

/// How a run of a task ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LastExit<'a> {
    /// The exit code of the process.
    pub exit_code: i32,
    /// The number of the signal that ended it; 0 if none did.
    pub signal: u32,
    /// Whether the kernel killed it because memory ran out.
    #[serde(rename = "OOMKilled")]
    pub oom_killed: bool,
    /// The error that the driver reported; empty if there was none.
    pub error: Text<'a>,
}

impl<'a> From<&'a ExitResult> for LastExit<'a> {
    fn from(exit: &'a ExitResult) -> Self {
        let ExitResult { exit_code, signal, oom_killed, ref error } = *exit;
        Self { exit_code, signal, oom_killed, error: error.as_deref().unwrap_or_default().into() }
    }
}

/// Nomad's `TaskEvent`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WireTaskEvent<'a> {
    /// The kind of the event, such as `Started`.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The time of the event, nanoseconds since 1970.
    pub time: Timestamp,
    /// The reason that the person or program gave who caused the event.
    #[serde(serialize_with = "json_only")]
    pub message: Text<'a>,
    /// The event in one sentence, for people.
    pub display_message: Text<'a>,
    /// The facts of the event, by name.
    #[serde(deserialize_with = "or_empty")]
    pub details: Cow<'a, BTreeMap<String, String>>,
    /// Whether the task counts as failed because of the event.
    pub fails_task: bool,
    /// The facts of the event in the older form. Servers are not told it, and a reader ignores it.
    #[serde(flatten, skip_deserializing)]
    pub older: Option<OlderEventFields<'a>>,
}

impl<'a> From<&'a TaskEvent> for WireTaskEvent<'a> {
    fn from(event: &'a TaskEvent) -> Self {
        let TaskEvent { kind, time, message, details, fails_task } = event;
        Self {
            kind: kind.as_str().into(),
            time: *time,
            message: details.get("message").map_or("", String::as_str).into(),
            display_message: message.into(),
            details: Cow::Borrowed(details),
            fails_task: *fails_task,
            older: None,
        }
    }
}

/// The older form of the details of an event, which some of Nomad's tools still read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs, reason = "names of details")]
pub struct OlderEventFields<'a> {
    pub restart_reason: Text<'a>,
    pub setup_error: Text<'a>,
    pub driver_error: Text<'a>,
    pub exit_code: i64,
    pub signal: i64,
    pub kill_timeout: u64,
    pub kill_error: Text<'a>,
    pub kill_reason: Text<'a>,
    pub start_delay: i64,
    pub download_error: Text<'a>,
    pub validation_error: Text<'a>,
    pub disk_limit: i64,
    pub failed_sibling: Text<'a>,
    pub vault_error: Text<'a>,
    pub task_signal_reason: Text<'a>,
    pub task_signal: Text<'a>,
    pub driver_message: Text<'a>,
    pub generic_source: Text<'a>,
}

/// Nomad's `AllocationMetric`: how a node was chosen, or why none was.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocMetric {
    /// The number of nodes that were considered.
    pub nodes_evaluated: u32,
    /// The number of nodes that are ruled out whatever resources they have.
    pub nodes_filtered: u32,
    /// The number of nodes in each data center.
    #[serde(deserialize_with = "or_empty")]
    pub nodes_available: BTreeMap<String, u32>,
    /// This agent has no node classes: always `null`.
    pub class_filtered: Absent,
    /// The constraints that rule nodes out, each with the number of nodes.
    pub constraint_filtered: Option<BTreeMap<String, u32>>,
    /// The number of nodes that have not enough free resources.
    pub nodes_exhausted: u32,
    /// This agent has no node classes: always `null`.
    pub class_exhausted: Absent,
    /// The resources that are short, each with the number of nodes.
    pub dimension_exhausted: Option<BTreeMap<String, u32>>,
    /// This agent has no quotas: always `null`.
    pub quota_exhausted: Absent,
    /// There is only one node, so nothing is scored: always `null`.
    pub scores: Absent,
    /// The one node, without scores; none if nothing was placed.
    pub score_meta_data: Option<Vec<NodeScore>>,
    /// How long the scheduler took, nanoseconds.
    pub allocation_time: u64,
    /// The number of further allocations of the group that could not be placed.
    pub coalesced_failures: u32,
}

/// Nomad's `NodeScoreMeta`: the scores of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeScore {
    /// The id of the node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// The score of the node by each criterion.
    #[serde(deserialize_with = "or_empty")]
    pub scores: BTreeMap<String, f64>,
    /// The combined score of the node.
    pub norm_score: f64,
}

/// The event that an evaluation was created for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A job was registered, or a new version of it.
    #[default]
    JobRegister,
    /// A job was stopped.
    JobDeregister,
    /// An allocation was stopped.
    AllocStop,
    /// An allocation did not fit and waits for resources.
    QueuedAllocs,
    /// An allocation failed and gets a successor.
    AllocFailure,
    /// A deployment went on, or somebody changed it.
    DeploymentWatcher,
}

/// Nomad's `Evaluation`. When it can be read, nothing is left to do: it is complete, or it stands
/// for allocations that wait.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Evaluation<'a> {
    /// The id of the evaluation, a UUID.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// The priority of the job.
    pub priority: u8,
    /// The type of the job.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// The event that it was created for.
    pub triggered_by: Trigger,
    /// The namespace of the job.
    pub namespace: Text<'a>,
    /// The id of the job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// The index at which the version of the job was registered.
    pub job_modify_index: u64,
    /// No evaluation is about a node: always empty.
    #[serde(rename = "NodeID")]
    pub node_id: Text<'a>,
    /// No evaluation is about a node: always 0.
    pub node_modify_index: u64,
    /// The id of the deployment that started with it; empty if none did.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: Text<'a>,
    /// The status: `complete`, `blocked` or `pending`.
    pub status: Text<'a>,
    /// One sentence about the status.
    pub status_description: Text<'a>,
    /// How long it waits, nanoseconds. Always 0: `wait_until` says when it is due.
    pub wait: u64,
    /// When it is due, if that is later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<Text<'a>>,
    /// No evaluation names its successor: always empty.
    pub next_eval: Text<'a>,
    /// The id of the evaluation whose allocations could not be placed; empty if there is none.
    pub previous_eval: Text<'a>,
    /// The id of the evaluation for what waits since this one; empty if nothing waits.
    pub blocked_eval: Text<'a>,
    /// What waits, by group. The agent places it by itself as soon as it fits.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: Option<Cow<'a, BTreeMap<String, AllocMetric>>>,
    /// This agent has no node classes: always `null`.
    pub class_eligibility: Absent,
    /// This agent has no node classes: always false.
    pub escaped_computed_class: bool,
    /// This agent has no quotas: always empty.
    pub quota_limit_reached: Text<'a>,
    /// It is not part of a plan: always false.
    pub annotate_plan: bool,
    /// The number of allocations that wait, by group.
    #[serde(deserialize_with = "or_empty")]
    pub queued_allocations: Cow<'a, BTreeMap<String, u32>>,
    /// The index of the change that it stands for.
    pub snapshot_index: u64,
    /// The index of the change that it stands for.
    pub create_index: u64,
    /// The index of the change that it stands for.
    pub modify_index: u64,
    /// The time of the change, nanoseconds since 1970.
    pub create_time: Timestamp,
    /// The time of the change, nanoseconds since 1970.
    pub modify_time: Timestamp,
}
