//! Commands inside tasks, for people at the other end of a server.
//!
//! ```text
//! request {AllocID, Task, Cmd, Tty} ─► exec_alloc ─► session
//! stream ─ {stdin} {tty_size} {} ─► SessionInput ─► drive ─► SessionOutput ─► {Error, Payload: JSON} ─► stream
//! ```
//! What comes is MessagePack, what goes is JSON in MessagePack, as Nomad's servers hand both on unread.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use ostler_agent::session::{QUEUE_MAX, SessionInput, SessionOutput, drive};
use ostler_cluster::msgpack::{Value, ValueReader};
use ostler_cluster::rpc::{bytes, field, text};
use ostler_cluster::session::Stream;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{
    CLUSTER_EXEC_REASON_BYTES_MAX, CLUSTER_EXEC_SIGN_PERIOD, EXEC_ARGUMENTS_MAX,
};
use ostler_model::session::{ExecCommand, ExecSession, TerminalSize};
use ostler_model::shown::{REST_BYTES_MAX, cut};
use serde_json::json;
use tokio::sync::mpsc;

use super::AskedAgent;
use super::bridge::{later_value, next_value, send, wrapped};

/// The call that this answers.
pub(crate) const METHOD: &str = "Allocations.Exec";

/// What the asker is told, and the status that goes with it.
type Refusal = (String, u16);

/// Answer the call: its header was read and taken.
pub(crate) async fn serve(
    asked_agent: &AskedAgent,
    mut stream: Stream,
    mut reader: ValueReader,
) -> io::Result<()> {
    let request = next_value(&mut stream, &mut reader).await?;
    let session = match asked(&request) {
        _ if !asked_agent.remote_exec => Err((
            "Permission denied: this node lets nobody run commands inside tasks \
             (client { disable_remote_exec })"
                .to_owned(),
            403,
        )),
        Ok(asked) => begin(asked_agent, asked).await,
        Err(refusal) => Err(refusal),
    };
    let session = match session {
        Ok(session) => session,
        Err(refusal) => {
            send(&mut stream, &refused(refusal)).await?;
            return stream.close().await;
        }
    };
    let (mut reads, mut writes) = stream.split();
    let (inputs, of_inputs) = mpsc::channel(QUEUE_MAX);
    let (of_outputs, mut outputs) = mpsc::channel(QUEUE_MAX);
    let told = async {
        loop {
            let said = match clock::timeout(CLUSTER_EXEC_SIGN_PERIOD, outputs.recv()).await {
                Some(Some(output)) => frame(&output),
                Some(None) => return io::Result::Ok(()),
                // A server looks for people who have gone only when it has something for them.
                None => wrapped(Ok(b"{}".to_vec())),
            };
            send(&mut writes, &said).await?;
        }
    };
    let heard = async {
        // An error means that the stream is over, and with it the session.
        while let Ok(value) = later_value(&mut reads, &mut reader).await {
            let Some(input) = input(&value) else {
                tracing::debug!("a command inside a task is told something that is not known");
                break;
            };
            if inputs.send(input).await.is_err() {
                break;
            }
        }
        drop(inputs);
    };
    let driven = async { Ok(drive(session, of_inputs, of_outputs).await) };
    let driven = async { tokio::try_join!(driven, told) };
    let (driven, ()) = tokio::select! {
        done = driven => done?,
        // Never: it goes on waiting once it has heard all.
        () = async { heard.await; std::future::pending().await } => return Ok(()),
    };
    if let Err(why) = driven {
        send(&mut writes, &refused((why, 500))).await?;
    }
    writes.close().await
}

/// As far as who asked can read it; the log has all.
fn refused((why, status): Refusal) -> Value {
    tracing::info!(why, "a command inside a task is refused, or cannot go on");
    let why = match why.len() > CLUSTER_EXEC_REASON_BYTES_MAX {
        true => cut(why, CLUSTER_EXEC_REASON_BYTES_MAX.saturating_sub(REST_BYTES_MAX)),
        false => why,
    };
    wrapped(Err((why, status)))
}

/// What is asked for.
pub(crate) struct Asked {
    alloc: AllocId,
    task: TaskName,
    /// What who asks shows; may be empty.
    token: String,
    argv: Vec<String>,
    terminal: Option<TerminalSize>,
}

pub(crate) fn asked(request: &Value) -> Result<Asked, Refusal> {
    let refused = |text: &str| (text.to_owned(), 400);
    let given = |name| field(request, name).and_then(text).filter(|text| !text.is_empty());
    let alloc = given("AllocID").ok_or_else(|| refused("must provide an allocation ID"))?;
    let unknown = || (format!("Unknown allocation \"{alloc}\""), 404);
    let alloc = alloc.parse().map_err(|_| unknown())?;
    let task = given("Task").ok_or_else(|| refused("must provide task name"))?;
    let task = task.parse().map_err(|_| (format!("unknown task name {task:?}"), 400))?;
    let argv = field(request, "Cmd").and_then(Value::as_array).map(Vec::as_slice);
    let argv = argv.unwrap_or_default();
    if argv.is_empty() {
        return Err(refused("command is not present"));
    }
    if argv.len() > EXEC_ARGUMENTS_MAX {
        let many = argv.len();
        return Err((format!("a command of {many} words; at most {EXEC_ARGUMENTS_MAX}"), 400));
    }
    let words = argv.iter().map(|word| text(word).map(str::to_owned));
    let argv = words.collect::<Option<Vec<_>>>();
    let argv = argv.ok_or_else(|| refused("a word of the command is not text"))?;
    if argv.first().is_some_and(String::is_empty) {
        return Err(refused("the command has no name"));
    }
    let tty = field(request, "Tty").and_then(Value::as_bool).unwrap_or(false);
    let terminal = tty.then(TerminalSize::default);
    let token = given("AuthToken").unwrap_or_default().to_owned();
    Ok(Asked { alloc, task, token, argv, terminal })
}

async fn begin(to: &AskedAgent, asked: Asked) -> Result<ExecSession, Refusal> {
    let Asked { alloc, task, token, argv, terminal } = asked;
    let agent = &to.agent;
    let view = agent.alloc(alloc);
    let view = view.ok_or_else(|| (format!("Unknown allocation \"{alloc}\""), 404))?;
    // Servers have checked that who asks may run commands inside tasks. Whether also on the node itself is
    // for the node to ask.
    let on_node = to.others.may_exec_on_node(&token, view.allocation.job.namespace()).await;
    let command = ExecCommand { argv, terminal, on_node };
    let session = agent.exec_alloc(alloc, &task, command).await;
    session.map_err(|error| (causes::chain(&error), 500))
}

/// `None`: nothing that is known.
pub(crate) fn input(value: &Value) -> Option<SessionInput> {
    // Servers of 1.0 name fields as their program does, not as their JSON does.
    let given = |of: &Value, names: [&str; 2]| {
        let found = names.into_iter().find_map(|name| field(of, name)).cloned();
        found.filter(|found| !found.is_nil())
    };
    if let Some(stdin) = given(value, ["Stdin", "stdin"]) {
        let close = given(&stdin, ["Close", "close"]).and_then(|close| close.as_bool());
        let data = given(&stdin, ["Data", "data"]);
        let data = data.as_ref().and_then(bytes).unwrap_or_default().to_vec();
        return Some(match close {
            Some(true) => SessionInput::End,
            _ => SessionInput::Bytes(data),
        });
    }
    if let Some(size) = given(value, ["TtySize", "tty_size"]) {
        let number = |names| {
            let number = given(&size, names).and_then(|number| number.as_i64());
            u16::try_from(number.unwrap_or_default()).unwrap_or_default()
        };
        let (rows, columns) = (number(["Height", "height"]), number(["Width", "width"]));
        return Some(SessionInput::Resize(TerminalSize { rows, columns }));
    }
    // A sign of life.
    value.is_map().then(|| SessionInput::Bytes(Vec::new()))
}

fn frame(output: &SessionOutput) -> Value {
    let data = |bytes: &[u8]| json!({ "data": BASE64.encode(bytes) });
    let said = match output {
        SessionOutput::Stdout(bytes) => json!({ "stdout": data(bytes) }),
        SessionOutput::StdoutEnd => json!({ "stdout": { "close": true } }),
        SessionOutput::Stderr(bytes) => json!({ "stderr": data(bytes) }),
        SessionOutput::StderrEnd => json!({ "stderr": { "close": true } }),
        SessionOutput::Exited(code) => json!({ "exited": true, "result": { "exit_code": code } }),
    };
    wrapped(Ok(said.to_string().into_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_cluster::rpc::map;

    fn request(fields: &[(&'static str, Value)]) -> Value {
        let alloc = ("AllocID", "8ba85cef-0000-4000-8000-000000000000".into());
        let all = [alloc, ("Task", "web".into()), ("Cmd", Value::Array(vec!["sh".into()]))];
        let given = |name: &str| fields.iter().any(|(one, _)| *one == name);
        map(all.into_iter().filter(|(name, _)| !given(name)).chain(fields.iter().cloned()))
    }

    #[test]
    fn a_request_is_a_command_and_what_is_wrong_with_it_is_said() {
        let asked_for = asked(&request(&[("Tty", true.into())])).unwrap_or_else(|_| panic!());
        assert_eq!(asked_for.argv, ["sh"]);
        assert_eq!(asked_for.terminal, Some(TerminalSize::default()));
        assert_eq!(asked_for.token, "");
        for (wrong, status) in [
            (("AllocID", "".into()), 400),
            (("AllocID", "x".into()), 404),
            (("Task", Value::Nil), 400),
            (("Cmd", Value::Array(Vec::new())), 400),
            (("Cmd", Value::Array(vec![7.into()])), 400),
            (("Cmd", Value::Array(vec!["".into(), "x".into()])), 400),
            (("Cmd", Value::Array(vec!["x".into(); EXEC_ARGUMENTS_MAX + 1])), 400),
        ] {
            let refused = asked(&request(std::slice::from_ref(&wrong))).err().unwrap();
            assert_eq!(refused.1, status, "{wrong:?}: {}", refused.0);
        }
    }

    #[test]
    fn a_reason_is_no_longer_than_the_way_to_who_asked_takes() {
        let said = |why: &str| {
            let frame = refused((why.to_owned(), 500));
            field(field(&frame, "Error").unwrap(), "Message").and_then(text).unwrap().to_owned()
        };
        assert_eq!(said(&"x".repeat(123)), "x".repeat(123));
        for long in [124, 125, 10_000] {
            let cut = said(&"ö".repeat(long));
            assert!(cut.len() <= 123 && cut.starts_with("öö"), "{} bytes", cut.len());
        }
    }

    #[test]
    fn input_sizes_and_signs_of_life_are_told_apart() {
        let stdin = |fields: Vec<(&'static str, Value)>| map([("stdin", map(fields))]);
        let data = stdin(vec![("data", Value::Binary(b"ls\n".to_vec()))]);
        assert_eq!(input(&data), Some(SessionInput::Bytes(b"ls\n".to_vec())));
        assert_eq!(input(&stdin(vec![("close", true.into())])), Some(SessionInput::End));
        let size = map([("tty_size", map([("height", 50.into()), ("width", (-3).into())]))]);
        let wanted = TerminalSize { rows: 50, columns: 0 };
        assert_eq!(input(&size), Some(SessionInput::Resize(wanted)));
        assert_eq!(input(&map([] as [(&str, Value); 0])), Some(SessionInput::Bytes(Vec::new())));
        assert_eq!(input(&Value::Nil), None);
    }

    /// As a server of 1.0.18 sends them.
    #[test]
    fn input_is_read_in_the_names_that_servers_use() {
        let unused = || {
            let nothing = map([] as [(&str, Value); 0]);
            vec![("XXX_NoUnkeyedLiteral", nothing), ("XXX_sizecache", 0.into())]
        };
        let frame = |stdin: Value, size: Value| {
            let fields = [("Setup", Value::Nil), ("Stdin", stdin), ("TtySize", size)];
            map(fields.into_iter().chain(unused()))
        };
        let stdin = |close: bool, data: Value| {
            map([("Close", close.into()), ("Data", data)].into_iter().chain(unused()))
        };
        let typed = frame(stdin(false, "hello\n".into()), Value::Nil);
        assert_eq!(input(&typed), Some(SessionInput::Bytes(b"hello\n".to_vec())));
        let end = frame(stdin(true, Value::Nil), Value::Nil);
        assert_eq!(input(&end), Some(SessionInput::End));
        let size = map([("Height", 31.into()), ("Width", 97.into())].into_iter().chain(unused()));
        let wanted = TerminalSize { rows: 31, columns: 97 };
        assert_eq!(input(&frame(Value::Nil, size)), Some(SessionInput::Resize(wanted)));
        let alive = frame(Value::Nil, Value::Nil);
        assert_eq!(input(&alive), Some(SessionInput::Bytes(Vec::new())));
    }

    #[test]
    fn output_is_json_that_the_command_line_reads() {
        let payload = |output| {
            let frame = frame(&output);
            let payload = field(&frame, "Payload").and_then(bytes).unwrap().to_vec();
            String::from_utf8(payload).unwrap()
        };
        let out = payload(SessionOutput::Stdout(b"hi".to_vec()));
        assert_eq!(out, r#"{"stdout":{"data":"aGk="}}"#);
        let end = payload(SessionOutput::Exited(3));
        assert_eq!(end, r#"{"exited":true,"result":{"exit_code":3}}"#);
    }
}
