//! Numbers about what Nomad does not have: plugins, hooks, guests and traces.

use std::collections::BTreeMap;
use std::time::Duration;

use super::metrics::{gauge, labels, number};
use super::state::Api;
use ostler_agent::{AllocView, PluginState};
use ostler_wire::MetricGauge;

/// All numbers of this module.
pub(super) fn agent_gauges(api: &Api, views: &[AllocView]) -> Vec<MetricGauge<'static>> {
    let mut gauges = plugin_gauges(api);
    gauges.extend(hook_gauges(views));
    gauges.extend(guest_gauges(api));
    gauges.extend(trace_gauges());
    gauges
}

/// The health of each plugin in use, and the cost of its calls since it was loaded.
fn plugin_gauges(api: &Api) -> Vec<MetricGauge<'static>> {
    let mut gauges = Vec::new();
    for report in api.agent.plugins_status() {
        let Some(activity) = &report.activity else { continue };
        let kind = report.kind.map(|kind| kind.to_string()).unwrap_or_default();
        let of = labels([("plugin", report.name.clone()), ("kind", kind)]);
        let quarantined = activity.state == PluginState::Quarantined;
        let strikes = u64::try_from(activity.strikes_counted).unwrap_or(u64::MAX);
        for (name, value) in [
            ("strikes", number(strikes)),
            ("strikes_max", f64::from(activity.strikes_max)),
            ("quarantined", f64::from(u8::from(quarantined))),
            ("quarantines", number(activity.quarantines)),
            ("cpu_seconds", seconds(activity.cpu_nanos)),
            ("peak_memory_bytes", number(activity.peak_memory_bytes)),
        ] {
            gauges.push(gauge(&format!("ostler.plugin.{name}"), value, &of));
        }
        for (function, calls) in &activity.calls {
            let mut of = of.clone();
            of.insert("function".to_owned(), function.clone());
            for (name, value) in [
                ("calls", number(calls.calls)),
                ("calls_failed", number(calls.failed)),
                ("call_p50_seconds", seconds(calls.p50_nanos)),
                ("call_p99_seconds", seconds(calls.p99_nanos)),
            ] {
                gauges.push(gauge(&format!("ostler.plugin.{name}"), value, &of));
            }
        }
    }
    gauges
}

/// The calls of hooks of all present allocations, added up by hook and call.
fn hook_gauges(views: &[AllocView]) -> Vec<MetricGauge<'static>> {
    let mut by_hook: BTreeMap<(&str, String), (u64, u64, Duration)> = BTreeMap::new();
    for one in views.iter().flat_map(|view| view.handle.hook_times()) {
        let call = format!("{:?}", one.kind).to_lowercase();
        let (calls, failed, longest) = by_hook.entry((one.hook, call)).or_default();
        *calls = calls.saturating_add(one.calls.into());
        *failed = failed.saturating_add(one.failed.into());
        *longest = (*longest).max(one.longest);
    }
    let gauges = by_hook.into_iter().flat_map(|((hook, call), (calls, failed, longest))| {
        let of = labels([("hook", hook.to_owned()), ("call", call)]);
        [
            gauge("ostler.hook.calls", number(calls), &of),
            gauge("ostler.hook.failed", number(failed), &of),
            gauge("ostler.hook.longest_seconds", longest.as_secs_f64(), &of),
        ]
    });
    gauges.collect()
}

/// The number of guests, and the room for them.
fn guest_gauges(api: &Api) -> Vec<MetricGauge<'static>> {
    let gauges = api.agent.guests().into_iter().flat_map(|pool| {
        let of = labels([("guests", pool.of.to_owned())]);
        [
            gauge("ostler.sandbox.instances", number(pool.instances), &of),
            gauge("ostler.sandbox.room", f64::from(pool.room), &of),
        ]
    });
    gauges.collect()
}

/// The numbers of sent and lost spans, if traces are recorded.
fn trace_gauges() -> Vec<MetricGauge<'static>> {
    let Some(spans) = ostler_trace::counts() else { return Vec::new() };
    let of = labels([]);
    [("sent", spans.sent), ("lost", spans.lost)]
        .map(|(name, value)| gauge(&format!("ostler.traces.{name}"), number(value), &of))
        .into()
}

#[expect(clippy::cast_precision_loss, reason = "a measurement")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
