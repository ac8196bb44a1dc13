//! Follows a file of an allocation as it grows.
//!
//! ```text
//! read ─► bytes ────────────────► frame
//!   └──► none: followed? ─ no ─► end
//!                 └─ yes ─► shorter ─► "file truncated", from its start
//!                           gone ────► "file deleted", end
//!                           else ────► again after a pause; a sign of life each second
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::error::RequestFailure;
use super::fs;
use super::logs::take_place;
use super::shares::Share;
use super::state::NamedRequest;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{API_FILE_PACE, API_HEARTBEAT, LOG_READ_BYTES};
use ostler_wire as wire;

/// `GET /v1/client/fs/stream/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let path = params.required("path")?.trim_start_matches('/').to_owned();
    let offset = params.number("offset")?.unwrap_or(0);
    let limit = params.number::<i64>("limit")?.and_then(|limit| u64::try_from(limit).ok());
    let from_end = match params.text("origin") {
        None | Some("start") => false,
        Some("end") => true,
        Some(other) => return Err(RequestFailure::bad_param("origin", other, "start or end")),
    };
    let follow = params.text("follow").is_none() || params.flag("follow")?;
    let plain = params.flag("plain")?;
    let place = take_place(&api, &params)?;
    let (file, length) = fs::open(&api, &id, &params).await?;
    let offset = if from_end { length.saturating_sub(offset) } else { offset };
    let grown = GrowingFile {
        file: Arc::new(file),
        path,
        offset,
        left: limit.filter(|limit| *limit > 0),
        follow,
        plain,
        leaving: api.leaving.clone(),
        _place: place,
    };
    // Frames have this type too, as in Nomad, because several JSON objects are no JSON text.
    let kind = "text/plain; charset=utf-8";
    let body = Body::from_stream(stream::unfold(Some(grown), |grown| async {
        let mut grown = grown?;
        let (bytes, last) = grown.next_piece().await?;
        Some((bytes, (!last).then_some(grown)))
    }));
    Ok(([(CONTENT_TYPE, kind), (X_TYPE, "nosniff")], body).into_response())
}

const X_TYPE: axum::http::HeaderName = axum::http::header::X_CONTENT_TYPE_OPTIONS;

struct GrowingFile {
    file: Arc<File>,
    path: String,
    offset: u64,
    left: Option<u64>,
    follow: bool,
    plain: bool,
    leaving: CancellationToken,
    /// Its place, which is free again when the stream is dropped.
    _place: Share,
}

/// The result of one attempt to read further.
enum FileReadOutcome {
    Bytes(Vec<u8>),
    Nothing,
    Truncated,
    Deleted,
}

impl GrowingFile {
    /// Wait for the next piece. Returns it with whether it is the last one.
    async fn next_piece(&mut self) -> Option<(io::Result<Bytes>, bool)> {
        let silent = Stopwatch::start();
        loop {
            let max = self.left.unwrap_or(u64::MAX).min(LOG_READ_BYTES as u64);
            if max == 0 {
                return None;
            }
            let event = match self.read_more(usize::try_from(max).unwrap_or(LOG_READ_BYTES)).await {
                Err(error) => return Some((Err(error), true)),
                Ok(FileReadOutcome::Bytes(bytes)) => {
                    let count = bytes.len() as u64;
                    self.offset = self.offset.saturating_add(count);
                    self.left = self.left.map(|left| left.saturating_sub(count));
                    return Some((self.frame(&bytes, ""), false));
                }
                Ok(_) if !self.follow => return None,
                Ok(FileReadOutcome::Nothing) => None,
                Ok(FileReadOutcome::Truncated) => {
                    self.offset = 0;
                    Some("file truncated")
                }
                Ok(FileReadOutcome::Deleted) => Some("file deleted"),
            };
            match event {
                Some(_) if self.plain && self.offset > 0 => return None,
                Some(_) if self.plain => {}
                Some(event) => return Some((self.frame(&[], event), event == "file deleted")),
                None if silent.elapsed() >= API_HEARTBEAT && !self.plain => {
                    return Some((Ok(Bytes::from_static(b"{}")), false));
                }
                None => {}
            }
            // There is no event to wait for when a file is written through a memory mapping or on
            // another machine.
            self.leaving.run_until_cancelled(clock::sleep(API_FILE_PACE)).await?;
        }
    }

    async fn read_more(&self, max: usize) -> io::Result<FileReadOutcome> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let look = tokio::task::spawn_blocking(move || read_at_offset(&file, offset, max));
        look.await.map_err(io::Error::other)?
    }

    fn frame(&self, bytes: &[u8], event: &'static str) -> io::Result<Bytes> {
        if self.plain {
            return Ok(Bytes::copy_from_slice(bytes));
        }
        let frame = wire::Frame {
            data: STANDARD.encode(bytes).into(),
            file: self.path.as_str().into(),
            offset: self.offset,
            file_event: event.into(),
            skipped: 0,
        };
        serde_json::to_vec(&frame).map(Bytes::from).map_err(io::Error::other)
    }
}

fn read_at_offset(file: &File, offset: u64, max: usize) -> io::Result<FileReadOutcome> {
    let mut bytes = vec![0; max];
    let count = file.read_at(&mut bytes, offset)?;
    bytes.truncate(count);
    if count > 0 {
        return Ok(FileReadOutcome::Bytes(bytes));
    }
    let metadata = file.metadata()?;
    Ok(match (metadata.len() < offset, metadata.nlink()) {
        (_, 0) => FileReadOutcome::Deleted,
        (true, _) => FileReadOutcome::Truncated,
        (false, _) => FileReadOutcome::Nothing,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn growing(file: &std::path::Path, follow: bool) -> GrowingFile {
        let place = Share::of_test();
        let (leaving, path) = (CancellationToken::new(), "alloc/x".to_owned());
        let file = Arc::new(File::open(file).unwrap());
        GrowingFile {
            file,
            path,
            offset: 0,
            left: None,
            follow,
            plain: false,
            leaving,
            _place: place,
        }
    }

    async fn said(growing: &mut GrowingFile) -> (Vec<u8>, String, u64) {
        loop {
            let (bytes, _) = growing.next_piece().await.unwrap();
            let frame: wire::Frame<'_> = serde_json::from_slice(&bytes.unwrap()).unwrap();
            if !frame.file.is_empty() {
                let data = STANDARD.decode(frame.data.as_bytes()).unwrap();
                return (data, frame.file_event.to_string(), frame.offset);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_added_cut_off_and_removed_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "one").unwrap();
        let mut file = growing(&path, true);
        assert_eq!(said(&mut file).await, (b"one".to_vec(), String::new(), 3));
        std::fs::write(&path, "onetwo").unwrap();
        assert_eq!(said(&mut file).await, (b"two".to_vec(), String::new(), 6));
        std::fs::write(&path, "").unwrap();
        assert_eq!(said(&mut file).await, (Vec::new(), "file truncated".to_owned(), 0));
        std::fs::write(&path, "new").unwrap();
        assert_eq!(said(&mut file).await, (b"new".to_vec(), String::new(), 3));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(said(&mut file).await, (Vec::new(), "file deleted".to_owned(), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_file_gives_signs_of_life_until_the_agent_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "").unwrap();
        let mut file = growing(&path, true);
        let (sign, last) = file.next_piece().await.unwrap();
        assert_eq!((sign.unwrap().as_ref(), last), (&b"{}"[..], false));
        file.leaving.cancel();
        assert!(file.next_piece().await.is_none());
        assert!(growing(&path, false).next_piece().await.is_none(), "not followed");
    }
}
