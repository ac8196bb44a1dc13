//! A connection whose writes must get somewhere.
//!
//! ```text
//!   write ─ taken ─► the wait is over
//!     └─ the client reads nothing ─► wait ─ API_WRITE_WALL_MAX ─► error: hyper ends the connection
//! ```
//! Without it a reader that never reads would keep its connection, and a followed log its place and
//! its open file, for as long as it likes. A slow reader is none: every byte taken begins anew.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use ostler_model::clock;

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// See the module.
pub(super) struct Bounded<S> {
    stream: S,
    limit: Duration,
    /// Of the write that waits.
    wait: Option<Wait>,
}

impl<S> Bounded<S> {
    /// A write that makes no progress for `limit` fails.
    pub(super) const fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, wait: None }
    }

    /// How a write went, or that it went on for too long.
    fn bounded<T>(
        &mut self,
        went: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if went.is_ready() {
            self.wait = None;
            return went;
        }
        let limit = self.limit;
        let wait = self.wait.get_or_insert_with(|| Box::pin(clock::sleep(limit)));
        if wait.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.wait = None;
        let text = format!("the client read nothing for {limit:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let went = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(went, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let went = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(went, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_write_to_somebody_who_reads_nothing_fails() {
        let (ours, _theirs) = tokio::io::duplex(10);
        let mut stream = Bounded::new(ours, LIMIT);
        let mut write = std::pin::pin!(stream.write_all(&[0; 100]));
        let second = Duration::from_secs(1);
        assert!(clock::timeout(LIMIT - second, write.as_mut()).await.is_none(), "not yet");
        let error = clock::timeout(2 * second, write).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_gets_everything_however_long_it_takes() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut stream = Bounded::new(ours, LIMIT);
        let writing = tokio::spawn(async move { stream.write_all(&[7; 100]).await });
        let mut got = Vec::new();
        for _ in 0..10 {
            clock::sleep(LIMIT - Duration::from_secs(1)).await;
            let mut part = [0; 10];
            theirs.read_exact(&mut part).await.unwrap();
            got.extend(part);
        }
        writing.await.unwrap().unwrap();
        assert_eq!(got, [7; 100]);
    }
}
