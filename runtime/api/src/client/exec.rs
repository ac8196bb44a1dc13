//! A command inside a task, over a WebSocket.
//!
//! ```text
//! ApiClient::exec ─► 101 ─┬─► ExecInputs:  ExecSaid ─► agent
//!                         └─► ExecOutputs: agent ─► ExecHeard
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_model::limits::{API_REQUEST_WALL_MAX, CLIENT_GRACE};
use ostler_model::rng::Rng;
use ostler_wire::{ExecBytes, ExecInput, ExecOutput, ExecSize};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Answer, ApiClient, ClientError, RequestName, Trouble, in_time};
use crate::websocket::{VERSION, accepted, config};

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// What is said to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecSaid {
    /// Bytes of its input.
    Bytes(Vec<u8>),
    /// The end of its input.
    End,
    /// Its terminal has another size, characters.
    Resize {
        /// Lines.
        rows: u16,
        /// Characters of a line.
        columns: u16,
    },
    /// Somebody is still there.
    Alive,
}

/// What a command says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecHeard {
    /// Bytes that it printed; of a terminal all of them.
    Stdout(Vec<u8>),
    /// Bytes that it printed as errors.
    Stderr(Vec<u8>),
    /// It has ended, with this exit code.
    Exited(i32),
}

/// The way to a command.
pub struct ExecInputs {
    writes: SplitSink<Socket, Message>,
}

/// The way back. The command ends with these two.
pub struct ExecOutputs {
    reads: SplitStream<Socket>,
    asked: RequestName,
}

impl ApiClient {
    /// Run a command inside a task. `path` is that of the endpoint, with the query.
    ///
    /// # Errors
    /// See [`ClientError`]. What the agent refuses later is an error of the outputs.
    pub async fn exec(&self, path: &str) -> Result<(ExecInputs, ExecOutputs), ClientError> {
        let asked = RequestName::new(&Method::GET, path, self.at());
        let mut key = [0; 16];
        Rng::system().fill(&mut key);
        let key = STANDARD.encode(key);
        let headers = [
            (CONNECTION, "Upgrade"),
            (UPGRADE, "websocket"),
            (SEC_WEBSOCKET_VERSION, VERSION),
            (SEC_WEBSOCKET_KEY, &*key),
        ];
        let begun = async || {
            let sent = self.send_with(&asked, &Method::GET, path, Bytes::new(), &headers);
            let Answer { response, mut connection } = sent.await?;
            let no_session = |why: String| asked.clone().failed(Trouble::NoSession(why));
            let answer = response.headers().get(SEC_WEBSOCKET_ACCEPT);
            let is_answer =
                answer.is_some_and(|it| it.as_bytes() == accepted(key.as_bytes()).as_bytes());
            if response.status() != StatusCode::SWITCHING_PROTOCOLS || !is_answer {
                return Err(no_session(format!("status {}", response.status())));
            }
            let upgrade: OnUpgrade = hyper::upgrade::on(response);
            let upgraded = upgrade.await.map_err(|error| no_session(error.to_string()))?;
            // It has handed the stream over.
            drop(connection.join_next().await);
            Ok(upgraded)
        };
        let limit = API_REQUEST_WALL_MAX + CLIENT_GRACE;
        let upgraded = self.started(async || in_time(limit, &asked, begun()).await).await?;
        let io = TokioIo::new(upgraded);
        let socket = WebSocketStream::from_raw_socket(io, Role::Client, Some(config())).await;
        let (writes, reads) = socket.split();
        Ok((ExecInputs { writes }, ExecOutputs { reads, asked }))
    }
}

impl ExecInputs {
    /// Say something, as soon as the agent takes it. `false`: nobody hears it any more; the outputs say why.
    pub async fn send(&mut self, said: ExecSaid) -> bool {
        // It has texts, numbers and truths alone, which are always JSON.
        let frame = serde_json::to_string(&frame_of(said)).unwrap_or_default();
        self.writes.send(Message::text(frame)).await.is_ok()
    }
}

fn frame_of(said: ExecSaid) -> ExecInput<'static> {
    let stdin = |stdin| ExecInput { stdin: Some(stdin), tty_size: None };
    match said {
        ExecSaid::Bytes(bytes) => {
            stdin(ExecBytes { data: STANDARD.encode(bytes).into(), close: false })
        }
        ExecSaid::End => stdin(ExecBytes { close: true, ..ExecBytes::default() }),
        ExecSaid::Resize { rows, columns } => {
            let size = ExecSize { height: rows.into(), width: columns.into() };
            ExecInput { stdin: None, tty_size: Some(size) }
        }
        ExecSaid::Alive => ExecInput::default(),
    }
}

impl ExecOutputs {
    /// What the command says next, whenever that is.
    ///
    /// # Errors
    /// When the agent refuses the command or ends it, or is not there any more.
    pub async fn next(&mut self) -> Result<ExecHeard, ClientError> {
        loop {
            let frame = match self.reads.next().await {
                Some(Ok(Message::Text(text))) => text,
                Some(Ok(Message::Close(Some(frame)))) if !frame.reason.is_empty() => {
                    return Err(self.failed(Trouble::Ended(frame.reason.to_string())));
                }
                // Answers to a ping, which the library gives.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_))) => continue,
                other => {
                    tracing::debug!(?other, "the session of a command has ended early");
                    return Err(self.failed(Trouble::Cut));
                }
            };
            let heard = serde_json::from_str(&frame).and_then(|frame| heard_in(&frame));
            if let Some(heard) = heard.map_err(|error| self.failed(Trouble::Answer(error)))? {
                return Ok(heard);
            }
        }
    }

    fn failed(&self, trouble: Trouble) -> ClientError {
        self.asked.clone().failed(trouble)
    }
}

/// `None`: the end of a stream, or a sign of life.
fn heard_in(frame: &ExecOutput<'_>) -> Result<Option<ExecHeard>, serde_json::Error> {
    let bytes = |of: &ExecBytes<'_>| {
        let bytes = STANDARD.decode(of.data.as_bytes());
        bytes.map_err(<serde_json::Error as serde::de::Error>::custom)
    };
    Ok(match frame {
        ExecOutput { stdout: Some(out), .. } if !out.close => Some(ExecHeard::Stdout(bytes(out)?)),
        ExecOutput { stderr: Some(err), .. } if !err.close => Some(ExecHeard::Stderr(bytes(err)?)),
        ExecOutput { exited: true, result: Some(result), .. } => {
            Some(ExecHeard::Exited(result.exit_code))
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
            (ExecSaid::Bytes(b"ls\n".to_vec()), r#"{"stdin":{"data":"bHMK"}}"#),
            (ExecSaid::End, r#"{"stdin":{"close":true}}"#),
            (
                ExecSaid::Resize { rows: 24, columns: 80 },
                r#"{"tty_size":{"height":24,"width":80}}"#,
            ),
            (ExecSaid::Alive, "{}"),
        ] {
            assert_eq!(serde_json::to_string(&frame_of(said)).unwrap(), text);
        }
    }

    #[test]
    fn what_is_heard_is_output_or_the_exit_code() {
        let heard = |text: &str| heard_in(&serde_json::from_str(text).unwrap());
        for (text, wanted) in [
            (r#"{"stdout":{"data":"b3V0"}}"#, Some(ExecHeard::Stdout(b"out".to_vec()))),
            (r#"{"stderr":{"data":"ZXJy"}}"#, Some(ExecHeard::Stderr(b"err".to_vec()))),
            (r#"{"stderr":{"close":true}}"#, None),
            ("{}", None),
            (r#"{"exited":true}"#, None),
            (r#"{"exited":true,"result":{"exit_code":3}}"#, Some(ExecHeard::Exited(3))),
        ] {
            assert_eq!(heard(text).unwrap(), wanted, "{text}");
        }
        assert!(heard(r#"{"stdout":{"data":"?"}}"#).is_err());
    }
}
