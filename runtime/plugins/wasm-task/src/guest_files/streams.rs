//! Streams of components from and to files. Every read and write is done when it is asked for.
//!
//! wasmtime-wasi reads ahead and writes behind, on other threads. A stream may keep 64 KiB that
//! were read and not taken, and a write of any length until the disk has taken it. Ten thousand
//! streams are a gigabyte. Here file calls may hold a guest's thread, so nothing is kept. Where
//! they may not (see [`super::places`]), the streams of wasmtime-wasi are used, and each is counted
//! with what it may keep.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rustix::io::ReadWriteFlags;
use wasmtime_wasi::async_trait;
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, InputStream, OutputStream, Pollable, StreamError, StreamResult,
};

use super::GuestFile;
use super::disk::DiskQuota;
use ostler_model::limits::FILE_STREAM_BYTES;
use ostler_sandbox::HostBytes;

fn stream_error(error: io::Error) -> StreamError {
    StreamError::LastOperationFailed(error.into())
}

/// Reads a file from an offset on.
pub(super) struct FileInput {
    pub file: Arc<GuestFile>,
    pub at: u64,
    pub ended: bool,
}

#[async_trait]
impl Pollable for FileInput {
    async fn ready(&mut self) {}
}

#[async_trait]
impl InputStream for FileInput {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if self.ended {
            return Err(StreamError::Closed);
        }
        if size == 0 {
            return Ok(Bytes::new());
        }
        let mut bytes = BytesMut::zeroed(size.min(FILE_STREAM_BYTES));
        let read = loop {
            match self.file.file().read_at(&mut bytes, self.at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        match read {
            Ok(0) => {
                self.ended = true;
                Err(StreamError::Closed)
            }
            Ok(count) => {
                self.at = self.at.saturating_add(count as u64);
                bytes.truncate(count);
                Ok(bytes.freeze())
            }
            Err(error) => {
                self.ended = true;
                Err(stream_error(error))
            }
        }
    }
}

/// Writes into a file from an offset on, or at its end.
pub(super) struct FileOutput {
    pub file: Arc<GuestFile>,
    /// Offset of the next write. `None`: at the end of the file, wherever that is by then.
    pub at: Option<u64>,
    pub disk: Option<Arc<DiskQuota>>,
    pub ended: bool,
}

impl FileOutput {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = self.file.length();
        let at = self.at.unwrap_or(before);
        let end = at.saturating_add(bytes.len() as u64);
        if self.disk.as_ref().is_some_and(|disk| !disk.fits(before, end)) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        let written = match self.at {
            Some(at) => self.file.file().write_all_at(bytes, at),
            None => append(self.file.file(), bytes),
        };
        if let Some(disk) = &self.disk {
            // The present length counts, also after a failure: others may have made the file
            // shorter meanwhile.
            disk.record_resize(before, self.file.length());
        }
        self.at = self.at.map(|_| end);
        written
    }
}

/// Write at the end of a file, also where others do at the same time.
fn append(file: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let piece = [IoSlice::new(bytes)];
        match rustix::io::pwritev2(file, &piece, 0, ReadWriteFlags::APPEND) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[async_trait]
impl Pollable for FileOutput {
    async fn ready(&mut self) {}
}

#[async_trait]
impl OutputStream for FileOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if self.ended {
            return Err(StreamError::Closed);
        }
        self.put(&bytes).map_err(|error| {
            self.ended = true;
            stream_error(error)
        })
    }

    fn flush(&mut self) -> StreamResult<()> {
        // Nothing is held back here.
        if self.ended { Err(StreamError::Closed) } else { Ok(()) }
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        if self.ended { Err(StreamError::Closed) } else { Ok(FILE_STREAM_BYTES) }
    }
}

/// A reading stream of wasmtime-wasi, for guests whose calls run on threads that can be given up.
pub(super) struct WaitingInput {
    pub inner: DynInputStream,
    pub _file: Arc<GuestFile>,
    pub _bytes: HostBytes,
}

#[async_trait]
impl Pollable for WaitingInput {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl InputStream for WaitingInput {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.inner.read(size)
    }

    async fn blocking_read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.inner.blocking_read(size).await
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}

/// A writing stream of wasmtime-wasi, for guests whose calls run on threads that can be given up.
pub(super) struct WaitingOutput {
    pub inner: DynOutputStream,
    pub file: Arc<GuestFile>,
    pub _bytes: HostBytes,
    pub disk: Option<Arc<DiskQuota>>,
    pub at: u64,
    /// The longest that the file was known to be, bytes. It is not asked for again, because
    /// that may wait.
    pub length: u64,
    /// How often the file had been made shorter by then.
    pub shrinks: u64,
}

#[async_trait]
impl Pollable for WaitingOutput {
    async fn ready(&mut self) {
        self.inner.ready().await;
    }
}

#[async_trait]
impl OutputStream for WaitingOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if bytes.len() > FILE_STREAM_BYTES {
            return Err(StreamError::trap("wrote more than `check-write` allowed"));
        }
        let end = self.at.saturating_add(bytes.len() as u64);
        let shrinks = self.file.shrinks();
        if std::mem::replace(&mut self.shrinks, shrinks) != shrinks {
            // The present length is not known, so all that is written counts.
            self.length = 0;
        }
        if self.disk.as_ref().is_some_and(|disk| !disk.fits(self.length, end)) {
            return Err(stream_error(rustix::io::Errno::NOSPC.into()));
        }
        self.inner.write(bytes)?;
        self.at = end;
        if end > self.length
            && let Some(disk) = &self.disk
        {
            disk.record_resize(self.length, end);
            self.length = end;
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.inner.check_write()
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}
