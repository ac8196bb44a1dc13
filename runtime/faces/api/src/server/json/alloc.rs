//! Allocations: the short form of lists and the full one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::task::task_states;
use super::{alloc_resources, job, word};
use crate::server::evaluation_ids;
use ostler_agent::{AllocView, reason};
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::ids::AllocId;
use ostler_model::saved::DeploymentStatus;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;
use ostler_wire::{
    Absent, Alloc, AllocHealth, AllocMetric, AllocNetworkStatus, DesiredTransition, NodeScore,
    RescheduleTracker, Text, WireRescheduleEvent,
};

/// The facts about an allocation that its JSON is made of.
#[derive(Clone)]
pub(crate) struct AllocJsonInput<'a> {
    pub allocation: &'a Allocation,
    pub state: &'a AllocState,
    pub modify_index: u64,
    pub modify_time: Timestamp,
    pub node: &'a NodeView,
    /// The id of the allocation that replaces it; only in the full form.
    pub next: Option<AllocId>,
    /// The id of the evaluation that will place its successor; empty if there is none.
    pub followup: String,
    /// Whether it is a canary, which runs beside the allocations that it may replace.
    pub canary: bool,
}

impl<'a> AllocJsonInput<'a> {
    pub fn new(view: &'a AllocView, node: &'a NodeView) -> Self {
        Self {
            allocation: &view.allocation,
            state: &view.state,
            modify_index: view.modify_index,
            modify_time: view.modify_time,
            node,
            next: None,
            followup: match view.successor_at {
                Some(_) => evaluation_ids::followup_id(&view.allocation),
                None => String::new(),
            },
            canary: view.canary,
        }
    }

    /// The same facts with the allocation that replaces it.
    pub fn with_next(self, next: Option<AllocId>) -> Self {
        Self { next, ..self }
    }
}

/// Nomad's `AllocListStub`, with the allocated resources if `resources` is set.
pub(crate) fn stub(seen: AllocJsonInput<'_>, resources: bool) -> Alloc<'_, Value> {
    let allocation = seen.allocation;
    Alloc {
        job_type: Some(word(allocation.job.kind)),
        job_version: Some(allocation.job_version),
        allocated_resources: resources.then(|| alloc_resources::allocated_resources(allocation)),
        followup_eval_id: Some(seen.followup.clone().into()),
        reschedule_tracker: Some(tracker(&seen)),
        preempted_allocations: Some(Absent),
        preempted_by_allocation: Some(Text::default()),
        ..common(seen.clone())
    }
}

/// Nomad's `Allocation`.
pub(crate) fn full(seen: AllocJsonInput<'_>) -> Alloc<'_, Value> {
    let (allocation, datacenter) = (seen.allocation, seen.node.datacenter.clone());
    Alloc {
        job: Some(job::job_of_alloc(allocation)),
        resources: Some(alloc_resources::all_tasks(allocation)),
        shared_resources: Some(alloc_resources::shared_resources(allocation)),
        task_resources: Some(alloc_resources::resources_by_task(allocation)),
        allocated_resources: Some(alloc_resources::allocated_resources(allocation)),
        // There is only one node, so there was no choice.
        metrics: Some(AllocMetric {
            nodes_evaluated: 1,
            nodes_available: BTreeMap::from([(datacenter, 1)]),
            score_meta_data: Some(vec![NodeScore {
                node_id: seen.node.id.to_string(),
                ..NodeScore::default()
            }]),
            ..AllocMetric::default()
        }),
        deployment_id: Some(allocation.deployment_id().unwrap_or_default().into()),
        next_allocation: seen.next.map(|id| id.to_string().into()),
        followup_eval_id: Some(&seen.followup)
            .filter(|id| !id.is_empty())
            .map(|id| id.clone().into()),
        reschedule_tracker: tracker(&seen).map(Some),
        network_status: Some(Some(
            seen.state.network.as_deref().map(AllocNetworkStatus::from).unwrap_or_default(),
        )),
        previous_allocation: allocation.previous.map(|id| Some(id.to_string().into())),
        alloc_modify_index: Some(allocation.modify_index),
        ..common(seen.clone())
    }
}

fn tracker(seen: &AllocJsonInput<'_>) -> Option<RescheduleTracker> {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let event = |event: &ostler_model::rollout::RescheduleEvent| WireRescheduleEvent {
        reschedule_time: event.time.nanos(),
        prev_alloc_id: event.previous,
        prev_node_id: seen.node.id.to_string(),
        delay: nanos(event.delay),
    };
    let events: Vec<_> = seen.allocation.reschedules.iter().map(event).collect();
    (!events.is_empty()).then_some(RescheduleTracker { events })
}

fn common(seen: AllocJsonInput<'_>) -> Alloc<'_, Value> {
    let AllocJsonInput { allocation, state, modify_index, modify_time, node, canary, .. } = seen;
    // An allocation is marked as a canary even before it has a verdict.
    let first = canary.then(|| AllocHealth { canary, ..AllocHealth::default() });
    let health = |status: &DeploymentStatus| AllocHealth { canary, ..AllocHealth::from(status) };
    Alloc {
        id: allocation.id,
        eval_id: evaluation_ids::evaluation_id(&allocation.job.id, allocation.create_index).into(),
        name: (&allocation.name).into(),
        namespace: allocation.job.namespace().into(),
        node_id: node.id.to_string().into(),
        node_name: (&node.name).into(),
        job_id: allocation.job.id.as_str().into(),
        task_group: allocation.group.as_str().into(),
        desired_status: allocation.desired,
        desired_description: (&allocation.desired_description).into(),
        desired_transition: DesiredTransition {
            migrate: (allocation.desired_description == reason::MIGRATED).then_some(true),
            ..DesiredTransition::default()
        },
        client_status: state.client_status,
        client_description: (&state.client_description).into(),
        task_states: task_states(&state.tasks),
        deployment_status: state.health.as_ref().map(health).or(first),
        create_index: allocation.create_index,
        modify_index,
        create_time: allocation.created_at,
        modify_time,
        ..Alloc::default()
    }
}
