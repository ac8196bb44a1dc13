//! Traces are sent from here on, until the program ends.

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

/// Where traces go below the address of a collector.
const PATH: &str = "/v1/traces";
/// What the agent is called, unless the environment says so.
const SERVICE: &str = "ostler";

/// The program ends: what is to be sent is, within a time. Blocking.
pub(crate) fn end() {
    let left = queue::of_process().end(TRACE_END_WAIT);
    if left > 0 {
        tracing::warn!(
            "spans of traces are lost: no collector took them within {} s of the end",
            TRACE_END_WAIT.as_secs()
        );
    }
}

/// Record traces and send them. What the configuration does not say, the variables of OpenTelemetry do
/// (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
/// Once in a process.
///
/// # Errors
/// When an address is wrong, or there are no threads.
pub fn start(config: &TracesConfig) -> Result<Sending, String> {
    let client = Arc::new(CollectorClient::default());
    let mut builder = SpanExporter::builder()
        .with_http()
        .with_http_client(Shared(Arc::clone(&client)))
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
    let sender = Sender { runtime, exporter, client, failing: false };
    let thread = std::thread::Builder::new().name("ostler-traces".to_owned());
    thread.spawn(move || sender.send()).map_err(no_thread)?;
    recording::record(config.sample_percent);
    Ok(Sending::begun())
}

/// What is said of this agent with every span.
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

/// The client, of which the exporter has one and its owner the other.
#[derive(Debug)]
struct Shared(Arc<CollectorClient>);

#[async_trait::async_trait]
impl opentelemetry_http::HttpClient for Shared {
    async fn send_bytes(
        &self,
        request: hyper::Request<bytes::Bytes>,
    ) -> Result<hyper::Response<bytes::Bytes>, opentelemetry_http::HttpError> {
        self.0.send_bytes(request).await
    }
}

struct Sender {
    runtime: Runtime,
    exporter: SpanExporter,
    client: Arc<CollectorClient>,
    /// The last request failed, and that was said.
    failing: bool,
}

impl Sender {
    /// Send what comes, for ever.
    fn send(mut self) {
        loop {
            let batch = queue::of_process().take();
            let count = batch.len();
            match self.one(batch) {
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

    fn one(&self, batch: Vec<SpanData>) -> Result<(), String> {
        let late = || format!("no answer within {} s", TRACE_SEND_WALL_MAX.as_secs());
        let send = async { clock::timeout(TRACE_SEND_WALL_MAX, self.exporter.export(batch)).await };
        match self.runtime.block_on(send) {
            Some(sent) => {
                sent.map_err(|error| self.client.trouble().unwrap_or_else(|| error.to_string()))
            }
            None => Err(late()),
        }
    }
}
