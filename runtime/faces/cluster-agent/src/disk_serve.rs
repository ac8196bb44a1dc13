//! Serves the disks of allocations that have ended to other nodes, and nothing else.
//!
//! ```text
//! accept ─ a place? ─► [TLS, with a certificate of the cluster] ─► head ─┬─ snapshot, with its token ─► archive
//!                                                                       └─ anything else: closed, unanswered
//! ```
//! Nomad's command line asks a node directly for logs, files and commands before it asks the
//! servers. It goes on to the servers only if the connection ends without an answer, not after a
//! refusal.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ostler_agent::AgentHandle;
use ostler_cluster::client::DiskServerAddress;
use ostler_lifecycle::alloc::AllocPhase;
use ostler_lifecycle::alloc::snapshot::{PackError, pack};
use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{
    API_ACCEPT_PAUSE, DISK_SERVED_AT_ONCE_MAX, DISK_SERVED_CONNECTIONS_MAX, DISK_SERVED_END_WALL,
    DISK_SERVED_FULL_SAID, DISK_SERVED_HEAD_BYTES_MAX, DISK_SERVED_HEAD_WALL,
    DISK_SERVED_HEADERS_MAX, DISK_SERVED_RETRY, DISK_SERVED_WRITE_WALL, MOVED_PIECE_BYTES,
    MOVED_PIECES_WAITING_MAX,
};
use ostler_model::ports::BoxFuture;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::TlsAcceptor;

use super::disk_fetch::TOKEN;
use super::disk_peers::Peers;
use super::disk_request::{may_have, requested_alloc};

/// The disk of an allocation that has ended and may be sent.
pub(crate) struct EndedDisk {
    /// The directory that contains the directory of the allocation.
    pub(crate) root: PathBuf,
    pub(crate) tasks: Vec<TaskName>,
}

/// Why the disk of an allocation cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskRefusal {
    Unknown,
    Runs,
}

/// Looks up the disks of a node's allocations.
pub(crate) trait Allocs: Send + Sync {
    /// The disk of an allocation of which nothing runs any more. It waits a little for the end.
    fn find_ended_disk(&self, id: AllocId) -> BoxFuture<'_, Result<EndedDisk, DiskRefusal>>;
}

impl Allocs for AgentHandle {
    fn find_ended_disk(&self, id: AllocId) -> BoxFuture<'_, Result<EndedDisk, DiskRefusal>> {
        Box::pin(async move {
            let view = self.control().alloc(id).ok_or(DiskRefusal::Unknown)?;
            let mut phase = view.handle.phase();
            // Tasks of an allocation that is left to the next agent may still run.
            let over = |phase: &AllocPhase| phase.has_ended() && *phase != AllocPhase::Left;
            let waited = clock::timeout(DISK_SERVED_END_WALL, phase.wait_for(over)).await;
            if waited.is_none_or(|ended| ended.is_err()) {
                return Err(DiskRefusal::Runs);
            }
            let tasks = view.allocation.task_group().map(|group| group.tasks.as_slice());
            let tasks = tasks.unwrap_or_default().iter().map(|task| task.name.clone()).collect();
            let root =
                view.handle.dir().parent().map(Path::to_owned).ok_or(DiskRefusal::Unknown)?;
            Ok(EndedDisk { root, tasks })
        })
    }
}

/// A server of disks: its allocations, and where it listens.
pub(crate) struct DiskServer {
    pub(crate) allocs: Arc<dyn Allocs>,
    /// The secret that this node and the servers share.
    pub(crate) secret: String,
    pub(crate) bind: SocketAddr,
    pub(crate) at: DiskServerAddress,
    pub(crate) tls: Option<TlsAcceptor>,
}

/// Serve until dropped. `served` gets the address as soon as it listens.
pub(crate) async fn run(server: DiskServer, served: watch::Sender<Option<DiskServerAddress>>) {
    let listener = bind_listener(server.bind).await;
    serve(server, listener, served).await;
}

async fn serve(
    server: DiskServer,
    listener: TcpListener,
    served: watch::Sender<Option<DiskServerAddress>>,
) {
    tracing::info!(at = server.at.address, tls = server.at.tls, "serving disks to other nodes");
    served.send_replace(Some(server.at.clone()));
    let server = Arc::new(server);
    let places = Arc::new(Semaphore::new(DISK_SERVED_CONNECTIONS_MAX));
    let sending = Arc::new(Semaphore::new(DISK_SERVED_AT_ONCE_MAX));
    let (peers, mut full) = (Peers::default(), None::<Stopwatch>);
    let mut connections = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection of another node could not be accepted");
                clock::sleep(API_ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        // A connection too many is closed; the other node tries again.
        let place = peers.enter(from.ip()).zip(Arc::clone(&places).try_acquire_owned().ok());
        let Some(place) = place else {
            if full.as_ref().is_none_or(|said| said.elapsed() > DISK_SERVED_FULL_SAID) {
                full = Some(Stopwatch::start());
                tracing::warn!(%from, "too many connections for disks: those of this node find no place");
            }
            continue;
        };
        let (server, sending) = (Arc::clone(&server), Arc::clone(&sending));
        connections.spawn(async move {
            let _place = place;
            if let Err(error) = connection(server, sending, stream, from).await {
                tracing::debug!(%from, %error, "a connection of another node ended");
            }
        });
    }
}

/// Bind the address. It is tried again while an earlier agent or another program has the port.
async fn bind_listener(bind: SocketAddr) -> TcpListener {
    let mut pause = *DISK_SERVED_RETRY.start();
    let mut said = false;
    loop {
        match TcpListener::bind(bind).await {
            Ok(listener) => return listener,
            Err(error) if said => tracing::debug!(%bind, %error, "disks are not served yet"),
            Err(error) => {
                said = true;
                tracing::warn!(
                    %bind, %error,
                    "disks are not served to other nodes: the address cannot be had; tried again"
                );
            }
        }
        clock::sleep(pause).await;
        pause = pause.saturating_mul(2).min(*DISK_SERVED_RETRY.end());
    }
}

async fn connection(
    server: Arc<DiskServer>,
    sending: Arc<Semaphore>,
    stream: TcpStream,
    from: SocketAddr,
) -> io::Result<()> {
    let socket: Box<dyn ostler_net::Stream> = match &server.tls {
        None => Box::new(stream),
        Some(tls) => {
            let agreed = clock::timeout(DISK_SERVED_HEAD_WALL, tls.accept(stream)).await;
            Box::new(agreed.ok_or(io::ErrorKind::TimedOut)??)
        }
    };
    // A client that reads nothing does not keep its place.
    let mut socket = TimeoutWriter::new(socket);
    socket.set_timeout(Some(DISK_SERVED_WRITE_WALL));
    let answer = service_fn(move |request| {
        let (server, sending) = (Arc::clone(&server), Arc::clone(&sending));
        async move { answer(&server, sending, &request, from).await }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(DISK_SERVED_HEAD_WALL)
        .max_buf_size(DISK_SERVED_HEAD_BYTES_MAX)
        .max_headers(DISK_SERVED_HEADERS_MAX)
        .keep_alive(false);
    builder.serve_connection(TokioIo::new(Box::pin(socket)), answer).await.map_err(io::Error::other)
}

/// The request is for something else than a disk, so the connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("something other than the disk of an allocation was asked for")]
struct UnservedRequest;

async fn answer(
    server: &DiskServer,
    sending: Arc<Semaphore>,
    request: &Request<Incoming>,
    from: SocketAddr,
) -> Result<Response<ArchiveBody>, UnservedRequest> {
    let alloc =
        requested_alloc(request.method().as_str(), request.uri().path()).ok_or(UnservedRequest)?;
    let token = request.headers().get(TOKEN).and_then(|token| token.to_str().ok());
    if !may_have(token.unwrap_or_default(), alloc, &server.secret) {
        tracing::warn!(%from, %alloc, "a disk was asked for without the right token");
        return Ok(refusal(StatusCode::FORBIDDEN, "Permission denied"));
    }
    let Ok(place) = sending.try_acquire_owned() else {
        let busy = "too many disks are sent at once; try again";
        return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE, busy));
    };
    Ok(match server.allocs.find_ended_disk(alloc).await {
        Ok(disk) => {
            tracing::info!(%from, %alloc, "sending a disk");
            Response::new(send(disk, alloc, place))
        }
        Err(DiskRefusal::Runs) => refusal(StatusCode::CONFLICT, "the allocation has not ended"),
        // The text is the one of Nomad's client.
        Err(DiskRefusal::Unknown) => refusal(StatusCode::NOT_FOUND, "Unknown allocation"),
    })
}

/// Send the archive of a disk. It is made on a thread that may block, as fast as it is read.
fn send(disk: EndedDisk, alloc: AllocId, place: OwnedSemaphorePermit) -> ArchiveBody {
    let (pieces, queue) = mpsc::channel(MOVED_PIECES_WAITING_MAX);
    let work = move || {
        let mut out = ArchiveWriter { pieces, piece: Vec::new() };
        match pack(&disk.root, alloc, &disk.tasks, &mut out) {
            Ok(packed) => {
                let (entries, bytes) = (packed.entries, packed.bytes);
                tracing::info!(%alloc, entries, bytes, "a disk was sent");
                out.end();
            }
            Err(error @ PackError::Unreadable { .. }) => {
                tracing::warn!(%alloc, error = causes::chain(&error), "a disk was not sent as a whole");
                // The archive itself says what is missing.
                out.end();
            }
            Err(error) => {
                tracing::warn!(%alloc, error = causes::chain(&error), "a disk was not sent");
            }
        }
        drop(place);
    };
    drop(tokio::spawn(clock::run_blocking(work)));
    ArchiveBody { queue, ended: false }
}

fn refusal(status: StatusCode, text: &'static str) -> Response<ArchiveBody> {
    let (pieces, queue) = mpsc::channel(2);
    for piece in [ArchivePiece::Bytes(Bytes::from_static(text.as_bytes())), ArchivePiece::End] {
        // The channel has room for both.
        drop(pieces.try_send(piece));
    }
    let mut response = Response::new(ArchiveBody { queue, ended: false });
    *response.status_mut() = status;
    response
}

enum ArchivePiece {
    Bytes(Bytes),
    /// The end of the body.
    End,
}

/// Gathers the bytes of an archive to pieces and sends them.
struct ArchiveWriter {
    pieces: mpsc::Sender<ArchivePiece>,
    piece: Vec<u8>,
}

impl ArchiveWriter {
    fn end(self) {
        // An error means that nobody reads the archive any more.
        let _gone = self.pieces.blocking_send(ArchivePiece::End);
    }
}

impl Write for ArchiveWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= MOVED_PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.piece));
        self.pieces
            .blocking_send(ArchivePiece::Bytes(piece))
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The body of an answer. The connection breaks off if the channel closes without an end.
struct ArchiveBody {
    queue: mpsc::Receiver<ArchivePiece>,
    ended: bool,
}

impl Body for ArchiveBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = match ready!(self.queue.poll_recv(cx)) {
            Some(ArchivePiece::Bytes(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(ArchivePiece::End) => None,
            None => Some(Err(io::Error::other("it was not all sent"))),
        };
        self.ended = true;
        Poll::Ready(frame)
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
