//! The API with a real agent: followed logs, files, requests to tasks, hang-ups and full houses.

use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::body::Bytes;
use ostler_model::limits::{API_CONNECTIONS_MAX, API_STREAMS_MAX};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::http::{Client, Served, job, within};
use crate::support::jobs::with_guests;
use crate::support::system::until;

/// Says so, then repeats each signal it gets.
const TALKER: &str = "trap 'echo hup' HUP; echo ready; while :; do sleep 0.05; done";

/// The frames of a stream so far.
fn frames(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect()
}

fn decoded(frames: &[Value]) -> String {
    let data = frames.iter().filter_map(|frame| frame["Data"].as_str());
    let bytes: Vec<u8> = data.flat_map(|data| STANDARD.decode(data).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

async fn logs(client: &Client, alloc: &str, more: &str) -> crate::support::http::Answer {
    client.get(&format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&{more}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_followed_from_before_the_first_byte_to_the_end_of_the_task() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.register("web", TALKER).await;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true");
    let mut stream = client.open("GET", &path, Bytes::new()).await;
    assert_eq!(stream.status, StatusCode::OK);
    let mut text = String::new();
    while !decoded(&frames(&text)).contains("ready\n") {
        text.push_str(std::str::from_utf8(&stream.next().await.unwrap()).unwrap());
    }
    let first = frames(&text).into_iter().find(|frame| frame["Data"].is_string()).unwrap();
    assert_eq!(first["File"], "alloc/logs/t.stdout.0");
    assert_eq!(first["Offset"], 6, "after the data");
    assert_eq!(first.as_object().unwrap().len(), 3, "{first}");
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;

    let signalled = client
        .put(
            &format!("/v1/client/allocation/{alloc}/signal"),
            Some(json!({ "Task": "t", "Signal": "SIGHUP" })),
        )
        .await;
    assert_eq!(signalled.json(), json!({ "Index": 0 }));
    while !decoded(&frames(&text)).contains("hup\n") {
        text.push_str(std::str::from_utf8(&stream.next().await.unwrap()).unwrap());
    }
    // Silence is filled with empty frames.
    while frames(&text).last() != Some(&json!({})) {
        text.push_str(std::str::from_utf8(&stream.next().await.unwrap()).unwrap());
    }
    client.send("DELETE", "/v1/job/web", Bytes::new()).await;
    while stream.next().await.is_some() {}
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_begin_and_end_where_they_are_asked_to() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc =
        served.run("web", "echo one; echo two; echo three; while :; do sleep 1; done").await;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true&plain=true");
    let mut all = client.open("GET", &path, Bytes::new()).await;
    assert_eq!(all.headers["content-type"], "text/plain; charset=utf-8");
    all.until("three\n").await;
    drop(all);
    for (more, expected) in [
        ("plain=true", "one\ntwo\nthree\n"),
        ("plain=true&offset=4", "two\nthree\n"),
        ("plain=true&origin=end&offset=6", "three\n"),
        ("plain=true&origin=end&offset=600", "one\ntwo\nthree\n"),
        ("plain=true&offset=600", ""),
    ] {
        assert_eq!(logs(client, &alloc, more).await.text(), expected, "{more}");
    }
    let framed = frames(&logs(client, &alloc, "origin=end&offset=6").await.text());
    assert_eq!((decoded(&framed).as_str(), &framed[0]["Offset"]), ("three\n", &json!(14)));
    let stderr = client.get(&format!("/v1/client/fs/logs/{alloc}?task=t&type=stderr")).await;
    assert_eq!((stderr.status, stderr.text()), (StatusCode::OK, String::new()));

    // The same from the files, when the task is over.
    client.send("DELETE", "/v1/job/web", Bytes::new()).await;
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    assert_eq!(logs(client, &alloc, "plain=true&origin=end&offset=6").await.text(), "three\n");

    for (query, text) in [
        ("task=zzz&type=stdout", "unknown task name \"zzz\""),
        ("task=t&type=both", "type"),
        ("type=stdout", "task"),
        ("task=t&type=stdout&origin=middle", "origin"),
        ("task=t&type=stdout&offset=-1", "offset"),
    ] {
        let answer = client.get(&format!("/v1/client/fs/logs/{alloc}?{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
        assert!(answer.text().contains(text), "{query}: {}", answer.text());
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_restarted_measured_and_its_allocation_stopped() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", TALKER).await;
    let restart = format!("/v1/client/allocation/{alloc}/restart");
    let done = client.put(&restart, Some(json!({ "TaskName": "t" }))).await;
    assert_eq!(done.json(), json!({ "Index": 0 }), "{}", done.text());
    client
        .alloc_when(&alloc, |alloc| {
            let task = &alloc["TaskStates"]["t"];
            task["Restarts"] == 1 && task["State"] == "running"
        })
        .await;
    let unknown = client.put(&restart, Some(json!({ "TaskName": "zzz" }))).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST, "{}", unknown.text());

    let stats = client.get(&format!("/v1/client/allocation/{alloc}/stats")).await;
    assert_eq!(stats.status, StatusCode::OK, "{}", stats.text());
    let task = &stats.json()["Tasks"]["t"]["ResourceUsage"];
    assert!(task["MemoryStats"]["RSS"].as_u64().unwrap() > 0, "{}", stats.text());
    assert_eq!(task["CpuStats"]["Measured"], json!(["Percent"]), "{}", stats.text());
    let stats = client.get(&format!("/v1/client/allocation/{alloc}/stats?task=zzz")).await;
    assert_eq!(stats.status, StatusCode::BAD_REQUEST);

    let stopped = client.put(&format!("/v1/allocation/{alloc}/stop"), None).await;
    assert_eq!(stopped.status, StatusCode::OK, "{}", stopped.text());
    assert_eq!(stopped.index(), stopped.json()["Index"].as_u64().unwrap());
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    let signal = json!({ "Task": "t", "Signal": "SIGHUP" });
    let late = client.put(&format!("/v1/client/allocation/{alloc}/signal"), Some(signal)).await;
    assert!(!late.status.is_success(), "{}", late.text());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_wasm_task_uses_is_told_while_it_runs() {
    let served = Served::start().await;
    let client = &served.client;
    let mut body = job("web", "");
    let task = &mut body["Job"]["TaskGroups"][0]["Tasks"][0];
    let module = with_guests("\"guest:toolbox\"");
    task["Driver"] = json!("wasm");
    task["Config"] = json!({ "module": module.trim_matches('"'), "args": ["sleep", "1000000"] });
    let answer = client.put("/v1/jobs", Some(body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let alloc = answer.json()["Registered"]["Placed"][0].as_str().unwrap().to_owned();
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
    let path = format!("/v1/client/allocation/{alloc}/stats");
    // Its memory is there when its first step was made.
    until("it holds memory", async || {
        let stats = client.get(&path).await.json();
        let usage = &stats["Tasks"]["t"]["ResourceUsage"];
        assert_eq!(usage["CpuStats"]["Measured"], json!(["Percent"]), "{stats}");
        usage["MemoryStats"]["RSS"].as_u64() > Some(65_535)
    })
    .await;
    let stopped = client.put(&format!("/v1/allocation/{alloc}/stop"), None).await;
    assert_eq!(stopped.status, StatusCode::OK, "{}", stopped.text());
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    assert_eq!(client.get(&path).await.json()["Tasks"], json!({}));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_node_uses_is_told() {
    let served = Served::start().await;
    let client = &served.client;
    let stats = client.get("/v1/client/stats").await;
    assert_eq!(stats.status, StatusCode::OK, "{}", stats.text());
    let stats = stats.json();
    assert!(stats["Memory"]["Total"].as_u64() > stats["Memory"]["Used"].as_u64(), "{stats}");
    assert!(stats["CPU"].as_array().unwrap().iter().all(|core| core["Idle"].is_f64()), "{stats}");
    assert!(stats["AllocDirStats"]["Size"].as_u64() > Some(0), "{stats}");
    assert!(stats["Uptime"].as_u64() > Some(0) && stats["Timestamp"].as_u64() > Some(0));
    let node = client.get("/v1/nodes").await.json()[0]["ID"].as_str().unwrap().to_owned();
    let of_node = client.get(&format!("/v1/client/stats?node_id={node}")).await;
    assert_eq!(of_node.status, StatusCode::OK);
    let other = "/v1/client/stats?node_id=ffffffff-0000-4000-8000-000000000000";
    assert_eq!(client.get(other).await.status, StatusCode::NOT_FOUND);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_inside_the_allocation_and_nowhere_else() {
    let served = Served::start().await;
    let client = &served.client;
    let script = "echo hello > local/f; ln -s /etc/passwd local/out; ln -s ../../.. local/up; \
                  ln -s ../secrets local/secret; mkfifo local/pipe; echo ready; exec sleep 600";
    let alloc = served.run("web", script).await;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true&plain=true");
    client.open("GET", &path, Bytes::new()).await.until("ready").await;
    let fs = |what: &str, path: &str| {
        let url = format!("/v1/client/fs/{what}/{alloc}?path={path}");
        let client = client.clone();
        async move { client.get(&url).await }
    };
    let names: Vec<Value> =
        fs("ls", "/").await.json().as_array().unwrap().iter().map(|f| f["Name"].clone()).collect();
    assert_eq!(names, ["alloc", "t"]);
    let first = &fs("ls", "/").await.json()[0];
    let keys: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["Name", "IsDir", "Size", "FileMode", "ModTime", "ContentType"]);
    assert!(first["FileMode"].as_str().unwrap().starts_with('d'), "{first}");
    let stat = fs("stat", "t/local/f").await.json();
    assert_eq!(
        (&stat["Name"], &stat["Size"], &stat["IsDir"]),
        (&json!("f"), &json!(6), &json!(false))
    );
    assert_eq!(fs("stat", "/").await.json()["Name"], json!(alloc));
    let cat = fs("cat", "t/local/f").await;
    assert_eq!(
        (cat.text().as_str(), &cat.headers["x-content-type-options"]),
        ("hello\n", &"nosniff".parse().unwrap())
    );
    assert_eq!(fs("readat", "t/local/f&offset=1&limit=3").await.text(), "ell");
    assert_eq!(fs("readat", "t/local/f&offset=3&limit=-1").await.text(), "lo\n");
    for path in [
        "t/local/out",
        "../../state.redb",
        "t/local/up/state.redb",
        "t/secrets",
        "t/local/secret",
        "t/local/pipe",
        "t/local",
    ] {
        let answer = fs("cat", path).await;
        assert!(!answer.status.is_success(), "{path}: {}", answer.text());
        assert!(!answer.text().contains("root:"), "{path}");
    }
    assert_eq!(fs("cat", "t/nope").await.status, StatusCode::INTERNAL_SERVER_ERROR, "as Nomad");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_hangs_up_gives_its_place_back() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", TALKER).await;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true&plain=true");
    let mut readers = Vec::new();
    for _ in 0..API_STREAMS_MAX {
        let mut reader = client.open("GET", &path, Bytes::new()).await;
        reader.until("ready").await;
        readers.push(reader);
    }
    let full = client.get(&path).await;
    assert_eq!(full.status, StatusCode::SERVICE_UNAVAILABLE, "{}", full.text());
    assert_eq!(client.get("/v1/jobs").await.status, StatusCode::OK, "others are served");
    drop(readers);
    within(async {
        // Nothing is printed meanwhile: the place comes back by the hang-up alone.
        loop {
            let reader = client.open("GET", &path, Bytes::new()).await;
            if reader.status == StatusCode::OK {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_are_told_so_and_served_when_others_leave() {
    let served = Served::start().await;
    let client = &served.client;
    let query = "GET /v1/jobs?index=9000000000000000 HTTP/1.1\r\nHost: ostler\r\n\r\n";
    let mut waiting = Vec::new();
    for _ in 0..API_CONNECTIONS_MAX {
        let mut one = UnixStream::connect(client.socket()).await.unwrap();
        one.write_all(query.as_bytes()).await.unwrap();
        waiting.push(one);
    }
    within(async {
        // Those that are not being answered yet make room.
        while client.get("/v1/jobs").await.status != StatusCode::SERVICE_UNAVAILABLE {
            let mut one = UnixStream::connect(client.socket()).await.unwrap();
            one.write_all(query.as_bytes()).await.unwrap();
            waiting.push(one);
        }
    })
    .await;
    waiting.clear();
    within(async {
        while client.get("/v1/jobs").await.status != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_ask_nothing_keep_nobody_out() {
    let served = Served::start().await;
    let client = &served.client;
    let mut idle = Vec::new();
    for number in 0..2 * API_CONNECTIONS_MAX {
        let mut one = UnixStream::connect(client.socket()).await.unwrap();
        // Some say a little of a request, and never the rest.
        if number % 2 == 0 && one.write_all(b"GET /v1/jobs HTTP/1.1\r\nX: ").await.is_err() {
            continue;
        }
        idle.push(one);
        if number % 100 == 0 {
            assert_eq!(client.get("/v1/jobs").await.status, StatusCode::OK);
        }
    }
    assert_eq!(client.get("/v1/jobs").await.status, StatusCode::OK);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_the_owners_alone_and_goes_with_the_server() {
    let served = Served::start().await;
    let socket = served.client.socket().to_owned();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    served.stop().await;
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_agent_ends_waiting_queries_streams_and_idle_connections() {
    let served = Served::start().await;
    let client = served.client.clone();
    let alloc = served.run("web", TALKER).await;
    let path = format!("/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true&plain=true");
    let mut stream = client.open("GET", &path, Bytes::new()).await;
    stream.until("ready").await;
    let mut idle = accepted(client.socket()).await;
    let mut waiting = accepted(client.socket()).await;
    let query = "GET /v1/jobs?index=9000000000000000 HTTP/1.1\r\nHost: ostler\r\n\r\n";
    waiting.write_all(query.as_bytes()).await.unwrap();
    served.shutdown.cancel();
    assert_eq!(stream.next().await, None);
    within(served.server.stop()).await;
    assert_eq!(within(idle.read(&mut [0; 1])).await.unwrap(), 0);
    // Answered, or not begun when the end came; in both cases over.
    let mut answer = Vec::new();
    let ended = within(waiting.read_to_end(&mut answer)).await;
    assert!(ended.is_err() || answer.is_empty() || answer.starts_with(b"HTTP/1.1 200"));
    served.agent.stop().await;
}

/// A connection that the server has surely taken: it answered on it.
async fn accepted(socket: &std::path::Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(b"GET /v1/regions HTTP/1.1\r\nHost: ostler\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"[\"global\"]") {
        assert_ne!(within(stream.read_buf(&mut answer)).await.unwrap(), 0);
    }
    stream
}
