//! `GET /v1/metrics`: numbers under Nomad's names if Nomad has the same ones (`nomad.client…`),
//! otherwise under ours (`ostler…`). They are JSON, or text for Prometheus (`?format=prometheus`).
//!
//! ```text
//! node, allocations, what tasks use, what the machine uses, the store ─┐
//! plugins, hooks, guests (metrics_own) ────────────────────────────────┴─► Gauge ─┬─► JSON
//!                                                                                └─► text (metrics_text)
//! ```

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use super::agent::counts;
use super::client::core_mhz;
use super::error::RequestFailure;
use super::host;
use super::json::{agent::metrics, stats};
use super::metrics_own;
use super::metrics_text;
use super::node_state::stage_word;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState};
use ostler_agent::AllocView;
use ostler_model::alloc::ClientStatus;
use ostler_model::job::Task;
use ostler_model::limits::MIB;
use ostler_wire::MetricGauge;

/// The number of allocations that are asked for their use at the same time.
const ASKED_AT_ONCE: usize = 16;

pub(super) type Labels = BTreeMap<String, String>;

/// `GET /v1/metrics`
pub(super) async fn read(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let prometheus = match params.text("format") {
        None | Some("json") => false,
        Some("prometheus") => true,
        Some(other) => {
            return Err(RequestFailure::bad_param("format", other, "json or prometheus"));
        }
    };
    let objects = [("client", counts(&api)), ("state", json!(api.agent.state_stats()))];
    let mut answer = metrics(api.clock.now(), &objects);
    let views = api.agent.control().allocs();
    let of_node = node_labels(&api);
    answer.gauges.extend(alloc_gauges(&api, &views, &of_node));
    answer.gauges.extend(machine_gauges(&api, &of_node).await?);
    answer.gauges.extend(metrics_own::agent_gauges(&api, &views));
    answer.gauges.extend(task_gauges(&api, views).await);
    let caller = params.access().caller();
    let write = move || {
        if prometheus {
            let kind = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
            return Ok(([kind], metrics_text::text(&answer.gauges)).into_response());
        }
        reply::json(&params, &answer)
    };
    api.computing.answer(caller, write).await
}

pub(super) fn gauge(name: &str, value: f64, labels: &Labels) -> MetricGauge<'static> {
    let labels = labels.iter().map(|(name, value)| (name.clone().into(), value.clone().into()));
    MetricGauge { name: name.to_owned().into(), value, labels: labels.collect() }
}

#[expect(clippy::cast_precision_loss, reason = "a measurement")]
pub(super) const fn number(whole: u64) -> f64 {
    whole as f64
}

pub(super) fn labels<const COUNT: usize>(of: [(&str, String); COUNT]) -> Labels {
    of.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn node_labels(api: &Api) -> Labels {
    let node = api.agent.node();
    let eligibility =
        if api.agent.control().scheduling().ineligible { "ineligible" } else { "eligible" };
    labels([
        ("node_id", node.id.to_string()),
        ("host", node.name.clone()),
        ("datacenter", node.datacenter.clone()),
        ("node_class", "none".to_owned()),
        ("node_status", stage_word(api.agent.readiness().stage).to_owned()),
        ("node_scheduling_eligibility", eligibility.to_owned()),
    ])
}

/// The number of allocations, and the resources of the node that they have.
fn alloc_gauges(api: &Api, views: &[AllocView], labels: &Labels) -> Vec<MetricGauge<'static>> {
    let node = api.agent.node();
    let of = |wanted: &dyn Fn(ClientStatus) -> bool| {
        views.iter().filter(|view| wanted(view.state.client_status)).count()
    };
    let live: Vec<&AllocView> =
        views.iter().filter(|view| !view.state.client_status.is_terminal()).collect();
    let sum = |part: &dyn Fn(&AllocView, &Task) -> u32| -> u64 {
        let tasks = live.iter().flat_map(|view| {
            let group = view.allocation.task_group();
            group.into_iter().flat_map(|group| &group.tasks).map(move |task| (*view, task))
        });
        tasks.map(|(view, task)| u64::from(part(view, task))).sum()
    };
    let cpu = sum(&|view, task| view.allocation.cpu_mhz(task));
    let memory = sum(&|_, task| task.resources.memory_mb);
    let groups = live.iter().filter_map(|view| view.allocation.task_group());
    let disk: u64 = groups.map(|group| u64::from(group.ephemeral_disk.size_mb)).sum();
    let free = node.attributes.get("unique.storage.bytesfree").map(ToString::to_string);
    let free_disk = free.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0) / MIB;
    let whole = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let values = [
        ("nomad.client.allocations.pending", whole(of(&|status| status == ClientStatus::Pending))),
        ("nomad.client.allocations.running", whole(of(&|status| status == ClientStatus::Running))),
        ("nomad.client.allocations.terminal", whole(of(&ClientStatus::is_terminal))),
        ("nomad.client.allocated.cpu", cpu),
        ("nomad.client.allocated.memory", memory),
        ("nomad.client.allocated.disk", disk),
        ("nomad.client.unallocated.cpu", node.resources.cpu_mhz.saturating_sub(cpu)),
        ("nomad.client.unallocated.memory", node.resources.memory_mb.saturating_sub(memory)),
        ("nomad.client.unallocated.disk", free_disk.saturating_sub(disk)),
    ];
    values.into_iter().map(|(name, value)| gauge(name, number(value), labels)).collect()
}

/// The numbers of what the machine uses.
async fn machine_gauges(
    api: &Api,
    labels: &Labels,
) -> Result<Vec<MetricGauge<'static>>, RequestFailure> {
    let (used, shares, _) = host::measure_usage(api).await?;
    let with = |name: &str, value: &str| {
        let mut labels = labels.clone();
        labels.insert(name.to_owned(), value.to_owned());
        labels
    };
    let memory = &used.memory;
    let mut gauges: Vec<_> = [
        ("nomad.client.uptime", used.uptime_secs),
        ("nomad.client.host.memory.total", memory.total),
        ("nomad.client.host.memory.available", memory.available),
        ("nomad.client.host.memory.free", memory.free),
        ("nomad.client.host.memory.used", memory.total.saturating_sub(memory.available)),
    ]
    .into_iter()
    .map(|(name, value)| gauge(name, number(value), labels))
    .collect();
    for (core, share) in used.cores.iter().zip(shares) {
        let labels = with("cpu", &core.name);
        for (name, value) in [
            ("user", share.user),
            ("system", share.system),
            ("idle", share.idle),
            ("total", share.busy),
        ] {
            gauges.push(gauge(&format!("nomad.client.host.cpu.{name}"), value, &labels));
        }
    }
    for disk in &used.disks {
        let labels = with("disk", &disk.device);
        for (name, value) in [
            ("size", number(disk.size)),
            ("used", number(disk.used)),
            ("available", number(disk.available)),
            ("used_percent", disk.used_percent),
            ("inodes_percent", disk.inodes_used_percent),
        ] {
            gauges.push(gauge(&format!("nomad.client.host.disk.{name}"), value, &labels));
        }
    }
    Ok(gauges)
}

/// The numbers of what each running task has and uses.
async fn task_gauges(api: &Api, views: Vec<AllocView>) -> Vec<MetricGauge<'static>> {
    let running =
        views.into_iter().filter(|view| view.state.client_status == ClientStatus::Running);
    let used = stream::iter(running).map(|view| async {
        let used = view.handle.usage().await;
        (view, used)
    });
    let used: Vec<_> = used.buffered(ASKED_AT_ONCE).collect().await;
    let (core_mhz, node) = (core_mhz(api), api.agent.node());
    let mut gauges = Vec::new();
    for (view, used) in used {
        let alloc = &view.allocation;
        let tasks = alloc.task_group().into_iter().flat_map(|group| &group.tasks);
        for task in tasks {
            let Some((_, usage)) = used.iter().find(|(name, _)| **name == task.name) else {
                continue;
            };
            let labels = task_labels(&view, task, &node.name);
            let started = view.state.tasks.get(&task.name).and_then(|task| task.started_at);
            let key = (alloc.id, task.name.clone());
            let percent = api.processor().percent(key, usage, started);
            let shown = stats::usage(usage.memory_bytes, percent, core_mhz);
            let mut add = |name: &str, value: f64| {
                gauges.push(gauge(&format!("nomad.client.allocs.{name}"), value, &labels));
            };
            add("cpu.allocated", f64::from(alloc.cpu_mhz(task)));
            add("memory.allocated", number(u64::from(task.resources.memory_mb) * MIB));
            if percent.is_some() {
                add("cpu.total_percent", shown.cpu_stats.percent);
                add("cpu.total_ticks", shown.cpu_stats.total_ticks);
            }
            if let Some(bytes) = usage.memory_bytes {
                add("memory.rss", number(bytes));
            }
        }
    }
    gauges
}

fn task_labels(view: &AllocView, task: &Task, host: &str) -> Labels {
    let alloc = &view.allocation;
    labels([
        ("alloc_id", alloc.id.to_string()),
        ("host", host.to_owned()),
        ("job", alloc.job.id.as_str().to_owned()),
        ("namespace", alloc.job.namespace().to_owned()),
        ("task_group", alloc.group.to_string()),
        ("task", task.name.to_string()),
    ])
}
