//! Copies the output of a task from its pipe to its sink.
//!
//! There is one loop per pipe, on the control runtime. The sink never refuses, so a full disk or a
//! slow reader never blocks the task: the sink counts what cannot be kept. A disk that hangs blocks
//! a thread for files and the task that prints, but never a thread with timers, so tasks can still
//! be killed.

use std::io;
use std::sync::Arc;

use tokio::net::unix::pipe;

use tokio::sync::Semaphore;

use ostler_model::limits::{LOG_READ_BYTES, LOG_WRITERS_MAX};
use ostler_model::ports::ByteSink;

/// The number of threads that may write output at once, because other code uses the threads for
/// files too.
static WRITERS: Semaphore = Semaphore::const_new(LOG_WRITERS_MAX);

/// Copy everything until the last writer closes the pipe. Returns the number of bytes. A buffer is
/// held only while there is something to read, so thousands of silent tasks cost nothing.
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
                    copied = copied.saturating_add(read as u64);
                    buffer = write(&sink, buffer).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Write on a thread that may be delayed. Returns the buffer for the next bytes.
async fn write(sink: &Arc<dyn ByteSink>, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let turn = WRITERS.acquire().await.map_err(io::Error::other)?;
    let sink = Arc::clone(sink);
    let written = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        sink.write(&bytes);
        bytes
    });
    written.await.map_err(io::Error::other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct KeepingSink(Mutex<Vec<u8>>);

    impl ByteSink for KeepingSink {
        fn write(&self, bytes: &[u8]) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }
    }

    /// A sink that hangs until the test lets it go on.
    struct HangingSink(Mutex<std::sync::mpsc::Receiver<()>>);

    impl ByteSink for HangingSink {
        fn write(&self, _bytes: &[u8]) {
            let _let_go = self.0.lock().unwrap().recv();
        }
    }

    #[tokio::test]
    async fn a_disk_that_hangs_stops_no_timer() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (let_go, hangs) = std::sync::mpsc::channel();
        let receiver = pipe::Receiver::from_owned_fd(read).unwrap();
        let pumping = tokio::spawn(pump(receiver, Arc::new(HangingSink(Mutex::new(hangs)))));
        std::fs::File::from(write).write_all(b"text").unwrap();
        // One thread runs the timers and the pumps here.
        for _ in 0..5 {
            ostler_model::clock::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(!pumping.is_finished());
        drop(let_go);
        assert_eq!(pumping.await.unwrap().unwrap(), 4);
    }

    #[tokio::test]
    async fn everything_written_before_the_last_writer_closes_arrives_in_order() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let (copy, kept) = (sent.clone(), Arc::new(KeepingSink::default()));
        let writer = std::thread::spawn(move || std::fs::File::from(write).write_all(&copy));
        let receiver = pipe::Receiver::from_owned_fd(read).unwrap();
        let copied = pump(receiver, Arc::clone(&kept) as Arc<dyn ByteSink>).await.unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(copied, sent.len() as u64);
        assert!(*kept.0.lock().unwrap() == sent);
    }
}
