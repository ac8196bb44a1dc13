//! Services in the list of the node and their checks, with real tasks, programs and agents that are killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::agent_process::AgentProcess;
use crate::support::http::{Client, within};
use crate::support::jobs::with_guests;

fn client(agent: &AgentProcess) -> Client {
    Client(agent.data.path().join("ostler.sock"))
}

/// The services of a name, as soon as they are as wanted: by blocking queries.
async fn service_when(
    client: &Client,
    name: &str,
    wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let mut index = 0;
    within(async {
        loop {
            let path = format!("/v1/service/{name}?index={index}&wait=10s");
            let answer = client.get(&path).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
            index = answer.index();
            let found = answer.json().as_array().unwrap().clone();
            if wanted(&found) {
                return found;
            }
        }
    })
    .await
}

/// What the check of a name says, as soon as it is as wanted.
async fn check_when(
    client: &Client,
    alloc: &str,
    name: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let pause = std::time::Duration::from_millis(50);
    within(async {
        loop {
            let answer = client.get(&format!("/v1/client/allocation/{alloc}/checks")).await.json();
            let mut all = answer.as_object().unwrap().values();
            if let Some(check) = all.find(|check| check["Check"] == name && wanted(check)) {
                return check.clone();
            }
            ostler_model::clock::sleep(pause).await;
        }
    })
    .await
}

fn is(status: &'static str) -> impl Fn(&Value) -> bool {
    move |check| check["Status"] == status
}

/// A shell task whose script check finds it ill while there is a file; a start makes it well.
const ILL_BY_FILE: &str = r#"job "ill" {
  group "g" {
    network {
      port "x" {}
    }
    restart {
      attempts = 1
      interval = "10m"
      delay    = "100ms"
      mode     = "fail"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "rm -f $NOMAD_TASK_DIR/ill; exec sleep 600"]
      }
      service {
        name = "ill-${NOMAD_ALLOC_INDEX}"
        port = "x"
        tags = ["a", "${node.datacenter}"]
        meta {
          at = "${NOMAD_ADDR_x}"
        }
        check {
          name     = "well"
          type     = "script"
          command  = "/bin/sh"
          args     = ["-c", "test ! -e ${NOMAD_TASK_DIR}/ill || { echo it is ill; exit 2; }"]
          interval = "1s"
          timeout  = "20s"
          check_restart {
            limit = 1
            grace = "0s"
          }
        }
      }
    }
  }
}
"#;

#[tokio::test]
async fn a_script_that_fails_restarts_its_task_by_its_policy_and_the_service_goes_meanwhile() {
    let agent = AgentProcess::start().await;
    let client = client(&agent);
    agent.run(ILL_BY_FILE).await.said(0, &[]);
    let alloc = agent.alloc("ill").await;
    let first = service_when(&client, "ill-0", |found| found.len() == 1).await.remove(0);
    assert_eq!((&first["AllocID"], &first["JobID"]), (&json!(alloc), &json!("ill")));
    assert_eq!(first["Tags"], json!(["a", "dc1"]));
    let at = format!("{}:{}", first["Address"].as_str().unwrap(), first["Port"]);
    assert_eq!(first["Meta"]["at"], json!(at));
    check_when(&client, &alloc, "well", is("success")).await;
    let ill = agent.data.path().join(format!("allocs/{alloc}/t/local/ill"));
    std::fs::write(&ill, "").unwrap();
    let runs_again = |alloc: &Value| {
        let task = &alloc["TaskStates"]["t"];
        task["Restarts"] == 1 && task["State"] == "running"
    };
    let seen = client.alloc_when(&alloc, runs_again).await;
    let events = seen["TaskStates"]["t"]["Events"].to_string();
    assert!(events.contains(r#"healthcheck: check \"well\" unhealthy"#), "{events}");
    let newer = |found: &[Value]| {
        found.first().is_some_and(|of| of["CreateIndex"].as_u64() > first["CreateIndex"].as_u64())
    };
    service_when(&client, "ill-0", newer).await;
    check_when(&client, &alloc, "well", is("success")).await;
    // The one attempt is used up.
    std::fs::write(&ill, "").unwrap();
    let failed = |alloc: &Value| alloc["ClientStatus"] == "failed";
    client.alloc_when(&alloc, failed).await;
    service_when(&client, "ill-0", <[Value]>::is_empty).await;
    assert_eq!(client.get("/v1/services").await.json(), json!([]));
}

#[tokio::test]
async fn a_service_is_listed_by_the_next_agent_after_a_kill_and_by_nobody_after_its_stop() {
    let agent = AgentProcess::start().await;
    let service = r#"
      service {
        name = "kv"
        port = "db"
        check {
          name     = "connects"
          type     = "tcp"
          interval = "1s"
          timeout  = "20s"
        }
      }
      resources {"#;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/jobs/kv.hcl");
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("\"${job.dir}/../bin/kv-server.wasm\"", "\"guest:kv-server\"");
    let text = with_guests(&text).replacen("resources {", service, 1);
    agent.run(&text).await.said(0, &[]);
    let alloc = agent.alloc("kv").await;
    let before = service_when(&client(&agent), "kv", |found| found.len() == 1).await;
    check_when(&client(&agent), &alloc, "connects", is("success")).await;
    let shown = agent.ask(&["service", "info", "kv"]).await;
    let address = format!("{}:{}", before[0]["Address"].as_str().unwrap(), before[0]["Port"]);
    shown.said(0, &[]);
    assert!(shown.stdout.contains(&address), "{shown:#?}");
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;

    let agent = AgentProcess::start_in(home, &[]).await;
    let after = service_when(&client(&agent), "kv", |found| found.len() == 1).await;
    for same in ["ID", "AllocID", "Address", "Port"] {
        assert_eq!(before[0][same], after[0][same]);
    }
    check_when(&client(&agent), &alloc, "connects", is("success")).await;
    let status = agent.ask(&["alloc", "status", &alloc]).await;
    assert!(status.stdout.contains("connects"), "{status:#?}");
    agent.ask(&["job", "stop", "kv"]).await.said(0, &[]);
    service_when(&client(&agent), "kv", <[Value]>::is_empty).await;
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    let agent = AgentProcess::start_in(home, &[]).await;
    assert_eq!(client(&agent).get("/v1/services").await.json(), json!([]));
}

/// Answers with the status that is set now.
async fn web(status: Arc<AtomicU16>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let status = Arc::clone(&status);
            let answer = service_fn(move |request: Request<Incoming>| {
                let status = StatusCode::from_u16(status.load(Ordering::SeqCst)).unwrap();
                let of = request.headers()["x-of"].to_str().unwrap().to_owned();
                let body = Full::new(Bytes::from(format!("{} for {of}", request.method())));
                let response = Response::builder().status(status).body(body);
                std::future::ready(response)
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

/// A job without a program of its own: its service is at a port of this process.
fn elsewhere(port: u16, check: &str) -> String {
    format!(
        r#"job "j" {{
          group "g" {{
            update {{
              min_healthy_time = "1s"
            }}
            service {{
              name = "elsewhere"
              port = {port}
              task = "t"
              check {{
                name     = "c"
                interval = "1s"
                timeout  = "20s"
                {check}
              }}
            }}
            task "t" {{
              driver = "raw_exec"
              config {{
                command = "/bin/sleep"
                args    = ["600"]
              }}
            }}
          }}
        }}"#
    )
}

#[tokio::test]
async fn an_http_check_goes_on_after_the_verdict_and_counts_by_its_thresholds() {
    let status = Arc::new(AtomicU16::new(200));
    let port = web(Arc::clone(&status)).await.port();
    let agent = AgentProcess::start().await;
    let client = client(&agent);
    let check = r#"
      type = "http"
      path = "/health"
      method = "POST"
      header {
        X-Of = ["${NOMAD_GROUP_NAME}"]
      }
      failures_before_critical = 3
      failures_before_warning = 2"#;
    agent.run(&elsewhere(port, check)).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    let healthy = |alloc: &Value| alloc["DeploymentStatus"]["Healthy"] == true;
    client.alloc_when(&alloc, healthy).await;
    let found = service_when(&client, "elsewhere", |found| found.len() == 1).await;
    assert_eq!((&found[0]["Address"], &found[0]["Port"]), (&json!("127.0.0.1"), &json!(port)));
    let good = check_when(&client, &alloc, "c", is("success")).await;
    assert_eq!((&good["StatusCode"], &good["Group"]), (&json!(200), &json!("j.g[0]")));
    assert_eq!(good["Output"], "status 200 OK: POST for g");
    status.store(503, Ordering::SeqCst);
    let warns = check_when(&client, &alloc, "c", |check| check["Status"] != "success").await;
    assert_eq!((&warns["Status"], &warns["StatusCode"]), (&json!("warning"), &json!(503)));
    check_when(&client, &alloc, "c", is("failure")).await;
    status.store(204, Ordering::SeqCst);
    check_when(&client, &alloc, "c", is("success")).await;
    assert!(healthy(&client.get(&format!("/v1/allocation/{alloc}")).await.json()));
}

type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

/// The standard health service of a server that serves while this is 1; 2 is `NOT_SERVING`.
async fn grpc(serving: Arc<AtomicU16>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = Arc::clone(&serving);
            let answer = service_fn(move |request: Request<Incoming>| {
                let serving = u8::try_from(serving.load(Ordering::SeqCst)).unwrap();
                async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    // A frame with `status` (field 1, a number), and that the call went well.
                    let frame = Bytes::from(vec![0, 0, 0, 0, 2, 8, serving]);
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    let frames = [Ok(Frame::data(frame)), Ok(Frame::trailers(trailers))];
                    let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
                    let body: Body = body.boxed();
                    Response::builder().header("content-type", "application/grpc").body(body)
                }
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

#[tokio::test]
async fn a_grpc_check_asks_a_server_at_a_port_that_is_a_number() {
    let serving = Arc::new(AtomicU16::new(1));
    let port = grpc(Arc::clone(&serving)).await.port();
    let agent = AgentProcess::start().await;
    let client = client(&agent);
    agent.run(&elsewhere(port, "type = \"grpc\"\ngrpc_service = \"x.Y\"")).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    check_when(&client, &alloc, "c", is("success")).await;
    serving.store(2, Ordering::SeqCst);
    let ill = check_when(&client, &alloc, "c", is("failure")).await;
    assert_eq!(ill["Output"], "NOT_SERVING");
}

#[tokio::test]
async fn a_service_that_cannot_be_listed_says_why_in_an_event_and_in_its_check() {
    let agent = AgentProcess::start().await;
    let client = client(&agent);
    let text = elsewhere(1, "type = \"tcp\"").replace("\"elsewhere\"", "\"a-${nobody}\"");
    agent.submit(&text).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    let said = |alloc: &Value| {
        let text = alloc["TaskStates"]["t"]["Events"].to_string();
        text.contains(
            "service a-${nobody} is not listed: \\\"a-${nobody}\\\" is not a valid service name",
        )
    };
    client.alloc_when(&alloc, said).await;
    assert_eq!(client.get("/v1/services").await.json(), json!([]));
    let ended = agent.ask(&["service", "info", "a"]).await;
    ended.said(2, &["no service a runs"]);
}

#[tokio::test]
async fn a_service_is_listed_where_its_driver_says_and_by_the_next_agent_too() {
    let agent = AgentProcess::start().await;
    let text = r#"job "j" {
  group "g" {
    task "t" {
      driver = "mock_driver"
      config {
        run_for         = "1h"
        driver_ip       = "192.0.2.7"
        driver_port_map = "inside:8081"
      }
      service {
        name = "auto"
        port = "${NOMAD_META_port}"
      }
      service {
        name         = "driver"
        port         = "${NOMAD_META_port}"
        address_mode = "driver"
      }
      service {
        name         = "host"
        port         = 9000
        address_mode = "host"
      }
      meta {
        port = "inside"
      }
    }
  }
}"#;
    agent.submit(text).await.said(0, &[]);
    let listed = async |agent: &AgentProcess| {
        for (name, address, port) in [
            ("auto", "192.0.2.7", 8_081),
            ("driver", "192.0.2.7", 8_081),
            ("host", "127.0.0.1", 9_000),
        ] {
            let found = service_when(&client(agent), name, |found| found.len() == 1).await;
            let at = (&found[0]["Address"], &found[0]["Port"]);
            assert_eq!(at, (&json!(address), &json!(port)), "{name}");
        }
    };
    listed(&agent).await;
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    listed(&AgentProcess::start_in(home, &[]).await).await;
}
