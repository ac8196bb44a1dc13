//! Numbers as text for Prometheus. Each name stands once with its description and its kind.

use std::collections::BTreeMap;

use ostler_wire::MetricGauge;

/// The kind of a number in Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    /// A number that goes up and down.
    Gauge,
    /// A number that only grows while its plugin or its store is in place, and that is queried by
    /// its rate. Its name ends with `_total` in the text.
    Counter,
}
use MetricKind::{Counter as C, Gauge as G};

/// Every name without `_total`, its kind, and its description.
const HELP: &[(&str, MetricKind, &str)] = &[
    ("nomad_client_allocated_cpu", G, "Processor that live allocations have, MHz."),
    ("nomad_client_allocated_disk", G, "Disk that live allocations have, MiB."),
    ("nomad_client_allocated_memory", G, "Memory that live allocations have, MiB."),
    ("nomad_client_allocations_pending", G, "Allocations that have not started."),
    ("nomad_client_allocations_running", G, "Allocations that run."),
    (
        "nomad_client_allocations_terminal",
        G,
        "Allocations that are complete or failed and not collected.",
    ),
    ("nomad_client_allocs_cpu_allocated", G, "Processor that a task has, MHz."),
    (
        "nomad_client_allocs_cpu_total_percent",
        G,
        "Processor that a task uses, per cent of one core.",
    ),
    ("nomad_client_allocs_cpu_total_ticks", G, "Processor that a task uses, MHz."),
    ("nomad_client_allocs_memory_allocated", G, "Memory that a task has, bytes."),
    ("nomad_client_allocs_memory_rss", G, "Memory that a task uses, bytes."),
    ("nomad_client_host_cpu_idle", G, "Time in which a core did nothing, per cent."),
    ("nomad_client_host_cpu_system", G, "Time of a core in the kernel, per cent."),
    ("nomad_client_host_cpu_total", G, "Time in which a core was busy, per cent."),
    ("nomad_client_host_cpu_user", G, "Time of a core in programs, per cent."),
    ("nomad_client_host_disk_available", G, "Bytes of a file system that programs can have."),
    ("nomad_client_host_disk_inodes_percent", G, "Inodes of a file system in use, per cent."),
    ("nomad_client_host_disk_size", G, "Bytes of a file system."),
    ("nomad_client_host_disk_used", G, "Bytes of a file system in use."),
    ("nomad_client_host_disk_used_percent", G, "Bytes of a file system in use, per cent."),
    (
        "nomad_client_host_memory_available",
        G,
        "Memory of the machine that programs can have, bytes.",
    ),
    ("nomad_client_host_memory_free", G, "Memory of the machine that nothing uses, bytes."),
    ("nomad_client_host_memory_total", G, "Memory of the machine, bytes."),
    ("nomad_client_host_memory_used", G, "Memory of the machine in use, bytes."),
    ("nomad_client_unallocated_cpu", G, "Processor that no allocation has, MHz."),
    ("nomad_client_unallocated_disk", G, "Disk that no allocation has, MiB."),
    ("nomad_client_unallocated_memory", G, "Memory that no allocation has, MiB."),
    ("nomad_client_uptime", G, "Seconds since the machine started."),
    ("ostler_client_allocations_complete", G, "Allocations that are complete."),
    ("ostler_client_allocations_failed", G, "Allocations that failed."),
    ("ostler_client_allocations_pending", G, "Allocations that have not started."),
    ("ostler_client_allocations_running", G, "Allocations that run."),
    ("ostler_client_allocations_lost", G, "Allocations that were lost."),
    ("ostler_client_allocations_unknown", G, "Allocations of which nothing is known."),
    ("ostler_client_index", G, "The index of the last change."),
    ("ostler_client_jobs", G, "Jobs that are registered."),
    ("ostler_client_num_allocations", G, "Allocations that are on record."),
    ("ostler_hook_calls", G, "Calls of a hook, of the allocations that are there."),
    ("ostler_hook_failed", G, "Calls of a hook that failed, of the allocations that are there."),
    (
        "ostler_hook_longest_seconds",
        G,
        "The longest call of a hook, of the allocations that are there.",
    ),
    ("ostler_plugin_call_p50_seconds", G, "The time in which half of a plugin's calls ended."),
    ("ostler_plugin_call_p99_seconds", G, "The time in which 99 of 100 of a plugin's calls ended."),
    ("ostler_plugin_calls", C, "Calls of a plugin."),
    ("ostler_plugin_calls_failed", C, "Calls of a plugin that had no answer."),
    ("ostler_plugin_cpu_seconds", C, "Processor time of a plugin's calls."),
    ("ostler_plugin_peak_memory_bytes", G, "The most memory that a call of a plugin used."),
    ("ostler_plugin_quarantined", G, "1 while a plugin is in quarantine."),
    ("ostler_plugin_quarantines", C, "How often a plugin came into quarantine."),
    ("ostler_plugin_strikes", G, "Failed calls that count against a plugin."),
    ("ostler_plugin_strikes_max", G, "How many of them are a quarantine."),
    ("ostler_sandbox_instances", G, "Guests in the agent's own process."),
    ("ostler_sandbox_room", G, "How many guests the agent's own process has room for."),
    ("ostler_state_batch_largest", G, "Records of the largest commit."),
    ("ostler_state_bytes", G, "Bytes of the state on disk."),
    ("ostler_state_commits", C, "Commits of the state."),
    ("ostler_state_commits_failed", C, "Commits of the state that failed."),
    ("ostler_state_destroyed", G, "Records that were removed together with their allocation."),
    ("ostler_state_keys", G, "Records of the state."),
    ("ostler_state_later", G, "Writes that may lag and wait for a commit."),
    ("ostler_state_later_lost", G, "Writes that may lag and were lost."),
    ("ostler_state_later_retried", G, "Writes that may lag and were tried again."),
    ("ostler_state_puts", C, "Values that were given to the store."),
    ("ostler_state_queued", G, "Writes that wait for a commit."),
    ("ostler_state_replaced", G, "Writes that a newer one replaced before they were made."),
    ("ostler_state_unchanged", C, "Values that were durable already and cost nothing."),
    ("ostler_state_writes", C, "Values that were written."),
    ("ostler_traces_lost", C, "Spans that no collector took."),
    ("ostler_traces_sent", C, "Spans that a collector took."),
];

/// The text: for each name its description, its kind and all its values.
pub(super) fn text(gauges: &[MetricGauge<'_>]) -> String {
    let mut by_name: BTreeMap<String, Vec<&MetricGauge<'_>>> = BTreeMap::new();
    for gauge in gauges {
        by_name.entry(plain_name(&gauge.name)).or_default().push(gauge);
    }
    let mut text = String::new();
    for (name, all) in by_name {
        let known = HELP.iter().find(|(known, ..)| *known == name);
        // A test finds a name without a description; the number is shown all the same.
        let (kind, help) =
            known.map_or((G, "A number of this agent."), |(_, kind, help)| (*kind, *help));
        let (name, kind) = match kind {
            MetricKind::Gauge => (name, "gauge"),
            MetricKind::Counter => (format!("{name}_total"), "counter"),
        };
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for gauge in all {
            let labels: Vec<_> = gauge
                .labels
                .iter()
                .map(|(name, value)| format!("{}=\"{}\"", plain_name(name), escape_label(value)))
                .collect();
            let labels =
                if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            text.push_str(&format!("{name}{labels} {}\n", gauge.value));
        }
    }
    text
}

/// A name in which every other character than letters and digits is an underscore.
fn plain_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{Labels, gauge};
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
        let wanted = "# HELP nomad_client_allocs_memory_rss Memory that a task uses, bytes.\n\
                      # TYPE nomad_client_allocs_memory_rss gauge\n\
                      nomad_client_allocs_memory_rss{job=\"a\\\"b\\\\c\\nd\"} 1\n\
                      nomad_client_allocs_memory_rss{job=\"web\"} 2\n\
                      # HELP nomad_client_uptime Seconds since the machine started.\n\
                      # TYPE nomad_client_uptime gauge\n\
                      nomad_client_uptime 7.5\n\
                      # HELP ostler_plugin_calls_total Calls of a plugin.\n\
                      # TYPE ostler_plugin_calls_total counter\n\
                      ostler_plugin_calls_total 3\n";
        assert_eq!(text(&gauges), wanted);
    }

    #[test]
    fn names_are_known_once_and_no_gauge_ends_as_a_counter_does() {
        let names: std::collections::BTreeSet<_> = HELP.iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), HELP.len());
        for (name, _, help) in HELP {
            assert!(!name.ends_with("_total") || !name.starts_with("ostler"), "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
        }
    }
}
