//! `GET /v1/client/allocation/ID/exec`: a command inside a task, over a WebSocket.
//!
//! ```text
//! query: command, task, tty ─► 101 ─► AgentHandle ─┬─ refused ─► close: 1008 or 1011, and why
//!                                                  ▼
//! client ── frames ──► parse_input ─► SessionInput ──► drive ──► the command
//!        ◄─ frames ─── exec_frame ◄ SessionOutput ──   │
//!        ◄─ close: 1000 ───────────────────────────────┘
//! ```
//! The command ends with its client's connection, and with the API. Queues are short and frames
//! bounded, so a client that reads slowly slows the command down. As in Nomad's agent, a command is
//! refused after the upgrade, because clients show the reason of the close frame.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use ostler_agent::exec::{ExecOrder, ExecRefusal, short_reason};
use ostler_agent::session::{QUEUE_MAX, SessionInput, SessionOutput, drive};
use ostler_model::access::AccessLevel;
use ostler_model::clock;
use ostler_model::limits::{
    EXEC_CLOSE_WALL_MAX, EXEC_FRAME_BYTES_MAX, EXEC_HANDSHAKE_WALL_MAX, EXEC_SIGN_PERIOD,
};
use ostler_model::session::ExecSession;
use ostler_wire::ExecHandshake;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};

use super::access::Access;
use super::admit::access_from_secret;
use super::error::RequestFailure;
use super::exec_frames::{exec_frame, parse_input};
use super::params::Params;
use super::sessions::SessionPlace;
use super::state::{Api, NamedRequest};
use super::websocket::{ClientSocket, PendingUpgrade, UpgradedSocket, start_upgrade};

/// The requested command, as far as the query says it.
struct ExecQuery {
    /// The id of the allocation as it was given.
    alloc: String,
    task: String,
    command: Vec<String>,
    tty: bool,
    /// Whether the client begins with a handshake frame.
    handshake: bool,
    /// The access of the client, as far as the headers of the request say it.
    access: Access,
}

impl ExecQuery {
    /// Whether the client has not yet said who it is.
    fn is_unknown(&self) -> bool {
        self.handshake && !self.access.allow_somewhere(AccessLevel::Operate)
    }

    fn read(alloc: String, params: &Params) -> Result<Self, RequestFailure> {
        let given = params.required("command")?;
        let wanted = "a JSON list of strings, such as [\"ls\",\"-l\"]";
        // Nomad's client sends `null` for an empty command.
        let command: Option<Vec<String>> = serde_json::from_str(given)
            .map_err(|_| RequestFailure::bad_param("command", given, wanted))?;
        let task = params.text("task").unwrap_or_default().to_owned();
        let (tty, handshake) = (params.flag("tty")?, params.flag("ws_handshake")?);
        let (command, access) = (command.unwrap_or_default(), params.access().clone());
        Ok(Self { alloc, task, command, tty, handshake, access })
    }
}

/// `GET /v1/client/allocation/ID/exec`
pub(super) async fn run(
    NamedRequest { api, id, params }: NamedRequest,
    request: Request,
) -> Result<Response, RequestFailure> {
    let wanted = ExecQuery::read(id, &params)?;
    // A client that has not yet said who it is gets a place of another kind, so that it cannot keep
    // out known clients.
    let place = if wanted.is_unknown() {
        let free = Arc::clone(&api.sessions.unknown).try_acquire_owned();
        SessionPlace::Unknown(free.map_err(|_| RequestFailure::TooManyUnknown)?)
    } else {
        SessionPlace::Known(api.sessions.places.take(wanted.access.caller())?)
    };
    let (response, upgrading) = start_upgrade(request)?;
    let session = Arc::clone(&api);
    api.sessions.tasks.spawn(async move { serve(&session, upgrading, wanted, place).await });
    Ok(response)
}

/// Serve one session, from the upgrade to the end of the connection.
async fn serve(api: &Api, upgrading: PendingUpgrade, wanted: ExecQuery, place: SessionPlace) {
    let leaving = api.leaving.cancelled();
    let Some(Some(upgraded)) = api.leaving.run_until_cancelled(upgrading.socket()).await else {
        return;
    };
    // The session counts as a connection of its client until it has ended.
    let UpgradedSocket { socket, hold: _hold } = upgraded;
    let (mut writes, mut reads): (SplitSink<ClientSocket, Message>, _) = socket.split();
    let talked = async {
        match start_session(api, wanted, &mut reads, place).await {
            Ok((session, access, _place)) => {
                tokio::select! {
                    end = carry_frames(session, &mut writes, &mut reads) => end,
                    () = wait_token_ended(&access) => SessionEnd::refused("the token has expired".to_owned(), 403),
                }
            }
            Err(end) => end,
        }
    };
    let end = tokio::select! {
        end = talked => end,
        () = leaving => SessionEnd::Closed(CloseCode::Away, "the agent is shutting down".to_owned()),
    };
    close(end, writes, reads).await;
}

/// How a session ends.
#[derive(Debug, PartialEq, Eq)]
enum SessionEnd {
    /// The client is gone.
    Gone,
    /// The last frame, with its code and reason.
    Closed(CloseCode, String),
}

impl SessionEnd {
    fn done() -> Self {
        Self::Closed(CloseCode::Normal, String::new())
    }

    /// The end of a refused session. As in Nomad's agent, an internal failure has a code of its
    /// own, and everything else has another one.
    fn refused(why: String, status: u16) -> Self {
        tracing::info!(why, "a command inside a task is refused, or cannot go on");
        let code = if status == 500 { CloseCode::Error } else { CloseCode::Policy };
        Self::Closed(code, short_reason(why))
    }
}

impl SessionEnd {
    /// The end of a session whose client was not let in. Only the debug log has it, because no
    /// authorised person is affected.
    fn denied(failure: &RequestFailure) -> Self {
        tracing::debug!(%failure, "a command inside a task is refused");
        Self::Closed(CloseCode::Policy, short_reason(failure.to_string()))
    }
}

impl From<ExecRefusal> for SessionEnd {
    fn from(refusal: ExecRefusal) -> Self {
        Self::refused(refusal.text(), refusal.status())
    }
}

/// Check the request and start the command.
async fn start_session<S: AsyncRead + AsyncWrite + Unpin>(
    api: &Api,
    wanted: ExecQuery,
    reads: &mut SplitStream<WebSocketStream<S>>,
    mut place: SessionPlace,
) -> Result<(ExecSession, Access, SessionPlace), SessionEnd> {
    let unknown = wanted.is_unknown();
    let ExecQuery { alloc, task, command, tty, handshake, mut access } = wanted;
    if handshake {
        let secret = shake_hands(reads).await?;
        access = access_from_secret(api, &access, &secret)
            .map_err(|failure| SessionEnd::denied(&failure))?;
    }
    api.agent.check_exec_allowed()?;
    let asked = ExecOrder::read(&alloc, &task, command, tty)?;
    let view = alloc.parse().ok().and_then(|id| api.agent.control().alloc(id));
    let let_in = match view {
        Some(view) => access.require(AccessLevel::Operate, view.allocation.job.namespace()),
        // An unknown allocation is reported below.
        None => Ok(()),
    };
    let_in.map_err(|failure| SessionEnd::denied(&failure))?;
    if unknown {
        let own = api.sessions.places.take(access.caller());
        place = SessionPlace::Known(own.map_err(|failure| SessionEnd::denied(&failure))?);
    }
    Ok((api.agent.run_exec(asked, Ok(())).await?, access, place))
}

/// Wait until the token of the client no longer counts.
async fn wait_token_ended(access: &Access) {
    match access.bearer() {
        Some(bearer) => bearer.wait_until_ended().await,
        None => std::future::pending().await,
    }
}

/// Read the handshake frame, in which clients in browsers send the secret of a token.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    reads: &mut SplitStream<WebSocketStream<S>>,
) -> Result<String, SessionEnd> {
    let wrong = |why: &str| {
        tracing::debug!(why, "a session could not begin");
        SessionEnd::Closed(CloseCode::Policy, short_reason(format!("no handshake: {why}")))
    };
    let Some(first) = clock::timeout(EXEC_HANDSHAKE_WALL_MAX, next_frame(reads)).await else {
        return Err(wrong("nothing came in time"));
    };
    let handshake: ExecHandshake = serde_json::from_slice(&first?)
        .map_err(|_| wrong("the first frame must be like {\"version\":1}"))?;
    match handshake.version {
        1 => Ok(handshake.auth_token),
        _ => Err(wrong("its version must be 1")),
    }
}

/// Wait for the next frame of the client, whether text or binary.
async fn next_frame<S: AsyncRead + AsyncWrite + Unpin>(
    reads: &mut SplitStream<WebSocketStream<S>>,
) -> Result<Bytes, SessionEnd> {
    loop {
        match reads.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text.into()),
            Some(Ok(Message::Binary(bytes))) => return Ok(bytes),
            // The library answers pings by itself.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) | None => return Err(SessionEnd::Gone),
            Some(Err(Error::Capacity(_))) => {
                let why =
                    format!("a frame has more than {EXEC_FRAME_BYTES_MAX} bytes; send it in parts");
                return Err(SessionEnd::Closed(CloseCode::Size, why));
            }
            Some(Err(Error::Protocol(_) | Error::Utf8(_))) => {
                let why =
                    "the client sent something that is not a WebSocket frame (RFC 6455)".to_owned();
                return Err(SessionEnd::Closed(CloseCode::Protocol, why));
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "the client that ran a command inside a task is gone");
                return Err(SessionEnd::Gone);
            }
        }
    }
}

/// Carry frames both ways until the command has ended or the client is gone, which ends the command.
async fn carry_frames<S: AsyncRead + AsyncWrite + Unpin>(
    session: ExecSession,
    writes: &mut SplitSink<WebSocketStream<S>, Message>,
    reads: &mut SplitStream<WebSocketStream<S>>,
) -> SessionEnd {
    let (inputs, of_inputs) = mpsc::channel::<SessionInput>(QUEUE_MAX);
    let (of_outputs, mut outputs) = mpsc::channel::<SessionOutput>(QUEUE_MAX);
    let told = async {
        loop {
            let said = match clock::timeout(EXEC_SIGN_PERIOD, outputs.recv()).await {
                Some(Some(output)) => Message::text(exec_frame(&output)),
                Some(None) => return Ok::<_, Error>(()),
                // A ping finds out that a client is gone while the command reads nothing.
                None => Message::Ping(Bytes::new()),
            };
            writes.send(said).await?;
        }
    };
    let heard = async {
        loop {
            let frame = match next_frame(reads).await {
                Ok(frame) => frame,
                Err(end) => return end,
            };
            let input = match parse_input(&frame) {
                Ok(input) => input,
                Err(why) => return SessionEnd::refused(why, 400),
            };
            if inputs.send(input).await.is_err() {
                // The command has ended; the other futures report how.
                std::future::pending::<()>().await;
            }
        }
    };
    let driven = async { Ok(drive(session, of_inputs, of_outputs).await) };
    let driven = async { tokio::try_join!(driven, told) };
    tokio::select! {
        done = driven => match done {
            Ok((Ok(()), ())) => SessionEnd::done(),
            Ok((Err(why), ())) => SessionEnd::refused(why, 500),
            Err(_gone) => SessionEnd::Gone,
        },
        end = heard => end,
    }
}

/// Send the close frame, and wait until the client has read it.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    end: SessionEnd,
    mut writes: SplitSink<WebSocketStream<S>, Message>,
    mut reads: SplitStream<WebSocketStream<S>>,
) {
    let SessionEnd::Closed(code, reason) = end else { return };
    let closed = async {
        let frame = CloseFrame { code, reason: reason.into() };
        // An error means that the client is gone.
        if writes.send(Message::Close(Some(frame))).await.is_ok() {
            // Frames under way are dropped, up to the client's own close frame.
            while let Some(Ok(_late)) = reads.next().await {}
        }
    };
    // A client that takes longer may miss the close frame.
    let _in_time = clock::timeout(EXEC_CLOSE_WALL_MAX, closed).await;
}

#[cfg(test)]
#[path = "exec_tests.rs"]
mod tests;
