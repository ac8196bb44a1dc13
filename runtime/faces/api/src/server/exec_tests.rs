#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use ostler_model::session::ExecSession;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::websocket::config;

/// The size of the buffer between client and agent, bytes.
const ROOM: usize = 1024;

struct Session {
    stdin: DuplexStream,
    stdout: DuplexStream,
    stderr: DuplexStream,
    exited: Option<oneshot::Sender<Result<i32, String>>>,
    client: WebSocketStream<DuplexStream>,
    served: JoinHandle<()>,
}

async fn session() -> Session {
    let (stdin, of_stdin) = tokio::io::duplex(64);
    let (stdout, of_stdout) = tokio::io::duplex(64);
    let (stderr, of_stderr) = tokio::io::duplex(64);
    let (exited, end) = oneshot::channel();
    let command = ExecSession {
        stdin: Box::new(of_stdin),
        stdout: Box::new(of_stdout),
        stderr: Some(Box::new(of_stderr)),
        resize: None,
        end: Box::pin(async move { end.await.unwrap() }),
    };
    let (ours, theirs) = tokio::io::duplex(ROOM);
    let socket = |io, role| WebSocketStream::from_raw_socket(io, role, Some(config()));
    let (server, client) = (socket(ours, Role::Server).await, socket(theirs, Role::Client).await);
    let served = tokio::spawn(async move {
        let (mut writes, mut reads) = server.split();
        let end = carry_frames(command, &mut writes, &mut reads).await;
        close(end, writes, reads).await;
    });
    Session { stdin, stdout, stderr, exited: Some(exited), client, served }
}

impl Session {
    async fn says(&mut self, frame: &str) {
        self.client.send(Message::text(frame)).await.unwrap();
    }

    /// The texts up to the close frame, and that frame.
    async fn hears(&mut self) -> (Vec<String>, CloseCode, String) {
        let mut texts = Vec::new();
        loop {
            match self.client.next().await.unwrap().unwrap() {
                Message::Text(text) => texts.push(text.to_string()),
                Message::Close(Some(CloseFrame { code, reason })) => {
                    return (texts, code, reason.to_string());
                }
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn frames_go_both_ways_as_recorded() {
    let mut session = session().await;
    session.says(r#"{"stdin":{"data":"cXVlc3Rpb24="}}"#).await;
    session.says("{}").await;
    session.says(r#"{"stdin":{"close":true}}"#).await;
    let mut read = String::new();
    session.stdin.read_to_string(&mut read).await.unwrap();
    assert_eq!(read, "question", "and the end of it");
    session.stdout.write_all(b"out\n/\n").await.unwrap();
    let first = session.client.next().await.unwrap().unwrap();
    assert_eq!(first, Message::text(r#"{"stdout":{"data":"b3V0Ci8K"}}"#));
    session.stderr.write_all(b"err\n").await.unwrap();
    let second = session.client.next().await.unwrap().unwrap();
    assert_eq!(second, Message::text(r#"{"stderr":{"data":"ZXJyCg=="}}"#));
    session.stderr.shutdown().await.unwrap();
    let third = session.client.next().await.unwrap().unwrap();
    assert_eq!(third, Message::text(r#"{"stderr":{"close":true}}"#));
    session.stdout.shutdown().await.unwrap();
    session.exited.take().unwrap().send(Ok(3)).unwrap();
    let (texts, code, reason) = session.hears().await;
    let end = [r#"{"stdout":{"close":true}}"#, r#"{"exited":true,"result":{"exit_code":3}}"#];
    assert_eq!(
        (texts.as_slice(), code, reason.as_str()),
        (&end.map(str::to_owned)[..], CloseCode::Normal, "")
    );
    assert!(session.client.next().await.is_none(), "the connection ends");
    session.served.await.unwrap();
}

#[tokio::test]
async fn what_is_no_frame_ends_the_command_with_a_reason() {
    let large = format!(r#"{{"stdin":{{"data":"{}"}}}}"#, "A".repeat(EXEC_FRAME_BYTES_MAX));
    for (frame, wanted, text) in [
        ("ls", CloseCode::Policy, "must be JSON"),
        (r#"{"stdin":{"data":"?"}}"#, CloseCode::Policy, "Base64"),
        (&*large, CloseCode::Size, "131072 bytes"),
    ] {
        let mut session = session().await;
        let (mut writes, mut reads) = session.client.split();
        // The agent may not read all of it.
        let frame = frame.to_owned();
        let saying = tokio::spawn(async move { writes.send(Message::text(frame)).await });
        let Message::Close(Some(ended)) = reads.next().await.unwrap().unwrap() else {
            panic!("it is closed");
        };
        assert_eq!(ended.code, wanted, "{ended}");
        assert!(ended.reason.contains(text), "{ended}");
        saying.abort();
        drop((reads, saying.await));
        session.served.await.unwrap();
        assert!(session.exited.as_ref().unwrap().is_closed(), "the command is ended");
        session.stdin.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_reads_nothing_holds_back_what_the_command_prints() {
    let session = session().await;
    let mut stdout = session.stdout;
    let printed = async {
        let mut bytes = 0;
        loop {
            stdout.write_all(&[b'x'; 64]).await.unwrap();
            bytes += 64;
            if bytes > 64 * ROOM {
                return bytes;
            }
        }
    };
    // Long after everything else has had its turn.
    assert_eq!(clock::timeout(Duration::from_secs(600), printed).await, None);
    assert!(!session.served.is_finished(), "it is waited for as long as it is there");
    drop(session.client);
    session.served.await.unwrap();
    assert!(session.exited.as_ref().unwrap().is_closed(), "the command is ended");
}

#[tokio::test(start_paused = true)]
async fn who_has_gone_is_noticed_although_the_command_reads_nothing() {
    let mut session = session().await;
    let data = r#"{"stdin":{"data":"cXVlc3Rpb24gYW5kIG1vcmUgb2YgaXQ="}}"#;
    // Only so much fits, because the agent has stopped reading.
    while clock::timeout(Duration::from_millis(10), session.says(data)).await.is_some() {}
    drop(session.client);
    clock::timeout(2 * EXEC_SIGN_PERIOD, session.served).await.unwrap().unwrap();
    assert!(session.exited.as_ref().unwrap().is_closed(), "the command is ended");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_ends_the_command_at_once() {
    let session = session().await;
    drop(session.client);
    clock::timeout(Duration::from_secs(1), session.served).await.unwrap().unwrap();
    assert!(session.exited.as_ref().unwrap().is_closed());
}

#[test]
fn the_query_is_read_as_nomads_client_writes_it() {
    let read = |query: &str| ExecQuery::read("id".to_owned(), &Params::parse(query));
    let recorded = "command=%5B%22%2Fbin%2Fsh%22%2C%22-c%22%2C%22echo+out%3B+echo+err+%5Cu003e%5Cu00262\
                    %3B+pwd%3B+exit+3%22%5D&region=global&task=redis&tty=false";
    let wanted = read(recorded).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(wanted.command, ["/bin/sh", "-c", "echo out; echo err >&2; pwd; exit 3"]);
    assert_eq!((wanted.task.as_str(), wanted.tty, wanted.handshake), ("redis", false, false));
    let other = read("command=null&tty=true&ws_handshake=true").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((other.command.len(), other.tty, other.handshake), (0, true, true));
    for wrong in ["", "command=ls", "command=[1]", "command=[]&tty=7", "command={}"] {
        assert_eq!(read(wrong).err().unwrap().status(), 400, "{wrong}");
    }
}

#[test]
fn a_refusal_closes_with_nomads_codes_and_a_short_reason() {
    let code = |status| match SessionEnd::refused("x".repeat(200), status) {
        SessionEnd::Closed(code, reason) => {
            assert!(reason.len() <= 123, "{reason}");
            u16::from(code)
        }
        SessionEnd::Gone => panic!("it is told"),
    };
    assert_eq!((code(500), code(404), code(400), code(403)), (1011, 1008, 1008, 1008));
}
