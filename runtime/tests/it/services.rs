//! Services: programs that listen on the port the job gave them, and on no other.

use std::net::{SocketAddr, TcpListener};

use ostler_agent::JobHandle;
use ostler_model::task::TaskStatus;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::support::jobs::{assert_successful, exit, groups, wasm, with_guests};
use crate::support::needs::{Need, skipped};
use crate::support::system::{processes_of, runs};
use crate::support::{DataDir, PATIENCE, TestAgent, binary, parse};

const JOBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/jobs");

/// Connect, as soon as somebody listens.
async fn connected(address: &str) -> BufReader<TcpStream> {
    let wait = async {
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return BufReader::new(stream),
                Err(_) => ostler_model::clock::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    };
    let stream = ostler_model::clock::timeout(PATIENCE, wait).await;
    stream.unwrap_or_else(|| panic!("nobody listens on {address}"))
}

async fn ask(stream: &mut BufReader<TcpStream>, line: &str) -> String {
    let exchange = async {
        stream.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).await.unwrap();
        answer.trim_end().to_owned()
    };
    ostler_model::clock::timeout(PATIENCE, exchange).await.expect("an answer")
}

fn address(job: &JobHandle) -> String {
    let port = job.allocs()[0].allocation().ports[0].clone();
    format!("{}:{}", port.host_ip, port.value)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_answers_on_its_dynamic_port_and_ctrl_c_stops_it_in_order() {
    if !std::path::Path::new("/usr/bin/redis-server").exists() {
        return skipped(Need::Redis, "redis-server is not installed (Debian package redis-server)");
    }
    let data = DataDir::new();
    let job = format!("{JOBS}/redis.hcl");
    let data_dir = data.path().to_str().unwrap();
    let mut child =
        binary::command(["run", "--json", "--data-dir", data_dir, &job]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stderr = child.stderr.take().unwrap();
    let placed = ostler_model::clock::timeout(PATIENCE, async {
        loop {
            let line = lines.next_line().await.unwrap().expect("placed before the end");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["type"] == "placed" {
                return line;
            }
        }
    });
    let placed = placed.await.expect("placed in time");
    let port = &placed["ports"][0];
    let redis = format!("{}:{}", port["host_ip"].as_str().unwrap(), port["value"]);
    let mut client = connected(&redis).await;
    assert_eq!(ask(&mut client, "PING").await, "+PONG");
    assert_eq!(ask(&mut client, "SET greeting hello").await, "+OK");
    assert_eq!(ask(&mut client, "GET greeting").await, "$5");

    let pids = processes_of(data.path());
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = Vec::new();
    let ended = ostler_model::clock::timeout(PATIENCE, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            rest.push(serde_json::from_str::<Value>(&line).unwrap());
        }
        child.wait().await.unwrap()
    });
    let status = ended.await.expect("it ends");
    let mut said = String::new();
    stderr.read_to_string(&mut said).await.unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    let last = rest.last().unwrap();
    assert_eq!((&last["type"], &last["exit_code"]), (&"result".into(), &130.into()), "{last}");
    let task = &last["allocs"][0]["state"]["tasks"]["redis"];
    assert_eq!(task["last_exit"]["exit_code"], 0, "redis saved and left by itself: {task}");
    assert_eq!(task["last_exit"]["signal"], 0, "{task}");
    assert!(!pids.is_empty() && !pids.into_iter().any(runs), "nothing of it is left");
    assert!(TcpStream::connect(&redis).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_value_server_serves_on_the_port_of_its_job() {
    let agent = TestAgent::start().await;
    let text = std::fs::read_to_string(format!("{JOBS}/kv.hcl")).unwrap();
    let text = text.replace("\"${job.dir}/../bin/kv-server.wasm\"", "\"guest:kv-server\"");
    let job = agent.handle.submit(parse(&with_guests(&text))).await;
    let job = job.unwrap_or_else(|e| panic!("{e}"));
    let (mut one, mut two) = (connected(&address(&job)).await, connected(&address(&job)).await);
    assert_eq!(ask(&mut one, "PING").await, "PONG");
    assert_eq!(ask(&mut one, "SET colour dark blue").await, "OK");
    assert_eq!(ask(&mut two, "GET colour").await, "VALUE dark blue");
    assert_eq!(ask(&mut two, "DEL colour").await, "OK");
    assert_eq!(ask(&mut one, "GET colour").await, "NONE");
    job.stop("enough").await;
    let result = job.wait().await;
    assert!(result.allocs[0].state.tasks.values().all(|t| t.status == TaskStatus::Dead));
    assert!(TcpStream::connect(address(&job)).await.is_err(), "the port is closed");
    agent.stop().await;
}

/// A port nobody has.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_binds_the_ports_it_was_assigned_and_no_other() {
    let agent = TestAgent::start().await;
    let other = format!("127.0.0.1:{}", free_port());
    let job = |args: &[&str], network: &str| {
        let task = wasm("t", "guest:toolbox", args, "");
        let task = task.replacen("config {", &format!("config {{\n {network}"), 1);
        format!("network {{\n port \"db\" {{}}\n }}\n {task}")
    };
    let listen = "network {\n listen = true\n }";
    let bind = |address: &str, network| job(&["bind", address], network);
    let result = agent.run(&groups([bind("${NOMAD_ADDR_db}", listen)])).await;
    assert_successful(&result);
    assert!(agent.stdout(&result, "t").starts_with("127.0.0.1:"));
    for refused in [
        bind(&other, listen),
        bind("0.0.0.0:${NOMAD_PORT_db}", listen),
        bind("127.0.0.1:0", listen),
        bind("${NOMAD_ADDR_db}", ""),
    ] {
        let result = agent.run(&groups([refused.clone()])).await;
        assert_eq!(exit(&result, "t").exit_code, 1, "{refused}");
        assert_eq!(agent.stdout(&result, "t"), "", "{refused}");
    }
    agent.stop().await;
}

/// Somebody who says a line to everybody who connects.
async fn talker() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"welcome\n").await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_connects_to_what_its_job_names_and_to_nothing_else() {
    let agent = TestAgent::start().await;
    let (named, other) = (talker().await.to_string(), talker().await.to_string());
    let to = |address: &str, network: String| {
        let task = wasm("t", "guest:toolbox", &["connect", address], "");
        task.replacen("config {", &format!("config {{\n {network}"), 1)
    };
    let network = format!("network {{\n connect = [\"{named}\"]\n }}");
    let result = agent.run(&groups([to(&named, network.clone())])).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "welcome\n");
    for refused in [to(&other, network), to(&named, String::new())] {
        let result = agent.run(&groups([refused.clone()])).await;
        assert_eq!(exit(&result, "t").exit_code, 1, "{refused}");
        assert_eq!(agent.stdout(&result, "t"), "", "{refused}");
    }
    agent.stop().await;
}
