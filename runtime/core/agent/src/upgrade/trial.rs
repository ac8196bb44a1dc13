//! A dry run, which finds out whether a plugin would serve in the place of the one in use.
//!
//! ```text
//! fingerprint ─► as well as the old one; every device that a task holds is there
//! recover     ─► of every live handle: the same workload
//! config      ─► of every live task fits the new schema
//! ```
//! It runs beside the old plugin, in instances whose host answers questions and changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use super::super::{AgentHandle, depends_on_variables};
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::{PluginName, RunId};
use ostler_model::limits::UPGRADE_DRY_CALLS;
use ostler_model::ports::TaskContext;
use ostler_model::task::Workload;
use ostler_plugin::Plugin;
use ostler_plugin::device::LoadedDevice;
use ostler_plugin::driver::LoadedDriver;
use ostler_plugin::drivers::manager::LiveTask;

/// The number of new things that a report names.
const ANNOUNCED_MAX: usize = 16;

/// A new plugin in instances that change nothing.
#[derive(Clone)]
pub(super) enum Twin {
    Driver(Arc<LoadedDriver>),
    Device(Arc<LoadedDevice>),
}

impl From<Plugin> for Twin {
    fn from(plugin: Plugin) -> Self {
        match plugin {
            Plugin::Driver(plugin) => Self::Driver(Arc::new(plugin)),
            Plugin::Device(plugin) => Self::Device(Arc::new(plugin)),
        }
    }
}

/// The result of a dry run.
pub(super) struct TrialResult {
    /// The runs that the new plugin could own.
    pub(super) owned: BTreeSet<RunId>,
    /// What the new plugin announces and the one in use does not.
    pub(super) announces: Vec<String>,
}

/// Try a plugin. Returns what it would do, or why it would not serve.
pub(super) async fn run(agent: &AgentHandle, twin: &Twin) -> Result<TrialResult, String> {
    match twin {
        Twin::Driver(twin) => {
            let announces = driver_fingerprint(agent, twin).await?;
            configs(agent, twin)?;
            let owned = find_ownable_runs(agent, twin, &BTreeSet::new()).await?;
            Ok(TrialResult { owned, announces })
        }
        Twin::Device(twin) => {
            let announces = device_fingerprint(agent, twin).await?;
            Ok(TrialResult { owned: BTreeSet::new(), announces })
        }
    }
}

/// The first of these names, and the number of the others.
fn shorten_names(mut names: Vec<String>) -> Vec<String> {
    let more = names.len().saturating_sub(ANNOUNCED_MAX);
    names.truncate(ANNOUNCED_MAX);
    names.extend((more > 0).then(|| format!("{more} more")));
    names
}

fn check_health(in_use: Option<&Health>, found: &Health) -> Result<(), String> {
    let healthy = |health: &Health| health.state == HealthState::Healthy;
    if in_use.is_some_and(healthy) && !healthy(found) {
        let state = format!("{:?}", found.state).to_lowercase();
        return Err(format!("it is {state} where the one in use is healthy: {}", found.reason));
    }
    Ok(())
}

async fn driver_fingerprint(
    agent: &AgentHandle,
    twin: &LoadedDriver,
) -> Result<Vec<String>, String> {
    let found = twin.fingerprint().await.map_err(|e| format!("its fingerprint failed: {e}"))?;
    let view = agent.node();
    let known = view.drivers.get(&twin.name);
    check_health(known.map(|driver| &driver.health), &found.health)?;
    let known = |name: &str| known.is_some_and(|driver| driver.attributes.contains_key(name));
    let new = found.attributes.into_iter().filter(|one| !known(&one.name));
    Ok(shorten_names(new.map(|one| format!("attribute {}", one.name)).collect()))
}

async fn device_fingerprint(
    agent: &AgentHandle,
    twin: &LoadedDevice,
) -> Result<Vec<String>, String> {
    let assigned = agent.0.devices.assigned_devices(&twin.name);
    let found = twin.fingerprint().await.map_err(|e| format!("its fingerprint failed: {e}"))?;
    check_health(agent.node().device_plugins.get(&twin.name), &found.health)?;
    let groups = found.groups;
    for device in &assigned {
        let group = groups.iter().find(|group| group.key == device.group);
        let has = |id: &String| {
            group.is_some_and(|group| group.instances.iter().any(|instance| instance.id == *id))
        };
        if let Some(id) = device.ids.iter().find(|id| !has(id)) {
            let group = &device.group;
            return Err(format!("it does not report {group} {id}, which a task holds"));
        }
    }
    let known = agent.node().devices.clone();
    let new = groups.iter().filter(|group| !known.iter().any(|known| known.key == group.key));
    Ok(shorten_names(new.map(|group| format!("device group {}", group.key)).collect()))
}

/// Check that the configurations of live tasks fit the new schema, because a task may be
/// started again.
fn configs(agent: &AgentHandle, twin: &LoadedDriver) -> Result<(), String> {
    for view in agent.0.control.allocs() {
        if view.state.client_status.is_terminal() {
            continue;
        }
        let job = &view.allocation.job;
        let group = job.groups.iter().find(|group| group.name == view.allocation.group);
        for task in group.into_iter().flat_map(|group| &group.tasks) {
            if task.driver != twin.name {
                continue;
            }
            let problems = twin.task_schema.check(&task.config);
            let wrong =
                problems.iter().find(|one| !depends_on_variables(task.config.map(), &one.path));
            if let Some(problem) = wrong {
                let dot = if problem.path.is_empty() { "" } else { "." };
                return Err(format!(
                    "the configuration of task {} of job {} does not fit its schema: config{dot}{}: {}",
                    task.name, job.id, problem.path, problem.message
                ));
            }
        }
    }
    Ok(())
}

/// Check that the new plugin can own every live task of its driver except the `known` ones. Returns
/// the runs it can own, the known ones included.
pub(super) async fn find_ownable_runs(
    agent: &AgentHandle,
    twin: &Arc<LoadedDriver>,
    known: &BTreeSet<RunId>,
) -> Result<BTreeSet<RunId>, String> {
    let live = agent.0.drivers.live_tasks(&twin.name);
    let new = live.into_iter().filter(|task| !known.contains(&task.context.run_id));
    let mut waiting: Vec<LiveTask> = new.collect();
    let (mut owned, mut asked) = (known.clone(), JoinSet::new());
    loop {
        while asked.len() < UPGRADE_DRY_CALLS
            && let Some(task) = waiting.pop()
        {
            let twin = Arc::clone(twin);
            asked.spawn(async move { (recover(&twin, &task).await, task) });
        }
        let Some(answer) = asked.join_next().await else { return Ok(owned) };
        let Ok((answer, task)) = answer else { return Err("its dry run was given up".to_owned()) };
        let run = task.context.run_id.clone();
        match answer {
            Ok(()) => drop(owned.insert(run)),
            // A task that has ended meanwhile need not be owned.
            Err(reason) if is_live(agent, &twin.name, &run) => return Err(reason),
            Err(_ended) => {}
        }
    }
}

fn is_live(agent: &AgentHandle, driver: &PluginName, run: &RunId) -> bool {
    let live = agent.0.drivers.live_tasks(driver);
    let Some(task) = live.iter().find(|task| task.context.run_id == *run) else { return false };
    if matches!(task.started.workload, Workload::Poll(_)) {
        // Only the driver knows whether a polled workload is alive.
        return true;
    }
    // The list of the driver may still have a task that has just ended.
    agent.0.context.workloads.wait(run, &task.started.workload).now_or_never().is_none()
}

/// Call recover once, with a context that writes nothing down and tells nobody.
async fn recover(twin: &LoadedDriver, task: &LiveTask) -> Result<(), String> {
    let context = &task.context;
    let muted = TaskContext {
        record_identity: Arc::new(|_| {
            Box::pin(std::future::ready(Err("a dry run starts nothing".to_owned())))
        }),
        events: Arc::new(|_, _| {}),
        ..(**context).clone()
    };
    let whose = format!("task {} of job {}", context.task, context.job_id);
    match twin.recover(Arc::new(muted), task.started.handle.clone()).await {
        Ok(started) if started.workload == task.started.workload => Ok(()),
        Ok(_other) => Err(format!("it mistakes {whose} for another workload")),
        Err(error) => Err(format!("it cannot take over {whose}: {error}")),
    }
}
