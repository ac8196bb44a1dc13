//! Requests of people to a deployment.

use std::collections::BTreeSet;

use super::{AllocJudgement, description, healthy_canaries, promote, renew};
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::rollout::{Deployment, DeploymentPhase};
use ostler_model::time::Timestamp;

/// A request to a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeploymentAsk {
    /// Accept the canaries of these groups; absent: of all groups.
    Promote(Option<BTreeSet<GroupName>>),
    /// Mark it as failed.
    Fail,
    /// Pause the deployment.
    Pause,
    /// Let a paused deployment go on.
    Resume,
}

/// Why a deployment does not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeploymentError {
    /// There is no deployment with this id.
    #[error("deployment not found")]
    Unknown,
    /// The deployment is over.
    #[error("the deployment is over ({}): it cannot be changed any more", word(*.0))]
    Over(DeploymentPhase),
    /// The deployment has no such group.
    #[error("the deployment has no task group {0}")]
    Group(GroupName),
    /// No canary waits to be accepted.
    #[error("the deployment has no canaries to promote")]
    NoCanaries,
    /// Some canaries are not healthy.
    #[error(
        "task group {group} has {healthy}/{wanted} healthy canaries; all must be healthy first"
    )]
    Unhealthy {
        /// Name of the group with the unhealthy canaries.
        group: GroupName,
        /// Number of healthy canaries.
        healthy: u32,
        /// Number of canaries that have to be healthy.
        wanted: u32,
    },
    /// The deployment has no such allocation.
    #[error("the deployment has no allocation {0}")]
    Alloc(AllocId),
    /// The request is about other regions of the job, and there are none.
    #[error("the deployment is not blocked: its job runs in one region alone")]
    NotBlocked,
}

/// The word for a phase, for people.
const fn word(phase: DeploymentPhase) -> &'static str {
    match phase {
        DeploymentPhase::Running => "running",
        DeploymentPhase::Paused => "paused",
        DeploymentPhase::Successful => "successful",
        DeploymentPhase::Failed => "failed",
        DeploymentPhase::Cancelled => "cancelled",
    }
}

impl DeploymentAsk {
    /// Carry out the request. Returns `Some` when the deployment was marked as failed: whether it
    /// is to be reverted.
    ///
    /// # Errors
    /// When the deployment is over, or has nothing that could be promoted.
    pub fn apply(
        &self,
        deployment: &mut Deployment,
        allocs: &[AllocJudgement],
        now: Timestamp,
    ) -> Result<Option<bool>, DeploymentError> {
        if !deployment.phase.is_active() {
            return Err(DeploymentError::Over(deployment.phase));
        }
        match self {
            Self::Promote(groups) => {
                may_promote(deployment, groups.as_ref(), allocs)?;
                promote(deployment, groups.as_ref(), now);
                if deployment.phase == DeploymentPhase::Paused {
                    description::PAUSED.clone_into(&mut deployment.description);
                }
                Ok(None)
            }
            Self::Fail => {
                deployment.phase = DeploymentPhase::Failed;
                description::BY_USER.clone_into(&mut deployment.description);
                Ok(Some(deployment.groups.values().any(|group| group.auto_revert)))
            }
            Self::Pause => {
                deployment.phase = DeploymentPhase::Paused;
                description::PAUSED.clone_into(&mut deployment.description);
                Ok(None)
            }
            Self::Resume => {
                if deployment.phase == DeploymentPhase::Paused {
                    deployment.phase = DeploymentPhase::Running;
                    deployment.groups.values_mut().for_each(|group| renew(group, now));
                    super::describe(deployment);
                }
                Ok(None)
            }
        }
    }
}

fn may_promote(
    deployment: &Deployment,
    groups: Option<&BTreeSet<GroupName>>,
    allocs: &[AllocJudgement],
) -> Result<(), DeploymentError> {
    let known = |name: &&GroupName| !deployment.groups.contains_key(*name);
    if let Some(unknown) = groups.into_iter().flatten().find(known) {
        return Err(DeploymentError::Group(unknown.clone()));
    }
    let mut any = false;
    for (name, group) in &deployment.groups {
        let meant = groups.is_none_or(|groups| groups.contains(name));
        if !meant || !group.awaits_promotion() {
            continue;
        }
        any = true;
        let (healthy, wanted) = (healthy_canaries(allocs, name), group.desired_canaries);
        if healthy < wanted {
            return Err(DeploymentError::Unhealthy { group: name.clone(), healthy, wanted });
        }
    }
    if any { Ok(()) } else { Err(DeploymentError::NoCanaries) }
}
