//! A small client of the agent's API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_agent::AgentHandle;
use ostler_api::server::{self, ApiServer, ListenOptions};
use ostler_model::access::AclConfig;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::{PATIENCE, TestAgent};

/// An agent with its API.
pub struct Served {
    pub agent: TestAgent,
    pub server: ApiServer,
    pub shutdown: CancellationToken,
    pub client: Client,
}

/// The API on a socket alone, without tokens.
pub fn faces<'a>(agent: &AgentHandle, socket: &'a Path) -> ListenOptions<'a> {
    ListenOptions { socket, tcp: None, tokens: agent.tokens(&AclConfig::default()).unwrap() }
}

impl Served {
    pub async fn start() -> Self {
        let agent = TestAgent::start().await;
        let socket = agent.data.path().join(ostler_api::SOCKET_NAME);
        let shutdown = CancellationToken::new();
        let server =
            server::serve(agent.handle.clone(), faces(&agent.handle, &socket), shutdown.clone())
                .unwrap();
        Self { agent, server, shutdown, client: Client(socket) }
    }

    pub async fn stop(self) {
        self.server.stop().await;
        self.agent.stop().await;
    }

    /// Register a service `id` whose one task `t` runs `script`. The id of its allocation.
    pub async fn register(&self, id: &str, script: &str) -> String {
        let answer = self.client.put("/v1/jobs", Some(job(id, script))).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        answer.json()["Registered"]["Placed"][0].as_str().unwrap().to_owned()
    }

    /// The same, and wait until it runs.
    pub async fn run(&self, id: &str, script: &str) -> String {
        let alloc = self.register(id, script).await;
        self.client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
        alloc
    }
}

/// The body that registers such a service.
pub fn job(id: &str, script: &str) -> Value {
    json!({ "Job": {
        "ID": id,
        "Name": id,
        "Type": "service",
        "Datacenters": ["dc1"],
        "TaskGroups": [{
            "Name": "g",
            "Count": 1,
            "RestartPolicy": {
                "Attempts": 0, "Interval": 1_800_000_000_000_u64, "Delay": 0, "Mode": "fail"
            },
            "Tasks": [{
                "Name": "t",
                "Driver": "raw_exec",
                "Config": { "command": "/bin/sh", "args": ["-c", script] },
                "Resources": { "CPU": 20, "MemoryMB": 64 },
                "KillTimeout": 1_000_000_000_u64,
            }],
        }],
    } })
}

/// One connection for each request.
#[derive(Clone)]
pub struct Client(pub PathBuf);

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    #[track_caller]
    pub fn index(&self) -> u64 {
        self.headers["x-nomad-index"].to_str().unwrap().parse().unwrap()
    }
}

impl Client {
    pub fn socket(&self) -> &Path {
        &self.0
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, Bytes::new()).await
    }

    pub async fn put(&self, path: &str, body: Option<Value>) -> Answer {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        self.send("PUT", path, body).await
    }

    pub async fn send(&self, method: &str, path: &str, body: Bytes) -> Answer {
        self.send_with(method, path, &[], body).await
    }

    /// The same with these headers.
    pub async fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Answer {
        let sent = self.open_with(method, path, headers, body);
        // The connection goes last: with it ends the body.
        let Stream { status, headers, body, _connection } = sent.await;
        let body = within(body.collect()).await.unwrap().to_bytes();
        Answer { status, headers, body }
    }

    /// Send a request; the answer's body is read piece by piece. Dropping it hangs up.
    pub async fn open(&self, method: &str, path: &str, body: Bytes) -> Stream {
        self.open_with(method, path, &[], body).await
    }

    async fn open_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Stream {
        let stream = UnixStream::connect(&self.0).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
            let _hung_up = connection.await;
        }));
        let mut request = Request::builder().method(method).uri(path).header("host", "ostler");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).unwrap();
        let response = within(sender.send_request(request)).await;
        let response = response.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let (parts, body) = response.into_parts();
        Stream { status: parts.status, headers: parts.headers, body, _connection: connection }
    }

    /// Wait, with blocking queries, until the allocation is as wanted.
    pub async fn alloc_when(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut index = 0;
        within(async {
            loop {
                let answer = self.get(&format!("/v1/allocation/{id}?index={index}&wait=10s")).await;
                assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
                index = answer.index();
                let alloc = answer.json();
                if wanted(&alloc) {
                    return alloc;
                }
            }
        })
        .await
    }
}

impl Client {
    /// Have the allocation collected, as soon as it is over. The list's index just before.
    pub async fn alloc_gone(&self, id: &str) -> u64 {
        let mut index = 0;
        within(async {
            loop {
                let seen = self.get(&format!("/v1/allocation/{id}?index={index}&wait=10s")).await;
                index = seen.index();
                let before = self.get("/v1/allocations").await.index();
                let answer = self.get(&format!("/v1/client/allocation/{id}/gc")).await;
                match answer.status {
                    StatusCode::OK => return before,
                    StatusCode::CONFLICT => {}
                    other => panic!("{other}: {}", answer.text()),
                }
            }
        })
        .await
    }
}

/// An answer whose body is still coming.
pub struct Stream {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Incoming,
    _connection: tokio_util::task::AbortOnDropHandle<()>,
}

impl Stream {
    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            match within(self.body.frame()).await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(data),
                    Err(_trailers) => {}
                },
                Err(error) => panic!("the stream broke: {error}"),
            }
        }
    }

    /// Pieces until all together hold `text`.
    pub async fn until(&mut self, text: &str) -> String {
        let mut all = String::new();
        while !all.contains(text) {
            let piece = self.next().await.unwrap_or_else(|| panic!("{text} is not in {all}"));
            all.push_str(std::str::from_utf8(&piece).unwrap());
        }
        all
    }
}

pub async fn within<F: Future>(future: F) -> F::Output {
    ostler_model::clock::timeout(PATIENCE, future).await.expect("it happens in time")
}

/// Long for what must not happen.
pub const A_MOMENT: Duration = Duration::from_millis(300);
