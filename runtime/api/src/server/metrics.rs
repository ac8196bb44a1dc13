//! `GET /v1/metrics`: numbers by Nomad's names where it has the same ones (`nomad.client…`), by ours
//! otherwise (`ostler…`); as JSON, or as Prometheus reads them (`?format=prometheus`).
//!
//! ```text
//! node, allocations, what tasks use, what the machine uses, the store ─┐
//! plugins, hooks, guests (metrics_own) ────────────────────────────────┴─► Gauge ─┬─► JSON
//!                                                                                └─► text, one line each
//! ```

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use super::agent::counts;
use super::client::core_mhz;
use super::error::Failure;
use super::host;
use super::json::{agent::metrics, stats};
use super::metrics_own;
use super::nodes;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use ostler_agent::AllocView;
use ostler_model::alloc::ClientStatus;
use ostler_model::job::Task;
use ostler_model::limits::MIB;
use ostler_wire::Gauge;

/// Allocations whose use is asked for at the same time.
const ASKED_AT_ONCE: usize = 16;

pub(super) type Labels = BTreeMap<String, String>;

/// `GET /v1/metrics`
pub(super) async fn read(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let prometheus = match params.text("format") {
        None | Some("json") => false,
        Some("prometheus") => true,
        Some(other) => return Err(Failure::bad_param("format", other, "json or prometheus")),
    };
    let objects = [("client", counts(&api)), ("state", json!(api.agent.state_stats()))];
    let mut answer = metrics(api.clock.now(), &objects);
    let views = api.agent.allocs();
    let of_node = of_node(&api);
    answer.gauges.extend(of_allocations(&api, &views, &of_node));
    answer.gauges.extend(of_machine(&api, &of_node).await?);
    answer.gauges.extend(metrics_own::of_agent(&api, &views));
    answer.gauges.extend(of_tasks(&api, views).await);
    if prometheus {
        let kind = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
        return Ok(([kind], text(&answer.gauges)).into_response());
    }
    reply::json(&params, &answer)
}

pub(super) fn gauge(name: &str, value: f64, labels: &Labels) -> Gauge<'static> {
    let labels = labels.iter().map(|(name, value)| (name.clone().into(), value.clone().into()));
    Gauge { name: name.to_owned().into(), value, labels: labels.collect() }
}

#[expect(clippy::cast_precision_loss, reason = "a measurement")]
pub(super) const fn number(whole: u64) -> f64 {
    whole as f64
}

pub(super) fn labels<const COUNT: usize>(of: [(&str, String); COUNT]) -> Labels {
    of.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn of_node(api: &Api) -> Labels {
    let node = api.agent.node();
    let eligibility = if api.agent.scheduling().ineligible { "ineligible" } else { "eligible" };
    labels([
        ("node_id", node.id.to_string()),
        ("host", node.name.clone()),
        ("datacenter", node.datacenter.clone()),
        ("node_class", "none".to_owned()),
        ("node_status", nodes::word(api.agent.readiness().stage).to_owned()),
        ("node_scheduling_eligibility", eligibility.to_owned()),
    ])
}

/// How many there are, and what they have of the node.
fn of_allocations(api: &Api, views: &[AllocView], labels: &Labels) -> Vec<Gauge<'static>> {
    let node = api.agent.node();
    let of = |wanted: &dyn Fn(ClientStatus) -> bool| {
        views.iter().filter(|view| wanted(view.state.client_status)).count()
    };
    let live: Vec<&AllocView> =
        views.iter().filter(|view| !view.state.client_status.terminal()).collect();
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
        ("nomad.client.allocations.terminal", whole(of(&ClientStatus::terminal))),
        ("nomad.client.allocated.cpu", cpu),
        ("nomad.client.allocated.memory", memory),
        ("nomad.client.allocated.disk", disk),
        ("nomad.client.unallocated.cpu", node.resources.cpu_mhz.saturating_sub(cpu)),
        ("nomad.client.unallocated.memory", node.resources.memory_mb.saturating_sub(memory)),
        ("nomad.client.unallocated.disk", free_disk.saturating_sub(disk)),
    ];
    values.into_iter().map(|(name, value)| gauge(name, number(value), labels)).collect()
}

/// What the machine uses.
async fn of_machine(api: &Api, labels: &Labels) -> Result<Vec<Gauge<'static>>, Failure> {
    let (used, shares, _) = host::look(api).await?;
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

/// What each task that runs has and uses.
async fn of_tasks(api: &Api, views: Vec<AllocView>) -> Vec<Gauge<'static>> {
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
            let labels = labels_of(&view, task, &node.name);
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

fn labels_of(view: &AllocView, task: &Task, host: &str) -> Labels {
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

/// What only grows while its plugin or its store is in its place, and is asked for by its rate.
const COUNTERS: [&str; 11] = [
    "ostler_plugin_calls",
    "ostler_plugin_calls_failed",
    "ostler_plugin_cpu_seconds",
    "ostler_plugin_quarantines",
    "ostler_state_commits",
    "ostler_state_commits_failed",
    "ostler_state_puts",
    "ostler_state_unchanged",
    "ostler_state_writes",
    "ostler_traces_lost",
    "ostler_traces_sent",
];

/// As Prometheus reads them: all of one name together, after their type.
fn text(gauges: &[Gauge<'_>]) -> String {
    let mut by_name: BTreeMap<String, Vec<&Gauge<'_>>> = BTreeMap::new();
    for gauge in gauges {
        by_name.entry(plain(&gauge.name)).or_default().push(gauge);
    }
    let mut text = String::new();
    for (name, all) in by_name {
        let kind = if COUNTERS.contains(&name.as_str()) { "counter" } else { "gauge" };
        text.push_str(&format!("# TYPE {name} {kind}\n"));
        for gauge in all {
            let labels: Vec<_> = gauge
                .labels
                .iter()
                .map(|(name, value)| format!("{}=\"{}\"", plain(name), escaped(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            text.push_str(&format!("{name}{labels} {}\n", gauge.value));
        }
    }
    text
}

/// A name of letters, digits and underscores.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_for_prometheus_has_each_name_once_and_no_label_breaks_out_of_its_line() {
        let labels = |job: &str| Labels::from([("job".to_owned(), job.to_owned())]);
        let gauges = [
            gauge("nomad.client.uptime", 7.5, &Labels::new()),
            gauge("nomad.client.allocs.memory.rss", 1.0, &labels("a\"b\\c\nd")),
            gauge("nomad.client.allocs.memory.rss", 2.0, &labels("web")),
            gauge("ostler.plugin.calls", 3.0, &Labels::new()),
        ];
        let wanted = "# TYPE nomad_client_allocs_memory_rss gauge\n\
                      nomad_client_allocs_memory_rss{job=\"a\\\"b\\\\c\\nd\"} 1\n\
                      nomad_client_allocs_memory_rss{job=\"web\"} 2\n\
                      # TYPE nomad_client_uptime gauge\n\
                      nomad_client_uptime 7.5\n\
                      # TYPE ostler_plugin_calls counter\n\
                      ostler_plugin_calls 3\n";
        assert_eq!(text(&gauges), wanted);
    }
}
