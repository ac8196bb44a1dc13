//! Allocations, their tasks and the evaluations that made them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::ids::AllocId;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Absent, AllocatedResources, Job, RescheduleTracker, Resources, Text, or_empty};

/// `AllocListStub` and `Allocation`. What only one of them has is `None` in the other. `J` is how its
/// job is written or read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Alloc<'a, J = Job<'a>> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: AllocId,
    /// The evaluation that made it.
    #[serde(rename = "EvalID")]
    pub eval_id: Text<'a>,
    /// `<job>.<group>[<index>]`.
    pub name: Text<'a>,
    /// Its namespace.
    pub namespace: Text<'a>,
    /// Its node.
    #[serde(rename = "NodeID")]
    pub node_id: Text<'a>,
    /// Name of its node.
    pub node_name: Text<'a>,
    /// Its job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// Kind of its job. Of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_type: Option<Text<'a>>,
    /// Version of its job. Of lists; see [`Alloc::version`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_version: Option<u64>,
    /// Its job as it was when it was placed. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<J>,
    /// Its group.
    pub task_group: Text<'a>,
    /// What it was given, in the oldest form. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources<'a>>,
    /// What no task of it has alone. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_resources: Option<Resources<'a>>,
    /// What each task has. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_resources: Option<BTreeMap<Text<'a>, Resources<'a>>>,
    /// What it was given; in lists where that is asked for.
    pub allocated_resources: Option<AllocatedResources<'a>>,
    /// How the place was found. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<AllocMetric>,
    /// Whether it shall run.
    pub desired_status: DesiredStatus,
    /// Why.
    pub desired_description: Text<'a>,
    /// What became of it.
    pub client_status: ClientStatus,
    /// A sentence on it.
    pub client_description: Text<'a>,
    /// What a scheduler wants next; here there is none.
    pub desired_transition: DesiredTransition,
    /// Its tasks.
    #[serde(deserialize_with = "or_empty")]
    pub task_states: BTreeMap<Text<'a>, TaskState<'a>>,
    /// Its deployment. Not of lists.
    #[serde(rename = "DeploymentID", skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<Text<'a>>,
    /// The verdict on its health.
    pub deployment_status: Option<AllocHealth<'a>>,
    /// The network of its own; null where it has the node's. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_status: Option<Option<AllocNetworkStatus<'a>>>,
    /// Whose place it takes. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_allocation: Option<Option<Text<'a>>>,
    /// Who takes its place. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_allocation: Option<Text<'a>>,
    /// What is to place its successor, where it failed.
    #[serde(rename = "FollowupEvalID", skip_serializing_if = "Option::is_none")]
    pub followup_eval_id: Option<Text<'a>>,
    /// Those before it in its place that had failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reschedule_tracker: Option<Option<RescheduleTracker>>,
    /// Of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted_allocations: Option<Absent>,
    /// Of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted_by_allocation: Option<Text<'a>>,
    /// Index of the change that made it.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// Index of the last change of what is wanted of it. Not of lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_modify_index: Option<u64>,
    /// When it was made.
    pub create_time: Timestamp,
    /// When it last changed.
    pub modify_time: Timestamp,
}

/// `AllocNetworkStatus`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocNetworkStatus<'a> {
    /// The interface in its namespace.
    pub interface_name: Text<'a>,
    /// Its address there.
    pub address: Text<'a>,
    /// How names are resolved there, where its network says so.
    #[serde(rename = "DNS")]
    pub dns: Option<Dns<'a>>,
}

/// `DNSConfig`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Dns<'a> {
    /// Addresses of name servers.
    #[serde(deserialize_with = "or_empty")]
    pub servers: Cow<'a, [String]>,
    /// Domains that short names are looked for in.
    #[serde(deserialize_with = "or_empty")]
    pub searches: Cow<'a, [String]>,
    /// Options of the resolver.
    #[serde(deserialize_with = "or_empty")]
    pub options: Cow<'a, [String]>,
}

impl Alloc<'_> {
    /// Version of the job it is of.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.job_version.or(self.job.as_ref().map(|job| job.facts.version)).unwrap_or(0)
    }

    /// Why it is as it is, in a few words.
    #[must_use]
    pub fn why(&self) -> &str {
        match (&*self.client_description, &*self.desired_description) {
            ("", why) | (why, _) => why,
        }
    }

    /// Whether it shall run, in a word.
    #[must_use]
    pub const fn desired(&self) -> &'static str {
        match self.desired_status {
            DesiredStatus::Run => "run",
            DesiredStatus::Stop => "stop",
        }
    }

    /// Its client status is complete or failed.
    #[must_use]
    pub fn terminal(&self) -> bool {
        self.client_status.terminal()
    }

    /// The verdict on its health; none before there is one.
    #[must_use]
    pub fn healthy(&self) -> Option<bool> {
        self.deployment_status.as_ref().and_then(|health| health.healthy)
    }
}

/// `DesiredTransition`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredTransition {
    /// The node is being drained, and this one with it.
    pub migrate: Option<bool>,
    /// Never wanted.
    pub reschedule: Absent,
    /// Never wanted.
    pub force_reschedule: Absent,
}

/// `AllocDeploymentStatus`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocHealth<'a> {
    /// None before there is a verdict.
    pub healthy: Option<bool>,
    /// When it was given.
    pub timestamp: Option<Text<'a>>,
    /// It is a canary.
    pub canary: bool,
    /// Index of the change.
    pub modify_index: u64,
}

/// `TaskState`. Times are RFC 3339.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskState<'a> {
    /// Where it is.
    pub state: TaskStatus,
    /// It counts as failed.
    pub failed: bool,
    /// How often it was restarted.
    pub restarts: u64,
    /// When it was last restarted.
    pub last_restart: Option<Text<'a>>,
    /// When it first started.
    pub started_at: Option<Text<'a>>,
    /// When it ended for good.
    pub finished_at: Option<Text<'a>>,
    /// The newest events, oldest first.
    #[serde(deserialize_with = "or_empty")]
    pub events: Vec<TaskEvent<'a>>,
    /// Ours: events that ever happened, so that a reader can tell a gap.
    pub events_total: u64,
    /// Ours: how the last run ended.
    pub last_exit: Option<LastExit<'a>>,
}

/// How a run ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LastExit<'a> {
    /// Its exit code.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: u32,
    /// The kernel ended it for want of memory.
    #[serde(rename = "OOMKilled")]
    pub oom_killed: bool,
    /// What the driver said went wrong.
    pub error: Text<'a>,
}

/// `TaskEvent`. The fields after `FailsTask` are an older form of `Details`, which some of Nomad's tools
/// still read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[allow(missing_docs, reason = "the older form: names of details")]
pub struct TaskEvent<'a> {
    /// What happened.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// When.
    pub time: Timestamp,
    /// What its asker gave as the reason.
    pub message: Text<'a>,
    /// In words.
    pub display_message: Text<'a>,
    /// The same as data.
    #[serde(deserialize_with = "or_empty")]
    pub details: Cow<'a, BTreeMap<String, String>>,
    /// It makes the task failed.
    pub fails_task: bool,
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

/// `AllocationMetric`: how a place was found, or why not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocMetric {
    /// Nodes that were looked at.
    pub nodes_evaluated: u32,
    /// Nodes that do not do, whatever they have.
    pub nodes_filtered: u32,
    /// Nodes by data center.
    #[serde(deserialize_with = "or_empty")]
    pub nodes_available: BTreeMap<String, u32>,
    /// Nodes have no classes.
    pub class_filtered: Absent,
    /// What keeps nodes out, with how many each does.
    pub constraint_filtered: Option<BTreeMap<String, u32>>,
    /// Nodes that have not enough.
    pub nodes_exhausted: u32,
    /// Nodes have no classes.
    pub class_exhausted: Absent,
    /// What nodes have not enough of, with how many each.
    pub dimension_exhausted: Option<BTreeMap<String, u32>>,
    /// There are no quotas.
    pub quota_exhausted: Absent,
    /// One node: nothing is scored.
    pub scores: Absent,
    /// The one node, of which nothing is scored; none where nothing was placed.
    pub score_meta_data: Option<Vec<NodeScore>>,
    /// Nanoseconds.
    pub allocation_time: u64,
    /// Places of the group that are not filled beside the first.
    pub coalesced_failures: u32,
}

/// `NodeScoreMeta`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeScore {
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// By what it was scored.
    #[serde(deserialize_with = "or_empty")]
    pub scores: BTreeMap<String, f64>,
    /// All of them together.
    pub norm_score: f64,
}

/// What an evaluation was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A job came, or another version of it.
    #[default]
    JobRegister,
    /// A job was stopped.
    JobDeregister,
    /// An allocation was stopped.
    AllocStop,
    /// Something did not fit.
    QueuedAllocs,
    /// An allocation failed, and gets a successor.
    AllocFailure,
    /// A deployment went on, or somebody asked something of it.
    DeploymentWatcher,
}

/// `Evaluation`. Nothing is left to do when it can be seen: it is complete, or stands for what waits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Evaluation<'a> {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: Text<'a>,
    /// That of the job.
    pub priority: u8,
    /// That of the job.
    #[serde(rename = "Type")]
    pub kind: Text<'a>,
    /// What it was made for.
    pub triggered_by: Trigger,
    /// That of the job.
    pub namespace: Text<'a>,
    /// Its job.
    #[serde(rename = "JobID")]
    pub job_id: Text<'a>,
    /// Index of the job's version.
    pub job_modify_index: u64,
    /// Of no node.
    #[serde(rename = "NodeID")]
    pub node_id: Text<'a>,
    /// Of no node.
    pub node_modify_index: u64,
    /// The deployment that came with it.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: Text<'a>,
    /// `complete`, `blocked` or `pending`.
    pub status: Text<'a>,
    /// A sentence on it.
    pub status_description: Text<'a>,
    /// Nanoseconds; it says when instead.
    pub wait: u64,
    /// When it does what it is to do, where that is later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_until: Option<Text<'a>>,
    /// There is none.
    pub next_eval: Text<'a>,
    /// The one that left this one's places empty; or empty.
    pub previous_eval: Text<'a>,
    /// That of what waits since this one; or empty.
    pub blocked_eval: Text<'a>,
    /// What waits, by group; the agent places it by itself when it fits.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: Option<Cow<'a, BTreeMap<String, AllocMetric>>>,
    /// Nodes have no classes.
    pub class_eligibility: Absent,
    /// Nodes have no classes.
    pub escaped_computed_class: bool,
    /// There are no quotas.
    pub quota_limit_reached: Text<'a>,
    /// It is of no plan.
    pub annotate_plan: bool,
    /// Places that wait, by group.
    #[serde(deserialize_with = "or_empty")]
    pub queued_allocations: Cow<'a, BTreeMap<String, u32>>,
    /// Index of the change.
    pub snapshot_index: u64,
    /// Index of the change.
    pub create_index: u64,
    /// Index of the change.
    pub modify_index: u64,
    /// When the change was.
    pub create_time: Timestamp,
    /// When the change was.
    pub modify_time: Timestamp,
}
