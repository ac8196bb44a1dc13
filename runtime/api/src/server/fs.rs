//! Files of an allocation's directory: listed, looked at, read.
//!
//! Tasks write there, so every name is untrusted: paths are walked inside the directory's handle,
//! and what would lead outside is refused by it. Only plain files are read. What is under a task's
//! `secrets` is not shown, as in Nomad.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use cap_std::fs::{Dir, FileType, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use futures_util::stream;

use super::client::known;
use super::error::Failure;
use super::json::moment;
use super::logs::place;
use super::params::{Asked, Params};
use super::reply;
use super::router::Api;
use super::shares::Share;
use ostler_model::limits::{API_DIR_ENTRIES_MAX, LOG_READ_BYTES};
use ostler_model::time::Timestamp;
use ostler_wire::FileInfo;

fn info(name: String, metadata: &Metadata, content_type: &'static str) -> FileInfo<'static> {
    let (seconds, nanos) = (i128::from(metadata.mtime()), i128::from(metadata.mtime_nsec()));
    let changed = u64::try_from(seconds * 1_000_000_000 + nanos).unwrap_or(0);
    FileInfo {
        name: name.into(),
        is_dir: metadata.is_dir(),
        size: metadata.size(),
        file_mode: mode_text(metadata.file_type(), metadata.mode()).into(),
        mod_time: moment(Timestamp::from_nanos(changed)),
        content_type: content_type.into(),
    }
}

/// Kind and permissions as Go writes them: `drwxr-xr-x`.
fn mode_text(kind: FileType, mode: u32) -> String {
    use cap_std::fs::FileTypeExt as _;
    let mut text = String::new();
    for (holds, letter) in [
        (kind.is_dir(), 'd'),
        (kind.is_symlink(), 'L'),
        (kind.is_block_device() || kind.is_char_device(), 'D'),
        (kind.is_fifo(), 'p'),
        (kind.is_socket(), 'S'),
        (mode & 0o4000 != 0, 'u'),
        (mode & 0o2000 != 0, 'g'),
        (kind.is_char_device(), 'c'),
        (mode & 0o1000 != 0, 't'),
    ] {
        if holds {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (bit, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode & (1 << bit) == 0 { '-' } else { letter });
    }
    text
}

/// The path asked for, inside the allocation's directory.
fn inside(params: &Params) -> PathBuf {
    let asked = params.text("path").unwrap_or_default().trim_start_matches('/');
    PathBuf::from(if asked.is_empty() { "." } else { asked })
}

/// Do something with the allocation's directory where blocking is allowed.
async fn in_dir<T: Send + 'static>(
    api: &Api,
    id: &str,
    path: PathBuf,
    act: impl FnOnce(&Dir, &Path) -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let root = known(api, id)?.handle.dir();
    let shown = path.display().to_string();
    let work = move || {
        let dir = Dir::open_ambient_dir(root, cap_std::ambient_authority())?;
        // Where links inside the directory lead to.
        let real = dir.canonicalize(&path)?;
        if is_secret(&real) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "secrets are not shown"));
        }
        act(&dir, &real)
    };
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| Failure::Internal(error.to_string()))?;
    done.map_err(|source| Failure::File { path: shown, source })
}

/// `<task>/secrets` and what is in it.
fn is_secret(path: &Path) -> bool {
    let mut names = path.components().filter(|part| *part != Component::CurDir);
    names.nth(1).is_some_and(|second| second.as_os_str() == "secrets")
}

/// `GET /v1/client/fs/ls/ID`
pub(super) async fn list(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let files = in_dir(&api, &id, inside(&params), |dir, path| {
        let entries =
            if path.as_os_str().is_empty() { dir.entries()? } else { dir.read_dir(path)? };
        let mut files = Vec::new();
        for entry in entries.take(API_DIR_ENTRIES_MAX) {
            let entry = entry?;
            // One that went in between is not there.
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            files.push(info(name, &metadata, ""));
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    });
    reply::json(&params, &files.await?)
}

/// `GET /v1/client/fs/stat/ID`
pub(super) async fn stat(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let own_name = id.clone();
    let file = in_dir(&api, &id, inside(&params), move |dir, path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let metadata =
            if name.is_none() { dir.dir_metadata()? } else { dir.symlink_metadata(path)? };
        let kind = if metadata.is_file() { content_type(&opened(dir, path)?)? } else { BYTES };
        Ok(info(name.unwrap_or(own_name), &metadata, kind))
    });
    reply::json(&params, &file.await?)
}

const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

/// By what it begins with: text has no control characters but those of lines and terminals (WHATWG MIME Sniffing,
/// "binary data byte"). Nomad's web page shows text.
fn content_type(file: &std::fs::File) -> io::Result<&'static str> {
    let mut begin = [0; 512];
    let length = file.read_at(&mut begin, 0)?;
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    Ok(if begin.iter().take(length).any(binary) { BYTES } else { TEXT })
}

/// A file that reading does not wait for: a pipe without a writer would hold the open up.
fn opened(dir: &Dir, path: &Path) -> io::Result<std::fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    Ok(dir.open_with(path, &options)?.into_std())
}

/// `GET /v1/client/fs/cat/ID`
pub(super) async fn cat(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    send(&api, &id, &params, 0, None).await
}

/// `GET /v1/client/fs/readat/ID`
pub(super) async fn read_at(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let offset = params.number("offset")?.unwrap_or(0);
    let limit = params.number::<i64>("limit")?.and_then(|limit| u64::try_from(limit).ok());
    send(&api, &id, &params, offset, limit).await
}

/// A plain file, open, and its length.
pub(super) async fn open(
    api: &Api,
    id: &str,
    params: &Params,
) -> Result<(std::fs::File, u64), Failure> {
    params.required("path")?;
    let open = in_dir(api, id, inside(params), |dir, path| {
        let file = opened(dir, path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        Ok((file, metadata.len()))
    });
    open.await
}

/// A part of a file; what is appended while it is sent is not part of it.
async fn send(
    api: &Api,
    id: &str,
    params: &Params,
    offset: u64,
    limit: Option<u64>,
) -> Result<Response, Failure> {
    let place = place(api, params)?;
    let (file, length) = open(api, id, params).await?;
    let rest = length.saturating_sub(offset);
    let left = limit.map_or(rest, |limit| limit.min(rest));
    let part = Part { file: Arc::new(file), offset, left, place };
    let body = Body::from_stream(stream::unfold(part, Part::next));
    let headers = [("content-type", TEXT), ("x-content-type-options", "nosniff")];
    Ok((headers, body).into_response())
}

struct Part {
    file: Arc<std::fs::File>,
    offset: u64,
    left: u64,
    /// Free again when the stream is dropped.
    place: Share,
}

impl Part {
    async fn next(self) -> Option<(io::Result<Bytes>, Self)> {
        if self.left == 0 {
            return None;
        }
        let Self { file, offset, left, place } = self;
        let reading = Arc::clone(&file);
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer =
                vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(LOG_READ_BYTES)];
            let count = reading.read_at(&mut buffer, offset)?;
            buffer.truncate(count);
            Ok(buffer)
        });
        let read = read.await.map_err(io::Error::other).and_then(|read: io::Result<_>| read);
        let count = read.as_ref().map_or(0, |bytes: &Vec<u8>| bytes.len() as u64);
        // Cut short meanwhile: that is the end.
        if count == 0 && read.is_ok() {
            return None;
        }
        let left = if read.is_ok() { left - count } else { 0 };
        let rest = Self { file, offset: offset + count, left, place };
        Some((read.map(Bytes::from), rest))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn modes_are_written_as_go_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Dir::open_ambient_dir(dir.path(), cap_std::ambient_authority()).unwrap();
        dir.write("f", "x").unwrap();
        dir.symlink("f", "l").unwrap();
        let kind = |name: &str| dir.symlink_metadata(name).unwrap().file_type();
        assert_eq!(mode_text(kind("f"), 0o644), "-rw-r--r--");
        assert_eq!(mode_text(kind("f"), 0o4755), "urwxr-xr-x");
        assert_eq!(mode_text(kind("l"), 0o777), "Lrwxrwxrwx");
        assert_eq!(mode_text(dir.dir_metadata().unwrap().file_type(), 0o1777), "dtrwxrwxrwx");
    }

    #[test]
    fn what_a_file_holds_is_told_by_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let of = |bytes: &[u8]| {
            std::fs::write(dir.path().join("f"), bytes).unwrap();
            content_type(&std::fs::File::open(dir.path().join("f")).unwrap()).unwrap()
        };
        assert_eq!(of(b""), TEXT);
        assert_eq!(of("gr\u{fc}n\t\u{1b}[32m\r\n".as_bytes()), TEXT);
        assert_eq!(of(b"\x7fELF\x02\x01\x01\0"), BYTES);
        assert_eq!(
            of(&[[b'a'; 512].as_slice(), &[0]].concat()),
            TEXT,
            "only the beginning is looked at"
        );
    }

    #[test]
    fn secrets_of_a_task_are_known_by_their_place() {
        for (path, secret) in [
            ("web/secrets", true),
            ("web/secrets/token", true),
            ("./web/secrets", true),
            ("secrets", false),
            ("web/local/secrets", false),
            ("alloc/logs/x", false),
        ] {
            assert_eq!(is_secret(Path::new(path)), secret, "{path}");
        }
    }
}
