//! Commands inside tasks of an agent without servers: `ostler alloc exec`, the frames, and the stock command line
//! where `NOMAD_BIN` names it.

use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::StatusCode;
use ostler_agent::Agent;
use ostler_api::client::{AgentAddress, AgentEndpoint, ApiClient};
use ostler_api::request::encode_part;
use ostler_api::routes::QueryKey;
use ostler_api::routes::endpoints::ExecInAlloc;
use ostler_model::limits::EXEC_SESSIONS_MAX;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::cluster_exec::{PIPES, Terminal};
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::{command, ostler, with_input};
use crate::support::http::{Client, within};
use crate::support::jobs::{SOON_HEALTHY, isolated_shell, lifecycle, shell, wasm, with_guests};
use crate::support::needs::{Need, skipped};
use crate::support::nomad;
use crate::support::system::{eventually, processes_of, runs, until};

const SLEEPS: &str = "exec sleep 600";

fn job(id: &str, tasks: &str) -> String {
    with_guests(&format!("job \"{id}\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {tasks}\n }}\n}}\n"))
}

/// An agent with an allocation of these tasks, which runs.
async fn running(tasks: &str) -> (AgentProcess, String) {
    let agent = AgentProcess::start().await;
    agent.run(&job("j", tasks)).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    (agent, alloc)
}

fn exec(agent: &AgentProcess, args: &[&str]) -> tokio::process::Command {
    let data = agent.data.path().to_str().unwrap();
    command(["alloc", "exec", "--data-dir", data].iter().chain(args))
}

async fn carries_all(agent: &AgentProcess, alloc: &str, isolated: bool) {
    let run = async |args: &[&str], input: &[u8]| with_input(exec(agent, args), input).await;
    let script = "read line; echo out $line; echo err >&2; exit 7";
    let ended = run(&[alloc, "/bin/sh", "-c", script], b"hello\n").await;
    let all = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
    assert_eq!(all, (Some(7), "out hello\n", "err\n"));

    // All of a long input and its end, and of a long output.
    let input = "0123456789abcde\n".repeat(200_000);
    let ended = run(&[&alloc[..8], "/usr/bin/wc", "-c"], input.as_bytes()).await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "3200000"), "{ended:#?}");
    let ended = run(&["--task", "t", alloc, "/usr/bin/seq", "300000"], b"").await;
    assert_eq!((ended.code, ended.stdout.lines().count()), (Some(0), 300_000));

    // In the place and with the variables of the task.
    let ended = run(&[alloc, "/bin/sh", "-c", "echo $NOMAD_TASK_NAME; id -u"], b"").await;
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!((lines[0], lines[1] == "0"), ("t", !isolated), "{ended:#?}");

    let ended = run(&["-i=false", alloc, "/bin/cat"], b"unread").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:#?}");
    let ended = run(&["--job", "j", "/bin/sh", "-c", "kill -TERM $$"], b"").await;
    assert_eq!(ended.code, Some(128 + 15), "{ended:#?}");
}

#[tokio::test]
async fn input_both_outputs_and_the_exit_code_are_carried() {
    let (agent, alloc) = running(&shell("t", SLEEPS, "")).await;
    carries_all(&agent, &alloc, false).await;
}

#[tokio::test]
async fn the_same_inside_an_isolated_task() {
    let agent = AgentProcess::start().await;
    let client = Client(agent.data.path().join("ostler.sock"));
    let node = client.get("/v1/nodes").await.json()[0]["ID"].as_str().unwrap().to_owned();
    let node = client.get(&format!("/v1/node/{node}")).await.json();
    if node["Attributes"]["driver.exec.isolation.user"] != "true" {
        return skipped(Need::Isolation, "this node cannot isolate tasks");
    }
    agent.run(&job("j", &isolated_shell("t", SLEEPS, ""))).await.said(0, &[]);
    let alloc = agent.alloc("j").await;
    carries_all(&agent, &alloc, true).await;
}

#[tokio::test]
async fn a_terminal_follows_its_size_takes_ctrl_c_and_is_given_back() {
    let (agent, alloc) = running(&shell("t", SLEEPS, "")).await;
    // Behind a shell, which shows how the terminal is before and after.
    let line = exec(&agent, &["-it", &alloc, "/bin/sh"]);
    let line = line.as_std();
    let words = std::iter::once(line.get_program()).chain(line.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = format!(
        "a=$(stty -g); {}; c=$?; [ \"$a\" = \"$(stty -g)\" ] && echo given back; exit $c",
        words.join(" ")
    );
    let mut shell = tokio::process::Command::new("/bin/sh");
    shell.args(["-c", &script]);
    let mut terminal = Terminal::of(&shell, 31, 97);
    terminal.types("echo first=$(stty size)\r");
    terminal.shows("first=31 97").await;
    terminal.resize(44, 120);
    let size = async || {
        terminal.types("echo now=$(stty size)\r");
        ostler_model::clock::sleep(std::time::Duration::from_millis(200)).await;
        terminal.said().contains("now=44 120")
    };
    until("the new size arrives", size).await;
    // Ctrl-C ends what runs in it and not the shell, nor the command line.
    terminal.types("sh -c 'echo a$((1+1))b; exec sleep 500'; echo after=$?\r");
    terminal.shows("a2b").await;
    terminal.types("\u{3}");
    terminal.types("echo still=$((40+2)); exit 9\r");
    let (code, said) = terminal.ends().await;
    assert!(said.contains("still=42") && said.contains("given back"), "{said:?}");
    assert_eq!(code, Some(9), "{said:?}");
}

#[tokio::test]
async fn the_command_line_says_what_it_cannot_run_and_why() {
    let tasks = [
        shell("init", "exit 0", &lifecycle("prestart", false)),
        shell("main", SLEEPS, ""),
        wasm("guest", "guest:toolbox", &["say-times", "100000", "100"], ""),
    ];
    let (agent, alloc) = running(&tasks.concat()).await;
    let run = async |args: &[&str]| with_input(exec(&agent, args), b"").await;
    let gone = "00000000-0000-4000-8000-000000000000";
    run(&[gone, "/bin/true"]).await.said(2, &["404"]);
    run(&["--task", "other", &alloc, "/bin/true"]).await.said(2, &["has no task other; its tasks"]);
    run(&[&alloc, "/bin/true"]).await.said(2, &["several tasks, name one"]);
    run(&["--job", "other", "/bin/true"]).await.said(2, &["there is no job other"]);
    run(&[&alloc]).await.said(2, &["no command is given"]);
    run(&["-t", &alloc, "/bin/true"]).await.said(2, &["needs a terminal"]);
    run(&["--task", "init", &alloc, "/bin/true"]).await.said(3, &["task init is not running"]);
    run(&["--task", "main", &alloc, "/no/such"]).await.said(3, &["/no/such"]);
    let no_exec = "driver wasm runs no commands inside its tasks";
    run(&["--task", "guest", &alloc, "/bin/true"]).await.said(3, &[no_exec]);
    let long = "x".repeat(20_000);
    run(&["--task", "main", &alloc, "/bin/echo", &long]).await.said(2, &["standard input"]);
    agent.ask(&["job", "stop", "j"]).await.said(0, &[]);
    let ended = run(&["--task", "main", &alloc, "/bin/true"]).await;
    ended.said(3, &["has ended"]);
    run(&["--job", "j", "/bin/true"]).await.said(3, &["no allocation of job j runs"]);
}

#[tokio::test]
async fn nobody_runs_commands_where_the_operator_says_so() {
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    let text =
        "plugin \"raw_exec\" {\n enabled = true\n}\nclient {\n disable_remote_exec = true\n}\n";
    std::fs::write(&config, text).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    agent.run(&job("j", &shell("t", SLEEPS, ""))).await.said(0, &[]);
    let ended = with_input(exec(&agent, &["--job", "j", "/bin/true"]), b"").await;
    ended.said(3, &["Permission denied", "disable_remote_exec"]);
    let alloc = agent.alloc("j").await;
    let refused = Session::open(&agent, &alloc, "t", &["true"], "").await.closes().await;
    assert_eq!(refused.0, 1008, "{refused:?}");
}

/// A session by its frames.
struct Session(WebSocketStream<UnixStream>);

impl Session {
    async fn open(
        agent: &AgentProcess,
        alloc: &str,
        task: &str,
        argv: &[&str],
        more: &str,
    ) -> Self {
        let stream = UnixStream::connect(agent.data.path().join("ostler.sock")).await.unwrap();
        let argv = encode_part(&json!(argv).to_string());
        let path = format!("/v1/client/allocation/{alloc}/exec?task={task}&command={argv}{more}");
        Self(upgraded(stream, &path).await)
    }

    async fn says(&mut self, frame: &str) {
        self.0.send(Message::text(frame)).await.unwrap();
    }

    /// The next frame: text, or the code and the reason of the last one.
    async fn next(&mut self) -> Result<Value, (u16, String)> {
        loop {
            match within(self.0.next()).await.unwrap().unwrap() {
                Message::Text(text) => return Ok(serde_json::from_str(&text).unwrap()),
                Message::Close(Some(end)) => return Err((end.code.into(), end.reason.to_string())),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn closes(&mut self) -> (u16, String) {
        loop {
            if let Err(end) = self.next().await {
                return end;
            }
        }
    }
}

/// The connection after the upgrade, as RFC 6455 says; the key and its answer are those of its example.
async fn upgraded(mut stream: UnixStream, path: &str) -> WebSocketStream<UnixStream> {
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: ostler\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(within(stream.read_u8()).await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    WebSocketStream::from_raw_socket(stream, Role::Client, None).await
}

/// What a stock agent of 1.0.18 was recorded to send for the same command, in `/`.
#[tokio::test]
async fn the_frames_are_those_of_a_stock_agent() {
    let (agent, alloc) = running(&shell("redis", SLEEPS, "")).await;
    let argv = ["/bin/sh", "-c", "cd /; echo out; echo err >&2; pwd; exit 3"];
    let mut session =
        Session::open(&agent, &alloc, "redis", &argv, "&region=global&tty=false").await;
    session.says(r#"{"stdin":{"close":true}}"#).await;
    let (mut out, mut err, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    let end = loop {
        let frame = match session.next().await {
            Ok(frame) => frame,
            Err(end) => break end,
        };
        let data = |name: &str| STANDARD.decode(frame[name]["data"].as_str()?).ok();
        match (data("stdout"), data("stderr")) {
            (Some(bytes), None) => out.extend(bytes),
            (None, Some(bytes)) => err.extend(bytes),
            _ => rest.push(frame),
        }
    };
    assert_eq!((out.as_slice(), err.as_slice()), (&b"out\n/\n"[..], &b"err\n"[..]));
    let exited = json!({ "exited": true, "result": { "exit_code": 3 } });
    assert_eq!(rest.pop(), Some(exited));
    rest.sort_by_key(ToString::to_string);
    let ends = [json!({ "stderr": { "close": true } }), json!({ "stdout": { "close": true } })];
    assert_eq!(rest, ends);
    assert_eq!(end, (1000, String::new()));
}

#[tokio::test]
async fn refusals_come_as_the_reason_of_the_close_or_as_a_status() {
    let (agent, alloc) = running(&shell("t", SLEEPS, "")).await;
    let gone = "00000000-0000-4000-8000-000000000000";
    let unknown = format!("Unknown allocation \"{gone}\"");
    let none: [&str; 0] = [];
    for (alloc, task, argv, more, code, reason) in [
        (gone, "t", &["true"][..], "", 1008, unknown.as_str()),
        ("x", "t", &["true"], "", 1008, "Unknown allocation \"x\""),
        (&alloc, "other", &["true"], "", 1008, "unknown task name \"other\""),
        (&alloc, "", &["true"], "", 1008, "must provide task name"),
        (&alloc, "t", &none, "", 1008, "command is not present"),
        (&alloc, "t", &["/no/such"], "", 1011, "/no/such"),
    ] {
        let end = Session::open(&agent, alloc, task, argv, more).await.closes().await;
        assert_eq!(end.0, code, "{task} {argv:?}: {}", end.1);
        assert!(end.1.contains(reason), "{end:?}");
    }
    // As a client in a browser begins.
    let mut session =
        Session::open(&agent, &alloc, "t", &["/bin/echo"], "&ws_handshake=true").await;
    session.says(r#"{"version":1,"auth_token":""}"#).await;
    assert_eq!(session.closes().await, (1000, String::new()));
    let mut session = Session::open(&agent, &alloc, "t", &["/bin/cat"], "&ws_handshake=true").await;
    session.says(r#"{"version":2}"#).await;
    assert_eq!(session.closes().await.0, 1008);
    let mut session = Session::open(&agent, &alloc, "t", &["/bin/cat"], "").await;
    session.says("ls").await;
    assert_eq!(session.closes().await.0, 1008);

    let client = Client(agent.data.path().join("ostler.sock"));
    let path = format!("/v1/client/allocation/{alloc}/exec?task=t&command=");
    for (query, status, text) in [
        ("%5B%22ls%22%5D", StatusCode::UPGRADE_REQUIRED, "WebSocket"),
        ("ls", StatusCode::BAD_REQUEST, "JSON list"),
        ("", StatusCode::BAD_REQUEST, "command"),
        ("%5B%22ls%22%5D&tty=perhaps", StatusCode::BAD_REQUEST, "tty"),
    ] {
        let answer = client.get(&format!("{path}{query}")).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(text), "{}", answer.text());
    }
}

/// Processes of the agent's directory that are there now and were not in `before`.
fn inside(agent: &AgentProcess, before: &[u32]) -> Vec<u32> {
    let now = processes_of(agent.data.path());
    now.into_iter().filter(|pid| !before.contains(pid)).collect()
}

/// A command line that runs something inside the task, begun.
async fn begun(agent: &AgentProcess, alloc: &str) -> tokio::process::Child {
    let mut line = exec(agent, &[alloc, "/bin/sh", "-c", "echo begun; sleep 601 & wait"]);
    line.stdin(Stdio::piped());
    let mut child = line.spawn().unwrap();
    let mut first = [0; 6];
    within(child.stdout.as_mut().unwrap().read_exact(&mut first)).await.unwrap();
    child
}

#[tokio::test]
async fn a_command_ends_with_its_command_line_with_its_task_and_with_the_agent() {
    let (agent, alloc) = running(&shell("t", SLEEPS, "")).await;
    let before = processes_of(agent.data.path());
    let mut child = begun(&agent, &alloc).await;
    assert!(!inside(&agent, &before).is_empty(), "it runs");
    child.kill().await.unwrap();
    eventually("nothing of it is left", || inside(&agent, &before).is_empty()).await;

    // Ctrl-C, where there is no terminal inside.
    let child = begun(&agent, &alloc).await;
    let pid = i32::try_from(child.id().unwrap()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.unwrap(), Signal::INT).unwrap();
    let ended = within(child.wait_with_output()).await.unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("is ended"), "{ended:?}");
    eventually("nothing of it is left", || inside(&agent, &before).is_empty()).await;

    let child = begun(&agent, &alloc).await;
    agent.ask(&["alloc", "restart", &alloc]).await.said(0, &[]);
    let ended = within(child.wait_with_output()).await.unwrap();
    assert_ne!(ended.status.code(), Some(0), "it ends with its task");

    let before = processes_of(agent.data.path());
    let child = begun(&agent, &alloc).await;
    let inside_now = inside(&agent, &before);
    agent.signal(Signal::TERM);
    let ended = within(child.wait_with_output()).await.unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{text}");
    assert!(text.contains("the agent is shutting down") || text.contains("connection"), "{text}");
    let (ended, _home) = agent.ended().await;
    ended.said(0, &["the agent has ended"]);
    assert!(!ended.stderr.contains("requests did not end in time"), "{}", ended.stderr);
    eventually("nothing of it is left", || !inside_now.iter().any(|pid| runs(*pid))).await;
}

#[tokio::test]
async fn only_so_many_commands_run_at_once() {
    let (agent, alloc) = running(&shell("t", SLEEPS, "")).await;
    let socket = agent.data.path().join("ostler.sock");
    let client = ApiClient::new(
        AgentAddress { at: AgentEndpoint::Socket(socket), data_dir: None },
        |_, _| {},
    );
    let request = ExecInAlloc::request([&alloc])
        .with(QueryKey::Task, "t")
        .with(QueryKey::Command, r#"["/bin/cat"]"#);
    let mut sessions = Vec::new();
    for _ in 0..EXEC_SESSIONS_MAX {
        sessions.push(within(client.start_exec(&request)).await.unwrap());
    }
    let refused = within(client.start_exec(&request)).await.err().unwrap().to_string();
    assert!(refused.contains("too many commands inside tasks at once"), "{refused}");
    drop(sessions);
    until("there is room again", async || client.start_exec(&request).await.is_ok()).await;
}

/// The stock command line knows no sockets: each connection goes on to the agent's.
async fn forwarded(agent: &AgentProcess) -> String {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = agent.data.path().join("ostler.sock");
    tokio::spawn(async move {
        loop {
            let (mut theirs, _) = listener.accept().await.unwrap();
            let mut ours = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut theirs, &mut ours).await },
            );
        }
    });
    format!("http://127.0.0.1:{port}")
}

#[tokio::test]
async fn the_stock_command_line_runs_commands_and_shows_why_not() {
    let Some(program) = nomad::program() else { return };
    let tasks = [
        shell("t", SLEEPS, ""),
        shell("init", "exit 0", &lifecycle("prestart", false)),
        wasm("guest", "guest:toolbox", &["say-times", "100000", "100"], ""),
    ];
    let (agent, alloc) = running(&tasks.concat()).await;
    let address = forwarded(&agent).await;
    let stock = |args: &[&str]| {
        let mut command = tokio::process::Command::new(&program);
        command.args(["alloc", "exec"]).args(args).env("NOMAD_ADDR", &address);
        command.kill_on_drop(true);
        command
    };
    let of = |task: &'static str| ["-task", task, PIPES[0], PIPES[1], &*alloc].map(str::to_owned);
    let run = async |task: &'static str, argv: &[&str], input: &[u8]| {
        let words = of(task);
        let words: Vec<&str> =
            words.iter().map(String::as_str).chain(argv.iter().copied()).collect();
        with_input(stock(&words), input).await
    };
    let script = "read line; echo out $line; echo err >&2; exit 7";
    let ended = run("t", &["/bin/sh", "-c", script], b"hello\n").await;
    let all = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
    assert_eq!(all, (Some(7), "out hello\n", "err\n"));
    let input = "0123456789abcde\n".repeat(200_000);
    let ended = run("t", &["/usr/bin/wc", "-c"], input.as_bytes()).await;
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "3200000"), "{ended:#?}");
    let ended = run("t", &["/usr/bin/seq", "300000"], b"").await;
    assert_eq!((ended.code, ended.stdout.lines().count()), (Some(0), 300_000));
    let failed = "failed to exec into task:";
    run("init", &["true"], b"").await.said(1, &[failed, "task init is not running"]);
    run("t", &["/no/such"], b"").await.said(1, &[failed, "/no/such"]);
    run("guest", &["true"], b"").await.said(1, &[failed, "runs no commands inside its tasks"]);
    run("other", &["true"], b"").await.said(1, &["other"]);
    let mut terminal = Terminal::of(&stock(&["-task", "t", "-i", "-t", &alloc, "/bin/sh"]), 31, 97);
    terminal.types("echo first=$(stty size); exit 9\r");
    terminal.shows("first=31 97").await;
    assert_eq!(terminal.ends().await.0, Some(9));
}

#[tokio::test]
async fn a_command_waits_until_the_next_agent_has_taken_the_task_over() {
    let (agent, alloc) = running(&shell("t", SLEEPS, "")).await;
    agent.signal(Signal::KILL);
    let (_, home) = agent.ended().await;
    // Asked while it starts, not when it is ready.
    let agent = AgentProcess::spawn(home, &[], |_| {});
    eventually("it has the data directory", || Agent::holder(agent.data.path()).is_some()).await;
    let dir = agent.data.path().to_str().unwrap();
    let inside = ostler(["alloc", "exec", "--data-dir", dir, &alloc, "echo", "inside"]).await;
    inside.said(0, &[]);
    assert_eq!(inside.stdout, "inside\n");
}
