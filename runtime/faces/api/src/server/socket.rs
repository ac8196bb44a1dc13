//! Listens on the socket and over TCP, accepts connections, and ends the API.
//!
//! ```text
//! socket: bind ─ 0600 ─ rename over a stale one ─► accept ─ same user or root? ─┐
//! TCP: bind ───────────────────────────────────► accept ─ [TLS, in time] ───────┼─► a place ─► connection
//!                                                  ▲                            └─ none ─► 503, closed
//!              shutdown: no more accepted ─────────┘   each finishes its request, within a deadline; so does
//!                                                      each session that a connection became
//! ```
//! If the file of the socket is removed, nobody can reach the API any more. So its presence is
//! checked regularly, and the socket is created again.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::Peer;
use super::connection::{ClientStream, ConnectionServer};
use super::drain::drain_request;
use super::listen::{ApiError, ListenOptions, SOCKET_PATH_BYTES_MAX, TcpListenOptions};
use super::places::{ConnectionPlace, ConnectionPlaces, limit_by_files};
use super::tls::ApiTls;

use ostler_access::Tokens;
use ostler_model::limits::{
    API_ACCEPT_PAUSE, API_CONNECTIONS_MAX, API_REFUSAL_WALL_MAX, API_REFUSALS_MAX,
    API_SOCKET_LOOK_INTERVAL, API_STOP_WALL_MAX, API_TCP_CONNECTIONS_MAX, API_TCP_PER_CLIENT_MAX,
    API_THREADS_MAX, API_TLS_WALL_MAX,
};
use ostler_model::{causes, clock};

/// A running server. Dropping it ends the server without waiting.
#[derive(Debug)]
pub struct ApiServer {
    socket: PathBuf,
    tcp: Option<(SocketAddr, bool)>,
    tokens: Tokens,
    leaving: CancellationToken,
    ended: JoinHandle<()>,
    /// The threads of the server, if it has some of its own. They are dropped last.
    threads: ApiThreads,
}

impl ApiServer {
    /// The path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The URL under which it is reached over TCP, if it is.
    #[must_use]
    pub fn url(&self) -> Option<String> {
        let (at, tls) = self.tcp?;
        Some(format!("{}://{at}", if tls { "https" } else { "http" }))
    }

    /// The tokens, which say who may do what.
    #[must_use]
    pub const fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// End the server. It accepts no more connections, waiting queries and streams end at once, and
    /// other requests under way get [`API_STOP_WALL_MAX`]. Returns when the socket is removed and
    /// every connection is closed.
    pub async fn stop(mut self) {
        self.leaving.cancel();
        if let Err(error) = (&mut self.ended).await {
            tracing::error!(%error, "the API server failed");
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.leaving.cancel();
    }
}

/// The threads that requests are answered on. They are not those that decide for the node: whatever
/// is asked at once, and however long an answer is, no owner of an allocation waits for it.
#[derive(Debug)]
struct ApiThreads(Option<Runtime>);

impl ApiThreads {
    fn start() -> Result<Self, ApiError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(cores.min(API_THREADS_MAX)).thread_name("ostler-api").enable_all();
        threads.build().map(|all| Self(Some(all))).map_err(|source| ApiError::Threads { source })
    }

    /// Until the guard is dropped, what is spawned belongs to these threads.
    fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }
}

impl Drop for ApiThreads {
    fn drop(&mut self) {
        if let Some(threads) = self.0.take() {
            // The server may be dropped inside asynchronous code, where nothing may be waited for.
            threads.shutdown_background();
        }
    }
}

/// As [`start`], on threads of the server's own.
pub(super) fn start_on_threads(
    router: Router,
    faces: ListenOptions<'_>,
    leaving: CancellationToken,
    sessions: TaskTracker,
) -> Result<ApiServer, ApiError> {
    let threads = ApiThreads::start()?;
    let inside = threads.enter();
    let started = start(router, faces, leaving, sessions);
    drop(inside);
    let mut server = started?;
    server.threads = threads;
    Ok(server)
}

/// Listen on the socket, and over TCP if that is configured, and answer with `router` until
/// `leaving`. `sessions` has the sessions that connections became; they end by themselves then.
pub(super) fn start(
    router: Router,
    faces: ListenOptions<'_>,
    leaving: CancellationToken,
    sessions: TaskTracker,
) -> Result<ApiServer, ApiError> {
    let ListenOptions { socket, tcp, tokens } = faces;
    let tcp = tcp.map(bind_tcp).transpose()?;
    let listener = bind(socket)?;
    let told = match &tcp {
        Some((listener, tls)) => {
            let at = listener.local_addr();
            let at =
                at.map_err(|source| ApiError::Tcp { at: "its own address".to_owned(), source })?;
            Some((at, tls.is_some()))
        }
        None => None,
    };
    let acceptor = Acceptor {
        listener,
        tcp,
        socket: socket.to_owned(),
        trouble: None,
        serving: ConnectionServer { router, leaving: leaving.clone() },
        refusal: ConnectionServer { router: refusal_router(), leaving: leaving.clone() },
        places: ConnectionPlaces::new(limit_by_files(API_CONNECTIONS_MAX, 3), None),
        tcp_places: ConnectionPlaces::new(
            limit_by_files(API_TCP_CONNECTIONS_MAX, 6),
            Some(API_TCP_PER_CLIENT_MAX),
        ),
        refusals: Arc::new(Semaphore::new(API_REFUSALS_MAX)),
        leaving: leaving.clone(),
        connections: JoinSet::new(),
        sessions,
    };
    let ended = tokio::spawn(acceptor.run());
    let (socket, threads) = (socket.to_owned(), ApiThreads(None));
    Ok(ApiServer { socket, tcp: told, tokens, leaving, ended, threads })
}

fn refusal_router() -> Router {
    Router::new()
        .fallback(|| async {
            let text = "too many connections at once; try again";
            let close = [(axum::http::header::CONNECTION, "close")];
            (close, (StatusCode::SERVICE_UNAVAILABLE, text))
        })
        .layer(middleware::from_fn(drain_request))
}

fn bind_tcp(face: TcpListenOptions) -> Result<(TcpListener, Option<ApiTls>), ApiError> {
    let TcpListenOptions { at, tls, .. } = face;
    let bound = std::net::TcpListener::bind(at).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    let listener = bound.map_err(|source| ApiError::Tcp { at: at.to_string(), source })?;
    Ok((listener, tls))
}

/// Create the socket under another name, and move it into place when only this user can connect.
/// The socket of an agent that crashed is replaced, because the caller holds the lock of the data directory.
fn bind(socket: &Path) -> Result<UnixListener, ApiError> {
    // The name is as short as any name of a socket, so that it fits wherever the socket's own name
    // fits.
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
    tcp: Option<(TcpListener, Option<ApiTls>)>,
    socket: PathBuf,
    /// Why the socket could not be created again; it is logged once.
    trouble: Option<String>,
    serving: ConnectionServer,
    refusal: ConnectionServer,
    places: ConnectionPlaces,
    tcp_places: ConnectionPlaces,
    refusals: Arc<Semaphore>,
    leaving: CancellationToken,
    connections: JoinSet<()>,
    sessions: TaskTracker,
}

impl Acceptor {
    async fn run(mut self) {
        let look = || Box::pin(clock::sleep(API_SOCKET_LOOK_INTERVAL));
        let mut looks = look();
        loop {
            tokio::select! {
                biased;
                () = self.leaving.cancelled() => break,
                () = &mut looks => {
                    self.check_socket();
                    looks = look();
                }
                Some(_ended) = self.connections.join_next() => {}
                stream = accept(&self.listener) => self.take(stream),
                (stream, from) = accept_tcp(self.tcp.as_ref()) => self.take_tcp(stream, from),
            }
        }
        self.end().await;
    }

    /// Check that the file of the socket exists, and create the socket again if it does not.
    fn check_socket(&mut self) {
        let looked = std::fs::symlink_metadata(&self.socket);
        if !looked.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return;
        }
        let socket = self.socket.display();
        match bind(&self.socket) {
            Ok(listener) => {
                self.listener = listener;
                self.trouble = None;
                tracing::warn!(%socket, "the socket of the API was removed and has been made again");
            }
            Err(error) => {
                let text = causes::chain(&error);
                if self.trouble.as_ref() != Some(&text) {
                    tracing::error!(
                        %socket,
                        error = text,
                        "the socket of the API was removed and cannot be made again; trying again"
                    );
                }
                self.trouble = Some(text);
            }
        }
    }

    fn take(&mut self, stream: UnixStream) {
        match stream.peer_cred() {
            Ok(peer) if may_connect(peer.uid(), rustix::process::geteuid().as_raw()) => {}
            Ok(peer) => {
                tracing::warn!(
                    uid = peer.uid(),
                    "refused a connection to the API from another user"
                );
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "refused a connection to the API whose user is unknown");
                return;
            }
        }
        match self.places.enter(None) {
            Some(place) => self.serve(Box::new(stream), Peer::Socket, place),
            None => self.refuse(Box::new(stream), Peer::Socket),
        }
    }

    fn take_tcp(&mut self, stream: TcpStream, from: SocketAddr) {
        let place = self.tcp_places.enter(Some(from.ip()));
        let _late_or_not = stream.set_nodelay(true);
        let tls = self.tcp.as_ref().and_then(|(_, tls)| tls.clone());
        match (place, tls) {
            (Some(place), None) => self.serve(Box::new(stream), Peer::Tcp(from), place),
            (Some(place), Some(tls)) => {
                let serving = self.serving.clone();
                self.connections.spawn(async move {
                    let agreeing = clock::timeout(API_TLS_WALL_MAX, tls.accept(stream));
                    let agreed = place.close_token().run_until_cancelled(agreeing).await;
                    match agreed {
                        Some(Some(Ok(stream))) => {
                            serving.serve(Box::new(stream), Peer::Tcp(from), place).await;
                        }
                        Some(Some(Err(error))) => {
                            tracing::debug!(%from, %error, "a TLS handshake failed");
                        }
                        Some(None) | None => tracing::debug!(%from, "TLS did not begin in time"),
                    }
                });
            }
            (None, None) => self.refuse(Box::new(stream), Peer::Tcp(from)),
            // A connection too many gets no TLS handshake.
            (None, Some(_)) => {}
        }
    }

    fn serve(&mut self, stream: ClientStream, peer: Peer, place: ConnectionPlace) {
        let serving = self.serving.clone();
        self.connections.spawn(async move { serving.serve(stream, peer, place).await });
    }

    fn refuse(&mut self, stream: ClientStream, peer: Peer) {
        let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let serving = self.refusal.clone();
        self.connections.spawn(async move {
            let _permit = permit;
            // A client that does not read the refusal in time misses it.
            let refused = serving.serve(stream, peer, ConnectionPlace::none());
            let _in_time = clock::timeout(API_REFUSAL_WALL_MAX, refused).await;
        });
    }

    async fn end(mut self) {
        drop((self.listener, self.tcp));
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

/// Wait for the next connection on the socket. An error of one listener does not delay the other.
async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => pause_after_error(&error).await,
        }
    }
}

async fn accept_tcp(tcp: Option<&(TcpListener, Option<ApiTls>)>) -> (TcpStream, SocketAddr) {
    let Some((listener, _)) = tcp else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => pause_after_error(&error).await,
        }
    }
}

async fn pause_after_error(error: &std::io::Error) {
    tracing::warn!(%error, "a connection to the API could not be accepted");
    clock::sleep(API_ACCEPT_PAUSE).await;
}

/// Whether a user may connect: only the agent's own user and root may.
const fn may_connect(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ostler_model::limits::API_WRITE_WALL_MAX;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn only(socket: &Path) -> ListenOptions<'_> {
        let state = ostler_state::StateStore::in_memory().unwrap();
        let (clock, rng) = (clock::Clock::system(), ostler_model::rng::Rng::system());
        let tokens = Tokens::load(state, clock, rng, &ostler_model::access::AclConfig::default());
        ListenOptions { socket, tcp: None, tokens: tokens.unwrap() }
    }

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
    async fn a_socket_that_was_removed_is_made_again_also_when_its_directory_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let (below, socket) = (dir.path().join("run"), dir.path().join("run/ostler.sock"));
        std::fs::create_dir(&below).unwrap();
        let over = CancellationToken::new();
        let server = start(Router::new(), only(&socket), over, TaskTracker::new()).unwrap();
        for whole in [false, true] {
            if whole {
                std::fs::remove_dir_all(&below).unwrap();
            } else {
                std::fs::remove_file(&socket).unwrap();
            }
            assert!(UnixStream::connect(&socket).await.is_err());
            std::fs::create_dir_all(&below).unwrap();
            clock::sleep(API_SOCKET_LOOK_INTERVAL * 2).await;
            UnixStream::connect(&socket).await.unwrap();
        }
        server.stop().await;
        assert!(!socket.exists());
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
        let server =
            start(router, only(&socket), CancellationToken::new(), TaskTracker::new()).unwrap();
        let mut client = UnixStream::connect(&socket).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        clock::sleep(2 * API_WRITE_WALL_MAX).await;
        let mut got = Vec::new();
        // The bytes that the kernel and the server had buffered still arrive; then the stream ends.
        let _reset = client.take(FAR_MORE).read_to_end(&mut got).await;
        assert!(!got.is_empty() && got.len() < FAR_MORE as usize, "{}", got.len());
        server.stop().await;
    }

    /// Connect as another user. The credentials of the connecting thread count, so another thread
    /// is enough.
    fn ask_as(uid: u32, socket: PathBuf) -> std::io::Result<Vec<u8>> {
        use std::io::{Read as _, Write as _};
        let client = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user)?;
            let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
            // The connection may be closed before everything is written.
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
        let server =
            start(router, only(&socket), CancellationToken::new(), TaskTracker::new()).unwrap();
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
            start(Router::new(), only(&socket), CancellationToken::new(), TaskTracker::new())
                .unwrap();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(server.socket()).await.unwrap();
        server.stop().await;
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
