//! The output of a task, as it is or as it comes.
//!
//! ```text
//! logs open? ─ no, followed ─► wait (heartbeats) ─┐
//!      └─ yes, or all there is ───────────────────┴─► skip to offset ─► read ─► frame ─► client
//!                                                                        ▲                  │
//!                                                       the client reads ┴──────────────────┘
//! ```
//! The client sets the pace: nothing more is read before it took what was read before. When it
//! hangs up, the stream is dropped with its file and its place.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::client::{find_alloc, task_by_name};
use super::error::RequestFailure;
use super::params::Params;
use super::shares::Share;
use super::state::{Api, NamedRequest};
use ostler_agent::AllocView;
use ostler_lifecycle::alloc::AllocHandle;
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_logs::{Chunk, FollowFrom, LogStream, StreamFollower, StreamKind, TaskLogs};
use ostler_model::clock;
use ostler_model::ids::TaskName;
use ostler_model::limits::{API_HEARTBEAT, LOG_READ_BYTES};
use ostler_wire as wire;

/// Where a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogOrigin {
    /// This many bytes after the oldest byte that is kept.
    Start(u64),
    /// This many bytes before the newest byte.
    End(u64),
}

/// The requested output, by the query.
#[derive(Clone, Debug)]
struct LogQuery {
    task: TaskName,
    kind: StreamKind,
    origin: LogOrigin,
    follow: bool,
    plain: bool,
}

impl LogQuery {
    fn read(params: &Params, view: &AllocView) -> Result<Self, RequestFailure> {
        let task = task_by_name(view, params.required("task")?)?;
        let kind = match params.required("type")? {
            "stdout" => StreamKind::Stdout,
            "stderr" => StreamKind::Stderr,
            other => return Err(RequestFailure::bad_param("type", other, "stdout or stderr")),
        };
        let offset = params.number("offset")?.unwrap_or(0);
        let origin = match params.text("origin") {
            None | Some("start") => LogOrigin::Start(offset),
            Some("end") => LogOrigin::End(offset),
            Some(other) => return Err(RequestFailure::bad_param("origin", other, "start or end")),
        };
        let (follow, plain) = (params.flag("follow")?, params.flag("plain")?);
        Ok(Self { task, kind, origin, follow, plain })
    }

    fn select_stream<'a>(&self, logs: &'a TaskLogs) -> &'a LogStream {
        match self.kind {
            StreamKind::Stdout => &logs.stdout,
            StreamKind::Stderr => &logs.stderr,
        }
    }
}

/// `GET /v1/client/fs/logs/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let view = find_alloc(&api, &id)?;
    let wanted = LogQuery::read(&params, &view)?;
    let place = take_place(&api, &params)?;
    let source = match view.handle.task_logs(&wanted.task) {
        Some(logs) => LogSource::Reading(LogReader::from_live(&wanted, &logs)),
        None if wanted.follow && !view.phase.has_ended() => LogSource::Waiting(view.handle),
        None => LogSource::Reading(LogReader::from_files(&api, &view, &wanted)?),
    };
    let kind = if wanted.plain { "text/plain; charset=utf-8" } else { "application/json" };
    let frames = LogFrames { source, wanted, leaving: api.leaving.clone(), _place: place };
    let body = Body::from_stream(stream::unfold(frames, LogFrames::next));
    Ok(([(CONTENT_TYPE, kind), (X_CONTENT_TYPE_OPTIONS, "nosniff")], body).into_response())
}

/// Take a place for a stream for the caller, if one is free.
pub(super) fn take_place(api: &Api, params: &Params) -> Result<Share, RequestFailure> {
    api.streams.take(params.access().caller())
}

/// Reads the bytes of an output stream from the requested position.
struct LogReader {
    follower: StreamFollower,
    /// The number of bytes that are still to be sent; none if the client follows the stream.
    left: Option<u64>,
}

impl LogReader {
    fn from_live(wanted: &LogQuery, logs: &TaskLogs) -> Self {
        let stream = wanted.select_stream(logs);
        let total = stream.follow(FollowFrom::Start).skip(u64::MAX);
        Self::from_follower(stream.follow(FollowFrom::Start), total, wanted)
    }

    /// A reader of all output of a task that has ended, or had ended before the agent started.
    fn from_files(api: &Api, view: &AllocView, wanted: &LogQuery) -> Result<Self, RequestFailure> {
        let root = api.agent.data_dir().join("allocs");
        let failed = |why: String| RequestFailure::Logs { task: wanted.task.clone(), why };
        let dir = AllocDir::open(&root, view.allocation.id)
            .and_then(|dir| dir.logs_dir())
            .map_err(|error| failed(error.to_string()))?;
        let open = || {
            StreamFollower::of_files(&dir, &wanted.task, wanted.kind)
                .map_err(|error| failed(error.to_string()))
        };
        let total = open()?.skip(u64::MAX);
        Ok(Self::from_follower(open()?, total, wanted))
    }

    fn from_follower(mut follower: StreamFollower, total: u64, wanted: &LogQuery) -> Self {
        let before = match wanted.origin {
            LogOrigin::Start(offset) => offset.min(total),
            LogOrigin::End(offset) => total.saturating_sub(offset),
        };
        let passed = follower.skip(before);
        Self { follower, left: (!wanted.follow).then(|| total.saturating_sub(passed)) }
    }

    /// Wait for the next bytes; none at the end. The future may be dropped and called again.
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

enum LogSource {
    /// The task's logs are not open yet.
    Waiting(AllocHandle),
    Reading(LogReader),
}

struct LogFrames {
    source: LogSource,
    wanted: LogQuery,
    leaving: CancellationToken,
    /// Its place, which is free again when the stream is dropped.
    _place: Share,
}

type Item = Result<Bytes, Infallible>;

impl LogFrames {
    async fn next(mut self) -> Option<(Item, Self)> {
        loop {
            let event = tokio::select! {
                () = self.leaving.cancelled() => return None,
                event = clock::timeout(API_HEARTBEAT, advance(&mut self.source, &self.wanted)) => event,
            };
            let bytes = match event {
                None if self.wanted.plain => continue,
                None => Bytes::from_static(b"{}"),
                Some(LogStreamEvent::Ended) => return None,
                Some(LogStreamEvent::Opened(logs)) => {
                    self.source = LogSource::Reading(LogReader::from_live(&self.wanted, &logs));
                    continue;
                }
                Some(LogStreamEvent::Read(chunk)) if self.wanted.plain => Bytes::from(chunk.bytes),
                Some(LogStreamEvent::Read(chunk)) => self.frame(&chunk)?,
            };
            if !bytes.is_empty() {
                return Some((Ok(bytes), self));
            }
        }
    }

    fn frame(&self, chunk: &Chunk) -> Option<Bytes> {
        let LogSource::Reading(reader) = &self.source else { return None };
        let (name, offset) = reader.follower.file_position();
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

enum LogStreamEvent {
    Opened(Arc<TaskLogs>),
    Read(Chunk),
    Ended,
}

/// Wait for the next event of the stream. The future may be dropped and called again.
async fn advance(source: &mut LogSource, wanted: &LogQuery) -> LogStreamEvent {
    match source {
        LogSource::Reading(reader) => {
            reader.next().await.map_or(LogStreamEvent::Ended, LogStreamEvent::Read)
        }
        LogSource::Waiting(alloc) => alloc
            .wait_for_logs(&wanted.task)
            .await
            .map_or(LogStreamEvent::Ended, LogStreamEvent::Opened),
    }
}
