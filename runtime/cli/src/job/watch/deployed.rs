//! How far a version is that is deployed: its deployment decides.
//!
//! ```text
//!   successful ─► Runs          running ─┬─► all that shall is healthy, and canaries wait ─► Canaries
//!   failed ─────► GivenUp       paused ──┤   what runs waits for somebody's verdict       ─► ByHand
//!   cancelled ──► Overtaken              ├─► the rest waits for what others hold          ─► Waits
//!                                        ├─► one failed for good                          ─► Failed
//!                                        └─► Going
//! ```
//! What fails meanwhile gets successors; so one failure is not the end, unless nothing can come after it.

use super::{Alloc, ClientStatus, Deployment, Looked, Report, Verdict, Watch};
use ostler_wire::DeploymentState;

/// Of a deployment that failed.
pub(super) fn given_up(deployment: &Deployment) -> Option<Verdict> {
    (deployment.status == "failed").then(|| Verdict::GivenUp {
        deployment: deployment.id.to_string(),
        why: deployment.status_description.to_string(),
    })
}

/// Does it want canaries that nobody has accepted yet?
fn awaits(group: &DeploymentState) -> bool {
    group.desired_canaries > 0 && !group.promoted
}

/// Canaries are there and healthy, everything else of it too, and somebody has to accept them.
fn asks(deployment: &Deployment) -> bool {
    let mut groups = deployment.task_groups.values();
    let there = |group: &DeploymentState| {
        let wanted = if awaits(group) { group.desired_canaries } else { group.desired_total };
        group.healthy_allocs >= wanted
    };
    groups.clone().any(|group| awaits(group) && !group.auto_promote) && groups.all(there)
}

impl Watch {
    /// Somebody halted it: told once.
    pub(super) fn paused(&mut self, deployment: &Deployment) -> Option<Report> {
        let paused = deployment.status == "paused";
        let news = paused && !std::mem::replace(&mut self.told_paused, paused);
        let short: String = deployment.id.chars().take(8).collect();
        news.then(|| Report::Progress {
            message: format!(
                "deployment {short} is paused; `ostler deployment resume {short}` lets it go on"
            ),
        })
    }

    /// Of a version that is deployed.
    pub(super) fn deployed(
        &self,
        deployment: &Deployment,
        looked: &Looked<'_>,
        wanted: &[&Alloc],
    ) -> Verdict {
        match &*deployment.status {
            "successful" => return Verdict::Runs,
            "cancelled" => return Verdict::Overtaken(deployment.status_description.to_string()),
            // One that was healthy and has failed since is none that somebody could accept.
            _ if asks(deployment) && Self::with(wanted, ClientStatus::Failed) == 0 => {
                return Verdict::Canaries;
            }
            _ => {}
        }
        let pending = Self::with(wanted, ClientStatus::Pending) > 0;
        let reverts = deployment.task_groups.values().any(|group| group.auto_revert);
        if !pending && !reverts {
            if let Some(failed) = self.failed_for_good(wanted, looked.now) {
                return Verdict::Failed(Some(failed.id));
            }
            // Collected, which nothing is that gets a successor.
            if looked.job.facts.places.failed > 0 {
                return Verdict::Failed(None);
            }
        }
        let unsaid = |alloc: &&&Alloc| {
            alloc.client_status == ClientStatus::Running
                && self.by_hand.contains(&*alloc.task_group)
                && alloc.healthy().is_none()
        };
        let (unsaid, others): (Vec<&&Alloc>, Vec<_>) = wanted.iter().partition(unsaid);
        let settled = unsaid.iter().all(|alloc| self.unsettled(alloc, looked.now).is_zero());
        match others.iter().all(|alloc| self.good(alloc)) {
            true if !unsaid.is_empty() && settled => Verdict::ByHand(deployment.id.to_string()),
            true if !unsaid.is_empty() => {
                let left = unsaid.iter().map(|alloc| self.unsettled(alloc, looked.now));
                Verdict::Settling(left.max().unwrap_or_default())
            }
            true if looked.job.facts.places.waiting > 0 => Verdict::Waits,
            _ => Verdict::Going,
        }
    }
}
