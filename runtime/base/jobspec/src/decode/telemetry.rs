//! Decodes the `telemetry` block of the agent's configuration: the data that is sent to collectors.

use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, Setting, hint, keys};
use ostler_model::telemetry::{TelemetryConfig, TracesConfig};

/// The hint at keys for metrics, which need no key here.
const METRICS: &str = "metrics are at /v1/metrics, for Prometheus too";

keys! {
    struct TelemetryKeys: "telemetry" {
        /// Send traces of what a job waits for until its tasks print. Needs a build with the feature `otel`; another
        /// one refuses the block.
        traces: Option<TracesKeys>;
    }
    not_yet {
        "prometheus_metrics" [hint(METRICS)]; "collection_interval" [hint(METRICS)];
        "publish_allocation_metrics" [hint(METRICS)]; "publish_node_metrics" [hint(METRICS)];
        "disable_hostname"; "statsd_address"; "statsite_address"; "datadog_address";
    }
}

keys! {
    struct TracesKeys: "traces" {
        /// Where the collector takes OTLP over HTTP, without `/v1/traces`.
        endpoint: Setting<String>, "what `OTEL_EXPORTER_OTLP_ENDPOINT` says, else `http://localhost:4318`";
        /// How many of 100 traces that begin here are recorded. A request with a `traceparent` brings the answer.
        sample_percent: Setting<u8> [Whole(0, 100)], "`100`";
    }
}

/// Decode a `telemetry` block.
pub(super) fn telemetry(keys: TelemetryKeys, cx: &mut Context<'_>) -> TelemetryConfig {
    let traces = keys.traces.map(|traces| TracesConfig {
        endpoint: traces.endpoint.parse_with(cx, TracesConfig::check_endpoint),
        sample_percent: traces.sample_percent.value.unwrap_or(TracesConfig::SAMPLE_PERCENT),
    });
    TelemetryConfig { traces }
}
