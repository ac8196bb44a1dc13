//! Runs commands inside tasks for clients of a server.
//!
//! ```text
//! request {AllocID, Task, Cmd, Tty} ─► exec_alloc ─► session
//! stream ─ {stdin} {tty_size} {} ─► SessionInput ─► drive ─► SessionOutput ─► {Error, Payload: JSON} ─► stream
//! ```
//! Input is MessagePack, output is JSON in MessagePack, because Nomad's servers forward both
//! unread.

use std::io;
use std::sync::Arc;

use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use ostler_agent::exec::{ExecOrder, ExecRefusal, short_reason};
use ostler_agent::session::{QUEUE_MAX, SessionInput, SessionOutput, drive};
use ostler_api::server::exec_frame;
use ostler_cluster::msgpack::{Value, ValueReader};
use ostler_cluster::rpc::{bytes, field, text};
use ostler_cluster::session::Stream;
use ostler_model::clock;
use ostler_model::limits::{EXEC_SESSIONS_MAX, EXEC_SIGN_PERIOD};
use ostler_model::session::{ExecSession, TerminalSize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::ServerCallContext;
use super::bridge::{later_value, next_value, send, wrap_piece};

/// The method that this module answers.
pub(crate) const METHOD: &str = "Allocations.Exec";

/// The places of commands that come through servers, on any connection. Commands of the node's own
/// API, checks and templates do not count.
#[derive(Debug)]
pub(crate) struct Commands(Arc<Semaphore>);

impl Default for Commands {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(EXEC_SESSIONS_MAX)))
    }
}

impl Commands {
    /// Take a place for a command; it is free again when the permit is dropped.
    fn take(&self) -> Result<OwnedSemaphorePermit, ExecRefusal> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| ExecRefusal::TooMany)
    }
}

/// Answer the call, whose header was read and accepted.
pub(crate) async fn serve(
    asked_agent: &ServerCallContext,
    mut stream: Stream,
    mut reader: ValueReader,
) -> io::Result<()> {
    let request = next_value(&mut stream, &mut reader).await?;
    let session = match parse_request(&request) {
        Ok(asked) => start_command(asked_agent, asked).await,
        Err(refusal) => asked_agent.agent.check_exec_allowed().and(Err(refusal)),
    };
    let (session, _place) = match session {
        Ok(session) => session,
        Err(refusal) => {
            send(&mut stream, &refusal_value(refusal.text(), refusal.status())).await?;
            return stream.close().await;
        }
    };
    let (mut reads, mut writes) = stream.split();
    let (inputs, of_inputs) = mpsc::channel(QUEUE_MAX);
    let (of_outputs, mut outputs) = mpsc::channel(QUEUE_MAX);
    let told = async {
        loop {
            let said = match clock::timeout(EXEC_SIGN_PERIOD, outputs.recv()).await {
                Some(Some(output)) => frame(&output),
                Some(None) => return io::Result::Ok(()),
                // A server notices that a client is gone only when it has something to send to it.
                None => wrap_piece(Ok(b"{}".to_vec())),
            };
            send(&mut writes, &said).await?;
        }
    };
    let heard = async {
        // An error means that the stream has ended, and the session with it.
        while let Ok(value) = later_value(&mut reads, &mut reader).await {
            let Some(input) = parse_input(&value) else {
                tracing::debug!("a command inside a task was sent an unknown message");
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
        // This never completes: it waits for ever once all input is read.
        () = async { heard.await; std::future::pending().await } => return Ok(()),
    };
    if let Err(why) = driven {
        send(&mut writes, &refusal_value(why, 500)).await?;
    }
    writes.close().await
}

/// The answer to a refused call, with a short reason; the log has the whole one.
fn refusal_value(why: String, status: u16) -> Value {
    tracing::info!(why, "a command inside a task is refused, or cannot go on");
    wrap_piece(Err((short_reason(why), status)))
}

/// A request to run a command.
pub(crate) struct ExecCall {
    exec: ExecOrder,
    /// The token of the caller; may be empty.
    token: String,
}

pub(crate) fn parse_request(request: &Value) -> Result<ExecCall, ExecRefusal> {
    let given = |name| field(request, name).and_then(text).unwrap_or_default();
    let argv = field(request, "Cmd").and_then(Value::as_array).map(Vec::as_slice);
    let words = argv.unwrap_or_default().iter().map(|word| text(word).map(str::to_owned));
    let argv = words.collect::<Option<Vec<_>>>().ok_or(ExecRefusal::NotText)?;
    let tty = field(request, "Tty").and_then(Value::as_bool).unwrap_or(false);
    let exec = ExecOrder::read(given("AllocID"), given("Task"), argv, tty)?;
    Ok(ExecCall { exec, token: given("AuthToken").to_owned() })
}

/// Start the command. Returns its session and its place.
async fn start_command(
    to: &ServerCallContext,
    asked: ExecCall,
) -> Result<(ExecSession, OwnedSemaphorePermit), ExecRefusal> {
    let ExecCall { exec, token } = asked;
    let agent = &to.agent;
    agent.check_exec_allowed()?;
    // The place is taken before servers are asked, so that calls that wait for their answer count
    // too.
    let place = to.commands.take()?;
    let view = agent.control().alloc(exec.alloc);
    let view = view.ok_or_else(|| ExecRefusal::UnknownAlloc(exec.alloc.to_string()))?;
    // Servers have checked that the caller may run commands inside tasks. The node must ask whether
    // it may do so in tasks that see the node's own files.
    let on_node = to.others.may_exec_on_node(&token, view.allocation.job.namespace()).await;
    Ok((agent.run_exec(exec, on_node).await?, place))
}

/// Parse input for a command. `None` if it cannot be read.
pub(crate) fn parse_input(value: &Value) -> Option<SessionInput> {
    // Servers of version 1.0 use the field names of their program, not those of their JSON.
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
    wrap_piece(Ok(exec_frame(output).into_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_cluster::rpc::map;
    use ostler_model::limits::COMMANDS_INSIDE_MAX;

    fn request(fields: &[(&'static str, Value)]) -> Value {
        let alloc = ("AllocID", "8ba85cef-0000-4000-8000-000000000000".into());
        let all = [alloc, ("Task", "web".into()), ("Cmd", Value::Array(vec!["sh".into()]))];
        let given = |name: &str| fields.iter().any(|(one, _)| *one == name);
        map(all.into_iter().filter(|(name, _)| !given(name)).chain(fields.iter().cloned()))
    }

    #[test]
    fn a_request_is_a_command_and_what_is_wrong_with_it_is_said() {
        let asked_for =
            parse_request(&request(&[("Tty", true.into())])).unwrap_or_else(|_| panic!());
        assert_eq!(asked_for.exec.argv, ["sh"]);
        assert_eq!(asked_for.exec.terminal, Some(TerminalSize::default()));
        assert_eq!(asked_for.token, "");
        for (wrong, status) in [
            (("AllocID", "".into()), 400),
            (("AllocID", "x".into()), 404),
            (("Task", Value::Nil), 400),
            (("Cmd", Value::Array(Vec::new())), 400),
            (("Cmd", Value::Array(vec![7.into()])), 400),
            (("Cmd", Value::Array(vec!["".into(), "x".into()])), 400),
        ] {
            let refused = parse_request(&request(std::slice::from_ref(&wrong))).err().unwrap();
            assert_eq!(refused.status(), status, "{wrong:?}: {refused}");
        }
    }

    #[test]
    fn servers_have_a_share_of_the_commands_inside_tasks_and_no_more() {
        let commands = Commands::default();
        let mut held: Vec<_> = (0..EXEC_SESSIONS_MAX).map(|_| commands.take().unwrap()).collect();
        let refused = commands.take().unwrap_err();
        assert_eq!(refused.status(), 429);
        assert!(refused.text().contains("end one and try again"), "{refused}");
        // The commands of the operator, of all other callers of the API, and of a check find room
        // all the same.
        assert!(held.len() + 2 * EXEC_SESSIONS_MAX < COMMANDS_INSIDE_MAX);
        held.pop();
        assert!(commands.take().is_ok());
    }

    #[test]
    fn input_sizes_and_signs_of_life_are_told_apart() {
        let stdin = |fields: Vec<(&'static str, Value)>| map([("stdin", map(fields))]);
        let data = stdin(vec![("data", Value::Binary(b"ls\n".to_vec()))]);
        assert_eq!(parse_input(&data), Some(SessionInput::Bytes(b"ls\n".to_vec())));
        assert_eq!(parse_input(&stdin(vec![("close", true.into())])), Some(SessionInput::End));
        let size = map([("tty_size", map([("height", 50.into()), ("width", (-3).into())]))]);
        let wanted = TerminalSize { rows: 50, columns: 0 };
        assert_eq!(parse_input(&size), Some(SessionInput::Resize(wanted)));
        assert_eq!(
            parse_input(&map([] as [(&str, Value); 0])),
            Some(SessionInput::Bytes(Vec::new()))
        );
        assert_eq!(parse_input(&Value::Nil), None);
    }

    /// The values as a server of version 1.0.18 sends them.
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
        assert_eq!(parse_input(&typed), Some(SessionInput::Bytes(b"hello\n".to_vec())));
        let end = frame(stdin(true, Value::Nil), Value::Nil);
        assert_eq!(parse_input(&end), Some(SessionInput::End));
        let size = map([("Height", 31.into()), ("Width", 97.into())].into_iter().chain(unused()));
        let wanted = TerminalSize { rows: 31, columns: 97 };
        assert_eq!(parse_input(&frame(Value::Nil, size)), Some(SessionInput::Resize(wanted)));
        let alive = frame(Value::Nil, Value::Nil);
        assert_eq!(parse_input(&alive), Some(SessionInput::Bytes(Vec::new())));
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
