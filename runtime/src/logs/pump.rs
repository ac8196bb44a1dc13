//! From a task's pipe to its sink.
//!
//! One loop per pipe, on the control runtime. The sink never refuses, so a full disk or a slow
//! reader never blocks the task: what cannot be kept is counted by the sink.

use std::io;
use std::sync::Arc;

use tokio::net::unix::pipe;

use crate::driver::api::ByteSink;
use crate::limits::LOG_READ_BYTES;

/// Copy everything until the last writer closes the pipe; returns the bytes copied. Holds a buffer
/// only while there is something to read: thousands of silent tasks cost nothing.
///
/// # Errors
/// When the pipe cannot be read.
pub async fn pump(pipe: pipe::Receiver, sink: Arc<dyn ByteSink>) -> io::Result<u64> {
    let mut copied = 0_u64;
    loop {
        pipe.readable().await?;
        let mut buffer = Vec::with_capacity(LOG_READ_BYTES);
        loop {
            buffer.clear();
            match pipe.try_read_buf(&mut buffer) {
                Ok(0) => return Ok(copied),
                Ok(read) => {
                    sink.write(&buffer);
                    copied = copied.saturating_add(read as u64);
                    // A task that never stops printing must not keep the thread from others.
                    tokio::task::yield_now().await;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<u8>>);

    impl ByteSink for Kept {
        fn write(&self, bytes: &[u8]) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
    }

    #[tokio::test]
    async fn everything_written_before_the_last_writer_closes_arrives_in_order() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let (copy, kept) = (sent.clone(), Arc::new(Kept::default()));
        let writer = std::thread::spawn(move || std::fs::File::from(write).write_all(&copy));
        let receiver = pipe::Receiver::from_owned_fd(read).unwrap();
        let copied = pump(receiver, Arc::clone(&kept) as Arc<dyn ByteSink>).await.unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(copied, sent.len() as u64);
        assert!(*kept.0.lock().unwrap() == sent);
    }
}
