//! One connection: HTTP/1, bounded in size and time.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use axum::http::{Request, Response};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWrite;
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;

use super::access::Peer;
use super::error::RequestFailure;
use super::guarded_body::{BodyGuard, GuardedBody};
use super::places::{BusyConnection, ConnectionPlace};
use ostler_model::limits::{API_HEADER_BYTES_MAX, API_HEADER_WALL_MAX, API_WRITE_WALL_MAX};
use ostler_net::Stream;

/// The byte stream of a client.
pub(super) type ClientStream = Box<dyn Stream>;

/// The byte stream of a client with a deadline for writes.
pub(super) type TimedStream = Pin<Box<TimeoutWriter<ClientStream>>>;

/// Give a stream a deadline for writes. Without it a client that never reads would keep its
/// connection, and a followed log its place and its open file, for as long as it likes. A slow
/// reader is no such client: the deadline starts anew with every byte that it takes.
fn with_write_timeout<S: AsyncWrite>(stream: S) -> Pin<Box<TimeoutWriter<S>>> {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(API_WRITE_WALL_MAX));
    Box::pin(stream)
}

/// What all connections share.
#[derive(Clone)]
pub(super) struct ConnectionServer {
    pub(super) router: Router,
    pub(super) leaving: CancellationToken,
}

impl ConnectionServer {
    /// Answer requests until the client hangs up, until another client needs the place of an idle
    /// one, or until the API ends.
    pub(super) async fn serve(self, stream: ClientStream, peer: Peer, place: ConnectionPlace) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(API_HEADER_WALL_MAX)
            .max_buf_size(API_HEADER_BYTES_MAX);
        let place = Arc::new(place);
        let held = Arc::clone(&place);
        let service =
            ConnectionService { router: TowerToHyperService::new(self.router), peer, place: held };
        let connection = http.serve_connection(TokioIo::new(with_write_timeout(stream)), service);
        // A connection may go on as a WebSocket.
        let mut connection = pin!(connection.with_upgrades());
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = place.close_token().cancelled() => return,
            () = self.leaving.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
            if cause.is_some_and(|cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut) {
                tracing::debug!("the client read nothing for {API_WRITE_WALL_MAX:?}");
            } else {
                // The client hung up, or does not speak HTTP. That is no fault of the agent.
                tracing::debug!(%error, "a connection to the API ended");
            }
        }
    }
}

/// The router of one connection. It adds to each request where it comes from, and the connection
/// counts as busy until the answer is written.
struct ConnectionService {
    router: TowerToHyperService<Router>,
    peer: Peer,
    place: Arc<ConnectionPlace>,
}

/// Keeps the place of a connection, which counts as busy meanwhile, after HTTP has ended on it.
#[derive(Clone)]
pub(super) struct ConnectionHold {
    busy: Arc<BusyConnection>,
    _place: Arc<ConnectionPlace>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<AnswerBody>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, std::convert::Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let hold = ConnectionHold {
            busy: Arc::new(self.place.mark_busy()),
            _place: Arc::clone(&self.place),
        };
        request.extensions_mut().insert(self.peer);
        request.extensions_mut().insert(hold.clone());
        let answer = self.router.call(request);
        Box::pin(
            async move { Ok(answer.await?.map(|body| GuardedBody { body, guard: hold.busy })) },
        )
    }
}

/// The body of an answer. Its connection is busy until it is written.
type AnswerBody = GuardedBody<Arc<BusyConnection>>;

impl BodyGuard for Arc<BusyConnection> {
    fn refusal(&self) -> Option<RequestFailure> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use axum::body::Body;
    use ostler_model::clock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;

    use super::super::places::ConnectionPlaces;
    use super::super::websocket::start_upgrade;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_to_somebody_who_reads_nothing_fails() {
        let (ours, _theirs) = tokio::io::duplex(10);
        let mut stream = with_write_timeout(ours);
        let mut write = pin!(stream.write_all(&[0; 100]));
        let second = Duration::from_secs(1);
        assert!(clock::timeout(API_WRITE_WALL_MAX - second, write.as_mut()).await.is_none());
        let error = clock::timeout(2 * second, write).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything_however_long_it_takes() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut stream = with_write_timeout(ours);
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

    #[tokio::test]
    async fn a_connection_that_became_a_websocket_keeps_its_place_until_its_session_ends() {
        let places = ConnectionPlaces::new(1, None);
        let (sent, mut sessions) = mpsc::channel(1);
        let router = Router::new().fallback(async move |request: Request<Body>| {
            let (response, upgrading) = start_upgrade(request).unwrap();
            tokio::spawn(async move { sent.send(upgrading.socket().await).await });
            response
        });
        let (ours, mut theirs) = tokio::io::duplex(4_096);
        let serving = ConnectionServer { router, leaving: CancellationToken::new() };
        let place = places.enter(None).unwrap();
        let served = tokio::spawn(serving.serve(Box::new(ours), Peer::Socket, place));
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        theirs.write_all(request).await.unwrap();
        let session = sessions.recv().await.unwrap().unwrap();
        served.await.unwrap();
        assert!(places.enter(None).is_none(), "HTTP has ended, the session has not");
        drop(session);
        assert!(places.enter(None).is_some());
    }
}
