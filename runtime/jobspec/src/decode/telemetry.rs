//! The `telemetry` block of the agent's configuration: what is told to collectors.

use crate::keys::Bounds::Whole;
use crate::keys::{Context, Given, hint, keys};
use ostler_model::telemetry::{TelemetryConfig, TracesConfig};

/// What is there without a key.
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
        endpoint: Given<String>, "what `OTEL_EXPORTER_OTLP_ENDPOINT` says, else `http://localhost:4318`";
        /// How many of 100 traces that begin here are recorded. A request with a `traceparent` brings the answer.
        sample_percent: Given<u8> [Whole(0, 100)], "`100`";
    }
}

/// What the block says.
pub(super) fn telemetry(keys: TelemetryKeys, cx: &mut Context<'_>) -> TelemetryConfig {
    let traces = keys.traces.map(|traces| TracesConfig {
        endpoint: traces.endpoint.parsed(cx, TracesConfig::checked_endpoint),
        sample_percent: traces.sample_percent.value.unwrap_or(TracesConfig::SAMPLE_PERCENT),
    });
    TelemetryConfig { traces }
}
