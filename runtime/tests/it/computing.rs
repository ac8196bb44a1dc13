//! What strangers make an agent compute: others are answered meanwhile, it ends when nobody waits for it, and it keeps
//! no agent from ending.

use std::time::Duration;

use ostler_model::clock::{self, Stopwatch};
use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::agent_process::AgentProcess;
use crate::support::http::within;
use crate::support::system::until;

/// Expressions that take as long as those of one file may, each: patterns, and hashes that are slow on purpose.
const DEAR: [&str; 2] = [
    r#"jsonencode([for j in range(1000) : [for i in range(1000) : regex_replace("a", "\\p{L}{20}${i}x${j}", "")]])"#,
    r#"jsonencode([for j in range(1000) : bcrypt("a${j}", 4)])"#,
];

/// An answer is late after that, which is far more than it takes on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn send(agent: &AgentProcess, method: &str, path: &str, body: &str) -> UnixStream {
    let socket = agent.data.path().join(ostler_api::SOCKET_NAME);
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

/// Ask for one of the expressions, and wait for nothing.
async fn attack(agent: &AgentProcess, number: usize) -> UnixStream {
    let expression = DEAR[number % DEAR.len()];
    let job = format!("job \"x\" {{\n meta {{\n  a = {expression}\n }}\n}}\n");
    send(agent, "PUT", "/v1/jobs/parse", &json!({ "JobHCL": job }).to_string()).await
}

/// Ticks of the processor that the threads which compute for requests have had.
fn computed(agent: &AgentProcess) -> u64 {
    let mut ticks = 0;
    for thread in std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(')').unwrap();
        if name.ends_with("(ostler-computin") {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    ticks
}

async fn answered_at_once(agent: &AgentProcess) {
    let watch = Stopwatch::start();
    let mut stream = send(agent, "GET", "/v1/agent/self", "").await;
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(watch.elapsed() < AT_ONCE, "{:?}", watch.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_answered_while_dear_files_are_read_which_ends_with_those_who_ask() {
    let agent = AgentProcess::start().await;
    let mut attackers = Vec::new();
    for number in 0..4 {
        attackers.push(attack(&agent, number).await);
    }
    until("they are read", async || computed(&agent) > 20).await;
    for _ in 0..5 {
        answered_at_once(&agent).await;
    }
    drop(attackers);
    until("nobody computes any more", async || {
        let before = computed(&agent);
        clock::sleep(Duration::from_millis(300)).await;
        computed(&agent) == before
    })
    .await;
    // What is small is read as ever.
    let mut stream = send(
        &agent,
        "PUT",
        "/v1/jobs/parse",
        &json!({ "JobHCL": "job \"x\" {\n group \"g\" {\n task \"t\" {\n driver = \"exec\"\n }\n }\n}\n" })
            .to_string(),
    )
    .await;
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_hold_a_large_job_are_written_apart_and_others_are_answered_meanwhile() {
    let agent = AgentProcess::start().await;
    let value = "v".repeat(100);
    let keys: String = (0..900).map(|n| format!("K{n} = \"{value}\"\n")).collect();
    let config = "driver = \"mock_driver\"\n config {\n run_for = \"1h\"\n }";
    let tasks = (0..5).map(|n| format!("task \"t{n}\" {{\n {config}\n env {{\n{keys}}}\n }}\n"));
    let tasks: String = tasks.collect();
    let job = format!("job \"large\" {{\n group \"g\" {{\n count = 0\n {tasks} }}\n}}\n");
    let file = agent.data.path().join("large.hcl");
    std::fs::write(&file, job).unwrap();
    agent.ask(&["job", "run", "--detach", file.to_str().unwrap()]).await.said(0, &[]);
    let before = computed(&agent);
    let mut readers = Vec::new();
    for path in ["/v1/job/large", "/v1/job/large/versions", "/v1/job/large?pretty"].repeat(8) {
        readers.push(send(&agent, "GET", path, "").await);
    }
    until("they are written", async || computed(&agent) > before + 5).await;
    for _ in 0..3 {
        answered_at_once(&agent).await;
    }
    let mut answer = Vec::new();
    within(readers.remove(0).read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.len() > 200_000, "{}", answer.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_ends_while_dear_files_are_read() {
    let agent = AgentProcess::start().await;
    let mut attackers = Vec::new();
    for number in 0..8 {
        attackers.push(attack(&agent, number).await);
    }
    until("they are read", async || computed(&agent) > 20).await;
    let watch = Stopwatch::start();
    agent.signal(Signal::TERM);
    let (ended, _data) = within(agent.ended()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Requests under way have five seconds.
    assert!(watch.elapsed() < 4 * AT_ONCE, "{:?}", watch.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_rendered_no_further_when_its_job_is_purged() {
    let agent = AgentProcess::start().await;
    // As much as its steps allow: about a minute where nothing is optimised.
    let template =
        "{{ $x := indent 4000 \"a\" }}{{ range loop 900000 }}{{ $y := sha256Hex $x }}{{ end }}";
    let job = format!(
        "job \"dear\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n command = \"/bin/true\"\n }}\n \
         template {{\n destination = \"local/x\"\n data = <<E\n{template}\nE\n }}\n }}\n }}\n}}\n"
    );
    let idle = cpu(&agent);
    agent.submit(&job).await.said(0, &[]);
    until("it is rendered", async || cpu(&agent) > idle + 100).await;
    agent.ask(&["job", "stop", "--purge", "--detach", "dear"]).await.said(0, &[]);
    until("nothing is computed any more", async || {
        let before = cpu(&agent);
        clock::sleep(Duration::from_millis(500)).await;
        cpu(&agent) < before + 10
    })
    .await;
}

/// Ticks of the processor that the agent has had.
fn cpu(agent: &AgentProcess) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
