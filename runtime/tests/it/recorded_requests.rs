//! What a real agent was asked by its own command line, asked of ours: the same status, the same kind of body,
//! and every field with a type that it had.
//!
//! `recorded_requests.json` has each request of a stock Nomad 1.0.18 to a single-node agent once, by method,
//! path, status and keys of the query, with the shape of its answer: `"string|null"` are the types of a value,
//! `?` says that some answers leave the field out, `["array", SHAPE]` has items of that shape, `"*"` is every
//! value of a map. Values of answers are not kept.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::http::{Client, Served, within};

/// Answers that differ, by the number of their request, and why.
const DIFFERENT: &[(u64, &str)] = &[
    (
        4,
        "of the configuration only what this agent has; the command reads name, address and statistics",
    ),
    (54, "what is no id is the client's mistake, not the server's"),
    (56, "only the servers of a cluster dispatch"),
    (57, "only the servers of a cluster run periodic jobs"),
    (101, "as 54"),
];

/// So many must be alike at least.
const ALIKE_MIN: usize = 95;

/// What else is on the node that a request is about.
struct Scene {
    served: Served,
    /// Values of the names in braces.
    names: BTreeMap<&'static str, String>,
}

fn recorded() -> Vec<Value> {
    serde_json::from_str(include_str!("recorded_requests.json")).unwrap()
}

impl Scene {
    async fn new() -> Self {
        let served = Served::start().await;
        let node = served.client.get("/v1/nodes").await.json();
        let text = |name: &str| node[0][name].as_str().unwrap().to_owned();
        let names = BTreeMap::from([
            ("node", text("ID")),
            ("name", text("Name")),
            ("unknown", "f56549cb-0c47-04f5-7759-de8ec3e1c443".to_owned()),
        ]);
        Self { served, names }
    }

    fn client(&self) -> &Client {
        &self.served.client
    }

    fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.names {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }

    async fn put(&self, path: &str, body: Value) -> Value {
        let answer = self.client().put(path, Some(body)).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    async fn get(&self, path: &str) -> Value {
        self.client().get(path).await.json()
    }

    /// A running allocation of a job, and the deployment that it is of.
    async fn look_up(&mut self, job: &str) {
        let allocs = self.get(&format!("/v1/job/{job}/allocations")).await;
        let runs = |alloc: &&Value| alloc["DesiredStatus"] == "run";
        let newest = allocs.as_array().unwrap().iter().filter(runs);
        let newest = newest.max_by_key(|alloc| alloc["CreateIndex"].as_u64()).unwrap();
        let id = newest["ID"].as_str().unwrap().to_owned();
        self.client().alloc_when(&id, |alloc| alloc["ClientStatus"] == "running").await;
        let deployments = self.get(&format!("/v1/job/{job}/deployments")).await;
        let deployment = deployments[0]["ID"].as_str().unwrap().to_owned();
        self.names.extend([("alloc", id), ("deployment", deployment)]);
    }

    /// What the node was like when this was recorded.
    async fn before(&mut self, seq: u64, body: &Value) {
        match seq {
            16 => self.look_up("example").await,
            22 => self.first_output().await,
            // Another version, whose deployment goes on.
            43 => {
                let all = recorded();
                let mut again = all.iter().find(|one| one["seq"] == 7).unwrap()["body"].clone();
                again["Job"]["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "REV": "2" });
                again["Job"]["Update"]["MinHealthyTime"] = json!(50_000_000_000_u64);
                self.put("/v1/jobs", again).await;
                self.look_up("example").await;
            }
            53 => self.look_up("example").await,
            55 => {
                self.served.run("huge", "exec sleep 600").await;
            }
            59 => self.look_up("example").await,
            // The drain ends, and leaves the node ineligible.
            63 => {
                self.client()
                    .alloc_when(&self.names["alloc"], |a| a["ClientStatus"] == "complete")
                    .await;
            }
            64 => {
                let path = format!("/v1/node/{}/eligibility", self.names["node"]);
                self.put(&path, json!({ "Eligibility": "eligible" })).await;
            }
            78 => self.life().await,
            97 => {
                let path = "/v1/job/example/deployment";
                let id = self.get(path).await["ID"].as_str().unwrap().to_owned();
                let failed = self.client().put(&format!("/v1/deployment/fail/{id}"), None).await;
                // It may have ended by itself.
                assert!(failed.status == 200 || failed.status == 400, "{}", failed.text());
            }
            98 => self.canaries().await,
            99 => self.look_up("example").await,
            _ => {}
        }
        // What is asked of an evaluation is asked of the last one that was made.
        if body["EvalID"].is_string() {
            self.names.insert("eval", body["EvalID"].as_str().unwrap().to_owned());
        }
    }

    async fn first_output(&self) {
        let path = format!(
            "/v1/client/fs/logs/{}?task=redis&type=stdout&follow=true&plain=true",
            self.names["alloc"]
        );
        let mut stream = self.client().open("GET", &path, Bytes::new()).await;
        assert!(stream.next().await.is_some(), "it prints");
    }

    /// A batch job of two tasks.
    async fn life(&self) {
        let task = |name: &str, script: &str| {
            json!({
                "Name": name, "Driver": "raw_exec",
                "Config": { "command": "/bin/sh", "args": ["-c", script] },
                "Resources": { "CPU": 20, "MemoryMB": 32 },
            })
        };
        let mut first = task("init", "true");
        first["Lifecycle"] = json!({ "Hook": "prestart", "Sidecar": false });
        let tasks = json!([first, task("main", "exec sleep 600")]);
        let group = json!({ "Name": "g", "Count": 1, "Tasks": tasks });
        let life = json!({ "Job": {
            "ID": "life", "Name": "life", "Type": "batch", "Datacenters": ["dc1"], "TaskGroups": [group],
        } });
        let placed = self.put("/v1/jobs", life).await["Registered"]["Placed"][0].clone();
        self.client()
            .alloc_when(placed.as_str().unwrap(), |a| a["ClientStatus"] == "running")
            .await;
    }

    /// A job with a canary that is healthy.
    async fn canaries(&mut self) {
        let with = |script: &str| {
            let mut job = crate::support::http::job("careful", script);
            job["Job"]["Update"] = json!({
                "MaxParallel": 1, "Canary": 1, "HealthCheck": "task_states",
                "MinHealthyTime": 10_000_000, "HealthyDeadline": 60_000_000_000_u64,
                "ProgressDeadline": 120_000_000_000_u64,
            });
            job
        };
        let first = self.put("/v1/jobs", with("exec sleep 600")).await;
        let healthy = |alloc: &Value| alloc["DeploymentStatus"]["Healthy"] == true;
        self.client().alloc_when(first["Registered"]["Placed"][0].as_str().unwrap(), healthy).await;
        let second = self.put("/v1/jobs", with("exec sleep 601")).await;
        self.client()
            .alloc_when(second["Registered"]["Placed"][0].as_str().unwrap(), healthy)
            .await;
        let id = self.get("/v1/job/careful/deployment").await["ID"].as_str().unwrap().to_owned();
        self.names.insert("canaries", id);
    }

    /// Ask, and say how the answer differs.
    async fn differences(&mut self, one: &Value) -> Vec<String> {
        let method = one["method"].as_str().unwrap();
        let mut path = self.named(one["path"].as_str().unwrap());
        if let Some(query) = one["query"].as_str() {
            path = format!("{path}?{}", self.named(query));
        }
        let body = &one["body"];
        let body = if body.is_null() { Bytes::new() } else { self.named(&body.to_string()).into() };
        if one["status"] == 101 {
            return upgraded(self.client(), &path).await;
        }
        let mut found = Vec::new();
        let mut stream = self.client().open(method, &path, body).await;
        if stream.status.as_u16() != one["status"] {
            let mut text = String::new();
            if let Some(piece) = stream.next().await {
                text.push_str(&String::from_utf8_lossy(&piece));
            }
            return vec![format!(
                "status is {}, recorded {}: {text}",
                stream.status, one["status"]
            )];
        }
        let kind = stream.headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let plain = |kind: &str| kind.split(';').next().unwrap().to_owned();
        let (ours, theirs) = (kind.as_deref().map(plain), one["type"].as_str().map(plain));
        if theirs.is_some() && ours != theirs && one["status"] == 200 {
            found.push(format!("body is {ours:?}, recorded {theirs:?}"));
        }
        let shape = &one["shape"];
        if shape.is_null() {
            return found;
        }
        let value = if one["kind"] == "frames" {
            first_frame(&mut stream).await
        } else {
            let mut bytes = Vec::new();
            while let Some(piece) = stream.next().await {
                bytes.extend_from_slice(&piece);
            }
            if let Ok(value) = serde_json::from_slice::<Value>(&bytes)
                && value["EvalID"].is_string()
            {
                self.names.insert("eval", value["EvalID"].as_str().unwrap().to_owned());
            }
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        };
        match value {
            Ok(value) => differ("", shape, Some(&value), &mut found),
            Err(error) => found.push(format!("no JSON: {error}")),
        }
        found
    }
}

/// The first frame of a stream that says something.
async fn first_frame(stream: &mut crate::support::http::Stream) -> Result<Value, String> {
    let mut read = Vec::new();
    while let Some(piece) = stream.next().await {
        read.extend_from_slice(&piece);
        let frames = serde_json::Deserializer::from_slice(&read).into_iter::<Value>();
        for frame in frames.map_while(Result::ok) {
            if frame != json!({}) {
                return Ok(frame);
            }
        }
        // Signs of life are all that a quiet log has.
        if read.len() > 2 && read.iter().all(|byte| b"{}\n".contains(byte)) && read.len() >= 4 {
            return Ok(Value::Null);
        }
    }
    Err("it ended without a frame".to_owned())
}

/// A WebSocket is opened.
async fn upgraded(client: &Client, path: &str) -> Vec<String> {
    let mut stream = UnixStream::connect(client.socket()).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: ostler\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 64];
    let count = within(stream.read(&mut head)).await.unwrap();
    let head = String::from_utf8_lossy(&head[..count]).into_owned();
    if head.starts_with("HTTP/1.1 101 ") { Vec::new() } else { vec![format!("no upgrade: {head}")] }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Everything of `shape` that is missing from `ours` or has another type.
fn differ(path: &str, shape: &Value, ours: Option<&Value>, found: &mut Vec<String>) {
    let own = match shape {
        Value::String(own) => own.as_str(),
        Value::Array(parts) => parts[0].as_str().unwrap(),
        Value::Object(fields) => fields[""].as_str().unwrap(),
        _ => panic!("{path}: not a shape"),
    };
    let optional = own.ends_with('?');
    let own = own.trim_end_matches('?');
    let Some(ours) = ours else {
        if !optional {
            found.push(format!("{path} is missing"));
        }
        return;
    };
    let kind = type_of(ours);
    let types: Vec<&str> = own.split('|').collect();
    // Go's clients take an empty list or map for null, and the other way round; of what was recorded as null
    // alone any type may have been meant.
    let empty = kind == "null" && types.iter().any(|one| ["array", "object"].contains(one));
    if types != ["null"] && !types.contains(&kind) && !empty {
        return found.push(format!("{path} is {kind}, recorded as {own}"));
    }
    match (shape, ours) {
        (Value::Array(parts), Value::Array(items)) => {
            for item in items {
                differ(&format!("{path}[]"), &parts[1], Some(item), found);
            }
        }
        (Value::Object(fields), Value::Object(members)) => {
            for (key, field) in fields.iter().filter(|(key, _)| !key.is_empty()) {
                if key == "*" {
                    for (name, value) in members {
                        differ(&format!("{path}.{name}"), field, Some(value), found);
                    }
                } else {
                    differ(&format!("{path}.{key}"), field, members.get(key), found);
                }
            }
        }
        _ => {}
    }
    found.sort();
    found.dedup();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_stock_command_line_asked_of_a_real_agent_is_answered_in_the_same_shapes() {
    let mut scene = Scene::new().await;
    let all = recorded();
    let (mut alike, mut different) = (0, Vec::new());
    for one in &all {
        let seq = one["seq"].as_u64().unwrap();
        scene.before(seq, &Value::Null).await;
        let found = scene.differences(one).await;
        let what = format!("{seq} {} {} {}", one["by"], one["method"], one["path"]);
        if found.is_empty() {
            alike += 1
        } else {
            println!("{what}:\n  {}", found.join("\n  "));
            different.push(seq);
        }
    }
    println!("{alike} of {} recorded requests have the same status and fields", all.len());
    let known: Vec<u64> = DIFFERENT.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(different, known, "each difference has its reason in DIFFERENT");
    assert!(alike >= ALIKE_MIN, "{alike}");
    scene.served.stop().await;
}

#[test]
fn a_field_that_is_missing_or_of_another_type_is_found() {
    let shape = json!({ "": "object", "A": "number", "B": "string?", "C": ["array|null", "bool"] });
    let of = |ours: Value| {
        let mut found = Vec::new();
        differ("", &shape, Some(&ours), &mut found);
        found
    };
    assert_eq!(of(json!({ "A": 1, "C": [true] })), [""; 0]);
    assert_eq!(
        of(json!({ "A": "1", "B": 2, "C": ["x"] })),
        [
            ".A is string, recorded as number",
            ".B is number, recorded as string",
            ".C[] is string, recorded as bool",
        ]
    );
    assert_eq!(of(json!({})), [".A is missing", ".C is missing"]);
}
