//! Decides how a new version of a job takes over, and what becomes of its deployment. Pure.
//!
//! ```text
//!              ┌────── pause, resume ──────┐
//!   begun ─► running ◄─────────────────► paused
//!              │  canaries healthy, promoted (by somebody, or by itself) ─► the rest follows
//!              ├─ every place healthy ──────────────────────► successful: the version is stable
//!              ├─ unhealthy without a progress deadline, or nothing became healthy by then, or
//!              │  somebody says so ─────────────────────────► failed ─ auto_revert ─► the newest stable
//!              └─ a newer version, the job is stopped ──────► cancelled              version comes back
//! ```
//! A canary that somebody ends before it was accepted (`alloc stop`, a drain) is no failure. Until
//! its replacement is placed, no time runs for its place; then the replacement has the whole time.
//! A canary that follows a failed one has the time that is left.
//!
//! [`crate::reconcile`] decides what is placed and stopped meanwhile. Deadlines are recorded as
//! times of day, so a restart of the agent changes none.

mod ask;
mod history;

use std::collections::{BTreeMap, BTreeSet};

use crate::reconcile::GroupProgress;
use ostler_model::alloc::AllocDeployment;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::{JobKind, TaskGroup};
use ostler_model::planted::planted;
use ostler_model::rollout::{DeployedGroup, Deployment, DeploymentPhase};
use ostler_model::saved::JobRecord;
use ostler_model::time::Timestamp;

pub use ask::{DeploymentAsk, DeploymentError};
pub use history::History;

/// The descriptions of deployments, in Nomad's words: clients look for these.
pub mod description {
    /// The deployment goes on.
    pub const RUNNING: &str = "Deployment is running";
    /// Its canaries wait for somebody to accept them.
    pub const NEEDS_PROMOTION: &str = "Deployment is running but requires manual promotion";
    /// Its canaries wait to become healthy.
    pub const AUTO_PROMOTION: &str = "Deployment is running pending automatic promotion";
    /// Somebody halted it.
    pub const PAUSED: &str = "Deployment is paused";
    /// Every allocation is healthy.
    pub const SUCCESSFUL: &str = "Deployment completed successfully";
    /// The job was stopped.
    pub const STOPPED_JOB: &str = "Cancelled because job is stopped";
    /// The job has a newer version.
    pub const NEWER_JOB: &str = "Cancelled due to newer version of job";
    /// Some allocation is not healthy.
    pub const UNHEALTHY: &str = "Failed due to unhealthy allocations";
    /// Nothing became healthy in time.
    pub const DEADLINE: &str = "Failed due to progress deadline";
    /// Somebody marked it as failed.
    pub const BY_USER: &str = "Deployment marked as failed";
}

/// An allocation of a deployment, with what counts for its health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocJudgement {
    /// Id of the allocation.
    pub id: AllocId,
    /// Name of its task group.
    pub group: GroupName,
    /// It is one of the canaries of its version.
    pub canary: bool,
    /// The allocation before it in its place.
    pub previous: Option<AllocId>,
    /// Whether it is to run.
    pub standing: AllocStanding,
    /// The verdict on its health; `None`: there is none yet.
    pub healthy: Option<bool>,
    /// The time of the verdict.
    pub judged_at: Timestamp,
}

impl AllocJudgement {
    /// Is it live and healthy?
    fn is_live_and_healthy(&self) -> bool {
        self.standing == AllocStanding::Live && self.healthy == Some(true)
    }
}

/// Whether an allocation of a deployment is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocStanding {
    /// It is to run, and is not over.
    Live,
    /// It is to run, and is over.
    Over,
    /// It failed, and is told to stop for its successor.
    Followed,
    /// It is told to stop for any other reason.
    Stopped,
}

/// An allocation that becomes part of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeploymentEntrant {
    /// Id of the allocation.
    pub id: AllocId,
    /// It runs beside what it may replace.
    pub canary: bool,
    /// The allocation before it in its place failed.
    pub follows: bool,
}

/// Is this group of a job deployed step by step?
#[must_use]
pub fn is_deployed(kind: JobKind, group: &TaskGroup) -> bool {
    let policy = group.update.filter(|policy| policy.max_parallel > 0);
    kind == JobKind::Service && policy.is_some() && group.count > 0
}

/// The deployment of a version that is about to be placed. `None`: the version needs none.
/// `progress` says what is to be done for each group. The indexes are set with the change.
#[must_use]
pub fn begin_deployment(
    id: &str,
    record: &JobRecord,
    progress: &BTreeMap<GroupName, GroupProgress>,
) -> Option<Deployment> {
    let job = &record.job;
    let starts = |group: &&TaskGroup| {
        let done = progress.get(&group.name).copied().unwrap_or_default();
        let first = done.places && !done.known;
        is_deployed(job.kind, group) && (first || done.updates)
    };
    if record.stopped || !job.groups.iter().any(|group| starts(&group)) {
        return None;
    }
    let deployed = job.groups.iter().filter(starts).filter_map(|group| {
        let policy = group.update?;
        let wants = progress.get(&group.name).is_some_and(|group| group.wants_canaries);
        let deployed = DeployedGroup {
            auto_revert: policy.auto_revert,
            auto_promote: policy.auto_promote,
            progress_deadline: policy.progress_deadline,
            desired_canaries: if wants { policy.canary } else { 0 },
            desired_total: group.count,
            ..DeployedGroup::default()
        };
        Some((group.name.clone(), deployed))
    });
    let mut deployment = Deployment {
        id: id.into(),
        version: record.version,
        job_create_index: record.create_index,
        job_modify_index: record.job_modify_index,
        phase: DeploymentPhase::Running,
        description: String::new(),
        groups: deployed.collect(),
        create_index: 0,
        modify_index: 0,
    };
    describe(&mut deployment);
    Some(deployment)
}

/// Set the description of a running deployment.
fn describe(deployment: &mut Deployment) {
    let awaiting = || deployment.groups.values().filter(|group| group.awaits_promotion());
    let text = match (awaiting().next(), awaiting().all(|group| group.auto_promote)) {
        (None, _) => description::RUNNING,
        (Some(_), true) => description::AUTO_PROMOTION,
        (Some(_), false) => description::NEEDS_PROMOTION,
    };
    deployment.description = text.to_owned();
}

/// Add an allocation to the deployment: one that is placed for it, or taken over by it.
pub fn enter(
    deployment: &mut Deployment,
    group: &GroupName,
    entrant: DeploymentEntrant,
    now: Timestamp,
) -> Option<AllocDeployment> {
    let DeploymentEntrant { id, canary, follows } = entrant;
    let running = deployment.phase.is_active();
    let deployed = deployment.groups.get_mut(group).filter(|_| running)?;
    deployed.placed = deployed.placed.saturating_add(1);
    if canary {
        deployed.canaries.push(id);
    }
    // The replacement of a canary that did not end by a failure has the whole time.
    let anew = canary && !follows && deployed.awaits_promotion();
    if anew || deployed.require_progress_by.is_none() {
        let by = deadline_from(deployed, now);
        deployed.require_progress_by = deployed.require_progress_by.max(by);
    }
    Some(AllocDeployment { id: deployment.id.clone(), since: now, canary })
}

/// Take in the state of its allocations, and do what follows from it and from the time: promotion,
/// failure. Returns `Some` when the deployment failed just now: whether it is to be reverted.
pub fn observe(
    deployment: &mut Deployment,
    allocs: &[AllocJudgement],
    now: Timestamp,
) -> Option<bool> {
    if !deployment.phase.is_active() {
        return None;
    }
    count(deployment, allocs);
    if deployment.phase == DeploymentPhase::Paused {
        return None;
    }
    start_time(deployment, allocs, now);
    if let Some((groups, why)) = failing_groups(deployment, allocs, now) {
        let reverts =
            groups.iter().any(|name| deployment.groups.get(name).is_some_and(|g| g.auto_revert));
        deployment.phase = DeploymentPhase::Failed;
        deployment.description = why.to_owned();
        return Some(reverts);
    }
    let mut awaiting =
        deployment.groups.iter().filter(|(_, group)| group.awaits_promotion()).peekable();
    let promotes = !planted("canaries-never-promoted")
        && awaiting.peek().is_some()
        && awaiting.all(|(name, group)| {
            group.auto_promote && healthy_canaries(allocs, name) >= group.desired_canaries
        });
    if promotes {
        promote(deployment, None, now);
    }
    None
}

fn count(deployment: &mut Deployment, allocs: &[AllocJudgement]) {
    for (name, group) in &mut deployment.groups {
        let of_group = || allocs.iter().filter(|alloc| alloc.group == *name);
        let judged = |verdict| of_group().filter(move |alloc| alloc.healthy == Some(verdict));
        // Allocations that were collected are not counted any more.
        group.placed = group.placed.max(number(of_group().count()));
        group.healthy = group.healthy.max(number(judged(true).count()));
        group.unhealthy = group.unhealthy.max(number(judged(false).count()));
        let known: BTreeSet<AllocId> = group.canaries.iter().copied().collect();
        let canaries = of_group().filter(|alloc| alloc.canary && !known.contains(&alloc.id));
        group.canaries.extend(canaries.map(|alloc| alloc.id));
        if group.require_progress_by.is_none() {
            continue;
        }
        let last = judged(true).map(|alloc| alloc.judged_at).max();
        let by = last.map(|last| last.plus(group.progress_deadline));
        group.require_progress_by = group.require_progress_by.max(by);
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn healthy_canaries(allocs: &[AllocJudgement], group: &GroupName) -> u32 {
    let healthy = |alloc: &&AllocJudgement| {
        alloc.group == *group && alloc.canary && alloc.is_live_and_healthy()
    };
    number(allocs.iter().filter(healthy).count())
}

/// Number of canaries of a group that are there, or are to follow a failed one. Where all wanted
/// canaries were placed once, somebody ended the missing ones.
fn canaries_tried(allocs: &[AllocJudgement], group: &GroupName) -> u32 {
    let canaries = || allocs.iter().filter(|alloc| alloc.group == *group && alloc.canary);
    let tried = |alloc: &&AllocJudgement| match alloc.standing {
        AllocStanding::Live | AllocStanding::Over => true,
        AllocStanding::Followed => !canaries().any(|other| other.previous == Some(alloc.id)),
        AllocStanding::Stopped => false,
    };
    number(canaries().filter(tried).count())
}

/// Number of canaries of a group that were placed and follow no other canary.
fn canaries_begun(name: &GroupName, group: &DeployedGroup, allocs: &[AllocJudgement]) -> u32 {
    let follows = |alloc: &&AllocJudgement| {
        let of_group = alloc.group == *name && group.canaries.contains(&alloc.id);
        of_group && alloc.previous.is_some_and(|id| group.canaries.contains(&id))
    };
    number(group.canaries.len()).saturating_sub(number(allocs.iter().filter(follows).count()))
}

/// Does the group have everything that it can have for now? An allocation that was healthy once and
/// is gone does not count.
fn is_content(name: &GroupName, group: &DeployedGroup, allocs: &[AllocJudgement]) -> bool {
    if group.awaits_promotion() {
        let desired = group.desired_canaries;
        let all_placed = canaries_begun(name, group, allocs) >= desired;
        let wanted = if all_placed { canaries_tried(allocs, name).min(desired) } else { desired };
        return healthy_canaries(allocs, name) >= wanted;
    }
    let healthy = |alloc: &&AllocJudgement| alloc.group == *name && alloc.is_live_and_healthy();
    number(allocs.iter().filter(healthy).count()) >= group.desired_total
}

/// Start the time of a group that had everything and lacks something now.
fn start_time(deployment: &mut Deployment, allocs: &[AllocJudgement], now: Timestamp) {
    for (name, group) in &mut deployment.groups {
        let had = group.placed > 0 && group.require_progress_by.is_none();
        if had && !is_content(name, group, allocs) {
            group.require_progress_by = deadline_from(group, now);
        }
    }
}

/// Stop the time of groups that have everything that they can have for now, while other
/// groups go on.
pub fn stop_time(deployment: &mut Deployment, allocs: &[AllocJudgement]) {
    if deployment.phase != DeploymentPhase::Running {
        return;
    }
    for (name, group) in &mut deployment.groups {
        if group.require_progress_by.is_some() && is_content(name, group, allocs) {
            group.require_progress_by = None;
        }
    }
}

/// The groups that fail, and the reason.
fn failing_groups(
    deployment: &Deployment,
    allocs: &[AllocJudgement],
    now: Timestamp,
) -> Option<(Vec<GroupName>, &'static str)> {
    let named = |fails: &dyn Fn(&GroupName, &DeployedGroup) -> bool| {
        let groups = deployment.groups.iter().filter(|(name, group)| fails(name, group));
        groups.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let unhealthy = named(&|_, group| group.progress_deadline.is_zero() && group.unhealthy > 0);
    if !unhealthy.is_empty() {
        return Some((unhealthy, description::UNHEALTHY));
    }
    let late = named(&|name, group| {
        !is_content(name, group, allocs) && group.require_progress_by.is_some_and(|by| by <= now)
    });
    (!late.is_empty()).then_some((late, description::DEADLINE))
}

/// The time at which the deployment fails if nothing more becomes healthy.
#[must_use]
pub fn deadline(deployment: &Deployment, allocs: &[AllocJudgement]) -> Option<Timestamp> {
    if deployment.phase != DeploymentPhase::Running || planted("deployment-without-deadline") {
        return None;
    }
    let open = deployment.groups.iter().filter(|(name, group)| !is_content(name, group, allocs));
    open.filter_map(|(_, group)| group.require_progress_by).min()
}

/// Accept the canaries of these groups, or of all groups.
fn promote(deployment: &mut Deployment, groups: Option<&BTreeSet<GroupName>>, now: Timestamp) {
    for (name, group) in &mut deployment.groups {
        if group.awaits_promotion() && groups.is_none_or(|groups| groups.contains(name)) {
            group.promoted = true;
            group.require_progress_by = deadline_from(group, now);
        }
    }
    describe(deployment);
}

/// Start the time of a group anew.
fn renew(group: &mut DeployedGroup, now: Timestamp) {
    if group.require_progress_by.is_some() {
        group.require_progress_by = deadline_from(group, now);
    }
}

fn deadline_from(group: &DeployedGroup, now: Timestamp) -> Option<Timestamp> {
    (!group.progress_deadline.is_zero()).then(|| now.plus(group.progress_deadline))
}

/// Mark the deployment as successful when every group is done. Returns whether it is.
pub fn complete(
    deployment: &mut Deployment,
    progress: &BTreeMap<GroupName, GroupProgress>,
) -> bool {
    let done = |name| progress.get(name).is_some_and(|group| group.done);
    let all = deployment.groups.keys().all(done);
    if deployment.phase != DeploymentPhase::Running || !all {
        return false;
    }
    deployment.phase = DeploymentPhase::Successful;
    deployment.description = description::SUCCESSFUL.to_owned();
    true
}

#[cfg(test)]
mod tests;
