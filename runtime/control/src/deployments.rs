//! How a new version of a job takes over, and what becomes of it. Pure.
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
//! A canary that somebody ends before it was accepted (`alloc stop`, a drain) is no failure: until its
//! replacement is placed no time runs for its place, and from then on that has the whole time. One that follows
//! a canary that failed has what is left.
//!
//! What is to be placed and stopped meanwhile is [`crate::reconcile`]'s to say. Deadlines are times of day
//! on record, so a restart of the agent changes none.

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

/// What is said of a deployment, as Nomad says it: clients look for these.
pub mod description {
    /// It goes on.
    pub const RUNNING: &str = "Deployment is running";
    /// Its canaries wait for somebody.
    pub const NEEDS_PROMOTION: &str = "Deployment is running but requires manual promotion";
    /// Its canaries wait for their health.
    pub const AUTO_PROMOTION: &str = "Deployment is running pending automatic promotion";
    /// Somebody halted it.
    pub const PAUSED: &str = "Deployment is paused";
    /// All is healthy.
    pub const SUCCESSFUL: &str = "Deployment completed successfully";
    /// The job was stopped.
    pub const STOPPED_JOB: &str = "Cancelled because job is stopped";
    /// The job has a newer version.
    pub const NEWER_JOB: &str = "Cancelled due to newer version of job";
    /// Something is not healthy.
    pub const UNHEALTHY: &str = "Failed due to unhealthy allocations";
    /// Nothing became healthy in time.
    pub const DEADLINE: &str = "Failed due to progress deadline";
    /// Somebody gave it up.
    pub const BY_USER: &str = "Deployment marked as failed";
}

/// An allocation of a deployment, as far as its health goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Which.
    pub id: AllocId,
    /// Its group.
    pub group: GroupName,
    /// One of the first of its version.
    pub canary: bool,
    /// The one before it.
    pub previous: Option<AllocId>,
    /// Is it to run?
    pub standing: JudgedStanding,
    /// The verdict.
    pub healthy: Option<bool>,
    /// When that was given.
    pub judged_at: Timestamp,
}

impl Judged {
    /// Is it to run, not over, and healthy?
    fn is_live_and_healthy(&self) -> bool {
        self.standing == JudgedStanding::Live && self.healthy == Some(true)
    }
}

/// Whether an allocation of a deployment is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedStanding {
    /// It is, and is not over.
    Live,
    /// It is, and is over.
    Over,
    /// It failed, and is told to stop for the one that follows it.
    Followed,
    /// It is told to stop for any other reason.
    Stopped,
}

/// An allocation that enters a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entrant {
    /// Which.
    pub id: AllocId,
    /// It runs beside what it may replace.
    pub canary: bool,
    /// The one before it failed.
    pub follows: bool,
}

/// Is this group of a job deployed step by step?
#[must_use]
pub fn is_deployed(kind: JobKind, group: &TaskGroup) -> bool {
    let policy = group.update.filter(|policy| policy.max_parallel > 0);
    kind == JobKind::Service && policy.is_some() && group.count > 0
}

/// The deployment of a version that is about to be placed; `None`: it needs none. `progress`: what is to be
/// done for each group. Its indexes are given with the change.
#[must_use]
pub fn begin(
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

/// What is said of a running one.
fn describe(deployment: &mut Deployment) {
    let awaiting = || deployment.groups.values().filter(|group| group.awaits_promotion());
    let text = match (awaiting().next(), awaiting().all(|group| group.auto_promote)) {
        (None, _) => description::RUNNING,
        (Some(_), true) => description::AUTO_PROMOTION,
        (Some(_), false) => description::NEEDS_PROMOTION,
    };
    deployment.description = text.to_owned();
}

/// An allocation of this group is placed in it, or taken over by it.
pub fn enter(
    deployment: &mut Deployment,
    group: &GroupName,
    entrant: Entrant,
    now: Timestamp,
) -> Option<AllocDeployment> {
    let Entrant { id, canary, follows } = entrant;
    let running = deployment.phase.is_active();
    let deployed = deployment.groups.get_mut(group).filter(|_| running)?;
    deployed.placed = deployed.placed.saturating_add(1);
    if canary {
        deployed.canaries.push(id);
    }
    // What replaces a canary that nobody's failure ended has its own time.
    let anew = canary && !follows && deployed.awaits_promotion();
    if anew || deployed.require_progress_by.is_none() {
        let by = deadline_from(deployed, now);
        deployed.require_progress_by = deployed.require_progress_by.max(by);
    }
    Some(AllocDeployment { id: deployment.id.clone(), since: now, canary })
}

/// Take in what its allocations say, and what follows from that and the time: promotion, failure. It says
/// whether the deployment failed just now and is to be reverted.
pub fn observe(deployment: &mut Deployment, allocs: &[Judged], now: Timestamp) -> Option<bool> {
    if !deployment.phase.is_active() {
        return None;
    }
    count(deployment, allocs);
    if deployment.phase == DeploymentPhase::Paused {
        return None;
    }
    start_time(deployment, allocs, now);
    if let Some((groups, why)) = failing(deployment, allocs, now) {
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

fn count(deployment: &mut Deployment, allocs: &[Judged]) {
    for (name, group) in &mut deployment.groups {
        let of_group = || allocs.iter().filter(|alloc| alloc.group == *name);
        let judged = |verdict| of_group().filter(move |alloc| alloc.healthy == Some(verdict));
        // Those that were collected are counted no more.
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

fn healthy_canaries(allocs: &[Judged], group: &GroupName) -> u32 {
    let healthy =
        |alloc: &&Judged| alloc.group == *group && alloc.canary && alloc.is_live_and_healthy();
    number(allocs.iter().filter(healthy).count())
}

/// Canaries of a group that are there, or are to come after one that failed. When all that it wants were placed
/// once, somebody ended the others.
fn canaries_tried(allocs: &[Judged], group: &GroupName) -> u32 {
    let canaries = || allocs.iter().filter(|alloc| alloc.group == *group && alloc.canary);
    let tried = |alloc: &&Judged| match alloc.standing {
        JudgedStanding::Live | JudgedStanding::Over => true,
        JudgedStanding::Followed => !canaries().any(|other| other.previous == Some(alloc.id)),
        JudgedStanding::Stopped => false,
    };
    number(canaries().filter(tried).count())
}

/// Canaries of a group that were placed and follow none before them.
fn canaries_begun(name: &GroupName, group: &DeployedGroup, allocs: &[Judged]) -> u32 {
    let follows = |alloc: &&Judged| {
        let of_group = alloc.group == *name && group.canaries.contains(&alloc.id);
        of_group && alloc.previous.is_some_and(|id| group.canaries.contains(&id))
    };
    number(group.canaries.len()).saturating_sub(number(allocs.iter().filter(follows).count()))
}

/// Has the group all that it can have for now? What was healthy once and is not there any more does not
/// count.
fn is_content(name: &GroupName, group: &DeployedGroup, allocs: &[Judged]) -> bool {
    if group.awaits_promotion() {
        let desired = group.desired_canaries;
        let all_placed = canaries_begun(name, group, allocs) >= desired;
        let wanted = if all_placed { canaries_tried(allocs, name).min(desired) } else { desired };
        return healthy_canaries(allocs, name) >= wanted;
    }
    let healthy = |alloc: &&Judged| alloc.group == *name && alloc.is_live_and_healthy();
    number(allocs.iter().filter(healthy).count()) >= group.desired_total
}

/// The time of a group that had all begins when it lacks something.
fn start_time(deployment: &mut Deployment, allocs: &[Judged], now: Timestamp) {
    for (name, group) in &mut deployment.groups {
        let had = group.placed > 0 && group.require_progress_by.is_none();
        if had && !is_content(name, group, allocs) {
            group.require_progress_by = deadline_from(group, now);
        }
    }
}

/// No time runs for groups that have all that they can have for now, while the others go on.
pub fn stop_time(deployment: &mut Deployment, allocs: &[Judged]) {
    if deployment.phase != DeploymentPhase::Running {
        return;
    }
    for (name, group) in &mut deployment.groups {
        if group.require_progress_by.is_some() && is_content(name, group, allocs) {
            group.require_progress_by = None;
        }
    }
}

/// Groups that fail, and why.
fn failing(
    deployment: &Deployment,
    allocs: &[Judged],
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

/// When it fails if nothing becomes healthy.
#[must_use]
pub fn deadline(deployment: &Deployment, allocs: &[Judged]) -> Option<Timestamp> {
    if deployment.phase != DeploymentPhase::Running || planted("deployment-without-deadline") {
        return None;
    }
    let open = deployment.groups.iter().filter(|(name, group)| !is_content(name, group, allocs));
    open.filter_map(|(_, group)| group.require_progress_by).min()
}

/// Its canaries are accepted: of these groups, or of all.
fn promote(deployment: &mut Deployment, groups: Option<&BTreeSet<GroupName>>, now: Timestamp) {
    for (name, group) in &mut deployment.groups {
        if group.awaits_promotion() && groups.is_none_or(|groups| groups.contains(name)) {
            group.promoted = true;
            group.require_progress_by = deadline_from(group, now);
        }
    }
    describe(deployment);
}

/// Its time begins anew.
fn renew(group: &mut DeployedGroup, now: Timestamp) {
    if group.require_progress_by.is_some() {
        group.require_progress_by = deadline_from(group, now);
    }
}

fn deadline_from(group: &DeployedGroup, now: Timestamp) -> Option<Timestamp> {
    (!group.progress_deadline.is_zero()).then(|| now.plus(group.progress_deadline))
}

/// Every group is as it is to be: it has succeeded.
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
