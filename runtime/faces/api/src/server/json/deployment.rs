//! Deployments.

use super::{moment, word};
use ostler_model::job::Job;
use ostler_model::rollout::{DeployedGroup, Deployment};
use ostler_wire::{self as wire, DeploymentState, NEVER};

/// Nomad's `Deployment`.
pub(crate) fn deployment<'a>(job: &'a Job, of: &'a Deployment) -> wire::WireDeployment<'a> {
    let groups = of.groups.iter().map(|(name, group)| (name.as_str().into(), state(group)));
    wire::WireDeployment {
        id: (&*of.id).into(),
        namespace: job.namespace().into(),
        job_id: job.id.as_str().into(),
        job_version: of.version,
        job_modify_index: of.job_modify_index,
        job_spec_modify_index: of.job_modify_index,
        job_create_index: of.job_create_index,
        is_multiregion: false,
        task_groups: groups.collect(),
        status: word(of.phase),
        status_description: (&of.description).into(),
        create_index: of.create_index,
        modify_index: of.modify_index,
    }
}

fn state(group: &DeployedGroup) -> DeploymentState<'static> {
    DeploymentState {
        auto_revert: group.auto_revert,
        auto_promote: group.auto_promote,
        progress_deadline: u64::try_from(group.progress_deadline.as_nanos()).unwrap_or(u64::MAX),
        require_progress_by: group.require_progress_by.map_or_else(|| NEVER.into(), moment),
        promoted: group.promoted,
        placed_canaries: group.canaries.clone(),
        desired_canaries: group.desired_canaries,
        desired_total: group.desired_total,
        placed_allocs: group.placed,
        healthy_allocs: group.healthy,
        unhealthy_allocs: group.unhealthy,
    }
}
