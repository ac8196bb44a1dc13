//! The API over TCP: tokens and what each allows, pages of others, TLS, and that what is done there is seen
//! nowhere.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_model::clock;
use ostler_model::limits::{
    API_TCP_BODIES_MAX, API_TCP_STREAMS_MAX, API_TCP_WAITS_MAX, EXEC_SESSIONS_MAX,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::task::AbortOnDropHandle;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::authority::Authority;
use crate::support::binary::{command, with_input};
use crate::support::http::{job, within};
use crate::support::nomad::{self, free_port};
use crate::support::{KEEPS, PATIENCE};

/// An agent with its API over TCP too.
struct Open {
    agent: AgentProcess,
    at: SocketAddr,
}

const TOKENS: &str = "acl { enabled = true }\n";
const WEB: &str = "namespace \"web\" { }\n";

impl Open {
    /// With this beside where it listens.
    async fn start(more: &str) -> Self {
        let data = Home::new();
        let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = data.path().join("agent.hcl");
        let text = format!("{KEEPS}\nports {{ http = {} }}\n{more}", at.port());
        std::fs::write(&config, text).unwrap();
        let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
        Self { agent, at }
    }

    /// A token by the command line, over the socket. Its secret.
    async fn token(&self, policies: &[&str]) -> String {
        self.made(policies).await["SecretID"].as_str().unwrap().to_owned()
    }

    async fn made(&self, policies: &[&str]) -> Value {
        let mut args = vec!["token", "create", "--json", "--name", "test"];
        for policy in policies {
            args.extend(["--policy", policy]);
        }
        self.agent.json(&args).await
    }

    async fn ask(&self, method: &str, path: &str, token: &str) -> (StatusCode, String) {
        self.ask_with(method, path, &[("x-nomad-token", token)], "").await
    }

    async fn get(&self, path: &str, token: &str) -> Value {
        let (status, text) = self.ask("GET", path, token).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn ask_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (StatusCode, String) {
        let (response, _connection) = self.open(method, path, headers, body).await;
        let status = response.status();
        let body = within(response.into_body().collect()).await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (hyper::Response<Incoming>, AbortOnDropHandle<()>) {
        let stream = TcpStream::connect(self.at).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            let _hung_up = connection.await;
        }));
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.at.to_string());
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        (within(sender.send_request(request)).await.unwrap(), connection)
    }

    /// Register a service that prints `ready` in a namespace. The id of its allocation.
    async fn service(&self, namespace: &str, id: &str) -> String {
        let text = job(id, "echo ready; exec sleep 600").to_string();
        let file = self.agent.file(&format!("{id}.json"), &text);
        let args = ["job", "run", "--detach", "--namespace", namespace, file.to_str().unwrap()];
        self.agent.ask(&args).await.said(0, &[]);
        let allocs =
            self.agent.json(&["alloc", "status", "--json", "--namespace", namespace]).await;
        allocs[0]["ID"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_is_told_over_tcp_and_all_over_the_socket() {
    let open = Open::start(TOKENS).await;
    for path in [
        "/v1/jobs",
        "/v1/nodes",
        "/v1/metrics",
        "/v1/event/stream",
        "/v1/acl/tokens",
        "/v1/nothing",
    ] {
        let (status, text) = open.ask("GET", path, "").await;
        let refused = status == StatusCode::FORBIDDEN && text.contains("send a token");
        assert!(refused || path == "/v1/nothing", "{path}: {status} {text}");
        let (status, text) = open.ask("GET", path, "11111111-2222-4333-8444-555555555555").await;
        assert_eq!((status, &*text), (StatusCode::FORBIDDEN, "ACL token not found"), "{path}");
    }
    assert_eq!(open.ask("GET", "/v1/agent/health", "").await.0, StatusCode::OK);
    open.agent.ask(&["node", "status"]).await.said(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_policy_allows_what_it_says_and_no_more() {
    let open = Open::start(TOKENS).await;
    let alloc = open.service("default", "web").await;
    let logs = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&plain=true");
    let stop = format!("/v1/client/allocation/{alloc}/signal");
    let exec = format!("/v1/client/allocation/{alloc}/exec?task=t&command=%5B%22true%22%5D");
    // What is asked, and from which policy on it is allowed.
    let asked: [(&str, &str, usize); 12] = [
        ("GET", "/v1/jobs", 0),
        ("GET", "/v1/nodes", 0),
        ("GET", "/v1/job/web", 0),
        ("GET", "/v1/ostler/devices", 0),
        ("GET", &logs, 1),
        ("GET", "/v1/vars", 1),
        ("PUT", &stop, 1),
        ("PUT", "/v1/jobs", 1),
        ("GET", &exec, 2),
        ("PUT", "/v1/system/gc", 2),
        ("GET", "/v1/acl/tokens", 3),
        ("PUT", "/v1/acl/token", 3),
    ];
    for (level, policy) in ["read", "submit", "operate", "admin"].into_iter().enumerate() {
        let token = open.token(&[policy]).await;
        for (method, path, from) in asked {
            let (status, text) = open.ask(method, path, &token).await;
            let let_in = status != StatusCode::FORBIDDEN;
            assert_eq!(let_in, level >= from, "{policy} {method} {path}: {status} {text}");
        }
        assert_eq!(open.get("/v1/acl/token/self", &token).await["Name"], "test");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_in_one_namespace_shows_and_changes_nothing_of_another() {
    let open = Open::start(&format!("{TOKENS}{WEB}")).await;
    let theirs = open.service("default", "theirs").await;
    let own = open.service("web", "own").await;
    let token = open.token(&["operate@web"]).await;
    let ids = |list: &Value| {
        list.as_array().unwrap().iter().map(|one| one["ID"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&open.get("/v1/jobs?namespace=*", &token).await), ["own"]);
    assert_eq!(ids(&open.get("/v1/allocations?namespace=*", &token).await), [&*own]);
    let names = open.get("/v1/namespaces", &token).await;
    assert_eq!(names.as_array().unwrap().len(), 1, "{names}");
    // However its id is written.
    let plain = theirs.replace('-', "");
    let percent = format!("%{:02X}{}", theirs.as_bytes()[0], &theirs[1..]);
    for id in [theirs.clone(), theirs.to_uppercase(), plain, percent, format!("urn:uuid:{theirs}")]
    {
        for (method, path) in [
            ("GET", format!("/v1/allocation/{id}")),
            ("GET", format!("/v1/client/fs/logs/{id}?task=t&type=stdout&plain=true")),
            ("GET", format!("/v1/client/fs/ls/{id}?path=/")),
            ("PUT", format!("/v1/allocation/{id}/stop")),
            ("PUT", format!("/v1/client/allocation/{id}/restart")),
            ("GET", format!("/v1/client/allocation/{id}/exec?task=t&command=%5B%22true%22%5D")),
        ] {
            let (status, text) = open.ask(method, &path, &token).await;
            let refused = [StatusCode::FORBIDDEN, StatusCode::NOT_FOUND].contains(&status);
            assert!(refused && !text.contains("ready"), "{method} {path}: {status} {text}");
        }
    }
    for (method, path) in [
        ("GET", "/v1/job/theirs"),
        ("DELETE", "/v1/job/theirs"),
        ("DELETE", "/v1/job/theirs?namespace=default"),
        ("DELETE", "/v1/job/own?namespace=*"),
        ("GET", "/v1/nodes"),
        ("PUT", "/v1/system/gc"),
    ] {
        let (status, text) = open.ask(method, path, &token).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path}: {text}");
    }
    // The namespace may stand in the body.
    let send = async |namespace: &str| {
        let mut body = job("new", "exec sleep 600");
        body["Job"]["Namespace"] = namespace.into();
        let headers = [("x-nomad-token", &*token)];
        open.ask_with("PUT", "/v1/jobs", &headers, &body.to_string()).await
    };
    assert_eq!(send("default").await.0, StatusCode::FORBIDDEN);
    let (status, text) = send("web").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let wanted = json!({"Prefix": "", "Context": "all"}).to_string();
    let headers = [("x-nomad-token", &*token)];
    let found = open.ask_with("PUT", "/v1/search?namespace=*", &headers, &wanted);
    let (status, text) = found.await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(text.contains("own") && !text.contains("theirs") && !text.contains(&theirs), "{text}");
    assert_eq!(
        open.get(&format!("/v1/allocation/{theirs}"), &open.token(&["read"]).await).await["JobID"],
        "theirs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_of_another_namespace_is_neither_read_nor_written_by_the_body() {
    let open = Open::start(&format!("{TOKENS}{WEB}")).await;
    let put = ["var", "put", "--namespace", "web", "db", "pw=TOPSECRET"];
    open.agent.ask(&put).await.said(0, &[]);
    let token = open.token(&["submit@default"]).await;
    let body = json!({ "Namespace": "web", "Items": { "x": "y" } }).to_string();
    for path in ["/v1/var/db", "/v1/var/db?cas=0", "/v1/var/db?namespace=web"] {
        let headers = [("x-nomad-token", &*token)];
        let (status, text) = open.ask_with("PUT", path, &headers, &body).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {text}");
    }
    let kept = open.agent.json(&["var", "get", "--json", "--namespace", "web", "db"]).await;
    assert_eq!(kept["Items"]["pw"], "TOPSECRET");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_strangers_keep_no_command_out() {
    let open = Open::start(TOKENS).await;
    let alloc = open.service("default", "web").await;
    let path = format!(
        "/v1/client/allocation/{alloc}/exec?task=t&command=%5B%22true%22%5D&ws_handshake=true"
    );
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        open.at
    );
    let (mut held, mut let_in) = (Vec::new(), 0);
    for _ in 0..EXEC_SESSIONS_MAX {
        let mut stream = TcpStream::connect(open.at).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        let_in += usize::from(head == *b"HTTP/1.1 101");
        held.push(stream);
    }
    assert!(let_in > 0 && let_in < EXEC_SESSIONS_MAX, "{let_in}");
    // Who has a right to it finds a place.
    let token = open.token(&["operate"]).await;
    let own = request.replacen("\r\n", &format!("\r\nX-Nomad-Token: {token}\r\n"), 1);
    let mut stream = TcpStream::connect(open.at).await.unwrap();
    stream.write_all(own.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head, *b"HTTP/1.1 101");
    // And holds no more than half of them, so that others find one too.
    let mut own_held = vec![stream];
    let refused = loop {
        let mut stream = TcpStream::connect(open.at).await.unwrap();
        stream.write_all(own.as_bytes()).await.unwrap();
        stream.read_exact(&mut head).await.unwrap();
        if head != *b"HTTP/1.1 101" {
            break head;
        }
        own_held.push(stream);
        assert!(own_held.len() <= EXEC_SESSIONS_MAX, "one token took them all");
    };
    assert_eq!(refused, *b"HTTP/1.1 429");
    let other = open.token(&["operate"]).await;
    let others = request.replacen("\r\n", &format!("\r\nX-Nomad-Token: {other}\r\n"), 1);
    let mut stream = TcpStream::connect(open.at).await.unwrap();
    stream.write_all(others.as_bytes()).await.unwrap();
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head, *b"HTTP/1.1 101");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_cannot_take_every_place_of_streams() {
    let open = Open::start(TOKENS).await;
    let (greedy, other) = (open.token(&["read"]).await, open.token(&["read"]).await);
    let follow = async |token: &str| {
        open.open("GET", "/v1/event/stream", &[("x-nomad-token", token)], "").await
    };
    let mut held = Vec::new();
    let refused = loop {
        let (response, connection) = follow(&greedy).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        held.push((response, connection));
        assert!(held.len() < API_TCP_STREAMS_MAX, "all of them are one token's");
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    let text = within(refused.into_body().collect()).await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("streams at once, so that"), "{text:?}");
    let (response, _connection) = follow(&other).await;
    assert_eq!(response.status(), StatusCode::OK);
    let socket = open.agent.data.path().join(ostler_api::SOCKET_NAME);
    let mut operator = UnixStream::connect(socket).await.unwrap();
    operator.write_all(b"GET /v1/event/stream HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    within(operator.read_exact(&mut head)).await.unwrap();
    assert_eq!(head, *b"HTTP/1.1 200");
    // Who ends one may begin another.
    drop(held.pop());
    within(async { while follow(&greedy).await.0.status() != StatusCode::OK {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_cannot_wait_with_so_many_queries_that_nobody_else_can() {
    let open = Open::start(TOKENS).await;
    let (greedy, other) = (open.token(&["read"]).await, open.token(&["read"]).await);
    let path = "/v1/jobs?index=9000000000000000";
    let mut held = Vec::new();
    for _ in 0..API_TCP_WAITS_MAX * 3 / 4 {
        let mut stream = TcpStream::connect(open.at).await.unwrap();
        let head = format!(
            "GET {path}&wait=10m HTTP/1.1\r\nHost: {}\r\nX-Nomad-Token: {greedy}\r\n\r\n",
            open.at
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let soon = format!("{path}&wait=10ms");
    let refused = async {
        loop {
            let (status, text) = open.ask("GET", &soon, &greedy).await;
            // Those before it are still being read.
            if status != StatusCode::OK {
                return (status, text);
            }
        }
    };
    let (status, text) = within(refused).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{text}");
    assert!(text.contains("waiting queries at once, so that"), "{text}");
    assert_eq!(open.ask("GET", "/v1/jobs", &greedy).await.0, StatusCode::OK, "at once");
    assert_eq!(open.ask("GET", &soon, &other).await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_cannot_fill_the_memory_for_large_bodies() {
    let open = Open::start(TOKENS).await;
    let (greedy, other) = (open.token(&["submit"]).await, open.token(&["submit"]).await);
    let mut held = Vec::new();
    // Half of the places are for one token at the most.
    for _ in 0..API_TCP_BODIES_MAX / 2 {
        let mut stream = TcpStream::connect(open.at).await.unwrap();
        let head = format!(
            "PUT /v1/jobs HTTP/1.1\r\nHost: {}\r\nX-Nomad-Token: {greedy}\r\n\
             Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n",
            open.at
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The agent says so when it begins to read the body.
        let mut told = [0; 12];
        within(stream.read_exact(&mut told)).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 100");
        held.push(stream);
    }
    let large = " ".repeat(100_000);
    let put = async |token: &str, body: &str| {
        open.ask_with("PUT", "/v1/jobs", &[("x-nomad-token", token)], body).await.0
    };
    assert_eq!(put(&greedy, &large).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(put(&greedy, "{}").await, StatusCode::BAD_REQUEST, "small ones are read");
    assert_eq!(put(&other, &large).await, StatusCode::BAD_REQUEST, "and those of others");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_other_namespaces_do_not_reach_a_bearer() {
    let open = Open::start(&format!("{TOKENS}{WEB}")).await;
    let token = open.token(&["read@web"]).await;
    let headers = [("x-nomad-token", &*token)];
    let (response, _connection) =
        open.open("GET", "/v1/event/stream?namespace=*&live=true", &headers, "").await;
    open.service("default", "theirs").await;
    open.service("web", "own").await;
    let mut body = response.into_body();
    let mut seen = String::new();
    while !seen.contains("\"own\"") {
        let frame = within(body.frame()).await.unwrap().unwrap();
        seen.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    assert!(!seen.contains("theirs"), "{seen}");
    let kept = within(async {
        loop {
            let kept = open.get("/v1/ostler/events?namespace=*", &token).await;
            // They are noted a moment later.
            if kept["events"].as_array().is_some_and(|events| !events.is_empty()) {
                break kept;
            }
        }
    })
    .await;
    let mut namespaces = kept["events"].as_array().unwrap().iter().map(|event| &event["namespace"]);
    assert!(namespaces.all(|own| own == "web"), "{kept}");
    let refused = "{\"Live\":{\"refused\":\"seeing events of the node needs a token with the policy read in \
                   all namespaces\"}}";
    assert!(seen.contains(refused) && !seen.contains("memory_total_mb"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_removed_ends_what_goes_on_for_it() {
    let open = Open::start(TOKENS).await;
    let made = open.made(&["read"]).await;
    let token = made["SecretID"].as_str().unwrap();
    let (response, _connection) =
        open.open("GET", "/v1/event/stream", &[("x-nomad-token", token)], "").await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    within(body.frame()).await.unwrap().unwrap();
    let accessor = made["AccessorID"].as_str().unwrap();
    open.agent.ask(&["token", "delete", accessor]).await.said(0, &[]);
    within(async { while let Some(Ok(_)) = body.frame().await {} }).await;
    let (status, text) = open.ask("GET", "/v1/jobs", token).await;
    assert_eq!((status, &*text), (StatusCode::FORBIDDEN, "ACL token not found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_outlive_the_agent_and_their_secrets_are_nowhere() {
    let open = Open::start(TOKENS).await;
    let secret = open.token(&["admin"]).await;
    open.get("/v1/jobs", &secret).await;
    for path in [
        "/v1/acl/tokens",
        "/v1/acl/token/self",
        "/v1/agent/self",
        "/v1/metrics",
        "/v1/ostler/state",
    ] {
        let text = open.get(path, &secret).await.to_string();
        assert!(!text.contains(&secret), "{path}: {text}");
    }
    let Open { agent, at } = open;
    agent.signal(Signal::TERM);
    let (ended, data) = agent.ended().await;
    assert!(!ended.stderr.contains(&secret), "{}", ended.stderr);
    assert!(!has(data.path(), secret.as_bytes()), "no file of the data directory has it");
    let config = data.path().join("agent.hcl");
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    let open = Open { agent, at };
    open.get("/v1/jobs", &secret).await;
}

/// Is this in a file of the directory?
fn has(dir: &Path, text: &[u8]) -> bool {
    std::fs::read_dir(dir).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        let found = |bytes: Vec<u8>| bytes.windows(text.len()).any(|part| part == text);
        if kind.is_dir() {
            has(&path, text)
        } else {
            kind.is_file() && std::fs::read(&path).is_ok_and(found)
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_token_is_made_at_the_machine_alone_and_once() {
    let open = Open::start(TOKENS).await;
    let (status, text) = open.ask("PUT", "/v1/acl/bootstrap", "").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
    assert!(text.contains("ostler token bootstrap"), "{text}");
    let made = open.agent.json(&["token", "bootstrap", "--json"]).await;
    assert_eq!(made["Type"], "management");
    open.get("/v1/acl/tokens", made["SecretID"].as_str().unwrap()).await;
    open.agent.ask(&["token", "bootstrap"]).await.said(2, &["bootstrap already done"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_others_in_a_browser_cannot_ask() {
    let open = Open::start("http_hosts = [\"node1.example\"]").await;
    let own = open.at.to_string();
    let from = |host: &'static str| ("host", host);
    for headers in [
        vec![from("evil.example")],
        vec![from("localhost.evil.example:80")],
        vec![("host", &*own), ("origin", "http://evil.example")],
        vec![("host", &*own), ("origin", "null")],
        vec![("host", &*own), ("sec-fetch-site", "cross-site")],
    ] {
        for (method, path) in
            [("GET", "/v1/jobs"), ("PUT", "/v1/system/gc"), ("GET", "/v1/client/gc")]
        {
            let (status, text) = open.ask_with(method, path, &headers, "").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{headers:?} {path}: {text}");
        }
    }
    // A link may lead to the page itself.
    let from_afar = [("host", &*own), ("sec-fetch-site", "cross-site")];
    assert_eq!(open.ask_with("GET", "/ui/", &from_afar, "").await.0, StatusCode::OK);
    let page = format!("http://{own}");
    for headers in [
        vec![from("node1.example:4646")],
        vec![from("localhost")],
        vec![("host", &*own), ("origin", &*page), ("sec-fetch-site", "same-origin")],
    ] {
        let (status, text) = open.ask_with("GET", "/v1/jobs", &headers, "").await;
        assert_eq!(status, StatusCode::OK, "{headers:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_takes_new_tokens_of_the_configuration_and_ends_old_ones() {
    let data = Home::new();
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (config, secrets) = (data.path().join("agent.hcl"), data.path().join("ops.token"));
    let write = |secret: &str, policy: &str| {
        std::fs::write(&secrets, secret).unwrap();
        std::fs::set_permissions(&secrets, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let text = format!(
            "{KEEPS}\nports {{ http = {} }}\nacl {{\n enabled = true\n token \"ops\" {{\n secret_file = \
             \"ops.token\"\n policies = [\"{policy}\"]\n }}\n}}\n",
            at.port()
        );
        std::fs::write(&config, text).unwrap();
    };
    write("the-first-secret-of-ops\n", "read");
    let args = ["--config", config.to_str().unwrap()];
    let mut open = Open { agent: AgentProcess::start_in(data, &args).await, at };
    open.get("/v1/jobs", "the-first-secret-of-ops").await;
    write("the-second-secret-of-ops", "submit");
    open.agent.signal(Signal::HUP);
    eventually("the new secret counts", async || {
        open.ask("GET", "/v1/vars", "the-second-secret-of-ops").await.0 == StatusCode::OK
    })
    .await;
    let (status, _) = open.ask("GET", "/v1/jobs", "the-first-secret-of-ops").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    // The secret alone is another: the block is not.
    open.agent.hears("acl.token: applied").await;
    write("the-third-secret-of-ops", "submit");
    open.agent.signal(Signal::HUP);
    open.agent.hears("acl.token: applied").await;
    write("the-second-secret-of-ops", "submit");
    open.agent.signal(Signal::HUP);
    open.agent.hears("acl.token: applied").await;
    write("short", "admin");
    open.agent.signal(Signal::HUP);
    open.agent.hears("acl.token: refused").await;
    let (status, _) = open.ask("GET", "/v1/acl/tokens", "the-second-secret-of-ops").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "what was there before stays");
    open.get("/v1/vars", "the-second-secret-of-ops").await;
}

/// Wait until it is so.
async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let asked = async {
        while !is().await {
            clock::sleep(Duration::from_millis(20)).await;
        }
    };
    clock::timeout(PATIENCE, asked).await.unwrap_or_else(|| panic!("never: {what}"));
}

struct Certificates {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Certificates {
    fn new() -> Self {
        let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.file(dir.path());
        let this = Self { dir, authority };
        this.issue("server");
        this.issue("client");
        this
    }

    fn issue(&self, name: &str) {
        let (certificate, key) = self.authority.issue(&["127.0.0.1", "node1.example"]);
        std::fs::write(self.file(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.file(&format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// The block of an agent with them.
    fn block(&self, more: &str) -> String {
        let [ca, own, key] = ["ca.pem", "server.pem", "server-key.pem"].map(|name| self.file(name));
        format!(
            "tls {{\n ca_file = \"{ca}\"\n cert_file = \"{own}\"\n key_file = \"{key}\"\n {more}\n}}\n"
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tls_the_command_line_knows_the_agent_by_its_authority() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let mut open = Open::start(&format!("{TOKENS}{}", certificates.block(""))).await;
    let token = open.token(&["read"]).await;
    let url = format!("https://{}", open.at);
    let asks = async |ca: &str, with: &[(&str, &str)]| {
        let mut asked = command(["job", "status", "--address", &url, "--ca-cert", ca]);
        asked.env("OSTLER_TOKEN", &token).envs(with.iter().copied());
        with_input(asked, b"").await
    };
    let ca = certificates.file("ca.pem");
    asks(&ca, &[]).await.said(0, &[]);
    asks(&others.file("ca.pem"), &[]).await.said(3, &["cannot be reached", "--ca-cert FILE"]);
    asks(&ca, &[("NOMAD_TLS_SERVER_NAME", "node1.example")]).await.said(0, &[]);
    let other = asks(&ca, &[("NOMAD_TLS_SERVER_NAME", "other.example")]).await;
    other.said(3, &["cannot be reached", "NOMAD_TLS_SERVER_NAME"]);
    // Plain HTTP is no way around it, and whoever tries is told.
    let plain = format!("http://{}", open.at);
    let asked = with_input(command(["job", "status", "--address", &plain]), b"").await;
    asked.said(2, &["only speaks TLS", "https:// instead of http://"]);
    // A new certificate, of somebody else, from the next connection on.
    for name in ["server.pem", "server-key.pem"] {
        std::fs::copy(others.file(name), certificates.file(name)).unwrap();
    }
    open.agent.signal(Signal::HUP);
    eventually("the new certificate is shown", async || {
        asks(&others.file("ca.pem"), &[]).await.code == Some(0)
    })
    .await;
    open.agent.hears("tls: applied").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_file_is_validated_by_the_agent_at_a_url_for_the_bearer_of_a_token() {
    let open = Open::start(TOKENS).await;
    let (url, token) = (format!("http://{}", open.at), open.token(&["submit"]).await);
    let text = |key: &str| {
        let config = format!("{key} = \"/bin/true\"");
        format!(
            "job \"j\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n {config}\n }}\n }}\n \
             }}\n}}\n"
        )
    };
    let right = open.agent.file("right.hcl", &text("command"));
    let wrong = open.agent.file("wrong.hcl", &text("comand"));
    let asks = async |file: &Path, token: &str| {
        let mut asked = command(["job", "validate", file.to_str().unwrap()]);
        asked.env("OSTLER_ADDR", &url).env("OSTLER_TOKEN", token);
        with_input(asked, b"").await
    };
    // An agent of the command alone would have no raw_exec, and say so.
    let valid = asks(&right, &token).await;
    valid.said(0, &[]);
    assert!(valid.stdout.contains("is valid"), "{valid:#?}");
    assert!(!valid.stderr.contains("raw_exec"), "{valid:#?}");
    asks(&wrong, &token).await.said(2, &["wrong.hcl:6:2", "comand"]);
    for (token, why) in
        [("not a token", ""), ("9f33eac9-4c77-4acb-8cc4-af4832116343", "ACL token not found")]
    {
        let refused = asks(&right, token).await;
        refused.said(3, &["could not be loaded to check it", why]);
        assert!(!refused.stdout.contains("is valid"), "{refused:#?}");
    }
    // An agent that is named and not there is not replaced in silence.
    open.agent.signal(Signal::KILL);
    let Open { agent, .. } = open;
    let (_, _data) = agent.ended().await;
    asks(&right, &token).await.said(0, &["no agent answers at", "started for this command alone"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_an_agent_without_tls_as_one_with_it_is_told_so() {
    let (certificates, open) = (Certificates::new(), Open::start("").await);
    let (ca, url) = (certificates.file("ca.pem"), format!("https://{}", open.at));
    let asked = command(["job", "status", "--address", &url, "--ca-cert", &ca]);
    let asked = with_input(asked, b"").await;
    asked
        .said(3, &["does not answer with TLS", &format!("give its address as http://{}", open.at)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_the_certificate_of_an_authority_is_called_that_in_words() {
    let (authority, dir) = (Authority::new(), tempfile::tempdir().unwrap());
    let ca = authority.file(dir.path()).to_str().unwrap().to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = authority.acceptor_as_authority();
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(acceptor.accept(stream).await);
        }
    });
    let asked = command(["job", "status", "--address", &url, "--ca-cert", &ca]);
    let asked = with_input(asked, b"").await;
    asked.said(3, &["the certificate that it presents is that of a certificate authority"]);
    assert!(!asked.stderr.contains("OtherError"), "{}", asked.stderr);
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_need_a_certificate_where_that_is_said() {
    let certificates = Certificates::new();
    let open = Open::start(&certificates.block("verify_https_client = true")).await;
    let url = format!("https://{}", open.at);
    let asks = async |with: &[(&str, String)]| {
        let ca = certificates.file("ca.pem");
        let mut asked = command(["job", "status", "--address", &url, "--ca-cert", &ca]);
        asked.envs(with.iter().cloned());
        with_input(asked, b"").await
    };
    assert_ne!(asks(&[]).await.code, Some(0));
    let own = [
        ("NOMAD_CLIENT_CERT", certificates.file("client.pem")),
        ("NOMAD_CLIENT_KEY", certificates.file("client-key.pem")),
    ];
    asks(&own).await.said(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_would_be_open_to_other_machines_does_not_start() {
    let data = Home::new();
    let config = data.path().join("agent.hcl");
    std::fs::write(&config, "bind_addr = \"0.0.0.0\"\n").unwrap();
    let agent = AgentProcess::spawn(data, &["--config", config.to_str().unwrap()], |_| {});
    let (ended, _data) = agent.ended().await;
    ended.said(2, &["0.0.0.0", "needs TLS", "acl { enabled = true }"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_command_line_works_with_a_token_and_says_what_it_lacks() {
    let Some(program) = nomad::program() else { return };
    let open = Open::start(TOKENS).await;
    let admin = open.token(&["admin"]).await;
    let asks = async |args: &[&str], token: &str| {
        let mut asked = tokio::process::Command::new(&program);
        asked.args(args).env("NOMAD_ADDR", format!("http://{}", open.at)).env("NOMAD_TOKEN", token);
        with_input(asked, b"").await
    };
    let made = asks(&["acl", "token", "create", "-name=ci", "-policy=read"], &admin).await;
    made.said(0, &[]);
    let secret = made.stdout.lines().find(|line| line.starts_with("Secret ID"));
    let secret = secret.and_then(|line| line.split(" = ").nth(1)).unwrap().trim().to_owned();
    asks(&["acl", "token", "self"], &secret).await.said(0, &[]);
    asks(&["acl", "token", "list"], &admin).await.said(0, &[]);
    asks(&["acl", "policy", "list"], &admin).await.said(0, &[]);
    asks(&["status"], &secret).await.said(0, &[]);
    asks(&["node", "status"], &secret).await.said(0, &[]);
    asks(&["system", "gc"], &secret).await.said(1, &["Permission denied"]);
    asks(&["status"], "").await.said(1, &["Permission denied"]);
}
