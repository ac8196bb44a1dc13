//! A snapshot of what the agent says, as rows.
//!
//! ```text
//! metrics ─── use of the machine and of tasks ─┐
//! allocations ────── names, status ────────────┼─► TopSnapshot (pure from here on)
//! devices, states of plugins ──────────────────┘
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::connect::in_all_namespaces;
use crate::stat_values;
use ostler_agent::catalogue::PluginStatus;
use ostler_agent::{DeviceGroupReport, PluginState, PluginStatusReport};
use ostler_api::client::{ApiClient, ClientError};
use ostler_api::routes::endpoints as routes;
use ostler_wire::{MetricsSummary, WireStatValue};

/// Everything that is shown, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct TopSnapshot {
    /// What the machine uses.
    pub node: NodeUse,
    /// The allocations, sorted by job, group and id.
    pub allocations: Vec<AllocRow>,
    /// The devices, by group and id.
    pub devices: Vec<DeviceRow>,
    /// The plugins, sorted by name and kind.
    pub plugins: Vec<PluginRow>,
}

/// What the machine uses, and what is assigned to allocations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct NodeUse {
    /// The host name of the machine.
    pub name: String,
    /// Seconds since the machine started.
    pub up_seconds: f64,
    /// Use of all processors together, percent; absent in the first snapshot.
    pub cpu_percent: Option<f64>,
    /// Number of processors.
    pub cores: usize,
    /// Memory in use, bytes.
    pub memory_used: f64,
    /// Memory of the machine, bytes.
    pub memory_total: f64,
    /// Processor assigned to allocations, MHz.
    pub cpu_assigned: f64,
    /// Processor that can be assigned, including what is assigned, MHz.
    pub cpu_total: f64,
    /// Memory assigned to allocations, MiB.
    pub memory_assigned: f64,
    /// Memory that can be assigned, including what is assigned, MiB.
    pub memory_assignable: f64,
}

/// A row about an allocation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct AllocRow {
    /// The id of the allocation.
    pub id: String,
    /// The id of the job of the allocation.
    pub job: String,
    /// The namespace of the job.
    pub namespace: String,
    /// The task group of the allocation.
    pub group: String,
    /// The client status of the allocation, such as `running`.
    pub status: String,
    /// Use of the processor, percent of one core; absent where nothing measures it.
    pub cpu_percent: Option<f64>,
    /// Memory in use, bytes; absent where nothing measures it.
    pub memory_bytes: Option<f64>,
    /// Memory assigned to the allocation, bytes.
    pub memory_assigned: f64,
}

/// A row about a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct DeviceRow {
    /// The group of the device: `vendor/type/name`.
    pub group: String,
    /// The id of the device in its group.
    pub id: String,
    /// `healthy`, or why the device is not healthy.
    pub health: String,
    /// The job and the task that have the device; empty where none has it.
    pub holder: String,
    /// The main measurement of the device.
    pub measured: String,
}

/// A row about a plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct PluginRow {
    /// The name of the plugin.
    pub name: String,
    /// The kind of the plugin: driver or device.
    pub kind: String,
    /// The version of the plugin, as the plugin gives it.
    pub version: String,
    /// The state of the plugin, such as `running` or `quarantined`.
    pub state: String,
    /// The number of strikes that count, and the number that leads to quarantine.
    pub strikes: String,
    /// The number of calls so far.
    pub calls: u64,
    /// The time that 99 of 100 calls of its slowest function took at most, milliseconds.
    pub p99_ms: f64,
}

/// An allocation as a list of the API has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct AllocListItem {
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "JobID")]
    pub job: String,
    pub namespace: String,
    pub task_group: String,
    pub client_status: String,
}

/// Ask the agent for a snapshot.
pub(super) async fn fetch_snapshot(client: &ApiClient) -> Result<TopSnapshot, ClientError> {
    let allocs = in_all_namespaces(routes::ListAllocs::request([]));
    let allocs = allocs.read_as::<Vec<AllocListItem>>();
    let (metrics, devices) = (routes::ReadMetrics::request([]), routes::ListDevices::request([]));
    let plugins = routes::ListPluginStates::request([]);
    let (metrics, stubs, devices, plugins) = tokio::try_join!(
        client.send(&metrics),
        client.send(&allocs),
        client.send(&devices),
        client.send(&plugins),
    )?;
    Ok(build_snapshot(&metrics, stubs, &devices, &plugins))
}

/// Put the answers of the agent together.
pub(super) fn build_snapshot(
    metrics: &MetricsSummary<'_>,
    stubs: Vec<AllocListItem>,
    devices: &[DeviceGroupReport],
    plugins: &[PluginStatusReport],
) -> TopSnapshot {
    let mut allocations = allocations(metrics, stubs);
    allocations.sort_by(|a, b| (&a.job, &a.group, &a.id).cmp(&(&b.job, &b.group, &b.id)));
    let mut plugins: Vec<PluginRow> = plugins.iter().map(plugin).collect();
    plugins.sort_by(|a, b| (&a.name, &a.kind).cmp(&(&b.name, &b.kind)));
    TopSnapshot {
        node: node(metrics),
        allocations,
        devices: devices.iter().flat_map(device_rows).collect(),
        plugins,
    }
}

fn node(metrics: &MetricsSummary<'_>) -> NodeUse {
    let all = |name: &str| -> Vec<f64> {
        let found = metrics.gauges.iter().filter(|gauge| gauge.name == name);
        found.map(|gauge| gauge.value).collect()
    };
    let one = |name: &str| all(name).first().copied().unwrap_or(0.0);
    let named = metrics.gauges.iter().find_map(|gauge| {
        let of_node = gauge.name == "nomad.client.uptime";
        of_node.then(|| gauge.labels.get("host").map(ToString::to_string))?
    });
    let cores = all("nomad.client.host.cpu.total");
    #[expect(clippy::cast_precision_loss, reason = "the number of processors")]
    let cpu_percent = (!cores.is_empty()).then(|| cores.iter().sum::<f64>() / cores.len() as f64);
    let (cpu, memory) = (one("nomad.client.allocated.cpu"), one("nomad.client.allocated.memory"));
    NodeUse {
        name: named.unwrap_or_default(),
        up_seconds: one("nomad.client.uptime"),
        cpu_percent,
        cores: cores.len(),
        memory_used: one("nomad.client.host.memory.used"),
        memory_total: one("nomad.client.host.memory.total"),
        cpu_assigned: cpu,
        cpu_total: cpu + one("nomad.client.unallocated.cpu"),
        memory_assigned: memory,
        memory_assignable: memory + one("nomad.client.unallocated.memory"),
    }
}

fn allocations(metrics: &MetricsSummary<'_>, stubs: Vec<AllocListItem>) -> Vec<AllocRow> {
    // The tasks of an allocation are added up.
    let mut used: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for gauge in &metrics.gauges {
        if let Some(what) = gauge.name.strip_prefix("nomad.client.allocs.")
            && let Some(id) = gauge.labels.get("alloc_id")
        {
            *used.entry((id, what)).or_default() += gauge.value;
        }
    }
    let row = |stub: AllocListItem| {
        let of = |what: &str| used.get(&(stub.id.as_str(), what)).copied();
        AllocRow {
            cpu_percent: of("cpu.total_percent"),
            memory_bytes: of("memory.rss"),
            memory_assigned: of("memory.allocated").unwrap_or(0.0),
            id: stub.id.clone(),
            job: stub.job,
            namespace: stub.namespace,
            group: stub.task_group,
            status: stub.client_status,
        }
    };
    stubs.into_iter().map(row).collect()
}

fn device_rows(group: &DeviceGroupReport) -> Vec<DeviceRow> {
    let row = |device: &ostler_agent::DeviceReport| {
        let holder = device.holder.as_ref().map(|holder| {
            let job = holder.job.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{job} {}", holder.task)
        });
        let measured = device.stats.as_ref().and_then(|stats| stats.summary.as_ref());
        let measured = measured.map(|one| stat_values::value(Some(&WireStatValue::from(one))));
        let stale = if group.stale.is_some() { " (stale)" } else { "" };
        DeviceRow {
            group: group.group.to_string(),
            id: device.id.clone(),
            health: crate::human::health(&device.health),
            holder: holder.unwrap_or_default(),
            measured: measured.map(|text| text + stale).unwrap_or_default(),
        }
    };
    group.instances.iter().map(row).collect()
}

fn plugin(report: &PluginStatusReport) -> PluginRow {
    let activity = report.activity.as_ref();
    let state = match (&report.status, activity.map(|activity| activity.state)) {
        (PluginStatus::Refused(_), _) => "refused",
        (PluginStatus::Disabled, _) => "off",
        (PluginStatus::Loading | PluginStatus::Waiting, _) => "loading",
        (PluginStatus::Loaded, None | Some(PluginState::Starting)) => "starting",
        (PluginStatus::Loaded, Some(PluginState::Running)) => "running",
        (PluginStatus::Loaded, Some(PluginState::BackingOff)) => "backing off",
        (PluginStatus::Loaded, Some(PluginState::Quarantined)) => "quarantined",
    };
    let calls = activity.into_iter().flat_map(|activity| activity.calls.values());
    let slowest = calls.clone().map(|calls| calls.p99_nanos).max().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a measurement")]
    let p99_ms = slowest as f64 / 1e6;
    let strikes = activity.map(|one| format!("{} of {}", one.strikes_counted, one.strikes_max));
    PluginRow {
        name: report.name.clone(),
        kind: report.kind.map(|kind| kind.to_string()).unwrap_or_default(),
        version: report.version.clone().unwrap_or_default(),
        state: state.to_owned(),
        strikes: strikes.unwrap_or_default(),
        calls: calls.map(|calls| calls.calls).sum(),
        p99_ms,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_of_an_allocation_are_added_up_and_what_nobody_measures_is_absent() {
        let gauge = |name: &str, value: f64, labels: serde_json::Value| json!({ "Name": name, "Value": value, "Labels": labels });
        let metrics: MetricsSummary<'_> = serde_json::from_value(json!({ "Gauges": [
            gauge("nomad.client.uptime", 60.0, json!({ "host": "n1" })),
            gauge("nomad.client.host.cpu.total", 50.0, json!({ "cpu": "cpu0" })),
            gauge("nomad.client.host.cpu.total", 100.0, json!({ "cpu": "cpu1" })),
            gauge("nomad.client.allocated.cpu", 300.0, json!({})),
            gauge("nomad.client.unallocated.cpu", 700.0, json!({})),
            gauge("nomad.client.allocs.memory.rss", 10.0, json!({ "alloc_id": "a", "task": "x" })),
            gauge("nomad.client.allocs.memory.rss", 20.0, json!({ "alloc_id": "a", "task": "y" })),
        ] }))
        .unwrap();
        let stub = |id: &str, job: &str| AllocListItem {
            id: id.into(),
            job: job.into(),
            ..AllocListItem::default()
        };
        let look = build_snapshot(&metrics, vec![stub("b", "web"), stub("a", "db")], &[], &[]);
        assert_eq!(look.node.name, "n1");
        assert_eq!((look.node.cpu_percent, look.node.cores), (Some(75.0), 2));
        assert_eq!((look.node.cpu_assigned, look.node.cpu_total), (300.0, 1000.0));
        let rows: Vec<_> =
            look.allocations.iter().map(|row| (row.job.as_str(), row.memory_bytes)).collect();
        assert_eq!(rows, [("db", Some(30.0)), ("web", None)]);
    }
}
