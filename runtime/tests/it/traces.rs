//! Traces of a job's way, as a collector gets them: the program is built with the feature `otel` here
//! (`Cargo.toml`, dev-dependencies).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::authority::Authority;
use crate::support::http::{Client, job};
use crate::support::system::{eventually, until};
use crate::support::{KEEPS, PATIENCE};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// What a collector was sent.
#[derive(Default)]
struct Taken {
    spans: Vec<Span>,
    services: Vec<String>,
    paths: Vec<String>,
    keys: Vec<String>,
}

/// A collector of OpenTelemetry: takes OTLP over HTTP.
struct Collector {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    _serving: AbortOnDropHandle<()>,
}

fn text(value: Option<&AnyValue>) -> String {
    match value {
        Some(AnyValue::StringValue(text)) => text.clone(),
        Some(AnyValue::IntValue(number)) => number.to_string(),
        Some(AnyValue::BoolValue(truth)) => truth.to_string(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|one| one.key == format!("ostler.{key}"));
    found.map(|one| text(one.value.as_ref().unwrap().value.as_ref())).unwrap_or_default()
}

async fn take(
    taken: Arc<Mutex<Taken>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let said = ExportTraceServiceRequest::decode(body).expect("it is OTLP");
    let mut taken = taken.lock().unwrap();
    taken.paths.push(format!("{} {}", head.method, head.uri));
    taken.keys.push(head.headers.get("x-key").map_or("", |key| key.to_str().unwrap()).to_owned());
    for of in said.resource_spans {
        let resource = of.resource.unwrap_or_default();
        let name = resource.attributes.iter().find(|one| one.key == "service.name");
        let name = name.and_then(|one| one.value.as_ref()?.value.clone());
        taken.services.push(text(name.as_ref()));
        taken.spans.extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    Ok(Response::new(Full::default()))
}

impl Collector {
    async fn start() -> Self {
        Self::behind(None).await
    }

    /// The same with TLS.
    async fn behind(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, taken) = (listener.local_addr().unwrap(), Arc::<Mutex<Taken>>::default());
        let into = Arc::clone(&taken);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let into = Arc::clone(&into);
                let service = service_fn(move |request| take(Arc::clone(&into), request));
                let http = hyper::server::conn::http1::Builder::new();
                match tls.clone() {
                    None => {
                        drop(tokio::spawn(http.serve_connection(TokioIo::new(stream), service)))
                    }
                    Some(tls) => drop(tokio::spawn(async move {
                        // Whoever does not trust it hangs up.
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let _ended = http.serve_connection(TokioIo::new(stream), service).await;
                    })),
                }
            }
        });
        Self { address, taken, _serving: AbortOnDropHandle::new(serving) }
    }

    fn spans(&self) -> Vec<Span> {
        self.taken.lock().unwrap().spans.clone()
    }

    /// Wait until a span of this name came.
    async fn has(&self, name: &str) {
        eventually(&format!("a span {name}"), || self.spans().iter().any(|span| span.name == name))
            .await;
    }
}

/// An agent that sends its traces there, and says everything in lines of this form.
async fn tracing_agent(
    traces: &str,
    log: &str,
    with: impl FnOnce(&mut tokio::process::Command),
) -> AgentProcess {
    let data = Home::new();
    let file = data.path().join("agent.hcl");
    let text = format!("{KEEPS}\nlog_level = \"debug\"\n{log}\ntelemetry {{\n {traces}\n}}\n");
    std::fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let mut agent = AgentProcess::spawn(data, &args, with);
    agent.hears("ready: the agent").await;
    agent
}

fn client(agent: &AgentProcess) -> Client {
    Client(agent.data.path().join("ostler.sock"))
}

async fn stopped(agent: AgentProcess) -> String {
    agent.signal(Signal::TERM);
    let (ended, _data) = agent.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    ended.stderr
}

#[tokio::test]
async fn one_trace_leads_from_the_callers_request_over_hooks_and_plugins_to_the_first_byte() {
    let collector = Collector::start().await;
    let endpoint = format!("traces {{ endpoint = \"http://{}\" }}", collector.address);
    let agent = tracing_agent(&endpoint, "log_json = true", |command| {
        command.env("OTEL_SERVICE_NAME", "node-7");
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k1");
    })
    .await;
    let header = format!("00-{TRACE}-{CALLER}-01");
    let body = job("web", "echo out; exec sleep 1000").to_string().into();
    let answer =
        client(&agent).send_with("PUT", "/v1/jobs", &[("traceparent", &header)], body).await;
    let answer = answer.json();
    let alloc = answer["Registered"]["Placed"][0].as_str().unwrap().to_owned();
    for name in ["job register", "allocation start", "first byte"] {
        collector.has(name).await;
    }
    let log = stopped(agent).await;

    let spans = collector.spans();
    let by_id: BTreeMap<&[u8], &Span> = spans.iter().map(|span| (&*span.span_id, span)).collect();
    assert_eq!(by_id.len(), spans.len(), "each has an id of its own");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for span in &spans {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:#?}");
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano, "{span:#?}");
    }
    let one = |name: &str, key: &str, value: &str| {
        let is =
            |span: &&Span| span.name == name && (key.is_empty() || attribute(span, key) == value);
        let mut found = spans.iter().filter(is);
        let first = found.next().unwrap_or_else(|| panic!("no {name} of {value} in {spans:#?}"));
        assert!(found.next().is_none(), "{name} of {value} is there once");
        first
    };
    let parent = |span: &Span| by_id.get(&*span.parent_span_id).map(|above| above.name.as_str());

    let register = one("job register", "", "");
    assert_eq!(hex(&register.parent_span_id), CALLER);
    assert_eq!(attribute(register, "job"), "web");
    assert_eq!(attribute(register, "namespace"), "default");
    assert_eq!(attribute(register, "evaluation"), answer["EvalID"].as_str().unwrap());
    let start = one("allocation start", "alloc", &alloc);
    assert_eq!(parent(start), Some("job register"));
    assert_eq!(attribute(start, "status"), "running");
    for hook in ["alloc_dir", "network", "services"] {
        let prerun = spans.iter().find(|span| {
            span.name == "allocation hook"
                && attribute(span, "hook") == hook
                && attribute(span, "call") == "prerun"
        });
        assert_eq!(prerun.and_then(parent), Some("allocation start"), "{hook}");
    }
    for hook in ["driver", "task_dir", "logs", "config"] {
        let span = one("task hook", "hook", hook);
        assert_eq!(parent(span), Some("allocation start"), "{hook}");
        assert_eq!(attribute(span, "task"), "t");
    }
    let task = one("task start", "task", "t");
    assert_eq!(parent(task), Some("allocation start"));
    let call = one("plugin start", "plugin", "raw_exec");
    assert_eq!(parent(call), Some("task start"));
    assert!(call.start_time_unix_nano >= task.start_time_unix_nano);
    assert!(call.end_time_unix_nano <= task.end_time_unix_nano);
    let byte = one("first byte", "stream", "stdout");
    assert_eq!(parent(byte), Some("allocation start"));

    let line = log.lines().find(|line| line.contains("\"job registered\"")).expect("it is said");
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["trace_id"], TRACE, "{line}");
    assert_eq!(line["span_id"], hex(&register.span_id), "{line}");
    let taken = collector.taken.lock().unwrap();
    assert!(taken.paths.iter().all(|path| path == "POST /v1/traces"), "{:?}", taken.paths);
    assert!(taken.services.iter().all(|name| name == "node-7"), "{:?}", taken.services);
    assert!(taken.keys.iter().all(|key| key == "k1"), "{:?}", taken.keys);
}

#[tokio::test]
async fn going_back_and_scaling_are_in_the_traces_of_who_asked_for_them() {
    let collector = Collector::start().await;
    let endpoint = format!(
        "traces {{\n endpoint = \"http://{}\"\n sample_percent = 0\n }}",
        collector.address
    );
    let agent = tracing_agent(&endpoint, "", |_| {}).await;
    let client = client(&agent);
    for script in ["exec sleep 1000", "exec sleep 1001"] {
        let mut body = job("web", script);
        body["Job"]["Update"] = json!({"MinHealthyTime": 0, "HealthyDeadline": 60_000_000_000_u64});
        let answer = client.put("/v1/jobs", Some(body)).await.json();
        let alloc = answer["Registered"]["Placed"][0].as_str().unwrap().to_owned();
        client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
    }
    let other = TRACE.replace('4', "5");
    for (trace, path, body, by) in [
        (TRACE, "revert", json!({"JobID": "web", "JobVersion": 0}), "revert"),
        (&other, "scale", json!({"Count": 2, "Target": {"Group": "g"}}), "scale"),
    ] {
        // A job whose version is being rolled out takes no other count.
        until("the deployment is over", async || {
            client.get("/v1/job/web/deployment").await.json()["Status"] == "successful"
        })
        .await;
        let header = format!("00-{trace}-{CALLER}-01");
        let path = format!("/v1/job/web/{path}");
        let body = body.to_string().into();
        let answer = client.send_with("PUT", &path, &[("traceparent", &header)], body).await.json();
        let alloc = answer["Registered"]["Placed"][0].as_str().unwrap().to_owned();
        let of_trace = |name: &str| {
            let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
            let spans = collector.spans().into_iter();
            spans
                .filter(|span| span.name == name && hex(&span.trace_id) == trace)
                .collect::<Vec<_>>()
        };
        eventually(&format!("the start of {by}"), || {
            of_trace("allocation start").iter().any(|span| attribute(span, "alloc") == alloc)
        })
        .await;
        let [begin] = &of_trace("job register")[..] else { panic!("one span of {by}") };
        assert_eq!(
            (attribute(begin, "by"), attribute(begin, "job")),
            (by.to_owned(), "web".to_owned())
        );
        assert_eq!(attribute(begin, "evaluation"), answer["EvalID"].as_str().unwrap());
        let starts = of_trace("allocation start");
        assert!(starts.iter().all(|start| start.parent_span_id == begin.span_id), "{starts:#?}");
    }
    let traces: BTreeSet<_> = collector.spans().into_iter().map(|span| span.trace_id).collect();
    assert_eq!(traces.len(), 2, "what nobody records is not recorded");
    stopped(agent).await;
}

/// A collector with TLS at `localhost`, and the file of the authority that vouches for it.
async fn with_tls(dir: &Path) -> (Collector, PathBuf) {
    let authority = Authority::new();
    let collector = Collector::behind(Some(authority.acceptor("localhost"))).await;
    (collector, authority.file(dir))
}

#[tokio::test]
async fn a_collector_with_tls_is_trusted_by_its_authority_and_another_is_said_once() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (collector, authority) = with_tls(ours.path()).await;
    let (_, other) = with_tls(theirs.path()).await;
    let endpoint =
        format!("traces {{ endpoint = \"https://localhost:{}\" }}", collector.address.port());
    let agent = tracing_agent(&endpoint, "", |command| {
        command.env("SSL_CERT_FILE", &authority);
    })
    .await;
    client(&agent).put("/v1/jobs", Some(job("web", "exec sleep 1000"))).await;
    collector.has("allocation start").await;
    let log = stopped(agent).await;
    assert!(!log.contains("does not take traces"), "{log}");
    let taken = collector.spans().len();

    let mut agent = tracing_agent(&endpoint, "", |command| {
        command.env("SSL_CERT_FILE", &other);
    })
    .await;
    let client = client(&agent);
    for id in ["one", "two"] {
        let answer = client.put("/v1/jobs", Some(job(id, "exec sleep 1000"))).await.json();
        let alloc = answer["Registered"]["Placed"][0].as_str().unwrap().to_owned();
        client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
        if id == "one" {
            let said = agent.hears("the collector does not take traces").await;
            assert!(
                said.contains("TLS failed with localhost") && said.contains("SSL_CERT_FILE"),
                "{said}"
            );
        }
    }
    let log = stopped(agent).await;
    assert_eq!(log.matches("the collector does not take traces").count(), 1, "{log}");
    assert_eq!(collector.spans().len(), taken, "nothing was told to it");
}

#[tokio::test]
async fn what_the_caller_does_not_record_is_not_recorded_and_what_fails_says_why() {
    let collector = Collector::start().await;
    let agent = tracing_agent("traces {}", "", |command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address));
    })
    .await;
    let client = client(&agent);
    let header = format!("00-{TRACE}-{CALLER}-00");
    let body = job("silent", "exec sleep 1000").to_string().into();
    client.send_with("PUT", "/v1/jobs", &[("traceparent", &header)], body).await;
    let mut wrong = job("wrong", "");
    wrong["Job"]["TaskGroups"][0]["Tasks"][0]["Config"]["command"] = "/no/such/program".into();
    client.put("/v1/jobs", Some(wrong)).await;
    collector.has("allocation start").await;
    let log = stopped(agent).await;
    let spans = collector.spans();
    let named = |name: &str| spans.iter().find(|span| span.name == name).expect("it is there");
    assert!(spans.iter().all(|span| attribute(span, "job") != "silent"), "{spans:#?}");
    assert_eq!(named("job register").parent_span_id, b"", "a trace of its own");
    assert_eq!(attribute(named("allocation start"), "status"), "failed");
    let start = named("task start").status.clone().unwrap();
    assert!(start.code == 2 && start.message.contains("/no/such/program"), "{start:?}");
    let line = log.lines().find(|line| line.contains("job registered") && line.contains("wrong"));
    let ids =
        line.and_then(|line| line.split(" trace_id=").nth(1)).expect("lines of text have them");
    assert!(ids.len() == 32 + " span_id=".len() + 16, "{ids}");
}

#[tokio::test]
async fn a_collector_that_is_not_there_holds_up_neither_a_job_nor_the_end_and_is_said_once() {
    // Nobody listens where somebody did.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let endpoint = format!("traces {{ endpoint = \"http://{address}\" }}");
    let mut agent = tracing_agent(&endpoint, "", |_| {}).await;
    let client = client(&agent);
    for id in ["one", "two"] {
        let answer = client.put("/v1/jobs", Some(job(id, "echo out; exec sleep 1000"))).await;
        let alloc = answer.json()["Registered"]["Placed"][0].as_str().unwrap().to_owned();
        client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
    }
    agent.hears("the collector does not take traces").await;
    let lost = || async {
        let metrics = client.get("/v1/metrics?format=prometheus").await.text();
        let line =
            metrics.lines().find(|line| line.starts_with("ostler_traces_lost_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let counted = async {
        while lost().await < 40.0 {
            ostler_model::clock::sleep(Duration::from_millis(50)).await;
        }
    };
    ostler_model::clock::timeout(PATIENCE, counted).await.expect("all that is lost is counted");
    let log = stopped(agent).await;
    assert_eq!(log.matches("the collector does not take traces").count(), 1, "{log}");
}

#[tokio::test]
async fn a_collector_that_does_not_answer_does_not_hold_up_the_end_and_what_is_lost_is_said() {
    // Connections are made by the kernel; nobody reads them.
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("traces {{ endpoint = \"http://{}\" }}", deaf.local_addr().unwrap());
    let agent = tracing_agent(&endpoint, "", |_| {}).await;
    let client = client(&agent);
    let answer = client.put("/v1/jobs", Some(job("one", "echo out; exec sleep 1000"))).await;
    let alloc = answer.json()["Registered"]["Placed"][0].as_str().unwrap().to_owned();
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
    let log = stopped(agent).await;
    // At the end, or on a slow machine after the time that a request may take.
    let lost = ["spans of traces are lost", "the collector does not take traces: no answer"];
    assert!(lost.iter().any(|line| log.contains(line)), "{log}");
    drop(deaf);
}
