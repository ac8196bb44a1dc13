//! How far a version with a deployment has come: the deployment decides.
//!
//! ```text
//!   successful ─► Runs          running ─┬─► all that shall is healthy, and canaries wait ─► Canaries
//!   failed ─────► GivenUp       paused ──┤   what runs waits for somebody's verdict       ─► ByHand
//!   cancelled ──► Overtaken              ├─► the rest waits for what others hold          ─► Waits
//!                                        ├─► one failed for good                          ─► Failed
//!                                        └─► Going
//! ```
//! Failed allocations get successors, so one failure is not the end unless nothing can follow it.

use super::{Alloc, ClientStatus, JobSnapshot, JobVerdict, JobWatch, RunReport, WireDeployment};
use crate::output::short_id;
use ostler_wire::DeploymentState;

/// The verdict on a failed deployment; `None` on any other.
pub(super) fn failed_verdict(deployment: &WireDeployment) -> Option<JobVerdict> {
    (deployment.status == "failed").then(|| JobVerdict::GivenUp {
        deployment: deployment.id.to_string(),
        why: deployment.status_description.to_string(),
    })
}

/// Does the group have canaries that nobody has promoted yet?
fn awaits_promotion(group: &DeploymentState) -> bool {
    group.desired_canaries > 0 && !group.promoted
}

/// Are all canaries and all other allocations healthy, and does somebody have to promote them?
fn needs_promotion(deployment: &WireDeployment) -> bool {
    let mut groups = deployment.task_groups.values();
    let there = |group: &DeploymentState| {
        let wanted =
            if awaits_promotion(group) { group.desired_canaries } else { group.desired_total };
        group.healthy_allocs >= wanted
    };
    groups.clone().any(|group| awaits_promotion(group) && !group.auto_promote) && groups.all(there)
}

impl JobWatch {
    /// The report, made once, that the deployment is paused.
    pub(super) fn paused_news(&mut self, deployment: &WireDeployment) -> Option<RunReport> {
        let paused = deployment.status == "paused";
        let news = paused && !std::mem::replace(&mut self.told_paused, paused);
        let short = short_id(&deployment.id);
        news.then(|| RunReport::Progress {
            message: format!(
                "deployment {short} is paused; `ostler deployment resume {short}` lets it go on"
            ),
        })
    }

    /// The verdict on a version with a deployment.
    pub(super) fn deployed_verdict(
        &self,
        deployment: &WireDeployment,
        looked: &JobSnapshot<'_>,
        wanted: &[&Alloc],
    ) -> JobVerdict {
        match &*deployment.status {
            "successful" => return JobVerdict::Runs,
            "cancelled" => return JobVerdict::Overtaken(deployment.status_description.to_string()),
            // A canary that was healthy and has failed since cannot be promoted.
            _ if needs_promotion(deployment)
                && Self::count_with_status(wanted, ClientStatus::Failed) == 0 =>
            {
                return JobVerdict::Canaries;
            }
            _ => {}
        }
        let pending = Self::count_with_status(wanted, ClientStatus::Pending) > 0;
        let reverts = deployment.task_groups.values().any(|group| group.auto_revert);
        if !pending && !reverts {
            if let Some(failed) = self.find_failed_for_good(wanted, looked.now) {
                return JobVerdict::Failed(Some(failed.id));
            }
            // The failed allocation was removed, which does not happen to one that gets a
            // successor.
            if looked.job.facts.places.failed > 0 {
                return JobVerdict::Failed(None);
            }
        }
        let unsaid = |alloc: &&&Alloc| {
            alloc.client_status == ClientStatus::Running
                && self.by_hand.contains(&*alloc.task_group)
                && alloc.healthy().is_none()
        };
        let (unsaid, others): (Vec<&&Alloc>, Vec<_>) = wanted.iter().partition(unsaid);
        let settled = unsaid.iter().all(|alloc| self.settle_remaining(alloc, looked.now).is_zero());
        if !others.iter().all(|alloc| self.is_good(alloc)) {
            JobVerdict::Going
        } else if !unsaid.is_empty() && settled {
            JobVerdict::ByHand(deployment.id.to_string())
        } else if !unsaid.is_empty() {
            let left = unsaid.iter().map(|alloc| self.settle_remaining(alloc, looked.now));
            JobVerdict::Settling(left.max().unwrap_or_default())
        } else if looked.job.facts.places.waiting > 0 {
            JobVerdict::Waits
        } else {
            JobVerdict::Going
        }
    }
}
