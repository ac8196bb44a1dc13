//! Requests to the node about one allocation: usage, restart, signal, removal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::extract::State;
use axum::response::Response;

use super::allocs::alloc_id;
use super::body::{self, Body};
use super::error::RequestFailure;
use super::json::stats;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use ostler_agent::{AllocError, AllocView, CollectOutcome, RestartScope};
use ostler_model::attribute::AttributeValue;
use ostler_model::ids::TaskName;
use ostler_model::words::count_noun;
use ostler_wire::{AllocUsage, GenericResponse, RestartRequest, SignalRequest, TaskUsage, Text};

/// The reason for a restart in the events, if the request has none.
const RESTART_REASON: &str = "User requested restart";

pub(super) fn find_alloc(api: &Api, id: &str) -> Result<AllocView, RequestFailure> {
    let id = alloc_id(id)?;
    api.agent.control().alloc(id).ok_or(RequestFailure::UnknownAlloc(id))
}

/// The task of this name, which the allocation must have.
pub(super) fn task_by_name(view: &AllocView, name: &str) -> Result<TaskName, RequestFailure> {
    let unknown = || RequestFailure::UnknownTask(name.chars().take(128).collect());
    let name = TaskName::new(name).map_err(|_| unknown())?;
    let group = view.allocation.task_group();
    match group.and_then(|group| group.task(&name)) {
        Some(_) => Ok(name),
        None => Err(unknown()),
    }
}

fn unknown_alloc(error: AllocError) -> RequestFailure {
    match error {
        AllocError::Unknown { alloc } => RequestFailure::UnknownAlloc(alloc),
        other => RequestFailure::Alloc(other),
    }
}

/// Take an empty text as none.
fn non_empty(text: Option<Text<'_>>) -> Option<Text<'_>> {
    text.filter(|text| !text.is_empty())
}

/// `PUT /v1/client/allocation/ID/restart`
pub(super) async fn restart(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let view = find_alloc(&api, &id)?;
    let RestartRequest { task_name, all_tasks } = body::read(&params, body)?;
    let scope = match non_empty(task_name) {
        Some(name) => RestartScope::Task(task_by_name(&view, &name)?),
        None if all_tasks.unwrap_or(false) => RestartScope::All,
        None => RestartScope::Running,
    };
    let id = view.allocation.id;
    api.agent.restart_alloc(id, scope, RESTART_REASON).await.map_err(unknown_alloc)?;
    reply::json(&params, &GenericResponse::default())
}

/// `PUT /v1/client/allocation/ID/signal`
pub(super) async fn signal(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let view = find_alloc(&api, &id)?;
    let SignalRequest { task, signal } = body::read(&params, body)?;
    let task = non_empty(task).map(|name| task_by_name(&view, &name)).transpose()?;
    // As in Nomad's command line, SIGKILL is the default.
    let signal = non_empty(signal).unwrap_or("SIGKILL".into());
    let id = view.allocation.id;
    api.agent.signal_alloc(id, task.as_ref(), &signal).await.map_err(unknown_alloc)?;
    reply::json(&params, &GenericResponse::default())
}

/// `GET /v1/client/allocation/ID/gc`
pub(super) async fn collect_one(
    NamedRequest { api, id, .. }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = find_alloc(&api, &id)?.allocation.id;
    api.agent.control().collect(Some(id)).await.map_err(unknown_alloc)?;
    Ok(reply::empty_answer())
}

/// `GET /v1/client/gc`
pub(super) async fn collect_all(State(api): ApiState) -> Result<Response, RequestFailure> {
    collect_answer(api.agent.control().collect(None).await?)
}

/// The answer to a collection. It is a success only if everything was removed.
pub(super) fn collect_answer(collected: CollectOutcome) -> Result<Response, RequestFailure> {
    let CollectOutcome { allocs, failed } = collected;
    if failed.is_empty() {
        return Ok(reply::empty_answer());
    }
    let mut text = format!(
        "removed {}; {} could not be removed:",
        count_noun(allocs.len(), "allocation"),
        failed.len()
    );
    for (alloc, why) in failed.iter().take(STAYING_SHOWN) {
        let _ = write!(text, "\n  {}: {why}", alloc.short());
    }
    if failed.len() > STAYING_SHOWN {
        let _ = write!(text, "\n  and {} more", failed.len() - STAYING_SHOWN);
    }
    Err(RequestFailure::Stay(text))
}

/// The most allocations that an answer names of those that could not be removed; the others are counted.
const STAYING_SHOWN: usize = 10;

/// `GET /v1/client/allocation/ID/stats`
pub(super) async fn stats(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let view = find_alloc(&api, &id)?;
    let only = params.text("task").map(|name| task_by_name(&view, name)).transpose()?;
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
    // A task may have device measurements although its driver measures nothing.
    for (task, measured) in devices.iter().filter(|(_, measured)| !measured.is_empty()) {
        let unmeasured = || TaskUsage { timestamp: now, ..TaskUsage::default() };
        let usage = answer.tasks.entry(task.as_str().into()).or_insert_with(unmeasured);
        usage.resource_usage.device_stats = stats::devices(measured);
    }
    answer.resource_usage.device_stats = stats::devices(&all_devices);
    reply::json(&params, &answer)
}

/// The speed of one core, MHz; 0 if it is unknown.
pub(super) fn core_mhz(api: &Api) -> f64 {
    match api.agent.node().attributes.get("cpu.frequency").map(|a| &a.value) {
        Some(AttributeValue::Int(mhz)) => *mhz as f64,
        Some(AttributeValue::Float(mhz)) => *mhz,
        _ => 0.0,
    }
}
