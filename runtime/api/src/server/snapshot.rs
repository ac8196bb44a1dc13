//! The data of an allocation as a tar archive: `alloc/data`, and the `local` directory of each task.

use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::sync::mpsc;

use super::allocs::alloc_id;
use super::error::Failure;
use super::logs::place;
use super::params::Asked;
use ostler_model::clock;
use ostler_model::limits::{MOVED_PIECE_BYTES, MOVED_PIECES_WAITING_MAX};

/// `GET /v1/client/allocation/ID/snapshot`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = alloc_id(&id)?;
    let Some(view) = api.agent.alloc(id) else {
        // As Nomad's clients say it.
        return Ok((StatusCode::INTERNAL_SERVER_ERROR, "allocation not found").into_response());
    };
    let group = view.allocation.task_group();
    let tasks = group.into_iter().flat_map(|group| &group.tasks);
    let tasks: Vec<_> = tasks.map(|task| task.name.clone()).collect();
    let (agent, place) = (api.agent.clone(), place(&api, &params)?);
    let (pieces, queue) = mpsc::channel(MOVED_PIECES_WAITING_MAX);
    let work = move || {
        let mut out = Pieces { pieces: pieces.clone(), piece: Vec::new() };
        if let Err(error) = agent.pack_disk(id, &tasks, &mut out) {
            tracing::warn!(alloc = %id, error, "a disk was not sent as a whole");
            // The connection breaks off, so that nobody takes it for whole.
            let _gone = pieces.blocking_send(Err(io::Error::other(error)));
        }
        drop(place);
    };
    drop(tokio::spawn(clock::blocking(work)));
    let pieces = stream::unfold(queue, |mut queue| async { Some((queue.recv().await?, queue)) });
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(pieces)).into_response())
}

/// Bytes on their way, gathered to pieces. Waits while nobody takes them.
struct Pieces {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece).into();
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "nobody takes it any more");
        self.pieces.blocking_send(Ok(piece)).map_err(gone)
    }
}

impl Write for Pieces {
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
