//! The kept versions of a job and their deployments.

use std::sync::Arc;

use super::description;
use ostler_model::limits::{DEPLOYMENTS_PER_JOB_MAX, JOB_VERSIONS_MAX};
use ostler_model::rollout::{Deployment, DeploymentPhase};
use ostler_model::saved::JobRecord;

/// The earlier versions of a job, and its deployments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Earlier versions, oldest first.
    pub versions: Vec<Arc<JobRecord>>,
    /// Deployments, oldest first; the newest may be that of the present version.
    pub deployments: Vec<Arc<Deployment>>,
}

impl History {
    /// The deployment of this version.
    #[must_use]
    pub fn deployment_of(&self, record: &JobRecord) -> Option<&Deployment> {
        let of = |deployment: &&Arc<Deployment>| {
            deployment.version == record.version
                && deployment.job_create_index == record.create_index
        };
        self.deployments.iter().rev().find(of).map(|deployment| &**deployment)
    }

    /// A deployment by its id.
    #[must_use]
    pub fn deployment(&self, id: &str) -> Option<&Deployment> {
        self.deployments.iter().map(|deployment| &**deployment).find(|one| *one.id == *id)
    }

    /// Is a canary of this group one that nobody has accepted? That is also true where the
    /// deployment is not kept any more, because an accepted canary is no canary from then on.
    #[must_use]
    pub fn awaits_promotion(&self, deployment: &str, group: &ostler_model::ids::GroupName) -> bool {
        let known = self.deployment(deployment);
        let group = known.and_then(|deployment| deployment.groups.get(group));
        group.is_none_or(|group| !group.promoted)
    }

    /// Were the canaries of this group accepted?
    #[must_use]
    pub fn is_promoted(&self, deployment: &str, group: &ostler_model::ids::GroupName) -> bool {
        let known = self.deployment(deployment);
        known.and_then(|known| known.groups.get(group)).is_some_and(|group| group.promoted)
    }

    /// The newest deployment, to be changed.
    pub fn newest_deployment(&mut self) -> Option<&mut Deployment> {
        self.deployments.last_mut().map(Arc::make_mut)
    }

    /// Cancel the active deployments of other versions, and of a stopped job.
    pub fn cancel_others(&mut self, record: &JobRecord) {
        for deployment in &mut self.deployments {
            let of_version = deployment.version == record.version
                && deployment.job_create_index == record.create_index;
            if !deployment.phase.is_active() || of_version && !record.stopped {
                continue;
            }
            let deployment = Arc::make_mut(deployment);
            deployment.phase = DeploymentPhase::Cancelled;
            let why =
                if record.stopped { description::STOPPED_JOB } else { description::NEWER_JOB };
            why.clone_into(&mut deployment.description);
        }
    }

    /// Add a deployment. The oldest one goes where there are too many.
    pub fn push(&mut self, deployment: Deployment) {
        self.deployments.push(Arc::new(deployment));
        let more = self.deployments.len().saturating_sub(DEPLOYMENTS_PER_JOB_MAX);
        self.deployments.drain(..more);
    }

    /// Keep the version that was the present one until now. Where there are too many versions the
    /// oldest one goes, but never the newest stable one.
    pub fn supersede(&mut self, record: Arc<JobRecord>) {
        self.versions.retain(|known| known.version != record.version);
        self.versions.push(record);
        while self.versions.len() >= JOB_VERSIONS_MAX {
            let kept = self.versions.iter().rposition(|record| record.stable);
            self.versions.remove(usize::from(kept == Some(0)));
        }
    }

    /// An earlier version by its number.
    #[must_use]
    pub fn version(&self, version: u64) -> Option<&Arc<JobRecord>> {
        self.versions.iter().find(|record| record.version == version)
    }

    /// The newest version that was healthy as a whole.
    #[must_use]
    pub fn stable_version(&self) -> Option<&Arc<JobRecord>> {
        self.versions.iter().rev().find(|record| record.stable)
    }

    /// The version to go back to from a failed one, and the description of the failed deployment.
    #[must_use]
    pub fn rollback(&self, failed: &JobRecord, why: &str) -> (Option<Arc<JobRecord>>, String) {
        match self.stable_version() {
            None => (None, format!("{why} - no stable job version to auto revert to")),
            Some(stable) if stable.job == failed.job => {
                let version = stable.version;
                let text = format!(
                    "{why} - not rolling back to stable job version {version} as current job has same \
                     specification"
                );
                (None, text)
            }
            Some(stable) => {
                let text = format!("{why} - rolling back to job version {}", stable.version);
                (Some(Arc::clone(stable)), text)
            }
        }
    }

    /// The version before this one, if it failed and was rolled back to this one. Whoever only
    /// repeats that version does not mean it as a new one.
    #[must_use]
    pub fn abandoned_version(&self, record: &JobRecord) -> Option<&Arc<JobRecord>> {
        let before = self.versions.last()?;
        let failed = self.deployment_of(before)?;
        let back = self.versions.iter().any(|known| known.stable && known.job == record.job);
        (failed.phase == DeploymentPhase::Failed && back).then_some(before)
    }
}
