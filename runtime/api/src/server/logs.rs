//! A task's output, as it is or as it comes.
//!
//! ```text
//! logs open? ─ no, followed ─► wait (heartbeats) ─┐
//!      └─ yes, or all there is ───────────────────┴─► skip to offset ─► read ─► frame ─► client
//!                                                                        ▲                  │
//!                                                       the client reads ┴──────────────────┘
//! ```
//! The client draws: nothing is read before it took what was read before, and when it hangs up, the
//! stream is dropped with its file and its place.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::client::{known, task_of};
use super::error::Failure;
use super::params::{Asked, Params};
use super::router::Api;
use super::shares::Share;
use ostler_agent::AllocView;
use ostler_lifecycle::alloc::AllocHandle;
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_logs::{Chunk, Follower, From, LogStream, StreamKind, TaskLogs};
use ostler_model::clock;
use ostler_model::ids::TaskName;
use ostler_model::limits::{API_HEARTBEAT, LOG_READ_BYTES};
use ostler_wire as wire;

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// This many bytes after the oldest kept.
    Start(u64),
    /// This many bytes before the newest.
    End(u64),
}

/// What is wanted.
#[derive(Clone, Debug)]
struct Wanted {
    task: TaskName,
    kind: StreamKind,
    origin: Origin,
    follow: bool,
    plain: bool,
}

impl Wanted {
    fn read(params: &Params, view: &AllocView) -> Result<Self, Failure> {
        let task = task_of(view, params.required("task")?)?;
        let kind = match params.required("type")? {
            "stdout" => StreamKind::Stdout,
            "stderr" => StreamKind::Stderr,
            other => return Err(Failure::bad_param("type", other, "stdout or stderr")),
        };
        let offset = params.number("offset")?.unwrap_or(0);
        let origin = match params.text("origin") {
            None | Some("start") => Origin::Start(offset),
            Some("end") => Origin::End(offset),
            Some(other) => return Err(Failure::bad_param("origin", other, "start or end")),
        };
        let (follow, plain) = (params.flag("follow")?, params.flag("plain")?);
        Ok(Self { task, kind, origin, follow, plain })
    }

    fn of<'a>(&self, logs: &'a TaskLogs) -> &'a LogStream {
        match self.kind {
            StreamKind::Stdout => &logs.stdout,
            StreamKind::Stderr => &logs.stderr,
        }
    }
}

/// `GET /v1/client/fs/logs/ID`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let view = known(&api, &id)?;
    let wanted = Wanted::read(&params, &view)?;
    let place = place(&api, &params)?;
    let source = match view.handle.task_logs(&wanted.task) {
        Some(logs) => Source::Reading(Reader::live(&wanted, &logs)),
        None if wanted.follow && !view.phase.ended() => Source::Waiting(view.handle),
        None => Source::Reading(Reader::of_files(&api, &view, &wanted)?),
    };
    let kind = if wanted.plain { "text/plain; charset=utf-8" } else { "application/json" };
    let frames = Frames { source, wanted, leaving: api.leaving.clone(), _place: place };
    let body = Body::from_stream(stream::unfold(frames, Frames::next));
    Ok(([(CONTENT_TYPE, kind), (X_CONTENT_TYPE_OPTIONS, "nosniff")], body).into_response())
}

/// A place for a stream, if there is one for whoever asks.
pub(super) fn place(api: &Api, params: &Params) -> Result<Share, Failure> {
    api.streams.take(params.access().caller())
}

/// Bytes of a stream from where it was asked for.
struct Reader {
    follower: Follower,
    /// Bytes still to give out; absent when what comes later is wanted too.
    left: Option<u64>,
}

impl Reader {
    fn live(wanted: &Wanted, logs: &TaskLogs) -> Self {
        let stream = wanted.of(logs);
        let total = stream.follow(From::Start).skip(u64::MAX);
        Self::begin(stream.follow(From::Start), total, wanted)
    }

    /// All that there is of a task that is over, or was before the agent started.
    fn of_files(api: &Api, view: &AllocView, wanted: &Wanted) -> Result<Self, Failure> {
        let root = api.agent.data_dir().join("allocs");
        let failed = |why: String| Failure::Logs { task: wanted.task.clone(), why };
        let dir = AllocDir::open(&root, view.allocation.id)
            .and_then(|dir| dir.logs_dir())
            .map_err(|error| failed(error.to_string()))?;
        let open = || {
            Follower::of_files(&dir, &wanted.task, wanted.kind)
                .map_err(|error| failed(error.to_string()))
        };
        let total = open()?.skip(u64::MAX);
        Ok(Self::begin(open()?, total, wanted))
    }

    fn begin(mut follower: Follower, total: u64, wanted: &Wanted) -> Self {
        let before = match wanted.origin {
            Origin::Start(offset) => offset.min(total),
            Origin::End(offset) => total.saturating_sub(offset),
        };
        let passed = follower.skip(before);
        Self { follower, left: (!wanted.follow).then(|| total.saturating_sub(passed)) }
    }

    /// The next bytes; none at the end. May be dropped and called again.
    async fn next(&mut self) -> Option<Chunk> {
        let max = match self.left {
            Some(0) => return None,
            Some(left) => usize::try_from(left).unwrap_or(usize::MAX).min(LOG_READ_BYTES),
            None => LOG_READ_BYTES,
        };
        let chunk = self.follower.next(max).await?;
        if let Some(left) = &mut self.left {
            let given = chunk.skipped_bytes.saturating_add(chunk.bytes.len() as u64);
            *left = left.saturating_sub(given);
        }
        Some(chunk)
    }
}

enum Source {
    /// The task's logs are not open yet.
    Waiting(AllocHandle),
    Reading(Reader),
}

struct Frames {
    source: Source,
    wanted: Wanted,
    leaving: CancellationToken,
    /// Free again when the stream is dropped.
    _place: Share,
}

type Item = Result<Bytes, Infallible>;

impl Frames {
    async fn next(mut self) -> Option<(Item, Self)> {
        loop {
            let event = tokio::select! {
                () = self.leaving.cancelled() => return None,
                event = clock::timeout(API_HEARTBEAT, advance(&mut self.source, &self.wanted)) => event,
            };
            let bytes = match event {
                None if self.wanted.plain => continue,
                None => Bytes::from_static(b"{}"),
                Some(Event::Ended) => return None,
                Some(Event::Opened(logs)) => {
                    self.source = Source::Reading(Reader::live(&self.wanted, &logs));
                    continue;
                }
                Some(Event::Read(chunk)) if self.wanted.plain => Bytes::from(chunk.bytes),
                Some(Event::Read(chunk)) => self.frame(&chunk)?,
            };
            if !bytes.is_empty() {
                return Some((Ok(bytes), self));
            }
        }
    }

    fn frame(&self, chunk: &Chunk) -> Option<Bytes> {
        let Source::Reading(reader) = &self.source else { return None };
        let (name, offset) = reader.follower.place();
        let frame = wire::Frame {
            data: STANDARD.encode(&chunk.bytes).into(),
            file: format!("alloc/logs/{name}").into(),
            offset,
            file_event: "".into(),
            skipped: chunk.skipped_bytes,
        };
        serde_json::to_vec(&frame).ok().map(Bytes::from)
    }
}

enum Event {
    Opened(Arc<TaskLogs>),
    Read(Chunk),
    Ended,
}

/// May be dropped and called again.
async fn advance(source: &mut Source, wanted: &Wanted) -> Event {
    match source {
        Source::Reading(reader) => reader.next().await.map_or(Event::Ended, Event::Read),
        Source::Waiting(alloc) => {
            alloc.logs_opened(&wanted.task).await.map_or(Event::Ended, Event::Opened)
        }
    }
}
