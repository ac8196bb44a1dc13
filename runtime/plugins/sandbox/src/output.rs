//! Hands what a guest writes to its standard streams to the host synchronously.
//!
//! Wasmtime's own stream sends every write through a task and a channel: 67 µs a line. This one
//! calls a [`GuestSink`] on the guest's thread: 0.3 to 0.5 µs a line. It serves both interfaces:
//! the streams of components directly, and `fd_write` of preview 1, which wasmtime-wasi implements
//! on top of them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use ostler_model::limits;

/// Where a guest's output goes. Called on guest threads.
pub trait GuestSink: Send + Sync + 'static {
    /// Take all of `bytes`, quickly, because a slow sink holds up a guest thread. There are never
    /// more than 64 KiB at once. That many must be taken even when there is less room by now, since
    /// two streams of one guest may have been told of the same room.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] closes the stream for the guest; any other error is reported
    /// to the guest's write.
    fn write(&self, bytes: &[u8]) -> io::Result<()>;

    /// How many bytes may be written now. With zero the guest waits for
    /// [`GuestSink::wait_for_room`]. Sinks that never fill up keep this default.
    fn room(&self) -> usize {
        limits::GUEST_OUTPUT_PERMIT_BYTES
    }

    /// Wait until [`GuestSink::room`] is not zero. This must also return when the sink is closed.
    fn wait_for_room(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

/// A guest's standard output or error. Pass it to `WasiCtxBuilder::stdout` or `stderr`.
#[derive(Clone)]
pub struct GuestOutput {
    sink: Arc<dyn GuestSink>,
}

impl GuestOutput {
    /// Output that goes to `sink`. All streams a guest opens write to the same sink, in order.
    #[must_use]
    pub fn new(sink: Arc<dyn GuestSink>) -> Self {
        Self { sink }
    }

    fn send(&self, bytes: &[u8]) -> StreamResult<()> {
        self.sink.write(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => StreamError::Closed,
            _ => StreamError::LastOperationFailed(error.into()),
        })
    }

    fn permit(&self) -> usize {
        // Also bounds what `write-zeroes` makes the host allocate.
        self.sink.room().min(limits::GUEST_OUTPUT_PERMIT_BYTES)
    }
}

impl IsTerminal for GuestOutput {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestOutput {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(NoAsyncWrite)
    }
}

#[async_trait]
impl Pollable for GuestOutput {
    async fn ready(&mut self) {
        if self.sink.room() == 0 {
            self.sink.wait_for_room().await;
        }
    }
}

#[async_trait]
impl OutputStream for GuestOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        // The present room is not checked: another stream of the guest may have used it since
        // `check-write`.
        if bytes.len() > limits::GUEST_OUTPUT_PERMIT_BYTES {
            return Err(StreamError::trap("wrote more than `check-write` allowed"));
        }
        self.send(&bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        // Nothing is held back here.
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(self.permit())
    }

    async fn blocking_write_and_flush(&mut self, mut bytes: Bytes) -> StreamResult<()> {
        while !bytes.is_empty() {
            let permit = self.write_ready().await?;
            // Nearly always all of it fits, and then nothing is allocated for a split.
            if bytes.len() <= permit {
                return self.send(&bytes);
            }
            self.send(&bytes.split_to(permit))?;
        }
        Ok(())
    }
}

/// A stream that only WASI 0.3 asks for, which this build does not have.
struct NoAsyncWrite;

impl AsyncWrite for NoAsyncWrite {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
