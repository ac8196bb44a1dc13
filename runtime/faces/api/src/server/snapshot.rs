//! The data of an allocation as a tar archive: `alloc/data`, and the `local` directory of each task.

use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::sync::mpsc;

use super::allocs::alloc_id;
use super::error::RequestFailure;
use super::logs::take_place;
use super::state::NamedRequest;
use ostler_model::clock;
use ostler_model::limits::{MOVED_PIECE_BYTES, MOVED_PIECES_WAITING_MAX};

/// `GET /v1/client/allocation/ID/snapshot`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = alloc_id(&id)?;
    let Some(view) = api.agent.control().alloc(id) else {
        // The text is the one of Nomad's clients.
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, "allocation not found").into_response());
    };
    let group = view.allocation.task_group();
    let tasks = group.into_iter().flat_map(|group| &group.tasks);
    let tasks: Vec<_> = tasks.map(|task| task.name.clone()).collect();
    let (agent, place) = (api.agent.clone(), take_place(&api, &params)?);
    let (pieces, queue) = mpsc::channel(MOVED_PIECES_WAITING_MAX);
    let work = move || {
        let mut out = SnapshotWriter { pieces: pieces.clone(), piece: Vec::new() };
        if let Err(error) = agent.pack_disk(id, &tasks, &mut out) {
            tracing::warn!(alloc = %id, error, "a disk was not sent as a whole");
            // The connection breaks off, so that nobody takes the archive for complete.
            let _gone = pieces.blocking_send(Err(io::Error::other(error)));
        }
        drop(place);
    };
    drop(tokio::spawn(clock::run_blocking(work)));
    let pieces = stream::unfold(queue, |mut queue| async { Some((queue.recv().await?, queue)) });
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(pieces)).into_response())
}

/// Gathers bytes to pieces and sends them. It waits while nobody takes them.
struct SnapshotWriter {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl SnapshotWriter {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece).into();
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "its receiver is gone");
        self.pieces.blocking_send(Ok(piece)).map_err(gone)
    }
}

impl Write for SnapshotWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= MOVED_PIECE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
