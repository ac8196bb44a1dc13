//! A connection with streams that both ends open (yamux).
//!
//! ```text
//! dial ─► [0x04, TLS] ─► 0x06 ─► one task drives the connection
//!                                 ├─ open ─► a stream of ours: 0x01 calls, 0x05 one streaming call
//!                                 └─ a stream of the server's ─► `Arrivals`; its first byte says which
//! ```
//! The session ends when the connection does, when it is given up, or when nobody holds it any
//! more.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use futures_util::io::{AsyncRead, AsyncWrite};
use ostler_model::clock;
use ostler_model::limits::{
    CLUSTER_ARRIVALS_MAX, CLUSTER_OPEN_WALL_MAX, CLUSTER_OPENINGS_MAX, CLUSTER_STREAMS_MAX,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
pub use yamux::Stream;
use yamux::{Config, Connection, ConnectionError, Mode};

/// The first byte of a connection with streams, each of which begins with a byte of its own.
pub const MULTIPLEX: u8 = 6;
/// The first byte of a stream with calls, one after another.
pub const CALLS: u8 = 1;
/// The first byte of a stream with one call whose answer is a stream.
pub const STREAMING: u8 = 5;

type OpenRequest = oneshot::Sender<io::Result<Stream>>;

/// Opens streams on a connection. Clones share the connection.
#[derive(Clone, Debug)]
pub struct ClusterSession {
    openings: mpsc::Sender<OpenRequest>,
    given_up: CancellationToken,
    over: CancellationToken,
}

/// The streams that the other end has opened.
pub type Arrivals = mpsc::Receiver<Stream>;

impl ClusterSession {
    /// Drive a connection after the exchange of its first bytes. `server` says whether this end
    /// accepted it.
    pub fn drive<S>(socket: S, server: bool) -> (Self, Arrivals)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut config = Config::default();
        config.set_max_num_streams(CLUSTER_STREAMS_MAX);
        let mode = if server { Mode::Server } else { Mode::Client };
        let connection = Connection::new(socket, config, mode);
        let (openings, asked) = mpsc::channel(CLUSTER_OPENINGS_MAX);
        let (arrived, arrivals) = mpsc::channel(CLUSTER_ARRIVALS_MAX);
        let over = CancellationToken::new();
        let guard = over.clone().drop_guard();
        let given_up = CancellationToken::new();
        let ends = given_up.clone();
        tokio::spawn(async move {
            let _guard = guard;
            let mut driver =
                ConnectionDriver { connection, asked, opening: None, arrived, left: false };
            let error = ends.run_until_cancelled(poll_fn(|cx| driver.poll(cx))).await;
            tracing::debug!(?error, "a connection to a server ended");
        });
        (Self { openings, given_up, over }, arrivals)
    }

    /// Open a stream.
    ///
    /// # Errors
    /// When the connection has ended, or has no room for another stream in time.
    pub async fn open(&self) -> io::Result<Stream> {
        let gone =
            || io::Error::new(io::ErrorKind::NotConnected, "the connection to the server ended");
        let (opening, opened) = oneshot::channel();
        let asked = async {
            self.openings.send(opening).await.map_err(|_| gone())?;
            opened.await.map_err(|_| gone())?
        };
        clock::timeout(CLUSTER_OPEN_WALL_MAX, asked).await.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                "the connection to the server takes no more streams",
            )
        })?
    }

    /// End the connection at once, whoever holds it. The other end may not be there to agree.
    pub fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Wait for the end of the connection.
    pub async fn wait_until_over(&self) {
        self.over.cancelled().await;
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// The state of the one task that drives a connection.
struct ConnectionDriver<S> {
    connection: Connection<S>,
    asked: mpsc::Receiver<OpenRequest>,
    opening: Option<OpenRequest>,
    arrived: mpsc::Sender<Stream>,
    /// Whether nobody opens streams any more and the connection is being closed.
    left: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionDriver<S> {
    /// Drive the connection until it ends. Returns why it ended, unless this end closed it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ConnectionError>> {
        loop {
            if self.left {
                return self.connection.poll_close(cx).map(Result::err);
            }
            if self.opening.is_none() {
                match self.asked.poll_recv(cx) {
                    Poll::Ready(Some(opening)) => self.opening = Some(opening),
                    Poll::Ready(None) => {
                        self.left = true;
                        continue;
                    }
                    Poll::Pending => {}
                }
            }
            if self.opening.is_some()
                && let Poll::Ready(opened) = self.connection.poll_new_outbound(cx)
                && let Some(opening) = self.opening.take()
            {
                // The caller may have given up; then the stream is closed again.
                let _gone = opening.send(opened.map_err(io::Error::other));
                continue;
            }
            match self.connection.poll_next_inbound(cx) {
                // A stream too many is dropped, which resets it; the server asks again.
                Poll::Ready(Some(Ok(stream))) => drop(self.arrived.try_send(stream)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(error)),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
