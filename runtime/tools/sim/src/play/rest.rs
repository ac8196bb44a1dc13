//! All is well again: what must be so then.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::agent::Agent;
use super::{Scene, files, lock, stops};
use crate::checks::JobState;
use crate::files::FILE_JOBS;
use crate::plan::{Disk, JOBS, Mode};
use ostler_control::StopOptions;
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::clock;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::rollout::{DeployedGroup, Deployment, DeploymentPhase};
use ostler_model::saved::JobOrigin;
use ostler_state::KeyPrefix;

/// What is under way ends within this time: delays of restarts, deadlines of calls and writes, and those of
/// deployments, one for each of their places. Where the clock was set back by an hour they are no longer.
const SETTLE: Duration = Duration::from_secs(3_600);

pub(super) async fn rest(scene: &Scene, agent: &Agent, dir: &Path) -> Result<(), String> {
    {
        let mut inner = scene.world.lock();
        (inner.driver, inner.device) = (Mode::Works, Mode::Works);
        (inner.settled, inner.kill_at) = (true, None);
        inner.instances.values_mut().for_each(|one| one.unhealthy = false);
        inner.note("all is well again");
    }
    scene.disk.set(Disk::Works);
    files::well(scene);
    // Whether what was told to stop ends in time is seen by `stops`.
    clock::sleep(SETTLE).await;
    check(scene, agent)?;
    let before = scene.disk.commits();
    clock::sleep(SETTLE).await;
    let written = scene.disk.commits().saturating_sub(before);
    if written > 0 {
        return Err(format!("the idle node made {written} commits in {SETTLE:?}"));
    }
    if let Some(files) = &scene.files {
        files::last(files, scene, agent).await?;
    }
    end(scene, agent, dir).await
}

/// What the job is, by what the agent says.
pub(super) fn state_of(agent: &Agent, name: &str) -> Option<JobState> {
    let id = JobId::new(name).ok()?;
    let Some(view) = agent.control.job(&id) else { return Some(JobState::Absent) };
    if view.record.stopped {
        return Some(JobState::Stopped);
    }
    let group = view.record.job.groups.first()?;
    let version = group.tasks.first()?.env.get("VERSION")?.parse().ok()?;
    Some(JobState::Runs { count: group.count, version })
}

fn check(scene: &Scene, agent: &Agent) -> Result<(), String> {
    if let Some(broken) = scene.world.broken() {
        return Err(broken);
    }
    for name in JOBS {
        let allowed = lock(&scene.asked).allowed(name);
        let is = state_of(agent, name).ok_or("a job of the simulation is not as it was made")?;
        // A file takes the name of a job that is stopped.
        let free = allowed.iter().any(|may| !matches!(may, JobState::Runs { .. }));
        let fits = allowed.contains(&is) || (free && files::has(agent, name));
        if !fits {
            return Err(format!("job {name} is {is:?}, and may be {allowed:?}"));
        }
        filled(agent, name, &is)?;
        deployed(agent, name)?;
    }
    if let Some(files) = &scene.files {
        files::check(files, agent, true)?;
        files::kept(scene, agent)?;
    }
    let mut known = BTreeMap::new();
    for view in agent.control.allocs() {
        let ended = view.phase.has_ended() || view.state.client_status.is_terminal();
        known.insert(view.allocation.id, (ended, view.allocation.desired));
    }
    stopped(agent)?;
    let over = |alloc: &AllocId| known.get(alloc).is_none_or(|(ended, _)| *ended);
    if let Some(claim) = agent.devices.claims().into_iter().find(|claim| over(&claim.alloc)) {
        let (id, task) = (claim.alloc.short(), claim.task);
        return Err(format!("{id}.{task} is over, and has devices: {:?}", claim.state));
    }
    for (alloc, task) in scene.world.live() {
        match known.get(&alloc) {
            None => return Err(format!("{}.{task} runs, and nobody knows it", alloc.short())),
            Some((true, _)) => {
                return Err(format!("{}.{task} runs, and its allocation has ended", alloc.short()));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// What was told to stop has ended.
fn stopped(agent: &Agent) -> Result<(), String> {
    let goes_on = agent
        .control
        .allocs()
        .into_iter()
        .find(|view| view.allocation.desired == DesiredStatus::Stop && !view.phase.has_ended());
    let Some(view) = goes_on else { return Ok(()) };
    let (id, phase) = (view.allocation.id.short(), view.phase);
    let status = view.state.client_status;
    Err(format!("allocation {id} was told to stop and is {phase:?}: {status:?}"))
}

/// Every place of a job that is to run has an allocation, has ended, or waits.
pub(super) fn filled(agent: &Agent, name: &str, is: &JobState) -> Result<(), String> {
    let JobState::Runs { count, .. } = is else { return Ok(()) };
    let id = JobId::new(name).map_err(|error| error.to_string())?;
    let Some(view) = agent.control.job(&id) else { return Ok(()) };
    let counts = view.groups.values().next().copied().unwrap_or_default();
    let there = counts.queued + counts.pending + counts.running + counts.complete + counts.failed;
    // A version that was given up is not placed any further.
    let given_up = |one: &Deployment| {
        one.phase == DeploymentPhase::Failed && one.version == view.record.version
    };
    if there < *count && !view.deployment.as_deref().is_some_and(given_up) {
        let known = agent.control.read_tables(|tables| {
            let one = |entry: &ostler_control::AllocEntry| {
                let alloc = &entry.allocation;
                let (id, status) = (alloc.id.short(), entry.client_status());
                let (desired, version) = (alloc.desired, alloc.job_version);
                format!("{id} [{}] {status:?} {desired:?} version {version}", alloc.index)
            };
            let job = tables.job(&id).map(|job| (job.record.version, job.ended.clone()));
            (tables.allocs_of(&id).map(one).collect::<Vec<_>>(), job)
        });
        return Err(format!("job {name} is to have {count} places: {counts:?} {known:?}"));
    }
    let pending = agent.control.allocs().into_iter().filter(|one| {
        one.allocation.job.id == id && one.state.client_status == ClientStatus::Pending
    });
    let waits: Vec<String> = pending
        .map(|one| {
            let alloc = &one.allocation;
            let (id, previous) = (alloc.id.short(), alloc.previous.map(|id| id.short()));
            let before = alloc.previous.and_then(|id| agent.control.alloc(id));
            let before = before.map(|view| (view.phase, view.state.client_status));
            let desired = (alloc.desired, alloc.job_version, one.handle.allocation().desired);
            let hooks = one.handle.hook_times();
            format!(
                "{desired:?} {hooks:?} {id} after {previous:?} ({before:?}), {:?}: {:?}",
                one.phase, one.state
            )
        })
        .collect();
    if waits.is_empty() {
        Ok(())
    } else {
        Err(format!("of job {name} is pending after an hour: {}", waits.join("; ")))
    }
}

/// No place has two allocations that are to run, none has one that the job does not have (unless canaries
/// are to be accepted before a lower count counts), and no deployment is on its way that nothing holds up.
fn deployed(agent: &Agent, name: &str) -> Result<(), String> {
    let id = JobId::new(name).map_err(|error| error.to_string())?;
    let Some(view) = agent.control.job(&id) else { return Ok(()) };
    let awaits = |group: &GroupName| {
        let own = view.deployment.as_ref().filter(|one| one.version == view.record.version);
        own.and_then(|one| one.groups.get(group)).is_some_and(DeployedGroup::awaits_promotion)
    };
    let mut places = std::collections::BTreeSet::new();
    for one in agent.control.allocs() {
        let alloc = &one.allocation;
        let runs = alloc.desired == DesiredStatus::Run && !one.state.client_status.is_terminal();
        let counts = alloc.job.id == id && runs && !one.canary;
        if counts && !places.insert((alloc.group.clone(), alloc.index)) {
            return Err(format!("{} is listed twice", alloc.name));
        }
        let count = view.record.job.group(&alloc.group).map_or(0, |group| group.count);
        if counts && alloc.index >= count && !awaits(&alloc.group) {
            return Err(format!("{} is there, and the job has {count} places", alloc.name));
        }
    }
    let going = view.deployment.as_ref().filter(|one| one.phase.is_active());
    match going {
        Some(one) if view.blocked.is_empty() => {
            let groups = &one.groups;
            Err(format!("job {name} is deployed still after {SETTLE:?}: {groups:?}"))
        }
        _ => Ok(()),
    }
}

/// Every job is purged: nothing is left.
async fn end(scene: &Scene, agent: &Agent, dir: &Path) -> Result<(), String> {
    for name in JOBS.iter().chain(&FILE_JOBS) {
        let id = JobId::new(*name).map_err(|error| error.to_string())?;
        let options = StopOptions { purge: true, ..StopOptions::default() };
        let stop = agent.control.deregister(&id, options, JobOrigin::Api);
        if clock::timeout(stops::bound(), stop).await.is_none() {
            return Err(format!("the purge of job {name} is not answered"));
        }
    }
    clock::sleep(stops::removal_bound()).await;
    if let Some((alloc, task)) = scene.world.live().first() {
        return Err(format!("{}.{task} runs after every job was purged", alloc.short()));
    }
    let left = agent.control.read_tables(|tables| tables.ids());
    if let Some(id) = left.first() {
        return Err(format!("allocation {} is left of a purged job", id.short()));
    }
    let held = scene.world.reserved();
    if !held.is_empty() {
        return Err(format!("devices {held:?} were not released"));
    }
    let dirs = AllocDir::list(&dir.join("allocs")).map_err(|error| error.to_string())?;
    if let Some(id) = dirs.first() {
        return Err(format!("the directory of {} is left of a purged job", id.short()));
    }
    let records = agent.state.scan(&KeyPrefix::Allocs).map_err(|error| error.to_string())?;
    if let Some(record) = records.first() {
        return Err(format!("record {} is left of a purged job", record.key));
    }
    match scene.world.broken() {
        Some(broken) => Err(broken),
        None => Ok(()),
    }
}
