//! Lists and reads the files in an allocation's directory.
//!
//! Tasks write there, and may replace a file by a link at any time. So a path is resolved once,
//! inside the handle of the directory, which refuses paths that lead outside. The entry is then
//! held open, and it is examined and read only through its own handle. Only plain files are read.
//! As in Nomad, the content of a task's `secrets` is not shown.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use cap_std::fs::{Dir, FileType, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use futures_util::stream;

use super::client::find_alloc;
use super::compute_pool::ComputePool;
use super::error::RequestFailure;
use super::json::moment;
use super::logs::take_place;
use super::params::Params;
use super::reply;
use super::shares::Share;
use super::state::{Api, NamedRequest};
use ostler_model::limits::{API_DIR_ENTRIES_MAX, LOG_READ_BYTES};
use ostler_model::time::Timestamp;
use ostler_wire::FileInfo;

fn file_info(name: String, metadata: &Metadata, content_type: &'static str) -> FileInfo<'static> {
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

/// The kind and the permissions as Go writes them, such as `drwxr-xr-x`.
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

/// A path inside an allocation's directory.
struct AllocPath {
    root: PathBuf,
    path: PathBuf,
}

impl AllocPath {
    /// The path that a request asks for.
    fn from_request(api: &Api, id: &str, params: &Params) -> Result<Self, RequestFailure> {
        let asked = params.text("path").unwrap_or_default().trim_start_matches('/');
        let path = PathBuf::from(if asked.is_empty() { "." } else { asked });
        Ok(Self { root: find_alloc(api, id)?.handle.dir(), path })
    }

    /// Run `act` on the entry at this path. It blocks.
    fn run_on_entry<T>(
        self,
        act: impl FnOnce(&HeldEntry) -> io::Result<T>,
    ) -> Result<T, RequestFailure> {
        let Self { root, path } = self;
        let dir = Dir::open_ambient_dir(root, cap_std::ambient_authority());
        let done = dir.and_then(|dir| act(&HeldEntry::find(&dir, &path)?));
        done.map_err(|source| RequestFailure::File { path: path.display().to_string(), source })
    }
}

/// Run `act` on the entry at a path, on a thread that may block.
async fn run_in_dir<T: Send + 'static>(
    at: AllocPath,
    act: impl FnOnce(&HeldEntry) -> io::Result<T> + Send + 'static,
) -> Result<T, RequestFailure> {
    let done = tokio::task::spawn_blocking(move || at.run_on_entry(act)).await;
    done.map_err(|error| RequestFailure::Internal(error.to_string()))?
}

/// An entry in an allocation's directory, held by a handle but not opened for reading. Tasks may
/// put something else in its place at any time, but everything here refers to this entry, and
/// `place` is where it was when the handle was opened.
struct HeldEntry {
    file: cap_std::fs::File,
    metadata: Metadata,
    /// Its path relative to the allocation's directory, without links.
    place: PathBuf,
}

impl HeldEntry {
    /// Resolve a path, following links inside the directory. Paths that lead outside are refused,
    /// and so are the secrets of tasks.
    fn find(dir: &Dir, path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH);
        let file = dir.open_with(path, &options)?;
        let metadata = file.metadata()?;
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        if metadata.nlink() == 0 {
            return Err(gone());
        }
        let root = std::fs::read_link(fd_path(dir))?;
        let place = std::fs::read_link(fd_path(&file))?;
        let place = place.strip_prefix(root).map_err(|_| gone())?.to_owned();
        if is_secret(&place) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "secrets are not shown"));
        }
        Ok(Self { file, metadata, place })
    }

    /// Open a plain file for reading. Nothing else is opened, because that may have effects, and
    /// opening a pipe may block.
    fn read(&self) -> io::Result<std::fs::File> {
        if !self.metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        std::fs::File::open(fd_path(&self.file))
    }

    /// The entries of a directory.
    fn entries(&self) -> io::Result<cap_std::fs::ReadDir> {
        if !self.metadata.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory"));
        }
        Dir::from_std_file(std::fs::File::open(fd_path(&self.file))?).entries()
    }
}

/// A path that leads to what a handle holds, whatever has its name meanwhile.
fn fd_path(held: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", held.as_raw_fd())
}

/// Whether a path is `<task>/secrets` or inside it.
fn is_secret(path: &Path) -> bool {
    let mut names = path.components().filter(|part| *part != Component::CurDir);
    names.nth(1).is_some_and(|second| second.as_os_str() == "secrets")
}

/// `GET /v1/client/fs/ls/ID`
pub(super) async fn list(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let at = AllocPath::from_request(&api, &id, &params)?;
    answer_entries(&api.computing, at, params).await
}

/// Answer with the list of a directory. Tasks create as many files as they like, so the list is
/// written in the background. It is read on a thread of its own, so that a hanging disk blocks
/// nobody else.
async fn answer_entries(
    computing: &ComputePool,
    at: AllocPath,
    params: Params,
) -> Result<Response, RequestFailure> {
    let (caller, found) = (params.access().caller(), run_in_dir(at, dir_files).await?);
    computing.answer(caller, move || reply::json(&params, &found)).await
}

/// The files in a directory, by name.
fn dir_files(held: &HeldEntry) -> io::Result<Vec<FileInfo<'static>>> {
    let mut files = Vec::new();
    for entry in held.entries()?.take(API_DIR_ENTRIES_MAX) {
        let entry = entry?;
        // An entry that was removed meanwhile is left out.
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push(file_info(name, &metadata, ""));
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// `GET /v1/client/fs/stat/ID`
pub(super) async fn stat(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let own_name = id.clone();
    let file = run_in_dir(AllocPath::from_request(&api, &id, &params)?, move |held| {
        let name = held.place.file_name().map(|name| name.to_string_lossy().into_owned());
        let kind = if held.metadata.is_file() { content_type(&held.read()?)? } else { BYTES };
        Ok(file_info(name.unwrap_or(own_name), &held.metadata, kind))
    });
    reply::json(&params, &file.await?)
}

const TEXT: &str = "text/plain; charset=utf-8";
const BYTES: &str = "application/octet-stream";

/// The media type of a file, judged by its beginning. Text has no control characters except those
/// of lines and terminals (WHATWG MIME Sniffing, "binary data byte"). Nomad's web page shows text.
fn content_type(file: &std::fs::File) -> io::Result<&'static str> {
    let mut begin = [0; 512];
    let length = file.read_at(&mut begin, 0)?;
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    Ok(if begin.iter().take(length).any(binary) { BYTES } else { TEXT })
}

/// `GET /v1/client/fs/cat/ID`
pub(super) async fn cat(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    send(&api, &id, &params, 0, None).await
}

/// `GET /v1/client/fs/readat/ID`
pub(super) async fn read_at(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let offset = params.number("offset")?.unwrap_or(0);
    let limit = params.number::<i64>("limit")?.and_then(|limit| u64::try_from(limit).ok());
    send(&api, &id, &params, offset, limit).await
}

/// Open the plain file that a request asks for. Returns it with its length.
pub(super) async fn open(
    api: &Api,
    id: &str,
    params: &Params,
) -> Result<(std::fs::File, u64), RequestFailure> {
    params.required("path")?;
    let open = run_in_dir(AllocPath::from_request(api, id, params)?, |held| {
        let file = held.read()?;
        let length = file.metadata()?.len();
        Ok((file, length))
    });
    open.await
}

/// Answer with a part of a file. Bytes that are appended meanwhile are not included.
async fn send(
    api: &Api,
    id: &str,
    params: &Params,
    offset: u64,
    limit: Option<u64>,
) -> Result<Response, RequestFailure> {
    let place = take_place(api, params)?;
    let (file, length) = open(api, id, params).await?;
    let rest = length.saturating_sub(offset);
    let left = limit.map_or(rest, |limit| limit.min(rest));
    let part = FilePart { file: Arc::new(file), offset, left, place };
    let body = Body::from_stream(stream::unfold(part, FilePart::next));
    let headers = [("content-type", TEXT), ("x-content-type-options", "nosniff")];
    Ok((headers, body).into_response())
}

struct FilePart {
    file: Arc<std::fs::File>,
    offset: u64,
    left: u64,
    /// Its place, which is free again when the stream is dropped.
    place: Share,
}

impl FilePart {
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
        // The file was truncated meanwhile, so this is the end.
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
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

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

    #[tokio::test]
    async fn a_directory_is_listed_in_the_turns_of_what_is_computed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c"] {
            std::fs::write(root.path().join(name), "x").unwrap();
        }
        let at = |path: &str| AllocPath { root: root.path().to_owned(), path: path.into() };
        let (computing, params) = (ComputePool::new(), Params::parse(""));
        let busy = computing.busy_with(params.access().caller()).await;
        let mut answer = Box::pin(answer_entries(&computing, at("."), params.clone()));
        assert!(futures_util::poll!(&mut answer).is_pending(), "the caller has no thread left");
        drop(busy);
        let body = answer.await.unwrap().into_body();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let files: Vec<serde_json::Value> = serde_json::from_slice(&body).unwrap();
        let names: Vec<_> = files.iter().map(|file| file["Name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let failed = answer_entries(&computing, at("a"), params).await.unwrap_err();
        assert!(matches!(&failed, RequestFailure::File { path, .. } if path == "a"), "{failed}");
    }

    /// A task may exchange a link again and again while the agent reads.
    #[test]
    fn a_link_that_is_exchanged_while_it_is_followed_leads_to_no_secret() {
        let root = tempfile::tempdir().unwrap();
        let inside = |path: &str| root.path().join(path);
        for dir in ["alloc/data", "other/secrets"] {
            std::fs::create_dir_all(inside(dir)).unwrap();
        }
        std::fs::write(inside("other/secrets/token"), "secret").unwrap();
        std::fs::write(inside("alloc/data/x"), "plain").unwrap();
        std::os::unix::fs::symlink("../../other/secrets/token", inside("alloc/data/y")).unwrap();
        let dir = Dir::open_ambient_dir(root.path(), cap_std::ambient_authority()).unwrap();
        let data = std::fs::File::open(inside("alloc/data")).unwrap();
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        let ended = std::sync::atomic::AtomicBool::new(false);
        let (mut plain, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    rustix::fs::renameat_with(&data, "x", &data, "y", exchange).unwrap();
                }
            });
            for _ in 0..20_000 {
                let found = HeldEntry::find(&dir, Path::new("alloc/data/x"));
                match found.and_then(|held| io::read_to_string(held.read()?)) {
                    Ok(text) if text == "plain" => plain += 1,
                    Ok(text) => {
                        ended.store(true, std::sync::atomic::Ordering::Relaxed);
                        panic!("read {text:?}");
                    }
                    Err(_) => refused += 1,
                }
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(plain > 0 && refused > 0, "both were met: {plain}, {refused}");
    }

    #[test]
    fn what_a_path_leads_to_is_held_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let inside = |path: &str| root.path().join(path);
        std::fs::create_dir_all(inside("web/local")).unwrap();
        std::fs::write(inside("web/local/f"), "text").unwrap();
        std::os::unix::fs::symlink("f", inside("web/local/link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", inside("web/local/out")).unwrap();
        std::os::unix::fs::symlink("../../..", inside("web/local/up")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            inside("web/local/pipe"),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        let dir = Dir::open_ambient_dir(root.path(), cap_std::ambient_authority()).unwrap();
        let find = |path: &str| HeldEntry::find(&dir, Path::new(path));
        let held = find("web/local/link").unwrap();
        assert_eq!(held.place, Path::new("web/local/f"));
        // The name now belongs to nothing, the handle still to the file.
        std::fs::rename(inside("web/local/f"), inside("web/local/g")).unwrap();
        assert_eq!(io::read_to_string(held.read().unwrap()).unwrap(), "text");
        assert_eq!(find(".").unwrap().place, Path::new(""));
        assert_eq!(find("web").unwrap().entries().unwrap().count(), 1);
        for (path, kind) in [
            ("web/local/out", io::ErrorKind::PermissionDenied),
            ("web/local/up", io::ErrorKind::PermissionDenied),
            ("web/local/link", io::ErrorKind::NotFound),
        ] {
            assert_eq!(find(path).err().unwrap().kind(), kind, "{path}");
        }
        let pipe = find("web/local/pipe").unwrap();
        assert_eq!(pipe.read().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(pipe.entries().err().unwrap().kind(), io::ErrorKind::NotADirectory);
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
