//! What is asked of the node about one allocation: usage, restart, signal, removal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;

use super::allocs::alloc_id;
use super::body;
use super::error::Failure;
use super::jobs::Body;
use super::json::stats;
use super::params::Asked;
use super::reply;
use super::router::{Api, Shared};
use ostler_agent::{AllocError, AllocView, Collected, RestartScope};
use ostler_model::attribute::Scalar;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::task::Usage;
use ostler_model::time::Timestamp;
use ostler_model::words::counted;
use ostler_wire::{AllocUsage, Done, RestartRequest, SignalRequest, TaskUsage, Text};

/// What a restart is told as in the events, unless its asker gives another.
const RESTART_REASON: &str = "User requested restart";

pub(super) fn known(api: &Api, id: &str) -> Result<AllocView, Failure> {
    let id = alloc_id(id)?;
    api.agent.alloc(id).ok_or(Failure::UnknownAlloc(id))
}

/// A task by the name somebody gave; one the allocation has.
pub(super) fn task_of(view: &AllocView, name: &str) -> Result<TaskName, Failure> {
    let unknown = || Failure::UnknownTask(name.chars().take(128).collect());
    let name = TaskName::new(name).map_err(|_| unknown())?;
    let group = view.allocation.task_group();
    match group.and_then(|group| group.task(&name)) {
        Some(_) => Ok(name),
        None => Err(unknown()),
    }
}

fn unknown_alloc(error: AllocError) -> Failure {
    match error {
        AllocError::Unknown { alloc } => Failure::UnknownAlloc(alloc),
        other => Failure::Alloc(other),
    }
}

/// Nothing named means nothing, as an empty text does.
fn given(text: Option<Text<'_>>) -> Option<Text<'_>> {
    text.filter(|text| !text.is_empty())
}

/// `PUT /v1/client/allocation/ID/restart`
pub(super) async fn restart(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let view = known(&api, &id)?;
    let RestartRequest { task_name, all_tasks } = body::read(&params, body)?;
    let scope = match given(task_name) {
        Some(name) => RestartScope::Task(task_of(&view, &name)?),
        None if all_tasks.unwrap_or(false) => RestartScope::All,
        None => RestartScope::Running,
    };
    let id = view.allocation.id;
    api.agent.restart_alloc(id, scope, RESTART_REASON).await.map_err(unknown_alloc)?;
    reply::json(&params, &Done::default())
}

/// `PUT /v1/client/allocation/ID/signal`
pub(super) async fn signal(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let view = known(&api, &id)?;
    let SignalRequest { task, signal } = body::read(&params, body)?;
    let task = given(task).map(|name| task_of(&view, &name)).transpose()?;
    // As Nomad's command line: SIGKILL unless given.
    let signal = given(signal).unwrap_or("SIGKILL".into());
    let id = view.allocation.id;
    api.agent.signal_alloc(id, task.as_ref(), &signal).await.map_err(unknown_alloc)?;
    reply::json(&params, &Done::default())
}

/// `GET /v1/client/allocation/ID/gc`
pub(super) async fn collect_one(Asked { api, id, .. }: Asked) -> Result<Response, Failure> {
    let id = known(&api, &id)?.allocation.id;
    api.agent.collect(Some(id)).await.map_err(unknown_alloc)?;
    Ok(reply::done())
}

/// `GET /v1/client/gc`
pub(super) async fn collect_all(State(api): Shared) -> Result<Response, Failure> {
    collected(api.agent.collect(None).await?)
}

/// Done only when all is gone that was to go.
pub(super) fn collected(collected: Collected) -> Result<Response, Failure> {
    let Collected { allocs, failed } = collected;
    if failed.is_empty() {
        return Ok(reply::done());
    }
    let mut text = format!(
        "removed {}; {} could not be removed:",
        counted(allocs.len(), "allocation"),
        failed.len()
    );
    for (alloc, why) in failed.iter().take(STAYING_SHOWN) {
        let _ = write!(text, "\n  {}: {why}", alloc.short());
    }
    if failed.len() > STAYING_SHOWN {
        let _ = write!(text, "\n  and {} more", failed.len() - STAYING_SHOWN);
    }
    Err(Failure::Stay(text))
}

/// Allocations that could not be removed and are named in an answer; the others are counted.
const STAYING_SHOWN: usize = 10;

/// `GET /v1/client/allocation/ID/stats`
pub(super) async fn stats(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let view = known(&api, &id)?;
    let only = params.text("task").map(|name| task_of(&view, name)).transpose()?;
    let wanted = |task: &TaskName| only.as_ref().is_none_or(|only| only == task);
    let core_mhz = core_mhz(&api);
    let alloc = view.allocation.id;
    let devices_of = |task: &TaskName| api.agent.task_device_stats(alloc, task).unwrap_or_default();
    let with_devices = view.allocation.devices.keys().filter(|task| wanted(task));
    let devices: BTreeMap<_, _> = with_devices.map(|task| (task, devices_of(task))).collect();
    let all_devices = match &only {
        Some(task) => devices_of(task),
        None => api.agent.alloc_device_stats(alloc).unwrap_or_default(),
    };
    let now = api.clock.now();
    let mut answer = AllocUsage { timestamp: now, ..AllocUsage::default() };
    let used = view.handle.usage().await;
    let mut processor = api.processor();
    for (task, usage) in used {
        if !wanted(&task) {
            continue;
        }
        let started = view.state.tasks.get(&task).and_then(|task| task.started_at);
        let percent = processor.percent((alloc, task.clone()), &usage, started);
        let resource_usage = stats::usage(usage.memory_bytes, percent, core_mhz);
        stats::add(&mut answer.resource_usage, &resource_usage);
        let timestamp = usage.taken_at;
        let usage = TaskUsage { resource_usage, timestamp, ..TaskUsage::default() };
        answer.tasks.insert(task.to_string().into(), usage);
    }
    drop(processor);
    // A task whose driver measures nothing may have devices that do.
    for (task, measured) in devices.iter().filter(|(_, measured)| !measured.is_empty()) {
        let unmeasured = || TaskUsage { timestamp: now, ..TaskUsage::default() };
        let usage = answer.tasks.entry(task.as_str().into()).or_insert_with(unmeasured);
        usage.resource_usage.device_stats = stats::devices(measured);
    }
    answer.resource_usage.device_stats = stats::devices(&all_devices);
    reply::json(&params, &answer)
}

/// Speed of one core; 0 when it is not known.
pub(super) fn core_mhz(api: &Api) -> f64 {
    match api.agent.node().attributes.get("cpu.frequency").map(|a| &a.value) {
        Some(Scalar::Int(mhz)) => *mhz as f64,
        Some(Scalar::Float(mhz)) => *mhz,
        _ => 0.0,
    }
}

/// Processor time at two moments makes a percentage: what was measured last, by task.
#[derive(Debug, Default)]
pub(super) struct Processor(BTreeMap<(AllocId, TaskName), Sample>);

/// Most tasks remembered; beyond that all are forgotten, and the next percentage is that since the
/// task's start.
const SAMPLES_MAX: usize = 4_096;
/// Shortest span of time a percentage is made of: below that the clock's steps would show.
pub(super) const SPAN_MIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Timestamp,
    cpu_time: Duration,
    /// The percentage told last, for those who ask again at once.
    percent: f64,
}

impl Processor {
    /// Per cent of one core since the last question, or since the start for the first one.
    pub(super) fn percent(
        &mut self,
        task: (AllocId, TaskName),
        usage: &Usage,
        started: Option<Timestamp>,
    ) -> Option<f64> {
        let (at, cpu_time) = (usage.taken_at, usage.cpu_time?);
        // Less than before: another run of the task.
        let last = self.0.get(&task).copied().filter(|last| cpu_time >= last.cpu_time);
        let (since, before) = match last {
            Some(last) if at.since(last.at) < SPAN_MIN => return Some(last.percent),
            Some(last) => (last.at, last.cpu_time),
            None => (started?, Duration::ZERO),
        };
        let span = at.since(since).max(Duration::from_millis(1));
        let percent = (cpu_time - before).as_secs_f64() / span.as_secs_f64() * 100.0;
        if self.0.len() >= SAMPLES_MAX {
            self.0.clear();
        }
        self.0.insert(task, Sample { at, cpu_time, percent });
        Some(percent)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_percentage_is_of_the_time_since_the_last_question() {
        let mut processor = Processor::default();
        let task = || (AllocId::new(uuid::Uuid::nil()), TaskName::new("t").unwrap());
        let usage = |cpu_ms, at_ms: u64| Usage {
            cpu_time: Some(Duration::from_millis(cpu_ms)),
            memory_bytes: None,
            taken_at: Timestamp::from_nanos(at_ms * 1_000_000),
        };
        let started = Some(Timestamp::from_nanos(0));
        assert_eq!(processor.percent(task(), &usage(500, 1_000), started), Some(50.0), "first");
        assert_eq!(processor.percent(task(), &usage(1_500, 2_000), started), Some(100.0));
        assert_eq!(processor.percent(task(), &usage(1_500, 2_001), started), Some(100.0), "again");
        let restarted = Some(Timestamp::from_nanos(3_000_000_000));
        assert_eq!(processor.percent(task(), &usage(10, 4_000), restarted), Some(1.0));
        let unknown = Usage { cpu_time: None, ..usage(0, 5_000) };
        assert_eq!(processor.percent(task(), &unknown, started), None, "unset is not zero");
    }
}
