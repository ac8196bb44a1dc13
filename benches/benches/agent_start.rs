//! From `exec` of an agent on a new data directory until its API answers, until it is ready, and until
//! a WASM job that was sent at the first answer has run; and what an agent without jobs holds.
//!
//! Baseline in the same run: exec of the same program that only prints its version. The parts of one
//! round follow one another, so that a busy machine is as busy for all of them.
//!
//! The agent is this program itself, which has the whole command line; `OSTLER_BIN` names another one.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use ostler_benches::live::own_child;
use ostler_benches::machine::scaled;
use ostler_benches::memory::proportional;
use ostler_benches::percentiles::number;
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::HELLO;
use ostler_model::clock::Stopwatch;
use serde_json::{Value, json};

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const LOOK: Duration = Duration::from_micros(500);
/// After it an agent without jobs is at rest.
const REST: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("agent_start", measured)
}

fn measured(report: &mut Report) {
    let own = || std::env::current_exe().expect("the path of this program");
    let program = std::env::var_os("OSTLER_BIN").map_or_else(own, PathBuf::from);
    println!("program: {}", program.display());
    let dir = report.dir().to_owned();
    let rounds: Vec<Round> = (0..scaled(20, 1))
        .map(|number| round(&program, &dir.join(format!("data-{number}"))))
        .collect();
    let times = |of: fn(&Round) -> Duration| rounds.iter().map(of).collect::<Vec<_>>();
    let [job, _, api, _] = report.times(
        "from exec of an agent on a new data directory",
        [
            ("a WASM job has run", &times(|round| round.job)),
            ("the agent is ready", &times(|round| round.ready)),
            ("the API answers", &times(|round| round.api)),
            ("--version, to its end", &times(|round| round.version)),
        ],
    );
    let held: Vec<f64> = rounds.iter().map(|round| number(round.empty) / 1e6).collect();
    let [held] = report.samples("an agent without jobs, at rest", "MB (PSS)", [("agent", &held)]);
    let promises = &mut report.promises;
    promises.at_most("agent_start_api", api / 1e3, "ms", 100.0);
    promises.at_most("agent_start_wasm_job", job / 1e3, "ms", 300.0);
    promises.at_most("agent_empty_pss", held, "MB", 25.0);
}

/// What one new data directory gave.
struct Round {
    version: Duration,
    api: Duration,
    ready: Duration,
    job: Duration,
    /// Bytes.
    empty: u64,
}

fn round(program: &Path, data: &Path) -> Round {
    let watch = Stopwatch::start();
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    assert!(version.expect("the program runs").success());
    let version = watch.elapsed();

    // Two agents: what the job needs must not count as what an empty one holds.
    let agent = Agent::start(program, &data.with_extension("empty"));
    agent.until("/v1/agent/self", |status, _| status == 200);
    let api = agent.since.elapsed();
    agent.until("/v1/agent/health", |status, _| status == 200);
    let ready = agent.since.elapsed();
    std::thread::sleep(scaled(REST, Duration::ZERO));
    let empty = proportional(agent.child.id()).expect("the agent lives");
    drop(agent);

    let agent = Agent::start(program, data);
    agent.until("/v1/agent/self", |status, _| status == 200);
    let (status, answer) = agent.ask("PUT", "/v1/jobs", &hello()).expect("an answer");
    assert_eq!(status, 200, "{answer}");
    agent.until("/v1/job/hello/allocations", |_, allocs| {
        allocs.pointer("/0/ClientStatus").is_some_and(|status| status == "complete")
    });
    let job = agent.since.elapsed();
    Round { version, api, ready, job, empty }
}

/// A job of one WASM task that ends by itself.
fn hello() -> Value {
    let task = json!({
        "Name": "t",
        "Driver": "wasm",
        "Config": { "module": HELLO },
        "Resources": { "CPU": 10, "MemoryMB": 32 },
    });
    let group = json!({ "Name": "g", "Count": 1, "Tasks": [task] });
    json!({ "Job": { "ID": "hello", "Name": "hello", "Type": "batch", "TaskGroups": [group] } })
}

/// An agent of its own process; ended with this.
struct Agent {
    child: Child,
    socket: PathBuf,
    since: Stopwatch,
}

impl Agent {
    fn start(program: &Path, data: &Path) -> Self {
        let since = Stopwatch::start();
        let child = Command::new(program)
            .args(["agent", "--data-dir"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("the agent starts");
        Self { child, socket: data.join("ostler.sock"), since }
    }

    /// Ask again and again until the answer is as it is wanted.
    fn until(&self, path: &str, wanted: impl Fn(u16, &Value) -> bool) {
        while !self.ask("GET", path, &Value::Null).is_some_and(|(code, body)| wanted(code, &body)) {
            assert!(self.since.elapsed() < PATIENCE, "{path} is not as it is wanted");
            std::thread::sleep(LOOK);
        }
    }

    /// Status and body of one answer; none while nobody listens.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: ostler\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
