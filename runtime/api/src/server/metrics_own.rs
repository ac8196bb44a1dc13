//! Numbers of what Nomad has not: plugins, hooks, and where guests run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::metrics::{gauge, labels, number};
use super::router::Api;
use ostler_agent::{AllocView, PluginState};
use ostler_wire::Gauge;

/// All of them.
pub(super) fn of_agent(api: &Api, views: &[AllocView]) -> Vec<Gauge<'static>> {
    let mut gauges = of_plugins(api);
    gauges.extend(of_hooks(views));
    gauges.extend(of_guests(api));
    gauges.extend(of_traces());
    gauges
}

/// How each plugin in use does, and what its calls cost, since it is in its place.
fn of_plugins(api: &Api) -> Vec<Gauge<'static>> {
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

/// How the hooks of the allocations that are there went, added up by hook and call.
fn of_hooks(views: &[AllocView]) -> Vec<Gauge<'static>> {
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

/// Guests that are there, and room for them.
fn of_guests(api: &Api) -> Vec<Gauge<'static>> {
    let gauges = api.agent.guests().into_iter().flat_map(|pool| {
        let of = labels([("guests", pool.of.to_owned())]);
        [
            gauge("ostler.sandbox.instances", number(pool.instances), &of),
            gauge("ostler.sandbox.room", f64::from(pool.room), &of),
        ]
    });
    gauges.collect()
}

/// What became of the spans of traces, where they are recorded.
fn of_traces() -> Vec<Gauge<'static>> {
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
