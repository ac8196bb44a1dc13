//! A command inside a task, over a WebSocket.
//!
//! ```text
//! ApiClient::start_exec ─► 101 ─┬─► ExecInputs:  ExecInputEvent ─► agent
//!                               └─► ExecOutputs: agent ─► ExecOutputEvent
//! ```

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::StatusCode;
use hyper::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use ostler_model::rng::Rng;
use ostler_wire::{ExecBytes, ExecInput, ExecOutput, ExecSize};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{ApiClient, ClientError, ClientTrouble, RequestName};
use crate::request::{ApiRequest, WebSocketBody};
use crate::websocket::{VERSION, accept_key, config};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Input for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecInputEvent {
    /// Bytes of its standard input.
    Bytes(Vec<u8>),
    /// The end of its standard input.
    End,
    /// The new size of its terminal, characters.
    Resize {
        /// The number of lines.
        rows: u16,
        /// The number of characters in a line.
        columns: u16,
    },
    /// A sign of life from the client.
    Alive,
}

/// Output of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutputEvent {
    /// Bytes of standard output. With a terminal these are all bytes.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// The command has ended with this exit code.
    Exited(i32),
}

/// Sends input to a command.
pub struct ExecInputs {
    writes: SplitSink<Socket, Message>,
}

/// Receives the output of a command. The command ends when both ends are dropped.
pub struct ExecOutputs {
    reads: SplitStream<Socket>,
    asked: RequestName,
}

impl ApiClient {
    /// Run a command inside a task.
    ///
    /// # Errors
    /// See [`ClientError`]. A refusal that comes later is an error of the outputs.
    pub async fn start_exec(
        &self,
        request: &ApiRequest<(), WebSocketBody>,
    ) -> Result<(ExecInputs, ExecOutputs), ClientError> {
        let mut key = [0; 16];
        Rng::system().fill(&mut key);
        let key = STANDARD.encode(key);
        let headers = [
            (CONNECTION, "Upgrade"),
            (UPGRADE, "websocket"),
            (SEC_WEBSOCKET_VERSION, VERSION),
            (SEC_WEBSOCKET_KEY, &*key),
        ];
        let begun = async |name: &RequestName| {
            let answer = self.send_head(request.line(), Bytes::new(), &headers).await?;
            let no_session = |why: String| name.clone().into_error(ClientTrouble::NoSession(why));
            let accepted = answer.headers().get(SEC_WEBSOCKET_ACCEPT);
            let is_answer =
                accepted.is_some_and(|it| it.as_bytes() == accept_key(key.as_bytes()).as_bytes());
            if answer.status() != StatusCode::SWITCHING_PROTOCOLS || !is_answer {
                return Err(no_session(format!("status {}", answer.status())));
            }
            answer.upgrade().await.map_err(|error| no_session(error.to_string()))
        };
        let upgraded = self.ask_when_started(request.line(), Duration::ZERO, begun).await?;
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Client, Some(config())).await;
        let (writes, reads) = socket.split();
        Ok((ExecInputs { writes }, ExecOutputs { reads, asked: self.name(request.line()) }))
    }
}

impl ExecInputs {
    /// Send input as soon as the agent takes it. Returns `false` if the session has ended; the
    /// outputs report why.
    pub async fn send(&mut self, said: ExecInputEvent) -> bool {
        // It has only texts, numbers and truth values, which can always be written as JSON.
        let frame = serde_json::to_string(&input_frame(said)).unwrap_or_default();
        self.writes.send(Message::text(frame)).await.is_ok()
    }
}

fn input_frame(said: ExecInputEvent) -> ExecInput<'static> {
    let stdin = |stdin| ExecInput { stdin: Some(stdin), tty_size: None };
    match said {
        ExecInputEvent::Bytes(bytes) => {
            stdin(ExecBytes { data: STANDARD.encode(bytes).into(), close: false })
        }
        ExecInputEvent::End => stdin(ExecBytes { close: true, ..ExecBytes::default() }),
        ExecInputEvent::Resize { rows, columns } => {
            let size = ExecSize { height: rows.into(), width: columns.into() };
            ExecInput { stdin: None, tty_size: Some(size) }
        }
        ExecInputEvent::Alive => ExecInput::default(),
    }
}

impl ExecOutputs {
    /// Wait for the next output of the command.
    ///
    /// # Errors
    /// When the agent refuses the command or ends it, or is not there any more.
    pub async fn next(&mut self) -> Result<ExecOutputEvent, ClientError> {
        loop {
            let frame = match self.reads.next().await {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Close(Some(frame)))) if !frame.reason.is_empty() => {
                    return Err(self.to_error(ClientTrouble::Ended(frame.reason.to_string())));
                }
                // The library answers pings by itself.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_))) => continue,
                other => {
                    tracing::debug!(?other, "the session of a command has ended early");
                    return Err(self.to_error(ClientTrouble::Cut));
                }
            };
            let heard = serde_json::from_str(&frame).and_then(|frame| parse_output(&frame));
            if let Some(heard) =
                heard.map_err(|error| self.to_error(ClientTrouble::Answer(error)))?
            {
                return Ok(heard);
            }
        }
    }

    fn to_error(&self, trouble: ClientTrouble) -> ClientError {
        self.asked.clone().into_error(trouble)
    }
}

/// The output in a frame. `None` for the end of a stream and for a sign of life.
fn parse_output(frame: &ExecOutput<'_>) -> Result<Option<ExecOutputEvent>, serde_json::Error> {
    let bytes = |of: &ExecBytes<'_>| {
        let bytes = STANDARD.decode(of.data.as_bytes());
        bytes.map_err(<serde_json::Error as serde::de::Error>::custom)
    };
    Ok(match frame {
        ExecOutput { stdout: Some(out), .. } if !out.close => {
            Some(ExecOutputEvent::Stdout(bytes(out)?))
        }
        ExecOutput { stderr: Some(err), .. } if !err.close => {
            Some(ExecOutputEvent::Stderr(bytes(err)?))
        }
        ExecOutput { exited: true, result: Some(result), .. } => {
            Some(ExecOutputEvent::Exited(result.exit_code))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_is_said_is_what_nomads_command_line_says() {
        for (said, text) in [
            (ExecInputEvent::Bytes(b"ls\n".to_vec()), r#"{"stdin":{"data":"bHMK"}}"#),
            (ExecInputEvent::End, r#"{"stdin":{"close":true}}"#),
            (
                ExecInputEvent::Resize { rows: 24, columns: 80 },
                r#"{"tty_size":{"height":24,"width":80}}"#,
            ),
            (ExecInputEvent::Alive, "{}"),
        ] {
            assert_eq!(serde_json::to_string(&input_frame(said)).unwrap(), text);
        }
    }

    #[test]
    fn what_is_heard_is_output_or_the_exit_code() {
        let heard = |text: &str| parse_output(&serde_json::from_str(text).unwrap());
        for (text, wanted) in [
            (r#"{"stdout":{"data":"b3V0"}}"#, Some(ExecOutputEvent::Stdout(b"out".to_vec()))),
            (r#"{"stderr":{"data":"ZXJy"}}"#, Some(ExecOutputEvent::Stderr(b"err".to_vec()))),
            (r#"{"stderr":{"close":true}}"#, None),
            ("{}", None),
            (r#"{"exited":true}"#, None),
            (r#"{"exited":true,"result":{"exit_code":3}}"#, Some(ExecOutputEvent::Exited(3))),
        ] {
            assert_eq!(heard(text).unwrap(), wanted, "{text}");
        }
        assert!(heard(r#"{"stdout":{"data":"?"}}"#).is_err());
    }
}
