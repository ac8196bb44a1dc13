//! Starts to send traces, until the program ends.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::runtime::Runtime;

use super::http::CollectorClient;
use super::queue;
use crate::{Sending, recording};
use ostler_model::clock;
use ostler_model::limits::{TRACE_END_WAIT, TRACE_SEND_WALL_MAX};
use ostler_model::telemetry::TracesConfig;

/// The path of traces below the address of a collector.
const PATH: &str = "/v1/traces";
/// The service name of the agent, unless the environment gives another one.
const SERVICE: &str = "ostler";

/// Send the rest of the spans at the end of the program, within a time limit. Blocking.
pub(crate) fn end() {
    let left = queue::process_queue().wait_all_sent(TRACE_END_WAIT);
    if left > 0 {
        tracing::warn!(
            "spans of traces are lost: no collector took them within {} s of the end",
            TRACE_END_WAIT.as_secs()
        );
    }
}

/// Record traces and send them. Settings that the configuration does not have come from the
/// variables of OpenTelemetry (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
/// `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`). Call this once in a process.
///
/// # Errors
/// When an address is wrong, or there are no threads.
pub fn start(config: &TracesConfig) -> Result<Sending, String> {
    let client = Arc::new(CollectorClient::default());
    let mut builder = SpanExporter::builder()
        .with_http()
        .with_http_client(SharedClient(Arc::clone(&client)))
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(TRACE_SEND_WALL_MAX)
        .with_retry_policy(RetryPolicy::disabled());
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')));
    }
    let mut exporter = builder.build().map_err(|error| format!("traces: {error}"))?;
    exporter.set_resource(&resource());
    let no_thread = |error| format!("traces: no thread to send them: {error}");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    let sender = SpanSender { runtime, exporter, client, failing: false };
    let thread = std::thread::Builder::new().name("ostler-traces".to_owned());
    thread.spawn(move || sender.send_forever()).map_err(no_thread)?;
    recording::record(config.sample_percent);
    Ok(Sending::new())
}

/// The description of this agent that goes with every span.
fn resource() -> Resource {
    let said = |name: &str| std::env::var(name).unwrap_or_default();
    let named = !said("OTEL_SERVICE_NAME").is_empty()
        || said("OTEL_RESOURCE_ATTRIBUTES").contains("service.name=");
    let mut resource = Resource::builder();
    if !named {
        resource = resource.with_service_name(SERVICE);
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    resource
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("host.name", host))
        .build()
}

/// The client, shared by the exporter and its owner.
#[derive(Debug)]
struct SharedClient(Arc<CollectorClient>);

#[async_trait::async_trait]
impl opentelemetry_http::HttpClient for SharedClient {
    async fn send_bytes(
        &self,
        request: hyper::Request<bytes::Bytes>,
    ) -> Result<hyper::Response<bytes::Bytes>, opentelemetry_http::HttpError> {
        self.0.send_bytes(request).await
    }
}

struct SpanSender {
    runtime: Runtime,
    exporter: SpanExporter,
    client: Arc<CollectorClient>,
    /// Whether the last request failed, which the log says already.
    failing: bool,
}

impl SpanSender {
    /// Send spans as they come, for ever.
    fn send_forever(mut self) {
        loop {
            let batch = queue::process_queue().take_batch();
            let count = batch.len();
            match self.send_batch(batch) {
                Ok(()) => {
                    recording::count_sent(count);
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("the collector takes traces again");
                    }
                }
                Err(why) => {
                    recording::count_lost(count);
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(
                            "the collector does not take traces: {why}; spans are lost until it does, and jobs run \
                             on: the metric ostler.traces.lost counts them"
                        );
                    }
                }
            }
        }
    }

    fn send_batch(&self, batch: Vec<SpanData>) -> Result<(), String> {
        let late = || format!("no answer within {} s", TRACE_SEND_WALL_MAX.as_secs());
        let send = async { clock::timeout(TRACE_SEND_WALL_MAX, self.exporter.export(batch)).await };
        match self.runtime.block_on(send) {
            Some(sent) => sent
                .map_err(|error| self.client.take_trouble().unwrap_or_else(|| error.to_string())),
            None => Err(late()),
        }
    }
}
