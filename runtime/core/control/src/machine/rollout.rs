//! The versions of a job and their deployments during one change.
//!
//! ```text
//! decide: Rollout::new ─► advance (the request, health, deadlines; a rollback is the new record)
//!         ─► reconcile, place ─► complete ─► begin_version ─► every placed allocation ─► enter
//! ```

use std::sync::Arc;

use super::types::{DecidedChange, HistoryChange, JobAction, World};
use crate::SubmitError;
use crate::deployments::{
    self, AllocJudgement, AllocStanding, DeploymentAsk, DeploymentEntrant, DeploymentError, History,
};
use crate::proposal::{Proposal, next_version};
use crate::reconcile::reason;
use crate::tables::{AllocEntry, NodeTables};
use crate::views::{BlockedPlacement, RegisterOptions};
use ostler_model::alloc::{AllocDeployment, Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::rollout::Deployment;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::time::Timestamp;

/// The versions and deployments of a job, before and during a change. See the module.
pub(super) struct Rollout {
    before: History,
    now: History,
    /// The version before the change; `None` for a new job.
    known: Option<Arc<JobRecord>>,
    /// The version that the newest deployment may be for; allocations placed for it belong
    /// to the deployment.
    version: Option<u64>,
    /// The state of the newest deployment's allocations.
    judged: Vec<AllocJudgement>,
}

impl Rollout {
    /// Begin with the history of the job. `new`: the job is not the earlier one of the same name.
    pub(super) fn new(tables: &NodeTables, job: &JobId, new: bool) -> Self {
        let before = tables.history(job);
        let known = tables.jobs.get(job).map(|entry| Arc::clone(&entry.record));
        let known = known.filter(|_| !new);
        let now = if new { History::default() } else { before.clone() };
        Self { before, now, known, version: None, judged: Vec::new() }
    }

    pub(super) const fn history(&self) -> &History {
        &self.now
    }

    /// Take in the request to a deployment, the state of its allocations, and the time. Where the
    /// deployment fails and is to be reverted, `record` becomes the version that comes back.
    pub(super) fn advance(
        &mut self,
        world: &World<'_>,
        tables: &NodeTables,
        asked: Option<(&str, &DeploymentAsk)>,
        record: &mut Arc<JobRecord>,
    ) -> Result<(), SubmitError> {
        self.now.cancel_others(record);
        let newest = self.now.deployments.last().map(|newest| newest.id.clone());
        if let Some((id, _)) = asked
            && newest.as_deref() != Some(id)
        {
            let known = self.now.deployment(id).map(|known| known.phase);
            let error = known.map_or(DeploymentError::Unknown, DeploymentError::Over);
            return Err(SubmitError::Deployment(error));
        }
        let Some(id) = newest else { return Ok(()) };
        let allocs = judge_allocs(tables, record, &id);
        let Some(deployment) = self.now.newest_deployment() else { return Ok(()) };
        let failed = match asked {
            Some((_, ask)) => {
                ask.apply(deployment, &allocs, world.now).map_err(SubmitError::Deployment)?
            }
            None => None,
        };
        let failed = failed.or_else(|| deployments::observe(deployment, &allocs, world.now));
        self.judged = allocs;
        if failed == Some(true) {
            let why = deployment.description.clone();
            let (stable, text) = self.now.rollback(record, &why);
            if let Some(deployment) = self.now.newest_deployment() {
                deployment.description = text;
            }
            if let Some(stable) = stable {
                let origin = record.origin.clone();
                let back = next_version(&stable.job, Some(record), origin, world.now);
                *record = Arc::new(back);
            }
        }
        Ok(())
    }

    /// Mark the version as stable where its deployment has reached its end. Until then stop the
    /// time of groups that have all they can have.
    pub(super) fn complete(
        &mut self,
        proposal: &Proposal,
        blocked: &[BlockedPlacement],
        record: &mut Arc<JobRecord>,
    ) {
        if self.now.deployment_of(record).is_none() {
            return;
        }
        let Some(newest) = self.now.newest_deployment() else { return };
        if newest.version != record.version {
            return;
        }
        if blocked.is_empty() && deployments::complete(newest, &proposal.progress) {
            *record = Arc::new(JobRecord { stable: true, ..(**record).clone() });
        }
        deployments::stop_time(newest, &self.judged);
    }

    /// The record has its indexes now. The version before it becomes an earlier one, and a
    /// deployment begins where the placements need one.
    pub(super) fn begin_version(
        &mut self,
        world: &World<'_>,
        record: &JobRecord,
        proposal: &Proposal,
    ) {
        let superseded = self.known.take().filter(|known| {
            known.version != record.version && known.create_index == record.create_index
        });
        if let Some(known) = superseded {
            self.now.supersede(known);
        }
        // A run that ends with its agent does not change.
        if record.origin == JobOrigin::Run {
            return;
        }
        if self.now.deployment_of(record).is_none() {
            // What does not fit is part of the deployment: it is placed when it fits.
            let id = world.rng.uuid().to_string();
            if let Some(deployment) = deployments::begin_deployment(&id, record, &proposal.progress)
            {
                self.now.push(deployment);
                // They belong to the deployment before.
                self.judged.clear();
            }
        }
        self.version = Some(record.version);
    }

    /// The deployment that a new allocation belongs to, where there is one.
    pub(super) fn deploy(&mut self, alloc: &Allocation, canary: bool) -> Option<AllocDeployment> {
        if self.version != Some(alloc.job_version) {
            return None;
        }
        self.take_over(alloc, canary, alloc.created_at)
    }

    /// The deployment that an allocation belongs to which runs on with the new version.
    pub(super) fn take_over(
        &mut self,
        alloc: &Allocation,
        canary: bool,
        now: Timestamp,
    ) -> Option<AllocDeployment> {
        let version = self.version?;
        let newest = self.now.deployments.last()?;
        if newest.version != version || !newest.phase.is_active() {
            return None;
        }
        let follows = !alloc.reschedules.is_empty();
        let entrant = DeploymentEntrant { id: alloc.id, canary, follows };
        let entered =
            deployments::enter(self.now.newest_deployment()?, &alloc.group, entrant, now)?;
        self.judged.push(AllocJudgement {
            id: alloc.id,
            group: alloc.group.clone(),
            canary,
            previous: alloc.previous,
            standing: AllocStanding::Live,
            healthy: None,
            judged_at: Timestamp::default(),
        });
        Some(entered)
    }

    /// The time at which the deployment fails if nothing more becomes healthy.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let newest = self.now.deployments.last()?;
        deployments::deadline(newest, &self.judged)
    }

    /// Make the differences from the earlier versions and deployments part of the change.
    pub(super) fn enter(mut self, index: &mut dyn FnMut() -> u64, change: &mut DecidedChange) {
        if self.now == self.before {
            return;
        }
        let changed: Vec<usize> = (0..)
            .zip(&self.now.deployments)
            .filter_map(|(at, one)| (!self.before.deployments.contains(one)).then_some(at))
            .collect();
        for at in changed {
            let Some(one) = self.now.deployments.get_mut(at) else { continue };
            let (one, index) = (Arc::make_mut(one), index());
            one.modify_index = index;
            if one.create_index == 0 {
                one.create_index = index;
            }
        }
        let before = match change.history.take() {
            Some(known) => known.before,
            None => self.before,
        };
        change.history = Some(Box::new(HistoryChange { before, now: self.now }));
    }
}

/// The state of a deployment's allocations, with their health.
fn judge_allocs(tables: &NodeTables, record: &JobRecord, deployment: &str) -> Vec<AllocJudgement> {
    let of_it = tables.allocs_of(&record.job.id).filter(|entry| {
        entry.is_registered() && entry.allocation.deployment_id() == Some(deployment)
    });
    of_it.map(judgement).collect()
}

fn judgement(entry: &AllocEntry) -> AllocJudgement {
    let (alloc, verdict) = (&entry.allocation, entry.verdict());
    AllocJudgement {
        id: alloc.id,
        group: alloc.group.clone(),
        canary: alloc.deployment.as_ref().is_some_and(|of| of.canary),
        previous: alloc.previous,
        standing: alloc_standing(alloc, entry.client_status()),
        healthy: verdict.map(|verdict| verdict.healthy),
        judged_at: verdict.map(|verdict| verdict.at).unwrap_or_default(),
    }
}

fn alloc_standing(alloc: &Allocation, status: ClientStatus) -> AllocStanding {
    let followed =
        status == ClientStatus::Failed && alloc.desired_description == reason::RESCHEDULED;
    match alloc.desired {
        DesiredStatus::Run if status.is_terminal() => AllocStanding::Over,
        DesiredStatus::Run => AllocStanding::Live,
        _ if followed => AllocStanding::Followed,
        _ => AllocStanding::Stopped,
    }
}

/// Turn a request for an earlier version into one for a job with that version's text.
pub(super) fn earlier_version(
    asked: JobAction,
    tables: &NodeTables,
    known: Option<&JobRecord>,
) -> Result<JobAction, SubmitError> {
    let JobAction::Revert { version, enforce, origin } = asked else { return Ok(asked) };
    let Some(known) = known else { return Ok(JobAction::Revert { version, enforce, origin }) };
    let job = known.job.id.clone();
    if let Some(expected) = enforce.filter(|expected| *expected != known.version) {
        return Err(SubmitError::OtherVersion { job, expected, actual: known.version });
    }
    if known.version == version {
        return Err(SubmitError::SameVersion { job, version });
    }
    let history = tables.jobs.get(&job).map(|entry| &entry.history);
    let Some(earlier) = history.and_then(|history| history.version(version)) else {
        return Err(SubmitError::Version { job, version });
    };
    let options = RegisterOptions { origin, ..RegisterOptions::default() };
    Ok(JobAction::Version(Arc::clone(&earlier.job), options))
}

/// Does a file only repeat the version that failed and was taken back? It is not tried again until
/// the file says something else.
pub(super) fn repeats(
    known: &JobRecord,
    job: &Job,
    options: &RegisterOptions,
    tables: &NodeTables,
) -> bool {
    let by_file = matches!(options.origin, JobOrigin::File(_)) && options.origin == known.origin;
    let entry = tables.jobs.get(&known.job.id).filter(|_| by_file);
    let given_up = entry.and_then(|entry| entry.history.abandoned_version(known));
    given_up.is_some_and(|given_up| *given_up.job == *job)
}

/// Mark a version as stable or not, by a request.
pub(super) fn set_stable(
    known: &Arc<JobRecord>,
    version: u64,
    stable: bool,
    tables: &mut NodeTables,
    change: &mut DecidedChange,
) -> Result<Arc<JobRecord>, SubmitError> {
    let job = known.job.id.clone();
    if known.version == version {
        let same = known.stable == stable;
        let other = || Arc::new(JobRecord { stable, ..(**known).clone() });
        return Ok(if same { Arc::clone(known) } else { other() });
    }
    let before = tables.history(&job);
    let mut now = before.clone();
    let found = now.versions.iter_mut().find(|record| record.version == version);
    let Some(found) = found else { return Err(SubmitError::Version { job, version }) };
    Arc::make_mut(found).stable = stable;
    if now != before {
        tables.put_history(&job, now.clone());
        change.history = Some(Box::new(HistoryChange { before, now }));
    }
    Ok(Arc::clone(known))
}

/// Is a deployment of the job under way, so that the health of its allocations decides on the next
/// step?
pub(super) fn is_deploying(tables: &NodeTables, job: &JobId) -> bool {
    let entry = tables.jobs.get(job);
    let newest: Option<&Arc<Deployment>> = entry.and_then(|e| e.history.deployments.last());
    newest.is_some_and(|newest| newest.phase.is_active())
}
