//! A connection to a server, in streams of both ends (yamux).
//!
//! ```text
//! dial ─► [0x04, TLS] ─► 0x06 ─► one task drives the connection
//!                                 ├─ open ─► a stream of ours: 0x01 calls, 0x05 one streaming call
//!                                 └─ a stream of the server's ─► `Arrivals`; its first byte says which
//! ```
//! Ends when the connection does, when it is given up, or when nobody holds the session any more.

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

/// First byte of a connection: streams, each with a byte of its own.
pub const MULTIPLEX: u8 = 6;
/// First byte of a stream: calls, one after another.
pub const CALLS: u8 = 1;
/// First byte of a stream: one call whose answer streams.
pub const STREAMING: u8 = 5;

type Opening = oneshot::Sender<io::Result<Stream>>;

/// The way to open streams. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Session {
    openings: mpsc::Sender<Opening>,
    given_up: CancellationToken,
    over: CancellationToken,
}

/// Streams that the other end opened.
pub type Arrivals = mpsc::Receiver<Stream>;

impl Session {
    /// Drive a connection whose first bytes were said. `server`: this end took it.
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
            let mut driver = Driver { connection, asked, opening: None, arrived, left: false };
            let error = ends.run_until_cancelled(poll_fn(|cx| driver.poll(cx))).await;
            tracing::debug!(?error, "a connection to a server ended");
        });
        (Self { openings, given_up, over }, arrivals)
    }

    /// Open a stream.
    ///
    /// # Errors
    /// When the connection is over, or has no room for one more in time.
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

    /// End the connection at once, whoever holds it: the other end may not be there to agree to it.
    pub fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Wait for the end of the connection.
    pub async fn ended(&self) {
        self.over.cancelled().await;
    }

    /// Has the connection ended?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// What the one task has.
struct Driver<S> {
    connection: Connection<S>,
    asked: mpsc::Receiver<Opening>,
    opening: Option<Opening>,
    arrived: mpsc::Sender<Stream>,
    /// Nobody opens streams any more: the connection is being closed.
    left: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Until the connection is over; why it is, where that was not asked for.
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
                // Who asked may have given up: the stream is closed again.
                let _gone = opening.send(opened.map_err(io::Error::other));
                continue;
            }
            match self.connection.poll_next_inbound(cx) {
                // One too many is dropped, which resets it: the server asks again.
                Poll::Ready(Some(Ok(stream))) => drop(self.arrived.try_send(stream)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(error)),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
