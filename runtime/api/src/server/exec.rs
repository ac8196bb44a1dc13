//! `GET /v1/client/allocation/ID/exec`: a command inside a task, over a WebSocket.
//!
//! ```text
//! query: command, task, tty ─► 101 ─► AgentHandle ─┬─ refused ─► close: 1008 or 1011, and why
//!                                                  ▼
//! client ── frames ──► said_in ──► SessionInput ──► drive ──► the command
//!        ◄─ frames ─── exec_frame ◄ SessionOutput ──   │
//!        ◄─ close: 1000 ───────────────────────────────┘
//! ```
//! The command ends with its client's connection, and with the API. Queues are short and frames bounded: who
//! reads slowly holds back what the command prints. As Nomad's agent does, a command is refused after the
//! upgrade: what clients show is the reason of the close.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use ostler_agent::exec::{ExecAsked, ExecRefusal, short_reason};
use ostler_agent::session::{QUEUE_MAX, SessionInput, SessionOutput, drive};
use ostler_model::access::Level;
use ostler_model::clock;
use ostler_model::limits::{
    EXEC_CLOSE_WALL_MAX, EXEC_FRAME_BYTES_MAX, EXEC_HANDSHAKE_WALL_MAX, EXEC_HANDSHAKES_MAX,
    EXEC_SIGN_PERIOD,
};
use ostler_model::session::ExecSession;
use ostler_wire::ExecHandshake;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use tokio_util::task::TaskTracker;

use super::access::{Access, late};
use super::error::Failure;
use super::exec_frames::{exec_frame, said_in};
use super::params::{Asked, Params};
use super::router::Api;
use super::shares::{Share, Shares};
use super::websocket::{ClientSocket, Upgraded, Upgrading, upgrade};

/// The sessions of the API.
pub(super) struct Sessions {
    places: Shares,
    /// Of those whose clients have not said who they are.
    unknown: Arc<Semaphore>,
    /// Their tasks: each outlives the connection that it came by.
    pub tasks: TaskTracker,
}

impl Default for Sessions {
    fn default() -> Self {
        let places = Shares::of_commands();
        let unknown = Arc::new(Semaphore::new(EXEC_HANDSHAKES_MAX));
        Self { places, unknown, tasks: TaskTracker::new() }
    }
}

/// What a session holds until it ends.
enum Place {
    Unknown(#[expect(dead_code, reason = "free again when it is dropped")] OwnedSemaphorePermit),
    Known(#[expect(dead_code, reason = "free again when it is dropped")] Share),
}

/// What is asked for, as far as it can be read.
struct Wanted {
    /// As it was given.
    alloc: String,
    task: String,
    command: Vec<String>,
    tty: bool,
    /// The client begins with a frame of its own.
    handshake: bool,
    /// What the client may do, as far as its request said.
    access: Access,
}

impl Wanted {
    /// May it be anybody's yet?
    fn is_unknown(&self) -> bool {
        self.handshake && !self.access.allow_somewhere(Level::Operate)
    }

    fn read(alloc: String, params: &Params) -> Result<Self, Failure> {
        let given = params.required("command")?;
        let wanted = "a JSON list of texts, like [\"ls\",\"-l\"]";
        // `null` is what Nomad's client makes of an empty command.
        let command: Option<Vec<String>> = serde_json::from_str(given)
            .map_err(|_| Failure::bad_param("command", given, wanted))?;
        let task = params.text("task").unwrap_or_default().to_owned();
        let (tty, handshake) = (params.flag("tty")?, params.flag("ws_handshake")?);
        let (command, access) = (command.unwrap_or_default(), params.access().clone());
        Ok(Self { alloc, task, command, tty, handshake, access })
    }
}

/// `GET /v1/client/allocation/ID/exec`
pub(super) async fn run(
    Asked { api, id, params }: Asked,
    request: Request,
) -> Result<Response, Failure> {
    let wanted = Wanted::read(id, &params)?;
    // Whoever has yet to say who it is has a place of another kind: it must keep out nobody who has.
    let place = match wanted.is_unknown() {
        true => {
            let free = Arc::clone(&api.sessions.unknown).try_acquire_owned();
            Place::Unknown(free.map_err(|_| Failure::TooManyUnknown)?)
        }
        false => Place::Known(api.sessions.places.take(wanted.access.caller())?),
    };
    let (response, upgrading) = upgrade(request)?;
    let session = Arc::clone(&api);
    api.sessions.tasks.spawn(async move { serve(&session, upgrading, wanted, place).await });
    Ok(response)
}

/// One session, from the upgrade to the end of the connection.
async fn serve(api: &Api, upgrading: Upgrading, wanted: Wanted, place: Place) {
    let leaving = api.leaving.cancelled();
    let Some(Some(upgraded)) = api.leaving.run_until_cancelled(upgrading.socket()).await else {
        return;
    };
    // A session is a connection of its client until it has ended.
    let Upgraded { socket, hold: _hold } = upgraded;
    let (mut writes, mut reads): (SplitSink<ClientSocket, Message>, _) = socket.split();
    let talked = async {
        match begin(api, wanted, &mut reads, place).await {
            Ok((session, access, _place)) => {
                tokio::select! {
                    end = talk(session, &mut writes, &mut reads) => end,
                    () = ended(&access) => End::refused("the token has ended".to_owned(), 403),
                }
            }
            Err(end) => end,
        }
    };
    let end = tokio::select! {
        end = talked => end,
        () = leaving => End::Closed(CloseCode::Away, "the agent is leaving".to_owned()),
    };
    close(end, writes, reads).await;
}

/// How a session ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Nobody is there any more.
    Gone,
    /// The last frame: code and reason.
    Closed(CloseCode, String),
}

impl End {
    fn done() -> Self {
        Self::Closed(CloseCode::Normal, String::new())
    }

    /// As Nomad's agent: what fails inside has a code of its own, all else one.
    fn refused(why: String, status: u16) -> Self {
        tracing::info!(why, "a command inside a task is refused, or cannot go on");
        let code = if status == 500 { CloseCode::Error } else { CloseCode::Policy };
        Self::Closed(code, short_reason(why))
    }
}

impl End {
    /// Nobody who has a right to it hears of this, so the log has it only for who looks closely.
    fn not_let_in(failure: &Failure) -> Self {
        tracing::debug!(%failure, "a command inside a task is refused");
        Self::Closed(CloseCode::Policy, short_reason(failure.to_string()))
    }
}

impl From<ExecRefusal> for End {
    fn from(refusal: ExecRefusal) -> Self {
        Self::refused(refusal.text(), refusal.status())
    }
}

/// The command, begun.
async fn begin<S: AsyncRead + AsyncWrite + Unpin>(
    api: &Api,
    wanted: Wanted,
    reads: &mut SplitStream<WebSocketStream<S>>,
    mut place: Place,
) -> Result<(ExecSession, Access, Place), End> {
    let unknown = wanted.is_unknown();
    let Wanted { alloc, task, command, tty, handshake, mut access } = wanted;
    if handshake {
        let secret = shake_hands(reads).await?;
        access = late(api, &access, &secret).map_err(|failure| End::not_let_in(&failure))?;
    }
    api.agent.lets_exec()?;
    let asked = ExecAsked::read(&alloc, &task, command, tty)?;
    let view = alloc.parse().ok().and_then(|id| api.agent.alloc(id));
    let let_in = match view {
        Some(view) => access.require(Level::Operate, view.allocation.job.namespace()),
        // Said below.
        None => Ok(()),
    };
    let_in.map_err(|failure| End::not_let_in(&failure))?;
    if unknown {
        let own = api.sessions.places.take(access.caller());
        place = Place::Known(own.map_err(|failure| End::not_let_in(&failure))?);
    }
    Ok((api.agent.exec_asked(asked, Ok(())).await?, access, place))
}

/// Wait until the token by which somebody was let in is no more.
async fn ended(access: &Access) {
    match access.bearer() {
        Some(bearer) => bearer.ended().await,
        None => std::future::pending().await,
    }
}

/// Clients in browsers send a token in a first frame: its secret.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    reads: &mut SplitStream<WebSocketStream<S>>,
) -> Result<String, End> {
    let wrong = |why: &str| {
        tracing::debug!(why, "a session does not begin");
        End::Closed(CloseCode::Policy, short_reason(format!("no handshake: {why}")))
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

/// What the client says next, of whatever kind its frame is.
async fn next_frame<S: AsyncRead + AsyncWrite + Unpin>(
    reads: &mut SplitStream<WebSocketStream<S>>,
) -> Result<Bytes, End> {
    loop {
        match reads.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text.into()),
            Some(Ok(Message::Binary(bytes))) => return Ok(bytes),
            // Answers to a ping, which the library gives.
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            Some(Ok(Message::Close(_))) | None => return Err(End::Gone),
            Some(Err(Error::Capacity(_))) => {
                let why = format!("a frame has more than {EXEC_FRAME_BYTES_MAX} bytes: send parts");
                return Err(End::Closed(CloseCode::Size, why));
            }
            Some(Err(Error::Protocol(_) | Error::Utf8(_))) => {
                let why = "what came is no frame of a WebSocket (RFC 6455)".to_owned();
                return Err(End::Closed(CloseCode::Protocol, why));
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "whoever ran a command inside a task has gone");
                return Err(End::Gone);
            }
        }
    }
}

/// Carry frames both ways until the command has ended or nobody asks any more, which ends it.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    session: ExecSession,
    writes: &mut SplitSink<WebSocketStream<S>, Message>,
    reads: &mut SplitStream<WebSocketStream<S>>,
) -> End {
    let (inputs, of_inputs) = mpsc::channel::<SessionInput>(QUEUE_MAX);
    let (of_outputs, mut outputs) = mpsc::channel::<SessionOutput>(QUEUE_MAX);
    let told = async {
        loop {
            let said = match clock::timeout(EXEC_SIGN_PERIOD, outputs.recv()).await {
                Some(Some(output)) => Message::text(exec_frame(&output)),
                Some(None) => return Ok::<_, Error>(()),
                // Who has gone while the command reads nothing is found by it.
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
            let input = match said_in(&frame) {
                Ok(input) => input,
                Err(why) => return End::refused(why, 400),
            };
            if inputs.send(input).await.is_err() {
                // The command has ended; the others say how.
                std::future::pending::<()>().await;
            }
        }
    };
    let driven = async { Ok(drive(session, of_inputs, of_outputs).await) };
    let driven = async { tokio::try_join!(driven, told) };
    tokio::select! {
        done = driven => match done {
            Ok((Ok(()), ())) => End::done(),
            Ok((Err(why), ())) => End::refused(why, 500),
            Err(_gone) => End::Gone,
        },
        end = heard => end,
    }
}

/// Say how it ended, and wait for the client to have read it.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    end: End,
    mut writes: SplitSink<WebSocketStream<S>, Message>,
    mut reads: SplitStream<WebSocketStream<S>>,
) {
    let End::Closed(code, reason) = end else { return };
    let closed = async {
        let frame = CloseFrame { code, reason: reason.into() };
        // An error means that nobody reads it.
        if writes.send(Message::Close(Some(frame))).await.is_ok() {
            // What was under way is thrown away, to the client's own last frame.
            while let Some(Ok(_late)) = reads.next().await {}
        }
    };
    // A client that takes longer may miss it.
    let _in_time = clock::timeout(EXEC_CLOSE_WALL_MAX, closed).await;
}

#[cfg(test)]
#[path = "exec_tests.rs"]
mod tests;
