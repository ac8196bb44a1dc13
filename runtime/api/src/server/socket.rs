//! The socket: who may connect, how many at once, and how it ends.
//!
//! ```text
//! bind ─ 0600 ─ rename over a stale one ─► accept ─ same user or root? ─┬─ place free ─► connection
//!                                            ▲                          └─ none ─► 503, closed
//!              shutdown: no more accepted ───┘   each finishes its request, within a deadline; so does each
//!                                                session that a connection became
//! ```

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWrite;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ApiError;
use super::drain::drained;
use ostler_model::clock;
use ostler_model::limits::{
    API_ACCEPT_PAUSE, API_CONNECTIONS_MAX, API_HEADER_BYTES_MAX, API_HEADER_WALL_MAX,
    API_REFUSAL_WALL_MAX, API_REFUSALS_MAX, API_STOP_WALL_MAX, API_WRITE_WALL_MAX,
};

/// Longest path of a unix socket, bytes: `sockaddr_un` has 108 with the closing zero.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A server that runs. Dropping it ends it without waiting.
#[derive(Debug)]
pub struct ApiServer {
    socket: PathBuf,
    leaving: CancellationToken,
    ended: JoinHandle<()>,
}

impl ApiServer {
    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// End: nothing more is accepted, waiting queries and streams end at once, other requests under
    /// way get [`API_STOP_WALL_MAX`]. Returns when the socket is gone and every connection closed.
    pub async fn stop(mut self) {
        self.leaving.cancel();
        if let Err(error) = (&mut self.ended).await {
            tracing::error!(%error, "the API ended badly");
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.leaving.cancel();
    }
}

/// Listen on `socket` and answer with `router` until `leaving`; what connections became is in `sessions`, and
/// ends by itself then.
pub(super) fn start(
    router: Router,
    socket: &Path,
    leaving: CancellationToken,
    sessions: TaskTracker,
) -> Result<ApiServer, ApiError> {
    let listener = bind(socket)?;
    let acceptor = Acceptor {
        listener,
        socket: socket.to_owned(),
        router,
        refusal: Router::new()
            .fallback(|| async {
                let text = "too many connections at once; try again";
                let close = [(axum::http::header::CONNECTION, "close")];
                (close, (StatusCode::SERVICE_UNAVAILABLE, text))
            })
            .layer(middleware::from_fn(drained)),
        places: Arc::new(Semaphore::new(API_CONNECTIONS_MAX)),
        refusals: Arc::new(Semaphore::new(API_REFUSALS_MAX)),
        leaving: leaving.clone(),
        connections: JoinSet::new(),
        sessions,
    };
    let ended = tokio::spawn(acceptor.run());
    Ok(ApiServer { socket: socket.to_owned(), leaving, ended })
}

/// Make the socket under another name and put it in place when only this user can connect. A socket
/// that an agent left which crashed is replaced: whoever calls holds the data directory's lock.
fn bind(socket: &Path) -> Result<UnixListener, ApiError> {
    // As short as any name a socket has, so that it fits where the socket's own fits.
    let staging = socket.with_file_name(".s");
    let length = socket.as_os_str().len().max(staging.as_os_str().len());
    if length > SOCKET_PATH_BYTES_MAX {
        return Err(ApiError::PathTooLong { socket: socket.to_owned(), length });
    }
    let failed = |step, source| ApiError::Socket { socket: socket.to_owned(), step, source };
    match std::fs::remove_file(&staging) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("replacing an old one", error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&staging).map_err(|error| failed("binding it", error))?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&staging, owner_only)
        .and_then(|()| std::fs::rename(&staging, socket))
        .map_err(|error| failed("putting it in place", error))?;
    Ok(listener)
}

struct Acceptor {
    listener: UnixListener,
    socket: PathBuf,
    router: Router,
    refusal: Router,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    leaving: CancellationToken,
    connections: JoinSet<()>,
    sessions: TaskTracker,
}

impl Acceptor {
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                () = self.leaving.cancelled() => break,
                Some(_ended) = self.connections.join_next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => self.take(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a connection to the API could not be accepted");
                        clock::sleep(API_ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        self.end().await;
    }

    fn take(&mut self, stream: UnixStream) {
        match stream.peer_cred() {
            Ok(peer) if may_connect(peer.uid(), rustix::process::geteuid().as_raw()) => {}
            Ok(peer) => {
                tracing::warn!(uid = peer.uid(), "a connection to the API of another user refused");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the API whose user is unknown refused");
                return;
            }
        }
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            let serving = serve(stream, self.router.clone(), self.leaving.clone(), place);
            self.connections.spawn(serving);
        } else if let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() {
            let serving = serve(stream, self.refusal.clone(), self.leaving.clone(), place);
            self.connections.spawn(async move {
                // Whoever does not read the refusal in time misses it.
                let _in_time = clock::timeout(API_REFUSAL_WALL_MAX, serving).await;
            });
        }
    }

    async fn end(mut self) {
        drop(self.listener);
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::debug!(socket = %self.socket.display(), %error, "socket not removed");
        }
        let all = async {
            while self.connections.join_next().await.is_some() {}
            self.sessions.close();
            self.sessions.wait().await;
        };
        if clock::timeout(API_STOP_WALL_MAX, all).await.is_none() {
            tracing::warn!(cut_off = self.connections.len(), "requests did not end in time");
            self.connections.shutdown().await;
        }
    }
}

/// Only the agent's own user and root.
const fn may_connect(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// A client's stream, as connections are served over it.
pub(super) type Bounded = Pin<Box<TimeoutWriter<UnixStream>>>;

/// A stream whose writes must get somewhere. Without it a reader that never reads would keep its
/// connection, and a followed log its place and its open file, for as long as it likes. A slow
/// reader is none: every byte taken begins anew.
fn bounded<S: AsyncWrite>(stream: S) -> Pin<Box<TimeoutWriter<S>>> {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(API_WRITE_WALL_MAX));
    Box::pin(stream)
}

async fn serve(
    stream: UnixStream,
    router: Router,
    leaving: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    let stream = bounded(stream);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(API_HEADER_WALL_MAX)
        .max_buf_size(API_HEADER_BYTES_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // One may go on as a WebSocket.
    let mut connection = pin!(connection.with_upgrades());
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = leaving.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
        if cause.is_some_and(|cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut) {
            tracing::debug!("the client read nothing for {API_WRITE_WALL_MAX:?}");
        } else {
            // Hung up, or not HTTP: the other side's affair.
            tracing::debug!(%error, "a connection to the API ended");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn only_the_agents_user_and_root_may_connect() {
        assert!(may_connect(1000, 1000));
        assert!(may_connect(0, 1000));
        assert!(!may_connect(1001, 1000));
        assert!(!may_connect(1000, 0), "an agent of root is root's alone");
    }

    #[test]
    fn a_path_the_kernel_cannot_take_is_refused_with_the_way_out() {
        let long = PathBuf::from(format!("/{}/ostler.sock", "d".repeat(SOCKET_PATH_BYTES_MAX)));
        let error = bind(&long).unwrap_err();
        assert!(matches!(error, ApiError::PathTooLong { length: 120, .. }), "{error}");
        assert!(error.to_string().contains("--data-dir"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_to_somebody_who_reads_nothing_fails() {
        let (ours, _theirs) = tokio::io::duplex(10);
        let mut stream = bounded(ours);
        let mut write = pin!(stream.write_all(&[0; 100]));
        let second = Duration::from_secs(1);
        assert!(clock::timeout(API_WRITE_WALL_MAX - second, write.as_mut()).await.is_none());
        let error = clock::timeout(2 * second, write).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything_however_long_it_takes() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut stream = bounded(ours);
        let writing = tokio::spawn(async move { stream.write_all(&[7; 100]).await });
        let mut got = Vec::new();
        for _ in 0..10 {
            clock::sleep(API_WRITE_WALL_MAX - Duration::from_secs(1)).await;
            let mut part = [0; 10];
            theirs.read_exact(&mut part).await.unwrap();
            got.extend(part);
        }
        writing.await.unwrap().unwrap();
        assert_eq!(got, [7; 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_of_a_stream_loses_its_connection() {
        static PART: [u8; 65_536] = [0; 65_536];
        const FAR_MORE: u64 = 64 * ostler_model::limits::MIB;
        let dir = tempfile::tempdir().unwrap();
        let endless = || async {
            let parts = std::iter::repeat_with(|| Ok::<_, std::io::Error>(&PART[..]));
            axum::body::Body::from_stream(futures_util::stream::iter(parts))
        };
        let router = Router::new().fallback(endless);
        let socket = dir.path().join("ostler.sock");
        let server = start(router, &socket, CancellationToken::new(), TaskTracker::new()).unwrap();
        let mut client = UnixStream::connect(&socket).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        clock::sleep(2 * API_WRITE_WALL_MAX).await;
        let mut got = Vec::new();
        // What the kernel and the server held is still there; then it ends.
        let _reset = client.take(FAR_MORE).read_to_end(&mut got).await;
        assert!(!got.is_empty() && got.len() < FAR_MORE as usize, "{}", got.len());
        server.stop().await;
    }

    /// Connect as another user. The credentials that count are those of the thread that connects,
    /// so another thread is enough.
    fn ask_as(uid: u32, socket: PathBuf) -> std::io::Result<Vec<u8>> {
        use std::io::{Read as _, Write as _};
        let client = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user)?;
            let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
            // It may be closed before all is written.
            let _written =
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(answer),
                read => read.map(|_| answer),
            }
        });
        client.join().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_user_is_refused_even_where_the_socket_lets_them_in() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can ask as another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("ostler.sock");
        let router = Router::new().fallback(|| async { "hello" });
        let server = start(router, &socket, CancellationToken::new(), TaskTracker::new()).unwrap();
        let ask = async |uid| {
            let socket = socket.clone();
            tokio::task::spawn_blocking(move || ask_as(uid, socket)).await.unwrap()
        };
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = ask(65_534).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "the socket's own rights");
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(ask(65_534).await.unwrap(), b"", "closed without an answer");
        let own = ask(rustix::process::geteuid().as_raw()).await.unwrap();
        assert!(own.ends_with(b"hello"), "{}", String::from_utf8_lossy(&own));
        server.stop().await;
    }

    #[tokio::test]
    async fn a_socket_left_by_a_crash_is_replaced_and_only_the_owner_can_use_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("ostler.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        drop(std::os::unix::net::UnixListener::bind(dir.path().join(".s")).unwrap());
        let server =
            start(Router::new(), &socket, CancellationToken::new(), TaskTracker::new()).unwrap();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(server.socket()).await.unwrap();
        server.stop().await;
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
