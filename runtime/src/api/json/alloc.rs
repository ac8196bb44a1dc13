//! Allocations: the short form of lists and the full one.

use std::collections::BTreeMap;

use serde::Serialize;

use super::given::{Given, OldGiven};
use super::task::{TaskStateJson, task_states};
use super::{Absent, Moment};
use crate::agent::AllocView;
use crate::api::evaluations;
use ostler_model::alloc::{AllocState, Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::AllocId;
use ostler_model::job::JobKind;
use ostler_model::saved::DeploymentStatus;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

/// An allocation as the shapes need it.
#[derive(Clone, Copy)]
pub(in crate::api) struct Seen<'a> {
    pub allocation: &'a Allocation,
    pub state: &'a AllocState,
    pub modify_index: u64,
    pub modify_time: Timestamp,
    pub node: &'a NodeView,
}

impl<'a> Seen<'a> {
    pub fn new(view: &'a AllocView, node: &'a NodeView) -> Self {
        Self {
            allocation: &view.allocation,
            state: &view.state,
            modify_index: view.modify_index,
            modify_time: view.modify_time,
            node,
        }
    }
}

/// `DesiredTransition`: what a scheduler wants next; here there is none.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Transition {
    migrate: Absent,
    reschedule: Absent,
    force_reschedule: Absent,
}

/// `AllocDeploymentStatus`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct HealthJson {
    healthy: Option<bool>,
    timestamp: Option<Moment>,
    canary: bool,
    modify_index: u64,
}

impl From<&DeploymentStatus> for HealthJson {
    fn from(status: &DeploymentStatus) -> Self {
        let DeploymentStatus { healthy, changed_at, canary, modify_index } = status;
        Self {
            healthy: *healthy,
            timestamp: Moment::maybe(*changed_at),
            canary: *canary,
            modify_index: *modify_index,
        }
    }
}

/// `AllocListStub`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct AllocStub<'a> {
    #[serde(rename = "ID")]
    id: AllocId,
    #[serde(rename = "EvalID")]
    eval_id: String,
    name: &'a str,
    namespace: &'a str,
    #[serde(rename = "NodeID")]
    node_id: String,
    node_name: &'a str,
    #[serde(rename = "JobID")]
    job_id: &'a str,
    job_type: JobKind,
    job_version: u64,
    task_group: &'a str,
    allocated_resources: Option<Given<'a>>,
    desired_status: DesiredStatus,
    desired_description: &'a str,
    client_status: ClientStatus,
    client_description: &'a str,
    desired_transition: Transition,
    task_states: BTreeMap<&'a str, TaskStateJson<'a>>,
    deployment_status: Option<HealthJson>,
    #[serde(rename = "FollowupEvalID")]
    followup_eval_id: &'static str,
    reschedule_tracker: Absent,
    preempted_allocations: Absent,
    preempted_by_allocation: &'static str,
    create_index: u64,
    modify_index: u64,
    create_time: u64,
    modify_time: u64,
}

impl<'a> AllocStub<'a> {
    /// `resources`: with what it was given.
    pub fn new(seen: Seen<'a>, resources: bool) -> Self {
        let Seen { allocation, state, modify_index, modify_time, node } = seen;
        Self {
            id: allocation.id,
            eval_id: evaluations::id(&allocation.job.id, allocation.create_index),
            name: &allocation.name,
            namespace: &allocation.job.namespace,
            node_id: node.id.to_string(),
            node_name: &node.name,
            job_id: allocation.job.id.as_str(),
            job_type: allocation.job.kind,
            job_version: allocation.job_version,
            task_group: allocation.group.as_str(),
            allocated_resources: resources.then(|| Given::from(allocation)),
            desired_status: allocation.desired,
            desired_description: &allocation.desired_description,
            client_status: state.client_status,
            client_description: &state.client_description,
            desired_transition: Transition::default(),
            task_states: task_states(&state.tasks),
            deployment_status: state.health.as_ref().map(HealthJson::from),
            followup_eval_id: "",
            reschedule_tracker: Absent,
            preempted_allocations: Absent,
            preempted_by_allocation: "",
            create_index: allocation.create_index,
            modify_index,
            create_time: allocation.created_at.nanos(),
            modify_time: modify_time.nanos(),
        }
    }
}

/// `AllocationMetric`: how the place was found. One node, so there was no choice.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PlacingJson<'a> {
    nodes_evaluated: u32,
    nodes_filtered: u32,
    nodes_available: BTreeMap<&'a str, u32>,
    class_filtered: Absent,
    constraint_filtered: Absent,
    nodes_exhausted: u32,
    class_exhausted: Absent,
    dimension_exhausted: Absent,
    quota_exhausted: Absent,
    scores: Absent,
    score_meta_data: Absent,
    allocation_time: u64,
    coalesced_failures: u32,
}

/// `Allocation`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct AllocJson<'a> {
    #[serde(rename = "ID")]
    id: AllocId,
    namespace: &'a str,
    #[serde(rename = "EvalID")]
    eval_id: String,
    name: &'a str,
    #[serde(rename = "NodeID")]
    node_id: String,
    node_name: &'a str,
    #[serde(rename = "JobID")]
    job_id: &'a str,
    job: serde_json::Value,
    task_group: &'a str,
    resources: OldGiven<'a>,
    shared_resources: OldGiven<'a>,
    task_resources: BTreeMap<&'a str, OldGiven<'a>>,
    allocated_resources: Given<'a>,
    metrics: PlacingJson<'a>,
    desired_status: DesiredStatus,
    desired_description: &'a str,
    desired_transition: Transition,
    client_status: ClientStatus,
    client_description: &'a str,
    task_states: BTreeMap<&'a str, TaskStateJson<'a>>,
    #[serde(rename = "DeploymentID")]
    deployment_id: &'static str,
    deployment_status: Option<HealthJson>,
    /// The allocation shares the node's network: nothing was set up for it.
    network_status: Absent,
    previous_allocation: Option<AllocId>,
    create_index: u64,
    modify_index: u64,
    alloc_modify_index: u64,
    create_time: u64,
    modify_time: u64,
}

impl<'a> AllocJson<'a> {
    pub fn new(seen: Seen<'a>) -> Self {
        let Seen { allocation, state, modify_index, modify_time, node } = seen;
        Self {
            id: allocation.id,
            namespace: &allocation.job.namespace,
            eval_id: evaluations::id(&allocation.job.id, allocation.create_index),
            name: &allocation.name,
            node_id: node.id.to_string(),
            node_name: &node.name,
            job_id: allocation.job.id.as_str(),
            job: super::job::of_alloc(allocation),
            task_group: allocation.group.as_str(),
            resources: OldGiven::all(allocation),
            shared_resources: OldGiven::shared(allocation),
            task_resources: OldGiven::by_task(allocation),
            allocated_resources: Given::from(allocation),
            metrics: PlacingJson {
                nodes_evaluated: 1,
                nodes_filtered: 0,
                nodes_available: BTreeMap::from([(node.datacenter.as_str(), 1)]),
                class_filtered: Absent,
                constraint_filtered: Absent,
                nodes_exhausted: 0,
                class_exhausted: Absent,
                dimension_exhausted: Absent,
                quota_exhausted: Absent,
                scores: Absent,
                score_meta_data: Absent,
                allocation_time: 0,
                coalesced_failures: 0,
            },
            desired_status: allocation.desired,
            desired_description: &allocation.desired_description,
            desired_transition: Transition::default(),
            client_status: state.client_status,
            client_description: &state.client_description,
            task_states: task_states(&state.tasks),
            deployment_id: "",
            deployment_status: state.health.as_ref().map(HealthJson::from),
            network_status: Absent,
            previous_allocation: allocation.previous,
            create_index: allocation.create_index,
            modify_index,
            alloc_modify_index: allocation.modify_index,
            create_time: allocation.created_at.nanos(),
            modify_time: modify_time.nanos(),
        }
    }
}
