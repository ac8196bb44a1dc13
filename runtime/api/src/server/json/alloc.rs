//! Allocations: the short form of lists and the full one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::task::task_states;
use super::{given, job, moment, word};
use crate::server::evaluations;
use ostler_agent::AllocView;
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::saved::{DeploymentStatus, NetworkStatus};
use ostler_model::time::Timestamp;
use ostler_node::NodeView;
use ostler_wire::{Absent, Alloc, AllocHealth, AllocMetric, AllocNetworkStatus, Text};

/// An allocation as the shapes need it.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
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

fn health(status: &DeploymentStatus) -> AllocHealth<'static> {
    let &DeploymentStatus { healthy, changed_at, canary, modify_index, deployment: _ } = status;
    AllocHealth { healthy, timestamp: changed_at.map(moment), canary, modify_index }
}

/// `AllocListStub`; `resources`: with what it was given.
pub(crate) fn stub(seen: Seen<'_>, resources: bool) -> Alloc<'_, Value> {
    let allocation = seen.allocation;
    Alloc {
        job_type: Some(word(allocation.job.kind)),
        job_version: Some(allocation.job_version),
        allocated_resources: resources.then(|| given::allocated(allocation)),
        followup_eval_id: Some(Text::default()),
        reschedule_tracker: Some(Absent),
        preempted_allocations: Some(Absent),
        preempted_by_allocation: Some(Text::default()),
        ..common(seen)
    }
}

/// `Allocation`.
pub(crate) fn full(seen: Seen<'_>) -> Alloc<'_, Value> {
    let (allocation, datacenter) = (seen.allocation, seen.node.datacenter.clone());
    Alloc {
        job: Some(job::of_alloc(allocation)),
        resources: Some(given::all(allocation)),
        shared_resources: Some(given::shared(allocation)),
        task_resources: Some(given::by_task(allocation)),
        allocated_resources: Some(given::allocated(allocation)),
        // One node, so there was no choice.
        metrics: Some(AllocMetric {
            nodes_evaluated: 1,
            nodes_available: BTreeMap::from([(datacenter, 1)]),
            ..AllocMetric::default()
        }),
        deployment_id: Some(Text::default()),
        network_status: Some(seen.state.network.as_deref().map(network)),
        previous_allocation: Some(allocation.previous.map(|id| id.to_string().into())),
        alloc_modify_index: Some(allocation.modify_index),
        ..common(seen)
    }
}

fn network(status: &NetworkStatus) -> AllocNetworkStatus<'_> {
    AllocNetworkStatus {
        interface_name: (&status.interface_name).into(),
        address: (&status.address).into(),
        dns: status.dns.as_ref().map(given::dns),
    }
}

fn common(seen: Seen<'_>) -> Alloc<'_, Value> {
    let Seen { allocation, state, modify_index, modify_time, node } = seen;
    Alloc {
        id: allocation.id,
        eval_id: evaluations::id(&allocation.job.id, allocation.create_index).into(),
        name: (&allocation.name).into(),
        namespace: (&allocation.job.namespace).into(),
        node_id: node.id.to_string().into(),
        node_name: (&node.name).into(),
        job_id: allocation.job.id.as_str().into(),
        task_group: allocation.group.as_str().into(),
        desired_status: allocation.desired,
        desired_description: (&allocation.desired_description).into(),
        client_status: state.client_status,
        client_description: (&state.client_description).into(),
        task_states: task_states(&state.tasks),
        deployment_status: state.health.as_ref().map(health),
        create_index: allocation.create_index,
        modify_index,
        create_time: allocation.created_at,
        modify_time,
        ..Alloc::default()
    }
}
